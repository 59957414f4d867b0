"""A table with calibrated columns: its format, columns, order, names and cells as they were, the new ones beside or instead."""

import csv
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant._core.files import Array
from calibrant._core.paths import atomic_write, shown
from calibrant.data.formats.columns import arrays_of_table, numbers_of, score_columns
from calibrant.data.formats.layout import LABELS, TABLES, Layout, stem_and_name, suffix_of
from calibrant.data.formats.reading import SPLIT, named_of, understand
from calibrant.data.formats.tables import content_of, dialect_of, need_openpyxl, read_table
from calibrant.data.formats.writing import compressed, without_formula, write_table
from calibrant.errors import InputError


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
    if suffix_of(path) not in TABLES or path.is_dir():
        return None
    layout = replace(layout, label=None, labels=None, on=None, positive=None)
    whole = read_table(path)
    kept = [
        name for name in whole.column_names if name != SPLIT and stem_and_name(name)[1] not in (*LABELS, "label_ids")
    ]
    table, layout, _ = understand(whole.select(kept), layout, path)
    layout = replace(layout, label=None, positive=None)
    columns = score_columns(table.column_names, layout, path)
    if columns is None:
        return None
    if not set(columns) <= set(kept):
        raise InputError(
            f"one row a prediction in {shown(path)}",
            "one row a class",
            f"run: calibrant convert {shlex.quote(shown(path))} wide.csv, and name wide.csv",
        )
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
    old, new = suffix_of(given.path), suffix_of(target)
    gone = set(given.columns) if instead else set()
    same = {
        **dict.fromkeys((".csv", ".tsv"), _write_text),
        ".jsonl": _write_lines,
        ".json": _write_json,
        ".xlsx": _write_sheet,
    }
    if old == new and old in same:
        same[old](given, target, columns, gone)
        return
    import pyarrow as pa

    table = given.table
    for name, values in columns.items():
        made = pa.array(values)
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, made)
        else:
            table = table.append_column(name, made)
    write_table(target, table.drop_columns([name for name in gone if name not in columns]))


def _write_text(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> None:
    """Write text in the dialect that it was read in: delimiter, decimal sign, encoding and mark of the byte order."""
    dialect = dialect_of(given.path)
    text = content_of(given.path).decode(dialect.encoding)
    mark, text = ("\ufeff" if text.startswith("\ufeff") else ""), text.removeprefix("\ufeff")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter) if row]
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

    def _new(name: str, place: int) -> str:
        value = columns[name][place]
        written = json.dumps(value) if isinstance(value, list) else without_formula(str(value))
        return written.replace(".", dialect.decimal) if isinstance(value, float) else written

    with atomic_write(target) as file, compressed(file, target) as packed:
        out = io.StringIO()
        writer = csv.writer(out, delimiter=dialect.delimiter, lineterminator="\n")
        writer.writerow(cells(header, str))
        packed.write((mark + out.getvalue()).encode(dialect.encoding))
        for place, row in enumerate(body):
            out = io.StringIO()
            csv.writer(out, delimiter=dialect.delimiter, lineterminator="\n").writerow(
                cells(row, lambda name, place=place: _new(name, place))  # type: ignore[misc]
            )
            # the codec "utf-16" would begin every row with a mark of its own
            packed.write(out.getvalue().encode(dialect.encoding if dialect.encoding == "utf-8" else "utf-16-le"))


def _with(row: dict[str, Any], place: int, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> dict[str, Any]:
    """Return a row of JSON with its new cells."""
    kept = {name: cell for name, cell in row.items() if name not in gone or name in columns}
    return kept | {name: values[place] for name, values in columns.items()}


def _write_lines(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> None:
    rows = [json.loads(line) for line in content_of(given.path).decode().split("\n") if line.strip()]
    with atomic_write(target) as file, compressed(file, target) as packed:
        for place, row in enumerate(rows):
            packed.write(json.dumps(_with(row, place, columns, gone), ensure_ascii=False).encode() + b"\n")


def _write_json(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> None:
    """Write rows as objects or columns as lists as they were; other layouts as rows."""
    try:
        found = json.loads(content_of(given.path).decode("utf-8-sig"))
    except json.JSONDecodeError:  # lines in a file called .json
        _write_lines(given, target, columns, gone)
        return
    if isinstance(found, dict) and all(
        isinstance(cells, list) and len(cells) == given.table.num_rows for cells in found.values()
    ):
        made: Any = {name: cells for name, cells in found.items() if name not in gone or name in columns} | dict(
            columns
        )
    else:
        objects = isinstance(found, list) and all(isinstance(row, dict) for row in found)
        rows = found if objects else given.table.to_pylist()
        made = [_with(row, place, columns, gone) for place, row in enumerate(rows)]
    with atomic_write(target) as file, compressed(file, target) as packed:
        packed.write(json.dumps(made, ensure_ascii=False, default=str).encode())


def _write_sheet(given: ScoreTable, target: Path, columns: Mapping[str, Sequence[Any]], gone: set[str]) -> None:
    """Write the workbook with new cells in its first sheet; what else is in it stays, formulas as they are."""
    book = need_openpyxl().load_workbook(given.path)
    sheet = book.worksheets[0]
    rows = [row for row in sheet.iter_rows() if any(cell.value is not None for cell in row)]
    header = ["" if cell.value is None else str(cell.value) for cell in rows[0]]
    if len(rows) - 1 != given.table.num_rows or header != given.table.column_names:
        raise InputError(f"{given.table.num_rows:,} rows in {shown(given.path)}", f"{len(rows) - 1:,}", "write .csv")
    places = {name: at + 1 for at, name in enumerate(header)}
    for name, values in columns.items():
        at = places.setdefault(name, max(places.values()) + 1)
        for row, value in zip(rows, [name, *values], strict=True):
            cell = sheet.cell(row[0].row, at)
            cell.value = json.dumps(value) if isinstance(value, list) else value
            if isinstance(value, str):
                cell.data_type = "s"  # a name that begins with = is no formula
    for name in sorted((gone - set(columns)) & places.keys(), key=places.__getitem__, reverse=True):
        sheet.delete_cols(places[name])
    with atomic_write(target) as file:
        book.save(file)
