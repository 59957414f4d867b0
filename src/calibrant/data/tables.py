"""Tables and arrays in files, and data frames: their names, the columns that are asked for, and the same file out with more.

Only columns that are asked for are parsed. A table of text goes out record by record as it came in, with cells appended.
"""

import csv
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from calibrant.data.labels import Texts, listed
from calibrant.data.record import FEATURE, FEATURE_TEXT
from calibrant.errors import CalibrantError, FileFormatError, InputError

# Of a column that is asked for: numbers, text; text, or integers of an array; numbers if they are, else text.
Kind = Literal["number", "text", "label", "any"]
CLASS_NAMES = "class_names"  # the array, or the entry of a file's metadata
READABLE = (".csv", ".tsv", ".txt", ".jsonl", ".parquet", ".feather", ".arrow", ".npz", ".safetensors", ".pt", ".npy")
_DELIMITERS = (",", ";", "\t", "|")
_HEAD = 1 << 20  # bytes in which the delimiter is looked for
_SAMPLED = 20  # records
_LONGEST = 64 << 20  # bytes of a line; PyArrow parses in blocks that are longer than any
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma


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
    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns: numbers as (N,), or (N, K) of lists, an empty cell as NaN; text as ``Texts``; any as an array."""

    @abstractmethod
    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the table with ``columns`` (N,) or (N, K): in the place of those that are there, the others at the end."""

    def find(self, names: Iterable[str]) -> None:
        """Refuse names that the table does not have, or has twice.

        Raises:
            InputError: If there is one.
        """
        doubled = len(self.places) < len(self.names)
        for name in names:
            if name not in self.places or (doubled and self.names.count(name) > 1):
                what = f"two columns {name!r}" if name in self.places else f"no column {name!r}"
                raise InputError(f"{self.name} has {what}. Columns: {listed(self.names)}")

    def place(self, row: int) -> str:
        """Return where a row stands, for a message."""
        return f"row {row}"


class Arrow(Table):
    """A Parquet or Feather file, or a data frame.

    Args:
        name: What messages call it.
        names: The columns.
        load: Returns an Arrow table of some columns, or of all.
        metadata: What stands beside the columns.
    """

    def __init__(
        self, name: str, names: Sequence[str], load: Callable[[Sequence[str] | None], Any], metadata: Any = None
    ) -> None:
        super().__init__(name, names, _names_in((metadata or {}).get(CLASS_NAMES.encode())))
        self._load = load

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns, as ``Table.read``."""
        self.find(wanted)
        table = self._load(list(wanted))
        return {name: _converted(table.column(name), kind, name, self) for name, kind in wanted.items()}

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the table with more columns, as ``Table.write``."""
        table = self._load(None)
        for name, values in columns.items():
            column = as_arrow(values)
            if name in self.places:
                table = table.set_column(self.places[name], name, column)
            else:
                table = table.append_column(name, column)
        write_arrow(target, table)


