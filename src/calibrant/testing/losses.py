"""The contract of losses, as a function to call in a test."""

import copy
import math

import torch
from torch import Tensor

from calibrant._core.config import renewed
from calibrant.errors import InputError
from calibrant.losses import Loss
from calibrant.testing._require import draw, require, require_refusal

_CLASSES = 5
_MARGINS = (0.0, 1e-3, 1.0, 6.0, 9.0, 17.0, 40.0, 88.0, 104.0, 700.0, 1e3, 1e4)


def check_loss(loss: Loss) -> None:
    """Check that ``loss`` fulfils the contract of the losses in ``calibrant.losses``.

    Call this function in the tests of your own loss. It checks:

    - values and shapes for the loss's reduction, ignored labels, inner dimensions, and samples in another order;
    - finite gradients at every margin and in every dtype, next to padding and with large upstream gradients;
    - errors for invalid input, copies and states.

    The loss itself is not changed.

    Args:
        loss: The loss to check, with ``ignore_index=-100`` and without class weights.

    Raises:
        AssertionError: If the loss breaks the contract; the message names the clause.
        InputError: If ``loss`` is not a ``losses.Loss``, or has another ``ignore_index`` or class weights.

    Examples:
        >>> from calibrant.losses import RowLoss
        >>> class PolyLoss(RowLoss):
        ...     def rows(self, logits, labels):
        ...         nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        ...         return nll + 1 - torch.exp(-nll)
        >>> check_loss(PolyLoss())
    """
    if not isinstance(loss, Loss) or loss.ignore_index != -100 or loss.weight is not None:
        raise InputError("check_loss takes a loss that extends losses.Loss, with ignore_index=-100 and without weights")
    for clause in (_reduction, _order, _margins, _padding, _loss_refusals, _copied_loss):
        clause(copy.deepcopy(loss))


def _reduction(loss: Loss) -> None:
    logits, labels = draw(12, _CLASSES)
    logits, labels[::3] = logits.float(), -100
    kept = labels != -100
    value, alone = loss(logits, labels), loss(logits[kept], labels[kept])
    shape = labels.shape if loss.reduction == "none" else ()
    require(value.shape == shape, "the result is a scalar, or with reduction='none' has the labels' shape")
    if loss.reduction == "none":
        require(bool((value[~kept] == 0).all()), "terms of ignored labels are 0")
        value = value[kept]
    elif loss.has_row_terms:
        total = loss.reduced(loss.batch(logits, labels), "none").sum()
        mean = total / int(kept.sum()) if loss.reduction == "mean" else total
        _require_close(value, mean, "the reduced loss is the sum or mean of its terms")
    _require_close(value, alone, "ignored labels do not change the value")
    logits, labels = draw(3, _CLASSES, 2, 4)
    rows = loss(logits.movedim(1, -1).reshape(-1, _CLASSES), labels.reshape(-1))
    _require_close(loss(logits, labels).reshape(-1), rows.reshape(-1), "positions in inner dimensions count as rows")


def _order(loss: Loss) -> None:
    logits, labels = draw(12, _CLASSES)
    # a loss over bins or pairs may combine the rows of a batch, but must not depend on their order
    reversed_rows = logits.flip(0), labels.flip(0)
    _require_close(
        loss(logits, labels).sum(), loss(*reversed_rows).sum(), "the value does not depend on the order of the samples"
    )
    gradient = _gradient(loss, *reversed_rows).flip(0)
    _require_close(gradient, _gradient(loss, logits, labels), "gradients follow the order of the samples", atol=1e-6)


def _margins(loss: Loss) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        # every margin twice: with the label's logit ahead, and with it behind by as much
        logits = torch.zeros(2 * len(_MARGINS), 3, dtype=dtype)
        logits[:, 0] = torch.tensor(_MARGINS).repeat(2)
        labels = torch.arange(2).repeat_interleave(len(_MARGINS))
        value, grad = loss(logits, labels), _gradient(loss, logits, labels)
        require(bool(value.isfinite().all()), f"the value is finite at every margin in {dtype}")
        require(value.dtype == torch.promote_types(dtype, torch.float32), f"the value for {dtype} is at least float32")
        require(bool(grad.isfinite().all()) and grad.dtype == dtype, f"gradients are finite in {dtype}")
    logits, labels = draw(10, _CLASSES)
    # a formula that loses digits, such as 1 − p near p = 1, differs by far more
    narrow, wide = (_gradient(loss, z, labels).double() for z in (logits.float(), logits.float().double()))
    _require_close(narrow, wide, "gradients in float32 are those in float64", rtol=1e-4, atol=1e-6)


def _padding(loss: Loss) -> None:
    logits, labels = draw(9, _CLASSES)
    labels[::3] = -100
    logits[0, 0] = logits[3] = -math.inf
    # the scale of mixed-precision training: 0 · inf would be NaN in the ignored rows
    grad = _gradient(loss, logits.float(), labels, upstream=65536.0)
    require(bool(grad.isfinite().all()), "gradients are finite next to ignored rows that contain −inf")
    require(bool((grad[::3] == 0).all()), "ignored rows have gradient 0")


def _loss_refusals(loss: Loss) -> None:
    logits, labels = draw(4, _CLASSES)
    for what, z, y in (
        ("labels with a class axis", logits, labels[:, None]),
        ("too few labels", logits, labels[:3]),
        ("a label of K", logits, torch.tensor([0, 0, _CLASSES, 0])),
        ("a label of −1", logits, torch.tensor([0, 0, -1, 0])),
    ):
        require_refusal(InputError, what, loss, z, y)


def _copied_loss(loss: Loss) -> None:
    logits, labels = draw(8, _CLASSES)
    try:
        again = renewed(loss)
    except InputError as error:
        raise AssertionError(str(error)) from error
    again.load_state_dict(loss.state_dict())
    require(
        torch.equal(again(logits, labels), loss(logits, labels)),
        "an object with its configuration and state has the same values",
    )
    require(
        repr(again) == repr(loss) and repr(loss).startswith(type(loss).__name__), "its repr shows the configuration"
    )


def _gradient(loss: Loss, logits: Tensor, labels: Tensor, *, upstream: float = 1.0) -> Tensor:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward(torch.full_like(value, upstream))
    require(leaf.grad is not None, "the logits get a gradient")
    return leaf.grad  # type: ignore[return-value]


def _require_close(value: Tensor, expected: Tensor, clause: str, *, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    require(torch.allclose(value, expected.to(value.dtype), rtol=rtol, atol=atol), clause)
