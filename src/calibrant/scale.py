"""Predictions larger than memory, or than one machine: Parquet files whose batches add up to the same sums as rows in memory.

``batches(path)`` reads them in this process, ``on_ray(path)`` as tasks of a Ray cluster. Calibrators fit on them, ``evaluate``
measures them, ``apply`` writes them calibrated. ``on_ranks(rows)`` adds the sums of the ranks of ``torch.distributed``.
"""

import copy
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from calibrant._core.warn import report_progress
from calibrant._files import as_path, atomic_write, check_folder, check_source, error_boundary, same_file, shown
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FileFormatError, InputError, NoIntervalError, optional
from calibrant.evaluate.panel import Panel, PanelRow
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, SumMetric
from calibrant.rows import Batch, RowSource, added
from calibrant.statistics.means import Powers

__all__ = ["Batches", "apply", "batches", "evaluate", "on_ranks", "on_ray"]

BATCH_BYTES = 16 << 20  # of logits in float32 at a time; float64 computations on them take a few MiB more
BATCH_ROWS = 1 << 16
READ_BYTES = 1 << 20  # without a read buffer Arrow loads whole column chunks: 587 MiB for 128k rows of 1,000 classes
PREFIXES = {"logits_": "logits", "logit_": "logits", "probs_": "probs", "prob_": "probs", "p_": "probs"}
LABELS = ("label", "labels", "y", "y_true", "target")
WEIGHTS, GROUPS = "weights", ("group", "groups")
LEVEL = 0.95


@dataclass(frozen=True)
class Part:
    """A row group of a file: what is read, and sent to a worker, at once.

    Args:
        file: Its file.
        group: Number of the row group.
        rows: Rows of positive weight in it, of the split that is read.
        start: Such rows before it.
        mark: Size and times of the file when it was listed.
    """

    file: Path
    group: int
    rows: int
    start: int
    mark: tuple[int, ...]

    def check(self) -> None:
        """Refuse a file that has changed since it was listed: the sums of one fit must be over the same rows."""
        if _mark_of(self.file) != self.mark:
            got = "a changed or missing file"
            raise FileFormatError(
                f"{shown(self.file)} to stay as it was", got, "run it again when nothing writes to it"
            )


@dataclass(frozen=True)
class Reader:
    """How the rows of a Parquet file become predictions.

    Args:
        kind: "logits" or "probs".
        columns: The column of lists, or one column for each class.
        classes: K.
        names: Names of the classes, which labels that are text go by; empty if the columns have numbers.
        label: The column of labels, or "".
        weights: The column of weights, or "".
        decision: The column of decisions that were taken, or "".
        split: The value of the column ``split`` of the rows that are read, or "".
    """

    kind: str
    columns: tuple[str, ...]
    classes: int
    names: tuple[str, ...] = ()
    label: str = ""
    weights: str = ""
    decision: str = ""
    split: str = ""

    @property
    def read(self) -> list[str]:
        """The columns that are read."""
        beside = (self.label, self.weights, self.decision, "split" * bool(self.split))
        return [*self.columns, *filter(None, beside)]

    def batches(self, file: Path, group: int, columns: Sequence[str] | None, *, share: int = 1) -> Iterator[Any]:
        """Yield the rows of a row group as Arrow batches of some columns, or of all; ``share`` times smaller than usual."""
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * self.classes)) // share)
        with open_parquet(file) as parquet:
            read = parquet.iter_batches(rows, row_groups=[group], columns=columns)
            while True:
                with error_boundary("a readable parquet file", f"a broken one: {shown(file)}", "write it again"):
                    batch = next(read, None)
                if batch is None:
                    return
                if self.split:
                    import pyarrow.compute

                    batch = batch.filter(pyarrow.compute.equal(batch.column("split"), self.split))
                yield batch

    def predictions(self, batch: Any, where: str) -> Predictions:
        """Return an Arrow batch as predictions."""
        try:
            return self._predictions(batch)
        except InputError as error:
            raise error.at(where) from error

    def _predictions(self, batch: Any) -> Predictions:
        if len(self.columns) == 1 < self.classes:
            scores = _numbers(batch.column(self.columns[0]).flatten(), self.kind).reshape(-1, self.classes)
        else:
            scores = np.column_stack([_numbers(batch.column(name), name) for name in self.columns])
        beside = {
            argument: _numbers(batch.column(name), name)
            for argument, name in (("labels", self.label), ("weights", self.weights))
            if name and not (argument == "labels" and self.names)
        }
        if self.label and self.names:
            beside["labels"] = np.array(batch.column(self.label).to_pylist())
        make = Predictions.from_logits if self.kind == "logits" else Predictions.from_probs
        found = make(scores, class_names=self.names or None, **beside)
        if not self.decision:
            return found
        return replace(found, decision=torch.from_numpy(_numbers(batch.column(self.decision), self.decision).copy()))


