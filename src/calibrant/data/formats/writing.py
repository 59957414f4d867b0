"""Named arrays in any format, written whole or not at all, and tables converted batch by batch."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant._core.files import Array, pa, write_arrays
from calibrant._core.paths import WRITABLE, WRITABLE_TABLES, as_path, atomic_write, check_folder, shown
from calibrant.data.formats.columns import NAMES_OF_CLASSES, arrays_of_table, folded, is_text
from calibrant.data.formats.kinds import as_probs, two_columns
from calibrant.data.formats.layout import (
    CLASS_NAMES,
    COMPRESSED,
    KINDS,
    LABELS,
    SCORES,
    Layout,
    of_part,
    stem_and_name,
    suffix_of,
)
from calibrant.data.formats.reading import RECEIPT, SPLIT, Receipt, named_of, read_or_refused_table, understand
from calibrant.data.formats.tables import batches_of
from calibrant.errors import FileFormatError, InputError, Remedy, optional_package


def write_named(path: str | os.PathLike[str], arrays: Mapping[str, Array], *, receipt: Receipt | None = None) -> None:
    """Write arrays in the format of the path's suffix; a path without one is a folder of ``.npy`` files.

    Tables hold rows: splits become the column ``split``, scores one column a class in ``.csv`` and ``.tsv``, lists elsewhere. Names of
    classes stand in their columns, in ``.jsonl`` in its objects, and in ``.parquet``, ``.arrow`` and ``.feather`` beside the table.
    A receipt of how labels were matched is kept in ``.npz``, ``.safetensors``, ``.parquet``, ``.arrow`` and ``.feather``.

    Raises:
        FileFormatError: For another suffix.
        InputError: For arrays that the format cannot hold.
    """
    place = as_path(path)
    suffix = suffix_of(place)
    kept = {} if receipt is None or not receipt.matched else {RECEIPT: receipt.written}
    scores = [one for name, one in arrays.items() if stem_and_name(name)[1] in KINDS]
    if not suffix:
        _write_npy_folder(place, arrays)
    elif suffix in WRITABLE_TABLES:
        table = table_of(arrays, suffix, place)
        write_table(place, table.replace_schema_metadata({**(table.schema.metadata or {}), **kept}) if kept else table)
    elif suffix in (".pt", ".pth"):
        _write_torch(place, arrays)
    elif suffix == ".npy" and len(scores) == 1:
        with atomic_write(place) as file:  # labels are not in it, nor were they in the array that was read
            np.lib.format.write_array(file, np.ascontiguousarray(scores[0]), allow_pickle=False)
    elif suffix in (".npz", ".safetensors"):
        plain = {name: _plain(values, name, suffix) for name, values in arrays.items()}
        text = {name: np.array(value) for name, value in kept.items() if suffix == ".npz"}
        write_arrays(place, plain | text, metadata=None if text else kept)
    else:
        raise FileFormatError(
            f"an output named {', '.join('*' + one for one in WRITABLE)}, or a folder of .npy files",
            f"{shown(place.name)!r}",
            "name one of these",
        )


@contextmanager
def whole_file(path: Path, *, inputs: Sequence[Path] = ()) -> Iterator[Any]:
    """Give a file that is written whole or not at all, compressed as the end of its name says; ``inputs`` stay as they are."""
    codec = COMPRESSED.get(path.suffix.lower())
    with atomic_write(path, inputs=inputs) as file:
        if codec is None:
            yield file
            return
        twin = os.fdopen(os.dup(file.fileno()), "wb")  # Arrow closes what it writes to
        with twin, pa.CompressedOutputStream(pa.PythonFile(twin, "w"), codec) as packed:
            yield packed


def without_formula(text: str) -> str:
    """Return text that a spreadsheet shows and does not evaluate: an apostrophe stands before what begins as a formula does."""
    number = re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?", text, re.IGNORECASE)
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") and text[:1] and not number else text


def write_table(path: Path, table: Any) -> None:
    """Write an Arrow table in the format of the path's suffix, with its columns as they are."""
    _write_tables(path, iter([table]))


def convert_tables(source: Path, target: Path, layout: Layout, to: str | None = None) -> tuple[int, float | None]:
    """Convert one table file into another in pieces; return the number of rows, and how far sums were from 1 (``Named.off``).

    Raises:
        FileFormatError: If the source is broken, or the target's format is no table.
        InputError: If the rows cannot be read as ``layout`` says, or labels that are text name no classes.
    """
    rows, offs = 0, []

    def pieces() -> Iterator[Any]:
        nonlocal rows
        for table, off in _converted(source, layout, suffix_of(target), to):
            rows += table.num_rows
            offs.extend([] if off is None else [off])
            yield table
        if not rows:
            raise InputError("at least one row", f"none in {shown(source)}", "check how the rows were selected")

    _write_tables(target, pieces(), inputs=[source])
    return rows, max(offs, default=None)


