"""Checked batches in the form losses compute with, (N, K) logits, (N,) labels and their weights; and the reduction.

Shapes, dtypes and devices are always checked. Values are checked only on the CPU in eager mode: on CUDA reading them
would wait for the device (there the kernels have their own check), and in a compiled graph it would break the graph.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core.check import (
    FLOATING,
    PROBABILITY_TOLERANCE,
    check_floating,
    is_dense,
    kind_of,
    refuse,
    refuse_layout,
)
from calibrant._core.numerics import row_chunks
from calibrant._objective import true_class
from calibrant._objective.statistics import SMALL
from calibrant.errors import InputError
from calibrant.scores import log_probs_from_nll

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

SOFT_LOSSES = "CrossEntropyLoss, LabelSmoothingLoss, BrierLoss, FocalLoss"
_LARGE = 1 << 22  # number of logits on an accelerator from which a pass over them costs more than its launch


@dataclass(frozen=True)
class Places:
    """The labels of a batch: which are ignored, and the class weight of each.

    Args:
        given: (N,) int64 labels as passed.
        labels: (N,) int64, 0 where ignored.
        kept: (N,) bool, false where ignored.
        weights: (N,) class weight of each label, 0 where ignored.
        all_count: Whether none is ignored; None where label values must not be read.
    """

    given: Tensor
    labels: Tensor
    kept: Tensor
    weights: Tensor
    all_count: bool | None

    @classmethod
    def of(
        cls, labels: Tensor, *, classes: int, dtype: torch.dtype, weight: Tensor | None, ignore_index: int
    ) -> "Places":
        """Return the places of integer ``labels`` (N,), checked against ``classes``, with weights in the dtype of the loss."""
        given = labels.long()
        all_count = check_range(given, classes=classes, ignore_index=ignore_index)
        kept = given != ignore_index
        safe = given if all_count else torch.where(kept, given, 0)
        weights = kept.to(torch.promote_types(dtype, torch.float32))
        if weight is not None:
            check_weight_fits(weight, classes=classes, device=given.device)
            weights = weights * weight.to(weights.dtype)[safe]
        return cls(given, safe, kept, weights, all_count)

    def mask(self, terms: Tensor) -> Tensor:
        """Return ``terms`` (N,) with 0 where the label is ignored."""
        return torch.where(self.kept, terms, 0)


@dataclass(frozen=True)
class Batch(Places):
    """Logits and integer labels, checked and flattened.

    Args:
        logits: (N, K); rows whose label is ignored may have been replaced by 0.
        shape: The labels' shape before flattening.
    """

    logits: Tensor
    shape: torch.Size

    @classmethod
    def from_pair(cls, logits: Any, labels: Any, *, name: str, weight: Tensor | None, ignore_index: int) -> "Batch":
        """Return the batch of ``logits`` and ``labels``, checked for the loss ``name``.

        Raises:
            InputError: If they do not match, or ``labels`` are target probabilities.
        """
        axis, shape = check_pair(logits, labels)
        if labels.is_floating_point():
            raise no_soft_form(name)
        matrix, flat = logits, labels
        if logits.dim() != 2:
            matrix, flat = logits.movedim(axis, -1).reshape(-1, logits.shape[axis]), labels.reshape(-1)
        places = Places.of(flat, classes=matrix.shape[1], dtype=matrix.dtype, weight=weight, ignore_index=ignore_index)
        if not places.all_count:
            matrix = without_ignored(matrix, places.kept)
        return cls(places.given, places.labels, places.kept, places.weights, places.all_count, matrix, shape)


def without_ignored(logits: Tensor, kept: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with 0 in the ignored rows, where their values could make a gradient NaN.

    The upstream gradient of an ignored row is 0, but 0 · ∞ is NaN if the row holds −inf, as masked padding does. On the
    CPU only the ignored rows are read, and in a compiled graph the replacement is fused with other operations. On an
    accelerator it costs two passes, so for many logits it is left out: there an ignored row of −inf only still gives
    NaN, as in ``torch.nn.CrossEntropyLoss``.
    """
    if can_be_read(logits) and bool(logits.detach()[~kept].isfinite().all()):
        return logits
    large = logits.device.type not in ("cpu", "meta") and logits.numel() >= _LARGE
    if large and not torch.compiler.is_compiling():
        return logits
    return torch.where(kept[:, None], logits, 0)


def soft_batch(logits: Any, targets: Any, *, weight: Tensor | None) -> tuple[Tensor, Tensor, torch.Size]:
    """Return checked logits and target probabilities, both (N, K), and the shape of ``reduction="none"``.

    Raises:
        InputError: If shapes or devices differ, a row of targets is no distribution, or there are class weights.
    """
    axis, shape = check_pair(logits, targets)
    if weight is not None:
        raise InputError("class weights with integer labels only", "target probabilities", "drop one")
    if logits.dim() != 2:
        logits, targets = (x.movedim(axis, -1).reshape(-1, logits.shape[axis]) for x in (logits, targets))
    check_targets(targets)
    return logits, targets, shape