def _numbers(column: Any, name: str) -> Any:
    if column.null_count:
        raise InputError(f"{name} without nulls", "some", "fill or drop them")
    return column.to_numpy(zero_copy_only=False)


Unit = Callable[[Iterator[tuple[Part, int, Predictions]]], Iterator[Any]]


class Batches(RowSource):
    """The rows of a Parquet file, or of a folder of them, read batch by batch for each sum. Make it by ``batches`` or ``on_ray``.

    Iterating yields ``Predictions``. For a calibrator's ``fit`` it is a source of chunks.

    Args:
        files: Parquet files with the same columns.
        reader: How their rows become predictions.
        grouped: Whether rows lie in groups; their intervals need them in memory.
        on_ray: Whether each row group is a task of a Ray cluster.

    Attributes:
        files: Its files, in order of their names.
        classes: K.
        class_names: Their names, if labels are text.
        count: Rows of positive weight.
        grouped: Whether rows lie in groups; their intervals need them in memory.
    """

    device = torch.device("cpu")

    def __init__(self, files: Sequence[Path], reader: Reader, *, grouped: bool, on_ray: bool) -> None:
        self.files, self.reader, self.grouped, self.on_ray = list(files), reader, grouped, on_ray
        self.classes, self.weighted, self.class_names = reader.classes, bool(reader.weights), reader.names
        self.parts: list[Part] = []
        self.count, mass = 0, 0.0
        for file in self.files:
            mark = _mark_of(file)
            for group, (rows, weight) in enumerate(self._counts(file)):
                if rows:
                    self.parts.append(Part(file, group, rows, self.count, mark))
                self.count, mass = self.count + rows, mass + weight
        if not self.count:
            raise InputError("at least one row of positive weight", "none", "check how the rows were selected")
        # weights have the mean 1 in fits, so that their scale does not move a ridge against the rows
        self.mass = float(self.count)
        self._unit: Unit = partial(_chunks, self.count / mass if self.weighted else 1.0)
        self._steps: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()

    def _counts(self, file: Path) -> Iterator[tuple[int, float]]:
        """Yield the rows of positive weight of each row group, and the sum of their weights."""
        with open_parquet(file) as parquet:
            sizes = [parquet.metadata.row_group(k).num_rows for k in range(parquet.metadata.num_row_groups)]
        columns = [name for name in (self.reader.weights, "split" * bool(self.reader.split)) if name]
        for group, size in enumerate(sizes):
            if not columns:
                yield size, size
                continue
            rows, mass = 0, 0.0
            for batch in self.reader.batches(file, group, columns):
                weight = _numbers(batch.column(columns[0]), WEIGHTS) if self.weighted else np.ones(batch.num_rows)
                rows, mass = rows + int((weight > 0).sum()), mass + float(weight.sum())
            yield rows, mass

    def __iter__(self) -> Iterator[Predictions]:
        """Yield the rows in order."""
        for part in self.parts:
            for _, _, data in _read(self.reader, part):
                yield data

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)``, or None without batches."""
        job, done = partial(_sum_of_part, self.reader, self._unit, self._steps, work, parameters), 0

        def results() -> Iterator[Any]:
            nonlocal done
            for part, found in zip(self.parts, self.results(job, self.parts), strict=True):
                done += part.rows
                report_progress(f"{done:,} of {self.count:,} rows")
                if found is not None:
                    yield found

        return added(results())

    def map(self, make: Callable[..., Any], *parameters: Any) -> "Batches":
        """Return a source of ``make(batch, *parameters)``, made anew for each sum."""
        rows = copy.copy(self)
        rows._steps = (*self._steps, (make, parameters))
        return rows

    def in_units(self, unit: Unit) -> "Batches":
        """Return a source of what ``unit`` makes of the predictions of a part, instead of batches for a fit."""
        rows = copy.copy(self)
        rows._unit, rows._steps = unit, ()
        return rows

    def results(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield ``function(item)`` of every item in order: in this process, or each as a task of the Ray cluster."""
        if not self.on_ray:
            yield from map(function, items)
            return
        ray = _import_ray()
        if not ray.is_initialized():  # at RAY_ADDRESS, or a cluster of this machine
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        task, shared = ray.remote(_call), ray.put(function)
        window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # bounds the results that wait for their turn
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(task.remote(shared, item))
            if len(waiting) >= window:
                yield _result(ray, waiting.popleft())
        while waiting:
            yield _result(ray, waiting.popleft())


