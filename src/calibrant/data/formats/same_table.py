"""A table with calibrated columns: its format, columns, order, names and cells as they were, the new ones beside or instead."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant._core.files import Array, read_text
from calibrant._core.paths import atomic_write, shown
from calibrant.data.formats.columns import arrays_of_table, numbers_of, score_columns
from calibrant.data.formats.layout import LABELS, TABLES, Layout, stem_and_name
from calibrant.data.formats.reading import SPLIT, named_of, understand
from calibrant.data.formats.tables import read_table
from calibrant.data.formats.writing import write_table
from calibrant.errors import InputError

_TEXT = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class ScoreTable:
    """The rows of a table whose scores are calibrated.

    Args:
        path: Its file.
        table: A ``pyarrow.Table``.
        kind: "logits" or "probs".
        columns: The columns of the scores: one a class, or one alone.
        values: The scores (N, K), or (N,) of one number a row.
        names: The classes as the columns call them; their numbers where they have no names.
        arrays: Everything in the table, features among it.
    """

    path: Path
    table: Any
    kind: str
    columns: tuple[str, ...]
    values: Array
    names: tuple[str, ...]
    arrays: Mapping[str, Array]


def read_score_table(path: Path, layout: Layout) -> ScoreTable | None:
    """Return the scores of a table and where they stand in it, or None where they are not one group of columns.

    Labels are not read: rows without one are calibrated as others are.

    Raises:
        FileFormatError: If the file is broken.
        InputError: If its scores cannot be read as ``layout`` says.
    """
    if path.suffix.lower() not in TABLES or path.is_dir():
        return None
    layout = replace(layout, label=None, labels=None, on=None, positive=None)
    whole = read_table(path)
    kept = [
        name for name in whole.column_names if name != SPLIT and stem_and_name(name)[1] not in (*LABELS, "label_ids")
    ]
    table, layout, _ = understand(whole.select(kept), layout, path)
    layout = replace(layout, label=None, positive=None)
    columns = score_columns(table.column_names, layout, path)
    if columns is None or not set(columns) <= set(kept):
        return None
    opened, classes = arrays_of_table(table, layout, path)
    arrays = named_of(path, opened, classes, layout).arrays
    kind = next((kind for kind in ("logits", "probs") if kind in arrays), None)
    if kind is None or arrays[kind].ndim > 2:
        return None
    values = arrays[kind]
    width = values.shape[1] if values.ndim == 2 else 2
    numbers = classes.numbers or (numbers_of(columns) if len(columns) == width else ())
    spelled = next(iter(classes.spellings), ())
    found = layout.class_names or (spelled if len(spelled) == width else ()) or tuple(map(str, numbers))
    names = found if len(found) == width else tuple(str(index) for index in range(width))
    return ScoreTable(path, whole, kind, columns, values, names, arrays)


def calibrated_columns(
    given: ScoreTable, probs: Array, logits: Array, *, what: str, suffix: str, instead: bool
) -> dict[str, list[Any]]:
    """Return the new columns by name, in order.

    Args:
        given: The table.
        probs: Calibrated probabilities (N, K).
        logits: Calibrated logits (N, K).
        what: "probs", "logits", "label" or "top".
        suffix: Of the new names, where they stand beside the old.
        instead: Whether they take the place, and the names, of the scores.

    Raises:
        InputError: If a new name is taken.
    """
    ending = "" if instead else suffix
    if what in ("label", "top"):
        best = probs.argmax(axis=1)
        found: dict[str, list[Any]] = {f"predicted{ending}": [given.names[one] for one in best]}
        if what == "top":
            found[f"confidence{ending}"] = probs.max(axis=1).tolist()
    else:
        values = probs if what == "probs" else logits
        names = [f"{name}{ending}" for name in given.columns]
        if given.values.ndim == 1:
            found = {names[0]: (probs[:, 1] if what == "probs" else logits[:, 1] - logits[:, 0]).tolist()}
        elif len(names) == 1:
            found = {names[0]: values.tolist()}
        else:
            found = {name: values[:, place].tolist() for place, name in enumerate(names)}
    gone = given.columns if instead else ()
    if taken := [name for name in found if name in given.table.column_names and name not in gone]:
        raise InputError(
            "new names of columns", f"{taken[0]!r}, which {shown(given.path)} has", "name another ending by --suffix"
        )
    return found


def write_same_table(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], *, instead: bool) -> None:
    """Write the table with the new columns; in its own format every cell of text keeps its characters.

    Raises:
        InputError: If rows of text cannot be told apart as they were read.
    """
    old, new = given.path.suffix.lower(), target.suffix.lower()
    gone = set(given.columns) if instead else set()
    if old == new and old in _TEXT:
        _write_text(given, target, columns, gone, _TEXT[old])
    elif old == new == ".jsonl":
        _write_lines(given, target, columns, gone)
    else:
        import pyarrow as pa

        table = given.table
        for name, values in columns.items():
            made = pa.array(values)
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, made)
            else:
                table = table.append_column(name, made)
        spare = [name for name in gone if name not in columns]
        write_table(target, table.drop_columns(spare))


def _write_text(
    given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str], delimiter: str
) -> None:
    rows = [row for row in csv.reader(read_text(given.path).splitlines(keepends=True), delimiter=delimiter) if row]
    header, body = rows[0], rows[1:]
    if len(body) != given.table.num_rows or header != given.table.column_names:
        raise InputError(
            f"{given.table.num_rows:,} rows under {len(given.table.column_names)} names in {shown(given.path)}",
            f"{len(body):,} in its text",
            "write .parquet",
        )

    def cells(row: Sequence[str], new: Callable[[str], str]) -> list[str]:
        kept = [new(name) if name in columns else cell for name, cell in zip(header, row, strict=True) if _stays(name)]
        return [*kept, *(new(name) for name in columns if name not in header)]

    def _stays(name: str) -> bool:
        return name not in gone or name in columns

    with atomic_write(target) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerow(cells(header, str))
        for place, row in enumerate(body):
            writer.writerow(cells(row, lambda name, place=place: _cell(columns[name][place])))  # type: ignore[misc]
        text.flush()
        text.detach()


def _cell(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list) else str(value)


def _write_lines(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> None:
    rows = [json.loads(line) for line in read_text(given.path).split("\n") if line.strip()]
    with atomic_write(target) as file:
        for place, row in enumerate(rows):
            kept = {name: cell for name, cell in row.items() if name not in gone or name in columns}
            kept |= {name: values[place] for name, values in columns.items()}
            file.write(json.dumps(kept, ensure_ascii=False).encode() + b"\n")
