"""What a file says twice: decisions, whether they were right, and names beside numbers, checked against the reading."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.columns import Classes, is_text
from calibrant.data.formats.layout import KINDS, LABELS, stem_and_name
from calibrant.errors import InputError

_DECIDED = re.compile(r"predict(ed|ion)?|pred|\.pred_class|pred(icted)?_(label|class)|guess", re.IGNORECASE)
_RIGHT = re.compile(r"acc|correct|is_correct|right|hit", re.IGNORECASE)
# Share of rows that must agree. Decisions among three classes or more are the largest score but for ties; of two classes they
# may be taken at any threshold, so only a reversed reading is told from them.
_AGREE = {True: 0.5, False: 0.95}


def refuse_contradictions(arrays: Mapping[str, Array], classes: Classes, names: tuple[str, ...], path: Path) -> None:
    """Refuse a reading that the decisions, or their being right, in the same file contradict.

    Args:
        arrays: As they are read: scores, labels as class indices, and everything else in the file.
        classes: What the columns say of the classes.
        names: The names of the classes that were stated, or none.
        path: The file.

    Raises:
        InputError: If too few rows agree, with how many do.
    """
    for kind in KINDS:
        if kind not in arrays or arrays[kind].ndim != 2 or arrays[kind].shape[1] < 2:
            continue
        scores = arrays[kind]
        best, top = scores.argmax(axis=1), scores.max(axis=1)
        least = _AGREE[scores.shape[1] == 2]
        label = next((arrays[name] for name in LABELS if name in arrays), None)
        for name, values in arrays.items():
            if values.shape != best.shape or stem_and_name(name)[1] in (*LABELS, *KINDS):
                continue
            if _DECIDED.fullmatch(name):
                coded = _coded(values, classes, names, scores.shape[1])
                if coded is not None:
                    share = float((scores[np.arange(len(best)), coded] >= top).mean())
                    _refuse_below(least, share, f"{name!r} as the class of the largest score", path)
            elif _RIGHT.fullmatch(name) and label is not None and label.shape == best.shape:
                if values.dtype.kind in "biuf" and set(np.unique(values).tolist()) <= {0, 1}:
                    share = float(((best == label) == values.astype(bool)).mean())
                    _refuse_below(least, share, f"{name!r} as whether the largest score is the label", path)


def _refuse_below(least: float, share: float, what: str, path: Path) -> None:
    if share < least:
        raise InputError(
            f"{what} in {shown(path)}",
            f"agreement in {share:.1%} of rows",
            "check the order of the classes and the column of the labels; rename that column if it is of another model",
        )


def _coded(values: Array, classes: Classes, names: tuple[str, ...], count: int) -> Array | None:
    """Return decisions as class indices, or None where they are of other names."""
    if is_text(values):
        known = classes.spelling(values.tolist(), given=names)
        index = {name: at for at, name in enumerate(known)}
        return np.array([index[one] for one in values.tolist()]) if index else None
    if values.dtype.kind not in "iuf" or not np.array_equal(values, np.trunc(values)):
        return None
    numbers = classes.numbers or tuple(range(count))
    if not set(np.unique(values).tolist()) <= set(numbers):
        return None
    place = {number: at for at, number in enumerate(numbers)}
    return np.array([place[int(one)] for one in values.tolist()])
