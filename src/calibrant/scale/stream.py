"""Metrics of tables larger than memory: in bounded memory, resumable, with the values of an in-memory evaluation."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.config import to_plain
from calibrant._core.constraints import MOST_DRAWS, Integer, Kind, Natural, checked
from calibrant._core.paths import as_path, shown
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.data.checks import Summed, calibrated, states_of
from calibrant.data.multilabel import MultiLabelPredictions
from calibrant.data.predictions import Predictions
from calibrant.data.splits import multilabel_batches
from calibrant.errors import NoIntervalError, Remedy
from calibrant.evaluate.multilabel import MultiLabelRow, panel_of
from calibrant.evaluate.panel import Panel, PanelRow
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, MeanMetric, Metric, SumMetric, SumMetrics
from calibrant.metrics.classwise import ClassSums, ClassTables
from calibrant.rows.source import added, reduced
from calibrant.scale.execute import Executor, Progress, Runner, in_turn
from calibrant.scale.passes import (
    ParquetSource,
    Passes,
    Pieces,
    SomeCalibrator,
    calibrator_identity,
)
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.statistics.interval import MeanSums
from calibrant.statistics.null import HasMoments

SeveralLabelsCalibrator = Annotated[
    MultiLabelCalibrator,
    Kind(
        MultiLabelCalibrator,
        Remedy("load it with MultiLabelCalibrator.load", command="add --multilabel", option="--multilabel"),
    ),
]
_KEPT = 1 << 30  # bytes of states that a checkpoint keeps: bins of every class of a large vocabulary


@dataclass(frozen=True)
class IntervalMoments(SumMetric[Any]):
    """What the uncertainty of a metric is computed from: sums that add, in memory and on disk.

    Args:
        metric: A mean over rows, or a binned error in fixed bins.
        event: Whether of the probability of the second class of two, not of the decision's.
    """

    metric: Any
    event: bool = False

    better, bounds, notion, cite = "lower", (0.0, inf), "moments", "–"

    @staticmethod
    def known_for(metric: Metric) -> bool:
        """Return whether there are such sums for ``metric``."""
        return isinstance(metric, MeanMetric | HasMoments)

    def state(self, data: Any) -> Any:
        """Return the sums of ``data``; for bins of equal mass what their edges follow from, with which ``again`` sums in them."""
        rows = data.one_vs_rest(1) if self.event else data  # of two classes an interval is that of the event, class 1
        return self.metric.state(rows) if self.of_equal_mass else self.metric.moments(rows)

    @property
    def of_equal_mass(self) -> bool:
        """Whether the bins are known only when all rows were looked at."""
        return isinstance(getattr(self.metric, "binning", None), EqualMass)

    def draws_labels(self, rows: ParquetRows) -> bool:
        """Return whether the limits if calibrated are of labels that a second pass draws."""
        return isinstance(self.metric, ClasswiseECE) and rows.classes > 2 and not rows.grouped

    def looks_again(self, rows: ParquetRows, draws: int) -> bool:
        """Return whether the sums need a second pass over ``rows``, and what it keeps is not too much."""
        if not draws:
            return False
        if self.draws_labels(rows):
            return self.metric.looks_twice(rows.classes, draws)
        return self.of_equal_mass

    def again(self, rows: ParquetRows, state: Any) -> "tuple[IntervalMoments, ClassSums | None]":
        """Return what a second pass sums, and the sums of the first that it completes, if any.

        Args:
            rows: The data set.
            state: Of all rows.
        """
        fixed = replace(self, metric=self.metric.in_fixed_bins(state)) if self.of_equal_mass else self
        if not self.draws_labels(rows):
            return fixed, None
        return fixed, self.metric.sums_of_tables(state) if self.of_equal_mass else state

    def value(self, state: Any) -> float:
        """Return the metric of a state."""
        return state.rows.mean if isinstance(state, MeanSums) else float(self.metric.errors(state.table))

    def figures(self, state: Any, *, draws: int, seed: int = 0, level: float = 0.95) -> dict[str, Any]:
        """Return ``low`` and ``high`` where there is an interval, and ``null_high`` and ``null_mean`` of a binned error."""
        if isinstance(state, ClassTables) or (
            isinstance(state, ClassSums) and state.units is None and state.null is None
        ):
            return {}  # too many bins to draw labels in
        found: dict[str, Any] = {}
        with suppress(NoIntervalError):
            null = None
            if not isinstance(state, MeanSums):
                null = self.metric.null_of(state, draws=draws, seed=seed)
                found |= {"null_high": float(torch.quantile(null, (1 + level) / 2)), "null_mean": float(null.mean())}
            if hasattr(self.metric, "interval_of"):
                ends = self.metric.interval_of(state, null=null, level=level)
                found |= {"low": ends.low, "high": ends.high}
        return found


@dataclass(frozen=True)
class PlacedPieces:
    """Yields all pieces of a shard at once, each with how many rows of positive weight, by their counts if any, lie before it.

    Args:
        pieces: Yields the pieces.
        starts: How many lie before each shard, by its name.
    """

    pieces: Pieces
    starts: dict[str, int]

    def __call__(self, rows: ParquetRows, shard: Shard) -> Iterator[Iterator[tuple[int, Predictions]]]:
        yield self._placed(rows, shard)

    def _placed(self, rows: ParquetRows, shard: Shard) -> Iterator[tuple[int, Predictions]]:
        start = self.starts[shard.name]
        for piece in self.pieces(rows, shard):
            yield start, piece
            start += piece.count


def looks(rows: ParquetRows, asked: Sequence[Any], *, draws: int) -> int:
    """Return how many passes the sums ``asked`` need: 2 where a metric looks at the rows again."""
    return 1 + any(isinstance(one, IntervalMoments) and one.looks_again(rows, draws) for one in asked)


def _once_more(
    placed: Iterator[tuple[int, Predictions]],
    asked: tuple[IntervalMoments, ...],
    first: tuple[ClassSums | None, ...],
    draws: int,
) -> tuple[tuple[Any, Tensor | None], ...] | None:
    """Return what a second look at a shard finds: labels are counted in place, since a copy may take 100 MB."""
    sums: list[list[Any]] = [[] for _ in asked]
    drawn: list[Tensor | None] = []
    for start, piece in placed:
        drawn = drawn or [
            None if before is None else one.metric.no_labels(piece, draws)
            for one, before in zip(asked, first, strict=True)
        ]
        for i, (one, before, labels) in enumerate(zip(asked, first, drawn, strict=True)):
            more = (
                one.state(piece)
                if labels is None
                else one.metric.once_more(piece, before, start=start, seed=0, drawn=labels)
            )
            sums[i].append(more)
    return tuple((reduced(added, iter(s)), d) for s, d in zip(sums, drawn, strict=True)) if drawn else None


def _added_in_place(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sums of both; the counts of ``left``, which nothing else holds, are added to."""
    return tuple(
        (one + two, drawn if drawn is None else drawn.add_(more))
        for (one, drawn), (two, more) in zip(left, right, strict=True)
    )


