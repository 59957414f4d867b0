"""Calibration errors of the top label: in bins (ECE, MCE, ACE), in bins of each predicted class, and without bins (KSError)."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant._kernel import top_bins
from calibrant.binning import LOOP_BINS, Binning, BinTable, EqualMass, EqualWidth, as_binning
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics._base import KeptRows, RankedMetric, SumMetric
from calibrant.statistics.binned import calibrated_table, error_interval, gap_band
from calibrant.statistics.design import Design, require_groups
from calibrant.statistics.interval import band_of
from calibrant.statistics.means import Interval


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | KeptRows]):
    """A metric that is a function of a bin table, with the sums of confidences and correct decisions in each bin.

    The metric's value, its interval, and the limit that calibrated models stay below are all computed from this table.
    """

    binning: Binning = field(default=EqualWidth(15))

    notion = "confidence"
    by_class: ClassVar[bool] = False  # whether each class has its own bins

    def __post_init__(self) -> None:
        object.__setattr__(self, "binning", as_binning(self.binning))

    def gap_factor(self, table: BinTable) -> float | None:
        """Return the factor a if the metric is a Σ_b weight_b |gap_b|, whose interval has a closed form; otherwise None."""
        return None

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric's values (…) for tables (…, B)."""

    def cells(self, data: Any) -> Tensor:
        """Return the bin index (N,) of each row, or −1 for a row in no bin."""
        return self.binning.assign(data.confidence, weight=data.weights)

    def residuals(self, data: Any) -> Iterable[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with their bins (n, …) and the amounts that each row adds to Σ (p − y) of these bins."""
        yield slice(None), self.cells(data), data.confidence - data.correct.double()

    def table(self, data: Any) -> BinTable:
        """Return the bin table of all rows of ``data``; predictions cache it."""
        binning, sums = self.binning, getattr(data, "sums", {})
        if binning not in sums:
            # one pass over the logits, unless the confidence of each row is already known or needed anyway
            plain = isinstance(data, Predictions) and data.given_probs is None and data.decision is data.weights is None
            plain = plain and data.logits.device.type == "cpu" and "statistics" not in vars(data)
            if plain and isinstance(binning, EqualWidth) and binning.bins <= LOOP_BINS:
                counts = top_bins(data.logits, data.require_labels(), binning.bins)
                sums[binning] = BinTable.of_sums(counts, len(data))
            else:
                sums[binning] = binning.table(data.confidence, data.correct, weight=data.weights)
        table: BinTable = sums[binning]
        return table

    def grouped_table(self, data: Any) -> BinTable:
        """Return the bin table, and for data with groups the covariance of the bins' gaps.

        Raises:
            NoIntervalError: If there are fewer than ten groups, or more groups than fit into memory.
        """
        table = self.table(data)
        if data.groups is None:
            return table
        require_groups(data.groups, what=self, weight=data.weights)
        design = Design.of(data.scores, groups=data.groups, weight=data.weights)
        sums = design.sums(len(table.count), self.residuals(data))
        return replace(table, groups=sums, degrees=design.clusters.degrees)

    def state(self, rows: Any) -> BinTable | KeptRows:
        """Return the bin table. For equal-mass bins, whose edges depend on all data, return the rows themselves.

        Raises:
            InputError: For equal-mass bins within each class.
        """
        if not isinstance(self.binning, EqualMass):
            return self.table(rows)
        if self.by_class:
            raise InputError("equal-width bins to merge", f"{self.binning}", "call the metric on all rows at once")
        return KeptRows.of(rows)

    def table_of(self, state: BinTable | KeptRows) -> BinTable:
        """Return the bin table of a state."""
        return state if isinstance(state, BinTable) else self.binning.table(state.p, state.y, weight=state.weight)

    def value(self, state: BinTable | KeptRows) -> float:
        """Return the metric's value for a state."""
        return float(self.errors(self.table_of(state)))

    def measure(self, rows: Any) -> float:
        """Return the metric's value for ``rows``."""
        return float(self.errors(self.table(rows)))

    def null_of(self, state: BinTable | KeptRows, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the range of the metric for a calibrated model, from a state. With groups, gaps are simulated."""
        table = self.table_of(state)
        if table.groups is None and (factor := self.gap_factor(table)) is not None:
            return gap_band(table, factor / table.total, level=level)
        return band_of(self.errors(calibrated_table(table, draws=draws, seed=seed)), level=level)

    def interval_of(self, state: BinTable | KeptRows, *, level: float = 0.95) -> Interval:
        """Return the confidence interval of the error in these bins, from a state.

        Raises:
            NoIntervalError: If no interval with the nominal coverage is known.
        """
        table = self.table_of(state)
        if self.gap_factor(table) is None:
            raise self._unknown()
        return error_interval(table, self.null_of(table, level=level).high, level=level)

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the mean and the central range of the metric for a calibrated model, from the bin table.

        Raises:
            NoIntervalError: If there are fewer than ten groups, or more groups than fit into memory.
        """
        return self.null_of(self.grouped_table(rows), level=level, draws=draws, seed=seed)

    def interval(self, rows: Any, *, level: float = 0.95) -> Interval:
        """Return the confidence interval of the error in these bins.

        Raises:
            NoIntervalError: If no interval with the nominal coverage is known, if there are fewer than ten groups, or if
                there are more groups than fit into memory.
        """
        return self.interval_of(self.grouped_table(rows), level=level)


@dataclass(frozen=True)
class ECE(BinnedMetric):
    """Expected calibration error of the top label, Σ_b |B_b|/N · |accuracy − confidence|.

    The estimate is biased upward: on a finite sample, even a perfectly calibrated model has an ECE above 0. Compare the
    value with ``statistics.null_band``, which returns the range of values of a calibrated model. ``statistics.interval``
    returns a confidence interval.

    Args:
        binning: ``EqualWidth(15)`` (the papers' ECE) or ``EqualMass(15)`` (AdaECE, ECE-EM). An integer is a number of
            equal-width bins.
        norm: 1, or 2 for the root-mean-square calibration error (Σ_b |B_b|/N · gap²)^½, for which no interval is known.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ECE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Naeini et al. 2015; Guo et al. 2017 Eq. 3; Mukhoti et al. 2020 §2.
    """

    norm: Literal[1, 2] = 1

    cite = "Naeini et al. 2015"

    def gap_factor(self, table: BinTable) -> float | None:
        """Return 1, or None for norm 2."""
        return 1.0 if self.norm == 1 else None

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors(norm=self.norm)


@dataclass(frozen=True)
class MCE(BinnedMetric):
    """Maximum calibration error: the largest |accuracy − confidence| of a non-empty bin.

    The bin with the largest gap often contains only a few samples, so check its count as well.

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
        return table.gap.abs().sum(dim=-1) / (table.count > 0).sum().clamp_min(1)


@dataclass(frozen=True)
class TopLabelECE(BinnedMetric):
    """Top-label calibration error, Σ_k Σ_b |B_kb|/N · |accuracy − confidence|.

    B_kb are the rows predicted as class k with a confidence in bin b. This error detects more than the ECE, in which
    over-confidence in one predicted class can cancel under-confidence in another. With K · B bins, the estimate is more
    biased than the ECE, so compare it with ``statistics.null_band``.

    Args:
        binning: Bins of the confidence, as in ``ECE``; equal-mass bins are formed within each predicted class.

    Examples:
        >>> from calibrant import Pairs
        >>> pairs = Pairs.from_top_label([0.75, 0.75], [0, 1], [0, 0])
        >>> TopLabelECE()(pairs)
        0.5

    References:
        Gupta & Ramdas 2022, Eq. 5.
    """

    notion = "top-label"
    by_class = True
    cite = "Gupta & Ramdas 2022"

    def gap_factor(self, table: BinTable) -> float:
        """Return 1."""
        return 1.0

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, K · B)."""
        return table.errors()

    def cells(self, data: Any) -> Tensor:
        """Return the cell (N,) of each row, B · predicted class + bin, or −1 for a row in no bin.

        Raises:
            InputError: If ``data`` are pairs without predicted classes.
        """
        predicted, weight = data.predicted, data.weights
        if predicted is None:
            raise InputError(
                "pairs with predicted classes", "pairs without them", "make them with Pairs.from_top_label"
            )
        index = self.binning.assign(data.confidence)
        if isinstance(self.binning, EqualMass):
            for k in torch.unique(predicted).tolist():
                rows = predicted == k
                mass = None if weight is None else weight[rows]
                index[rows] = self.binning.assign(data.confidence[rows], weight=mass)
        return torch.where(index >= 0, index + predicted * self.binning.bins, -1)

    def table(self, data: Any) -> BinTable:
        """Return the bin table (K · B)."""
        cells = self.cells(data)
        classes = data.classes if isinstance(data, Predictions) else int(data.predicted.max()) + 1
        bins = classes * self.binning.bins
        return BinTable.from_pairs(cells, data.confidence, data.correct, bins=bins, weight=data.weights)


@dataclass(frozen=True)
class KSError(RankedMetric):
    """Kolmogorov–Smirnov calibration error, max_v |Σ_{confidence ≤ v} (confidence − correct)| / N.

    Examples:
        >>> from calibrant import Pairs
        >>> round(KSError()(Pairs.from_probs([0.9, 0.6], [1, 0])), 4)
        0.3

    References:
        Gupta et al. 2021, Eq. 8.
    """

    cite = "Gupta et al. 2021"

    def value(self, state: KeptRows) -> float:
        """Return the largest absolute cumulative residual."""
        p, mass, right = state.by_confidence()
        return float((p * mass - right).cumsum(0).abs().max() / mass.sum())
