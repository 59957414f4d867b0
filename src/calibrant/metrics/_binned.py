"""Base class of the binned errors: bin table, value and null distribution."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from calibrant._core.constraints import Kind
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth, MassSketch
from calibrant.binning.row_sums import confidence_for, table_for
from calibrant.data.checks import Rows
from calibrant.metrics._base import SumMetric
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.clusters import cluster_sums, clustered_gaps, group_degrees
from calibrant.statistics.means import need_groups
from calibrant.statistics.null import BinSums

BinnedState = Annotated[BinTable | MassSketch, Kind((BinTable, MassSketch), "make it with state(data)")]


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | MassSketch]):
    """A metric that is a function of the bin table of confidences and correct decisions, in the bins of ``binning``."""

    binning: AnyBinning = field(default=EqualWidth(15))

    notion = "confidence"

    def cells(self, data: Rows) -> BinnedRows:
        """Return each row's bin, confidence and correctness."""
        p = confidence_for(self.binning, data)
        index = self.binning.assign(p, weight=data.weights)
        return BinnedRows(index, p, data.correct, self.binning.bins, data.weights)

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric (…) of tables (…, B)."""

    def __call__(self, data: Rows) -> float:
        """Return the value on ``data``, a Python float."""
        return float(self.errors(table_for(self.binning, data)))

    def state(self, data: Rows) -> BinTable | MassSketch:
        """Return the bin table; for equal-mass bins, whose edges depend on all data, a sketch that can be merged."""
        if isinstance(self.binning, EqualMass):
            return self.binning.sketch(data.confidence, data.correct, weight=data.weights)
        return table_for(self.binning, data)

    def value(self, state: BinnedState) -> float:
        """Return the metric of a state."""
        return float(self.errors(state.table() if isinstance(state, MassSketch) else state))

    def null_draws(self, data: Rows, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of outcomes drawn from the confidences."""
        need_groups(data.groups, what=self)
        return self.errors(null_tables(self.cells(data), data.groups, draws=draws, seed=seed))


def null_tables(cells: BinnedRows, groups: Tensor | None, *, draws: int, seed: int) -> BinTable:
    """Return the table of ``cells`` with outcome sums (draws, B) drawn as if the probabilities were calibrated."""
    if groups is None:
        return BinSums.of(cells).null(draws=draws, seed=seed)
    table, degrees = cells.table(), group_degrees(groups, cells.weight)
    gaps = clustered_gaps(cluster_sums(cells, groups), draws=draws, seed=seed, degrees=degrees)
    return replace(table, sum_y=table.sum_p - gaps * table.total)
