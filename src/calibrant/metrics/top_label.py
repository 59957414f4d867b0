"""Top-label calibration error: confidence against accuracy within each predicted class."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.binning import Binning, BinTable, EqualMass, EqualWidth
from calibrant.errors import InputError
from calibrant.metrics._base import Data, SumMetric
from calibrant.metrics._binned import Cells, cells_interval
from calibrant.predictions import Predictions
from calibrant.statistics import Interval

__all__ = ["TopLabelECE"]


@dataclass(frozen=True)
class TopLabelTable:
    """Bins of every predicted class: a table of K · B bins; K grows where a later part knows more classes."""

    table: BinTable

    def __add__(self, other: "TopLabelTable") -> "TopLabelTable":
        size = max(self.table.count.shape[0], other.table.count.shape[0])
        return TopLabelTable(_padded(self.table, size) + _padded(other.table, size))


@dataclass(frozen=True)
class TopLabelECE(SumMetric[TopLabelTable]):
    """Σ_k Σ_b |B_kb|/N · |accuracy − confidence|, where B_kb are the rows predicted as class k with confidence in bin b.

    Stronger than ECE, in which over-confidence in one predicted class can hide under-confidence in another. With
    K · B bins its plug-in is more biased than that of ECE: read it with its null level.

    Args:
        binning: Bins of the confidence; equal-mass bins are made within each predicted class.

    Example:
        >>> from calibrant import BinaryPairs
        >>> pairs = BinaryPairs.from_top_label([0.75, 0.75], [0, 1], [0, 0])
        >>> TopLabelECE()(pairs)
        0.5

    References:
        Gupta & Ramdas 2022, Eq. 5.
    """

    binning: Binning = field(default=EqualWidth(15))

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "top-label"
    cite: ClassVar[str] = "Gupta & Ramdas 2022"

    def cells(self, data: Data) -> Cells:
        """Return the rows in the bins of their predicted class."""
        predicted = data.predicted
        if predicted is None:
            raise InputError("expected pairs with predicted classes, got bare pairs; make them with from_top_label")
        classes = data.classes if isinstance(data, Predictions) else int(predicted.max()) + 1
        p, bins = data.confidence, self.binning.bins
        index = torch.empty_like(predicted)
        if isinstance(self.binning, EqualMass):
            for k in torch.unique(predicted).tolist():
                rows = predicted == k
                index[rows] = self.binning.assign(p[rows])
        else:
            index = self.binning.assign(p)
        index = torch.where(index >= 0, index + predicted * bins, -1)
        return Cells(index, p, data.correct, classes * bins)

    def state(self, data: Data) -> TopLabelTable:
        """Return the bin table.

        Raises:
            InputError: For equal-mass bins, whose edges within each class all data decide.
        """
        if isinstance(self.binning, EqualMass):
            raise InputError(f"expected equal-width bins to merge, got {self.binning}; call the metric on all rows")
        return TopLabelTable(self.cells(data).table())

    def value(self, state: TopLabelTable) -> float:
        """Return the error of a state."""
        return state.table.error()

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        return self.cells(data).table().error()

    def null_draws(self, data: Data, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) with outcomes drawn from the confidences."""
        cells = self.cells(data)
        return cells.null_tables(cells.table(), draws=draws, seed=seed).errors()

    def interval(self, data: Data, *, level: float = 0.95, seed: int = 0, null: Tensor | None = None) -> Interval:
        """Return the interval of the error in these bins (``statistics.error_interval``)."""
        return cells_interval(self.cells(data), groups=data.groups, level=level, seed=seed, null=null)


def _padded(table: BinTable, size: int) -> BinTable:
    def pad(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, size - values.shape[0]))

    return BinTable(pad(table.count), pad(table.sum_p), pad(table.sum_y), table.total)