def batches(
    path: str | os.PathLike[str],
    *,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    kind: Literal["logits", "probs"] | None = None,
    weights: str | None = None,
    split: str | None = None,
) -> Batches:
    """Return the rows of a Parquet file, or of the ``*.parquet`` files of a folder, as batches that can be iterated again.

    Without options these names are read: ``logits`` or ``probs``, a list of K numbers a row; or a column for each class,
    ``logit_…``, ``logits_…``, ``p_…``, ``prob_…``, ``probs_…``; the labels ``label``, ``labels``, ``y``, ``y_true`` or
    ``target``; ``weights``; ``decision``.

    Args:
        path: The file or folder.
        columns: The columns of the scores: a pattern such as "p_*", or names.
        label: The column of the labels.
        kind: What the scores are.
        weights: The column of the weights.
        split: Of a table with a column ``split``, which rows to read.

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
    return _open(path, on_ray=False, columns=columns, label=label, kind=kind, weights=weights, split=split)


def on_ray(path: str | os.PathLike[str], **options: Any) -> Batches:
    """Return the same as ``batches``, read by the workers of a Ray cluster: each row group is a task, which returns its sums.

    The cluster is the one that ``ray.init`` connected to, else that at ``RAY_ADDRESS``, else one that is started on this
    machine. Every node must be able to read the path. Ray runs a task again if its worker dies.

    Args:
        path: As for ``batches``.
        options: As for ``batches``.

    Raises:
        MissingExtraError: If Ray is not installed.
    """
    _import_ray()
    return _open(path, on_ray=True, **options)


def _import_ray() -> Any:
    with optional("ray", extra="ray"):
        import ray
    return ray


def _open(path: str | os.PathLike[str], *, on_ray: bool, **options: Any) -> Batches:
    home = as_path(path)
    files = sorted(home.glob("*.parquet")) if home.is_dir() else [home]
    if not files:
        inside = ", ".join(sorted({file.parent.name for file in home.glob("*/*.parquet")})[:10])
        remedy = f"there are some in its folders ({inside}): name one of these" if inside else "check the path"
        raise FileFormatError("a parquet file or a folder of them", f"none at {shown(path)}", remedy)
    files = [file.absolute() for file in files]  # a worker may have another working directory
    readers: list[tuple[Reader, bool]] = []
    for file in files:
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
        readers.append((_reader_of(schema, file, **options), any(name in schema.names for name in GROUPS)))
        if readers[-1][0] != readers[0][0]:
            raise FileFormatError(
                f"the columns of {files[0].name} in every file of {shown(home)}",
                f"others in {file.name}",
                "keep the outputs of one model in a folder",
            )
    return Batches(files, readers[0][0], grouped=any(grouped for _, grouped in readers), on_ray=on_ray)


def _reader_of(
    schema: Any,
    file: Path,
    *,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    kind: str | None = None,
    weights: str | None = None,
    split: str | None = None,
) -> Reader:
    import pyarrow as pa

    names, types = list(schema.names), {name: schema.field(name).type for name in schema.names}
    scores, said, suffixes = _scores_in(names, types, file, columns, kind)
    listed = len(scores) == 1 and pa.types.is_fixed_size_list(types[scores[0]])
    classes = types[scores[0]].list_size if listed else len(scores)
    if classes < 2:
        raise FileFormatError(
            "scores of at least two classes", f"one in {shown(file)}", "name one column for each class"
        )
    for name in filter(None, (label, weights)):
        if name not in names:
            raise FileFormatError(f"a column {name!r} in {shown(file)}", ", ".join(names[:12]), "name one of these")
    label = label or _only([name for name in LABELS if name in names], file, "label")
    numbered = all(suffix.isdigit() for suffix in suffixes)
    text = bool(label) and not pa.types.is_integer(types[label])
    if text and (listed or numbered):
        raise FileFormatError(
            f"labels that are whole numbers in {shown(file)}", str(types[label]), "number the classes"
        )
    if split and "split" not in names:
        raise FileFormatError(f"a column 'split' in {shown(file)}", "none", "leave the split out")
    if not split and "split" in names:
        raise FileFormatError(f"one split of {shown(file)}", "a column 'split'", "name the split to read")
    return Reader(
        said,
        scores,
        classes,
        tuple(suffixes) if text else (),
        label,
        weights or WEIGHTS * (WEIGHTS in names),
        "decision" * ("decision" in names),
        split or "",
    )


def _scores_in(
    names: Sequence[str], types: Any, file: Path, columns: str | Sequence[str] | None, kind: str | None
) -> tuple[tuple[str, ...], str, list[str]]:
    """Return the columns of the scores, their kind, and what follows the prefix in the name of each."""
    if columns is not None:
        wanted = [one.strip() for one in columns.split(",")] if isinstance(columns, str) else list(columns)
        chosen = [name for one in wanted for name in names if (fnmatchcase(name, one) if "*" in one else name == one)]
        shared = wanted[0].partition("*")[0] if len(wanted) == 1 and wanted[0].endswith("*") else ""
        prefix = shared or next((one for one in PREFIXES if all(name.startswith(one) for name in chosen)), "")
        said = kind or PREFIXES.get(prefix, "")
    else:
        if listed := _only([name for name in ("logits", "probs") if name in names], file, "columns"):
            return (listed,), listed, []
        prefix = next((one for one in PREFIXES if sum(name.startswith(one) for name in names) > 1), "")
        chosen, said = [name for name in names if prefix and name.startswith(prefix)], kind or PREFIXES.get(prefix, "")
    if not chosen or not said:
        raise FileFormatError(
            f"scores in {shown(file)}",
            f"the columns {', '.join(names[:12])}",
            "say columns (a pattern such as p_*, or names), label, and kind (probs or logits)",
        )
    suffixes = [name.removeprefix(prefix) for name in chosen]
    if all(suffix.isdigit() for suffix in suffixes):  # whatever the order in the file
        order = sorted(range(len(chosen)), key=lambda k: int(suffixes[k]))
        chosen, suffixes = [chosen[k] for k in order], [suffixes[k] for k in order]
        if [int(one) for one in suffixes] != list(range(len(chosen))):
            raise FileFormatError(
                f"a column for each class from 0 in {shown(file)}", ", ".join(chosen[:12]), "add them"
            )
    return tuple(chosen), said, suffixes


def _only(found: Sequence[str], file: Path, option: str) -> str:
    """Return the one column that was found, or "" for none."""
    if len(found) > 1:
        raise FileFormatError(f"one column of one meaning in {shown(file)}", " and ".join(found), f"say {option}")
    return found[0] if found else ""


def open_parquet(file: Path) -> Any:
    """Return a Parquet file opened for reading through a small buffer, with page checksums verified.

    Raises:
        FileFormatError: If it is missing or broken.
    """
    import pyarrow.parquet

    check_source(file)
    with error_boundary("a readable parquet file", f"a broken or truncated one: {shown(file)}", "write it again"):
        return pyarrow.parquet.ParquetFile(
            file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
        )


def logits_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size in bytes of the scores of a Parquet file in float32; 0 for any other file."""
    file = Path(path)
    if file.suffix != ".parquet" or not file.is_file():
        return 0
    try:
        with open_parquet(file) as parquet:
            reader = _reader_of(parquet.schema_arrow, file, columns=None, label=None, kind=None, weights=None, split="")
            return 4 * reader.classes * int(parquet.metadata.num_rows)
    except FileFormatError:  # whoever reads it says why
        return 0


