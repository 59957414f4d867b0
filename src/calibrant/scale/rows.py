"""Prediction tables larger than memory: Parquet files, read in pieces of bounded size and checked for changes meanwhile."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import as_tensor, check_labels
from calibrant._core.files import error_boundary
from calibrant._core.paths import as_path, check_source, shown
from calibrant.data.formats.columns import numbers_of, spread_columns
from calibrant.data.formats.layout import WEIGHTS
from calibrant.data.predictions import Predictions
from calibrant.data.record import is_beside
from calibrant.data.splits import refuse_ambiguous, rows_in
from calibrant.errors import FileFormatError, InputError, Remedy

PIECE_BYTES = 16 << 20  # of logits in memory at a time; float64 computations on a piece take a few MiB more
READ_BYTES = 1 << 20  # without a read buffer Arrow loads whole column chunks: 587 MiB for 128k rows of 1,000 classes
_ONE_A_ROW = ("label", "labels", "group", "groups", "decision")
_SEVERAL_LABELS = Remedy(
    "use evaluate_multilabel_streamed for several labels a row", command="add --multilabel", option="--multilabel"
)
_RELABEL = "count classes from 0, and leave out rows without a label when writing the files"
MOST_CLASSES = 1 << 22  # one such row fills a piece; a schema with more classes is taken as broken


@dataclass(frozen=True)
class Shard:
    """One row group of one file: the unit of reading, evaluation, retries and resumption.

    Args:
        file: The file's name in the data set's folder.
        row_group: Index of the row group, from 0.
        rows: Rows in it.
        mark: The file's size, mtime and ctime when it was listed; reading raises if they have changed.
    """

    file: str
    row_group: int
    rows: int
    mark: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """A name that is unique in the data set."""
        return f"{self.file}#{self.row_group}"


class ParquetRows:
    """A Parquet file, or a folder of them, with ``logits`` or ``probs`` (fixed_size_list<float>[K]) and ``label``.

    One column for each class, ``logits_0`` … or ``probs_0`` …, is taken as well.

    Args:
        path: The file or folder; a folder's ``*.parquet`` files are read in order of their names.

    Raises:
        InputError: If ``path`` is no path, or there are no rows.
        FileFormatError: If there is no such table, the files disagree, or one has two columns of the same meaning. While
            rows are read: if a file has changed since it was listed, or a page does not match its checksum.

    Examples:
        >>> from calibrant import Predictions
        >>> import tempfile, pathlib, calibrant
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
        >>> calibrant.save_predictions(path, {"all": Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])})
        >>> ParquetRows(path).rows
        2
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        self._home = self.folder.absolute()  # a worker may have another working directory
        files = _files_of(self.path) if self.path.is_dir() else [self.path]
        if not files or not os.path.lexists(files[0]):
            inside = ", ".join(sorted({file.parent.name for file in self.path.glob("*/*.parquet")})[:10])
            remedy = f"there are some in its folders ({inside}): name one of these" if inside else "check the path"
            raise FileFormatError("a parquet file or a folder of them", f"none at {shown(path)}", remedy)
        self.files = files
        self.kind, self.classes = "", 0
        self.spread: tuple[str, ...] = ()  # the columns of the classes, where each has one
        self.beside: tuple[str, ...] | None = None
        self._grouped = 0  # files whose rows have groups
        self.shards: list[Shard] = []
        for file in files:
            self._add(file)
        if not self.rows:
            raise InputError("at least one row", f"none in {path}", "check how the data were selected")

    @classmethod
    def of(cls, path: "str | os.PathLike[str] | ParquetRows") -> "ParquetRows":
        """Return ``ParquetRows(path)``, or ``path`` itself if it is one, so that several passes read the same file versions."""
        return path if isinstance(path, ParquetRows) else cls(path)

    @property
    def rows(self) -> int:
        """N."""
        return sum(shard.rows for shard in self.shards)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return WEIGHTS in (self.beside or ())

    @property
    def grouped(self) -> bool:
        """Whether rows of some file have groups."""
        return self._grouped > 0

    @property
    def partly_grouped(self) -> bool:
        """Whether rows of some files have groups and those of others have none, so that no units are known."""
        return 0 < self._grouped < len(self.files)

    @property
    def folder(self) -> Path:
        """The folder the shards' file names are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def starts(self) -> dict[str, int]:
        """Return how many rows of positive weight lie before each shard, by its name."""
        found, before = {}, 0
        for shard in self.shards:
            found[shard.name] = before
            before += self._count(shard)
        return found

    def _count(self, shard: Shard) -> int:
        if not self.weighted:
            return shard.rows
        with open_parquet(self.file(shard)) as parquet:
            batches = parquet.iter_batches(row_groups=[shard.row_group], columns=[WEIGHTS], use_threads=False)
            weights = (batch.column(0).to_numpy(zero_copy_only=False) for batch in batches)
            return int(sum((w > 0).sum() for w in weights))

    def file(self, shard: Shard) -> Path:
        """Return the absolute path of the file of ``shard``."""
        return self._home / shard.file

    def read(self, shard: Shard) -> Iterator[Predictions]:
        """Yield the rows of ``shard`` in order, in pieces of about 16 MiB."""
        for _, piece in self.pieces(shard):
            yield piece

    def pieces(self, shard: Shard, *, share: int = 1) -> Iterator[tuple[Any, Predictions]]:
        """Yield the rows of ``shard`` in order as Arrow batches with all columns, and as predictions.

        Args:
            shard: The row group.
            share: Pieces are 16 MiB divided by this number.
        """
        file = self.file(shard)
        _check_unchanged(file, shard)
        offset = 0
        try:
            with open_parquet(file) as parquet:
                # in float32, whatever the file has
                step = max(1, PIECE_BYTES // (4 * self.classes * share))
                # the row group in pieces: its size is the writer's choice, and may exceed the memory
                batches = parquet.iter_batches(batch_size=step, row_groups=[shard.row_group], use_threads=False)
                for read in _readable_batches(batches, self.folder / shard.file):
                    batch = _as_lists(read, self.kind, self.spread) if self.spread else read
                    yield batch, self._predictions(batch, shard, offset)
                    offset += batch.num_rows
        except FileFormatError:
            _check_unchanged(file, shard)  # a file that is being written again reads as a broken one
            raise
        _check_unchanged(file, shard)
        if offset != shard.rows:
            raise FileFormatError(
                f"{shard.rows} rows in row group {shard.row_group}",
                f"{offset} in {self.folder / shard.file}",
                "write it again",
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker, which receives its shards separately: without the lists of shards and files."""
        return {**self.__dict__, "shards": [], "files": []}

    def _add(self, file: Path) -> None:
        mark = _mark_of(file)
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            refuse_ambiguous(schema.names, "", file)
            kind, spread = _class_columns(schema) or (_scores_column(schema, file), ())
            if "split" in schema.names:
                raise FileFormatError(
                    "rows of one split to stream",
                    f"a column split in {shown(file)}",
                    "write each split to a file of its own, called as the split is, in one folder",
                )
            classes = len(spread) or schema.field(kind).type.list_size
            if not 2 <= classes <= MOST_CLASSES:
                raise FileFormatError(
                    f"2 to {MOST_CLASSES} classes", f"K = {classes} in {file}", "write one column entry a class"
                )
            if (self.kind, self.classes, self.spread) not in (("", 0, ()), (kind, classes, spread)):
                raise FileFormatError(
                    f"{self.kind} over {self.classes} classes as in the first file",
                    f"{kind} over {classes} in {file}",
                    "keep one model's outputs in a folder",
                )
            beside = tuple(name for name in schema.names if name == WEIGHTS or is_beside(name))
            first = beside if self.beside is None else self.beside  # its order, as in memory: trees break ties by it
            if sorted(first) != sorted(beside):
                raise FileFormatError(
                    f"weights and features {sorted(first)} as in the first file",
                    f"{sorted(beside)} in {file}",
                    "give all files of a folder the same columns",
                )
            self.kind, self.classes, self.spread, self.beside = kind, classes, spread, first
            self._grouped += any(name in schema.names for name in ("group", "groups"))
            meta = parquet.metadata
            counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        self.shards += [Shard(file.name, i, count, mark) for i, count in enumerate(counts) if count]

    def _predictions(self, batch: Any, shard: Shard, offset: int) -> Predictions:
        where = f"{self.folder / shard.file}, row group {shard.row_group}, rows {offset}–{offset + batch.num_rows - 1}"
        held = {self.kind, *_ONE_A_ROW, *(self.beside or ())}
        try:
            arrays = {name: self._array(name, batch.column(name)) for name in batch.schema.names if name in held}
            labels = next((arrays[name] for name in ("label", "labels") if name in arrays), None)
            if labels is not None:
                check_labels(as_tensor(labels, name="labels"), rows=len(labels), classes=self.classes, remedy=_RELABEL)
        except InputError as error:
            raise error.at(where) from error
        rows: Predictions = rows_in(arrays, "", where)
        return rows

    def _array(self, name: str, column: Any) -> Any:
        """Return a column as an array: the scores (N, K), anything else (N,)."""
        if name in _ONE_A_ROW and column.type.num_fields:
            raise InputError("one label, group or decision a row", str(column.type), _SEVERAL_LABELS)
        values = column.flatten() if name == self.kind else column
        if column.null_count or values.null_count:
            raise InputError(f"{name} without nulls", "some", "fill or drop them")
        array = values.to_numpy(zero_copy_only=False)
        return array.reshape(-1, self.classes) if name == self.kind else np.array(array)


