"""What the binned errors share: one bin table, its value, its null level, and its interval."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import Binning, BinTable, EqualMass, EqualWidth, MassSketch
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import Data, SumMetric
from calibrant.statistics import Interval, error_interval, null_outcomes


@dataclass(frozen=True)
class Cells:
    """Rows in their bins: index (N,), probability (N,), outcome (N,), and how many bins there are."""

    index: Tensor
    p: Tensor
    y: Tensor
    bins: int

    def table(self) -> BinTable:
        """Return the sums."""
        return BinTable.from_pairs(self.index, self.p, self.y, bins=self.bins)

    def null_tables(self, table: BinTable, *, draws: int, seed: int) -> BinTable:
        """Return ``table`` with the outcome sums (draws, B) that calibrated probabilities give."""
        sums = null_outcomes(self.index, self.p, bins=self.bins, draws=draws, seed=seed)
        return replace(table, sum_y=sums.to(table.sum_p.device))


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | MassSketch]):
    """A metric that is a function of a bin table of confidences and correct decisions, by its field ``binning``."""

    binning: Binning = field(default=EqualWidth(15))

    def cells(self, data: Data) -> Cells:
        """Return (confidence, decision was right) in bins."""
        p = data.confidence
        return Cells(self.binning.assign(p), p, data.correct, self.binning.bins)

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric (…) of tables (…, B)."""

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        return float(self.errors(self._table(data)))

    def state(self, data: Data) -> BinTable | MassSketch:
        """Return the bin table; for equal-mass bins, whose edges all data decide, a sketch that merges."""
        if isinstance(self.binning, EqualMass):
            return self.binning.sketch(data.confidence, data.correct)
        return self._table(data)

    def value(self, state: BinTable | MassSketch) -> float:
        """Return the metric of a state."""
        return float(self.errors(state.table() if isinstance(state, MassSketch) else state))

    def _table(self, data: Data) -> BinTable:
        return self.binning.table(data.confidence, data.correct)

    def null_draws(self, data: Data, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) with outcomes drawn from the confidences."""
        cells = self.cells(data)
        return self.errors(cells.null_tables(cells.table(), draws=draws, seed=seed))


def cells_interval(
    cells: Cells, *, groups: Tensor | None, level: float, seed: int, null: Tensor | None = None
) -> Interval:
    """Return the interval of Σ_b weight_b |gap_b|; clusters of rows widen it."""
    table = cells.table()
    if groups is None:
        null = cells.null_tables(table, draws=1000, seed=seed).errors() if null is None else null
        return error_interval(table, null, level=level)
    need_two_groups(groups)
    spread = clustered_spread(cells, table, groups)
    normal = np.random.default_rng(seed).standard_normal((1000, spread.shape[0]))
    null = (torch.from_numpy(np.abs(normal)) * spread.cpu()).sum(dim=1)
    return error_interval(table, null, level=level, spread=spread)


def need_two_groups(groups: Tensor | None) -> None:
    """Refuse rows that all are of one group: they say nothing about other groups.

    Raises:
        NoIntervalError: If there is one group.
    """
    if groups is not None and bool((groups == groups[0]).all()):
        raise NoIntervalError("expected at least two groups of rows for an interval, got one; measure on more data")


def clustered_spread(cells: Cells, table: BinTable, groups: Tensor) -> Tensor:
    """Return the standard errors (B,) of weight_b · gap_b when whole groups are sampled."""
    _, code = torch.unique(groups.to(cells.index.device), return_inverse=True)
    count = int(code.max()) + 1
    residual = cells.p.double() - cells.y.double()
    sums = torch.zeros(count * cells.bins, dtype=torch.float64, device=residual.device)
    inside = cells.index >= 0
    sums.index_add_(0, (code * cells.bins + cells.index)[inside], residual[inside])
    sums = sums.view(count, cells.bins) / max(table.total, 1)
    sizes = torch.bincount(code).double()[:, None] / max(table.total, 1)
    signed = table.gap * table.weight
    return (sums - sizes * signed).square().sum(dim=0).mul(count / max(count - 1, 1)).sqrt()