def _read(reader: Reader, part: Part) -> Iterator[tuple[Part, int, Predictions]]:
    """Yield the rows of positive weight of a part, each batch with the number of its first row."""
    start = part.start
    part.check()
    for batch in reader.batches(part.file, part.group, reader.read):
        where = f"{shown(part.file)}, row group {part.group}, batch from row {start - part.start}"
        data = reader.predictions(batch, where).counted if batch.num_rows else None
        if data is not None and len(data):
            yield part, start, data
            start += len(data)
    part.check()


def _mark_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    # the last one also changes when a program resets the time of modification
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _chunks(factor: float, read: Iterator[tuple[Part, int, Predictions]]) -> Iterator[Batch]:
    """Yield the batches of a fit, with weights of mean 1."""
    for _, _, data in read:
        if data.labels is None:
            raise InputError("a column label to fit on", "none", "add it")
        weight = None if data.weights is None else data.weights * factor
        yield from Batch(data.logits, data.labels, weight).cut()


def _sum_of_part(reader: Reader, unit: Unit, steps: Any, work: Any, parameters: Any, part: Part) -> Any:
    """Return Σ ``work`` of the units of a part; None if no row remains."""

    def made() -> Iterator[Any]:
        for one in unit(_read(reader, part)):
            for make, arguments in steps:
                one = make(one, *arguments)
            yield work(one, *parameters)

    with torch.no_grad():
        try:
            return added(made())
        except InputError as error:
            raise error if error.place else error.at(f"{shown(part.file)}, row group {part.group}") from error


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # its text would be the worker's traceback
        raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None


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
    """Return metrics over the rows of a source, with the intervals and limits that ``evaluate.panel`` has in memory.

    Rows in groups get no intervals: those need all rows of a group at once.

    Args:
        source: From ``batches`` or ``on_ray``.
        metrics: Metrics that are sums; None takes accuracy, NLL, Brier score, ECE, MCE and ClasswiseECE.
        calibrator: Applied to every batch first, or None. It must not have been fitted on these rows.
        draws: Outcomes drawn for the limits if calibrated that need them; 0 leaves all limits and the intervals out.

    Raises:
        InputError: If data are not valid; the message names file and row group.
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
    rows = source.in_units(partial(_calibrated, calibrator))
    states = dict(zip(chosen, rows.total(_states, chosen), strict=True))
    # how the classes of a row vary together is in no table: their interval needs the rows again
    again = tuple((m, states[m]) for m in chosen if uncertain and isinstance(m, ClasswiseECE) and source.classes > 2)
    signed: dict[Any, Powers] = (
        dict(zip([m for m, _ in again], rows.total(_second_look, again), strict=True)) if again else {}
    )
    found = Panel()
    for metric in chosen:
        ends = _ends(metric, states[metric], signed.get(metric), draws) if uncertain else (None,) * 4
        low, high, null_high, null_mean = ends
        found.append(
            PanelRow(repr(metric), metric.value(states[metric]), low, high, null_high, source.count, null_mean)
        )
    return found


def _calibrated(calibrator: Calibrator | None, read: Iterator[tuple[Part, int, Predictions]]) -> Iterator[Predictions]:
    for _, _, data in read:
        yield data if calibrator is None else data.calibrated_by(calibrator)


def _states(data: Predictions, chosen: Sequence[Any]) -> Any:
    return tuple(metric.state(data) for metric in chosen)


def _second_look(data: Predictions, asked: Sequence[tuple[ClasswiseECE, BinTable]]) -> Any:
    return tuple(metric.signed(data, table) for metric, table in asked)


def _ends(metric: Any, state: Any, signed: Powers | None, draws: int) -> tuple[float | None, ...]:
    """Return both ends of a metric's interval, and its limit and mean if calibrated, from its state; None for what there is not."""
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
    """Write a data set with calibrated scores, one file for each of its files, and return these.

    Beside each column of scores stands one called ``calibrated_`` and its name, of the same kind. All else is copied. A file
    appears when it is complete.

    Args:
        calibrator: A fitted calibrator for the same number of classes.
        source: From ``batches`` or ``on_ray``.
        out: A folder, made if it does not exist; for one input file also a name that ends in .parquet.

    Raises:
        InputError: If data are not valid, the calibrator has another number of classes, or the output is an input.
        FileFormatError: If the folder cannot be written.
    """
    place = as_path(out, name="out").absolute()
    calibrator.check_input(torch.zeros(1, source.classes))  # unfitted, or of another number of classes: before any work
    single = len(source.files) == 1 and place.suffix == ".parquet" and not place.is_dir()
    if not single:
        check_folder(out)
    targets = [place] if single else [place / file.name for file in source.files]
    for file, target in zip(source.files, targets, strict=True):
        if target.exists() and same_file(file, target):
            raise InputError("an output other than the input", f"{shown(out)} for both", "choose another output")
    targets[0].parent.mkdir(parents=True, exist_ok=True)
    jobs = list(zip(source.files, targets, strict=True))
    for number, _ in enumerate(source.results(partial(_write, calibrator, source.reader), jobs), start=1):
        report_progress(f"{number} of {len(jobs)} files")
    return targets