def sum_metrics() -> list[SumMetric[Any]]:
    """Return the default panel's metrics that are sums of bounded size."""
    return [Accuracy(), NLL(), Brier(), ECE(EqualWidth(15)), MCE(EqualWidth(15)), ClasswiseECE(EqualWidth(15))]


@checked
def evaluate_streamed(
    path: str | os.PathLike[str] | ParquetRows,
    *,
    metrics: SumMetrics | None = None,
    calibrator: SomeCalibrator | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: Runner = in_turn,
    progress: Progress | None = None,
    draws: Natural = 1000,
) -> Panel:
    """Return metrics over a Parquet data set of any size, with the intervals that ``panel`` has in memory.

    Args:
        path: A file or a folder, as for ``ParquetRows``, or a ``ParquetRows``.
        metrics: Metrics that are sums; None takes ``sum_metrics()``.
        calibrator: Applied to every piece first, or None.
        checkpoint: A JSON file that is updated after every shard; a repeated call resumes from it. It is removed at the
            end.
        executor: Runs the shards: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``. States are added in the
            order of the shards, so all executors give the same bits.
        progress: Called with (rows done, total rows) of all passes together: ``ClasswiseECE`` and bins of equal mass look at the
            rows twice.
        draws: Outcomes drawn for the limits if calibrated; 0 leaves them and the intervals out.

    Raises:
        InputError: If a metric is not a sum, or data are not valid; the message states file, row group and row.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data.
    """
    rows = ParquetRows.of(path)
    chosen = sum_metrics() if metrics is None else metrics
    draws = 0 if rows.partly_grouped else draws
    moments = [IntervalMoments(metric) for metric in chosen if draws and IntervalMoments.known_for(metric)]
    asked = [*chosen, *moments]
    passes = metric_passes(
        rows, asked, calibrator, draws=draws, executor=executor, checkpoint=checkpoint, progress=progress
    )
    states = sums_of(passes, asked, calibrator, draws=draws)
    passes.remove()
    if not states:
        raise refuse("at least one row of positive weight", "none", "check the column of weights")
    ends = {one.metric: one.figures(states[one], draws=draws) for one in moments}
    none = dict.fromkeys(("low", "high", "null_high"))
    return Panel(PanelRow(repr(m), m.value(states[m]), n=rows.rows, **none | ends.get(m, {})) for m in chosen)


