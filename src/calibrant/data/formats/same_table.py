"""A table with calibrated columns: its format, columns, order, names and cells as they were, the new ones beside or instead."""

import codecs
import csv
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant._core.files import Array, pa
from calibrant._core.paths import atomic_write, shown
from calibrant.data.formats.cells import plain_cells
from calibrant.data.formats.columns import arrays_of_table, column_array, is_list, match_columns, score_columns
from calibrant.data.formats.evidence import Columns as Held
from calibrant.data.formats.layout import LABELS, Layout, stem_and_name, suffix_of
from calibrant.data.formats.reading import SPLIT, frame_of, named_of, understand
from calibrant.data.formats.reshaped import read_rows_of_classes
from calibrant.data.formats.roles import called, is_decision
from calibrant.data.formats.tables import batches_of, json_lines, read_table, sheet_table, table_sheet
from calibrant.data.formats.text import content_of, dialect_of, printed_by_tools, unpacked
from calibrant.data.formats.writing import whole_file, without_formula, write_table
from calibrant.data.frames import Frame
from calibrant.errors import InputError, Remedy, optional_package

Columns = Mapping[str, Sequence[Any]]


def read_score_table(path: Path, layout: Layout) -> tuple[Frame, Mapping[str, Array]] | None:
    """Return a table with where its scores stand, and all arrays in it; None where they are not one group of columns.

    Labels are not read: rows without one are calibrated as others are.

    Raises:
        FileFormatError: If the file is broken.
        InputError: If its scores cannot be read as ``layout`` says.
    """
    label = layout.label
    layout = replace(layout, label=None, labels=None, on=None, positive=None, missing=None)
    whole = read_table(path)
    ends = {name for name in whole.column_names if stem_and_name(name)[1] in (*LABELS, "label_ids")}
    labels = {name for name in ends if not is_decision(name)}  # prediction_label is none
    labels = {name for name in labels if not _names_classes(whole, name)}
    # of a row for each class the column called label may hold that class
    long = read_rows_of_classes(Held(plain_cells(whole)), layout) if labels and not layout.columns else None
    if long is None:  # of decisions with their confidences the label that is named tells the classes
        layout = replace(layout, label=label if label in whole.column_names and not layout.columns else None)
    table, layout, _ = (long.table, long.layout, "") if long else understand(whole, layout, path)
    table = table.drop_columns([name for name in table.column_names if name in {SPLIT, *labels}])
    layout = replace(layout, label=None, positive=None)
    columns = score_columns(table.column_names, layout, path)
    if columns is not None and len(table) != len(whole):
        raise InputError(
            f"one row a prediction in {shown(path)}",
            f"{len(whole):,} rows of {len(table):,} predictions",
            "write one row for each prediction",
        )
    opened, classes = arrays_of_table(table, layout, path)
    arrays = named_of(path, opened, classes, layout).arrays
    frame = frame_of(whole, opened, arrays, classes, layout, columns)
    return None if frame is None else (frame, arrays)


def read_confidence_table(path: Path, layout: Layout) -> tuple[Frame, Mapping[str, Array]]:
    """Return a table with where its confidences of decisions stand, and all columns of numbers and text in it, with labels or without.

    Raises:
        FileFormatError: If the file is broken, or no column says that it holds confidences.
        InputError: If its scores are others.
    """
    whole = read_table(path)
    cells = plain_cells(whole)
    named = [name for name in cells.column_names if called(name, "confidence")]
    found = match_columns(layout.columns, cells.column_names, path)[0] if layout.columns else named
    if len(found) != 1:
        table = understand(whole, layout, path)[0] if not layout.columns else None
        conf = table.column("conf") if table is not None and "conf" in table.column_names else None
        found = [] if conf is None else [name for name in cells.column_names if cells.column(name).equals(conf)]
    if not found:
        remedy = Remedy("name their column by columns", command="name their column by --columns")
        raise InputError(f"confidences of decisions in {shown(path)}", "scores of classes", remedy)
    held = {name: column_array(cells.column(name), name, path, strict=name == found[0]) for name in cells.column_names}
    return Frame(whole, "conf", (found[0],), True, ()), {**held, "conf": held[found[0]]}


