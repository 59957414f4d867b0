"""Shared checks of raw input and arguments. Each check returns the checked value or raises an error of one sentence.

Checks of values read the data only once (a row maximum propagates NaN and +inf), which takes a fraction of the time of a softmax.
"""

import difflib
import math
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError

T = TypeVar("T")

PROBABILITY_TOLERANCE = 1e-4
# Largest accepted difference between a sum of probabilities and 1. A softmax in float16, and ten classes rounded to four digits, stay
# within .001. Rows within 1e-6, the rounding error of float32, are not changed.
ROUNDED_SUM, EXACT_SUM = 1e-3, 1e-6
ROUNDING = 0.05  # larger differences up to this can still be due to rounding, such as 20 classes rounded to two digits
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MISSING = (
    "",
    "None",
    "nan",
    "<NA>",
    "NaT",
)  # the texts of an empty cell, None, and the missing values of NumPy and pandas
MARKS = (-100, 255)  # labels that mean "no label" in PyTorch and transformers, and in image masks

ADD_LABELS = "pass labels; for a file, name their column (--label or label=) or a separate file (--labels or labels=)"
COUNTED_FROM_0 = "count classes from 0, and leave out rows to skip (ignore_index)"
PROBS_NAMED_LOGITS = (
    "say kind probs (--kind probs, or from_probs in Python); if they really are logits, subtract 1 from each, "
    "or pass unchecked_kind=True in Python"
)
LOGITS_NAMED_PROBS = "say kind logits (--kind logits, or from_logits in Python) if these are logits"

_MAX_GOT, _MAX_CHOICES = 120, 20  # largest number of characters of the value, and of choices, in a message
_BLOCK_ROWS, _BLOCK_VALUES = 4096, 1 << 22  # size of a block; 4,096 rows with 128k classes would take half a gigabyte


def refuse(expected: str, got: str, remedy: str, *, row: int | None = None) -> InputError:
    """Return an ``InputError`` with these parts; a long ``got`` is truncated, so that the message stays one sentence."""
    plain = " ".join(got.split())  # the repr of a tensor has several lines
    return InputError(expected, f"{plain[:_MAX_GOT]}…" if len(plain) > _MAX_GOT else plain, remedy, row=row)


def shown(value: Any, *, most: int = 60) -> str:
    """Return a text for ``value`` in a message: its repr if that has at most ``most`` characters, else its type."""
    if isinstance(value, Tensor | np.ndarray):
        nested = isinstance(value, Tensor) and value.is_nested  # a nested tensor has no shape
        return kind_of(value) if nested else f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return text if len(text) <= most and "\n" not in text else f"a value of type {type(value).__name__}"


