"""Gradients in float64: attached losses against finite differences, detached ones against the gradient written out.

Values cannot tell an attached weight from a detached one; gradients, and where training ends, do.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.makers import ATTACHED, NAMES, gradient, make
from torch import Tensor

from calibrant import losses
from calibrant.losses import Loss

MADE: dict[str, Callable[[], Loss]] = {name: ATTACHED.get(name, partial(make, name)) for name in NAMES} | {
    "label smoothing": lambda: losses.LabelSmoothingLoss(0.1, spread="others"),
    "focal 3": lambda: losses.FocalLoss(3.0),
    "MMCE unweighted": lambda: losses.MMCELoss(weighted=False),
    "L1": lambda: losses.LpNormLoss(0.1),
    "L2.5": lambda: losses.LpNormLoss(0.1, 2.5),
    "BSCE": lambda: losses.BSCELoss(1.5, 3.0, detach_weight=False),
}


def sample() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = 1.5 * torch.randn(9, 4, generator=generator, dtype=torch.float64)
    return logits, torch.randint(4, (9,), generator=generator)


@pytest.mark.parametrize("name", MADE)
def test_attached_losses_pass_gradcheck(name: str) -> None:
    logits, labels = sample()
    loss = MADE[name]()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), logits.requires_grad_())


def below(p: Tensor, own: Tensor) -> Tensor:
    """Return the largest probability below the label's, or 0."""
    return torch.where(p < own, p, 0).amax(1, keepdim=True)


def distance(p: Tensor, norm: float) -> Tensor:
    """Return ‖p − e_y‖ to the power of its order."""
    return (p - torch.nn.functional.one_hot(sample()[1], 4)).abs().pow(norm).sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (losses.FocalLoss(3.0, True, reduction="sum"), lambda p, own: (1 - own) ** 3),
        (losses.InverseFocalLoss(2.0, True, reduction="sum"), lambda p, own: (1 + own) ** 2),
        (losses.ScheduledFocalLoss((5.0, 1.0), (1,), True, reduction="sum"), lambda p, own: (1 - own) ** 5),
        (
            losses.SampleDependentFocalLoss(detach_weight=True, reduction="sum"),
            lambda p, own: torch.where(own < 0.2, (1 - own) ** 5, (1 - own) ** 3),
        ),
        (losses.AdaFocalLoss(gamma_init=-1.5, detach_weight=True, reduction="sum"), lambda p, own: (1 + own) ** 1.5),
        (losses.DualFocalLoss(5.0, True, reduction="sum"), lambda p, own: (1 - own + below(p, own)) ** 5),
        (losses.BSCELoss(reduction="sum"), lambda p, own: distance(p, 2)),
        (losses.BSCELoss(1.5, 1.0, reduction="sum"), lambda p, own: distance(p, 1) ** 1.5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Loss) else "",
)
def test_detached_weights_give_the_gradient_written_out(loss: Loss, weight: Callable[..., Tensor]) -> None:
    logits, labels = sample()
    p = torch.softmax(logits, 1)
    # of w · nll with w constant: w(p)·(p − e_y)
    written = weight(p, p.gather(1, labels[:, None])) * (p - torch.nn.functional.one_hot(labels, 4))
    assert torch.allclose(gradient(loss, logits, labels), written, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("loss", "temperature"),
    [
        (losses.CrossEntropyLoss(reduction="none"), 1.0),
        (losses.BrierLoss(reduction="none"), 1.0),
        (losses.ProperFocalLoss(3.0, reduction="none"), 1.0),
        (losses.FocalLoss(0.5, True, reduction="none"), 1.5),
        (losses.FocalLoss(3.0, True, reduction="none"), 4.0),
    ],
    ids=repr,
)
def test_training_ends_at_the_truth_or_at_a_temperature_of_it(loss: Loss, temperature: float) -> None:
    truth = torch.tensor([0.8, 0.2], dtype=torch.float64)
    z = (truth.log() / temperature).requires_grad_()
    (expected,) = torch.autograd.grad(truth @ loss(z.expand(2, 2), torch.arange(2)), z)
    assert expected.abs().max() < 1e-12


def test_the_other_classes_of_acls_are_pulled_and_the_top_is_not() -> None:
    logits, labels = sample()
    loss = losses.ACLSLoss(1.0, margin=0.5, top=0.0, others=1.0, reduction="sum")
    nll = gradient(losses.CrossEntropyLoss(reduction="sum"), logits, labels)
    lag = torch.relu(logits.amax(1, keepdim=True) - logits - 0.5)
    assert torch.allclose(gradient(loss, logits, labels) - nll, -2 * lag / 3, atol=1e-12)
