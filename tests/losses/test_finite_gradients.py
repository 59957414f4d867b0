"""Gradients are finite wherever the loss is finite: masked classes, padding, large upstream gradients, every dtype.

The oracle is the same loss in float64, of padded rows on the kept rows alone, without the excluded classes.
"""

import math
from collections.abc import Callable

import pytest
import torch
from tests.makers import MAKE, NAMES, SOFT, WHOLE_BATCH, gradient, make
from torch import Tensor

from calibrant import losses
from calibrant.losses import Loss

LARGE = {torch.float16: 3e4, torch.bfloat16: 1e38, torch.float32: 1e38, torch.float64: 1e308}
UPSTREAM = {torch.float16: 512.0, torch.bfloat16: 65536.0, torch.float32: 65536.0, torch.float64: 65536.0}
EXCLUDED = 2  # classes at the start of each row, class 0 among them
# Their penalty is a mean over all classes, whether excluded or not, so leaving classes out changes it.
COUNT_CLASSES = ("ACLSLoss", "MarginLabelSmoothingLoss", "MDCALoss")
VARIANTS: dict[str, Callable[..., Loss]] = {
    "L1": lambda **common: losses.LpNormLoss(0.1, **common),
    "focal 0": lambda **common: losses.FocalLoss(0.0, **common),
    "focal 3": lambda **common: losses.FocalLoss(3.0, **common),
    "focal 3 detached": lambda **common: losses.FocalLoss(3.0, True, **common),
    "smoothing others": lambda **common: losses.LabelSmoothingLoss(0.1, "others", **common),
    "proper 0": lambda **common: losses.ProperFocalLoss(0.0, **common),
    "AdaFocal -1": lambda **common: losses.AdaFocalLoss(gamma_init=-1.0, **common),
}
ALL = {name: MAKE.get(name, getattr(losses, name)) for name in NAMES} | VARIANTS
BY_ROW = [name for name in ALL if name not in WHOLE_BATCH]


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_masked_classes_leave_the_gradient_right(name: str) -> None:
    cases = [((8, 6), dtype) for dtype in LARGE]
    if name != "ProperFocalLoss":  # which is never computed in blocks
        cases += [((66, 1000), torch.bfloat16), ((66, 1000), torch.float32)]
    for shape, dtype in cases:
        # the smoothed target puts weight on excluded classes: the loss is infinite
        for mask in (False, True) if name != "LabelSmoothingLoss" else (False,):
            generator = torch.Generator().manual_seed(3)
            logits = (2 * torch.randn(shape, generator=generator)).to(dtype)
            labels = torch.randint(EXCLUDED, shape[1], (shape[0],), generator=generator)
            if mask:
                logits[:, :EXCLUDED] = -math.inf
            kept = torch.arange(shape[0]) % 3 != 1
            labels[~kept], logits[1, 0], logits[4] = -100, -math.inf, -math.inf
            loss, upstream = make(name, reduction="sum"), UPSTREAM[dtype]
            first = EXCLUDED if mask and name not in COUNT_CLASSES else 0
            right = torch.zeros(shape, dtype=torch.float64)
            right[kept, first:] = gradient(loss, logits[kept, first:].double(), labels[kept] - first, upstream)
            found = gradient(loss, logits, labels, upstream)
            assert found[~kept].abs().sum() == 0, (dtype, mask)
            # sums over up to 1,000 classes in float32, then one rounding to the dtype
            tolerance = max(4e-6, 2 * torch.finfo(dtype).eps) if dtype != torch.float64 else 1e-12
            assert (found.double() - right).abs().max() <= tolerance * right.abs().max(), (dtype, mask)


@pytest.mark.parametrize("name", SOFT)
def test_target_probabilities_of_0_leave_masked_classes_out(name: str) -> None:
    """The oracle is the same loss without the masked classes; torch's own cross-entropy is NaN here."""
    generator = torch.Generator().manual_seed(1)
    logits, q = (torch.randn(8, 6, generator=generator).double() for _ in range(2))
    loss = losses.LabelSmoothingLoss(0.0) if name == "LabelSmoothingLoss" else make(name)
    few, targets = logits[:, EXCLUDED:], torch.softmax(q[:, EXCLUDED:], dim=1)
    masked, padded = logits.clone(), torch.nn.functional.pad(targets, (EXCLUDED, 0))
    masked[:, :EXCLUDED] = -math.inf
    assert loss(masked, padded).item() == pytest.approx(loss(few, targets).item(), rel=1e-12)
    slope = gradient(loss, masked, padded)
    assert slope[:, :EXCLUDED].abs().sum() == 0
    assert torch.allclose(slope[:, EXCLUDED:], gradient(loss, few, targets), rtol=1e-10)