@checked
def evaluate_multilabel_streamed(
    source: str | os.PathLike[str],
    *,
    calibrator: SeveralLabelsCalibrator | None = None,
    columns: str | None = None,
    label: str | None = None,
    kind: Literal["logits", "probs"] | None = None,
    allow_fit_rows: bool = False,
    draws: Annotated[int, Integer(0, MOST_DRAWS)] = 1000,
) -> list[MultiLabelRow]:
    """Return the figures of ``multilabel_panel`` over a table, or a folder of tables; in bounded memory, in this process.

    Rows are read twice, the second time for the intervals; of rows in groups the sums of each group are kept.

    Args:
        source: As ``data.splits.multilabel_batches`` takes it.
        calibrator: A fitted one to measure after, or None.
        columns: As in ``load_multilabel``.
        label: As there.
        kind: As there.
        allow_fit_rows: Accept rows that the calibrator was fitted on.
        draws: As in ``evaluate.multilabel_panel``; 0 leaves the intervals out.

    Raises:
        FileFormatError: If a file cannot be read or holds no such predictions.
        InputError: If what it holds is not valid, there are no rows or no labels, or a label is missing in all rows.
        LeakError: If consecutive rows of the fit are found.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant import MultiLabelPredictions, save_multilabel
        >>> from calibrant.evaluate import multilabel_panel
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = MultiLabelPredictions.from_logits([[2.0, -1.0], [0.5, 3.0]] * 50, [[1, 0], [-1, 1]] * 50)
        >>> for part in (0, 1):
        ...     save_multilabel(folder / f"{part}.parquet", {"all": data[50 * part : 50 * part + 50]})
        >>> row, other = evaluate_multilabel_streamed(folder)[0], multilabel_panel(data)[0]
        >>> abs(row.low - other.low) < 1e-12
        True
    """
    seen = allow_fit_rows

    def pieces() -> Iterator[MultiLabelPredictions]:
        nonlocal seen
        batches, empty = multilabel_batches(source, columns=columns, label=label, kind=kind), True
        for piece in calibrated(batches, calibrator, allow_fit_rows=seen):
            empty = False
            yield piece
        if empty:
            raise refuse("at least one row", f"none in {shown(as_path(source))}", "check how the rows were selected")
        seen = True  # the first pass found no rows of the fit

    return panel_of(pieces, draws=draws)


def metric_passes(
    rows: ParquetRows, metrics: Sequence[Summed], calibrator: Calibrator | None, *, draws: int, **settings: Any
) -> Passes:
    """Return passes over ``rows`` that sum the states of ``metrics``, resuming from a checkpoint; see ``evaluate_streamed``.

    Args:
        rows: The data set.
        metrics: What is summed.
        calibrator: Applied first, or None.
        draws: Sets of labels drawn by metrics that look at the rows again.
        settings: ``executor``, ``checkpoint`` and ``progress``, as for ``one_pass``.
    """
    what = f"{[to_plain(metric) for metric in metrics]} of {calibrator and calibrator_identity(calibrator)}"
    return one_pass(rows, what, most=_KEPT, count=looks(rows, metrics, draws=draws), **settings)


def one_pass(
    rows: ParquetRows,
    what: str,
    *,
    executor: Executor,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    most: int,
    count: int = 1,
) -> Passes:
    """Return a pass over ``rows`` that reports its progress once a shard is done, and resumes from ``checkpoint``.

    Args:
        rows: The data set.
        what: Description of the request; a checkpoint of another one is refused.
        executor: Runs the shards.
        checkpoint: The JSON file, or None.
        progress: Called with (rows done, total rows) of all ``count`` passes.
        most: Largest result in bytes that the checkpoint keeps.
        count: Number of passes.
    """

    def report(begun: int, done: int, total: int) -> None:
        if progress is not None and done:
            progress((begun - 1) * total + done, count * total)

    return Passes(rows, what, executor=executor, journal=checkpoint, progress=progress and report, most=most)


def sums_of(
    passes: Passes, metrics: Sequence[Summed], calibrator: Calibrator | None, *, draws: int = 0
) -> dict[Any, Any]:
    """Return the metrics' states over all rows of positive weight, empty where there are none.

    Of ``draws`` more than 0 a second pass completes the moments of metrics that need one.
    """
    source = ParquetSource(passes, units=Pieces(calibrator))
    found = source.part(states_of, added, tuple(metrics))
    states: dict[Any, Any] = {} if found is None else dict(zip(metrics, found, strict=True))
    wanted = [one for one in states if looks(passes.rows, [one], draws=draws) > 1]
    if not wanted:
        return states
    placed: Any = PlacedPieces(Pieces(calibrator), passes.rows.starts())
    asked, first = zip(*(one.again(passes.rows, states[one]) for one in wanted), strict=True)
    second = ParquetSource(passes, units=placed).part(_once_more, _added_in_place, asked, first, draws)
    for one, before, (sums, drawn) in zip(wanted, first, second, strict=True):
        states[one] = sums if drawn is None else replace(before, signed=sums, null=one.metric.errors_of(before, drawn))
    passes.forget()
    return states
