"""Labels that are text, or numbers of columns, as class indices: by name, never by the order of the alphabet alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.columns import Classes, is_text
from calibrant.data.formats.layout import Layout
from calibrant.errors import InputError


def encode_labels(labels: Array, layout: Layout, classes: Classes, path: Path) -> Array:
    """Return labels as integers: text by the names of the classes, numbers by the columns' where those do not count from 0.

    Raises:
        InputError: For text that names no class, or text without names to match it to.
    """
    if is_text(labels):
        return _by_name(labels.astype(str), layout, classes, path)
    if labels.dtype == bool:
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and np.array_equal(
        labels, np.trunc(labels)
    ):  # what a table with gaps makes of integers
        labels = labels.astype(np.int64)
    if classes.numbers and classes.numbers != tuple(range(len(classes.numbers))) and labels.dtype.kind in "iu":
        return _by_number(labels, classes.numbers, path)
    return labels


def _by_name(labels: Array, layout: Layout, classes: Classes, path: Path) -> Array:
    for names in (layout.class_names, classes.names, classes.parts):
        index = {name: place for place, name in enumerate(names)}
        if names and set(labels.reshape(-1).tolist()) <= index.keys():
            return _coded(labels, index)
    known = layout.class_names or classes.names or classes.parts
    strange = sorted(set(labels.reshape(-1).tolist()) - set(known))[:3]
    if not known:
        raise InputError(
            f"expected names of the classes beside labels that are text, got none for {', '.join(map(repr, strange))} in "
            f"{shown(path)}; pass class_names, one name a class in the order of the scores"
        )
    raise InputError(
        f"expected labels among the classes {', '.join(known[:8])}{' …' if len(known) > 8 else ''}, got "
        f"{', '.join(map(repr, strange))} in {shown(path)}; name the columns as the labels are, or pass class_names"
    )


def _by_number(labels: Array, numbers: Sequence[int], path: Path) -> Array:
    """Return the place of each label among the columns' numbers: with p1 … p10 the label 10 is the last class."""
    strange = np.setdiff1d(labels, np.array(numbers))
    if strange.size:
        raise InputError(
            f"expected labels among the numbers of the columns, {numbers[0]} … {numbers[-1]}, got {int(strange[0])} in "
            f"{shown(path)}; rename the columns to count from 0 if the labels do"
        )
    return _coded(labels, {number: place for place, number in enumerate(numbers)})


def encode_pair(pred: Array, labels: Array, layout: Layout) -> tuple[Array, Array]:
    """Return predicted and true classes that are text as integers; only their being equal matters where no names are given."""
    both = np.concatenate([pred.astype(str), labels.astype(str)])
    names = layout.class_names or tuple(sorted(set(both.tolist())))
    strange = sorted(set(both.tolist()) - set(names))[:3]
    if strange:
        raise InputError(
            f"expected classes among class_names, got {', '.join(map(repr, strange))}; add them to the names"
        )
    index = {name: place for place, name in enumerate(names)}
    return _coded(pred.astype(str), index), _coded(labels.astype(str), index)


def _coded(labels: Array, index: dict[str, int] | dict[int, int]) -> Array:
    coded = [index[one] for one in labels.reshape(-1).tolist()]
    return np.array(coded, dtype=np.int64).reshape(labels.shape)
