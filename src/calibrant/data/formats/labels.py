"""Labels that are text, or numbers of columns, as class indices: by name, never by the order of the alphabet alone."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.columns import Classes, is_text
from calibrant.data.formats.layout import Layout
from calibrant.errors import InputError, Remedy

_OPPOSITES = (
    ("false", "true"),
    ("0", "1"),
    ("no", "yes"),
    ("f", "t"),
    ("n", "y"),
    ("neg", "pos"),
    ("negative", "positive"),
)


def encode_labels(labels: Array, layout: Layout, classes: Classes, path: Path) -> Array:
    """Return labels as integers: text by the names of the classes, numbers by the columns' where those do not count from 0.

    Raises:
        InputError: For text that names no class, or text without names to match it to.
    """
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and _is_one_hot(labels):
        return np.asarray(labels.argmax(axis=1), dtype=np.int64)
    if is_text(labels):
        return _by_name(labels.astype(str), layout, classes, path)
    if labels.dtype == bool:
        return _of_booleans(labels, layout, classes)
    if labels.dtype.kind == "f" and np.array_equal(
        labels, np.trunc(labels)
    ):  # what a table with gaps makes of integers
        labels = labels.astype(np.int64)
    if not classes.numbers and labels.dtype.kind in "iu":
        for names in (layout.class_names, *classes.spellings):
            if names and (signed := _integers(names)):
                return _by_number(labels, signed, path)
    if classes.numbers and classes.numbers != tuple(range(len(classes.numbers))) and labels.dtype.kind in "iu":
        return _by_number(labels, classes.numbers, path)
    return labels


def _is_one_hot(labels: Array) -> bool:
    """Say whether each row (K > 1) has a single 1 and zeros, as Keras keeps labels."""
    return labels.shape[1] > 1 and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def encode_positive(labels: Array, positive: str, path: Path) -> Array:
    """Return 1 where a label is ``positive``, as text or as a number, and 0 for the one other value.

    Raises:
        InputError: If no label is, or there are more than two values.
    """
    texts = np.array([_spelled(one) for one in labels.reshape(-1).tolist()]).reshape(labels.shape)
    values = sorted(set(texts.reshape(-1).tolist()))
    wanted = next((one for one in values if one == positive), None)
    wanted = next((one for one in values if one.casefold() == positive.casefold()), None) if wanted is None else wanted
    if wanted is None or len(values) > 2:
        raise InputError(
            f"labels of two values, {positive!r} one of them",
            f"{', '.join(map(repr, values[:4]))} in {shown(path)}",
            "name the positive one of two",
        )
    coded: Array = (texts == wanted).astype(np.int64)
    return coded


def refuse_unnamed_positive(labels: Array, scores: Array, path: Path) -> None:
    """Refuse labels that are text beside one score a row: which of the two the score speaks of is not in the file.

    Raises:
        InputError: Always, naming the two values, and first the one whose rows have larger scores.
    """
    texts = labels.astype(str).reshape(-1)
    means = {str(one): float(scores.reshape(-1)[texts == one].mean()) for one in np.unique(texts)}
    likely = max(means, key=means.__getitem__)
    raise InputError(
        expected="the label that the one score a row is the probability of",
        got=f"labels {', '.join(map(repr, list(means)[:4]))} in {shown(path)}",
        remedy=Remedy.read(positive=likely).after(f"if it is {likely!r}, "),
    )


def _spelled(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _of_booleans(labels: Array, layout: Layout, classes: Classes) -> Array:
    """Return boolean labels by the columns' names, as ``p_True, p_False`` have them; without such names True is class 1."""
    for names in (layout.class_names, *classes.spellings):
        index = {name.casefold(): place for place, name in enumerate(names)}
        for no, yes in _OPPOSITES:
            if {no, yes} == index.keys():
                return np.where(labels, index[yes], index[no]).astype(np.int64)
    return labels.astype(np.int64)


def _by_name(labels: Array, layout: Layout, classes: Classes, path: Path) -> Array:
    if names := classes.spelling(labels.reshape(-1).tolist(), given=layout.class_names):
        return _coded(labels, {name: place for place, name in enumerate(names)})
    known = layout.class_names or next(iter(classes.spellings), ())
    strange = sorted(set(labels.reshape(-1).tolist()) - set(known))[:3]
    if not known:
        raise InputError(
            "names of the classes beside labels that are text",
            f"none for {', '.join(map(repr, strange))} in {shown(path)}",
            Remedy(
                "pass class_names, one name a class in the order of the scores",
                command="write them to names.txt, one a line in the order of the scores, and add --class-names names.txt",
            ),
        )
    raise InputError(
        f"labels among the classes {', '.join(known[:8])}{' …' if len(known) > 8 else ''}",
        f"{', '.join(map(repr, strange))} in {shown(path)}",
        Remedy(
            "name the columns as the labels are, or pass class_names",
            command="name the columns as the labels are, or pass --class-names",
        ),
    )


def _by_number(labels: Array, numbers: Sequence[int], path: Path) -> Array:
    """Return the place of each label among the columns' numbers: with p1 … p10 the label 10 is the last class."""
    strange = np.setdiff1d(labels, np.array(numbers))
    if strange.size:
        raise InputError(
            f"labels among the numbers of the columns, {numbers[0]} … {numbers[-1]}",
            f"{int(strange[0])} in {shown(path)}",
            "rename the columns to count from 0 if the labels do",
        )
    return _coded(labels, {number: place for place, number in enumerate(numbers)})


def _integers(names: Sequence[str]) -> tuple[int, ...]:
    """Return names such as "-1", "1" or "10", "2" as numbers, or nothing if one is none."""
    numbers = tuple(int(name) for name in names if re.fullmatch(r"[-+]?\d{1,18}", name))
    return numbers if len(set(numbers)) == len(names) else ()


def encode_pair(pred: Array, labels: Array, layout: Layout) -> tuple[Array, Array]:
    """Return predicted and true classes that are text as integers; only their being equal matters where no names are given."""
    both = np.concatenate([pred.astype(str), labels.astype(str)])
    names = layout.class_names or tuple(sorted(set(both.tolist())))
    strange = sorted(set(both.tolist()) - set(names))[:3]
    if strange:
        raise InputError("classes among class_names", f"{', '.join(map(repr, strange))}", "add them to the names")
    index = {name: place for place, name in enumerate(names)}
    return _coded(pred.astype(str), index), _coded(labels.astype(str), index)


def _coded(labels: Array, index: dict[str, int] | dict[int, int]) -> Array:
    coded = [index[one] for one in labels.reshape(-1).tolist()]
    return np.array(coded, dtype=np.int64).reshape(labels.shape)
