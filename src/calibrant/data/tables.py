"""Gives access to files and data frames as named columns; only requested columns are parsed.

``open_table`` opens any format. ``Table.write`` writes a copy of the file with columns added or replaced. Text files
are copied record by record, so that other cells keep their text.
"""

import csv
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrant import _files as files
from calibrant._core.check import as_array
from calibrant._files import Array, pa, shown
from calibrant.errors import FileFormatError, InputError

Kind = Literal["number", "text", "any"]  # the requested type of a column; "any" means numbers if possible, else text
CLASS_NAMES = "class_names"  # name of the array, or of the entry in a file's metadata
_NOT_UTF8 = "{} is not text in UTF-8; save it as UTF-8"
_LONGEST = 64 << 20  # largest length of a line in bytes; PyArrow parses in blocks that must be longer than any line
_NAMES_SHOWN = 12
_MAX_INDEX = 1 << 20  # smaller integers are counted instead of sorted to find distinct values
csv.field_size_limit(_LONGEST)  # the default limit of 2¹⁷ characters is too small for a row of 10,000 classes


def abridged(names: Sequence[str]) -> str:
    """Return at most twelve names as a list for a sentence."""
    return ", ".join(names[:_NAMES_SHOWN]) + (f", … ({len(names):,} in all)" if len(names) > _NAMES_SHOWN else "")


class Texts(NamedTuple):
    """A column of text, stored as its distinct values and the index of each row's value."""

    values: Sequence[str]
    codes: Array

    def array(self) -> Array:
        """Return the text of each row."""
        found: Array = np.array([*self.values, ""], dtype=str)[self.codes]
        return found


class Table(ABC):
    """Columns by name.

    Args:
        name: Name of the table in messages.
        names: Names of the columns.
        class_names: Names of the classes in the file's metadata, if there are any.
    """

    def __init__(self, name: str, names: Iterable[str], class_names: Sequence[str] | None = None) -> None:
        self.name, self.names, self.class_names = name, list(names), class_names
        self.places = {one: place for place, one in enumerate(self.names)}

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns by name.

        Numbers are arrays (N,), or (N, K) for a column of lists, with NaN for empty cells. Text is ``Texts``, or an
        array if "any" type was requested.

        Raises:
            FileFormatError: If the file is broken.
            InputError: If a column does not exist, exists twice, or has another type.
        """
        for name in wanted:
            twice = len(self.places) < len(self.names) and self.names.count(name) > 1
            if twice or name not in self.places:
                has = "has two columns" if twice else "has no column"
                raise InputError(f"{self.name} {has} {name!r}. Columns: {abridged(self.names)}")
        return self._load(wanted)

    def place(self, row: int) -> str:
        """Return the place of a row for a message."""
        return f"row {row}"

    @abstractmethod
    def _load(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return existing columns, in the form that ``read`` describes."""

    @abstractmethod
    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write a copy of the table in which ``columns`` (N,) or (N, K) replace existing ones or are appended."""


class Arrow(Table):
    """A Parquet or Feather file, or a data frame.

    Args:
        name: Its name in messages.
        names: The column names.
        columns: A function that returns an Arrow table with the named columns, or with all columns for None.
        metadata: The metadata of the table.
    """

    def __init__(self, name: str, names: Sequence[str], columns: Callable[..., Any], metadata: Any = None) -> None:
        super().__init__(name, names, _header_names((metadata or {}).get(CLASS_NAMES.encode())))
        self._columns = columns

    def _load(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        try:
            table = self._columns(list(wanted))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(
                f"{self.name}: a column mixes values of different types: {files.reason_of(error)}"
            ) from error
        return _as_numpy(table, wanted, self.name)

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write a copy with columns added or replaced, as ``Table.write``."""
        write_arrow(target, with_columns(self._columns(None), columns))