def _names_classes(table: Any, name: str) -> bool:
    """Say whether the cells of a column are lists of text: of each row's classes, and no labels."""
    kind = plain_cells(table.select([name])).schema.field(0).type
    return is_list(kind) and bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))


def write_same_table(
    path: Path, given: Frame, target: Path, columns: Mapping[str, Sequence[Any]], *, gone: set[str]
) -> None:
    """Write the table with the new columns, without those that are ``gone``; in its own format each cell of text keeps its characters.

    Raises:
        InputError: If rows of text cannot be told apart as they were read.
    """
    old, new, gone = suffix_of(path), suffix_of(target), gone - columns.keys()
    same = {
        **dict.fromkeys((".csv", ".tsv"), _write_text),
        ".jsonl": _write_lines,
        ".json": _write_json,
        ".xlsx": _write_sheet,
    }
    if old == new and old in same and not (old in (".csv", ".tsv") and printed_by_tools(path)):
        same[old](path, given.table, target, columns, gone)
        return
    table = given.table
    for name, values in columns.items():
        made = pa.array(values)
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, made)
        else:
            table = table.append_column(name, made)
    table = table.drop_columns([*gone])
    if old in (".parquet", ".arrow", ".feather") and not path.is_dir():  # a name that stands there twice is so again
        held = next(batches_of(path)).schema.names
        table = table.rename_columns(
            [dict(zip(given.table.column_names, held, strict=False)).get(one, one) for one in table.column_names]
        )
    write_table(target, table)


def _write_text(path: Path, table: Any, target: Path, columns: Columns, gone: set[str]) -> None:
    """Write text in the dialect that it was read in: delimiter, decimal sign, encoding and mark of the byte order; row by row."""
    dialect = dialect_of(path)
    header = list(dialect.names)

    def refuse(count: int) -> InputError:
        expected = f"{table.num_rows:,} rows under {len(table.column_names)} names in {shown(path)}"
        return InputError(expected, f"{count:,} in its text", "write .parquet")

    stays = [name not in gone for name in header]
    added = [name for name in columns if name not in header]

    def new(name: str, place: int) -> str:
        value = columns[name][place]
        if isinstance(value, float):  # −inf, the logit of p = 0, is a number too
            return str(value).replace(".", dialect.decimal)
        return json.dumps(value) if isinstance(value, list | dict) else without_formula(str(value))

    with (
        unpacked(path) as content,
        whole_file(target) as packed,
    ):
        out = codecs.getwriter(dialect.encoding)(packed)  # "utf-16" begins with a mark of its own
        lines = iter(io.TextIOWrapper(content, encoding=dialect.encoding, newline=""))
        first = next(lines, "")
        mark, lines = first[:1] == "\ufeff", itertools.chain([first.removeprefix("\ufeff")], lines)
        out.write("\ufeff" * mark + "".join(itertools.islice(lines, dialect.above)))
        rows = (row for row in csv.reader(lines, delimiter=dialect.delimiter, quotechar=dialect.quote) if row)
        writer = csv.writer(out, delimiter=dialect.delimiter, quotechar=dialect.quote, lineterminator="\n")
        # each name as it stands there, one that occurs twice too
        for at, title in enumerate(itertools.islice(rows, dialect.titles)):
            short = len(title) == len(header) - 1 and not header[0]  # R leaves the name of the rows' names out
            whole = title if len(title) == len(header) or short else header  # another title gets a name for each column
            kept = [cell for cell, stay in zip(whole, stays[short:], strict=True) if stay]
            writer.writerow([*kept, *("" if at else name for name in added)])
        count = 0
        for row in rows:
            if count == table.num_rows or header != table.column_names or len(row) != len(header):
                raise refuse(count + 1)
            kept = [
                new(name, count) if name in columns else cell
                for name, cell, stay in zip(header, row, stays, strict=True)
                if stay
            ]
            writer.writerow([*kept, *(new(name, count) for name in added)])
            count += 1
        if count < table.num_rows:
            raise refuse(count)


