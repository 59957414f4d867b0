"""Processes predictions that do not fit in memory or on one machine, as batches of Parquet files.

``batches(path)`` reads the rows in this process, and ``on_ray(path)`` reads them in tasks of a Ray cluster. Calibrators
can be fitted on these rows, ``evaluate`` computes metrics, and ``apply`` writes calibrated copies. ``on_ranks(rows)``
adds the sums of all ranks of ``torch.distributed``. Sums over batches equal those over rows in memory.
"""

import copy
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from calibrant._core.warn import report_progress
from calibrant._files import as_path, atomic_write, check_folder, check_source, check_target, shown, unbroken
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.io import Part, calibrated_columns, read_contents
from calibrant.data.mapping import Mapped
from calibrant.data.predictions import Predictions
from calibrant.data.record import FEATURE
from calibrant.data.tables import Arrow, with_columns
from calibrant.errors import CalibrantError, FileFormatError, InputError, NoIntervalError, optional
from calibrant.evaluate.panel import Panel, row_of
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, SumMetric
from calibrant.rows import Batch, RowSource, added
from calibrant.statistics.means import Powers

__all__ = ["Batches", "apply", "batches", "evaluate", "on_ranks", "on_ray"]

BATCH_ROWS = 1 << 16
BATCH_BYTES = 16 << 20  # size of a batch of float32 logits; computations in float64 take a few MiB more
READ_BYTES = 1 << 20  # without a read buffer, Arrow loads whole column chunks: 587 MiB for 128k rows of 1,000 classes
LEVEL = 0.95


class Piece(NamedTuple):
    """A row group of a file: the unit of work, which can be sent to a worker."""

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
        columns: The columns to read; None reads all.
        classes: Number of classes K.
    """

    mapped: Mapped
    split: str | None
    metadata: Any
    columns: Sequence[str] | None = None
    classes: int = 2

    def scan(self, piece: Piece, *, smaller: int = 1) -> Iterator[Any]:
        """Yield a row group as Arrow tables that are smaller than usual by the factor ``smaller``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = None if self.columns is None else [*self.columns, *(["split"] if self.split else [])]
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * self.classes)) // smaller)
        with _open_parquet(piece.path) as file:
            # the scanner of an Arrow data set would decode a whole row group at once
            found = file.iter_batches(rows, row_groups=[piece.group], columns=wanted)
            while True:
                with unbroken(piece.path):
                    batch = next(found, None)
                if batch is None:
                    return
                table = pa.Table.from_batches([batch])
                table = table if self.split is None else table.filter(pc.equal(table["split"], self.split))
                if table.num_rows:
                    yield table

    def part(self, table: Any, place: str, *, labelled: bool | None = None) -> tuple[Part, Predictions]:
        """Return the location of the scores in an Arrow table, and its rows without groups and features."""
        names = [name for name in table.column_names if name not in ("groups", "split") and FEATURE not in name]
        contents = read_contents(Arrow(place, names, table.select, self.metadata), self.mapped, labelled=labelled)
        [data] = contents.splits.values()
        return contents.parts[0], data

    def read(self, piece: Piece) -> Iterator[Predictions]:
        """Yield the rows with positive weight in a row group."""
        start = 0
        for table in self.scan(piece):
            data = self.part(table, f"{piece}, from row {start}")[1].counted
            start += table.num_rows
            if len(data):
                yield data