class Csv(Table):
    """A table of text with a header. Its first records show the delimiter, and whether numbers have a decimal comma."""

    def __init__(self, path: Path) -> None:
        name = shown(path.name)
        refuse_beyond_memory(path.stat().st_size, path)
        self._path, self._content, self._sign = path, path.read_bytes(), "."
        self._start = 3 if self._content.startswith(b"\xef\xbb\xbf") else 0
        text = self._content[self._start : self._start + _HEAD].decode(errors="surrogateescape")
        if len(text) > _HEAD // 4 and "\n" not in text:
            text = self._content[self._start : self._start + _LONGEST].decode(errors="surrogateescape")
            if "\n" not in text and len(self._content) > _LONGEST:
                raise FileFormatError(f"{name} has a first line of more than {_LONGEST >> 20} MiB")
        if not text.strip():
            raise FileFormatError(f"{name} is empty")
        self.delimiter, records, header = _dialect(text, name)
        try:
            self._body = self._start + len(header.encode())
        except UnicodeEncodeError as error:
            raise FileFormatError(f"{name} is no table of text in UTF-8; save it as one") from error
        super().__init__(name, (cell.strip() for cell in records[0]))
        self._sample, self._header_lines = records[1:], header.count("\n")
        if not self._sample:
            raise FileFormatError(f"{name} has a header and no rows")

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns, as ``Table.read``."""
        self.find(wanted)
        places = {name: self.places[name] for name in wanted}
        numbers = [places[name] for name, kind in wanted.items() if kind == "number"]
        self._sign = self._decimal(numbers)
        body = memoryview(self._content)[self._body :]
        types = {"number": pa.float64(), "text": pa.string(), "label": pa.string()}
        options: dict[str, Any] = {
            "parse_options": pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in self._content),
            "convert_options": pa.csv.ConvertOptions(
                include_columns=[str(place) for place in places.values()],
                column_types={str(places[name]): types[kind] for name, kind in wanted.items() if kind != "any"},
                decimal_point=self._sign,
            ),
        }
        for block in (max(4 << 20, 4 * max(map(_length, self._sample), default=0)), _LONGEST):
            names = [str(place) for place in range(len(self.names))]
            reading = pa.csv.ReadOptions(column_names=names, block_size=block)
            try:
                found = pa.csv.read_csv(pa.BufferReader(pa.py_buffer(body)), reading, **options)
                break
            except pa.ArrowInvalid as error:
                if block != _LONGEST and "straddling" in str(error):
                    continue
                raise self._explained(numbers, error) from error
        columns = {name: found.column(str(place)) for name, place in places.items()}
        if any(columns[name].null_count for name, kind in wanted.items() if kind == "number"):
            raise self._explained(numbers, None)
        return {name: _converted(columns[name], kind, name, self) for name, kind in wanted.items()}

    def _decimal(self, places: Sequence[int]) -> str:
        cells = [row[place].strip() for row in self._sample for place in places if place < len(row)]
        return "," if self.delimiter != "," and any(_COMMA.fullmatch(cell) for cell in cells) else "."

    def place(self, row: int) -> str:
        """Return where a row stands: its line."""
        for number, (line, _, _) in enumerate(self._records()):
            if number == row:
                return f"line {line}"
        return f"row {row}"

    def _records(self) -> Iterator[tuple[int, list[str], str]]:
        """Yield the line that each record begins on, its cells, and its text; of empty lines the text alone."""
        taken: list[str] = []
        body = io.BytesIO(memoryview(self._content)[self._body :])
        lines = _noted(io.TextIOWrapper(body, "utf-8", "surrogateescape", newline=""), taken)
        reader, before = csv.reader(lines, delimiter=self.delimiter), 0
        with _long_cells():
            try:
                for record in reader:
                    yield self._header_lines + before + 1, record, "".join(taken)
                    before, taken[:] = reader.line_num, []
            except csv.Error as error:
                line = self._header_lines + before + 1
                raise FileFormatError(f"{self.name}, line {line} cannot be read: {error}") from error

    def _explained(self, numbers: Sequence[int], error: Exception | None) -> Exception:
        """Return the error of the first record that cannot be read; PyArrow does not know its line."""
        for line, record, _ in self._records():
            if record and len(record) != len(self.names):
                cells = f"{len(record)} cells, the header {len(self.names)}"
                return FileFormatError(f"{self.name}, line {line} has {cells}")
            for place in numbers if record else ():
                if not _is_number(record[place], self._sign):
                    cell = repr(record[place][:40]) if record[place].strip() else "an empty cell"
                    return InputError(
                        f"{self.name}, line {line}: {cell} in the column {self.names[place]!r} is no number"
                    )
        return broken(self._path, error or ValueError("its rows are of unlike length"))

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each record as it came with more cells, or with others in the place of its own."""
        places = {name: self.places[name] for name in columns if name in self.places}
        more = [name for name in columns if name not in places]
        cells = {name: _cells(values, self._sign, self.delimiter) for name, values in columns.items()}
        head = self._content[self._start : self._body].decode()
        with atomic_write(target, inputs=[self._path]) as file:
            file.write(self._content[: self._start])
            write: Callable[[str], int] = lambda text: file.write(text.encode(errors="surrogateescape"))  # noqa: E731
            write(self._with(head, [_quoted(name, self.delimiter) for name in more]))
            row = 0
            for _, record, text in self._records():
                if not record:
                    write(text)
                    continue
                if places:
                    end = text[len(text.rstrip("\r\n")) :]
                    new = {place: cells[name][row] for name, place in places.items()}
                    kept = (_quoted(cell, self.delimiter) for cell in record)
                    text = self.delimiter.join(new.get(place, cell) for place, cell in enumerate(kept)) + end
                write(self._with(text, [cells[name][row] for name in more]))
                row += 1

    def _with(self, text: str, more: Sequence[str]) -> str:
        """Return a record with cells at its end, before the line break that it has."""
        bare = text.rstrip("\r\n")
        return bare + "".join(self.delimiter + cell for cell in more) + text[len(bare) :]


