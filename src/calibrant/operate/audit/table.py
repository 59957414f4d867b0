"""The table that people fill in: the rows of a sample with an empty column for the label."""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from calibrant._core.files import read_text
from calibrant._core.paths import shown, write_whole
from calibrant.errors import FileFormatError, InputError
from calibrant.operate.audit.sample import Sample, contradiction
from calibrant.statistics.labelled import Floats

Row = dict[str, str]
_BEYOND_CHANCE = 8.0  # standard deviations
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
    write_whole(path, text.getvalue())


def read_tables(paths: Sequence[str], *, names: Sequence[str] = ()) -> tuple[dict[int, int], list[Row]]:
    """Return row → label, −1 for none, and all lines of the tables.

    A row may occur several times, as when two people label it; all its labels must agree.

    Args:
        paths: CSV with the columns row and label: of several batches, or of several people.
        names: The classes in order, for labels that are text.

    Raises:
        FileFormatError: If a column is missing or a row is no number.
        InputError: If a label is no class, or a row has two labels.
    """
    found: dict[int, int] = {}
    empty: dict[int, int] = {}  # of a label that was taken back as well
    whole: list[Row] = []
    for path in paths:
        whole += (lines := _lines(path))
        if not lines or not {"row", "label"} <= set(lines[0]):
            raise _altered(path, "the columns row and label", ", ".join(lines[0]) if lines else "no rows")
        for line in lines:
            text = (line["label"] or "").strip()
            try:
                row = int(line["row"] or "")
            except ValueError:
                raise _altered(path, "the number of a row in the column row", repr(line["row"])) from None
            empty[row] = -1
            label = _label_index(text, names) if text else -1
            if text and found.setdefault(row, label) != label:
                raise contradiction(row, found[row], label)
    return empty | found, whole


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
    texts = ((line.get("label") or "").strip().removesuffix(".0") for line in _lines(path))
    return any(text and not text.removeprefix("-").isdecimal() for text in texts)


def sample_of(lines: Sequence[Row], pool_rows: int, path: str | os.PathLike[str]) -> Sample:
    """Return the sample that tables tell of by themselves, where the state beside them is lost.

    Raises:
        FileFormatError: If the probabilities, or rows of a batch, are missing.
    """
    unique = {int(line["row"]): line for line in lines}

    def column(name: str, otherwise: float) -> Floats:
        try:
            return np.array([float(line.get(name) or otherwise) for line in unique.values()])
        except ValueError:
            raise _altered(path, f"numbers in the column {name}", "others") from None

    inclusion, batch, sizes = column("inclusion", math.nan), column("batch", 1) - 1, column("batch_rows", math.nan)
    if (lost := np.flatnonzero(np.isnan(inclusion))).size:
        raise _altered(path, "the inclusion probability of every row", f"none of row {list(unique)[lost[0]]}")
    if not np.isin(batch, np.arange(len(batch))).all():
        raise _altered(path, "batches from 1 on", "others")
    for number in range(int(batch.max()) + 1):
        members = batch == number
        known, drawn = int(members.sum()), sizes[members]
        if not known or (drawn[~np.isnan(drawn)] != known).any():
            raise FileFormatError(
                f"all rows of the sample's batch {number + 1}",
                f"{known:,} of {f'{drawn[0]:g}' if known else 'them'} in {shown(path)}",
                "put the state of the sample beside the table again, or name the tables of all batches",
            )
        # 1 / π of the drawn rows sums to the rows that there were, but for chance: independent draws vary the most
        left, total = pool_rows - int((batch < number).sum()), float((1 / inclusion[members]).sum())
        chance = math.sqrt(float(((1 - inclusion) / inclusion**2)[members].sum()))
        if abs(total - left) > _BEYOND_CHANCE * chance + 1e-6 * left:
            raise _altered(path, f"inclusion probabilities of {left:,} rows", f"those of about {total:,.0f}")
    rows = np.array(list(unique), np.int64)
    made = Sample(rows, inclusion, batch.astype(np.int64), np.full(len(rows), -1), "accuracy", 0, pool_rows)
    made.check()
    return made


def _altered(path: str | os.PathLike[str], expected: str, got: str) -> FileFormatError:
    return FileFormatError(expected, f"{got} in {shown(path)}", "fill in the table as sample wrote it")


def _lines(path: str | os.PathLike[str]) -> list[Row]:
    text = read_text(path)
    heading = text.partition("\n")[0]
    # spreadsheets write semicolons where the comma is for decimals
    table = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=heading.count))
    names = table.fieldnames or []
    if twice := [name for name in _OWN if list(names).count(name) > 1]:
        raise _altered(path, f"one column {twice[0]}", "several")
    return [line for line in table if any(map(line.get, names))]  # spreadsheets add lines of empty cells


def _label_index(text: str, names: Sequence[str]) -> int:
    whole = text.removesuffix(".0")  # as tables with empty cells are often written
    if text in names or whole in names:
        return list(names).index(text if text in names else whole)
    try:
        if not -1 <= (number := int(whole)) < 1 << 31 or not whole.removeprefix("-").isdecimal():
            raise ValueError
        return number
    except ValueError:
        among = f"one of {', '.join(names)}" if names else "the number of a class, from 0"
        raise InputError(f"a label that is {among}", repr(text), "correct it, or leave it empty") from None