def _scores_column(schema: Any, file: Path) -> str:
    """Return whether a table's column of scores is logits or probs.

    Raises:
        FileFormatError: If there is none of a fixed number of classes.
    """
    import pyarrow as pa

    kind = next((name for name in ("logits", "probs") if name in schema.names), None)
    if kind is not None and pa.types.is_fixed_size_list(schema.field(kind).type):
        return kind
    remedy: str | Remedy = "write it with calibrant.save_predictions"
    if any(name.startswith("labels:") for name in schema.names):  # as save_multilabel writes them
        remedy = _SEVERAL_LABELS
    got = f"{schema.names[:8]} in {file}"
    raise FileFormatError("a column logits or probs of type fixed_size_list<float>[K]", got, remedy)


def _class_columns(schema: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return logits or probs and its columns, of a table with one column of floats for each class, numbered from 0."""
    import pyarrow as pa

    numeric = all(pa.types.is_integer(schema.field(name).type) for name in ("label", "labels") if name in schema.names)
    for kind, names in spread_columns(schema.names).items():
        floats = all(pa.types.is_floating(schema.field(name).type) for name in names)
        if kind in ("logits", "probs") and floats and numeric and numbers_of(names) == tuple(range(len(names))):
            return kind, tuple(names)
    return None


def _as_lists(batch: Any, kind: str, spread: tuple[str, ...]) -> Any:
    """Return a batch whose columns ``spread`` are one column of lists."""
    import pyarrow as pa

    table = np.column_stack([batch.column(name).to_numpy(zero_copy_only=False) for name in spread])  # a null is NaN
    rest = [name for name in batch.schema.names if name not in spread]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(table.reshape(-1)), len(spread))
    return pa.RecordBatch.from_arrays([lists, *map(batch.column, rest)], names=[kind, *rest])


def _readable_batches(batches: Iterator[Any], file: Path) -> Iterator[Any]:
    while True:
        # Arrow's errors share no public base class
        with error_boundary("a readable parquet file", f"a broken one: {file}", "write it again"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _files_of(folder: Path) -> list[Path]:
    """Return a folder's Parquet files in order of their names.

    Raises:
        FileFormatError: If rows would be left out or counted twice: a suffix in capitals, or two names of one file.
    """
    named = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".parquet")
    first: dict[tuple[int, int], Path] = {}
    for file in named:
        if file.suffix != ".parquet":
            raise FileFormatError("shards that end in .parquet", f"{shown(file)}", "rename it")
        try:
            found = file.stat()
        except OSError:  # a dangling link, which its reading reports
            continue
        # by device and inode: links to one file would count its rows twice
        other = first.setdefault((found.st_dev, found.st_ino), file)
        if other is not file:
            raise FileFormatError(
                "each shard once",
                f"{shown(other.name)} and {shown(file.name)} in {shown(folder)}, which are one file",
                "leave one out",
            )
    return named


def open_parquet(file: Path) -> Any:
    """Return a Parquet file opened for reading through a small buffer, with page checksums verified.

    Args:
        file: Its path.

    Raises:
        FileFormatError: If it is missing or broken, or no regular file.
    """
    import pyarrow.parquet

    check_source(file)
    with error_boundary("a readable parquet file", f"a broken or truncated one: {shown(file)}", "write it again"):
        return pyarrow.parquet.ParquetFile(
            file, buffer_size=READ_BYTES, pre_buffer=False, memory_map=False, page_checksum_verification=True
        )


def file_identity(file: Path) -> list[Any]:
    """Return an identity of a file's content: size, mtime, ctime, and a hash of its footer, which describes all row groups.

    ``ctime`` also changes when a program resets ``mtime`` after writing.

    Args:
        file: A Parquet file.
    """
    with open(check_source(file), "rb") as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(max(0, size - 8))
        # a Parquet file ends in its metadata, their length in four bytes, and "PAR1"
        footer = 8 + int.from_bytes(content.read(4), "little")
        content.seek(max(0, size - footer))
        digest = hashlib.sha256(content.read()).hexdigest()
    return [*_mark_of(file), digest]


def logits_bytes(path: str | os.PathLike[str], *, spread: bool = False) -> int:
    """Return the size in bytes of a Parquet file's ``logits`` or ``probs`` as float32; 0 for other files.

    Args:
        path: The file.
        spread: Whether one column for each class counts as well.
    """
    import pyarrow as pa

    file = Path(path)
    if file.suffix != ".parquet" or not file.is_file():
        return 0
    try:
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            kinds = [schema.field(name).type for name in ("logits", "probs") if name in schema.names]
            sizes = [kind.list_size for kind in kinds if pa.types.is_fixed_size_list(kind)]
            if spread and (found := _class_columns(schema)) is not None:
                sizes.append(len(found[1]))
            return 4 * max(sizes, default=0) * int(parquet.metadata.num_rows)
    except FileFormatError:  # reading the file raises it again, for the user
        return 0


def _mark_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_unchanged(file: Path, shard: Shard) -> None:
    if shard.mark and _mark_of(file) != shard.mark:
        raise FileFormatError(
            f"{shown(file)} to stay as it was when it was listed",
            "a changed or missing file",
            "run it again when nothing writes to it",
        )