def table_of(arrays: Mapping[str, Array], suffix: str, place: Path) -> Any:
    """Return arrays (of one or several splits) as an Arrow table in the layout of ``suffix``.

    Raises:
        InputError: If they are not columns of one length, or there are splits and the format is streamed.
    """
    stems = list(dict.fromkeys(stem_and_name(name)[0] for name in arrays if stem_and_name(name)[1] in SCORES))
    if len(stems) > 1 and suffix == ".parquet":
        names = ", ".join(stem.removesuffix("_") for stem in stems)
        raise InputError("one split for .parquet", f"{names}", "write one alone, or .arrow or .npz")
    tables = []
    for stem in stems or [""]:
        columns = _columns(of_part(arrays, stem, stems), suffix, place)
        if len(stems) > 1:
            columns[SPLIT] = pa.array([stem.removesuffix("_") or "all"] * len(next(iter(columns.values()))))
        tables.append(pa.table(columns))
    table = pa.concat_tables(tables, promote_options="default") if len(tables) > 1 else tables[0]
    classes: list[Any] = next((arrays[name].tolist() for name in CLASS_NAMES if name in arrays), [])
    # labels stay numbers beside lists, which are streamed; the text formats keep nothing beside a table
    known = {NAMES_OF_CLASSES: json.dumps(classes, ensure_ascii=False)} if classes else None
    return table.replace_schema_metadata(known)


def _columns(arrays: Mapping[str, Array], suffix: str, place: Path) -> dict[str, Any]:
    """Return the Arrow columns of one split: labels as ``label``, scores as lists, or spread over columns."""
    rows = next((len(values) for name, values in arrays.items() if name in SCORES), None)
    columns: dict[str, Any] = {}
    classes = _names_in_text(arrays) if suffix in (".csv", ".tsv", ".xlsx", ".jsonl") else []
    for name, values in arrays.items():
        if name in ("class_names", "classes") and values.ndim == 1 and is_text(values):
            continue  # names of classes are no column of rows
        if values.ndim == 0 or values.ndim > 2 or (rows is not None and len(values) != rows):
            raise InputError(
                f"columns of one length for {suffix[1:]}",
                f"{name} of shape {values.shape} for {shown(place)}",
                "write .npz or .safetensors",
            )
        if name in ("logits", "probs"):
            values = two_columns(values, name)
        if values.ndim == 1:
            if classes and name in (*LABELS, "pred", "decision"):
                values = np.array(classes, dtype=object)[values]
            cells = values.tolist() if values.dtype == object else values
            if suffix in (".csv", ".tsv") and is_text(values) and suffix_of(place) not in (".csv", ".tsv"):
                cells = [without_formula(one) for one in values.tolist()]
            columns[name] = pa.array(cells)
        elif suffix in (".csv", ".tsv", ".xlsx"):
            ends = classes if name in KINDS and classes else range(values.shape[1])
            columns |= {f"{name}_{end}": pa.array(np.ascontiguousarray(values[:, at])) for at, end in enumerate(ends)}
        elif classes and name in KINDS:
            columns[name] = pa.StructArray.from_arrays(
                [pa.array(one) for one in np.ascontiguousarray(values.T)], classes
            )
        else:
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(values)), values.shape[1])
    return columns


def _names_in_text(arrays: Mapping[str, Array]) -> list[str]:
    """Return the classes' names where columns and labels called so are read again as these; else nothing."""
    names: list[str] = next((arrays[name].tolist() for name in ("class_names", "classes") if name in arrays), [])
    scores = next((arrays[kind] for kind in KINDS if kind in arrays), np.empty(0))
    labels = [arrays[name] for name in arrays if name in LABELS]
    known = all(one.dtype.kind in "iu" and one.min(initial=0) >= 0 for one in labels)
    text = all(
        isinstance(one, str) and without_formula(one) == one.strip() != "" and not one[-1].isdigit() for one in names
    )
    wide = scores.ndim == 2 and scores.shape[1] == len(names)
    return names if wide and known and text and len({*map(folded, names)}) == len(names) else []


def of_kind(arrays: Mapping[str, Array], to: str | None, *, axis: int = 1) -> dict[str, Array]:
    """Return arrays whose scores are all of the kind ``to``: the softmax of logits over ``axis``, or log-probabilities; None leaves them.

    Raises:
        InputError: If there are only confidences of decisions.
    """
    if to is not None and not any(stem_and_name(name)[1] in KINDS for name in arrays):
        remedy = Remedy("leave to out", command="leave --to out")
        raise InputError(f"logits or probabilities to write as {to}", "confidences of decisions", remedy)
    found: dict[str, Array] = {}
    for name, values in arrays.items():
        stem, kind = stem_and_name(name)
        if to is None or kind == to or kind not in KINDS:
            found[name] = values
            continue
        wide = two_columns(values, kind).astype(np.float64)
        with np.errstate(divide="ignore"):  # p = 0 is the logit −inf
            found[stem + to] = np.log(wide) if to == "logits" else as_probs(kind, wide, axis=axis)
    return found


