"""Checks of scores and labels (N, L) where each row has several labels: the border of ``MultiLabelPredictions``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import PROBABILITY_TOLERANCE, as_array, as_tensor, refuse, shown
from calibrant.errors import Remedy

MISSING = -1  # the one code of a label that is not known

_ONE_CLASS = Remedy(
    "for one class a row use Predictions.from_logits or from_probs",
    command="leave --multilabel out for one class a row",
)


def check_label_scores(values: Any, *, name: str) -> Tensor:
    """Return scores as a floating tensor (N, L), N ≥ 1 and L ≥ 1.

    Raises:
        InputError: If they have another shape or dtype.
    """
    scores = as_tensor(values, name=name)
    if not scores.is_floating_point():
        raise refuse(f"{name} of a floating dtype", str(scores.dtype), f"convert with {name}.float()")
    if scores.dim() != 2 or scores.shape[1] < 1:
        remedy = "pass one row a sample, one column a label"
        raise refuse(f"{name} of shape (N, L)", f"shape {tuple(scores.shape)}", remedy)
    if scores.shape[0] == 0:
        raise refuse(f"at least one row of {name}", "an empty split", "check how the data were selected")
    return scores


def check_label_logits(logits: Tensor, *, unchecked_kind: bool) -> Tensor:
    """Return logits (N, L) of sigmoids; −inf is probability 0 and +inf is 1, NaN is refused.

    Raises:
        InputError: If one is NaN, or all lie in [0, 1] as probabilities do.
    """
    low, high = (float(end) for end in logits.aminmax())  # NaN is its own smallest and largest
    if low != low:
        row, column = (int(at) for at in torch.nonzero(torch.isnan(logits))[0])
        raise refuse("logits that are numbers", f"NaN in row {row}, column {column}", "find and remove what made it")
    if not unchecked_kind and low >= 0 and high <= 1:
        remedy = Remedy(
            "use from_probs (in a file: name the array probs), or unchecked_kind=True if they really are logits",
            command="name the array probs, or subtract 1 from each if they really are logits",
        )
        raise refuse("logits", "numbers that all lie in [0, 1], which are probabilities", remedy)
    return logits


def check_label_probs(probs: Tensor, *, unchecked_kind: bool) -> Tensor:
    """Return probabilities (N, L), each of a label of its own.

    Raises:
        InputError: If one lies outside [0, 1], or every row sums to 1, as probabilities of one class a row do.
    """
    inside = (probs >= 0) & (probs <= 1)
    if not bool(inside.all()):
        row, column = (int(at) for at in torch.nonzero(~inside)[0])
        got = f"{probs[row, column].item():.6g} in row {row}, column {column}"
        remedy = Remedy(
            "use from_logits (in a file: name the array logits) if these are logits",
            command="name the array logits if these are logits",
        )
        raise refuse("probabilities in [0, 1]", got, remedy)
    if not unchecked_kind and probs.shape[0] > 1 and probs.shape[1] > 1:
        off = (probs.sum(dim=1, dtype=torch.float64) - 1).abs() > PROBABILITY_TOLERANCE
        if not bool(off.any()):
            remedy = Remedy(
                f"{_ONE_CLASS}, or pass unchecked_kind=True if the labels do not exclude each other",
                command=_ONE_CLASS.command,
            )
            raise refuse("a probability of each label by itself", "rows that all sum to 1", remedy)
    return probs


def check_label_matrix(labels: Any, *, rows: int, columns: int) -> Tensor:
    """Return labels (N, L) as int64: 1, 0, or −1 where missing.

    Raises:
        InputError: If they have another shape or other values, or all are missing.
    """
    found = as_tensor(labels, name="labels")
    if found.is_floating_point() or found.is_complex():
        remedy = "code missing labels (NaN) as -1 and convert to integers"
        raise refuse("labels as integers 0, 1 or -1", f"dtype {found.dtype}", remedy)
    if found.dim() == 1 and found.shape[0] == rows and columns != 1:
        raise refuse(f"labels of shape ({rows}, {columns}), one 0 or 1 for each label", f"shape ({rows},)", _ONE_CLASS)
    if tuple(found.shape) != (rows, columns):
        remedy = "pass one row a sample, one column a label"
        raise refuse(f"labels of shape ({rows}, {columns})", f"shape {tuple(found.shape)}", remedy)
    found = found.to(torch.int64)
    low, high = (int(end) for end in found.aminmax())
    if low < MISSING or high > 1:
        row, column = (int(at) for at in torch.nonzero((found < MISSING) | (found > 1))[0])
        got = f"{int(found[row, column])} in row {row}, column {column}"
        raise refuse("labels 0, 1, or -1 for a missing one", got, "code each label so")
    if high == MISSING:
        raise refuse(
            "at least one known label",
            "-1 (missing) everywhere",
            Remedy("leave the labels out for unlabelled rows", command="evaluate rows with known labels, 1 or 0"),
        )
    return found


def check_label_names(names: Any, *, columns: int) -> tuple[str, ...]:
    """Return one distinct name for each of the labels; "label 0" … where none are given.

    Raises:
        InputError: If they are no names, not distinct, or not as many as there are columns.
    """
    if names is None:
        return tuple(f"label {place}" for place in range(columns))
    listed = as_array(names, name="names").tolist() if isinstance(names, np.ndarray) else names
    if (
        isinstance(listed, str)
        or not isinstance(listed, Sequence)
        or not all(isinstance(one, str) and one for one in listed)
    ):
        raise refuse("names as a list of text, one a label", shown(names), 'pass names=["cat", "dog"]')
    if len(listed) != columns:
        raise refuse(f"{columns} names, one a label", f"{len(listed)}", "name the columns in their order")
    if len(set(listed)) != len(listed):
        twice = next(one for one in listed if list(listed).count(one) > 1)
        raise refuse("distinct names of labels", f"{twice!r} twice", "name each once")
    return tuple(listed)


def matrix_of_outputs(probs: Any) -> Tensor:
    """Return P(label = 1) (N, L) of what scikit-learn's ``predict_proba`` returns for several labels.

    Args:
        probs: A list of L arrays (N, 2), as of ``MultiOutputClassifier``, or one (N, L), as of ``OneVsRestClassifier``.

    Raises:
        InputError: If an array has other columns; one alone is of a label that was constant in training.
    """
    if not isinstance(probs, list | tuple):
        return as_tensor(probs, name="probs")
    parts = [as_tensor(one, name=f"probs[{place}]") for place, one in enumerate(probs)]
    if not parts:
        raise refuse("probabilities of at least one label", "an empty list", "pass the output of predict_proba")
    for place, one in enumerate(parts):
        if one.dim() != 2 or one.shape[1] != 2 or one.shape[0] != parts[0].shape[0]:
            remedy = "pass a list of arrays (N, 2), or one matrix (N, L)"
            if one.dim() == 2 and one.shape[1] == 1:
                remedy = "this label was constant in training: replace it by 0 and 1 (or 1 and 0) in every row"
            raise refuse(f"probs[{place}] of shape ({parts[0].shape[0]}, 2)", f"shape {tuple(one.shape)}", remedy)
    return torch.stack([one[:, 1] for one in parts], dim=1)
