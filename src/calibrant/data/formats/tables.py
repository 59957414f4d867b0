"""Tables in files as Arrow: text, JSON of rows or columns, Parquet, Arrow, spreadsheets; whole or in batches."""

import contextlib
import itertools
import json
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from calibrant._core.files import broken, pa, reason_of, refuse_beyond_memory
from calibrant._core.paths import check_source, shown
from calibrant.data.formats.layout import (
    BASES,
    CLASS_NAMES,
    COMPRESSED,
    FOREIGN,
    READABLE,
    SPLITS,
    TABLES,
    TEXTS,
    suffix_of,
)
from calibrant.data.formats.text import OBJECTS, content_of, csv_reader, distinct, headings, titles_of
from calibrant.errors import CalibrantError, FileFormatError, Remedy, optional_package

_BLOCK = 64 << 20  # a line, which may hold a list of many classes, lies within one block
_PIECE = 8 << 20  # the block of a table that is read in pieces
_ARRAYS_OF = "f = {}; numpy.savez({!r}, **{{k: numpy.array({}) for k, v in f.items() if hasattr(v, 'shape')}})"
_ROWS_OF = (
    "x = {}; x = {{str(k): list(v) for k, v in (x.items() if isinstance(x, dict) else enumerate(x))}} if isinstance(x, dict | tuple) "
    "else x; pandas.DataFrame(x).to_json({!r}, orient='records', lines=True, double_precision=15)"
)
# Files that only another program opens, or that run code when they are opened: what makes one that is read of them.
_TRUSTED = "if you trust who wrote it, "
_MADE = {
    ".mat": (
        "",
        ".npz",
        "import scipy.io, numpy; ",
        _ARRAYS_OF,
        "scipy.io.loadmat({!r}, squeeze_me=True)",
        "v.tolist()",
    ),
    **dict.fromkeys((".h5", ".hdf5"), ("", ".npz", "import h5py, numpy; ", _ARRAYS_OF, "h5py.File({!r})", "v")),
    **dict.fromkeys(
        (".pkl", ".pickle"), (_TRUSTED, ".jsonl", "import pandas; ", _ROWS_OF, "pandas.read_pickle({!r})", "")
    ),
    ".joblib": (_TRUSTED, ".jsonl", "import joblib, pandas; ", _ROWS_OF, "joblib.load({!r})", ""),
}
_IN_R = {".rds": "readRDS({!r})", **dict.fromkeys((".rda", ".rdata"), "get(load({!r}))")}
_NO_DATA = ("state", "dataset_info")  # what the Hugging Face library writes beside its .arrow files


def table_files(path: Path) -> list[Path]:
    """Return the tables a folder holds, in the order of their names, or the one file; all of one format.

    Raises:
        FileFormatError: If a folder holds none, or tables of several formats.
    """
    if not path.is_dir():
        return [_check_table_suffix(path)]
    files = sorted(file for file in path.iterdir() if suffix_of(file) in TABLES and file.stem not in _NO_DATA)
    suffixes = sorted({suffix_of(file) for file in files})
    if len(suffixes) != 1:
        inside = sorted({file.parent.name for file in path.glob("*/*") if suffix_of(file) in TABLES})[:10]
        remedy = (
            f"there are some in its folders ({', '.join(inside)}): name one of these" if inside else "check the path"
        )
        raise FileFormatError(
            f"tables of one format in the folder {shown(path)}",
            f"{' and '.join(suffixes) or 'none'}",
            "name the file that is meant" if suffixes else remedy,
        )
    return [check_source(file) for file in files]


def has_suffix(path: Path, suffixes: Sequence[str]) -> bool:
    """Say whether a file's name ends in one of ``suffixes``; of text that is called .xls, as programs call a page of HTML, not."""
    suffix = suffix_of(path)
    return suffix in suffixes and not (suffix == ".xls" and renamed(path))


def _check_table_suffix(path: Path) -> Path:
    if not has_suffix(path, TABLES):
        raise other_suffix(path, TABLES)
    return check_source(path)


