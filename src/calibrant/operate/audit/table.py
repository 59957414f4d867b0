"""The table that people fill in: the rows of a sample with an empty column for the label."""

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from calibrant._core.files import read_text
from calibrant._core.paths import atomic_write, shown
from calibrant.errors import FileFormatError, InputError
from calibrant.operate.audit.sample import Integers, Sample

__all__ = ["has_words", "read_tables", "refuse_filled", "sample_of", "write_table"]

Row = dict[str, str]
_OWN = ("row", "inclusion", "batch", "batch_rows", "label")


def write_table(path: str | os.PathLike[str], sample: Sample, keys: Mapping[str, Sequence[object]]) -> None:
    """Write row, keys, inclusion and an empty label of each row that has no label yet, in CSV.

    Args:
        path: The file.
        sample: The rows.
        keys: Column → values, of the rows without a label, by which a labeller finds them.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    kept = {name: column for name, column in keys.items() if name not in _OWN}
    table.writerow([_OWN[0], *kept, *_OWN[1:]])
    sizes = np.bincount(sample.batch)
    for line, at in enumerate(np.flatnonzero(sample.labels < 0)):
        beside, batch = [column[line] for column in kept.values()], int(sample.batch[at])
        # with the batches, tables say by themselves whether they are all of the draw
        own = [repr(float(sample.inclusion[at])), batch + 1, int(sizes[batch]), ""]
        table.writerow([int(sample.rows[at]), *beside, *own])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def read_tables(paths: Sequence[str], *, names: Sequence[str] = ()) -> tuple[dict[int, int], list[Row]]:
    """Return row → label of the rows that have one, and all lines of the tables.

    A row may occur several times, as when two people label it; all its labels must agree.

    Args:
        paths: CSV with the columns row and label: of several batches, or of several people.
        names: The classes in order, for labels that are text.

    Raises:
        FileFormatError: If a column is missing or a row is no number.
        InputError: If a label is no class, or a row has two labels.
    """
    found: dict[int, int] = {}
    whole: list[Row] = []
    for path in paths:
        whole += (lines := _lines(path))
        if not lines or not {"row", "label"} <= set(lines[0]):
            got = ", ".join(lines[0]) if lines else "no rows"
            raise FileFormatError(
                "the columns row and label", f"{got} in {shown(path)}", "fill in the table that sample wrote"
            )
    for line in whole:
        text = (line["label"] or "").strip()
        try:
            row = int(line["row"] or "")
        except ValueError:
            raise FileFormatError(
                "the number of a row in the column row", repr(line["row"]), "keep the column as it was written"
            ) from None
        if not text:
            continue
        label = _label_index(text, names)
        if found.setdefault(row, label) != label:
            raise InputError(
                "one label a row",
                f"{found[row]} and {label} for row {row}",
                "decide which is right, or leave both empty",
            )
    return found, whole


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
    """Return the sample that tables tell of by themselves, where the state beside them is lost.

    Raises:
        FileFormatError: If the probabilities, or rows of a batch, are missing.
    """
    chances = {int(line["row"]): line.get("inclusion") or "" for line in lines}
    batches = {int(line["row"]): (line.get("batch") or "1", line.get("batch_rows") or "") for line in lines}
    there = Counter(batches.values())
    for number in range(1, 1 + max((int(one) for one, _ in there if one.isdecimal()), default=1)):
        drawn, known = next(((size, have) for (one, size), have in there.items() if one == str(number)), ("", 0))
        if not known or drawn not in ("", str(known)):
            raise FileFormatError(
                f"all rows of the sample's batch {number}",
                f"{known:,} of {drawn or 'them'} in {shown(path)}",
                "put the state of the sample beside the table again, or name the tables of all batches",
            )
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
    try:
        batch = np.array([int(one) - 1 for one, _ in batches.values()], np.int64)
    except ValueError:
        raise FileFormatError("batches by number", f"others in {shown(path)}", "keep the column batch") from None
    made = Sample(rows, inclusion, batch, nothing, "accuracy", 0, pool_rows)
    made.check()
    return made


def _lines(path: str | os.PathLike[str]) -> list[Row]:
    return list(csv.DictReader(io.StringIO(read_text(path))))


def _label_index(text: str, names: Sequence[str]) -> int:
    if text in names:
        return list(names).index(text)
    try:
        return int(text)
    except ValueError:
        among = f"one of {', '.join(names)}" if names else "the number of a class, from 0"
        raise InputError(f"a label that is {among}", repr(text), "correct it, or leave it empty") from None
