"""The contract of a loss, as a function to call in a test."""

import copy
import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.config import renewed
from calibrant._core.constraints import Kind, checked
from calibrant.errors import InputError
from calibrant.losses import Loss, RowLoss, RowPenalty
from calibrant.testing.assertions import Contract, normal_sample, require_refusal

CONTRACT = Contract("the contract of calibrant.losses.Loss")
CLASSES = 5
MARGINS = (0.0, 1e-3, 1.0, 6.0, 9.0, 17.0, 40.0, 88.0, 104.0, 700.0, 1e3, 1e4)


AnyLoss = Annotated[Loss, Kind(Loss, "subclass losses.RowLoss", "a loss that extends losses.Loss")]


@checked
def check_loss(loss: AnyLoss) -> None:
    """Check that ``loss`` does what every loss of ``calibrant.losses`` does; call it in a test of your own loss.

    Values and shapes of its reduction, ignored places, inner dimensions, the order of samples, gradients that are finite
    at every margin and in every dtype, beside padding and under large upstream gradients, refusals of bad input, arguments
    kept under their names, copies and states. It is called on copies and is not changed.

    Args:
        loss: The loss to check, with ``ignore_index=-100`` and without class weights.

    Raises:
        AssertionError: Naming the clause that does not hold.
        InputError: If ``loss`` is no ``losses.Loss``, or has another ``ignore_index`` or class weights.

    Examples:
        >>> from calibrant.losses import RowLoss
        >>> class PolyLoss(RowLoss):
        ...     def rows(self, logits, labels):
        ...         nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        ...         return nll + 1 - torch.exp(-nll)
        >>> check_loss(PolyLoss())
    """
    if loss.ignore_index != -100 or loss.weight is not None:
        raise InputError("a loss without class weights and with ignore_index=-100", "others", "leave them out")
    for clause in CLAUSES:
        clause(copy.deepcopy(loss))


def _same_as_kept_rows(loss: Loss) -> None:
    logits, labels = normal_sample(12, CLASSES)
    labels[::3] = -100
    kept = labels != -100
    if loss.reduction == "none":
        terms = loss(logits, labels)
        CONTRACT.require(terms.shape == labels.shape, "with reduction='none' the result has the labels' shape")
        CONTRACT.require(bool((terms[~kept] == 0).all()), "terms of ignored places are 0")
        _same(terms[kept], loss(logits[kept], labels[kept]), "ignored places change nothing")
        return
    value = loss(logits, labels)
    CONTRACT.require(value.shape == (), "a mean or a sum is a scalar")
    _same(value, loss(logits[kept], labels[kept]), "ignored places change nothing")


def _mean_is_sum_over_count(loss: Loss) -> None:
    if loss.reduction == "none" or not isinstance(loss, RowLoss | RowPenalty):
        return
    logits, labels = normal_sample(12, CLASSES)
    # one ignored row: a mean over 12 instead of 11 shows
    labels[4] = -100
    total = loss.terms(logits, labels).sum()
    _same(loss(logits, labels), total / 11 if loss.reduction == "mean" else total, "the reduction is that of its terms")


def _inner_dimensions_are_rows(loss: Loss) -> None:
    logits, labels = normal_sample(3, CLASSES, 2, 4)
    flat, value = logits.movedim(1, -1).reshape(-1, CLASSES), loss(logits, labels)
    shape = labels.shape if loss.reduction == "none" else ()
    CONTRACT.require(
        value.shape == shape, "with reduction='none' the result has the labels' shape, inner dimensions too"
    )
    _same(value.reshape(-1), loss(flat, labels.reshape(-1)).reshape(-1), "inner dimensions are more rows")


def _order_does_not_matter(loss: Loss) -> None:
    logits, labels = normal_sample(12, CLASSES)
    # a loss of bins or pairs may mix the rows of a batch, but not by their order
    back = torch.arange(11, -1, -1)
    _same(loss(logits, labels).sum(), loss(logits[back], labels[back]).sum(), "samples may come in any order")
    first, second = _gradient(loss, logits, labels)[back], _gradient(loss, logits[back], labels[back])
    _same(first, second, "gradients follow the order of the samples", atol=1e-6)


