"""Gradients at the ends of every dtype: wherever the loss is finite and the exact gradient can be written, it is finite and right.

The oracle of float32 and below is the same loss in float64, where logits of 1e38 times any upstream gradient are far from the end.
"""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.contracts.test_losses import MAKE, NAMES, SOFT, WHOLE_BATCH, make
from torch import Tensor

from calibrant import functional, losses
from calibrant.losses import Loss
from calibrant.vocabulary import ShardedLogits

LARGE = {torch.float16: 3e4, torch.bfloat16: 1e38, torch.float32: 1e38, torch.float64: 1e308}
UPSTREAM = {torch.float16: 512.0, torch.bfloat16: 65536.0, torch.float32: 65536.0, torch.float64: 65536.0}
DTYPES = list(LARGE)
VARIANTS: dict[str, Callable[..., Loss]] = {
    "BSCE attached": lambda **common: losses.BSCELoss(1.5, 3.0, detach_weight=False, **common),
    "L1": lambda **common: losses.LpNormLoss(0.1, **common),
    "focal 0": lambda **common: losses.FocalLoss(0.0, **common),
    "focal 3": lambda **common: losses.FocalLoss(3.0, **common),
    "focal 3 detached": lambda **common: losses.FocalLoss(3.0, True, **common),
    "smoothing others": lambda **common: losses.LabelSmoothingLoss(0.1, "others", **common),
    "AdaFocal -1": lambda **common: losses.AdaFocalLoss(gamma_init=-1.0, **common),
}
ALL = {name: MAKE.get(name, getattr(losses, name)) for name in NAMES} | VARIANTS


def rows(dtype: torch.dtype) -> Tensor:
    """Return logits (R, 3) with a large number, or several, at any place: differences from 1 up to twice the largest."""
    m, inf = LARGE[dtype], math.inf
    given = [
        [m, 0.0, 1.0],
        [-m, 0.0, 1.0],
        [0.0, m, -m / 2],
        [m, m, -m],
        [m, m / 2, -m / 3],
        [-m, -m, -m],
        [-m, -m / 2, 0.5],
        [-inf, m, -m / 2],
        [0.5, -inf, -m],
        [inf, 0.0, 1.0],
        [2.0, -1.0, 0.0],
    ]
    return torch.tensor(given, dtype=torch.float64).to(dtype)


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return every row with every label: (3 R, 3) and (3 R,)."""
    z = rows(dtype)
    return z.repeat_interleave(3, dim=0), torch.arange(3).repeat(len(z))


def terms_and_gradient(
    loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor, upstream: float
) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_()
    value = loss(leaf, y)
    value.backward(torch.full_like(value, upstream))
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def held(found: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Say where a gradient is right, or where the exact one does not fit the dtype."""
    fits = exact.abs() <= torch.finfo(dtype).max / 2
    scale = exact.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
    near = (found.double() - exact).abs() <= max(1e-4, 8 * torch.finfo(dtype).eps) * scale
    return (found.isfinite() & near) | ~fits


def check(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor, case: str) -> None:
    """Hold a loss of ``reduction="none"`` to its gradient, row by row."""
    dtype = z.dtype
    terms, found = terms_and_gradient(loss, z, y, UPSTREAM[dtype])
    finite = terms.isfinite()
    if dtype == torch.float64:
        wrong = finite & ~found.isfinite().all(dim=1)
    else:
        exact = terms_and_gradient(loss, z.double(), y, UPSTREAM[dtype])[1]
        wrong = finite & ~held(found, exact, dtype).all(dim=1)
    assert not wrong.any(), (case, z[wrong], y[wrong], found[wrong])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in ALL if name not in WHOLE_BATCH])
def test_gradients_are_finite_where_the_loss_is(name: str, dtype: torch.dtype) -> None:
    z, y = pairs(dtype)
    plain, weight = ALL[name](reduction="none"), torch.tensor([0.0, 3.0, 0.5])
    check(plain, z, y, name)
    check(ALL[name](reduction="none", weight=weight), z, y, f"{name}, weighted")
    some = torch.where(torch.arange(len(y)) % 4 == 0, -100, y)
    check(plain, z, some, f"{name}, ignored rows")


@pytest.mark.parametrize("name", [name for name in ALL if name not in WHOLE_BATCH | {"ProperFocalLoss"}])
def test_gradients_in_blocks_are_finite_where_the_loss_is(name: str) -> None:
    few, y = pairs(torch.float32)
    z = (-1e30 * torch.arange(1, 2101)).expand(len(few), -1).clone()  # above the size from which blocks are used
    z[:, :3] = few
    check(ALL[name](reduction="none"), z, y, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(WHOLE_BATCH))
