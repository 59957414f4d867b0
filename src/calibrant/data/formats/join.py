"""Labels of one file laid beside the scores of another: by a column that names each row in both, else by position."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.layout import LABELS, SCORES, Layout, stem_and_name
from calibrant.data.formats.roles import called
from calibrant.errors import InputError, Remedy


@dataclass(frozen=True)
class Labels:
    """The labels in a file of their own, the other columns of that file, and its path."""

    values: Array
    columns: Mapping[str, Array]
    path: Path


def align(
    arrays: Mapping[str, Array], labels: Labels, layout: Layout, *, path: Path
) -> tuple[Array, str, NDArray[np.bool_] | None]:
    """Return the labels in the order of the scores, how that order was found in words, and which rows have one (None: all).

    Args:
        arrays: The file of the scores.
        labels: The file of the labels.
        layout: The column that names each row in both (``on``; None finds it), and whether rows without a label are dropped.
        path: The file of the scores, for messages.

    Raises:
        InputError: If ``on`` is missing or repeats itself, rows of the scores have no label and are not to be dropped, or a
            column that both files have and that seems to name rows does not.
    """
    rows = next((len(values) for name, values in arrays.items() if stem_and_name(name)[1] in SCORES), None)
    key = _key(arrays, labels, layout.on, path, rows)
    if key is None:
        said = f"labels of {shown(labels.path)} taken by position: the two files share no column that names rows"
        return labels.values, said, None
    ours, theirs = _texts(arrays[key]), _texts(labels.columns[key])
    place = {name: row for row, name in enumerate(theirs)}
    missing = [name for name in ours if name not in place]
    if missing and (layout.missing is None or len(missing) == len(ours)):
        remedy = Remedy.read(missing="drop").after("add them, or leave these rows out: ")
        if len(missing) == len(ours):  # no two rows are the same: it is not the key of both
            remedy = Remedy("name the column that both share as on", command="name the column that both share by --on")
        got = f"none for {len(missing):,} of {len(ours):,} rows ({missing[0]!r}) in {shown(labels.path)}"
        raise InputError(f"a label for every {key!r} of {shown(path)}", got, remedy)
    spare = len(theirs) - len(ours) + len(missing)
    notes = [f"; {spare:,} of its rows have no scores"] if spare else []
    notes += [f"; {len(missing):,} of {len(ours):,} rows without a label dropped"] if missing else []
    said = f"labels of {shown(labels.path)} joined on {key!r}{''.join(notes)}"
    kept = np.array([name in place for name in ours]) if missing else None
    return labels.values[[place[name] for name in ours if name in place]], said, kept


def _key(arrays: Mapping[str, Array], labels: Labels, on: str | None, path: Path, rows: int | None) -> str | None:
    """Return the column that names each row once in both files, or None where no column can."""
    if on is not None:
        for columns, file in ((arrays, path), (labels.columns, labels.path)):
            if on not in columns:
                raise InputError(
                    f"the column {on!r} in {shown(file)}",
                    f"{', '.join(sorted(columns)[:12]) or 'none'}",
                    "name a column that both files have as on",
                )
            _refuse_repeats(columns[on], on, file)
        return on
    shared = [
        name
        for name, values in arrays.items()
        if name in labels.columns
        and stem_and_name(name)[1] not in (*SCORES, *LABELS)
        and _names_rows(values, rows)
        and _names_rows(labels.columns[name], len(labels.values))
    ]
    # a column called id goes before a text that happens to be distinct; the sort keeps the file's order otherwise
    shared.sort(key=lambda name: not called(name, "key"))
    for name in shared:
        if _all_distinct(arrays[name]) and _all_distinct(labels.columns[name]):
            return name
    for name in shared:  # a key that repeats itself: position would join rows of different names
        if called(name, "key") and _texts(arrays[name]) != _texts(labels.columns[name]):
            _refuse_repeats(arrays[name], name, path)
            _refuse_repeats(labels.columns[name], name, labels.path)
    return None


def _names_rows(values: Array, rows: int | None) -> bool:
    # no floats, unless ``on`` names them: a score that both files hold would join their rows
    return values.ndim == 1 and values.dtype.kind in "iuUSOM" and (rows is None or len(values) == rows)


def _all_distinct(values: Array) -> bool:
    return len(set(_texts(values))) == len(values)


def _refuse_repeats(values: Array, name: str, path: Path) -> None:
    counts = Counter(_texts(values))
    twice = [one for one, count in counts.items() if count > 1]
    if twice:
        raise InputError(
            f"each {name!r} once in {shown(path)}",
            f"{len(twice):,} that occur more than once ({twice[0]!r})",
            "name a column that is distinct as on, or remove the repeated rows",
        )


def _texts(values: Array) -> list[str]:
    """Return keys as text: whole numbers that a table with gaps keeps as floats are written without ``.0``."""
    if values.dtype.kind == "f" and np.array_equal(values, np.trunc(values)):
        values = values.astype(np.int64)
    return [str(one) for one in values.tolist()]