def reduce_rows(terms: Tensor, weights: Tensor, reduction: Reduction, shape: torch.Size) -> Tensor:
    """Return the terms, their sum, or their sum over the sum of the weights (NaN if that is 0, as in torch)."""
    if reduction == "none":
        return terms.reshape(shape)
    if reduction == "sum":
        return terms.sum()
    # 0/0 where every row is ignored: NaN, as torch has it
    return terms.sum() / weights.sum()


def true_class_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), differentiable.

    Args:
        logits: (N, K). In float32 and below both are functions of the per-row cross-entropy, computed in float32, so the
            gradient is the only further N × K matrix. In float64 log(1 − p_y) is a logsumexp over the other classes.
        labels: (N,) int64 in [0, K).
    """
    if logits.dtype == torch.float64:
        return true_class.exact_log_probs(logits, labels)
    # few logits: one operation of torch costs less than the blocks do
    few = logits.numel() < SMALL and logits.device.type == "cpu"
    nll = F.cross_entropy(logits.float(), labels, reduction="none") if few else true_class.row_nll(logits, labels)
    return log_probs_from_nll(nll)


def can_be_read(tensor: Tensor) -> bool:
    """Return whether the values of ``tensor`` may be read: eager, on the CPU, neither traced, fake nor batched by vmap."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def class_axis_of(logits: Tensor) -> int:
    """Return the axis of the classes of ``logits`` (N, K, d1, …) or (K,), a dense floating tensor with K ≥ 2."""
    check_floating(logits, name="logits")
    if logits.dim() == 0:
        raise refuse("logits of shape (N, K)", "a scalar", "pass one row a sample")
    axis = 0 if logits.dim() == 1 else 1
    if logits.shape[axis] < 2:
        remedy = (
            "give a sigmoid output a second logit of 0, or train it with a Binary… loss, whose targets have its shape"
        )
        raise refuse("K ≥ 2 classes", f"K = {logits.shape[axis]}", remedy)
    return axis


def check_tensors(inputs: Any, labels: Any, *, name: str = "logits") -> None:
    """Raise unless the ``inputs`` called ``name`` and their ``labels`` are tensors, the labels dense, on one device."""
    if not (isinstance(inputs, Tensor) and isinstance(labels, Tensor)):
        kinds = f"{type(inputs).__name__} and {type(labels).__name__}"
        raise refuse(f"{name} and labels as tensors", kinds, "convert with torch.as_tensor")
    if not is_dense(labels):
        raise refuse_layout(labels, name="labels")
    if labels.device != inputs.device:
        got = f"{name} on {inputs.device} and labels on {labels.device}"
        raise refuse(f"{name} and labels on one device", got, f"move the labels with labels.to({name}.device)")


def check_pair(logits: Any, labels: Any) -> tuple[int, torch.Size]:
    """Return the class axis and the labels' shape, after checking that logits and labels (or target probabilities) match."""
    check_tensors(logits, labels)
    axis = class_axis_of(logits)
    if labels.dtype == torch.bool or labels.is_complex():
        raise refuse("integer labels or target probabilities", f"dtype {labels.dtype}", "convert with labels.long()")
    shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    if labels.is_floating_point():
        _check_soft_shape(labels, logits.shape, shape)
    elif labels.shape != shape:
        remedy = "pass one class index a sample, without a class axis"
        if labels.shape == logits.shape:
            remedy = f"{remedy}, or use a Binary… loss for several labels a row"
        raise refuse(f"labels of shape {tuple(shape)}", f"shape {tuple(labels.shape)}", remedy)
    return axis, shape


def _check_soft_shape(targets: Tensor, whole: torch.Size, labels: torch.Size) -> None:
    if targets.dtype not in FLOATING:
        raise refuse(
            "target probabilities of a floating dtype of 16 bits or more", str(targets.dtype), "convert with .float()"
        )
    if targets.shape == whole:
        return
    if targets.shape == labels:
        raise refuse(
            f"integer labels of shape {tuple(labels)} or target probabilities of shape {tuple(whole)}",
            f"{targets.dtype} of shape {tuple(targets.shape)}",
            "convert class indices with labels.long()",
        )
    raise refuse(
        f"target probabilities of the logits' shape {tuple(whole)}",
        f"shape {tuple(targets.shape)}",
        "pass one probability a logit, or class indices as integers",
    )


def check_range(labels: Tensor, *, classes: int, ignore_index: int) -> bool | None:
    """Return whether no label of ``labels`` (N,) int64 is ignored, after checking their range; None where values are not read."""
    if not can_be_read(labels):
        return None
    if labels.numel() == 0:
        return True
    low, high = (int(end) for end in labels.aminmax())
    # two reductions answer for a clean batch, without a mask of its size
    if low >= 0 and high < classes and not low <= ignore_index <= high:
        return True
    kept = labels != ignore_index
    outside = kept & ((labels < 0) | (labels >= classes))
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise refuse(
            f"labels in [0, {classes})",
            f"{int(labels[row])} in row {row}",
            f"count classes from 0, and name a label to skip with ignore_index (now {ignore_index})",
        )
    return bool(kept.all())