class JsonLines(Table):
    """A file with one JSON object a line."""

    def __init__(self, path: Path) -> None:
        refuse_beyond_memory(2 * path.stat().st_size, path)
        self.name, self._path = shown(path.name), path
        try:
            self._lines = list(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="\n"))
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{self.name} is no text in UTF-8; save it as UTF-8") from error
        first = next(self._objects(), None)
        if first is None:
            raise FileFormatError(f"{self.name} is empty")
        super().__init__(self.name, first[1])

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileFormatError(f"{self.name}, line {number} is no JSON: {str(error)[:80]}") from error
            if not isinstance(found, dict):
                raise FileFormatError(f"{self.name}, line {number} is no JSON object")
            yield number, found

    def place(self, row: int) -> str:
        """Return where a row stands: its line."""
        return next((f"line {line}" for at, (line, _) in enumerate(self._objects()) if at == row), f"row {row}")

    def read(self, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """Return columns, as ``Table.read``."""
        self.find(wanted)
        held: dict[str, list[Any]] = {name: [] for name in wanted}
        for number, found in self._objects():
            for name, values in held.items():
                if name not in found:
                    raise InputError(f"{self.name}, line {number} has no {name!r}")
                values.append(found[name])
        columns: dict[str, Any] = {}
        for name, values in held.items():
            try:
                column = pa.chunked_array([pa.array(values)])
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                text = " ".join(str(error).split())[:80]
                raise InputError(f"{self.name}: {name!r} holds values of unlike kinds: {text}") from error
            columns[name] = _converted(column, wanted[name], name, self)
        return columns

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write each object as it came with more entries, or with others in the place of its own."""
        values = {name: column.tolist() for name, column in columns.items()}
        replaced = values.keys() & self.places.keys()
        with atomic_write(target, inputs=[self._path]) as file:
            row = 0
            for line in self._lines:
                text = line.strip()
                if text:
                    new = {name: column[row] for name, column in values.items()}
                    row += 1
                    if replaced:
                        text = to_json(json.loads(text) | new, self.name)
                    else:
                        inner = text[1:-1].rstrip()
                        text = "{" + inner + ", " * bool(inner.strip()) + to_json(new, self.name)[1:]
                file.write((text + line[len(line.rstrip("\r\n")) :]).encode())


class Arrays(Table):
    """Arrays by name; that of a file with one alone has the name "".

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
                found[name] = Texts.of(values) if kind != "any" else values.astype(str)
            else:
                found[name] = values.astype(np.int64) if whole else values
        return found

    def write(self, target: Path, columns: Mapping[str, Array]) -> None:
        """Write the arrays with ``columns`` in the place of those of the same names."""
        arrays = {**self._stored, **columns}
        suffix = target.suffix.lower()
        if suffix in (".npz", ".safetensors"):
            known = (
                None if self.class_names is None or suffix == ".npz" else {CLASS_NAMES: json.dumps(self.class_names)}
            )
            write_arrays(target, arrays, metadata=known)
            return
        with atomic_write(target) as file:
            if suffix == ".npy":
                np.lib.format.write_array(file, np.ascontiguousarray(arrays[""]), allow_pickle=False)
            else:
                import torch

                tensors = {name: torch.from_numpy(np.array(one)) for name, one in arrays.items() if name != CLASS_NAMES}
                named: dict[str, Any] = {} if self.class_names is None else {CLASS_NAMES: list(self.class_names)}
                torch.save(tensors.get("") if self.names == [""] else tensors | named, file)


def broken(path: Path, error: Exception) -> FileFormatError:
    """Return the error of a file that its reader cannot read."""
    return FileFormatError(f"{shown(path.name)} is broken, or no {path.suffix.lower()} file ({reason_of(error)})")


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
    if suffix == ".txt" and lines:
        return Arrays(name, {"": np.array([line.strip() for line in read_text(path).splitlines() if line.strip()])})
    if suffix in (".csv", ".tsv", ".txt"):
        return Csv(path)
    if suffix in (".jsonl", ".ndjson"):
        return JsonLines(path)
    if suffix == ".npz":
        return Arrays(name, read_arrays(path))
    if suffix == ".safetensors":
        return Arrays(name, read_arrays(path), _names_in(read_metadata(path).get(CLASS_NAMES)))
    refuse_beyond_memory(path.stat().st_size, path)
    try:
        if suffix == ".npy":
            return Arrays(name, {"": np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False)})
        if suffix in (".pt", ".pth"):
            return Arrays(name, _tensors(path))
        if suffix == ".parquet":
            file = pa.parquet.ParquetFile(path)
            groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
            refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
            schema = file.schema_arrow
        elif suffix in (".feather", ".arrow"):
            schema = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).schema
        else:
            known = ", ".join(READABLE)
            raise FileFormatError(
                f"{name} has none of the endings {known}; read others as a data frame: calibrant.read(frame)"
            )
        names = schema.names  # which may be no text in UTF-8
    except CalibrantError:
        raise
    except Exception as error:  # of many kinds; each means that the file is broken, or holds objects
        raise broken(path, error) from error
    return Arrow(name, names, lambda chosen: _loaded(path, chosen), schema.metadata)