def _write(calibrator: Calibrator, reader: Reader, job: tuple[Path, Path]) -> None:
    import pyarrow.parquet

    file, target = job
    with open_parquet(file) as parquet:
        groups = parquet.metadata.num_row_groups
    writer = None
    with atomic_write(target, inputs=[file]) as written, torch.no_grad():
        try:
            for group in range(groups):
                # the calibrated copy and the writer's buffers are in memory, too
                for batch in reader.batches(file, group, None, share=4):
                    table = _with_calibrated(calibrator, reader, batch, f"{shown(file)}, row group {group}")
                    if writer is None:
                        writer = pyarrow.parquet.ParquetWriter(
                            written, table.schema, use_dictionary=False, write_page_checksum=True
                        )
                    writer.write_batch(table)
        finally:
            if writer is not None:
                writer.close()


def _with_calibrated(calibrator: Calibrator, reader: Reader, batch: Any, where: str) -> Any:
    """Return a batch with its calibrated scores."""
    import pyarrow as pa

    data = replace(reader.predictions(batch, where), labels=None, weights=None)
    # rows that the calibrator was fitted on are allowed: nothing is evaluated here
    after = data.calibrated_by(calibrator, allow_fit_rows=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    scores = (after.logits if reader.kind == "logits" else after.probs).contiguous().numpy()
    if len(reader.columns) == 1 < reader.classes:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(scores.reshape(-1)), after.classes)
        columns[f"calibrated_{reader.columns[0]}"] = lists
    else:
        columns |= {f"calibrated_{name}": pa.array(scores[:, k].copy()) for k, name in enumerate(reader.columns)}
    if after.decision is not None:
        columns["decision"] = pa.array(after.decision.numpy())
    return pa.record_batch(list(columns.values()), names=list(columns))


