"""The table that people fill in: the rows of a sample with an empty column for the label."""

import csv
import io
import os
from collections.abc import Mapping, Sequence

import numpy as np

from calibrant._core.files import read_text
from calibrant._core.paths import atomic_write, shown
from calibrant.errors import FileFormatError, InputError
from calibrant.operate.audit.sample import Integers, Sample

__all__ = ["has_words", "read_table", "refuse_filled", "sample_of", "write_table"]

Row = dict[str, str]


def write_table(path: str | os.PathLike[str], sample: Sample, keys: Mapping[str, Sequence[object]]) -> None:
    """Write row, keys, inclusion and an empty label of each row that has no label yet, in CSV.

    Args:
        path: The file.
        sample: The rows.
        keys: Column → values, of the rows without a label, by which a labeller finds them.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", *keys, "inclusion", "label"])
    for line, at in enumerate(np.flatnonzero(sample.labels < 0)):
        beside = [column[line] for column in keys.values()]
        table.writerow([int(sample.rows[at]), *beside, repr(float(sample.inclusion[at])), ""])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def read_table(path: str | os.PathLike[str], *, names: Sequence[str] = ()) -> tuple[dict[int, int], list[Row]]:
    """Return row → label of the rows that have one, and all lines of the table.

    A row may occur several times, as when two people label it; all its labels must agree.

    Args:
        path: CSV with the columns row and label.
        names: The classes in order, for labels that are text.

    Raises:
        FileFormatError: If a column is missing or a row is no number.
        InputError: If a label is no class, or a row has two labels.
    """
    lines = _lines(path)
    if not lines or not {"row", "label"} <= set(lines[0]):
        got = ", ".join(lines[0]) if lines else "no rows"
        raise FileFormatError(
            "the columns row and label", f"{got} in {shown(path)}", "fill in the table that sample wrote"
        )
    found: dict[int, int] = {}
    for line in lines:
        text = (line["label"] or "").strip()
        try:
            row = int(line["row"] or "")
        except ValueError:
            raise FileFormatError(
                "the number of a row in the column row", repr(line["row"]), "keep the column as it was written"
            ) from None
        if not text:
            continue
        label = _label(text, names)
        if found.setdefault(row, label) != label:
            raise InputError(
                "one label a row",
                f"{found[row]} and {label} for row {row}",
                "decide which is right, or leave both empty",
            )
    return found, lines


def refuse_filled(path: str | os.PathLike[str]) -> None:
    """Refuse to write where a table already has labels, which people gave.

    Raises:
        InputError: If there is one.
    """
    given = sum(bool((line.get("label") or "").strip()) for line in _lines(path)) if os.path.exists(path) else 0
    if given:
        raise InputError("a place for a new table", f"{shown(path)}, which has {given:,} labels", "name another file")


def has_words(path: str | os.PathLike[str]) -> bool:
    """Return whether a label of the table is the name of a class, not its number."""
    texts = ((line.get("label") or "").strip() for line in _lines(path))
    return any(text and not text.removeprefix("-").isdecimal() for text in texts)


def sample_of(lines: Sequence[Row], pool_rows: int, path: str | os.PathLike[str]) -> Sample:
    """Return the sample of one batch that a table tells of by itself, where the state beside it is lost.

    Raises:
        FileFormatError: If the probabilities are missing.
    """
    chances = {int(line["row"]): line.get("inclusion") or "" for line in lines}
    try:
        inclusion = np.array([float(one) for one in chances.values()])
    except ValueError:
        inclusion = np.zeros(1)
    if not ((inclusion > 0) & (inclusion <= 1)).all():
        raise FileFormatError(
            "an inclusion probability in (0, 1] of every row",
            f"none for some in {shown(path)}",
            "keep the column inclusion, or name the state of the sample",
        )
    rows: Integers = np.array(list(chances), np.int64)
    nothing = np.full(len(rows), -1)
    made = Sample(rows, inclusion, np.zeros(len(rows), np.int64), nothing, "accuracy", 0, pool_rows)
    made.check()
    return made


def _lines(path: str | os.PathLike[str]) -> list[Row]:
    return list(csv.DictReader(io.StringIO(read_text(path))))


def _label(text: str, names: Sequence[str]) -> int:
    if text in names:
        return list(names).index(text)
    try:
        return int(text)
    except ValueError:
        among = f"one of {', '.join(names)}" if names else "the number of a class, from 0"
        raise InputError(f"a label that is {among}", repr(text), "correct it, or leave it empty") from None
