"""Predictions that do not fit in memory or on one machine, as batches of Parquet files.

``batches(path)`` reads them in this process, ``on_ray(path)`` as tasks of a Ray cluster. Calibrators can be fitted on them,
``evaluate`` computes metrics, and ``apply`` writes calibrated copies. ``on_ranks(rows)`` adds the sums of all ranks of
``torch.distributed``. The sums over batches are the same as those over rows in memory.
"""

import copy
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from calibrant._core.warn import report_progress
from calibrant._files import as_path, atomic_write, check_folder, check_source, error_boundary, same_file, shown
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.io import CALIBRATED, Part, calibrated_columns, read_contents
from calibrant.data.mapping import Mapped
from calibrant.data.predictions import Predictions
from calibrant.data.record import FEATURE
from calibrant.data.tables import Arrow, as_arrow
from calibrant.errors import CalibrantError, FileFormatError, InputError, NoIntervalError, optional
from calibrant.evaluate.panel import Panel, PanelRow
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, SumMetric
from calibrant.rows import Batch, RowSource, added
from calibrant.statistics.means import Powers

__all__ = ["Batches", "apply", "batches", "evaluate", "on_ranks", "on_ray"]

BATCH_ROWS = 1 << 16
BATCH_BYTES = 16 << 20  # size of a batch of float32 logits; computations in float64 take a few MiB more
READ_BYTES = 1 << 20  # without a read buffer Arrow loads whole column chunks: 587 MiB for 128k rows of 1,000 classes
LEVEL = 0.95


@dataclass(frozen=True)
class Piece:
    """A row group of a file, the unit that is read at once or sent to a worker."""

    path: Path
    group: int

    def __str__(self) -> str:
        return f"{shown(self.path)}, row group {self.group}"


