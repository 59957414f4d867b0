"""Temperature scaling on tables larger than memory: Newton's method whose sums come from passes over the shards."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators._log_temperature import Rows, certified_root
from calibrant.errors import InputError
from calibrant.predictions import Predictions
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["fit_temperature_streamed"]


def fit_temperature_streamed(
    path: str | os.PathLike[str],
    *,
    start: float = 1.0,
    executor: Executor = in_turn,
    progress: Callable[[int], None] | None = None,
) -> TemperatureScaling:
    """Fit temperature scaling by log-loss on a Parquet data set of any size, with the in-memory fit's certificate.

    Every Newton step is one pass; about six to nine are needed from T = 1, fewer from a good ``start``. The fitted
    calibrator carries no hashes of its rows, so the fence against judging on them does not hold.

    Args:
        path: A file or a folder, as ``ParquetRows`` takes it, with labels.
        start: A first guess of T > 0, such as a fit on a sample.
        executor: What runs the shards.
        progress: Called with the number of passes done.

    Raises:
        InputError: If labels are missing or data are not valid; file, row group and row are named.
        FitError: If the search did not end.
    """
    rows = ParquetRows(path)
    passes = _StreamedPasses(rows, executor, progress)
    root = certified_root(passes, start=float(torch.tensor(start, dtype=torch.float64).log()))
    fitted = TemperatureScaling()
    learned = {"log_temperature": root.x, "certificate": root.value, "classes": rows.classes}
    like = fitted.state_dict()
    fitted.load_state_dict({name: torch.tensor(value, dtype=like[name].dtype) for name, value in learned.items()})
    return fitted


@dataclass
class _StreamedPasses:
    """The sums a temperature fit asks for, over shards."""

    rows: ParquetRows
    executor: Executor
    progress: Callable[[int], None] | None
    count: int = 0

    @property
    def mass(self) -> float:
        return float(self.rows.rows)

    @cached_property
    def margin(self) -> float:
        total = sum(self.executor(partial(_margin, self.rows), self.rows.shards))
        self._tell()
        return float(total) / self.mass

    def moments(self, beta: float, dtype: torch.dtype) -> tuple[float, float]:
        first = second = 0.0
        for one, two in self.executor(partial(_moments, self.rows, beta=beta, dtype=dtype), self.rows.shards):
            first, second = first + one, second + two
        self._tell()
        return first, second

    def _tell(self) -> None:
        self.count += 1
        if self.progress is not None:
            self.progress(self.count)


def _margin(rows: ParquetRows, shard: Shard) -> float:
    return sum(part.margin * part.mass for part in map(_rows, rows.read(shard)))


def _moments(rows: ParquetRows, shard: Shard, *, beta: float, dtype: torch.dtype) -> tuple[float, float]:
    first = second = 0.0
    for piece in rows.read(shard):
        one, two = _rows(piece).moments(beta, dtype)
        first, second = first + one, second + two
    return first, second


def _rows(piece: Predictions) -> Rows:
    if piece.labels is None:
        raise InputError("expected a column label to fit on, got none; add it")
    return Rows.of(piece.logits, piece.labels, None)