def other_suffix(path: Path, suffixes: Sequence[str]) -> FileFormatError:
    """Return the error of a file whose name ends in none of ``suffixes``, with the command that makes one that is read of it."""
    kind, old = path.suffix.lower(), str(path)
    before, new, command = "", str(renamed(path) or ""), ""
    if path.is_file() and kind in _MADE:
        before, end, modules, program, read, cells = _MADE[kind]
        new = str(path.with_suffix(end))
        command = f"python -c {shlex.quote(modules + program.format(read.format(old), new, cells))}"
    elif path.is_file() and kind in _IN_R:
        new = str(path.with_suffix(".csv"))
        program = f"write.csv({_IN_R[kind].format(old)}, {new!r}, row.names = FALSE)"
        command = f"Rscript -e {shlex.quote(program)}"
    elif new and kind == ".zip":
        command = f"python -m zipfile -e {shlex.quote(old)} {shlex.quote(str(path.parent))}"
    elif new:
        command = f"cp {shlex.quote(old)} {shlex.quote(new)}"
    remedy = Remedy.making(command, shown(path), new)
    named = f"a file named {', '.join('*' + one for one in suffixes if one not in FOREIGN)}"
    return FileFormatError(
        named, f"{shown(path.name)!r}", remedy.after(before) if command else "convert it to one of them"
    )


def renamed(path: Path) -> Path | None:
    """Return what a file of another name would be called if it were read: text by its first sign, an archive by its one table."""
    if not path.is_file():
        return None
    if path.suffix.lower() == ".zip":
        inside = _only_member(path)
        return path.parent / inside if inside else None
    with path.open("rb") as file:
        head = file.read(1 << 12)
    end = ".json" if head.lstrip()[:1] in (b"{", b"[") else ".txt"
    return Path(str(path) + end) if head and b"\0" not in head else None