@dataclass(frozen=True)
class Reader:
    """Converts Arrow batches to predictions.

    Args:
        mapped: The user's mapping of columns.
        split: Only rows with this value in the column ``split`` are read; None reads all rows.
        metadata: The metadata of the table.
        columns: The columns to read.
        classes: Number of classes K.
    """

    mapped: Mapped
    split: str | None
    metadata: Any
    columns: tuple[str, ...] = ()
    classes: int = 2

    def scan(self, piece: Piece, columns: Sequence[str] | None, *, smaller: int = 1) -> Iterator[Any]:
        """Yield some or all columns of a row group as Arrow tables, ``smaller`` times smaller than usual."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = None if columns is None else [*columns, *(["split"] if self.split else [])]
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * self.classes)) // smaller)
        with _open_parquet(piece.path) as file:
            # a data set's scanner would decode a whole row group at once
            found = file.iter_batches(rows, row_groups=[piece.group], columns=wanted)
            while True:
                with error_boundary("a readable parquet file", f"a broken one: {shown(piece.path)}", "write it again"):
                    batch = next(found, None)
                if batch is None:
                    return
                table = pa.Table.from_batches([batch])
                table = table if self.split is None else table.filter(pc.equal(table["split"], self.split))
                if table.num_rows:
                    yield table

    def part(self, table: Any, place: str, *, labelled: bool | None = None) -> tuple[Part, Predictions]:
        """Return which columns of an Arrow table hold scores, and its rows as predictions."""
        names = [name for name in table.column_names if name not in ("groups", "split") and FEATURE not in name]
        contents = read_contents(Arrow(place, names, table.select, self.metadata), self.mapped, labelled=labelled)
        [data] = contents.splits.values()
        return contents.parts[0], data

    def read(self, piece: Piece) -> Iterator[Predictions]:
        """Yield the rows of positive weight of a row group."""
        start = 0
        for table in self.scan(piece, self.columns):
            data = self.part(table, f"{piece}, from row {start}")[1].counted
            start += table.num_rows
            if len(data):
                yield data


class Batches(RowSource):
    """The rows of one or more Parquet files, read batch by batch for each sum; made by ``batches`` or ``on_ray``.

    Iteration yields ``Predictions``. A calibrator's ``fit`` accepts it in place of data in memory.

    Args:
        files: At least one Parquet file; all have the same columns.
        mapped: The user's mapping of columns.
        split: Only rows with this value in the column ``split`` are read; None reads all rows.
        on_ray: Whether each row group is a task of a Ray cluster.

    Attributes:
        files: The files, in order of their names.
        classes: Number of classes K.
        class_names: K names, or None.
        count: Number of rows with positive weight.
        mass: Sum of their weights.
        grouped: Whether rows are in groups; intervals for groups need the rows in memory.

    Examples:
        >>> import pathlib, tempfile, calibrant
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
        >>> calibrant.save_predictions(path, calibrant.Predictions.from_logits(2 * torch.eye(3), [0, 1, 1]))
        >>> rows = batches(path)
        >>> rows.count, [len(part) for part in rows]
        (3, [3])
    """

    device = torch.device("cpu")

    def __init__(self, files: Sequence[Path], mapped: Mapped, split: str | None, *, on_ray: bool) -> None:
        self.files, self.on_ray = list(files), on_ray
        opened = _metadata_of(files)
        schema = opened[0].schema.to_arrow_schema()
        if (split is None) == ("split" in schema.names):
            got = "no column 'split'" if split else "a column 'split'"
            raise InputError(f"{shown(files[0])} has {got}: {'leave the split out' if split else 'name one by split'}")
        self.grouped, reader = "groups" in schema.names, Reader(mapped, split, schema.metadata)
        self.pieces, self.count = [], 0
        for file, metadata in zip(files, opened, strict=True):
            for group in range(metadata.num_row_groups):
                piece, rows = Piece(file, group), metadata.row_group(group).num_rows
                rows = sum(table.num_rows for table in reader.scan(piece, [])) if split else rows
                self.pieces += [piece] * (rows > 0)
                self.count += rows
        self.marks = {file: _mark_of(file) for file in self.files}
        if not self.count:
            raise InputError("at least one row of positive weight", "none", "check how the rows were selected")
        self._first(reader)
        self.mass = float(self.count)
        self._stage: Callable[[Predictions], Iterator[Any]] = _batches_of
        self._steps: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()
        if self.weighted:
            self.count, self.mass = self._over(_itself_alone).total(_count_and_mass)

    def _first(self, reader: Reader) -> None:
        """Read a few rows to determine the columns to read, the classes and whether there are groups."""
        asked: list[str] = []
        table = next(reader.scan(self.pieces[0], None, smaller=512))
        names = [name for name in table.column_names if name not in ("groups", "split") and FEATURE not in name]

        def select(wanted: list[str] | None) -> Any:
            asked.extend(wanted or names)
            return table.select(wanted or names)

        found = read_contents(Arrow(str(self.pieces[0]), names, select, reader.metadata), reader.mapped)
        [data] = found.splits.values()
        if not isinstance(data, Predictions):
            raise InputError("one class per row", "several labels", "read the file into memory")
        self.classes, self.weighted, self.class_names = data.classes, data.weights is not None, data.class_names
        self.reader = replace(reader, columns=tuple(dict.fromkeys(asked)), classes=data.classes)

    def __iter__(self) -> Iterator[Predictions]:
        """Yield the rows in order."""
        for piece in self.pieces:
            yield from self.reader.read(piece)

    def _over(self, stage: Callable[[Predictions], Iterator[Any]]) -> "Batches":
        """Return a source of the results of ``stage`` for the predictions, instead of batches for a fit."""
        rows = copy.copy(self)
        rows._stage, rows._steps = stage, ()
        return rows

    def map(self, make: Callable[..., Any], *parameters: Any) -> "Batches":
        """Return a source of ``make(batch, *parameters)``, computed again for each sum."""
        rows = copy.copy(self)
        rows._steps = (*self._steps, (make, parameters))
        return rows

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` in the order of the batches; None without rows."""
        job = partial(_sum_of_piece, self.reader, self._stage, self._steps, work, parameters)
        self._check_files()
        found = added(one for one in self.run(job, self.pieces) if one is not None)
        self._check_files()
        return found

    def _check_files(self) -> None:
        """Raise an error if a file has changed since it was listed, because all sums of a fit must be over the same rows."""
        for file, mark in self.marks.items():
            if _mark_of(file) != mark:
                expected, got = f"{shown(file)} to stay unchanged", "a changed or missing file"
                raise FileFormatError(expected, got, "run it again when nothing writes to it")

    def run(self, job: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield ``job(item)`` for every item in order, in this process or as tasks of a Ray cluster, and report progress."""
        results = _on_ray(job, items) if self.on_ray else map(job, items)
        for number, result in enumerate(results, start=1):
            report_progress(f"{number} of {len(items)} {'files' if isinstance(items[0], tuple) else 'row groups'}")
            yield result


def _open_parquet(file: Path) -> Any:
    """Return a Parquet file opened for reading through a small buffer, with page checksums verified."""
    import pyarrow.parquet

    check_source(file)
    with error_boundary("a readable parquet file", f"a broken or truncated one: {shown(file)}", "write it again"):
        return pyarrow.parquet.ParquetFile(
            file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
        )


def _metadata_of(files: Sequence[Path]) -> list[Any]:
    """Return the metadata of the files.

    Raises:
        FileFormatError: If one is missing or broken, or has other columns than the first.
    """
    found: list[Any] = []
    for file in files:
        with _open_parquet(file) as opened:
            found.append(opened.metadata)
        if not found[-1].schema.to_arrow_schema().equals(found[0].schema.to_arrow_schema()):
            expected = f"the columns of {files[0].name} in every file of {shown(file.parent)}"
            raise FileFormatError(
                expected, f"other columns in {file.name}", "keep the outputs of one model in a folder"
            )
    return found


def _mark_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    # the last one also changes when a program resets the time of modification
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _itself_alone(data: Predictions) -> Iterator[Predictions]:
    yield data


def _count_and_mass(data: Predictions) -> tuple[int, float]:
    return len(data), float(data.row_weights.sum())


def _batches_of(data: Predictions) -> Iterator[Batch]:
    """Yield the batches of a fit."""
    if data.labels is None:
        raise InputError("a column label to fit on", "none", "add it")
    yield from Batch(data.logits, data.labels, data.weights).cut()


def _apply_calibrator(calibrator: Calibrator | None, data: Predictions) -> Iterator[Predictions]:
    yield data if calibrator is None else data.calibrated_by(calibrator)


def _sum_of_piece(reader: Reader, stage: Any, steps: Any, work: Any, parameters: Any, piece: Piece) -> Any:
    """Return Σ ``work`` over the rows of a row group; None if no row remains."""

    def made() -> Iterator[Any]:
        for data in reader.read(piece):
            for one in stage(data):
                for make, arguments in steps:
                    one = make(one, *arguments)
                yield work(one, *parameters)

    with torch.no_grad():
        try:
            return added(made())
        except InputError as error:
            raise error if error.place or shown(piece.path) in str(error) else error.at(str(piece)) from error


def _on_ray(job: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """Yield ``job(item)`` of every item in order, each a task of the Ray cluster, which runs it again if its worker dies."""
    ray = _import_ray()
    if not ray.is_initialized():  # at RAY_ADDRESS, or a cluster of this machine
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    task, shared = ray.remote(_call), ray.put(job)
    window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # bounds the results that wait for their turn
    waiting: deque[Any] = deque()
    remaining = iter(items)
    while True:
        while len(waiting) < window and (item := next(remaining, None)) is not None:
            waiting.append(task.remote(shared, item))
        if not waiting:
            return
        try:
            yield ray.get(waiting.popleft())
        except ray.exceptions.RayTaskError as error:  # its text would be the worker's traceback
            raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None


def _call(job: Callable[[Any], Any], item: Any) -> Any:
    return job(item)


def _import_ray() -> Any:
    with optional("ray", extra="ray"):
        import ray
    return ray


def batches(
    path: str | os.PathLike[str],
    *,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    kind: Literal["logits", "probs"] | None = None,
    weights: str | None = None,
    split: str | None = None,
) -> Batches:
    """Return the rows of a Parquet file, or of the ``*.parquet`` files in a folder, as batches that can be iterated repeatedly.

    Columns are recognised by their names as in ``calibrant.read``, or stated by the arguments.

    Args:
        path: The file or folder.
        columns: The columns of the scores: a pattern such as "p_*", or names.
        label: The column of the labels.
        kind: Whether the scores are "logits" or "probs".
        weights: The column of the weights.
        split: If the table has a column ``split``, its value in the rows to read.

    Returns:
        The rows as a source of batches.

    Raises:
        FileFormatError: If there is no such file, or a table has other columns than the first.
        InputError: If there are no rows.

    Examples:
        >>> import pathlib, tempfile, calibrant
        >>> from calibrant.calibrators import TemperatureScaling
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
        >>> data = calibrant.Predictions.from_logits(2 * torch.eye(3), [0, 1, 1])
        >>> calibrant.save_predictions(path, {"all": data})
        >>> TemperatureScaling().fit(batches(path))
        TemperatureScaling(temperature=1.443)
    """
    mapped = Mapped(columns=columns, label=label, kind=kind, weights=weights)
    return Batches(_files_of(path), mapped, split, on_ray=False)


def on_ray(path: str | os.PathLike[str], **options: Any) -> Batches:
    """Return the rows of Parquet files as ``batches`` does, read by the workers of a Ray cluster, one task per row group.

    The cluster is the one that ``ray.init`` has connected to, or the one at ``RAY_ADDRESS``, or a new one on this machine.
    Every node must be able to read the path. Ray repeats a task if its worker dies.

    Args:
        path: As for ``batches``.
        options: As for ``batches``.

    Returns:
        The rows as a source of batches.

    Raises:
        MissingExtraError: If Ray is not installed.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> TemperatureScaling().fit(on_ray("predictions/"))  # doctest: +SKIP
    """
    _import_ray()
    split = options.pop("split", None)
    return Batches(_files_of(path), Mapped(**options), split, on_ray=True)


def _files_of(path: str | os.PathLike[str]) -> list[Path]:
    home = as_path(path)
    files = sorted(home.glob("*.parquet")) if home.is_dir() else [home]
    if not files:
        inside = ", ".join(sorted({file.parent.name for file in home.glob("*/*.parquet")})[:10])
        remedy = f"there are some in its folders ({inside}): name one of these" if inside else "check the path"
        raise FileFormatError("a parquet file or a folder of them", f"none at {shown(path)}", remedy)
    return [file.absolute() for file in files]  # a worker may have another working directory


def logits_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size in bytes, as float32, of all numbers in a Parquet file that may be scores; 0 for any other file."""
    if Path(path).suffix != ".parquet" or not Path(path).is_file():
        return 0
    try:
        [metadata] = _metadata_of([Path(path)])
    except FileFormatError:  # reading the file later raises the reason
        return 0
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return 4 * sum(int(column.num_values) for column in columns if column.physical_type in ("FLOAT", "DOUBLE"))


def sum_metrics() -> list[SumMetric[Any]]:
    """Return the default panel's metrics that are sums of bounded size."""
    return [Accuracy(), NLL(), Brier(), ECE(EqualWidth(15)), MCE(EqualWidth(15)), ClasswiseECE(EqualWidth(15))]


def evaluate(
    source: Batches,
    *,
    metrics: Sequence[SumMetric[Any]] | None = None,
    calibrator: Calibrator | None = None,
    draws: int = 1000,
) -> Panel:
    """Return metrics over the rows of a source, with the same intervals and limits as ``evaluate.panel`` has in memory.

    Rows in groups have no intervals, which would need all rows of a group at once.

    Args:
        source: The result of ``batches`` or ``on_ray``.
        metrics: Metrics that are computed from sums; None takes accuracy, NLL, Brier score, ECE, MCE and ClasswiseECE.
        calibrator: A calibrator that is applied to every batch first, or None. It must not have been fitted on these rows.
        draws: Number of simulated outcomes for limits that need them; 0 leaves out all limits and intervals.

    Returns:
        One row per metric.

    Raises:
        InputError: If data are invalid; the error names file and row group.
        LeakError: If the calibrator was fitted on these rows.

    Examples:
        >>> import pathlib, tempfile, calibrant
        >>> from calibrant.metrics import ECE, Accuracy
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
        >>> data = calibrant.Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> calibrant.save_predictions(path, {"all": data})
        >>> print(evaluate(batches(path), metrics=[Accuracy(), ECE()]))
        Accuracy(): 0.8 [0.7112, 0.8666]
        ECE(binning=EqualWidth(bins=15), norm=1): 0.002184 [0, 0.09109], limit if calibrated 0.09121
    """
    chosen = tuple(sum_metrics() if metrics is None else metrics)
    uncertain = draws > 0 and not source.grouped
    rows = source._over(partial(_apply_calibrator, calibrator))
    states = dict(zip(chosen, rows.total(_states, chosen), strict=True))
    # the table does not contain how the classes of a row vary together, so this interval needs a second pass over the rows
    again = tuple((m, states[m]) for m in chosen if uncertain and isinstance(m, ClasswiseECE) and source.classes > 2)
    signed: dict[Any, Powers] = (
        dict(zip([m for m, _ in again], rows.total(_second_look, again), strict=True)) if again else {}
    )
    found = Panel()
    for metric in chosen:
        ends = _interval_ends(metric, states[metric], signed.get(metric), draws) if uncertain else (None,) * 4
        low, high, null_high, null_mean = ends
        found.append(
            PanelRow(repr(metric), metric.value(states[metric]), low, high, null_high, source.count, null_mean)
        )
    return found


def _states(data: Predictions, chosen: Sequence[Any]) -> Any:
    return tuple(metric.state(data) for metric in chosen)


def _second_look(data: Predictions, asked: Sequence[tuple[ClasswiseECE, BinTable]]) -> Any:
    return tuple(metric.signed(data, table) for metric, table in asked)


def _interval_ends(metric: Any, state: Any, signed: Powers | None, draws: int) -> tuple[float | None, ...]:
    """Return both ends of a metric's interval, its limit and its mean if calibrated, from its state; None if not known."""
    low = high = null_high = null_mean = None
    if metric.measures_calibration:
        with suppress(NoIntervalError):
            null = metric.null_of(state, level=LEVEL, draws=draws)
            null_high, null_mean = null.high, null.estimate
    with suppress(NoIntervalError):
        beside = {} if signed is None else {"signed": signed}
        found = metric.interval_of(state, level=LEVEL, **beside)
        low, high = found.low, found.high
    return low, high, null_high, null_mean


def apply(calibrator: Calibrator, source: Batches, out: str | os.PathLike[str]) -> list[Path]:
    """Write a copy of a data set with calibrated scores, one output file per input file.

    For each column of scores the output has an additional column with the prefix ``calibrated_`` and scores of the same kind.
    Everything else is copied. A file appears only when it is complete.

    Args:
        calibrator: A fitted calibrator for the same number of classes.
        source: The result of ``batches`` or ``on_ray``.
        out: A folder, which is created if it does not exist, or, for a single input file, a path that ends in .parquet.

    Returns:
        The paths of the output files.

    Raises:
        InputError: If data are invalid, the calibrator has another number of classes, or the output is an input.
        FileFormatError: If the folder cannot be written.

    Examples:
        >>> import pathlib, tempfile, calibrant
        >>> from calibrant.calibrators import TemperatureScaling
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> calibrant.save_predictions(
        ...     folder / "a.parquet", calibrant.Predictions.from_logits(2 * torch.eye(3), [0, 1, 1])
        ... )
        >>> rows = batches(folder / "a.parquet")
        >>> [file.name for file in apply(TemperatureScaling().fit(rows), rows, folder / "calibrated.parquet")]
        ['calibrated.parquet']
    """
    place = as_path(out, name="out").absolute()
    calibrator.check_input(torch.zeros(1, source.classes))  # raises before any work is done
    single = len(source.files) == 1 and place.suffix == ".parquet" and not place.is_dir()
    if not single:
        check_folder(out)
    targets = [place] if single else [place / file.name for file in source.files]
    for file, target in zip(source.files, targets, strict=True):
        if target.exists() and same_file(file, target):
            raise InputError("an output other than the input", f"{shown(out)} for both", "choose another output")
    targets[0].parent.mkdir(parents=True, exist_ok=True)
    reader = replace(source.reader, split=None)
    list(source.run(partial(_write_rows, calibrator, reader), list(zip(source.files, targets, strict=True))))
    return targets


def _write_rows(calibrator: Calibrator, reader: Reader, job: tuple[Path, Path]) -> None:
    import pyarrow.parquet

    file, target = job
    writer, [metadata] = None, _metadata_of([file])
    pieces = [Piece(file, group) for group in range(metadata.num_row_groups)]
    with atomic_write(target, inputs=[file]) as written, torch.no_grad():
        try:
            # the calibrated copy and the writer's buffers are in memory, too
            for table in (table for piece in pieces for table in reader.scan(piece, None, smaller=4)):
                table = _with_calibrated(calibrator, reader, table, shown(file))
                if writer is None:
                    options = {"use_dictionary": False, "write_page_checksum": True}
                    writer = pyarrow.parquet.ParquetWriter(written, table.schema, **options)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _with_calibrated(calibrator: Calibrator, reader: Reader, table: Any, place: str) -> Any:
    """Return an Arrow table with its calibrated scores."""
    part, data = reader.part(table, place, labelled=False)
    # rows that the calibrator was fitted on are allowed: nothing is evaluated here
    for name, values in calibrated_columns(part, data.calibrated_by(calibrator, allow_fit_rows=True)).items():
        if name in part.columns:
            table = table.append_column(CALIBRATED + name, as_arrow(values))
        elif name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, as_arrow(values))
        else:
            table = table.append_column(name, as_arrow(values))
    return table