def _tensors(path: Path) -> dict[str, Array]:
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
    return arrays


def _names_in(text: str | bytes | None) -> list[str] | None:
    """Return the names in the metadata of a file; None where there are none."""
    try:
        found = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [str(one) for one in found] if isinstance(found, list) else None


def _decoded(name: str, values: Array) -> tuple[str, Array]:
    """Return a feature of text out of a format of numbers alone: rows of code points."""
    if FEATURE_TEXT not in name or values.ndim != 2 or not values.size:
        return name, values
    text: Array = np.ascontiguousarray(values, dtype=np.int32).view(f"<U{values.shape[1]}")[:, 0]
    return name.replace(FEATURE_TEXT, FEATURE), text


def _loaded(path: Path, names: Sequence[str] | None) -> Any:
    """Return columns of a Parquet or Feather file as an Arrow table, checked before anything touches its buffers."""
    try:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.ParquetFile(path).read(columns=names)
        table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
        table = table if names is None else table.select(names)
        table.validate(full=True)  # a reader of injured buffers would end the process
    except MemoryError as error:
        raise FileFormatError(f"{shown(path.name)} holds more than fits in memory") from error
    except Exception as error:  # of many kinds; each means that the file is broken
        raise broken(path, error) from error
    return table


def _open_frame(frame: Any) -> Table:
    import narwhals

    try:
        held = narwhals.from_native(frame, eager_only=True)
    except TypeError as error:
        raise InputError(f"expected a path or a data frame, got {type(frame).__name__}") from error
    held = held.rename({name: str(name) for name in held.columns if not isinstance(name, str)})

    def load(names: Sequence[str] | None) -> Any:
        try:
            return (held if names is None else held.select(names)).to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # a column of unlike objects
            raise InputError(f"the frame: {' '.join(str(error).split())[:160]}") from error

    return Arrow("the frame", held.columns, load)


