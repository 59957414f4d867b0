"""Binned calibration errors of the top label: ECE, MCE, ACE, and within each predicted class."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_same_kind
from calibrant._core.constraints import Draws, Level, Seed
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth
from calibrant.binning.row_sums import confidence_for
from calibrant.data.checks import Data, Rows
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, NoIntervalError
from calibrant.metrics._base import BinnedMetric, CellMetric, Norm, SumMetric
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.means import Interval
from calibrant.statistics.null import BinSums


@dataclass(frozen=True)
class GapMetric(CellMetric):
    """A metric Σ_b weight_b |gap_b| over the bins of ``cells``, which has an interval."""

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors()

    def interval(
        self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0, null: Tensor | None = None
    ) -> Interval:
        """Return the interval of the error in these bins (``statistics.error_interval``).

        Args:
            data: Predictions or pairs; if they have groups, the groups are the independent units.
            level: Nominal coverage.
            draws: Label sets drawn to simulate calibration.
            seed: Same seed, same draws.
            null: (draws,) values under calibration that were drawn before, or None.

        Raises:
            NoIntervalError: For fewer than ten groups.
        """
        moments = self.moments(data)
        null = self.null_of(moments, draws=draws, seed=seed) if null is None else null
        return self.interval_of(moments, null=null, level=level)

    def interval_of(self, moments: BinSums, *, null: Tensor, level: float) -> Interval:
        """Return the interval from sums, with the values (draws,) of the metric if calibrated."""
        return moments.interval(self, null, level=level)


@dataclass(frozen=True)
class ECE(BinnedMetric, GapMetric):
    """Expected calibration error Σ_b |B_b|/N · |accuracy − confidence| of the top label.

    The plug-in estimate is biased upward: on a finite sample a perfectly calibrated model does not score 0. Compare it with
    ``statistics.null_band``; ``statistics.interval`` returns an interval with the nominal coverage.

    Args:
        binning: ``EqualWidth(15)`` (the papers' ECE) or ``EqualMass(15)`` (AdaECE, ECE-EM); an integer is a number of
            equal-width bins.
        norm: 1, or 2 for the RMS calibration error (Σ_b |B_b|/N · gap²)^½.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ECE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Naeini et al. 2015; Guo et al. 2017 Eq. 3; Mukhoti et al. 2020 §2.
    """

    norm: Norm = 1

    cite = "Naeini et al. 2015"

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors(norm=self.norm)

    def interval_of(self, moments: BinSums, *, null: Tensor, level: float) -> Interval:
        """Return the interval from sums, with the values (draws,) of the metric if calibrated.

        Raises:
            NoIntervalError: For a norm other than 1, and for fewer than ten groups.
        """
        if self.norm != 1:
            raise NoIntervalError("norm 1", f"{self!r}, for which no interval is known to cover", "use null_band")
        return super().interval_of(moments, null=null, level=level)


@dataclass(frozen=True)
class MCE(BinnedMetric):
    """Maximum calibration error: the largest |accuracy − confidence| of a non-empty bin.

    Often the bin holds a handful of samples: read the value with the counts.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(MCE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7311

    References:
        Naeini et al. 2015.
    """

    cite = "Naeini et al. 2015"

    def errors(self, table: BinTable) -> Tensor:
        """Return the largest |gap| (…) of tables (…, B)."""
        return table.gap.abs().amax(dim=-1)


@dataclass(frozen=True)
class ACE(BinnedMetric):
    """Average calibration error: the unweighted mean of |accuracy − confidence| over non-empty bins.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ACE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Neumann et al. 2018.
    """

    cite = "Neumann et al. 2018"

    def errors(self, table: BinTable) -> Tensor:
        """Return the mean |gap| (…) over non-empty bins of tables (…, B)."""
        filled = (table.count > 0).sum().clamp_min(1)
        return table.gap.abs().sum(dim=-1) / filled


@dataclass(frozen=True)
class TopLabelTable:
    """Bins of every predicted class: a table of K · B bins; addition takes the larger K of both parts."""

    table: BinTable

    def __add__(self, other: "TopLabelTable") -> "TopLabelTable":
        check_same_kind(self, other)
        size = max(self.table.count.shape[0], other.table.count.shape[0])

        def wider(one: BinTable) -> BinTable:
            columns = [(name, part) for name, part in vars(one).items() if isinstance(part, Tensor)]
            padded: dict[str, Any] = {name: F.pad(part, (0, size - part.shape[-1])) for name, part in columns}
            return replace(one, **padded)

        return TopLabelTable(wider(self.table) + wider(other.table))


@dataclass(frozen=True)
class TopLabelECE(SumMetric[TopLabelTable], GapMetric):
    """Σ_k Σ_b |B_kb|/N · |accuracy − confidence|, where B_kb are the rows predicted as class k with confidence in bin b.

    Stronger than ECE, in which over-confidence in one predicted class can cancel under-confidence in another. With K · B
    bins the plug-in estimate is more biased than that of ECE: compare it with the value expected if calibrated.

    Args:
        binning: Bins of the confidence; equal-mass bins are made within each predicted class.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> pairs = BinaryPairs.from_top_label([0.75, 0.75], [0, 1], [0, 0])
        >>> TopLabelECE()(pairs)
        0.5

    References:
        Gupta & Ramdas 2022, Eq. 5.
    """

    binning: AnyBinning = field(default=EqualWidth(15))

    notion = "top-label"
    cite = "Gupta & Ramdas 2022"

    def cells(self, data: Rows) -> BinnedRows:
        """Return the rows in the bins of their predicted class."""
        predicted, weight = data.predicted, data.weights
        if predicted is None:
            raise InputError("pairs with predicted classes", "bare pairs", "make them with from_top_label")
        classes = data.classes if isinstance(data, Predictions) else int(predicted.max()) + 1
        p, bins = confidence_for(self.binning, data), self.binning.bins
        index = torch.empty_like(predicted)
        if isinstance(self.binning, EqualMass):
            for k in torch.unique(predicted).tolist():
                rows = predicted == k
                index[rows] = self.binning.assign(p[rows], weight=None if weight is None else weight[rows])
        else:
            index = self.binning.assign(p)
        index = torch.where(index >= 0, index + predicted * bins, -1)
        return BinnedRows(index, p, data.correct, classes * bins, weight)

    def state(self, data: Data) -> TopLabelTable:
        """Return the bin table.

        Raises:
            InputError: For equal-mass bins, whose edges within each class depend on all data.
        """
        if isinstance(self.binning, EqualMass):
            raise InputError("equal-width bins to merge", f"{self.binning}", "call the metric on all rows")
        return TopLabelTable(self.cells(data).table())

    def value(self, state: TopLabelTable) -> float:
        """Return the error of a state."""
        return state.table.error()

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        return self.cells(data).table().error()