def _converted(source: Path, layout: Layout, suffix: str, to: str | None) -> Iterator[tuple[Any, float | None]]:
    """Yield the table of each batch of ``source``, in the layout of ``suffix``, and what ``normalize`` changed."""
    first, given = 0, layout.class_names
    for batch in batches_of(source):
        if not batch.num_rows:
            continue
        if not first:
            read_or_refused_table(pa.Table.from_batches([batch]), layout, source)
        # the layout that reads the first piece reads all: a later one, by its own values, might be understood otherwise
        table, layout, _ = understand(pa.Table.from_batches([batch]), layout, source)
        opened, classes = arrays_of_table(table, layout, source, first=first)
        first += batch.num_rows
        if SPLIT in opened and is_text(opened[SPLIT]):
            opened[SPLIT + "s"] = opened.pop(SPLIT)  # rows stay where they are: kept as a column of its own
        named = named_of(source, opened, classes, layout)
        if "pred" in named.arrays and is_text(opened.get("pred", np.empty(0))) and not layout.class_names:
            raise InputError(
                "class_names for classes that are text in a table that is converted in pieces",
                f"none for {shown(source)}",
                Remedy("pass class_names", command="pass --class-names"),
                argument="class_names",
            )
        if given and not named.matched and not is_text(opened.get("pred", np.empty(0))):
            expected = "class_names beside labels that are text"
            raise InputError(expected, f"numbers in {shown(source)}", "leave it out", argument="class_names")
        arrays = dict(named.arrays) | ({"class_names": np.array(named.class_names)} if named.class_names else {})
        if SPLIT + "s" in arrays:
            arrays[SPLIT] = arrays.pop(SPLIT + "s")
        yield table_of(of_kind(arrays, to), suffix, source), named.off


def _write_tables(path: Path, tables: Iterator[Any], *, inputs: Sequence[Path] = ()) -> None:
    """Write the rows of one table or more, of the schema of the first, in the format of the path's suffix."""
    suffix = suffix_of(path)
    with whole_file(path, inputs=inputs) as file:
        if suffix == ".jsonl":
            _write_objects(file, tables, path)
            return
        if suffix == ".xlsx":
            _write_sheet(file, tables)
            return
        first = next(tables)
        writer: Any
        if suffix == ".parquet":
            writer = pa.parquet.ParquetWriter(file, first.schema, write_page_checksum=True)
        elif suffix in (".csv", ".tsv"):
            options = pa.csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
            writer = pa.csv.CSVWriter(file, first.schema, write_options=options)
        else:
            writer = pa.ipc.new_file(file, first.schema)
        with writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table.cast(first.schema))


def _write_sheet(file: IO[bytes], tables: Iterator[Any]) -> None:
    openpyxl = optional_package("openpyxl", extra="tables")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for at, table in enumerate(tables):
        for row in [*([] if at else [table.column_names]), *zip(*table.to_pydict().values(), strict=True)]:
            plain = (json.dumps(value, default=str) if isinstance(value, list | dict) else value for value in row)
            cells = [openpyxl.cell.WriteOnlyCell(sheet, value) for value in plain]
            for cell in cells:
                cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type  # text is never a formula
            sheet.append(cells)
    book.save(file)


def _write_objects(file: IO[bytes], tables: Iterator[Any], place: Path) -> None:
    for row in itertools.chain.from_iterable(table.to_pylist() for table in tables):
        try:
            # Python would write NaN and Infinity, which are no JSON and which other readers refuse
            file.write(json.dumps(row, allow_nan=False, default=str).encode() + b"\n")
        except ValueError as error:
            expected = "finite numbers for .jsonl"
            raise InputError(expected, f"−inf or NaN for {shown(place)}", "write .parquet or .csv") from error


def _write_npy_folder(place: Path, arrays: Mapping[str, Array]) -> None:
    check_folder(place)
    if place.is_dir() and any(place.iterdir()):
        raise InputError("a new or empty folder for .npy files", f"{shown(place)}, which holds some", "name another")
    plain = {name: _plain(values, name, ".npy") for name, values in arrays.items()}
    place.mkdir(parents=True, exist_ok=True)
    for name, values in plain.items():
        with atomic_write(place / f"{name}.npy") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def _write_torch(place: Path, arrays: Mapping[str, Array]) -> None:
    import torch

    tensors: dict[str, Any] = {}
    for name, values in arrays.items():
        names = name in ("class_names", "classes") and is_text(values)
        tensors[name] = values.tolist() if names else torch.from_numpy(np.array(_plain(values, name, ".pt")))
    with atomic_write(place) as file:
        torch.save(tensors, file)


def _plain(values: Array, name: str, suffix: str) -> Array:
    """Return ``values`` as numbers, or as text where the format holds it."""
    if is_text(values) and suffix in (".npz", ".npy"):
        return values.astype(str)
    if values.dtype.kind not in "fiub":
        got = f"{name!r}, which holds {'text' if is_text(values) else values.dtype}"
        remedy = "write .parquet, .csv or .npz, or leave that column out"
        raise InputError(f"arrays of numbers for {suffix}", got, remedy)
    return values
