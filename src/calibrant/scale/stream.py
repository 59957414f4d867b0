"""Metrics of tables larger than memory: in bounded memory, resumable, with the values of an in-memory evaluation."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrant._arguments import check_kind, check_list_of
from calibrant._check import refuse
from calibrant.binning import EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, Metric, SumMetric
from calibrant.scale.checkpoint import Checkpoint, States, check_calibrator
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.rows import ParquetRows, Shard, rows_of
from calibrant.scale.state import add_states

__all__ = ["StreamedFigure", "collect_states", "evaluate_streamed", "shard_states", "sum_metrics"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StreamedFigure:
    """One metric over a whole data set.

    Args:
        metric: The metric's repr.
        value: Its value, the same as in memory.
        n: Rows.
    """

    metric: str
    value: float
    n: int


def sum_metrics() -> list[SumMetric[Any]]:
    """Return the default panel's metrics that are sums of bounded size."""
    return [Accuracy(), NLL(), Brier(), ECE(EqualWidth(15)), MCE(EqualWidth(15)), ClasswiseECE(EqualWidth(15))]


def shard_states(
    rows: ParquetRows, shard: Shard, metrics: Sequence[SumMetric[Any]], calibrator: Calibrator | None = None
) -> States:
    """Return each metric's state over one shard, read in bounded pieces.

    Args:
        rows: The data set.
        shard: One of its row groups.
        metrics: Metrics that are sums.
        calibrator: Applied to every piece first, or None.
    """
    check_kind(rows, ParquetRows, name="rows", remedy="make them with ParquetRows(path)")
    check_kind(shard, Shard, name="shard", remedy="pass one of rows.shards")
    _check_sums(metrics)
    check_calibrator(calibrator)
    states: States = {}
    for whole in rows.read(shard):
        piece = whole if whole.weights is None else whole[whole.weights > 0]
        if not len(piece):
            continue
        data = piece if calibrator is None else piece.calibrated_by(calibrator)
        states = add_states(states, {metric: metric.state(data) for metric in metrics})
    return states


def evaluate_streamed(
    path: str | os.PathLike[str] | ParquetRows,
    *,
    metrics: Sequence[SumMetric[Any]] | None = None,
    calibrator: Calibrator | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: Executor = in_turn,
    progress: Progress | None = None,
) -> list[StreamedFigure]:
    """Return metrics over a Parquet data set of any size.

    Args:
        path: A file or a folder, as for ``ParquetRows``, or a ``ParquetRows``.
        metrics: Metrics that are sums; None takes ``sum_metrics()``.
        calibrator: Applied to every piece first, or None.
        checkpoint: A JSON file that is updated after every shard; a repeated call resumes from it. It is removed at the
            end.
        executor: Runs the shards: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``. States are added in the
            order of the shards, so all executors give the same bits.
        progress: Called with (rows done, total rows).

    Raises:
        InputError: If a metric is not a sum, or data are not valid; the message states file, row group and row.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data.
    """
    rows = rows_of(path)
    chosen = sum_metrics() if metrics is None else _check_sums(metrics)
    check_calibrator(calibrator)
    check_execution(executor, progress)
    done = Checkpoint(checkpoint, rows, chosen, calibrator)
    states = collect_states(rows, chosen, done, calibrator=calibrator, executor=executor, progress=progress)
    done.remove()
    return finish(states, chosen, rows.rows)


def collect_states(
    rows: ParquetRows,
    metrics: Sequence[SumMetric[Any]],
    done: Checkpoint,
    *,
    calibrator: Calibrator | None = None,
    executor: Executor = in_turn,
    progress: Progress | None = None,
) -> States:
    """Return the metric states over all shards, resuming from ``done`` and updating it after every shard.

    Args:
        rows: The data set.
        metrics: Metrics that are sums.
        done: The checkpoint of this pass.
        calibrator: Applied to every piece first, or None.
        executor: Runs the shards.
        progress: Called with (rows done, total rows).
    """
    finished = sum(shard.rows for shard in rows.shards if shard.name in done.names)
    left = [shard for shard in rows.shards if shard.name not in done.names]
    work = partial(shard_states, rows, metrics=metrics, calibrator=calibrator)
    if progress is not None and finished:
        progress(finished, rows.rows)
    for shard, states in zip(left, executor(work, left), strict=True):
        done.add(shard, states)
        finished += shard.rows
        if progress is not None:
            progress(finished, rows.rows)
    return done.states


def _check_sums(metrics: Any) -> list[SumMetric[Any]]:
    """Return ``metrics`` as a list if all of them are sums."""
    remedy = "pass a list such as [Accuracy(), NLL()]"
    chosen: list[SumMetric[Any]] = []
    for metric in check_list_of(metrics, Metric, name="metrics", remedy=remedy):  # type: ignore[type-abstract]
        if not isinstance(metric, SumMetric):
            raise refuse("metrics that are sums", str(metric), "evaluate it in memory")
        chosen.append(metric)
    return chosen


def finish(states: Mapping[SumMetric[Any], Any], metrics: Iterable[SumMetric[Any]], n: int) -> list[StreamedFigure]:
    """Return the figures of finished states.

    Raises:
        InputError: If no row had a positive weight.
    """
    if not states:
        raise refuse("at least one row of positive weight", "none", "check the column of weights")
    return [StreamedFigure(repr(metric), metric.value(states[metric]), n) for metric in metrics]