class RankRows(RowSource):
    """The rows of all ranks of a ``torch.distributed`` group; made by ``on_ranks``."""

    def __init__(self, local: RowSource, group: Any) -> None:
        self.local, self.group = local, group
        ranks = self._gather((local.count, local.classes, local.weighted, local.mass))
        if len({rank[1] for rank in ranks}) > 1 or len({rank[2] for rank in ranks if rank[0]}) > 1:
            raise InputError("ranks with equally many classes, and weights on all or on none", f"{ranks}", "pass them")
        self.count, self.mass, self.classes = (
            sum(rank[0] for rank in ranks),
            sum(rank[3] for rank in ranks),
            local.classes,
        )
        self.weighted, self.device = any(rank[2] for rank in ranks), local.device

    def fold(self, work: Callable[..., Any], *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` over the ranks, in their order."""
        answers = self._agree(lambda: self.local.fold(work, *parameters))
        return added(value for value in answers if value is not None)

    @property
    def uncut(self) -> "RankRows":
        """The same rows, uncut on each rank."""
        rows = copy.copy(self)
        rows.local = self.local.uncut
        return rows

    def map(self, make: Callable[..., Any], *parameters: Any) -> "RankRows":
        """Return what ``make`` makes of every batch, on its rank."""
        rows = copy.copy(self)

        def prepare() -> None:
            rows.local = self.local.map(make, *parameters)

        self._agree(prepare)
        return rows

    def _agree(self, task: Callable[[], Any]) -> list[Any]:
        """Return what ``task`` returns on every rank; an error on one of them is raised on all, so that none waits for it."""
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

    Every rank makes it of its own rows and then calls the same fit, which ends in the same bits on all of them. An error on
    one rank is raised on all.

    Args:
        rows: This rank's rows: ``rows.MemoryRows.of(logits, labels)``, or ``batches(path)``. A rank may hold none.
        group: The process group; None is the default one.

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