def _only_member(path: Path) -> str:
    """Return the one file of an archive that is named as those that are read, or nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [
                one
                for one in archive.namelist()
                if suffix_of(Path(one)) in READABLE and not one.startswith((".", "/", "__"))
            ]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return ""
    return names[0] if len(names) == 1 and ".." not in names[0] and names[0].isprintable() else ""


def read_table(path: Path) -> Any:
    """Return the table of a file, or of a folder's files one after another, as ``pyarrow.Table``.

    Raises:
        FileFormatError: If a file is broken, larger than the memory, or the files' columns differ.
    """
    files = table_files(path)
    refuse_beyond_memory(sum(file.stat().st_size for file in files), path)
    tables = [pa.Table.from_batches(list(_guarded(file, whole=True))) for file in files]
    for file, table in zip(files, tables, strict=True):
        names = _names_of(table, file)
        if names != tables[0].column_names:
            raise FileFormatError(
                f"the same columns in every file of {shown(path)}",
                f"{names[:8]} in {shown(file.name)}, others in {shown(files[0].name)}",
                "read them one by one",
            )
    if len(set(tables[0].column_names)) < tables[0].num_columns:  # Arrow drops what a file says of itself on the way
        tables = [table.rename_columns(distinct(table.column_names)) for table in tables]
    whole = pa.concat_tables(tables, promote_options="permissive")
    if any(column.num_chunks > 1 for column in whole.columns):  # to combine one is to copy it
        whole = whole.combine_chunks()
    if whole.num_rows == 0:
        raise FileFormatError("at least one row", f"none in {shown(path)}", "save one row a prediction")
    _refuse_glued(whole, path)
    return whole


def _refuse_glued(table: Any, path: Path) -> None:
    """Refuse text files one after another in one file, whose title among the rows makes every column text."""
    if suffix_of(path) not in (".csv", ".tsv") or not all(map(pa.types.is_string, table.schema.types)):
        return
    row = pa.compute.index(table.column(0), table.column_names[0]).as_py()
    if row < 0 or list(table.slice(row, 1).to_pylist()[0].values()) != table.column_names:
        return
    new = str(path.with_name(path.name.partition(".")[0] + "-whole" + suffix_of(path)))
    cat = {".gz": "gzip -dc", ".bz2": "bzip2 -dc", ".zst": "zstd -dc"}.get(path.suffix.lower(), "cat")
    awk = "awk 'NR == 1 {title = $0} NR == 1 || $0 != title'"
    command = f"{cat} {shlex.quote(str(path))} | {awk} > {shlex.quote(new)}"
    remedy = Remedy.making(command, shown(path), new)
    raise FileFormatError("one line of names", f"it again at row {row:,} of {shown(path)}", remedy)


def batches_of(path: Path) -> Iterator[Any]:
    """Yield the rows of one file as Arrow batches, in bounded memory where its format allows: not ``.json`` or ``.xlsx``."""
    return _guarded(_check_table_suffix(path), whole=False)


def _names_of(table: Any, path: Path) -> list[str]:
    try:
        table.validate(full=True)  # texts, whose offsets the readers of .arrow take as they are
        return list(table.column_names)  # names are decoded when they are asked for
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise _broken(path, error) from error


def _guarded(path: Path, *, whole: bool) -> Iterator[Any]:
    held = 0
    try:
        for batch in _batches(path, whole=whole):
            # what a small compressed file unpacks to is known on the way; arrays of as many bytes are made of it
            # older versions of Arrow know no nbytes of views of text, which stand in files of batches with buffers of their own
            of_batch = suffix_of(path) in (".arrow", ".feather")
            # a column of nulls takes nothing before it is an array
            empty = 8 * batch.num_rows * sum(map(pa.types.is_null, batch.schema.types))
            held += 2 * (empty + (batch.get_total_buffer_size() if of_batch else batch.nbytes)) if whole else 0
            refuse_beyond_memory(held, path)
            yield batch
    except CalibrantError:
        raise
    except MemoryError as error:
        raise FileFormatError("a table that fits in memory", f"more in {shown(path)}", "split it") from error
    except Exception as error:  # five readers: whatever they raise means that the file is broken
        raise _broken(path, error) from error


def _batches(path: Path, *, whole: bool) -> Iterator[Any]:
    """Yield the batches of a file; for a table that is read whole in fewer and larger ones."""
    suffix = suffix_of(path)
    if suffix in TEXTS:
        with csv_reader(path, block=_BLOCK if whole else _PIECE) as reader:
            yield _empty(reader.schema)  # the columns of a table without rows
            yield from reader
    elif suffix == ".parquet":
        # a flipped bit in a page would else be a wrong score, not an error
        with pa.parquet.ParquetFile(path, page_checksum_verification=True, buffer_size=1 << 20) as file:
            if not whole:
                yield from file.iter_batches(batch_size=1 << 14, use_threads=False)
                return
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
            for at in range(
                len(groups)
            ):  # a column whose statistics are broken ends Python when it is asked for; a read refuses it
                next(file.iter_batches(batch_size=1, row_groups=[at], use_threads=False), None)
            # as arrays, whatever a page of one value repeated takes there
            columns = (group.column(at) for group in groups for at in range(group.num_columns))
            refuse_beyond_memory(sum(max(8 * one.num_values, one.total_uncompressed_size) for one in columns), path)
            table = file.read()
            yield _empty(table.schema)
            yield from table.to_batches()
    elif suffix in (".arrow", ".feather"):
        sizes = list(unpacked_sizes(path))
        refuse_beyond_memory(2 * sum(sizes) if whole else max(sizes, default=0), path)
        with pa.OSFile(str(path)) if whole else pa.memory_map(str(path)) as source:
            yield from _ipc_batches(source)
    elif suffix == ".xlsx":
        yield from _sheet(path).to_batches()
    elif suffix in FOREIGN:
        yield from _foreign(path).to_batches()
    elif suffix == ".jsonl" and not whole and path.suffix.lower() not in COMPRESSED:
        yield from pa.dataset.dataset(path, format="json").to_batches(use_threads=False)
    else:
        yield from _read_json(path).to_batches()


def _empty(schema: Any) -> Any:
    """Return a batch without rows, so that a table without rows has its columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in schema], schema=schema)