def _with(row: dict[str, Any], place: int, columns: Columns, gone: set[str]) -> dict[str, Any]:
    """Return a row of JSON with its new cells."""
    kept = {name: cell for name, cell in row.items() if name not in gone}
    return kept | {name: values[place] for name, values in columns.items()}


def _write_lines(path: Path, table: Any, target: Path, columns: Columns, gone: set[str]) -> None:
    with whole_file(target) as packed:
        for place, row in enumerate(json_lines(content_of(path).decode())):
            packed.write(json.dumps(_with(row, place, columns, gone), ensure_ascii=False).encode() + b"\n")


def _write_json(path: Path, table: Any, target: Path, columns: Columns, gone: set[str]) -> None:
    """Write rows as objects or as lists beside their names, or columns as lists or by key, as they were; other layouts as rows."""
    try:
        found = json.loads(content_of(path).decode("utf-8-sig"))
    except json.JSONDecodeError:  # lines in a file called .json
        _write_lines(path, table, target, columns, gone)
        return
    names, rows = table.column_names, found if isinstance(found, list) else []
    made: Any
    columns_in = [found.get(name) for name in names] if isinstance(found, dict) else [None]
    if all(isinstance(one, list | dict) and len(one) == table.num_rows for one in columns_in):
        keys = [list(found[name]) for name in names if isinstance(found[name], dict)]
        new = {name: dict(zip(keys[0], values, strict=True)) if keys else values for name, values in columns.items()}
        made = {name: cells for name, cells in found.items() if name not in gone} | new
    elif not all(isinstance(row, dict) for row in rows) or not rows:
        made = [_with(row, place, columns, gone) for place, row in enumerate(table.to_pylist())]
        if isinstance(found, dict) and found.get("columns") == names:  # pandas' split, a W&B table
            made = found | {"columns": list(made[0]), "data": [list(row.values()) for row in made]}
    else:
        made = [_with(row, place, columns, gone) for place, row in enumerate(rows)]
    with whole_file(target) as packed:
        packed.write(json.dumps(made, ensure_ascii=False, default=str).encode())


def _write_sheet(path: Path, table: Any, target: Path, columns: Columns, gone: set[str]) -> None:
    """Write the workbook with new cells in the sheet that was read; what else is in it stays, formulas as they are."""
    book = optional_package("openpyxl", extra="tables").load_workbook(path)
    sheet = table_sheet(book)
    filled = [row for row in sheet.iter_rows() if any(cell.value is not None for cell in row)]
    header, rows = sheet_table(filled, lambda cell: cell.value)
    if len(rows) != table.num_rows or header != table.column_names:
        raise InputError(f"{table.num_rows:,} rows in {shown(path)}", f"{len(rows):,}", "write .csv")
    title = filled[len(filled) - len(rows) - 1]
    places = {name: at + 1 for at, name in enumerate(header)}
    for name, values in columns.items():
        at = places.setdefault(name, max(places.values()) + 1)
        title_and = [] if name in header else [(title, name)]  # one of two lines stays as it is
        for row, value in [*title_and, *zip(rows, values, strict=True)]:
            cell = sheet.cell(row[0].row, at)
            cell.value = json.dumps(value) if isinstance(value, list | dict) else value
            if isinstance(value, str):
                cell.data_type = "s"  # a name that begins with = is no formula
    for name in sorted(gone & places.keys(), key=places.__getitem__, reverse=True):
        sheet.delete_cols(places[name])
    with atomic_write(target) as file:
        book.save(file)