@pytest.mark.parametrize("name", ["FocalLoss", "InverseFocalLoss", "AdaFocalLoss", "DualFocalLoss"])
def test_a_true_class_of_probability_0_pulls_as_in_cross_entropy(name: str) -> None:
    logits, labels = torch.tensor([[-math.inf, 0.0, 1.0]]), torch.tensor([0])
    assert torch.allclose(gradient(make(name), logits, labels), gradient(losses.CrossEntropyLoss(), logits, labels))


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows (R, 3) with a large number, or several, at any place, each with every label: (3 R, 3) and (3 R,)."""
    m, inf = LARGE[dtype], math.inf
    rows = [
        [m, 0.0, 1.0], [-m, 0.0, 1.0], [0.0, m, -m / 2], [m, m, -m], [m, m / 2, -m / 3], [-m, -m, -m], [-m, -m / 2, 0.5],
        [-inf, m, -m / 2], [0.5, -inf, -m], [inf, 0.0, 1.0], [1.0, -inf, -inf], [2.0, -1.0, 0.0],
    ]  # fmt: skip
    z = torch.tensor(rows, dtype=torch.float64).to(dtype)
    return z.repeat_interleave(3, dim=0), torch.arange(3).repeat(len(rows))


def check(loss: Loss, z: Tensor, y: Tensor) -> None:
    """Hold the gradient of each row whose loss is finite to that of float64, where that fits the dtype."""
    terms, found = loss(z, y), gradient(loss, z, y, UPSTREAM[z.dtype])
    exact = found if z.dtype == torch.float64 else gradient(loss, z.double(), y, UPSTREAM[z.dtype])
    fits = exact.abs() <= torch.finfo(z.dtype).max / 2
    scale = exact.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
    near = (found.double() - exact).abs() <= max(1e-4, 8 * torch.finfo(z.dtype).eps) * scale
    right = found.isfinite() if z.dtype == torch.float64 else (found.isfinite() & near) | ~fits
    wrong = terms.isfinite() & ~right.all(dim=1)
    assert not wrong.any(), (z[wrong], y[wrong], found[wrong])


@pytest.mark.parametrize("name", BY_ROW)
def test_gradients_are_finite_where_the_loss_is(name: str) -> None:
    for dtype in LARGE:
        z, y = pairs(dtype)
        check(ALL[name](reduction="none"), z, y)
        some = torch.where(torch.arange(len(y)) % 4 == 0, -100, y)
        check(ALL[name](reduction="none", weight=torch.tensor([0.0, 3.0, 0.5])), z, some)


@pytest.mark.parametrize("name", [name for name in BY_ROW if name != "ProperFocalLoss"])
def test_gradients_in_blocks_are_finite_where_the_loss_is(name: str) -> None:
    few, y = pairs(torch.float32)
    z = (-1e30 * torch.arange(1, 2101)).expand(len(few), -1).clone()  # above the size from which blocks are used
    z[:, :3] = few
    check(ALL[name](reduction="none"), z, y)


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_losses_of_a_whole_batch_are_finite_in_their_gradients(name: str) -> None:
    for dtype in (torch.float16, torch.float32):
        loss, (z, y) = make(name, reduction="sum"), pairs(dtype)
        for row, label in zip(z.split(1), y.split(1), strict=True):
            both = (
                torch.cat([row, torch.tensor([[0.5, 1.0, -1.0]], dtype=dtype)]),
                torch.cat([label, torch.tensor([0])]),
            )
            assert not loss(*both).isfinite() or gradient(loss, *both, UPSTREAM[dtype]).isfinite().all(), (row, label)


@pytest.mark.parametrize("name", SOFT)
def test_gradients_of_soft_targets_are_finite_where_the_loss_is(name: str) -> None:
    for dtype in LARGE:
        z = pairs(dtype)[0][::3]
        for target in ([0.0, 1.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]):
            check(make(name, reduction="none"), z, torch.tensor(target, dtype=dtype).expand_as(z))


def test_a_target_on_an_excluded_class_costs_without_end() -> None:
    z, q = torch.tensor([[-math.inf, 0.0, 1.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    for loss in (losses.CrossEntropyLoss(), losses.FocalLoss(0.0), losses.FocalLoss(2.0)):
        assert loss(z, q).item() == math.inf
    assert losses.LabelSmoothingLoss(0.1)(z, torch.tensor([1])).item() == math.inf


@pytest.mark.parametrize("name", [name for name in ALL if isinstance(ALL[name](), losses.WeightedNLL)])
def test_a_loss_from_cross_entropies_has_a_finite_gradient(name: str) -> None:
    for dtype, large in LARGE.items():
        loss = ALL[name](reduction="none")
        assert isinstance(loss, losses.WeightedNLL)
        nll = torch.tensor([0.0, 1e-7, 0.5, 40.0, 800.0, large], dtype=torch.float64).to(dtype).requires_grad_()
        value = loss.from_nll(nll)
        value.backward(torch.full_like(value, UPSTREAM[dtype]))
        assert nll.grad.isfinite().all()
        assert nll.grad[-2:].tolist() == [UPSTREAM[dtype]] * 2  # w(0) = 1


@pytest.mark.parametrize("name", BY_ROW)
def test_second_derivatives_are_finite_where_the_loss_is(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        z, y = pairs(dtype)
        beside = torch.tensor([[-math.inf, 0.0, 1.0], [-math.inf] * 3, *([m, 0.0, 0.0] for m in (40, 700, 745, 1e3))])
        z = torch.cat([z, beside.to(dtype), beside[2:].to(dtype)])
        y = torch.cat([y, torch.tensor([-100, -100, *[0] * 4, *[1] * 4])])
        leaf = z.clone().requires_grad_()
        terms = ALL[name](reduction="none")(leaf, y)
        kept = terms.detach().isfinite()
        (first,) = torch.autograd.grad(terms[kept].sum(), leaf, create_graph=True)
        assert first[kept].isfinite().all()
        if first.requires_grad:
            (second,) = torch.autograd.grad(first[kept].sum(), leaf, allow_unused=True)
            assert second is None or second[kept].isfinite().all(), (z[kept], second[kept])