class Csv(Table):
    """A text table with a header. The delimiter is the one that divides the header into the most cells."""

    def __init__(self, path: Path) -> None:
        self._content, self._sign = path.read_bytes(), "."
        self._start = 3 if self._content.startswith(b"\xef\xbb\xbf") else 0
        line = re.compile(rb"[^\r\n]+").search(self._content, self._start, self._start + _LONGEST)
        if line is None:
            raise FileFormatError(f"{shown(path.name)} is empty")
        if line.end() == self._start + _LONGEST:
            raise FileFormatError(f"{shown(path.name)} has a first line of more than {_LONGEST >> 20} MiB")
        try:
            first = line[0].decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(_NOT_UTF8.format(shown(path.name))) from error
        if re.compile(rb"\S").search(self._content, line.end()) is None:
            raise FileFormatError(f"{shown(path.name)} has a header but no rows")
        self._delimiter = max(",;\t|", key=lambda sign: len(next(csv.reader([first], delimiter=sign))))
        self._start = line.start()
        header = next(self._records())
        self._body = self._start + len(header)
        super().__init__(shown(path.name), (name.strip() for name in self._cut(header)))

    def _load(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns; numbers may have a decimal comma if all of them do."""
        types = {"number": pa.float64(), "text": pa.dictionary(pa.int32(), pa.string())}
        places = {name: str(self.places[name]) for name in wanted}  # names may occur twice, but places do not
        failures = list[tuple[int, Exception]]()
        for sign in ".," if self._delimiter != "," else ".":  # if commas are delimiters, numbers have a decimal point
            self._sign = sign
            try:
                found = pa.csv.read_csv(
                    pa.BufferReader(pa.py_buffer(memoryview(self._content)[self._body :])),
                    # serially, because parallel errors do not contain the row
                    pa.csv.ReadOptions(
                        use_threads=False, block_size=_LONGEST, column_names=[str(k) for k in range(len(self.names))]
                    ),
                    pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=b'"' in self._content),
                    pa.csv.ConvertOptions(
                        include_columns=list(places.values()),
                        column_types={places[name]: types[kind] for name, kind in wanted.items() if kind in types},
                        decimal_point=sign,
                    ),
                )
                return _as_numpy(found.rename_columns(list(wanted)), wanted, self.name)
            except pa.ArrowInvalid as error:
                failures.append(self._explained(error))
        raise max(failures, key=lambda failure: failure[0])[1]  # with the wrong sign, reading fails in an earlier row

    def _explained(self, error: Exception) -> tuple[int, Exception]:
        """Return the row of a PyArrow reading error, and an error that names the line and the column."""
        where, row, what = self.name, 0, files.reason_of(error)
        if "invalid UTF8" in what:
            return 0, FileFormatError(_NOT_UTF8.format(self.name))
        if found := re.search(r"(?:column #(\d+): )?Row #(\d+): (.*)", what):
            row, what = int(found[2]), found[3]
            where += f", {self.place(row - 1)}" + (f", column {self.names[int(found[1])]!r}" if found[1] else "")
        return row, FileFormatError(f"{where} cannot be read: {what}")

    def place(self, row: int) -> str:
        """Return the line of a row."""
        line = 1 + self._content.count(b"\n", 0, self._start)
        for text in self._records():
            row -= bool(text.strip(b"\r\n"))
            if row < -1:  # the header was the first
                break
            line += text.count(b"\n")
        return f"line {line}"

    def _records(self) -> Iterator[bytes]:
        """Yield the bytes of the header, then of each record and empty line; a line break in quotes ends no record."""
        taken, quotes, lines = list[bytes](), 0, io.BytesIO(self._content)
        lines.seek(self._start)
        for line in lines:
            taken.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0:
                yield b"".join(taken)
                taken.clear()
        if taken:
            yield b"".join(taken)

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each record unchanged except for added or replaced cells."""
        cells = {name: self._cells(values) for name, values in columns.items()}
        places = [self.places[name] for name in cells if name in self.places]
        changes = zip(*(column.to_pylist() for name, column in cells.items() if name in self.places), strict=True)
        added = [name for name in cells if name not in self.places]
        ends = [b""] * len(next(iter(cells.values())))
        if added:
            ends_of_rows = pa.compute.binary_join_element_wise("", *(cells[name] for name in added), self._delimiter)
            ends = ends_of_rows.cast(pa.binary()).to_pylist()
        ends.insert(0, "".join(self._delimiter + self._quoted(name) for name in added).encode())
        records = 0
        with files.atomic_write(target) as file:
            file.write(self._content[: self._start])
            for text in self._records():
                bare = text.rstrip(b"\r\n")
                line_end = text[len(bare) :]
                if bare and records < len(ends):
                    if places and records:
                        kept = [self._quoted(cell) for cell in self._cut(bare)]
                        for place, cell in zip(places, next(changes), strict=True):
                            kept[place] = cell
                        bare = self._delimiter.join(kept).encode(errors="surrogateescape")
                    bare += ends[records]
                records += bool(bare)
                file.write(bare + line_end)
            if records != len(ends):
                raise FileFormatError(
                    f"{self.name} has quotes within cells, so rows cannot be separated; double these quotes"
                )

    def _cut(self, record: bytes) -> list[str]:
        """Return the cells of a record."""
        text = io.StringIO(record.decode(errors="surrogateescape"), newline="")
        return next(csv.reader(text, delimiter=self._delimiter))

    def _cells(self, values: Array) -> Any:
        """Return the text of cells as an Arrow array."""
        if values.ndim != 1:
            raise InputError("a text table can hold only one number per cell; write .parquet or .jsonl")
        if values.dtype.kind != "f":
            return pa.array([self._quoted(str(one)) for one in values.tolist()], pa.string())
        text = pa.array(values.astype(np.float64)).cast(pa.string())
        return text if self._sign == "." else pa.compute.replace_substring(text, ".", self._sign)

    def _quoted(self, cell: str) -> str:
        special = any(sign in cell for sign in (self._delimiter, '"', "\n", "\r"))
        return '"' + cell.replace('"', '""') + '"' if special else cell


class JsonLines(Arrow):
    """A file with one JSON object per line.

    PyArrow's own reader is not used, because it turns dates into times and ends the process if objects are deeply
    nested.
    """

    def __init__(self, path: Path) -> None:
        self._lines = [line for line in files.read_text(path).split("\n") if line.strip()]
        self._objects = list[dict[str, Any]]()
        for row, line in enumerate(self._lines):
            wrong = f"{shown(path.name)}: row {row} is not a JSON object"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileFormatError(f"{wrong}: {files.reason_of(error)}") from error
            if not isinstance(value, dict):
                raise FileFormatError(f"{wrong}; write one object per line, without an array around them")
            self._objects.append(value)
        if not self._objects:
            raise FileFormatError(f"{shown(path.name)} is empty")

        def columns(names: Sequence[str]) -> Any:
            return pa.table({name: pa.array([one.get(name) for one in self._objects]) for name in names})

        super().__init__(shown(path.name), list(self._objects[0]), columns)

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each object unchanged except for added or replaced entries."""
        replaced = columns.keys() & self.places.keys()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        with files.atomic_write(target) as file:
            for line, old, values in zip(self._lines, self._objects, rows, strict=True):
                new = dict(zip(columns, values, strict=True))
                text = _json(old | new, self.name) if replaced else f"{line.rstrip()[:-1]}, {_json(new, self.name)[1:]}"
                file.write(text.encode() + b"\n")


class Arrays(Table):
    """Arrays by name; if a file holds a single array without a name, it is called "".

    Args:
        name: The file's name in messages.
        arrays: The arrays.
        class_names: The class names, or None.
    """

    def __init__(self, name: str, arrays: Mapping[str, Array], class_names: Sequence[str] | None = None) -> None:
        self._arrays = dict(arrays)
        named = self._arrays.pop(CLASS_NAMES, None)
        super().__init__(name, self._arrays, class_names if named is None else [str(one) for one in named.tolist()])

    def under(self, stem: str) -> "Arrays":
        """Return the arrays whose names begin with ``stem``, by the rest of their names."""
        found = {name.removeprefix(stem): one for name, one in self._arrays.items() if name.startswith(stem)}
        return Arrays(self.name, found, self.class_names)

    def _load(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        found = dict[str, Any]()
        for name, kind in wanted.items():
            values = self._arrays[name]
            if not values.ndim or values.dtype.kind not in ("fiub" if kind == "number" else "fiubUS"):
                raise InputError(f"{self.name}: the array {name!r} holds {values.dtype} of shape {values.shape}")
            if values.dtype.kind in "iub":
                values = values.astype(np.float64 if kind == "number" else np.int64)
            found[name] = _texts(values) if kind == "text" else values
        return found

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the arrays, with ``columns`` replacing those of the same names."""
        write_named(target, {**self._arrays, **columns}, self.class_names)


def open_table(source: Any) -> Table:
    """Return the table that a file or a data frame contains.

    Args:
        source: A path, or a frame from pandas, Polars, PyArrow or another library that narwhals supports.

    Raises:
        FileFormatError: If the file is missing, broken or of another kind.
        InputError: If ``source`` is neither a path nor a frame.
    """
    if not isinstance(source, str | os.PathLike):
        return _open_frame(source)
    path = files.check_source(source)
    if (read := READERS.get(path.suffix.lower())) is None:
        endings = f"{shown(path.name)} has none of the endings {', '.join(READERS)}"
        raise FileFormatError(f"{endings}; read others as a data frame: calibrant.read(frame)")
    files.refuse_beyond_memory(path.stat().st_size, path)
    with files.unbroken(path):
        return read(path)


def _open_parquet(path: Path) -> Table:
    file = pa.parquet.ParquetFile(path)
    groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
    files.refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)

    def columns(names: list[str] | None) -> Any:
        with files.unbroken(path):
            return file.read(columns=names)

    return Arrow(shown(path.name), file.schema_arrow.names, columns, file.schema_arrow.metadata)


