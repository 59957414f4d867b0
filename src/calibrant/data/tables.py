"""Files and data frames as named columns, of which only those that are asked for are parsed.

``open_table`` opens any format. ``Table.write`` gives the same file back with columns added or replaced: a text file record by
record as it was, so that other cells keep their text.
"""

import csv
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant._core.check import as_array
from calibrant._files import (
    Array,
    atomic_write,
    check_source,
    pa,
    read_arrays,
    read_metadata,
    read_text,
    reason_of,
    refuse_beyond_memory,
    shown,
    write_arrays,
)
from calibrant.data.record import FEATURE, FEATURE_TEXT
from calibrant.errors import CalibrantError, FileFormatError, InputError

# What is asked of a column: numbers; text; text, but integers of an array as they are; numbers if it has them, else text.
Kind = Literal["number", "text", "label", "any"]
CLASS_NAMES = "class_names"  # the array, or the entry of a file's metadata
_LONGEST = 64 << 20  # bytes of a line; PyArrow parses in blocks that must be longer than any line
_NAMES_SHOWN = 12
_FILLED = re.compile(rb"\S")
csv.field_size_limit(_LONGEST)  # the module's own limit of 2¹⁷ characters is below a row of 10,000 classes


def abridged(names: Sequence[str]) -> str:
    """Return names for a sentence, twelve at most."""
    return ", ".join(names[:_NAMES_SHOWN]) + (f", … ({len(names):,} in all)" if len(names) > _NAMES_SHOWN else "")


@dataclass(frozen=True)
class Texts:
    """A column of text: its distinct values, and which of them each row has."""

    values: Sequence[str]
    codes: Array

    @classmethod
    def of(cls, column: Array) -> "Texts":
        """Return the texts of an array."""
        values, codes = np.unique(column.astype(str), return_inverse=True)
        return cls(values.tolist(), codes.reshape(column.shape))

    def array(self) -> Array:
        """Return the text of each row."""
        found: Array = np.array([*self.values, ""], dtype=str)[self.codes]
        return found

    def __getitem__(self, rows: Any) -> "Texts":
        return Texts(self.values, self.codes[rows])

    def __len__(self) -> int:
        return len(self.codes)


class Table(ABC):
    """Columns by name.

    Args:
        name: What messages call the table.
        names: The columns.
        class_names: Names of classes that stand beside the columns.
    """

    def __init__(self, name: str, names: Iterable[str], class_names: Sequence[str] | None = None) -> None:
        self.name, self.names, self.class_names = name, list(names), class_names
        self.places = {one: place for place, one in enumerate(self.names)}

    @abstractmethod
    def load(self, wanted: Mapping[str, Kind] | None) -> Any:
        """Return an Arrow table of the wanted columns, or of all."""

    @abstractmethod
    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the table with ``columns`` (N,) or (N, K): in the place of those that are there, the others at the end."""

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns: numbers as (N,), or (N, K) of lists, an empty cell as NaN; text as ``Texts``."""
        self.find(wanted)
        table = self.load(wanted)
        return {name: _converted(table.column(name), kind, name, self) for name, kind in wanted.items()}

    def find(self, names: Iterable[str]) -> None:
        """Refuse names that the table does not have, or has twice.

        Raises:
            InputError: If there is one.
        """
        for name in names:
            if name not in self.places:
                raise InputError(f"{self.name} has no column {name!r}. Columns: {abridged(self.names)}")
            if len(self.places) < len(self.names) and self.names.count(name) > 1:
                raise InputError(f"{self.name} has two columns {name!r}. Columns: {abridged(self.names)}")

    def place(self, row: int) -> str:
        """Return where a row stands, for a message."""
        return f"row {row}"


