"""Labels as indices of classes: names are matched by their text, and integers are indices, never both in one column."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.errors import InputError

_SHOWN = 12  # names in a sentence
_TRUTH = {"0": 0, "no": 0, "false": 0, "1": 1, "yes": 1, "true": 1}  # of the one event whose probability a column holds


@dataclass(frozen=True)
class Texts:
    """A column of text: its distinct values, and which of them each row has."""

    values: Sequence[str]
    codes: NDArray[Any]

    @classmethod
    def of(cls, column: Any) -> "Texts":
        """Return the texts of an array of them."""
        values, codes = np.unique(np.asarray(column).astype(str), return_inverse=True)
        return cls(values.tolist(), codes.reshape(np.shape(column)))

    def array(self) -> NDArray[np.str_]:
        """Return the text of each row."""
        found: NDArray[np.str_] = np.array([*self.values, ""], dtype=str)[self.codes]
        return found

    def __getitem__(self, rows: Any) -> "Texts":
        return Texts(self.values, self.codes[rows])

    def __len__(self) -> int:
        return len(self.codes)

    def are_integers(self) -> bool:
        """Say whether every text is an integer."""
        return all(re.fullmatch(r"\s*[+-]?\d{1,18}(\.0*)?\s*", value) for value in self.values)

    def integers(self) -> NDArray[np.int64]:
        """Return the integer of each row."""
        found: NDArray[np.int64] = np.array([int(float(value)) for value in self.values], dtype=np.int64)[self.codes]
        return found


@dataclass(frozen=True)
class Matched:
    """Labels as indices, with the names of the classes that they were matched to, and what a note says of it."""

    labels: NDArray[np.int64]
    names: tuple[str, ...] | None
    note: str = ""


def match_labels(
    texts: Texts, spellings: Sequence[Sequence[str]], *, classes: int, column: str, place: Callable[[int], str]
) -> Matched:
    """Return the class of each row.

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
    used = sorted(set(np.unique(texts.codes).tolist()))
    plain = [_unpadded(value) for value in texts.values]
    if (empty := next((code for code in used if plain[code] == ""), None)) is not None:
        raise InputError(f"{column} is empty in {place(_first(texts, empty))}; leave out rows without a label")
    for written in (list(texts.values), plain, [_whole(one) for one in plain], [one.casefold() for one in plain]):
        for names in spellings:
            folded = [name.casefold() for name in names] if written[used[0]] not in names else list(names)
            index = {name: place for place, name in enumerate(folded)}
            if len(index) == len(names) and all(written[code] in index for code in used):
                lookup = np.array([index.get(one, -1) for one in written], dtype=np.int64)
                return Matched(lookup[texts.codes], tuple(names), _note(names, names))
    known_names = spellings[0] if spellings else None
    numbered = known_names is not None and all(
        name.isdecimal() for name in known_names
    )  # labels are then the columns' own numbers
    whole = [_whole(one) for one in plain]
    strange = [code for code in used if not _is_index(whole[code], classes)]
    if numbered or strange:
        known = {name for spelled in spellings for name in spelled}
        wrong = next(
            (code for code in used if known_names is not None and whole[code] not in known), (*strange, *used)[0]
        )
        integers = "" if numbered else f"an integer from 0 to {classes - 1}"
        expected = " or ".join(
            filter(None, [integers, f"one of the classes {listed(known_names)}" if known_names else ""])
        )
        more = "" if known_names or whole[wrong].isdecimal() else "; name the classes by class_names"
        where = place(_first(texts, wrong))
        raise InputError(f"{column} is {texts.values[wrong]!r} in {where}; it must be {expected}{more}")
    lookup = np.array([int(one) if _is_index(one, classes) else -1 for one in whole], dtype=np.int64)
    numbers = [str(place) for place in range(classes)]
    return Matched(
        lookup[texts.codes], None if known_names is None else tuple(known_names), _note(numbers, known_names or numbers)
    )