def _open_feather(path: Path) -> Table:
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    table.validate(full=True)  # reading damaged buffers would end the process
    return Arrow(
        shown(path.name),
        table.column_names,
        lambda names: table if names is None else table.select(names),
        table.schema.metadata,
    )


def _open_arrays(path: Path) -> Table:
    if path.suffix.lower() == ".npy":
        return Arrays(shown(path.name), {"": np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)})
    metadata = files.read_metadata(path) if path.suffix == ".safetensors" else {}
    if metadata.get("format", "").startswith("calibrant-"):
        raise FileFormatError(f"{shown(path.name)} holds a calibrator or a monitor; name a file of predictions here")
    return Arrays(shown(path.name), files.read_arrays(path), _header_names(metadata.get(CLASS_NAMES)))


def _open_tensors(path: Path) -> Table:
    """Return the tensors that ``torch.save`` wrote, by name or as a single one; nothing in the file is executed."""
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise FileFormatError(
            f"{shown(path.name)} is broken or holds objects other than tensors, which are not loaded; save a dict from names to tensors"
        ) from error
    given = found if isinstance(found, Mapping) else {"": found}
    arrays = {str(name): as_array(one, name=str(name)) for name, one in given.items() if isinstance(one, torch.Tensor)}
    if not arrays:
        raise FileFormatError(f"{shown(path.name)} holds no tensors; save a dict from names to tensors")
    names = given.get(CLASS_NAMES)
    return Arrays(shown(path.name), arrays, [str(one) for one in names] if isinstance(names, list | tuple) else None)