class Batches(RowSource):
    """The rows of one or more Parquet files, which are read batch by batch for each sum.

    Create it with ``batches`` or ``on_ray``. Iteration yields ``Predictions``. A calibrator's ``fit`` accepts it
    instead of data in memory.

    Args:
        files: At least one Parquet file; all files have the same columns and must not change while this object is used.
        mapped: The user's mapping of columns.
        split: Only rows with this value in the column ``split`` are read; None reads all rows.
        on_ray: Whether each row group is read in a task of a Ray cluster.

    Attributes:
        files: The files in the order of their names.
        classes: Number of classes K.
        class_names: K class names, or None.
        count: Number of rows with positive weight.
        mass: Sum of the weights.
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
        self._steps: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()
        opened = _metadata_of(files)
        schema = opened[0].schema.to_arrow_schema()
        if (split is None) == ("split" in schema.names):
            got = "no column 'split'" if split else "a column 'split'"
            raise InputError(
                f"{shown(files[0])} has {got}; {'leave the split out' if split else 'name one with --split or split='}"
            )
        self.grouped, reader = "groups" in schema.names, Reader(mapped, split, schema.metadata)
        self.pieces, self.count = list[Piece](), 0
        for file, metadata in zip(files, opened, strict=True):
            for group in range(metadata.num_row_groups):
                piece, rows = Piece(file, group), metadata.row_group(group).num_rows
                if split:
                    rows = sum(table.num_rows for table in replace(reader, columns=()).scan(piece))
                self.pieces += [piece] * (rows > 0)
                self.count += rows
        if not self.count:
            raise InputError("at least one row of positive weight", "none", "check how the rows were selected")
        # a few rows show which columns to read, the classes, and whether there are weights
        part, data = reader.part(next(reader.scan(self.pieces[0], smaller=512)), str(self.pieces[0]))
        if not isinstance(data, Predictions):
            raise InputError("one class per row", "several labels", "read the file into memory")
        self.classes, self.weighted, self.class_names = data.classes, data.weights is not None, data.class_names
        self.reader, self.mass = replace(reader, columns=part.needed, classes=data.classes), float(self.count)
        if self.weighted:
            self.count, self.mass = self.sum(_count_and_mass)

    def __iter__(self) -> Iterator[Predictions]:
        """Yield the rows in order."""
        for piece in self.pieces:
            yield from self.reader.read(piece)

    def map(self, make: Callable[..., Any], *parameters: Any) -> "Batches":
        """Return a source of the batches ``make(batch, *parameters)``, which are computed again for each sum."""
        rows = copy.copy(self)
        rows._steps = (*self._steps, (make, parameters))
        return rows

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` in the order of the batches; None without rows."""
        return self.sum(partial(_sum_of_batches, self._steps, work, parameters))

    def sum(self, work: Callable[[Predictions], Any]) -> Any:
        """Return Σ ``work(predictions)`` over the rows as they are read; None without rows."""
        job = partial(_sum_of_piece, self.reader, work)
        return added(one for one in self.run(job, self.pieces) if one is not None)

    def run(self, job: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield ``job(item)`` for every item in order, from this process or a Ray cluster, and report progress."""
        results = _on_ray(job, items) if self.on_ray else map(job, items)
        what = "row groups" if isinstance(items[0], Piece) else "files"
        for number, result in enumerate(results, start=1):
            report_progress(f"{number} of {len(items)} {what}")
            yield result


def _open_parquet(file: Path) -> Any:
    """Return a Parquet file opened for reading through a small buffer, with page checksums verified."""
    import pyarrow.parquet

    check_source(file)
    with unbroken(file):
        return pyarrow.parquet.ParquetFile(
            file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
        )


def _metadata_of(files: Sequence[Path]) -> list[Any]:
    """Return the metadata of the files.

    Raises:
        FileFormatError: If a file is missing or broken, or its columns differ from those of the first.
    """
    found: list[Any] = []
    for file in files:
        with _open_parquet(file) as opened:
            found.append(opened.metadata)
        if not found[-1].schema.to_arrow_schema().equals(found[0].schema.to_arrow_schema()):
            expected = f"the columns of {files[0].name} in every file of {shown(file.parent)}"
            remedy = "keep only the outputs of one model in a folder"
            raise FileFormatError(expected, f"other columns in {file.name}", remedy)
    return found


def _count_and_mass(data: Predictions) -> tuple[int, float]:
    return len(data), float(data.row_weights.sum())


def _sum_of_batches(steps: Any, work: Any, parameters: Any, data: Predictions) -> Any:
    """Return Σ ``work`` over the batches of some rows, after applying the ``steps`` of ``map`` to each batch."""
    if (labels := data.labels) is None:
        raise InputError("a label column to fit on", "none", "add one")

    def results() -> Iterator[Any]:
        batch: Any
        for batch in Batch(data.logits, labels, data.weights).cut():
            for make, arguments in steps:
                batch = make(batch, *arguments)
            yield work(batch, *parameters)

    return added(results())


def _sum_of_piece(reader: Reader, work: Any, piece: Piece) -> Any:
    """Return Σ ``work`` over the rows of a row group; None if no row remains."""
    with torch.no_grad():
        try:
            return added(work(data) for data in reader.read(piece))
        except InputError as error:
            raise error if error.place or shown(piece.path) in str(error) else error.at(str(piece)) from error


def _on_ray(job: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """Yield ``job(item)`` for every item in order; each is a Ray task, which is repeated if its worker dies."""
    ray = _import_ray()
    if not ray.is_initialized():  # at RAY_ADDRESS, or a new cluster on this machine
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    call, shared, remaining = ray.remote(_call), ray.put(job), iter(items)
    window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # limits the results that wait for their turn
    waiting = deque(call.remote(shared, item) for item in islice(remaining, window))
    while waiting:
        try:
            result = ray.get(waiting.popleft())
        except ray.exceptions.RayTaskError as error:  # its text would contain the worker's traceback
            raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
        waiting.extend(call.remote(shared, item) for item in islice(remaining, 1))
        yield result


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
    """Return the rows of a Parquet file, or of all ``*.parquet`` files in a folder, as batches.

    The batches can be iterated over repeatedly. Columns are recognised by their names as in ``calibrant.read``, or
    named by the arguments.

    Args:
        path: The file or folder.
        columns: The score columns: a pattern such as "p_*", or names.
        label: The label column.
        kind: Whether the scores are "logits" or "probs".
        weights: The weight column.
        split: The split to read, if the table has a column ``split``.

    Returns:
        The rows as a source of batches.

    Raises:
        FileFormatError: If there is no such file, or the columns of a table differ from those of the first.
        InputError: If there are no rows, or the columns are invalid or not clear from their names.

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
    """Return the rows of Parquet files like ``batches``, but read them on a Ray cluster, with one task per row group.

    The cluster is the one that ``ray.init`` has connected to, the one at ``RAY_ADDRESS``, or a new one on this machine.
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
        raise FileFormatError("a parquet file or a folder of them", f"none at {shown(path)}", "check the path")
    return [file.absolute() for file in files]  # a worker may have another working directory


def logits_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size in bytes, as float32, of all numbers in a Parquet file that may be scores.

    Raises:
        FileFormatError: If the file is broken.
    """
    [metadata] = _metadata_of([Path(path)])
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return 4 * sum(int(column.num_values) for column in columns if column.physical_type in ("FLOAT", "DOUBLE"))


def sum_metrics() -> list[SumMetric[Any]]:
    """Return the metrics in the default panel that can be computed from sums of bounded size."""
    return [Accuracy(), NLL(), Brier(), ECE(EqualWidth(15)), MCE(EqualWidth(15)), ClasswiseECE(EqualWidth(15))]


def evaluate(
    source: Batches,
    *,
    metrics: Sequence[SumMetric[Any]] | None = None,
    calibrator: Calibrator | None = None,
    draws: int = 1000,
) -> Panel:
    """Compute metrics over the rows of a source, with the same intervals and limits as ``evaluate.panel`` in memory.

    For rows in groups there are no intervals, because these would need all rows of a group at once.

    Args:
        source: The result of ``batches`` or ``on_ray``.
        metrics: Metrics that are computed from sums; None uses accuracy, NLL, Brier score, ECE, MCE and ClasswiseECE.
        calibrator: A calibrator to apply to every batch first, or None. It must not have been fitted on these rows.
        draws: Number of simulated outcomes for limits that need simulation; 0 omits all limits and intervals.

    Returns:
        One row per metric.

    Raises:
        InputError: If the data are invalid; the error names the file and row group.
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
    states = dict(zip(chosen, source.sum(partial(_states, chosen, calibrator)), strict=True))
    # the table does not show how the classes of a row vary together, so this interval needs a second pass over the rows
    again: dict[Any, BinTable] = {
        m: states[m] for m in chosen if uncertain and isinstance(m, ClasswiseECE) and source.classes > 2
    }
    signed = dict(zip(again, source.sum(partial(_signed_sums, again, calibrator)), strict=True)) if again else {}
    found = Panel()
    for metric in chosen:
        ends = _interval_ends(metric, states[metric], signed.get(metric), draws) if uncertain else (None,) * 4
        found.append(row_of(metric, metric.value(states[metric]), *ends, n=source.count))
    return found


def _states(metrics: Sequence[Any], calibrator: Calibrator | None, data: Predictions) -> Any:
    data = data if calibrator is None else data.calibrated_by(calibrator)
    return tuple(metric.state(data) for metric in metrics)


def _signed_sums(tables: dict[Any, BinTable], calibrator: Calibrator | None, data: Predictions) -> Any:
    data = data if calibrator is None else data.calibrated_by(calibrator)
    return tuple(metric.signed(data, table) for metric, table in tables.items())


def _interval_ends(metric: Any, state: Any, signed: Powers | None, draws: int) -> tuple[float | None, ...]:
    """Return the ends of a metric's interval, and its limit and mean if calibrated; None for unknown values."""
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

    For each score column, the output has an additional column with the prefix ``calibrated_`` and scores of the same
    kind. Everything else is copied. An output file appears only when it is complete.

    Args:
        calibrator: A fitted calibrator for the same number of classes.
        source: The result of ``batches`` or ``on_ray``.
        out: A folder, which is created if it does not exist, or, for a single input file, a path that ends in .parquet.

    Returns:
        The paths of the output files.

    Raises:
        InputError: If the data are invalid, the number of classes differs, or an output is also an input.
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
    home = place.parent if single else place
    targets = [place] if single else [place / file.name for file in source.files]
    check_folder(home)
    home.mkdir(parents=True, exist_ok=True)
    for file, target in zip(source.files, targets, strict=True):
        check_target(target, inputs=[file])
    reader = replace(source.reader, split=None, columns=None)
    list(source.run(partial(_write_rows, calibrator, reader), list(zip(source.files, targets, strict=True))))
    return targets


def _write_rows(calibrator: Calibrator, reader: Reader, job: tuple[Path, Path]) -> None:
    """Write a calibrated copy of a file."""
    import pyarrow.parquet

    file, target = job
    writer = None
    with atomic_write(target) as written, torch.no_grad():
        try:
            for group in range(_metadata_of([file])[0].num_row_groups):
                # smaller tables, because the calibrated copy and the writer's buffers are also in memory
                for table in reader.scan(Piece(file, group), smaller=4):
                    part, data = reader.part(table, shown(file), labelled=False)
                    # rows used for fitting are allowed, because nothing is evaluated here
                    after = data.calibrated_by(calibrator, allow_fit_rows=True)
                    table = with_columns(table, calibrated_columns(part, after))
                    if writer is None:
                        options = {"use_dictionary": False, "write_page_checksum": True}
                        writer = pyarrow.parquet.ParquetWriter(written, table.schema, **options)
                    writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


class RankRows(RowSource):
    """The rows of all ranks in a ``torch.distributed`` group. Create it with ``on_ranks``."""

    def __init__(self, local: RowSource, group: Any) -> None:
        self.local, self.group, self.classes, self.device = local, group, local.classes, local.device
        facts = self._gather((local.count, local.mass, local.weighted, local.classes))
        counts, masses, weighted, classes = zip(*facts, strict=True)
        if len({*classes}) > 1:
            raise InputError("the same number of classes on all ranks", str(classes), "pass logits of one model")
        self.count, self.mass, self.weighted = sum(counts), sum(masses), any(weighted)

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` over the batches of all ranks, in the order of the ranks."""
        answers = self._agree(lambda: self.local.fold(work, *parameters))
        return added(value for value in answers if value is not None)

    @property
    def uncut(self) -> "RankRows":
        """The same rows, uncut on each rank."""
        rows = copy.copy(self)
        rows.local = self.local.uncut
        return rows

    def map(self, make: Callable[..., Any], *parameters: Any) -> "RankRows":
        """Return a source of the batches ``make(batch, *parameters)``, computed on the rank of each batch."""
        rows = copy.copy(self)

        def prepare() -> None:
            rows.local = self.local.map(make, *parameters)

        self._agree(prepare)
        return rows

    def _agree(self, task: Callable[[], Any]) -> list[Any]:
        """Return the results of ``task`` on all ranks.

        An error on one rank is raised on all ranks, so that no rank waits for it.
        """
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
    """Return the rows of all ranks in a ``torch.distributed`` group, in the order of the ranks.

    Every rank calls this function with its own rows and then calls the same fit, whose result is bit-identical on all
    ranks. An error on one rank is raised on all ranks.

    Args:
        rows: The rows of this rank: ``rows.MemoryRows.of(logits, labels)`` or ``batches(path)``. A rank may have no
            rows.
        group: The process group; None uses the default group.

    Returns:
        The rows of all ranks, which ``fit`` accepts instead of data in memory.

    Raises:
        InputError: If there is no process group, or the ranks differ in their number of classes.

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