def check_targets(targets: Tensor) -> None:
    """Raise unless the rows of ``targets`` (N, K) are probabilities that sum to 1; values are read only where that is allowed."""
    if not can_be_read(targets) or targets.numel() == 0:
        return
    values = targets.detach()
    for rows in row_chunks(
        *values.shape, itemsize=values.element_size()
    ):  # the second pass over a block hits the cache
        block = values[rows]
        low = float(block.amin())
        sums = block.sum(dim=1, dtype=torch.float32)
        if low >= 0 and float((sums - 1).abs().amax()) <= PROBABILITY_TOLERANCE * _looseness(values.dtype):
            continue
        _refuse_targets(block, sums, rows.start, _looseness(values.dtype))


def _looseness(dtype: torch.dtype) -> float:
    """Return the factor by which 16-bit rounding widens the tolerance of sums: bfloat16 keeps 8 bits of each probability."""
    return max(1.0, torch.finfo(dtype).eps / PROBABILITY_TOLERANCE) if torch.finfo(dtype).bits == 16 else 1.0


def _refuse_targets(block: Tensor, sums: Tensor, start: int, looseness: float) -> None:
    negative = ~(block >= 0)
    if bool(negative.any()):
        row, k = negative.nonzero()[0].tolist()
        got = f"{block[row, k].item():g} for class {k} in row {start + row}"
        raise refuse("target probabilities ≥ 0", got, "pass probabilities, not logits, or class indices as integers")
    off = ~((sums - 1).abs() <= PROBABILITY_TOLERANCE * looseness)
    row = int(off.nonzero()[0, 0])
    remedy = "normalise them, or use a Binary… loss for outputs that are each a yes or no"
    raise refuse("target probabilities that sum to 1", f"{sums[row].item():g} in row {start + row}", remedy)


def check_weight_fits(weight: Tensor, *, classes: int, device: torch.device) -> None:
    """Raise unless the class weights match the logits' classes and device."""
    if weight.shape[0] != classes:
        raise InputError(f"weight of shape ({classes},)", f"({weight.shape[0]},)", "pass one a class")
    if weight.device != device:
        got = f"weight on {weight.device} and logits on {device}"
        raise refuse(
            "class weights on the logits' device", got, f"move the loss or its weight with .to({str(device)!r})"
        )


def no_soft_form(name: str) -> InputError:
    """Return the error for target probabilities passed to the loss ``name``, which takes labels only."""
    return InputError(
        f"integer labels for {name}",
        "target probabilities",
        f"pass class indices, or use a loss with a soft form ({SOFT_LOSSES})",
    )


def check_class_weights(
    weight: Any, *, name: str, shape: tuple[int, ...] | None = None, scalar: bool = False, per: str
) -> Tensor:
    """Return ``weight`` if it is a floating tensor of finite numbers ≥ 0, one per class, label or sample.

    Args:
        weight: What was passed.
        name: Of the argument.
        shape: What it must have; None for one axis of any length.
        scalar: Whether () may stand for one axis.
        per: What each number is of.
    """
    expected = f"{name} as a floating tensor{'' if shape is None else f' of shape {shape}'}, one weight a {per}"
    if not isinstance(weight, Tensor) or not is_dense(weight) or weight.dtype not in FLOATING:
        raise refuse(expected, kind_of(weight), "convert with torch.as_tensor(…).float()")
    fits = weight.dim() in ((0, 1) if scalar else (1,)) if shape is None else tuple(weight.shape) == shape
    if not fits:
        raise refuse(expected, f"shape {tuple(weight.shape)}", f"pass one weight a {per}")
    if can_be_read(weight):
        bad = ~(weight.isfinite() & (weight >= 0)).reshape(-1)
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            got = f"{weight.reshape(-1)[at].item():g} for {per} {at}"
            raise refuse(f"finite {name} ≥ 0", got, "choose such weights")
    return weight


def check_rows(values: Any, *, name: str, like: Tensor | None = None) -> Tensor:
    """Return ``values`` if it is a floating tensor (N,), and has the shape and device of ``like`` if you pass one."""
    rows = check_floating(values, name=name)
    if rows.dim() != 1 or (like is not None and rows.shape != like.shape):
        expected = "(N,)" if like is None else str(tuple(like.shape))
        raise refuse(f"{name} of shape {expected}", f"shape {tuple(rows.shape)}", "pass one number a row")
    if like is not None and rows.device != like.device:
        raise refuse(f"{name} on {like.device}", str(rows.device), f"move it with {name}.to({str(like.device)!r})")
    return rows