def _dialect(text: str, name: str) -> tuple[str, list[list[str]], str]:
    """Return the delimiter, the first records, and the text of the header.

    The delimiter is the one that cuts the first records into the most cells, equally many in each.
    """
    found: list[tuple[bool, int, str, list[list[str]], str]] = []
    for delimiter in _DELIMITERS:
        taken: list[str] = []
        records: list[list[str]] = []
        header = ""
        with suppress(csv.Error), _long_cells():
            for record in csv.reader(_noted(io.StringIO(text, newline=""), taken), delimiter=delimiter):
                if record and not records:
                    header = "".join(taken)
                records += [record] if record else []
                if len(records) > _SAMPLED:
                    break
        if records:
            complete = records[: max(1, len(records) - 1)]  # the last may be cut where the sample ends
            alike = all(len(record) == len(records[0]) for record in complete)
            found.append((alike, len(records[0]), delimiter, records, header))
    if not found:
        raise FileFormatError(f"{name} is no table of text; check what it is")
    _, _, delimiter, records, header = max(found, key=lambda one: one[:2])
    return delimiter, records, header


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let the module ``csv`` read cells as long as a line may be."""
    limit = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _noted(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    """Yield lines, and keep them in ``taken``."""
    for line in lines:
        taken.append(line)
        yield line


def _length(record: Sequence[str]) -> int:
    return sum(map(len, record)) + 3 * len(record)


def _is_number(cell: str, sign: str) -> bool:
    try:
        return float(cell.strip().replace(sign, ".")) == float(cell.strip().replace(sign, "."))  # NaN is none
    except ValueError:
        return False


def _converted(column: Any, kind: Kind, name: str, table: Table) -> Any:
    """Return an Arrow column as NumPy has it; by way of DLPack, since ``to_numpy`` imports pandas."""
    types = pa.types
    array = column.combine_chunks()
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    lists = types.is_fixed_size_list(array.type) or types.is_list(array.type) or types.is_large_list(array.type)
    if kind == "any":
        numeric = types.is_integer(array.type) or types.is_floating(array.type) or types.is_decimal(array.type)
        kind = "number" if numeric else "text"
        if numeric and array.null_count:
            raise InputError(f"{table.name}, {table.place(_null(array))}: the column {name!r} is empty")
        if types.is_integer(array.type):
            return np.from_dlpack(array)
    if kind in ("text", "label"):
        if lists or types.is_nested(array.type):
            raise InputError(f"{table.name}: the column {name!r} holds {array.type}, not one value a row")
        try:
            text = array.cast(pa.string())
            text = (text.fill_null("") if text.null_count else text).dictionary_encode()
        except pa.ArrowInvalid as error:
            raise InputError(f"{table.name}: the column {name!r} holds bytes that are no text in UTF-8") from error
        return Texts(text.dictionary.to_pylist(), np.from_dlpack(text.indices))
    if lists:
        return _matrix(array, name, table)
    if not (types.is_integer(array.type) or types.is_floating(array.type)):
        try:
            array = array.cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"{table.name}: the column {name!r} holds {array.type}, not numbers") from error
    if types.is_integer(array.type):
        array = array.cast(pa.float64(), safe=False)
    return np.from_dlpack(array.fill_null(np.nan) if array.null_count else array)


def _matrix(array: Any, name: str, table: Table) -> Array:
    """Return a column of lists as (N, K)."""
    values = array.flatten()
    rows = len(array)
    if array.null_count or values.null_count or not rows or len(values) % rows:
        raise InputError(f"{table.name}: the lists in {name!r} are empty or of unlike length")
    if not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(np.from_dlpack(array.offsets))
        if (lengths != lengths[0]).any():
            row = int(np.argmax(lengths != lengths[0]))
            raise InputError(f"{table.name}, row {row}: {name!r} holds {lengths[row]} numbers, in row 0 {lengths[0]}")
    if not pa.types.is_floating(values.type):
        if not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
            raise InputError(f"{table.name}: the lists in {name!r} hold {values.type}, not numbers")
        values = values.cast(pa.float64())
    return np.from_dlpack(values).reshape(rows, -1)


def _null(array: Any) -> int:
    return int(np.argmax(np.from_dlpack(array.is_null().cast(pa.int8()))))


def _cells(values: Array, sign: str, delimiter: str) -> list[str]:
    """Return the text of each value of a column."""
    if values.ndim != 1:
        raise InputError("a table of text holds one number a cell; write .parquet or .jsonl")
    if values.dtype.kind != "f":
        return [_quoted(str(one), delimiter) for one in values.tolist()]
    return [repr(one).replace(".", sign) for one in values.astype(np.float64).tolist()]


def _quoted(cell: str, delimiter: str) -> str:
    if any(sign in cell for sign in (delimiter, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


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
            delimiter = "\t" if suffix == ".tsv" else ","
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(delimiter=delimiter))