def _ipc_batches(source: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, or of a stream as the Hugging Face library keeps it."""
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        yield from pa.ipc.open_stream(source)
        return
    yield _empty(reader.schema)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _read_json(path: Path) -> Any:
    """Return a JSON file's table, one object a line or one value of rows or of columns."""
    if suffix_of(path) == ".jsonl":
        content = content_of(path, growth=5)  # its values as they are parsed, as a table, and as arrays
        # Arrow refuses a row that reaches over two blocks, so that the file is one; it counts a block in int32
        options = pa.json.ReadOptions(block_size=max(1 << 20, min(len(content), 1 << 30)))
        try:
            return pa.json.read_json(pa.BufferReader(content), options)
        except pa.ArrowInvalid:
            refuse_beyond_memory(len(content) * OBJECTS, path)
            return table_of_rows(
                json_lines(content.decode())
            )  # cells of several types, or a broken line, which is said so
    text = content_of(path, growth=OBJECTS).decode("utf-8-sig")
    try:
        return table_of_json(json.loads(text), path)
    except json.JSONDecodeError:
        if not text.lstrip().startswith("{"):
            raise
        return table_of_rows(json_lines(text))  # whatever its name


def json_lines(text: str) -> list[Any]:
    """Return the values of text with one on each line."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def table_of_json(found: Any, path: Path) -> Any:
    """Return the table of rows as objects or lists of {label, score}, of columns, or of columns' names beside rows.

    Raises:
        FileFormatError: If it is none of them.
    """
    if isinstance(found, dict) and isinstance(found.get("data"), list):  # pandas' split and table, a W&B table
        rows, names = found["data"], found.get("columns")
        if isinstance(names, list) and all(isinstance(row, list) and len(row) == len(names) for row in rows):
            return table_of_rows([dict(zip(map(str, names), row, strict=True)) for row in rows])
        found = rows
    if isinstance(found, dict) and not next(_lists_in(found, 3), None):
        parts = {"": found} if _is_table(found) else dict(_tables_in(found, 3))
        if len(parts) > 1 and {one.casefold() for one in parts} <= SPLITS:
            each = {name: _columns_of_rows(one) for name, one in parts.items()}
            return table_of_rows([row | {"split": name} for name, one in each.items() for row in _rows_of(one)])
        found = _columns_of_rows(*parts.values()) if len(parts) == 1 else found
    if isinstance(found, dict) and {"eval", "samples"} <= found.keys():  # Inspect's log, which is refused by its names
        return table_of_columns({name: [_text_of(found[name])] for name in ("eval", "samples")})
    if isinstance(found, dict) and found and all(isinstance(column, dict) for column in found.values()):
        keys = list(next(iter(found.values())))
        # rows by their ids: {"img1": {"probs": […], "label": 1}, …}, or {"img1": {"cat": 0.1, …}, …}
        numbered = keys == [str(at) for at in range(len(keys))]
        if _several_kinds(next(iter(found.values())).values()) or (len(found) > len(keys) and not numbered):
            return table_of_rows([{"id": key, **row} for key, row in found.items()])
        # pandas' columns: {"p_cat": {"0": 0.9, …}, …}
        found = {name: [column.get(key) for key in keys] for name, column in found.items()}
    if isinstance(found, dict) and len(lists := list(_lists_in(found, 3))) == 1 and not _of_objects(found):
        found = found if any(one is lists[0] for one in found.values()) and _of_objects(lists[0]) else lists[0]
    if _of_objects(found):
        return table_of_rows(found)
    if (
        isinstance(found, list)
        and len(found) > 1
        and all(isinstance(row, list) and len(row) == len(found[0]) > 1 for row in found)
        and _is_names(found[0])
        and len({*found[0]}) == len(found[0])
    ):
        return table_of_rows([dict(zip(found[0], row, strict=True)) for row in found[1:]])  # the names in the first row
    if isinstance(found, list) and found and all(isinstance(row, list) for row in found):
        return table_of_columns({"scores": found})
    if isinstance(found, dict) and any(
        isinstance(one, list) for one in found.values()
    ):  # "names": {"0": "cat", "1": "dog"}
        longest = max(len(one) for one in found.values() if isinstance(one, list))
        found = {name: (isinstance(one, dict) and _in_order(one, longest)) or one for name, one in found.items()}
        of_rows = [one for one in found.values() if isinstance(one, list) and len(one) == longest]
        if len(of_rows) > 1 and not any(map(_of_objects, found.values())):  # beside what is said of them all
            found = {k: v for k, v in found.items() if isinstance(v, list) and (len(v) == longest or _is_names(v))}
    if isinstance(found, dict) and found and all(isinstance(column, list) for column in found.values()):
        return table_of_columns(_named_classes(found))
    rows = [one for one in found.values() if _of_objects(one)] if isinstance(found, dict) else []
    if len(rows) == 1:  # beside what is said of them all
        return table_of_columns(_named_classes(_columns_of(rows[0]) | {k: v for k, v in found.items() if _is_names(v)}))
    raise FileFormatError(
        f"rows as a JSON list of objects in {shown(path)}", f"{type(found).__name__}", "write one object a row"
    )


def _is_table(found: dict[str, Any]) -> bool:
    """Say whether an object holds two columns or more of one length."""
    lengths = [len(one) for one in _columns_of_rows(found).values() if isinstance(one, list)]
    longest = max(lengths, default=0)
    return longest > 1 and lengths.count(longest) > 1


def _tables_in(found: dict[str, Any], depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of columns in an object, with their names."""
    for name, one in found.items():
        if isinstance(one, dict) and _is_table(one):
            yield name, one
        elif isinstance(one, dict) and depth:
            yield from _tables_in(one, depth - 1)


def _columns_of_rows(found: dict[str, Any]) -> dict[str, Any]:
    """Return columns with objects of a list of decimals for each class as lists of an object for each row."""

    def is_apart(one: Any) -> bool:
        lists = list(one.values()) if isinstance(one, dict) else []
        alike = len(lists) > 1 and all(
            isinstance(cells, list) and cells and isinstance(cells[0], float) for cells in lists
        )
        return alike and len({*map(len, lists)}) == 1

    return {name: _rows_of(one) if is_apart(one) else one for name, one in found.items()}


def _rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of columns; what is shorter than these is said of them all, and left out."""
    rows = max(len(one) for one in columns.values() if isinstance(one, list))
    whole = {name: one for name, one in columns.items() if isinstance(one, list) and len(one) == rows}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


def _of_objects(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(row, dict) for row in found)


def _lists_in(found: dict[str, Any], depth: int) -> Iterator[list[Any]]:
    """Yield the lists of objects, and of lists, that stand in an object or in one within it: what a service answers with."""
    for one in found.values():
        if _of_objects(one) or (
            isinstance(one, list) and len(one) > 1 and all(isinstance(row, list) for row in one) and _is_names(one[0])
        ):
            yield one
        elif isinstance(one, dict) and depth:
            yield from _lists_in(one, depth - 1)


def _is_names(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(one, str) for one in found)


def _several_kinds(cells: Iterable[Any]) -> bool:
    """Say whether cells are of several kinds, as those of a row are and those of a column are not."""
    return len({float if isinstance(one, int) else type(one) for one in cells if one is not None}) > 1


def _named_classes(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns with the scores of each row as records, where one of them is not of rows and names the classes."""
    rows = max(map(len, columns.values()))
    held = {
        name: _in_order(columns[name], rows)
        for name in columns
        if name.rstrip("_") in (*CLASS_NAMES, "names", "id2label")
    }
    named = [name for name, names in held.items() if 0 < len(names) < rows]
    if len(named) != 1:
        return columns
    names = held[named[0]]
    others = {name: cells for name, cells in columns.items() if name != named[0]}
    told = any(isinstance(cells[0], str) and {*map(str, cells)} <= {*names} for cells in others.values() if cells)
    counted = any(all(type(one) is int and 0 <= one < len(names) for one in cells) for cells in others.values())
    if counted and not told:  # labels that count the names, as the scores of a list do
        return others

    def record(cell: Any) -> Any:
        of_classes = isinstance(cell, list) and len(cell) == len(names) and len(set(names)) == len(names)
        return dict(zip(names, cell, strict=True)) if of_classes else cell

    return {name: list(map(record, cells)) for name, cells in columns.items() if name != named[0]}


def _in_order(found: Any, rows: int) -> list[str]:
    """Return names of classes as a list: of an object by number, {"0": "cat", "1": "dog"}, and of one that stands in every row."""
    if isinstance(found, list) and len(found) == rows and isinstance(found[0], dict | list):
        found = found[0] if all(one == found[0] for one in found) else []
    if isinstance(found, dict):
        numbers = [str(at) for at in range(len(found))]
        found = [found[at] for at in numbers] if found.keys() == {*numbers} else []
    return (
        [str(one) for one in found]
        if len(found) < rows and not any(isinstance(one, dict | list) for one in found)
        else []
    )


def table_of_rows(rows: list[dict[str, Any]]) -> Any:
    """Return an Arrow table of rows by name; what a row leaves out is null."""
    return table_of_columns(_named_classes(_columns_of(rows)) if rows and rows[0] else {})


def _columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def table_of_columns(columns: dict[str, list[Any]]) -> Any:
    """Return an Arrow table of lists of cells; a column with cells of several types becomes text."""
    made = {}
    for name, cells in columns.items():
        try:
            made[name] = _arrow_array(cells)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            made[name] = pa.array([one if one is None or isinstance(one, str) else _text_of(one) for one in cells])
    return pa.table(made)


def _arrow_array(cells: list[Any]) -> Any:
    """Return cells as an Arrow array; the keys of objects keep their order, which older versions of Arrow sort."""
    objects = all(isinstance(cell, dict | None) for cell in cells)
    names = list(dict.fromkeys(key for cell in cells for key in cell or ())) if objects else []
    if not names:
        return pa.array(cells)
    parts = [_arrow_array([None if cell is None else cell.get(name) for cell in cells]) for name in names]
    return pa.StructArray.from_arrays(parts, names, mask=pa.array([cell is None for cell in cells]))


def _text_of(cell: Any) -> str:
    return json.dumps(cell, default=str)


def _sheet(path: Path) -> Any:
    """Return the first sheet of a workbook with a table: the values that its cells were saved with; formulas are not evaluated."""
    openpyxl = optional_package("openpyxl", extra="tables")
    # sizes as the archive states them, before anything is unpacked: a few kB may claim gigabytes
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(one.file_size for one in archive.infolist())
    refuse_beyond_memory(unpacked * OBJECTS, path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        rows = [list(row) for row in table_sheet(book).iter_rows(values_only=True)]
    finally:
        book.close()
    return _named_rows(rows, path)


def _named_rows(rows: list[list[Any]], path: Path) -> Any:
    """Return the table of the cells of a sheet."""
    names, rows = sheet_table([row for row in rows if any(cell is not None for cell in row)])
    if not rows:
        raise FileFormatError("at least one row", f"none in {shown(path)}", "save one row a prediction")
    return table_of_columns({name: [row[at] for row in rows] for at, name in enumerate(names)})


def _foreign(path: Path) -> Any:
    """Return the table of another program's file, by the package that reads it."""
    suffix = suffix_of(path)
    refuse_beyond_memory(path.stat().st_size * OBJECTS, path)
    if suffix == ".orc":
        return pa.orc.read_table(path)
    if suffix in BASES:
        return _of_base(path)
    pandas = optional_package("pandas", extra="dataframes")
    try:
        if suffix in (".ods", ".xls"):
            cells = pandas.read_excel(path, header=None, dtype=object)
            return _named_rows(cells.where(cells.notna(), None).values.tolist(), path)
        if suffix == ".dta":
            frame = pandas.read_stata(path)
        elif suffix == ".sav":
            frame = pandas.read_spss(path)
        else:
            frame = pandas.read_sas(path, encoding="infer" if suffix == ".sas7bdat" else "latin-1")
    except ImportError as error:  # of the package that pandas takes for this format
        raise FileFormatError(f"a package that reads {suffix}", "none", reason_of(error)) from error
    return pa.Table.from_pandas(frame, preserve_index=False)


def _of_base(path: Path) -> Any:
    """Return the one table of a database of SQLite.

    Raises:
        FileFormatError: If it holds none, or several.
    """
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
        names = [
            one
            for (one,) in base.execute("select name from sqlite_master where type = 'table'")
            if one[:7] != "sqlite_"
        ]
        if len(names) != 1:
            remedy = "export the one that is meant: sqlite3 -header -csv BASE 'select * from TABLE' > table.csv"
            raise FileFormatError(f"one table in {shown(path)}", ", ".join(names[:8]) or "none", remedy)
        quoted = names[0].replace('"', '""')
        rows = base.execute(f'select * from "{quoted}"')
        columns = distinct([one for one, *_ in rows.description])
        return table_of_columns(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=False)))