def kind_of(value: object) -> str:
    """Return the type of ``value`` for a message; for a tensor, its layout, dtype and shape."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "a nested tensor"  # a nested tensor has no shape
    layout = "" if value.layout == torch.strided else f"{str(value.layout).removeprefix('torch.')} "
    return f"{layout}{value.dtype} {tuple(value.shape)}"


def require_dense(tensor: Tensor, *, name: str) -> Tensor:
    """Return ``tensor`` if it is dense, that is, neither sparse, quantised nor nested."""
    if tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested:
        return tensor
    raise refuse(f"{name} as a dense tensor", kind_of(tensor), f"convert it, for example with {name}.to_dense()")


def as_tensor(values: Any, *, name: str) -> Tensor:
    """Return ``values`` (tensor, array or nested sequence) as a detached tensor that shares their memory if possible.

    Raises:
        InputError: If the values are not real numbers in a dense array.
    """
    if isinstance(values, Tensor):
        found = require_dense(values, name=name).detach()
        return found.cpu() if found.device.type == "mps" else found  # mps has no float64
    if values is None:
        raise refuse(f"{name} as a numeric tensor or array", "None", f"pass {name}")
    array = as_array(values, name=name)
    if array.dtype.kind not in "biuf":
        remedy = "pass an array of numbers whose rows have the same shape"
        if name == "labels" and array.dtype.kind in "OSUT":
            remedy = (
                "make predictions with from_logits or from_probs, and pass class_names=[…], which text labels refer to"
            )
        elif isinstance(values, str | bytes):
            remedy = "load a file with calibrant.read"
        got = f"{type(values).__name__} of dtype {array.dtype}"
        raise refuse(f"{name} as a numeric tensor or array", got, remedy)
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise refuse(f"{name} below 2⁶³", str(int(array.max())), "pass class indices")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.flags.writeable or not array.dtype.isnative or any(step < 0 for step in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def as_array(values: Any, *, name: str) -> Any:
    """Return ``values`` as an array, with bfloat16 as float32. Masked entries raise an error, because an array would unmask them."""
    if isinstance(values, Tensor):
        tensor = as_tensor(values, name=name).cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    for part in values if isinstance(values, list | tuple) else (values,):
        if isinstance(part, np.ma.MaskedArray) and (masked := int(np.ma.count_masked(part))):
            remedy = "drop those rows, or fill them with .filled(value)"
            raise refuse(f"{name} without masked entries", f"{masked} masked", remedy)
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged, on a device, needing gradients
        got = "ragged rows" if "inhomogeneous" in str(error) else type(values).__name__
        remedy = "pass numbers whose rows have the same shape"
        raise refuse(f"{name} as a numeric tensor or array", f"{got} that cannot be converted", remedy) from error


def check_floating(values: Any, *, name: str) -> Tensor:
    """Return ``values`` if it is a dense tensor with a floating dtype of 16 bits or more; its entries are not read."""
    if not isinstance(values, Tensor):
        raise refuse(f"{name} as a tensor", kind_of(values), "convert with torch.as_tensor")
    if require_dense(values, name=name).dtype not in FLOATING:
        expected = f"{name} with a floating dtype of 16 bits or more"
        raise refuse(expected, str(values.dtype), f"convert with {name}.float()")
    return values


def check_scores(
    values: Tensor, *, name: str, shape: str = "(N, K)", remedy: str = "pass one row per sample, one column per class"
) -> Tensor:
    """Return ``values`` if it is floating and has the axes of ``shape`` and at least one row; for (N, K), also K ≥ 2.

    Args:
        values: The tensor to check.
        name: Name of the argument, for the error message.
        shape: The required axes, such as "(N, K)".
        remedy: The advice in the error message if the axes differ.
    """
    if not values.is_floating_point():
        raise refuse(f"{name} with a floating dtype", str(values.dtype), f"convert with {name}.float()")
    matrix = shape == "(N, K)"
    if values.dim() != len(shape.split(", ")):
        if matrix:
            remedy += "; for one score per row, use from_binary_logits or from_binary_probs"
        if matrix and values.dim() > 2:
            remedy = "flatten it with Predictions.from_logits or from_probs, where class_dim=1 names the class axis"
        raise refuse(f"{name} of shape {shape}", f"shape {tuple(values.shape)}", remedy)
    if values.shape[0] == 0:
        raise refuse(f"at least one row of {name}", "no rows", "check how the data were selected")
    if matrix and values.shape[1] < 2:
        remedy = "for a single sigmoid output, use from_binary_logits or from_binary_probs, or save two columns, 0 and the logit"
        raise refuse(f"{name} with K ≥ 2 classes", f"K = {values.shape[1]}", remedy)
    return values


def check_logits(logits: Tensor, *, unchecked_kind: bool = False) -> Tensor:
    """Return ``logits`` (N, K) if they are valid: −inf is allowed, but NaN, +inf and rows that are all −inf are not."""
    check_scores(logits, name="logits")
    # A finite sum proves in one fast pass that all values are finite, whereas a sum that overflows proves nothing. In 16 bits, sums
    # would often overflow or need a copy, so the minimum and the maximum are used, which are NaN if any value is.
    ends = logits.aminmax() if logits.dtype.itemsize < torch.float32.itemsize else (logits.sum(),)
    if not all(math.isfinite(float(end)) for end in ends):
        largest = logits.amax(dim=1)
        if len(bad := torch.nonzero(~torch.isfinite(largest))):
            value = largest[bad[0]].item()
            remedy = "leave at least one class finite" if value == -math.inf else "find and remove its cause"
            got = "NaN" if math.isnan(value) else str(value)
            raise refuse("finite logits (−inf for an excluded class)", got, remedy, row=int(bad[0]))
    if unchecked_kind:
        return logits
    for block in logits.split(
        max(1, min(_BLOCK_ROWS, _BLOCK_VALUES // logits.shape[1]))
    ):  # the first block usually shows that these are not probabilities
        low, high = block.aminmax()
        if low < 0 or high > 1 or (block.sum(dim=1, dtype=torch.float64) - 1).abs().max() > PROBABILITY_TOLERANCE:
            return logits
    got = "rows in [0, 1] that all sum to 1, which are probabilities"
    raise refuse("logits", got, PROBS_NAMED_LOGITS)


def check_probs(probs: Tensor) -> Tensor:
    """Return ``probs`` (N, K) in [0, 1] with row sums of 1; rows whose sums differ from 1 by rounding are divided by them.

    Raises:
        InputError: If an entry lies outside [0, 1], or a row sum differs from 1 by more than 0.001.
    """
    check_scores(probs, name="probs")
    low, high = probs.aminmax()  # both are NaN if an entry is NaN
    if not (low >= 0 and high <= 1):
        row, column = torch.nonzero(~((probs >= 0) & (probs <= 1)))[0].tolist()
        raise refuse("probabilities in [0, 1]", f"{probs[row, column].item():.6g}", LOGITS_NAMED_PROBS, row=row)
    step = max(1, min(_BLOCK_ROWS, _BLOCK_VALUES // probs.shape[1]))
    sums = torch.cat([block.sum(dim=1, dtype=torch.float64) for block in probs.split(step)])
    off = (sums - 1).abs()
    if float(off.max()) > ROUNDED_SUM:
        row = int(torch.nonzero(off > ROUNDED_SUM)[0])
        remedy = (
            f"{LOGITS_NAMED_PROBS}, use MultiLabel (or --multilabel) "
            "if several labels can be true at once, or divide each row by its sum"
        )
        raise refuse("rows of probs that sum to 1", f"{sums[row].item():.6g}", remedy, row=row)
    if float(off.max()) <= EXACT_SUM:
        return probs
    wide = probs if probs.dtype == torch.float64 else probs.float()
    return wide / torch.where(off > EXACT_SUM, sums, 1.0).to(wide.dtype)[:, None]


def check_labels(labels: Tensor, *, rows: int, classes: int) -> Tensor:
    """Return ``labels`` as int64 (N,) if they are integers in [0, K)."""
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.is_complex():
        raise refuse("integer labels", f"dtype {labels.dtype}", "convert with labels.long()")
    if labels.dim() != 1 or len(labels) != rows:
        remedy = "pass one class index per row"
        if labels.dim() == 2 and labels.shape[1] > 1 and len(labels) == rows:
            remedy = (
                "pass their argmax(1) if they are one-hot; for several labels per row, use MultiLabel or --multilabel"
            )
        raise refuse(f"labels of shape ({rows},)", f"shape {tuple(labels.shape)}", remedy)
    labels = labels.to(torch.int64)
    if labels.numel() and not all(0 <= int(end) < classes for end in labels.aminmax()):
        row = int(torch.nonzero((labels < 0) | (labels >= classes))[0])
        strange, remedy = int(labels[row]), COUNTED_FROM_0
        # if all labels are −1 or 1, these are two classes; if 0 occurs as well, −1 marks rows to skip
        if strange in MARKS or (strange == -1 and bool((labels == 0).any())):
            marks = f"if {strange} marks rows to skip, leave them out with ignore_index={strange}"
            remedy = f"count classes from 0, or, {marks}"
        raise refuse(f"labels in [0, {classes})", str(strange), remedy, row=row)
    return labels


def check_unit_interval(values: Tensor, *, name: str) -> Tensor:
    """Return ``values`` (N,) as float64 if they are floating and in [0, 1]."""
    values = check_scores(values, name=name, shape="(N,)", remedy="pass one number per row").to(torch.float64)
    low, high = values.aminmax()  # both are NaN if an entry is NaN
    if not (low >= 0 and high <= 1):
        row = int(torch.nonzero(~((values >= 0) & (values <= 1)))[0])
        got, remedy = f"{values[row].item():.6g}", "pass probabilities, not logits"
        raise refuse(f"{name} in [0, 1]", got, remedy, row=row)
    return values


def check_groups(groups: Any, *, rows: int) -> Tensor:
    """Return ``groups`` (integers or names, none of them missing) as int64 codes (N,)."""
    array = as_array(groups, name="groups")
    if array.shape != (rows,):
        raise refuse(f"groups of shape ({rows},)", f"shape {array.shape}", "pass one group per row")
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    names, first_rows, codes = np.unique(array.astype(str), return_index=True, return_inverse=True)
    for at in np.flatnonzero(np.isin(np.char.strip(names), MISSING)):
        row = int(first_rows[at])
        if not names[at].strip() or not isinstance(array[row], str):  # a group may have the name "None"
            remedy = "leave out the rows without a group, or give each of them a group of its own"
            raise refuse("groups without empty entries", "an empty one", remedy, row=row)
    if array.dtype.kind == "f":
        raise refuse("groups as integers or names", f"dtype {array.dtype}", "convert them to integers")
    return torch.from_numpy(codes.astype(np.int64))


def check_number(
    value: Any,
    *,
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float if it is a finite number between ``low`` and ``high``, including the ends unless they are open."""
    left, right = "(" if open_low or low == -math.inf else "[", ")" if open_high or high == math.inf else "]"
    expected = f"{name} in {left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise refuse(expected, shown(value), "pass a number")
    number = float(value)
    inside = (number > low if open_low else number >= low) and (number < high if open_high else number <= high)
    if not math.isfinite(number) or not inside:
        raise refuse(expected, f"{value}", "choose a value in that range")
    return number


