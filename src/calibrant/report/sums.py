"""Mergeable sums that a report needs beyond the metrics: moments, fine cells of confidence, groups, a fingerprint."""

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data, need_predictions
from calibrant.metrics import MeanMetric, Metric, SumMetric
from calibrant.report.diagnosis import BINS
from calibrant.statistics.null import CELLS, cell_outcomes

__all__ = [
    "ByGroup",
    "Digest",
    "FineCells",
    "GroupSums",
    "LossGain",
    "MomentSums",
    "Moments",
    "mass_table",
    "null_tables",
]

MOST_GROUPS = 10_000  # most groups with sums of their own: a million users would exceed the memory bound
_OCTAVES, _STEPS = 43, 16  # cells next to p = 1: 1 − p from 2⁻¹⁰ down to 2⁻⁵³, sixteen per octave


class _State(SumMetric[Any]):
    """A sum for a report that is not a metric itself; its value is the number of rows."""

    better = "lower"
    bounds = (0.0, 1.0)
    notion = "report"
    cite = "–"

    def value(self, state: Any) -> float:
        """Return the number of rows in a state."""
        return float(state.rows)


@dataclass(frozen=True)
class MomentSums:
    """Sums over rows of a number and of its square.

    Args:
        total: Σ x.
        squares: Σ x².
        rows: Number of rows.
    """

    total: float
    squares: float
    rows: int

    def __add__(self, other: "MomentSums") -> "MomentSums":
        return MomentSums(self.total + other.total, self.squares + other.squares, self.rows + other.rows)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        mean = self.total / self.rows
        return float(np.sqrt(max(self.squares / self.rows - mean**2, 0.0) / self.rows))


@dataclass(frozen=True)
class Moments(_State):
    """Mean and variance of a metric that is a mean over rows.

    Args:
        metric: The metric.
    """

    metric: Metric

    def state(self, data: Data) -> MomentSums:
        """Return the sums of ``data``."""
        assert isinstance(self.metric, MeanMetric)
        rows = self.metric.rows(data).double()
        return MomentSums(float(rows.sum()), float(rows.square().sum()), rows.shape[0])


@dataclass(frozen=True)
class LossGain(_State):
    """Sums of the reduction of each row's log-loss by a calibrator.

    Args:
        identity: Hash of the calibrator, which identifies this sum in a checkpoint and between processes.
        calibrator: The calibrator.
    """

    identity: str
    calibrator: Calibrator = field(compare=False, repr=False)  # its hash says which it is

    def state(self, data: Data) -> MomentSums:
        """Return the sums of ``data``."""
        predictions = need_predictions(data, metric=self)
        after = predictions.calibrated_by(self.calibrator)
        gain = (predictions.nll - after.nll).double()
        return MomentSums(float(gain.sum()), float(gain.square().sum()), gain.shape[0])


@dataclass(frozen=True)
class FineCells(_State):
    """Counts and sums in cells of confidence: the 15 bins cut at every 1/1024, and above 1 − 1/1024 by octaves of 1 − p.

    The limits if calibrated of the binned errors are simulated from the former, cell by cell; both together give points
    of the risk-coverage curve, exact at the cells' edges.
    """

    def state(self, data: Data) -> BinTable:
        """Return the table of the cells."""
        p = data.confidence.double()
        fine = (p * CELLS).long().clamp(0, CELLS - 1)
        # both indices are non-decreasing in p and never increase at the same p, so their sum identifies the pair
        cell = fine + EqualWidth(BINS).assign(p)
        octave = torch.log2((1 - p).clamp(2.0**-53, 2.0**-10)).neg() - 10
        last = fine == CELLS - 1
        cell = cell + torch.where(last, (octave * _STEPS).long().clamp(0, _OCTAVES * _STEPS), 0)
        return BinTable.from_pairs(cell, p, data.correct, bins=_cells())

    def value(self, state: BinTable) -> float:
        """Return the rows in a state."""
        return float(state.total)


def _cells() -> int:
    return CELLS + BINS - 1 + _OCTAVES * _STEPS


def coarse_bins() -> Tensor:
    """Return the bin (1038,) of each coarse cell of ``FineCells``: cells are 1/1024 wide and cut at the bins' edges."""
    edges = sorted({i / CELLS for i in range(CELLS + 1)} | {i / BINS for i in range(BINS + 1)})
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(edges)], dtype=torch.float64)
    return EqualWidth(BINS).assign(middles)


def null_tables(state: BinTable, coarse: BinTable, *, draws: int, seed: int = 0) -> BinTable:
    """Return ``coarse`` with the outcome sums (draws, 15) of calibrated models with the confidences of ``state``.

    The cells, the generator and the order are those of ``statistics.null_outcomes``, so limits equal those in memory.
    """
    bins = coarse_bins()
    size = len(bins)
    coarse_cell = torch.arange(len(state.count)).clamp_max(size - 1)  # the octaves subdivide the last coarse cell
    count = torch.zeros(size, dtype=torch.int64).index_add_(0, coarse_cell, state.count)
    sum_p = torch.zeros(size, dtype=torch.float64).index_add_(0, coarse_cell, state.sum_p)
    filled = torch.nonzero(count)[:, 0]
    mean = (sum_p[filled] / count[filled]).clamp(0, 1)
    numbers = (bins[filled].numpy(), count[filled].numpy(), mean.numpy())
    sums = cell_outcomes(*numbers, bins=BINS, draws=draws, seed=seed)
    return BinTable(coarse.count, coarse.sum_p, sums, coarse.total)