def sheet_table(rows: list[Any], value: Callable[[Any], Any] = lambda cell: cell) -> tuple[list[str], list[Any]]:
    """Return the names of a sheet's columns, and its rows below them.

    Args:
        rows: Those with something in them; each a list of cells.
        value: Of a cell.
    """
    rows = rows[headings([list(map(value, row)) for row in rows[:200]]) :]
    if not rows:
        return [], []
    names, lines = titles_of([["" if value(cell) is None else str(value(cell)) for cell in row] for row in rows[:5]])
    return names, rows[max(lines, 1) :]


def table_sheet(book: Any) -> Any:
    """Return the first sheet that holds a title of names and a row under it, with numbers in two of its cells if one has them."""

    def numbers(sheet: Any) -> int:
        filled = (row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row))
        rows = list(itertools.islice(filled, 200))
        title, first = (*rows[headings(rows) :], ())[0], next(iter(sheet_table(rows)[1]), ())
        titled = sum(isinstance(one, str) for one in title) > 1
        return -1 if not titled or not first else min(sum(isinstance(cell, float | int) for cell in first), 2)

    return max(book.worksheets, key=numbers)  # the first of the best


def _broken(path: Path, error: Exception) -> CalibrantError:
    if "straddling object" in str(error) and (path.stat().st_size > _BLOCK or path.suffix.lower() in COMPRESSED):
        remedy = "check that its rows end in line breaks and its quotes are closed"
        return FileFormatError(f"rows of at most {_BLOCK >> 20} MiB", f"a longer one in {shown(path)}", remedy)
    if isinstance(error, UnicodeEncodeError):  # Arrow takes names of files in UTF-8 alone
        return FileFormatError("a file name in UTF-8", f"{shown(path)}", "rename the file")
    return broken(path, error)


