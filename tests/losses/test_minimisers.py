"""Gradient descent on the logits themselves, on data of known η: which distribution each loss ends at.

Values cannot tell an attached weight from a detached one; where training ends does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from calibrant import losses
from calibrant.losses import Loss


def trained(loss: Loss, eta: list[float], steps: int = 400) -> torch.Tensor:
    """Return softmax of the logits at which Newton-like descent on Σ_y η_y loss(z, y) stops moving."""
    truth = torch.tensor(eta, dtype=torch.float64)
    z = torch.log(truth).requires_grad_()
    optimiser = torch.optim.Rprop([z], lr=0.01, step_sizes=(1e-12, 0.5))
    for _ in range(steps):
        optimiser.zero_grad()
        (truth @ loss(z.expand(len(eta), len(eta)), torch.arange(len(eta)))).backward()
        if float(z.grad.abs().max()) < 1e-12:
            break
        optimiser.step()
    return torch.softmax(z.detach(), 0)


@pytest.mark.parametrize(
    ("kind", "make", "count", "tolerance"),
    [
        ("binary_focal_minimiser", losses.FocalLoss, 5, 1e-6),
        ("inverse_focal_minimiser", losses.InverseFocalLoss, 3, 1e-6),
        ("detached_focal_fixed_point", partial(losses.FocalLoss, detach_weight=True), 1, 1e-9),
        ("inverse_focal_detached_fixed_point", partial(losses.InverseFocalLoss, detach_weight=True), 2, 1e-6),
    ],
)
def test_stored_minimisers_and_fixed_points(
    kind: str, make: Any, count: int, tolerance: float, vectors: dict[str, dict[str, Any]]
) -> None:
    entries = [entry for name, entry in vectors.items() if name.startswith(kind)]
    assert len(entries) == count
    for entry in entries:
        eta = entry["inputs"]["eta"]
        q = trained(make(entry["inputs"]["gamma"], reduction="none"), [eta, 1 - eta])[0]
        assert abs(q - entry["expected"]["q_star"]) < tolerance


@pytest.mark.parametrize(
    "make",
    [
        losses.CrossEntropyLoss,
        losses.BrierLoss,
        lambda **common: losses.ProperFocalLoss(3.0, **common),
        lambda **common: losses.Weighted((1.0, losses.BrierLoss(**common)), (2.0, losses.CrossEntropyLoss(**common))),
    ],
    ids=["cross-entropy", "Brier", "proper part", "their sum"],
)
def test_proper_losses_end_at_the_truth(make: Callable[..., Loss]) -> None:
    eta = [0.55, 0.3, 0.15]
    assert torch.allclose(trained(make(reduction="none"), eta), torch.tensor(eta, dtype=torch.float64), atol=1e-7)