def mass_table(cells: BinTable) -> tuple[BinTable, list[float]]:
    """Return 15 bins of nearly equal mass, unions of cells of ``FineCells``, and their edges.

    A cell belongs to the bin of its middle rank, so a bin's mass is off by at most half a cell at either end.

    Args:
        cells: The state of ``FineCells``, with at least one row.
    """
    kept = torch.nonzero(cells.count)[:, 0]
    count = cells.count[kept]
    middle = count.cumsum(0).double() - count / 2
    bin_of_cell = (middle * BINS / cells.total).long().clamp_max(BINS - 1)
    names, code = torch.unique(bin_of_cell, return_inverse=True)

    def gathered(values: Tensor) -> Tensor:
        return torch.zeros(len(names), dtype=values.dtype).index_add_(0, code, values[kept])

    mean = cells.sum_p[kept] / count
    starts = torch.nonzero(code.diff())[:, 0]
    between = ((mean[starts] + mean[starts + 1]) / 2).tolist()
    table = BinTable(gathered(cells.count), gathered(cells.sum_p), gathered(cells.sum_y), cells.total)
    return table, [0.0, *between, 1.0]


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The bin table of each group of rows.

    Args:
        keys: (G,) int64 groups, ascending.
        count: (G, B) int64 rows.
        sum_p: (G, B) float64 confidences.
        sum_y: (G, B) float64 correct predictions.
        rows: Total rows.
        dropped: 1 if there were too many groups, so that none is kept, else 0.
    """

    keys: Tensor
    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    rows: int
    dropped: int = 0

    @classmethod
    def none(cls, rows: int, *, dropped: int) -> Self:
        """Return sums without any group."""
        empty = torch.zeros(0, BINS, dtype=torch.float64)
        return cls(torch.zeros(0, dtype=torch.int64), empty.long(), empty, empty, rows, dropped)

    def __add__(self, other: "GroupSums") -> "GroupSums":
        rows, dropped = self.rows + other.rows, max(self.dropped, other.dropped)
        keys, place = torch.unique(torch.cat([self.keys, other.keys]), return_inverse=True)
        if dropped or len(keys) > MOST_GROUPS:
            return GroupSums.none(rows, dropped=1)

        def joined(name: str) -> Tensor:
            parts = torch.cat([getattr(self, name), getattr(other, name)])
            return torch.zeros(len(keys), BINS, dtype=parts.dtype).index_add_(0, place, parts)

        return GroupSums(keys, joined("count"), joined("sum_p"), joined("sum_y"), rows, dropped)

    def tables(self) -> list[tuple[int, BinTable]]:
        """Return each group with its bins."""
        sums = zip(self.keys.tolist(), self.count, self.sum_p, self.sum_y, strict=True)
        return [(key, BinTable(count, p, y, int(count.sum()))) for key, count, p, y in sums]


@dataclass(frozen=True)
class ByGroup(_State):
    """The bins of the top label in each group of rows, for at most 10,000 groups."""

    def state(self, data: Data) -> GroupSums:
        """Return the sums of ``data``."""
        if data.groups is None:
            return GroupSums.none(len(data), dropped=0)
        keys, code = torch.unique(data.groups, return_inverse=True)
        if len(keys) > MOST_GROUPS:
            return GroupSums.none(len(data), dropped=1)
        p = data.confidence
        index = code * BINS + EqualWidth(BINS).assign(p)
        table = BinTable.from_pairs(index, p, data.correct, bins=len(keys) * BINS)
        count, sum_p, sum_y = (part.view(-1, BINS) for part in (table.count, table.sum_p, table.sum_y))
        return GroupSums(keys, count, sum_p, sum_y, len(data))


@dataclass(frozen=True)
class Digests:
    """SHA-256 digests of pieces, in the order they were added.

    Args:
        pieces: Hexadecimal digests.
        rows: Rows in them.
    """

    pieces: tuple[str, ...]
    rows: int

    def __add__(self, other: "Digests") -> "Digests":
        return Digests(self.pieces + other.pieces, self.rows + other.rows)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all digests as 16 hexadecimal digits."""
        return hashlib.sha256("".join(self.pieces).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Digest(_State):
    """A fingerprint of the numbers and labels, piece by piece."""

    def state(self, data: Data) -> Digests:
        """Return the digest of ``data``."""
        predictions = need_predictions(data, metric=self)
        digest = hashlib.sha256()
        for column in (
            predictions.logits if predictions.given_probs is None else predictions.given_probs,
            predictions.labels,
        ):
            if column is not None:
                plain = column.detach().cpu().contiguous()
                digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
                digest.update(plain.view(torch.uint8).numpy().data)
        return Digests((digest.hexdigest()[:32],), len(data))
