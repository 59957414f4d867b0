"""Converts labels to class indices.

Class names are matched as text, and integers are class indices. One column never contains both.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from os.path import commonprefix
from typing import Any

import numpy as np

from calibrant.data.tables import Texts, abridged
from calibrant.errors import InputError

TRUTH = (("no", "yes"), ("false", "true"))  # usual names for "no event" and "event"


def match_labels(
    texts: Texts,
    spellings: Sequence[Sequence[str]],
    classes: int,
    *,
    numbers_first: bool,
    column: str,
    place: Callable[[int], str],
) -> tuple[Any, Sequence[str] | None]:
    """Return the class index of each row, and the class names that the labels use.

    Args:
        texts: The labels.
        spellings: Lists of class names, each in the order of the scores; the first list that contains every label is
            used. Empty if the scores have no names.
        classes: Number of classes K.
        numbers_first: Whether integers are indices even if the class names are numbers, as in arrays. In tables, the
            columns p1, p2, p3 belong to the labels 1, 2, 3.
        column: The name of the labels in error messages.
        place: A function that describes the place of a row in error messages.

    Returns:
        The indices, and the list of class names or None if the labels are indices.

    Raises:
        InputError: If a label is empty or does not name a class.
    """
    labels = [_plain(value) for value in texts.values]
    are_indices = [label.isdecimal() and int(label) < classes for label in labels]
    numbered = bool(spellings) and all(map(str.isdecimal, spellings[0])) and not numbers_first
    folds: list[Callable[[str], str]] = [str, str.casefold]
    for fold, spelled in () if numbers_first and all(are_indices) else product(folds, spellings):
        index = {fold(_plain(name)): k for k, name in enumerate(spelled)}
        if len(index) == len(spelled) and all(fold(label) in index for label in labels):
            return np.array([index[fold(label)] for label in labels], dtype=np.int64)[texts.codes], spelled
    if all(are_indices) and not numbered:
        return np.array([int(label) for label in labels], dtype=np.int64)[texts.codes], None
    known = {_plain(name).casefold() for spelled in spellings for name in spelled}
    named = [label.casefold() in known for label in labels]
    may_be = named if numbered or any(named) else are_indices
    codes = texts.codes.reshape(-1)
    row = int(np.argmin(np.array(may_be)[codes]))  # the first row with a wrong label
    wrong, where = int(codes[row]), place(row)
    if not labels[wrong]:
        raise InputError(f"{column} is empty in {where}; leave out rows without a label")
    may = [f"an integer from 0 to {classes - 1}"] * (not numbered)
    may += [f"one of the classes {abridged(spellings[0])}"] if spellings else []
    more = "; name the classes in an array class_names (in Python, class_names=[…])"
    more = "" if spellings or labels[wrong].lstrip("-").isdecimal() else more
    raise InputError(f"{column} is {texts.values[wrong]!r} in {where}; it must be {' or '.join(may)}{more}")


def event_spellings(texts: Texts, event: str | None) -> list[tuple[str, str]]:
    """Return possible names of the two classes if a single column holds the probability of an event.

    If the event is called "left" and the labels are "stayed" and "left", the first pair is ("stayed", "left"). The
    usual words for no and yes follow.
    """
    others = [label for label in map(_plain, texts.values) if label and label != event]
    named = event is not None and len(others) < 2 and len(others) < len(texts.values)
    return [(others[0] if others else f"not {event}", str(event))] * named + list(TRUTH)


def name_spellings(columns: Sequence[str]) -> list[list[str]]:
    """Return possible lists of class names, derived from the names of the score columns.

    Words with which all column names begin or end are removed, as many as possible first; the column names themselves
    are last.

    Examples:
        >>> name_spellings(["prob class a", "prob class b"])
        [['a', 'b'], ['class a', 'class b'], ['prob class a', 'prob class b']]
    """
    words = [re.findall(r"[^\W\d_]+|\d+|[\W_]+", name) for name in columns]
    most = min(map(len, words)) - 1
    alike = (commonprefix([one[::order] for one in words]) for order in (1, -1))  # noqa: RUF071  compares word by word
    front, back = (min(most, len(one)) for one in alike)
    found = list[list[str]]()
    for left, right in product(range(front, -1, -1), range(back, -1, -1)):
        names = ["".join(one[left : len(one) - right]).strip(" _-.:") for one in words]
        if len({*names, ""}) > len(names) and names not in found:
            found.append(names)
    return found if list(columns) in found else [*found, list(columns)]


def class_note(spelled: Sequence[str] | None, names: Sequence[str] | None, classes: int) -> str:
    """Return a note on which label means which class, or "" if labels and classes are both 0, 1, …."""
    numbers = [str(k) for k in range(classes)]
    labels, names = list(spelled or numbers), list(names or numbers)
    if labels != names:
        return "labels: " + abridged([f"{label} means {name}" for label, name in zip(labels, names, strict=True)])
    return "" if labels == numbers else "classes: " + abridged([f"{k} = {name}" for k, name in enumerate(names)])


def _plain(text: str) -> str:
    """Return a label without padding, quotes, or the ".0" that an empty cell causes in a column of integers."""
    bare = text.strip()
    bare = bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == '"' else bare
    return bare.partition(".")[0] if re.fullmatch(r"-?\d+\.0*", bare) else bare
