"""Judge, fit and apply on tables larger than memory, on one machine: bounded memory, resumable, the in-memory answer."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant._config import to_plain
from calibrant._files import atomic_write
from calibrant.binning import EqualWidth
from calibrant.calibrators._base import Calibrator
from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE
from calibrant.metrics._base import SumMetric
from calibrant.predictions import Predictions
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.state import add_states, state_from_plain, state_to_plain

__all__ = ["StreamedFigure", "apply_streamed", "evaluate_streamed", "shard_states", "sum_metrics"]

Progress = Callable[[int, int], None]
States = dict[SumMetric[Any], Any]


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
    """Return the panel's metrics whose state is a bounded sum."""
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
    states: States = {}
    for piece in rows.read(shard):
        data = piece if calibrator is None else piece.calibrated_by(calibrator)
        states = add_states(states, {metric: metric.state(data) for metric in metrics})
    return states


def evaluate_streamed(
    path: str | os.PathLike[str],
    *,
    metrics: Sequence[SumMetric[Any]] | None = None,
    calibrator: Calibrator | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: Executor = in_turn,
    progress: Progress | None = None,
) -> list[StreamedFigure]:
    """Return metrics over a Parquet data set of any size.

    Args:
        path: A file or a folder, as ``ParquetRows`` takes it.
        metrics: Metrics that are sums; None takes ``sum_metrics()``.
        calibrator: Applied to every piece first, or None.
        checkpoint: A JSON file that keeps what is done after every shard; a second call goes on from it. It is removed
            when all is done.
        executor: What runs the shards: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``. States are added in
            the order of the shards, so all give the same bits.
        progress: Called with (rows done, rows in all).

    Raises:
        InputError: If a metric is no sum, or data are not valid: file, row group and row are named.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data.
    """
    rows = ParquetRows(path)
    chosen = sum_metrics() if metrics is None else list(metrics)
    for metric in chosen:
        if not isinstance(metric, SumMetric):
            raise InputError(f"expected metrics that are sums, got {metric}; evaluate it in memory")
    done = Checkpoint(checkpoint, rows, chosen, calibrator)
    finished = sum(shard.rows for shard in rows.shards if shard.name in done.names)
    left = [shard for shard in rows.shards if shard.name not in done.names]
    work = partial(shard_states, rows, metrics=chosen, calibrator=calibrator)
    for shard, states in zip(left, executor(work, left), strict=True):
        done.add(shard, states)
        finished += shard.rows
        if progress is not None:
            progress(finished, rows.rows)
    done.remove()
    return finish(done.states, chosen, rows.rows)


def finish(states: Mapping[SumMetric[Any], Any], metrics: Iterable[SumMetric[Any]], n: int) -> list[StreamedFigure]:
    """Return the figures of finished states."""
    return [StreamedFigure(repr(metric), metric.value(states[metric]), n) for metric in metrics]


class Checkpoint:
    """What an evaluation has finished: states and shard names, in a JSON file that is replaced atomically."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        rows: ParquetRows,
        metrics: Sequence[SumMetric[Any]],
        calibrator: Calibrator | None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.states: States = {}
        self.names: set[str] = set()
        self._identity = {
            "shards": [[shard.name, shard.rows] for shard in rows.shards],
            "sizes": [file.stat().st_size for file in rows.files],
            "metrics": [to_plain(metric) for metric in metrics],
            "calibrator": None if calibrator is None else repr(calibrator),
        }
        if self.path is not None and self.path.exists():
            self._load(rows, metrics)

    def add(self, shard: Shard, states: States) -> None:
        """Add a finished shard and save."""
        self.states = add_states(self.states, states)
        self.names.add(shard.name)
        if self.path is None:
            return
        plain = [state_to_plain(state) for state in self.states.values()]
        content = {"identity": self._identity, "done": sorted(self.names), "states": plain}
        self.path.parent.mkdir(parents=True, exist_ok=True)  # only now: a refused input leaves nothing behind
        with atomic_write(self.path) as file:
            file.write(json.dumps(content).encode())

    def remove(self) -> None:
        """Delete the file: all is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _load(self, rows: ParquetRows, metrics: Sequence[SumMetric[Any]]) -> None:
        assert self.path is not None
        try:
            content = json.loads(self.path.read_text())
            identity, names, states = content["identity"], set(content["done"]), content["states"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"expected a checkpoint, got something else in {self.path}; delete it") from error
        if identity != json.loads(json.dumps(self._identity)):
            raise FileFormatError(
                f"expected a checkpoint of these data and metrics, got another in {self.path}; delete it"
            )
        example = Predictions.from_logits(np.eye(2, rows.classes) * 2, np.zeros(2, dtype=np.int64))
        likes = [metric.state(example) for metric in metrics]
        rebuilt = [state_from_plain(plain, like) for plain, like in zip(states, likes, strict=True)]
        self.names, self.states = names, dict(zip(metrics, rebuilt, strict=True))


def apply_streamed(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> int:
    """Write calibrated logits of a Parquet data set into a folder, one file a row group; a second call goes on.

    Args:
        calibrator: Fitted, for the same number of classes.
        path: A file or a folder, as ``ParquetRows`` takes it.
        out: A folder, made if it is not there. Every file in it is whole: it appears only when finished.
        progress: Called with (rows done, rows in all).

    Returns:
        Row groups written by this call (those found finished are skipped).
    """
    rows = ParquetRows(path)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"expected a folder to write to, got {error.strerror!r} for {out}; choose another"
        ) from error
    written = finished = 0
    for shard in rows.shards:
        target = folder / f"{Path(shard.file).stem}-{shard.row_group:05d}.parquet"
        if not _is_whole(target, shard.rows):
            _write_shard(calibrator, rows, shard, target)
            written += 1
        finished += shard.rows
        if progress is not None:
            progress(finished, rows.rows)
    return written


def _is_whole(target: Path, count: int) -> bool:
    import pyarrow.parquet

    return target.exists() and int(pyarrow.parquet.read_metadata(target).num_rows) == count


def _write_shard(calibrator: Calibrator, rows: ParquetRows, shard: Shard, target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    with atomic_write(target) as file:
        writer = None
        for piece in rows.read(shard):
            with torch.no_grad():
                logits = calibrator(piece.logits.float())
            flat = pa.array(logits.contiguous().numpy().reshape(-1))
            columns = {"logits": pa.FixedSizeListArray.from_arrays(flat, rows.classes)}
            if piece.labels is not None:
                columns["label"] = pa.array(piece.labels.numpy())
            if piece.groups is not None:
                columns["group"] = pa.array(piece.groups.numpy())
            table = pa.table(columns)
            writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