def test_losses_of_a_whole_batch_are_finite_in_their_gradients(name: str, dtype: torch.dtype) -> None:
    loss = ALL[name](reduction="sum")
    z, y = pairs(dtype)
    calm = torch.tensor([[0.5, 1.0, -1.0]], dtype=dtype)
    for row, label in zip(z.split(1), y.split(1), strict=True):
        value, found = terms_and_gradient(
            loss, torch.cat([row, calm]), torch.cat([label, torch.tensor([0])]), UPSTREAM[dtype]
        )
        assert not value.isfinite() or found.isfinite().all(), (row, label, found)


def soft_cases(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    z = rows(dtype)
    for target in ([0.0, 1.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]):
        yield z, torch.tensor(target, dtype=dtype).expand_as(z)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(SOFT))
def test_gradients_of_soft_targets_are_finite_where_the_loss_is(name: str, dtype: torch.dtype) -> None:
    for z, q in soft_cases(dtype):
        check(make(name, reduction="none"), z, q, f"{name}, targets {q[0].tolist()}")


def test_a_target_on_an_excluded_class_costs_without_end() -> None:
    z, q = torch.tensor([[-math.inf, 0.0, 1.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    for loss in (losses.CrossEntropyLoss(), losses.FocalLoss(0.0), losses.FocalLoss(2.0)):
        assert loss(z, q).item() == math.inf


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "focal": lambda z, y: functional.focal_loss(z, y, gamma=2.0, reduction="none"),
    "inverse focal": lambda z, y: functional.inverse_focal_loss(z, y, gamma=2.0, reduction="none"),
    "Brier": lambda z, y: functional.brier_loss(z, y, reduction="none"),
    "smoothing": lambda z, y: functional.label_smoothing_loss(z, y, smoothing=0.1, reduction="none"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_the_functions_are_finite_where_they_are(name: str, dtype: torch.dtype) -> None:
    check(FUNCTIONS[name], *pairs(dtype), name)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": losses.BinaryCrossEntropyLoss(reduction="none"),
    "focal 2": losses.BinaryFocalLoss(2.0, reduction="none"),
    "focal .5": losses.BinaryFocalLoss(0.5, reduction="none"),
    "focal 2 weighted": losses.BinaryFocalLoss(2.0, torch.tensor([3.0, 0.0, 1.0]), reduction="none"),
    "smoothing": losses.BinaryLabelSmoothingLoss(0.1, reduction="none"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_gradients_of_several_labels_are_finite_where_the_loss_is(name: str, dtype: torch.dtype) -> None:
    z = rows(dtype)
    for label in (0, 1, -1):
        for labels in (torch.full(z.shape, label), torch.full(z.shape, float(label), dtype=dtype)):
            terms, found = terms_and_gradient(BINARY[name], z, labels, UPSTREAM[dtype])
            assert found[terms.isfinite()].isfinite().all(), (z, label, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in ALL if isinstance(ALL[name](), losses.WeightedNLL)])
def test_a_loss_from_cross_entropies_has_a_finite_gradient(name: str, dtype: torch.dtype) -> None:
    loss = ALL[name](reduction="none")
    assert isinstance(loss, losses.WeightedNLL)
    nll = torch.tensor([0.0, 1e-7, 0.5, 40.0, 800.0, LARGE[dtype]], dtype=torch.float64).to(dtype).requires_grad_()
    value = loss.from_nll(nll)
    value.backward(torch.full_like(value, UPSTREAM[dtype]))
    assert nll.grad.isfinite().all()
    assert nll.grad[-2:].tolist() == [UPSTREAM[dtype]] * 2  # w(0) = 1
    z, y = pairs(dtype)
    kept = z.isfinite().all(dim=1)
    leaf = z[kept].clone().requires_grad_()
    terms = ShardedLogits(leaf).loss(y[kept], loss)
    terms.backward(torch.full_like(terms, UPSTREAM[dtype]))
    assert leaf.grad[terms.detach().isfinite()].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [name for name in ALL if name not in WHOLE_BATCH])
def test_second_derivatives_are_finite_where_the_loss_is(name: str, dtype: torch.dtype) -> None:
    z, y = pairs(dtype)
    leaf = z.clone().requires_grad_()
    terms = ALL[name](reduction="none")(leaf, y)
    kept = terms.detach().isfinite()
    (first,) = torch.autograd.grad(terms[kept].sum(), leaf, create_graph=True)
    assert first[kept].isfinite().all()
    if first.requires_grad:
        (second,) = torch.autograd.grad(first[kept].sum(), leaf, allow_unused=True)
        assert second is None or second[kept].isfinite().all(), (z[kept], second[kept])
