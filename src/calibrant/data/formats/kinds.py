"""Arrays whose values, or names, contradict the kind they are given: probabilities as logits, percentages, log-probabilities."""

from pathlib import Path

import numpy as np

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.layout import KINDS, TOLERANCE, Layout, stem_and_name
from calibrant.errors import FileFormatError, InputError, Remedy


def refuse_other_kinds(arrays: dict[str, Array], layout: Layout, place: Path) -> None:
    """Refuse rounded probabilities that the layout calls logits, and percentages under either name.

    Raises:
        InputError: If there are some.
    """
    _refuse_probs_as_logits(arrays, layout, place)
    if not layout.normalize:
        _refuse_percentages(arrays, place)


def refuse_log_probs(arrays: dict[str, Array], place: Path) -> None:
    """Refuse ``log_probs``, which would be the probabilities of a split called ``log``.

    Raises:
        FileFormatError: If one is called so.
    """
    for name in arrays:
        if name.endswith("log_probs"):
            raise FileFormatError(
                "logits or probs",
                f"{name} in {shown(place)}",
                f"name it {name.removesuffix('log_probs')}logits: log-probabilities are logits",
            )


def are_percentages(values: Array) -> bool:
    """Say whether rows (N, K) lie between 0 and 100 and sum to 100, as rounded percentages do."""
    if values.ndim != 2 or not values.size or values.dtype.kind not in "fiu":
        return False
    return all(
        bool((rows >= 0).all() and (np.abs(rows.sum(axis=1, dtype=np.float64) - 100) <= 100 * TOLERANCE).all())
        for rows in (values[:64], values)  # the first rows say no for nearly every array
    )


def _refuse_probs_as_logits(arrays: dict[str, Array], layout: Layout, place: Path) -> None:
    """Refuse rounded probabilities that are called logits; unrounded ones are refused where predictions are made."""
    if layout.kind != "logits":
        return
    for name, values in arrays.items():
        single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
        if stem_and_name(name)[1] == "logits" and single and len(values) and values.dtype.kind == "f":
            if (values >= 0).all() and (values <= 1).all():  # logits of a classifier lie on both sides of 0
                raise InputError(
                    "logits",
                    f"one number between 0 and 1 a row in {shown(place)}",
                    Remedy("call them by their kind, probs", command="use --kind probs --normalize"),
                )
    for name, values in arrays.items():
        if stem_and_name(name)[1] == "logits" and values.ndim == 2 and len(values) and values.dtype.kind == "f":
            if (values >= 0).all() and (values <= 1).all() and (np.abs(values.sum(axis=1) - 1) <= TOLERANCE).all():
                raise InputError(
                    "logits",
                    f"rows between 0 and 1 that sum to 1 in {shown(place)}",
                    Remedy("call them by their kind, probs", command="use --kind probs --normalize"),
                )


def _refuse_percentages(arrays: dict[str, Array], place: Path) -> None:
    """Refuse rows that sum to 100, whatever they are called: as logits they would give figures of another model."""
    for name, values in arrays.items():
        if stem_and_name(name)[1] in KINDS and are_percentages(values):
            raise InputError(
                "probabilities that sum to 1, or logits",
                f"rows that sum to 100 in {shown(place)}",
                Remedy.read(kind="probs", normalize=True),
            )