def _header_names(text: str | bytes | None) -> list[str] | None:
    """Return the class names in a file's metadata, or None if there are none."""
    return None if text is None else [str(one) for one in json.loads(text)]


def _open_frame(frame: Any) -> Table:
    import narwhals

    try:
        held = narwhals.from_native(frame, eager_only=True)
    except TypeError as error:
        raise InputError(f"expected a path or a data frame, got {type(frame).__name__}") from error
    held = held.rename({name: str(name) for name in held.columns if not isinstance(name, str)})
    return Arrow("the frame", held.columns, lambda names: held.select(names).to_arrow())


def _texts(values: Array) -> Texts:
    """Return numbers or text of any shape as ``Texts``."""
    if values.dtype == np.int64 and values.size and values.min() >= 0 and values.max() < _MAX_INDEX:
        occurs = np.bincount(values.reshape(-1)) > 0
        distinct, codes = np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[values]
    else:
        distinct, codes = np.unique(values, return_inverse=True)
    return Texts(distinct.astype(str).tolist(), codes.reshape(values.shape))


def _as_numpy(table: Any, wanted: Mapping[str, Kind], where: str) -> dict[str, Any]:
    """Return the columns of an Arrow table in the form that ``Table.read`` describes.

    They pass through DLPack, because ``to_numpy`` imports pandas. ``cast`` and ``fill_null`` are called only where
    needed, because they import Arrow's compute functions.
    """
    found, types = dict[str, Any](), pa.types
    for name, kind in wanted.items():
        array = table.column(name).combine_chunks()
        if types.is_dictionary(array.type) and kind != "text":
            array = array.cast(array.type.value_type)
        holds = f"{where}: the column {name!r} holds {array.type}"
        lists = types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type)
        if types.is_nested(array.type) and not (lists and kind == "number"):
            raise InputError(f"{holds}, not one value per row")
        values = array.flatten() if lists else array
        numeric = types.is_floating(array.type) or types.is_integer(array.type) or types.is_decimal(array.type)
        if kind == "any" and numeric and array.null_count:
            raise InputError(f"{holds}, but some rows are empty; fill them in")
        try:
            if kind == "text" or (kind == "any" and not numeric):
                text = values.cast(pa.string()).fill_null("") if values.null_count else values
                text = text if types.is_dictionary(text.type) else text.dictionary_encode()
                # only the distinct values are cast to text
                distinct, codes = text.dictionary, np.from_dlpack(text.indices)
                names = (distinct if types.is_string(distinct.type) else distinct.cast(pa.string())).to_pylist()
                used = np.flatnonzero(np.bincount(codes, minlength=len(names)))
                if len(used) < len(names):  # unused categories
                    names, codes = [names[k] for k in used.tolist()], np.searchsorted(used, codes)
                texts = Texts(names, codes)
                found[name] = texts if kind == "text" else texts.array()
                continue
            if not types.is_floating(values.type) and not (kind == "any" and types.is_integer(values.type)):
                values = values.cast(pa.float64(), safe=False)
            found[name] = np.from_dlpack(values.fill_null(np.nan) if values.null_count else values)
            if lists:
                if array.null_count or not len(values):
                    raise InputError(f"{holds}, and some of the lists are empty")
                array.cast(pa.list_(array.type.value_type, len(values) // len(array)))  # raises if lengths differ
                found[name] = found[name].reshape(len(array), -1)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"{holds}: {files.reason_of(error)}") from error
    return found


def _json(row: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{name}: a score is −inf, which JSON cannot hold; write .parquet or .csv") from error


def with_columns(table: Any, columns: Mapping[str, Array]) -> Any:
    """Return an Arrow table in which ``columns`` replace existing ones or are added at the end."""
    for name, values in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, as_arrow(values))
        else:
            table = table.append_column(name, as_arrow(values))
    return table


def as_arrow(values: Array) -> Any:
    """Return an array as an Arrow array; rows of an array (N, K) become lists, and text becomes strings."""
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(as_arrow(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
    if values.dtype.kind in "USO":
        return pa.array(values.tolist(), pa.string())
    return pa.array(np.ascontiguousarray(values))


def write_arrow(path: Path, table: Any) -> None:
    """Write an Arrow table atomically, in the format of the path's suffix."""
    suffix = path.suffix.lower()
    with files.atomic_write(path) as file:
        if suffix == ".parquet":
            pa.parquet.write_table(table, file, write_page_checksum=True)
        elif suffix in (".feather", ".arrow"):
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        elif suffix in (".jsonl", ".ndjson"):
            file.writelines(_json(row, shown(path.name)).encode() + b"\n" for row in table.to_pylist())
        else:
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))


def write_named(path: Path, arrays: Mapping[str, Array], class_names: Sequence[str] | None) -> None:
    """Write named arrays and the class names to ``.npz`` or ``.safetensors``, or a single array to ``.npy``."""
    if path.suffix == ".npy":
        with files.atomic_write(path) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(arrays[""]), allow_pickle=False)
    elif path.suffix == ".npz":
        files.write_arrays(path, {**arrays, **({} if class_names is None else {CLASS_NAMES: np.array(class_names)})})
    else:
        files.write_arrays(
            path, arrays, metadata=None if class_names is None else {CLASS_NAMES: json.dumps(class_names)}
        )


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": Csv, ".tsv": Csv, ".txt": Csv, ".jsonl": JsonLines, ".ndjson": JsonLines, ".parquet": _open_parquet,
    ".feather": _open_feather, ".arrow": _open_feather, ".npz": _open_arrays, ".safetensors": _open_arrays,
    ".npy": _open_arrays, ".pt": _open_tensors, ".pth": _open_tensors,
}  # fmt: skip
