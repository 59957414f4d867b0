"""Labels as indices of classes: names are matched by their text, and integers are indices, never both in one column."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from calibrant.data.tables import Texts, abridged
from calibrant.errors import InputError

Matched = tuple[Any, Sequence[str] | None, str]  # labels (N,) as indices, the names of the classes, and a note
_TRUTH = {"0": 0, "no": 0, "false": 0, "1": 1, "yes": 1, "true": 1}  # of the one event whose probability a column holds


def match_labels(
    texts: Texts, spellings: Sequence[Sequence[str]], *, classes: int, column: str, place: Callable[[int], str]
) -> Matched:
    """Return the class of each row, the names of the classes, and a note on which label means which class.

    Args:
        texts: The labels.
        spellings: Names of the classes in the order of the scores, in one or several spellings of which the first that has
            every label counts; none where the scores have no names.
        classes: K.
        column: What messages call the labels.
        place: Says where a row stands.

    Raises:
        InputError: If a label is empty, or is no class.
    """
    labels = [_plain(value) for value in texts.values]
    if "" in labels:
        raise InputError(
            f"{column} is empty in {place(_first(texts, labels.index('')))}; leave out rows without a label"
        )
    for exact, spelled in product((True, False), spellings):
        index = {_plain(name) if exact else _plain(name).casefold(): k for k, name in enumerate(spelled)}
        wanted = labels if exact else [label.casefold() for label in labels]
        if len(index) == len(spelled) and all(label in index for label in wanted):
            return np.array([index[label] for label in wanted])[texts.codes], spelled, _note(spelled, spelled)
    names = spellings[0] if spellings else None
    # numbers of columns are names: labels beside p1, p2, p3 are 1, 2, 3 and no indices
    numbered = names is not None and all(map(str.isdecimal, names))
    outside = [not (label.isdecimal() and int(label) < classes) for label in labels]
    if not numbered and not any(outside):
        numbers = [str(k) for k in range(classes)]
        return np.array([*map(int, labels)])[texts.codes], names, _note(numbers, names or numbers)
    if names is not None and (numbered or not all(map(str.isdecimal, labels))):  # a name that is none of theirs
        known = {_plain(name) for spelled in spellings for name in spelled}
        outside = [label not in known for label in labels]
    wrong = outside.index(True) if True in outside else 0
    may = [
        "" if numbered else f"an integer from 0 to {classes - 1}",
        f"one of the classes {abridged(names)}" if names else "",
    ]
    more = "" if names or labels[wrong].isdecimal() else "; name the classes by class_names"
    got, row = repr(texts.values[wrong]), place(_first(texts, wrong))
    raise InputError(f"{column} is {got} in {row}; it must be {' or '.join(filter(None, may))}{more}")


def match_event(texts: Texts, event: str | None, *, column: str, place: Callable[[int], str]) -> Matched:
    """Return 1 for rows where the one event happened whose probability a column holds, else 0; names and note as above.

    Args:
        texts: The labels.
        event: The name that the column gives to the event, or None.
        column: What messages call the labels.
        place: Says where a row stands.

    Raises:
        InputError: If a label is neither.
    """
    labels = [_plain(value) for value in texts.values]
    others = [label for label in labels if label != event]
    if event in labels and "" not in others and len(others) < 2:
        names = (others[0] if others else f"not {event}", event)
        return (
            np.array([label == event for label in labels], dtype=np.int64)[texts.codes],
            names,
            _note(names, ("0", "1")),
        )
    if strange := [k for k, label in enumerate(labels) if label.casefold() not in _TRUTH]:
        raise InputError(
            f"{column} is {texts.values[strange[0]]!r} in {place(_first(texts, strange[0]))}; beside one column of scores labels "
            "must be 0 and 1, no and yes, or false and true, unless that column is named after the label, such as p_yes"
        )
    truth = [_TRUTH[label.casefold()] for label in labels]
    written = {"0": "0", "1": "1"} | {str(k): label for k, label in zip(truth, labels, strict=True)}
    words = tuple(written.values())
    named: tuple[str, ...] | None = None if words == ("0", "1") else words
    named = (f"not {event}", event) if event else named
    return np.array(truth)[texts.codes], named, _note(words, named if event and named else ("0", "1"))


def name_spellings(columns: Sequence[str]) -> list[list[str]]:
    """Return what columns may call their classes: what is left without the words that all names begin or end with, then the names.

    Examples:
        >>> name_spellings(["prob class a", "prob class b"])
        [['a', 'b'], ['class a', 'class b'], ['prob class a', 'prob class b']]
    """
    parts = [re.findall(r"[^\W\d_]+|\d+|[\W_]+", name) for name in columns]
    front, back = _shared(parts), _shared([part[::-1] for part in parts])
    found = list[list[str]]()
    for left, right in product(range(front, -1, -1), range(back, -1, -1)):
        names = ["".join(part[left : len(part) - right]).strip(" _-.:") for part in parts]
        if len(set(names)) == len(names) and "" not in names and names not in found:
            found.append(names)
    return found if list(columns) in found else [*found, list(columns)]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """Return how many words all of several names begin with, one at least of each name being left."""
    alike = [len(set(words)) == 1 for words in zip(*parts, strict=False)]
    return 0 if len(parts) < 2 else min([*alike, False].index(False), min(map(len, parts)) - 1)


def _plain(text: str) -> str:
    """Return a label without padding, quotes, or the ".0" that a column of integers gets from an empty cell."""
    bare = text.strip()
    bare = bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == '"' else bare
    return bare.partition(".")[0] if re.fullmatch(r"-?\d+\.0*", bare) else bare


def _first(texts: Texts, code: int) -> int:
    return int(np.argmax(texts.codes.reshape(-1) == code))


def _note(labels: Sequence[str], classes: Sequence[str]) -> str:
    """Return which label means which class; nothing where they are the same numbers in order."""
    numbers = [str(place) for place in range(len(classes))]
    if list(labels) != list(classes):
        return "labels: " + abridged([f"{label} means {name}" for label, name in zip(labels, classes, strict=True)])
    if list(labels) == numbers:
        return ""
    return "classes: " + abridged([f"{place} = {name}" for place, name in zip(numbers, labels, strict=True)])