def check_count(value: Any, *, name: str, low: int = 1, high: int = (1 << 63) - 1) -> int:
    """Return ``value`` as an int if it is an integer in [``low``, ``high``]."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        limit = f" and ≤ {high}" if high < (1 << 63) - 1 else ""
        raise refuse(f"{name} as an integer ≥ {low}{limit}", shown(value), "choose such a number")
    return int(value)


def check_choice(value: Any, *, name: str, choices: Iterable[T]) -> T:
    """Return the choice that equals ``value``, or raise an error that suggests the nearest one."""
    known = list(choices)
    if isinstance(value, str | int | float | np.integer | np.floating) and value in known:
        return known[known.index(cast(T, value))]
    close = difflib.get_close_matches(value, map(str, known), n=1) if isinstance(value, str) else []
    remedy = f"did you mean {close[0]!r}?" if close else "choose one of them"
    listed = ", ".join(map(repr, known[:_MAX_CHOICES])) + (" …" if len(known) > _MAX_CHOICES else "")
    raise refuse(f"{name} to be one of {listed}", shown(value), remedy)


def check_same_weights(one: bool, other: bool) -> None:
    """Raise an error if sums over weighted rows would be added to sums over unweighted rows."""
    if one != other:
        raise InputError("weights in all parts or in none", "both", "give all parts weights")