# What the compressed batches of an Arrow file unpack to, from their headers alone: Arrow itself allocates it on trust.


def _field(head: bytes, table: int, number: int) -> int:
    """Return where a field of a table of FlatBuffers lies, or 0 if the table has no such field."""
    fields = table - int.from_bytes(head[table : table + 4], "little", signed=True)
    at, size = fields + 4 + 2 * number, int.from_bytes(head[fields : fields + 2], "little")
    place = int.from_bytes(head[at : at + 2], "little") if at < fields + size else 0
    return table + place if place else 0


def _target(head: bytes, at: int) -> int:
    return at + int.from_bytes(head[at : at + 4], "little")


def _vector(head: bytes, at: int, form: str) -> list[tuple[int, ...]]:
    """Return the structs of a vector of FlatBuffers."""
    start, size = _target(head, at), struct.calcsize(form)
    count = int.from_bytes(head[start : start + 4], "little")
    return list(struct.iter_unpack(form, head[start + 4 : start + 4 + size * count]))


def _messages(source: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, dictionaries among them, as its footer lists them (File.fbs); or of a stream."""
    size = source.size()
    if source.read(6) == b"ARROW1":
        source.seek(size - 10)
        length = int.from_bytes(source.read(4), "little")
        source.seek(size - 10 - length)
        footer = source.read(length)
        listed = [_field(footer, _target(footer, 0), number) for number in (2, 3)]
        for offset, *_ in (block for at in listed if at for block in _vector(footer, at, "<qi4xq")):
            source.seek(offset)
            yield pa.ipc.read_message(source)
        return
    source.seek(0)
    yield from (one for one in pa.ipc.MessageReader.open_stream(source) if one.type in ("record batch", "dictionary"))


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes that each batch of an Arrow file or stream is unpacked to, 0 where it is not compressed.

    Each buffer of a compressed batch begins with its own size, which Arrow allocates on trust; where the buffers lie says the
    batch's header (Message.fbs).
    """
    with pa.memory_map(str(path)) as source:
        for message in _messages(source):
            head, body = message.metadata.to_pybytes(), memoryview(message.body)
            batch = _target(head, _field(head, _target(head, 0), 2))
            batch = _target(head, _field(head, batch, 1)) if message.type == "dictionary" else batch
            buffers = _vector(head, _field(head, batch, 2), "<qq") if _field(head, batch, 3) else []
            sizes = (int.from_bytes(body[at : at + 8], "little", signed=True) for at, length in buffers if length)
            yield sum(max(size, 0) for size in sizes)