class Arrow(Table):
    """A Parquet or Feather file, or a data frame.

    Args:
        name: What messages call it.
        names: The columns.
        columns: Returns an Arrow table of some columns, or of all.
        metadata: What stands beside the columns.
    """

    def __init__(
        self, name: str, names: Sequence[str], columns: Callable[[list[str] | None], Any], metadata: Any = None
    ) -> None:
        super().__init__(name, names, _header_names((metadata or {}).get(CLASS_NAMES.encode())))
        self._columns = columns

    def load(self, wanted: Mapping[str, Kind] | None) -> Any:
        """Return columns, as ``Table.load``."""
        return self._columns(None if wanted is None else list(wanted))

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the table with more columns, as ``Table.write``."""
        table = self.load(None)
        for name, values in columns.items():
            if name in self.places:
                table = table.set_column(self.places[name], name, as_arrow(values))
            else:
                table = table.append_column(name, as_arrow(values))
        write_arrow(target, table)


class Csv(Table):
    """A table of text with a header, which is cut by the delimiter that gives it the most cells."""

    def __init__(self, path: Path) -> None:
        name, self._path, self._content, self._sign = shown(path.name), path, path.read_bytes(), "."
        self._start = 3 if self._content.startswith(b"\xef\xbb\xbf") else 0
        if not _FILLED.search(self._content, self._start):
            raise FileFormatError(f"{name} is empty")
        if len(self._content) > _LONGEST and b"\n" not in self._content[:_LONGEST]:
            raise FileFormatError(f"{name} has a first line of more than {_LONGEST >> 20} MiB")
        headers = {delimiter: next(_records(self._content, self._start, delimiter, name)) for delimiter in ",;\t|"}
        self.delimiter = max(headers, key=lambda delimiter: len(headers[delimiter][1]))
        _, names, header = headers[self.delimiter]
        try:
            self._body = self._start + len(header.encode())
        except UnicodeEncodeError as error:
            raise FileFormatError(f"{name} is no table of text in UTF-8; save it as one") from error
        if not _FILLED.search(self._content, self._body):
            raise FileFormatError(f"{name} has a header and no rows")
        self._first_line = 1 + header.count("\n")
        super().__init__(name, (cell.strip() for cell in names))

    def load(self, wanted: Mapping[str, Kind] | None) -> Any:
        """Return columns, as ``Table.load``; numbers with a decimal comma where all have it."""
        chosen: Mapping[str, str] = dict.fromkeys(self.names, "text") if wanted is None else wanted
        reason: Exception = ValueError("its rows are of unlike length")
        # beside commas as delimiters a number has a point; a line that is longer than a block needs a longer block
        for sign, block in product(".," if self.delimiter != "," else ".", (4 << 20, _LONGEST)):
            try:
                found = self._parsed(chosen, sign, block)
                if not any(column.null_count for column in found.columns if pa.types.is_floating(column.type)):
                    self._sign = sign
                    return found.rename_columns(list(chosen))
            except pa.ArrowInvalid as error:
                reason = error
        raise self._explained([self.places[name] for name, kind in chosen.items() if kind == "number"], reason)

    def _parsed(self, chosen: Mapping[str, str], sign: str, block: int) -> Any:
        types = {"number": pa.float64(), "text": pa.string(), "label": pa.string()}
        places = {name: str(self.places[name]) for name in chosen}
        body = pa.BufferReader(pa.py_buffer(memoryview(self._content)[self._body :]))
        return pa.csv.read_csv(
            body,
            pa.csv.ReadOptions(column_names=[str(place) for place in range(len(self.names))], block_size=block),
            pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in self._content),
            pa.csv.ConvertOptions(
                include_columns=list(places.values()),
                column_types={places[name]: types[kind] for name, kind in chosen.items() if kind in types},
                decimal_point=sign,
            ),
        )

    def place(self, row: int) -> str:
        """Return where a row stands: its line."""
        found = next(islice((line for line, record, _ in self._rows() if record), row, None), None)
        return f"row {row}" if found is None else f"line {found}"

    def _rows(self) -> Iterator[tuple[int, list[str], str]]:
        """Yield the records below the header, as ``_records``."""
        return _records(self._content, self._body, self.delimiter, self.name, line=self._first_line)

    def _explained(self, numbers: Sequence[int], error: Exception) -> Exception:
        """Return the error of the first record that cannot be read; PyArrow does not know its line."""
        for line, record, _ in self._rows():
            if record and len(record) != len(self.names):
                cells = f"{len(record)} cells, the header {len(self.names)}"
                return FileFormatError(f"{self.name}, line {line} has {cells}")
            for place in numbers if record else ():
                cell = record[place] if self.delimiter == "," else record[place].replace(",", ".")
                if not _is_number(cell):
                    got = repr(record[place][:40]) if cell.strip() else "an empty cell"
                    return InputError(
                        f"{self.name}, line {line}: {got} in the column {self.names[place]!r} is no number"
                    )
        return _broken(self._path, error)

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each record as it came with more cells, or with others in the place of its own."""
        places = {name: self.places[name] for name in columns if name in self.places}
        more = [name for name in columns if name not in places]
        cells = {name: self._cells(values) for name, values in columns.items()}
        with atomic_write(target, inputs=[self._path]) as file:

            def put(text: str, added: Sequence[str]) -> None:
                bare = text.rstrip("\r\n")
                line = bare + "".join(self.delimiter + cell for cell in added) + text[len(bare) :]
                file.write(line.encode(errors="surrogateescape"))

            file.write(self._content[: self._start])
            put(self._content[self._start : self._body].decode(), [self._quoted(name) for name in more])
            for row, (_, record, text) in enumerate(self._rows()):
                if places and record:
                    new = {place: cells[name][row] for name, place in places.items()}
                    kept = [new.get(place, self._quoted(cell)) for place, cell in enumerate(record)]
                    empty, end = text[: -len(text.lstrip("\r\n"))], text[len(text.rstrip("\r\n")) :]
                    text = empty + self.delimiter.join(kept) + end
                put(text, [cells[name][row] for name in more] if record else [])

    def _cells(self, values: Array) -> list[str]:
        if values.ndim != 1:
            raise InputError("a table of text holds one number per cell; write .parquet or .jsonl")
        if values.dtype.kind != "f":
            return [self._quoted(str(one)) for one in values.tolist()]
        return [repr(one).replace(".", self._sign) for one in values.astype(np.float64).tolist()]

    def _quoted(self, cell: str) -> str:
        special = any(sign in cell for sign in (self.delimiter, '"', "\n", "\r"))
        return '"' + cell.replace('"', '""') + '"' if special else cell