class RankRows(RowSource):
    """The rows of all ranks of a ``torch.distributed`` group; made by ``on_ranks``."""

    def __init__(self, local: RowSource, group: Any) -> None:
        self.local, self.group = local, group
        ranks = self._gather((local.count, local.classes, local.weighted, local.mass))
        if len({rank[1] for rank in ranks}) > 1 or len({rank[2] for rank in ranks if rank[0]}) > 1:
            raise InputError(
                "the same number of classes on all ranks, and weights on all or none", f"{ranks}", "pass them"
            )
        self.count, self.mass, self.classes = (
            sum(rank[0] for rank in ranks),
            sum(rank[3] for rank in ranks),
            local.classes,
        )
        self.weighted, self.device = any(rank[2] for rank in ranks), local.device

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` over the batches of all ranks, in order of rank."""
        answers = self._agree(lambda: self.local.fold(work, *parameters))
        return added(value for value in answers if value is not None)

    @property
    def uncut(self) -> "RankRows":
        """The same rows, uncut on each rank."""
        rows = copy.copy(self)
        rows.local = self.local.uncut
        return rows

    def map(self, make: Callable[..., Any], *parameters: Any) -> "RankRows":
        """Return a source of ``make(batch, *parameters)``, computed on the batch's rank."""
        rows = copy.copy(self)

        def prepare() -> None:
            rows.local = self.local.map(make, *parameters)

        self._agree(prepare)
        return rows

    def _agree(self, task: Callable[[], Any]) -> list[Any]:
        """Return the results of ``task`` on all ranks; an error on one rank is raised on all, so that no rank waits for it."""
        try:
            mine, failed = task(), None
        except CalibrantError as error:
            mine, failed = None, error
        answers = self._gather((mine, failed))
        for rank, (_, found) in enumerate(answers):
            if found is not None:
                raise failed or InputError(f"rank {rank}: {found}")
        return [value for value, _ in answers]

    def _gather(self, mine: Any) -> list[Any]:
        from torch import distributed

        # states are moved to this rank's device: another rank's accelerator may not exist here
        content = io.BytesIO()
        torch.save(mine, content)
        found: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(found, content.getvalue(), group=self.group)
        return [torch.load(io.BytesIO(one), map_location=self.local.device, weights_only=False) for one in found]


def on_ranks(rows: RowSource, *, group: Any = None) -> RankRows:
    """Return the rows of all ranks of a ``torch.distributed`` group, in the order of the ranks.

    Every rank calls this with its own rows and then calls the same fit, whose results are bit-identical on all ranks. An error
    on one rank is raised on all.

    Args:
        rows: This rank's rows: ``rows.MemoryRows.of(logits, labels)``, or ``batches(path)``. A rank may have none.
        group: The process group; None is the default one.

    Returns:
        The rows of all ranks, which ``fit`` accepts in place of data in memory.

    Raises:
        InputError: If there is no process group, or the ranks differ in their number of classes, or in whether rows have weights.

    Examples:
        >>> from torch import distributed
        >>> store = distributed.HashStore()
        >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # torchrun sets these
        >>> from calibrant.calibrators import TemperatureScaling
        >>> from calibrant.rows import MemoryRows
        >>> TemperatureScaling().fit(on_ranks(MemoryRows.of(2 * torch.eye(3), [0, 1, 1])))
        TemperatureScaling(temperature=1.443)
        >>> distributed.destroy_process_group()
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        raise InputError("a process group", "none", "call torch.distributed.init_process_group first")
    return RankRows(rows, group)