def match_event(texts: Texts, event: str | None, *, column: str, place: Callable[[int], str]) -> Matched:
    """Return 1 for rows where the one event happened whose probability a column holds, else 0.

    Args:
        texts: The labels.
        event: The name that the column gives to the event, or None.
        column: What messages call the labels.
        place: Says where a row stands.

    Raises:
        InputError: If a label is neither.
    """
    used = sorted(set(np.unique(texts.codes).tolist()))
    plain = [_whole(_unpadded(value)) for value in texts.values]
    others = [plain[code] for code in used if plain[code] != event]
    if event is not None and "" not in others and len(others) < len(used) and len(others) < 2:
        lookup = np.array([one == event for one in plain], dtype=np.int64)
        names = (others[0] if others else f"not {event}", event)
        return Matched(lookup[texts.codes], names, _note(names, ("0", "1")))
    strange = next((code for code in used if plain[code].casefold() not in _TRUTH), None)
    if strange is not None:
        raise InputError(
            f"{column} is {texts.values[strange]!r} in {place(_first(texts, strange))}; beside one column of scores labels must be 0 "
            "and 1, no and yes, or false and true, unless that column is named after the label, such as p_yes"
        )
    lookup = np.array([_TRUTH.get(one.casefold(), 0) for one in plain], dtype=np.int64)
    written = {int(lookup[code]): plain[code] for code in used}
    labels = tuple(written.get(k, str(k)) for k in (0, 1))
    named = (f"not {event}", event) if event else None if labels == ("0", "1") else labels
    return Matched(lookup[texts.codes], named, _note(labels, ("0", "1") if event is None else named or ()))


def name_spellings(columns: Sequence[str]) -> list[list[str]]:
    """Return what columns may call their classes: what is left without the parts that all names begin or end with, then the names.

    Examples:
        >>> name_spellings(["prob class a", "prob class b"])
        [['a', 'b'], ['class a', 'class b'], ['prob class a', 'prob class b']]
    """
    parts = [re.findall(r"[^\W\d_]+|\d+|[\W_]+", name) for name in columns]
    front, back = _shared(parts), _shared([part[::-1] for part in parts])
    found = []
    for left in range(front, -1, -1):
        for right in range(back, -1, -1):
            names = ["".join(part[left : len(part) - right]).strip(" _-.:") for part in parts]
            if len(set(names)) == len(names) and "" not in names and names not in found:
                found.append(names)
    return found if list(columns) in found else [*found, list(columns)]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """Return how many parts all names begin with, one at least of each name being left."""
    count = 0
    for alike in zip(*parts, strict=False):
        if len(set(alike)) > 1 or len(parts) < 2:
            break
        count += 1
    return min(count, min(map(len, parts)) - 1)


def _unpadded(text: str) -> str:
    plain = text.strip()
    return plain[1:-1] if len(plain) > 1 and plain[0] == plain[-1] == '"' else plain


def _whole(text: str) -> str:
    """Return "2" for "2.0", as a column of integers reads that once had an empty cell."""
    return text.partition(".")[0] if re.fullmatch(r"-?\d+\.0*", text) else text


def _is_index(text: str, classes: int) -> bool:
    return re.fullmatch(r"\+?\d{1,18}", text) is not None and int(text) < classes


def _first(texts: Texts, code: int) -> int:
    return int(np.argmax(texts.codes.reshape(-1) == code))


def _note(labels: Sequence[str], classes: Sequence[str]) -> str:
    """Return which label means which class; nothing where they are the same numbers in order."""
    if list(labels) == list(classes) == [str(place) for place in range(len(classes))]:
        return ""
    if list(labels) == list(classes):
        labels = [str(place) for place in range(len(classes))]
        return "classes: " + listed([f"{place} = {name}" for place, name in zip(labels, classes, strict=True)])
    return "labels: " + listed([f"{label} means {name}" for label, name in zip(labels, classes, strict=True)])


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence, twelve at most."""
    return ", ".join(names[:_SHOWN]) + (f", … ({len(names):,} in all)" if len(names) > _SHOWN else "")