class JsonLines(Table):
    """A file with one JSON object per line. PyArrow's reader turns dates into times, and ends the process at deep nesting."""

    def __init__(self, path: Path) -> None:
        name, self._path = shown(path.name), path
        self._lines = list(io.StringIO(read_text(path), newline="\n"))
        self._objects: list[tuple[int, dict[str, Any]]] = []
        for number, line in enumerate(self._lines, 1):
            if line.strip():
                try:
                    self._objects.append((number, dict(json.loads(line).items())))
                except (ValueError, RecursionError, AttributeError) as error:
                    raise FileFormatError(f"{name}, line {number} is no JSON object: {reason_of(error)}") from error
        if not self._objects:
            raise FileFormatError(f"{name} is empty")
        super().__init__(name, self._objects[0][1])

    def place(self, row: int) -> str:
        """Return where a row stands: its line."""
        return f"line {self._objects[row][0]}"

    def load(self, wanted: Mapping[str, Kind] | None) -> Any:
        """Return columns, as ``Table.load``."""
        try:
            return pa.table({key: pa.array([one.get(key) for _, one in self._objects]) for key in wanted or self.names})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"{self.name}: a column holds values of unlike kinds: {reason_of(error)}") from error

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each object as it came with more entries, or with others in the place of its own."""
        rows = iter(zip(*(column.tolist() for column in columns.values()), strict=True))
        replaced = columns.keys() & self.places.keys()
        with atomic_write(target, inputs=[self._path]) as file:
            for line in self._lines:
                if text := line.strip():
                    new = dict(zip(columns, next(rows), strict=True))
                    if replaced:
                        text = to_json(json.loads(text) | new, self.name)
                    else:
                        inner = text[1:-1].rstrip()
                        text = "{" + inner + ", " * bool(inner) + to_json(new, self.name)[1:]
                file.write((text + line[len(line.rstrip("\r\n")) :]).encode())


class Arrays(Table):
    """Arrays by name; the array of a file that has one alone is called "".

    Args:
        name: What messages call the file.
        arrays: The arrays.
        class_names: Names of the classes.
    """

    def __init__(self, name: str, arrays: Mapping[str, Array], class_names: Sequence[str] | None = None) -> None:
        named = arrays.get(CLASS_NAMES)
        self._stored = dict(arrays)
        self.arrays = dict(map(_decoded, arrays.keys(), arrays.values()))
        super().__init__(name, self.arrays, class_names if named is None else [str(one) for one in named.tolist()])

    def under(self, stem: str) -> "Arrays":
        """Return the arrays whose names begin with ``stem``, by what follows it."""
        found = {name.removeprefix(stem): one for name, one in self._stored.items() if name.startswith(stem)}
        return Arrays(self.name, found, self.class_names)

    def load(self, wanted: Mapping[str, Kind] | None) -> Any:
        """Refuse to be joined with a table by a column of both."""
        raise InputError(f"{self.name}: on joins two tables, and arrays have no columns; leave it out")

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return arrays of rows, as ``Table.read`` returns columns."""
        self.find(wanted)
        found: dict[str, Any] = {}
        for name, kind in wanted.items():
            values = self.arrays[name]
            text, whole = values.dtype.kind in "US", values.dtype.kind in "iub"
            if not values.ndim or values.dtype.kind not in "fiubUS" or (text and kind == "number"):
                raise InputError(f"{self.name}: the array {name!r} holds {values.dtype} of shape {values.shape}")
            if values.dtype.kind == "f" and kind == "label" and np.isfinite(values).all():
                whole = bool((values == np.round(values)).all())
            if kind == "number":
                found[name] = values.astype(np.float64) if whole else values
            elif text or kind == "text":
                found[name] = Texts.of(values)
            else:
                found[name] = values.astype(np.int64) if whole else values
        return found

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the arrays with ``columns`` in the place of those of the same names."""
        arrays, suffix = {**self._stored, **columns}, target.suffix.lower()
        named = {CLASS_NAMES: json.dumps(self.class_names)} if self.class_names and suffix == ".safetensors" else None
        if suffix in (".npz", ".safetensors"):
            write_arrays(target, arrays, metadata=named)
            return
        with atomic_write(target) as file:
            if suffix == ".npy":
                np.lib.format.write_array(file, np.ascontiguousarray(arrays[""]), allow_pickle=False)
            else:
                import torch

                tensors: dict[str, Any] = {
                    key: torch.from_numpy(np.array(one)) for key, one in arrays.items() if key != CLASS_NAMES
                }
                if self.class_names is not None:
                    tensors[CLASS_NAMES] = list(self.class_names)
                torch.save(tensors.get("", tensors), file)


def open_table(source: Any, *, lines: bool = False) -> Table:
    """Return what a file, or a data frame, holds.

    Args:
        source: A path, or a frame of pandas, Polars, PyArrow or whatever narwhals takes.
        lines: Whether a ``.txt`` file is one array of its lines, not a table.

    Raises:
        FileFormatError: If the file is missing, broken or of another kind.
        InputError: If it is neither a path nor a frame.
    """
    if not isinstance(source, str | os.PathLike):
        return _open_frame(source)
    path = check_source(source)
    name, suffix = shown(path.name), path.suffix.lower()
    if suffix not in READERS:
        known = ", ".join(READERS)
        raise FileFormatError(
            f"{name} has none of the endings {known}; read others as a data frame: calibrant.read(frame)"
        )
    refuse_beyond_memory(path.stat().st_size, path)
    if suffix == ".txt" and lines:
        return Arrays(name, {"": np.array([line.strip() for line in read_text(path).splitlines() if line.strip()])})
    try:
        return READERS[suffix](path)
    except CalibrantError:
        raise
    except Exception as error:  # of many kinds; each means that the file is broken, or holds objects
        raise _broken(path, error) from error


def _open_arrow(path: Path) -> Table:
    if path.suffix.lower() == ".parquet":
        file = pa.parquet.ParquetFile(path)
        groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
        refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
        schema = file.schema_arrow
    else:
        schema = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).schema
    return Arrow(shown(path.name), schema.names, lambda chosen: _loaded(path, chosen), schema.metadata)


def _open_arrays(path: Path) -> Table:
    if path.suffix.lower() == ".npy":
        array = np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False)
        return Arrays(shown(path.name), {"": array})
    named = read_metadata(path).get(CLASS_NAMES) if path.suffix.lower() == ".safetensors" else None
    return Arrays(shown(path.name), read_arrays(path), _header_names(named))


def _broken(path: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"{shown(path.name)} is broken, or no {path.suffix.lower()} file ({reason_of(error)})")


def _open_tensors(path: Path) -> Table:
    """Return what ``torch.save`` kept, without executing anything: tensors by name, or one alone."""
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True)
    given = {"": found} if isinstance(found, torch.Tensor) else found if isinstance(found, Mapping) else {}
    arrays = {str(name): as_array(one, name=str(name)) for name, one in given.items() if isinstance(one, torch.Tensor)}
    names = given.get(CLASS_NAMES)
    if isinstance(names, list | tuple) and names and all(isinstance(one, str) for one in names):
        arrays[CLASS_NAMES] = np.array(names)
    if not arrays:
        raise FileFormatError(f"{shown(path.name)} holds no tensors by name; save a dict of tensors")
    return Arrays(shown(path.name), arrays)


def _header_names(text: str | bytes | None) -> list[str] | None:
    """Return the names in the metadata of a file; None where there are none."""
    found = None
    with suppress(ValueError, RecursionError):
        found = None if text is None else json.loads(text)
    return [str(one) for one in found] if isinstance(found, list) else None


def _decoded(name: str, values: Array) -> tuple[str, Array]:
    """Return a feature of text out of a format of numbers alone: rows of code points."""
    if (
        FEATURE_TEXT not in name
        or values.ndim != 2
        or not values.size
        or not 0 <= values.min() <= values.max() < 0x110000
    ):
        return name, values
    text: Array = np.ascontiguousarray(values, dtype=np.int32).view(f"<U{values.shape[1]}")[:, 0]
    return name.replace(FEATURE_TEXT, FEATURE), text


def _loaded(path: Path, names: list[str] | None) -> Any:
    """Return columns of a Parquet or Feather file as an Arrow table, checked before anything touches its buffers."""
    try:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.ParquetFile(path).read(columns=names)
        table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
        table = table if names is None else table.select(names)
        table.validate(full=True)  # a reader of injured buffers would end the process
    except Exception as error:  # of many kinds; each means that the file is broken
        raise _broken(path, error) from error
    return table


def _open_frame(frame: Any) -> Table:
    import narwhals

    try:
        held = narwhals.from_native(frame, eager_only=True)
    except TypeError as error:
        raise InputError(f"expected a path or a data frame, got {type(frame).__name__}") from error
    held = held.rename({name: str(name) for name in held.columns if not isinstance(name, str)})

    def columns(names: list[str] | None) -> Any:
        try:
            return (held if names is None else held.select(names)).to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # a column of unlike objects
            raise InputError(f"the frame: {reason_of(error)}") from error

    return Arrow("the frame", held.columns, columns)


def _records(
    content: bytes, start: int, delimiter: str, name: str, line: int = 1
) -> Iterator[tuple[int, list[str], str]]:
    """Yield the line that each record begins on, its cells, and its text with the empty lines before it."""
    file, taken = io.BytesIO(content), list[str]()
    file.seek(start)

    def noted() -> Iterator[str]:
        for text in io.TextIOWrapper(file, "utf-8", "surrogateescape", newline=""):
            taken.append(text)
            yield text

    reader, begin = csv.reader(noted(), delimiter=delimiter), line
    try:
        for record in reader:
            if record:
                yield begin, record, "".join(taken)
                taken.clear()
            begin = line + reader.line_num
    except csv.Error as error:
        raise FileFormatError(f"{name}, line {begin} cannot be read: {error}") from error
    if taken:
        yield begin, [], "".join(taken)


def _is_number(cell: str) -> bool:
    try:
        return not np.isnan(float(cell))
    except ValueError:
        return False


def _converted(column: Any, kind: Kind, name: str, table: Table) -> Any:
    """Return an Arrow column as NumPy has it; by way of DLPack, since ``to_numpy`` imports pandas."""
    types, array = pa.types, column.combine_chunks()
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    floating, integer = types.is_floating(array.type), types.is_integer(array.type)
    if kind == "any":
        kind = "number" if floating or integer or types.is_decimal(array.type) else "text"
        if kind == "number" and array.null_count:
            row = int(np.argmax(np.from_dlpack(array.is_null().cast(pa.int8()))))
            raise InputError(f"{table.name}, {table.place(row)}: the column {name!r} is empty")
        if integer:
            return np.from_dlpack(array)
    if types.is_nested(array.type):
        if kind != "number" or not (types.is_fixed_size_list(array.type) or hasattr(array, "offsets")):
            raise InputError(f"{table.name}: the column {name!r} holds {array.type}, not one value per row")
        return _matrix(array, name, table)
    try:
        if kind == "number":
            array = array if floating else array.cast(pa.float64(), safe=False)
            return np.from_dlpack(array.fill_null(np.nan) if array.null_count else array)
        # distinct values are cast to text, not each row
        text = (array.cast(pa.string()).fill_null("") if array.null_count else array).dictionary_encode()
        return Texts(text.dictionary.cast(pa.string()).to_pylist(), np.from_dlpack(text.indices))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = "numbers" if kind == "number" else "text in UTF-8"
        raise InputError(f"{table.name}: the column {name!r} holds {array.type} that is no {what}") from error


def _matrix(array: Any, name: str, table: Table) -> Array:
    """Return a column of lists as (N, K)."""
    values, rows = array.flatten(), len(array)
    lengths = np.full(rows, len(values) // max(rows, 1))
    if not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(np.from_dlpack(array.offsets))
    if array.null_count or values.null_count or not len(values) or (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0])) if rows else 0
        raise InputError(f"{table.name}, row {row}: the lists in {name!r} are empty or of unlike length")
    if not pa.types.is_floating(values.type):
        if not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
            raise InputError(f"{table.name}: the lists in {name!r} hold {values.type}, not numbers")
        values = values.cast(pa.float64())
    return np.from_dlpack(values).reshape(rows, -1)


def to_json(value: Mapping[str, Any], name: str) -> str:
    """Return a JSON object on one line.

    Raises:
        InputError: If a number is infinite, which JSON does not have.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{name}: a score is −inf, which JSON cannot hold; write .parquet or .csv") from error


def as_arrow(values: Array) -> Any:
    """Return an array (N,), or (N, K) as lists, as an Arrow array; text as strings."""
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(as_arrow(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
    if values.dtype.kind in "USO":
        return pa.array(values.tolist(), pa.string())
    return pa.array(np.ascontiguousarray(values))


def write_arrow(path: Path, table: Any) -> None:
    """Write an Arrow table in the format of the path's suffix, whole or not at all."""
    suffix = path.suffix.lower()
    with atomic_write(path) as file:
        if suffix == ".parquet":
            pa.parquet.write_table(table, file, write_page_checksum=True)
        elif suffix in (".feather", ".arrow"):
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        elif suffix in (".jsonl", ".ndjson"):
            for row in table.to_pylist():
                file.write(to_json(row, shown(path.name)).encode() + b"\n")
        else:
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": Csv, ".tsv": Csv, ".txt": Csv, ".jsonl": JsonLines, ".ndjson": JsonLines, ".parquet": _open_arrow,
    ".feather": _open_arrow, ".arrow": _open_arrow, ".npz": _open_arrays, ".safetensors": _open_arrays,
    ".npy": _open_arrays, ".pt": _open_tensors, ".pth": _open_tensors,
}  # fmt: skip
