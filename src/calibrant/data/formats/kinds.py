"""What values say of their kind: they refuse a name that they contradict, and suggest what a refusal proposes; they decide nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import PROBABILITY_TOLERANCE
from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.layout import KINDS, TOLERANCE, Layout, stem_and_name
from calibrant.errors import FileFormatError, InputError, Remedy


def refuse_other_kinds(arrays: dict[str, Array], layout: Layout, place: Path) -> None:
    """Refuse rounded probabilities that the layout calls logits, percentages under either name, and log-probabilities.

    Raises:
        InputError: If values are of another kind than their name says.
        FileFormatError: If an array is called ``log_probs``, which would be the probabilities of a split called ``log``.
    """
    for name, values in arrays.items():
        kind = stem_and_name(name)[1]
        if name.endswith("log_probs"):
            logits = f"name it {name.removesuffix('log_probs')}logits: log-probabilities are logits"
            raise FileFormatError("logits or probs", f"{name} in {shown(place)}", logits)
        # Unrounded probabilities are refused where predictions are made; logits of one event lie on both sides of 0.
        if layout.kind == kind == "logits" and values.ndim < 3 and values.dtype.kind == "f" and within(values):
            single = values.ndim == 1 or values.shape[1] == 1
            if single or needs_no_rest(values):
                remedy = Remedy("call them by their kind, probs", command="use --kind probs --normalize")
                got = "one number between 0 and 1 a row" if single else "rows between 0 and 1 that sum to 1"
                raise InputError("logits", f"{got} in {shown(place)}", remedy)
        if kind in KINDS and not layout.normalize and are_percentages(values):
            # As logits they would give figures of another model.
            remedy = Remedy.read(kind="probs", normalize=True)
            got = f"rows that sum to 100 in {shown(place)}"
            raise InputError("probabilities that sum to 1, or logits", got, remedy)


def within(values: Array) -> bool:
    """Say whether all values lie between 0 and 1."""
    return bool(values.size and (values >= 0).all() and (values <= 1).all())


def are_percentages(values: Array) -> bool:
    """Say whether rows (N, K) lie between 0 and 100 and sum to 100, as rounded percentages do."""
    if values.ndim != 2 or not values.size or values.dtype.kind not in "fiu":
        return False
    return all(
        bool((rows >= 0).all() and (np.abs(rows.sum(axis=1, dtype=np.float64) - 100) <= 100 * TOLERANCE).all())
        for rows in (values[:64], values)  # the first rows say no for nearly every array
    )


def of_one_event(values: Array) -> bool:
    """Say whether (N,) can be percentages of one event: between 0 and 100, one of them above 1."""
    numbers = values.ndim == 1 and values.size and values.dtype.kind in "fiu"
    return bool(numbers and values.min() >= 0 and 1 < values.max() <= 100)


def agree(kind: str, values: Array) -> bool:
    """Say whether values (N, K) can be what their names say."""
    if kind == "logits":
        return bool(values.size and not within(values))
    return needs_no_rest(values, tolerance=PROBABILITY_TOLERANCE)


def two_columns(values: Array, name: str) -> Array:
    """Return one logit or probability of class 1 a row as two classes."""
    if values.ndim > 1 and values.shape[1] > 1:
        return values
    # the softmax of (0, z) is the sigmoid of z
    flat = values.reshape(len(values))
    return np.stack([1 - flat if name == "probs" else np.zeros_like(flat), flat], axis=1)


def one_hot(columns: Mapping[str, Any]) -> list[str]:
    """Return which of the columns has the 1 in each row, or nothing where they are no zeros with a single 1."""
    names, cells = list(columns), np.stack([np.asarray(one, dtype=object) for one in columns.values()], axis=1)
    single = np.isin(cells, (0, 1)).all() and (cells.sum(axis=1) == 1).all()
    return [names[at] for at in cells.argmax(axis=1)] if single else []


def as_probs(kind: str, values: Array, *, axis: int = -1) -> Array:
    """Return scores (N, K) of a kind, with the classes on ``axis``, as probabilities."""
    if kind == "probs" or not values.size:
        return values
    shifted = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


def same_scores(logits: Array, probs: Array) -> bool:
    """Say whether probabilities (N, K) are the softmax of logits."""
    alike = logits.shape == probs.shape and logits.ndim == 2 and logits.dtype.kind == probs.dtype.kind == "f"
    return alike and np.allclose(as_probs("logits", logits), probs, atol=PROBABILITY_TOLERANCE)


def kind_of_values(values: Array) -> str | None:
    """Return the kind that values suggest, or None for those of one-vs-rest classifiers, whose rows have any sum."""
    several = values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind == "f"
    if several and within(values) and not needs_no_rest(values):
        return None
    return "probs" if within(values) or are_percentages(values) else "logits"


def needs_no_rest(values: Array, *, tolerance: float = TOLERANCE) -> bool:
    """Say whether these columns (N, K) are the probabilities of all classes, but for their rounding."""
    return within(values) and bool((np.abs(values.sum(axis=1) - 1) <= tolerance).all())


def is_whole(values: Array) -> bool:
    """Say whether decimals are whole numbers, as a table with gaps, or R, keeps these."""
    return values.dtype.kind == "f" and bool(np.array_equal(values, np.trunc(values)))


def needs_sums(values: Array, kind: str | None) -> bool:
    """Say whether rows of probabilities must be divided by their sums."""
    return kind is None or (kind == "probs" and values.ndim == 2 and values.shape[1] > 1 and not agree(kind, values))