def _finite_at_every_margin(loss: Loss) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        # every margin with the label ahead, and once more with it as far behind
        right = torch.zeros(len(MARGINS), 3)
        right[:, 0] = torch.tensor(MARGINS)
        logits = torch.cat([right, right]).to(dtype)
        labels = torch.arange(2).repeat_interleave(len(MARGINS))
        value, grad = loss(logits, labels), _gradient(loss, logits, labels)
        CONTRACT.require(bool(value.isfinite().all()), f"the value is finite at every margin in {dtype}")
        wide = torch.promote_types(dtype, torch.float32)
        CONTRACT.require(value.dtype == wide, f"the value of {dtype} logits is {wide}")
        CONTRACT.require(bool(grad.isfinite().all()) and grad.dtype == dtype, f"gradients are finite in {dtype}")


def _gradients_match_float64(loss: Loss) -> None:
    logits, labels = normal_sample(10, CLASSES)
    # a formula that loses digits, as 1 − p near p = 1, differs by far more
    found, right = (_gradient(loss, z, labels).double() for z in (logits, logits.double()))
    _same(found, right, "float32 gradients are those of float64", rtol=1e-4, atol=1e-6)


def _padding_leaves_gradients_finite(loss: Loss) -> None:
    logits, labels = normal_sample(9, CLASSES)
    labels[::3] = -100
    logits[0, 0] = logits[3] = -math.inf
    # the scale of mixed-precision training: 0 · inf would be NaN in the ignored rows
    grad = _gradient(loss, logits, labels, upstream=65536.0)
    CONTRACT.require(bool(grad.isfinite().all()), "gradients are finite beside ignored rows that hold −inf")
    CONTRACT.require(bool((grad[::3] == 0).all()), "ignored rows have gradient 0")


def _bad_input_is_refused(loss: Loss) -> None:
    logits, labels = normal_sample(4, CLASSES)
    cases: dict[str, tuple[Tensor, Tensor]] = {
        "integer logits": (logits.long(), labels),
        "labels with a class axis": (logits, labels[:, None]),
        "too few labels": (logits, labels[:3]),
        "a label of K": (logits, labels.fill_(0) + torch.tensor([0, 0, CLASSES, 0])),
        "a label of −1": (logits, torch.tensor([0, 0, -1, 0])),
        "labels as booleans": (logits, labels > 0),
        "labels on another device": (logits, labels.to("meta")),
    }
    for what, (z, y) in cases.items():
        require_refusal(InputError, what, loss, z, y)


def _arguments_and_states_are_kept(loss: Loss) -> None:
    logits, labels = normal_sample(8, CLASSES)
    for make, clause in (
        (renewed, "its configuration makes the same loss again"),
        (copy.deepcopy, "a copy with its state gives the same numbers"),
    ):
        try:
            again = make(loss)
        except InputError as error:
            raise AssertionError(str(error)) from error
        again.load_state_dict(loss.state_dict())
        CONTRACT.require(torch.equal(again(logits, labels), loss(logits, labels)), clause)
        CONTRACT.require(repr(again) == repr(loss), "its representation is made from its configuration")
    CONTRACT.require(repr(loss).startswith(type(loss).__name__), "repr starts with the class")


CLAUSES: tuple[Callable[[Loss], None], ...] = (
    _same_as_kept_rows,
    _mean_is_sum_over_count,
    _inner_dimensions_are_rows,
    _order_does_not_matter,
    _finite_at_every_margin,
    _gradients_match_float64,
    _padding_leaves_gradients_finite,
    _bad_input_is_refused,
    _arguments_and_states_are_kept,
)


def _gradient(loss: Loss, logits: Tensor, labels: Tensor, *, upstream: float = 1.0) -> Tensor:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward(torch.full_like(value, upstream))
    CONTRACT.require(leaf.grad is not None, "the logits get a gradient")
    return leaf.grad if leaf.grad is not None else leaf


def _same(found: Tensor, right: Tensor, clause: str, *, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    CONTRACT.require(torch.allclose(found, right.to(found.dtype), rtol=rtol, atol=atol), clause)
