"""Base classes of metrics.

A metric is any function of predictions, a function of sums, a mean over rows, or a function of a table of bins.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from calibrant._core.check import check_same_weights, shown
from calibrant._kernel import top_bins
from calibrant.binning import LOOP_BINS, Binning, BinTable, EqualMass, EqualWidth, GroupedGaps, as_binning
from calibrant.data.checks import Data, require_predictions, require_rows
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, NoIntervalError
from calibrant.statistics.binned import BinnedRows, calibrated_groups, error_interval, gap_band
from calibrant.statistics.design import Design, require_groups, require_ungrouped
from calibrant.statistics.losses import Excess, MeanSums, rows_interval
from calibrant.statistics.means import Interval
from calibrant.statistics.null import band_of, calibrated_table, redraw

# Notions of calibration: of the confidence alone; of the confidence within each predicted class (Gupta & Ramdas 2022); of
# every class's probability; of the whole probability vector. Canonical implies all others, and top-label implies confidence;
# classwise implies neither of these two.
NOTIONS = ("confidence", "top-label", "classwise", "canonical")


class Sum(Protocol):
    """A state that supports addition."""

    def __add__(self, other: Self) -> Self:
        """Return the state of both parts' data."""


S = TypeVar("S", bound=Sum)


@dataclass(frozen=True)
class Metric(ABC):
    """Base class of all metrics; its fields are the configuration, which the repr shows.

    A subclass is a frozen dataclass that implements ``measure`` and sets the attributes below on the class. Subclass
    ``MeanMetric`` for a mean over rows, and ``SumMetric`` for any other function of sums: both can be computed from parts of
    the data. ``calibrant.testing.check_metric`` checks that a subclass keeps the promises of every metric.

    Attributes:
        better: "lower" unless a subclass says "higher", or "zero" for a signed statistic, which is best at 0.
        bounds: Smallest and largest possible value; (0, 1) for an error.
        notion: Which calibration it measures ("confidence", "top-label", "classwise", "canonical"), or "accuracy",
            "proper score" …
        cite: The publication that defines it.
        needs_classes: Whether it needs the probabilities of all classes. If so, it rejects pairs, which hold confidences only.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> @dataclass(frozen=True)
        ... class LargestConfidence(Metric):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def measure(self, rows):
        ...         return rows.confidence.max().item()
        >>> LargestConfidence()(Pairs.from_probs([0.75, 0.25], [1, 0]))
        0.75
    """

    better: ClassVar[Literal["lower", "higher", "zero"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str]
    cite: ClassVar[str]
    needs_classes: ClassVar[bool] = False

    def __call__(self, data: Any, labels: Any = None) -> float:
        """Return the value of the metric.

        Args:
            data: Labelled predictions or pairs; or logits (N, K), with ``labels``.
            labels: (N,) integers in [0, K) for logits, or None.

        Raises:
            InputError: If the data are invalid, hold no row of positive weight, or are pairs although the metric needs the
                probabilities of all classes.

        Examples:
            >>> from calibrant.metrics import ECE
            >>> round(ECE()([[2.0, 0.0], [0.0, 1.0]], [0, 0]), 4)
            0.4251
        """
        return self.measure(self.check(data if labels is None else Predictions.from_logits(data, labels)))

    def check(self, data: Data) -> Any:
        """Return the rows of ``data`` that have a positive weight, or raise if this metric cannot measure them."""
        return (require_predictions if self.needs_classes else require_rows)(data, what=self)

    @abstractmethod
    def measure(self, rows: Any) -> float:
        """Return the metric of ``rows``, predictions or pairs that ``check`` has returned."""

    @property
    def measures_calibration(self) -> bool:
        """Whether this is a calibration error, to be compared with the value expected if calibrated."""
        return self.notion in NOTIONS

    def interval(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the confidence interval (``statistics.interval``) on ``rows`` that ``check`` has returned.

        Args:
            rows: Predictions or pairs; if they have groups, the groups are the independent units.
            level: Nominal coverage, in (0, 1).
            draws: Number of simulated sets of gaps; used only for a binned error of rows in groups.
            seed: Seed of the simulation; the same seed gives the same interval.

        Raises:
            NoIntervalError: If no method is known to have the nominal coverage, or there are too few rows.
        """
        raise self._unknown()

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the mean and the central range of the metric if the probabilities were calibrated (``statistics.null_band``).

        Args:
            rows: Predictions or pairs that ``check`` has returned.
            level: The fraction of simulated values inside the band, in (0, 1).
            draws: Number of simulated label sets.
            seed: Seed of the simulation; the same seed gives the same band.

        Raises:
            NoIntervalError: For rows in groups; only binned errors have a band for them.
        """
        require_ungrouped(rows.groups, what=self)
        generator = torch.Generator().manual_seed(seed)
        values = [self.measure(redraw(rows, generator=generator)) for _ in range(draws)]
        return band_of(torch.tensor(values, dtype=torch.float64), level=level)

    def _unknown(self) -> NoIntervalError:
        expected = "a metric that is a mean over rows or has an interval of its own"
        got = f"{shown(self, most=200)}, for which no interval with the nominal coverage is known"
        return NoIntervalError(expected, got, "compare it with null_band")


@dataclass(frozen=True)
class SumMetric(Metric, Generic[S]):
    """A metric that is a function of sums over rows, so that the states of batches, processes and machines can be added.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> @dataclass(frozen=True)
        ... class RootMeanSquareConfidence(SumMetric[torch.Tensor]):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def state(self, rows):
        ...         w = rows.row_weights
        ...         return torch.stack([(w * rows.confidence**2).sum(), w.sum()])
        ...
        ...     def value(self, state):
        ...         return float(state[0] / state[1]) ** 0.5
        >>> RootMeanSquareConfidence()(Pairs.from_probs([0.7, 0.1], [1, 0]))
        0.5
    """

    @abstractmethod
    def state(self, rows: Any) -> S:
        """Return the sums over ``rows``, which are (a part of) the predictions or pairs that ``check`` has returned."""

    @abstractmethod
    def value(self, state: S) -> float:
        """Return the metric's value for a state."""

    def measure(self, rows: Any) -> float:
        """Return the metric of ``rows``."""
        return self.value(self.state(rows))

    def interval_of(self, state: S, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the confidence interval computed from a state of independent rows.

        Raises:
            NoIntervalError: If the state does not determine an interval with the nominal coverage.
        """
        raise self._unknown()

    def null_of(self, state: S, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the range of the metric for a calibrated model, computed from a state of independent rows.

        Raises:
            NoIntervalError: If the state does not determine this range.
        """
        raise self._unknown()


@dataclass(frozen=True)
class MeanMetric(SumMetric[MeanSums]):
    """A metric that is the mean of one number per row.

    Subclasses implement ``rows``; confidence intervals and paired tests then need no further code.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> @dataclass(frozen=True)
        ... class OneSided(MeanMetric):
        ...     better, bounds, notion, cite = "lower", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def rows(self, data):
        ...         return (data.confidence - data.correct.double()).clamp_min(0)
        >>> OneSided()(Pairs.from_probs([0.75, 0.25], [1, 0]))
        0.125
    """

    @abstractmethod
    def rows(self, data: Any) -> Tensor:
        """Return float64 numbers (N,); their mean, weighted if ``data`` has weights, is the metric."""

    def excess(self, data: Any) -> Excess | None:
        """Return the numbers that the rows would have for every other label, or None if these are not known."""
        return None

    def state(self, rows: Any) -> MeanSums:
        """Return the sums from which the mean and its interval are computed."""
        return MeanSums.of(self.rows(rows), rows, self.excess(rows))

    def value(self, state: MeanSums) -> float:
        """Return the mean."""
        return state.rows.mean

    def measure(self, rows: Any) -> float:
        """Return the mean over ``rows``."""
        numbers, weight = self.rows(rows), rows.weights
        return float(numbers.mean(dtype=torch.float64) if weight is None else numbers.double() @ weight / weight.sum())

    def interval_of(self, state: MeanSums, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return Wilson's interval for a proportion, and Student's t corrected for skewness for any other mean.

        Raises:
            NoIntervalError: If there are too few wrong decisions, or the mean is infinite.
        """
        return state.interval(self, level=level)

    def interval(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the confidence interval of the mean; if there are groups, they are the independent units.

        Raises:
            NoIntervalError: If there are too few wrong decisions or groups, or the mean is infinite.
        """
        return rows_interval(self.rows(rows), rows, what=self, level=level, excess=self.excess)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Confidence and correctness of every row, the state of metrics that need all rows sorted; nine bytes per row.

    Args:
        p: (N,) float64 confidences.
        y: (N,) bool, whether the decision is correct.
        weight: (N,) float64 weights, or None.
    """

    p: Tensor
    y: Tensor
    weight: Tensor | None = None

    @classmethod
    def of(cls, data: Data) -> "KeptRows":
        """Return the confidence, correctness and weight of every row of ``data``."""
        return cls(data.confidence, data.correct, data.weights)

    def __add__(self, other: "KeptRows") -> "KeptRows":
        check_same_weights(self.weight is None, other.weight is None)
        weight = None if self.weight is None or other.weight is None else torch.cat([self.weight, other.weight])
        return KeptRows(torch.cat([self.p, other.p]), torch.cat([self.y, other.y]), weight)

    def by_confidence(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct confidences (M,), ascending, with the sums Σ w and Σ w y (M,) over the rows of each."""
        values, code = torch.unique(self.p, return_inverse=True)
        w = torch.ones_like(self.p) if self.weight is None else self.weight
        mass, right = (torch.bincount(code, weights=one, minlength=len(values)) for one in (w, w * self.y))
        return values, mass, right


@dataclass(frozen=True)
class RankedMetric(SumMetric[KeptRows]):
    """A metric that is a function of the confidence and correctness of every row."""

    notion = "confidence"

    def state(self, rows: Any) -> KeptRows:
        """Return confidence and correctness of the rows."""
        return KeptRows.of(rows)


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | KeptRows]):
    """A metric that is a function of a table with the confidences and correct decisions in each bin of ``binning``.

    The value, its interval, and the limit that a calibrated model stays below are all computed from that table.
    """

    binning: Binning = field(default=EqualWidth(15))

    notion = "confidence"

    def __post_init__(self) -> None:
        object.__setattr__(self, "binning", as_binning(self.binning))

    def gap_factor(self, table: BinTable) -> float | None:
        """Return a if the metric is a Σ_b weight_b |gap_b|, whose interval has a closed form; otherwise None."""
        return None

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric (…) of tables (…, B)."""

    def cells(self, data: Any) -> BinnedRows:
        """Return each row's bin, confidence and correctness."""
        p = data.confidence
        return BinnedRows(self.binning.assign(p, weight=data.weights), p, data.correct, self.binning.bins, data.weights)

    def table(self, data: Any) -> BinTable:
        """Return the bin table of complete data; for predictions in bins of equal width it is computed once and kept."""
        binning = self.binning
        if not isinstance(binning, EqualWidth) or not isinstance(data, Predictions):
            return binning.table(data.confidence, data.correct, weight=data.weights)
        if binning not in data.sums:
            plain = data.given_probs is None and data.decision is None and data.weights is None
            known = "statistics" in vars(data) or data.logits.device.type != "cpu"
            if plain and not known and binning.bins <= LOOP_BINS:  # one pass over the logits
                sums = top_bins(data.logits, data.require_labels(), binning.bins)
                data.sums[binning] = BinTable.of_sums(sums, len(data))
            else:
                data.sums[binning] = binning.table(data.confidence, data.correct, weight=data.weights)
        table: BinTable = data.sums[binning]
        return table

    def grouped_table(self, data: Any) -> BinTable:
        """Return the bin table, with the covariance of the gaps between groups if ``data`` has groups.

        Raises:
            NoIntervalError: If there are fewer than ten groups, or more than memory allows.
        """
        table = self.table(data)
        if data.groups is None:
            return table
        require_groups(data.groups, what=self, weight=data.weights)
        design = Design.of(data.scores, groups=data.groups, weight=data.weights)
        return replace(table, groups=GroupedGaps(self.gap_sums(data, design), design.clusters.degrees))

    def gap_sums(self, data: Any, design: Design) -> Tensor:
        """Return the weighted residuals summed over each of G groups and B bins, (G, B)."""
        rows = self.cells(data)
        return design.sums(rows.bins, [(slice(None), rows.index, rows.residual)])

    def state(self, rows: Any) -> BinTable | KeptRows:
        """Return the bin table or, for equal-mass bins, whose edges depend on all data, the rows themselves."""
        return KeptRows.of(rows) if isinstance(self.binning, EqualMass) else self.table(rows)

    def table_of(self, state: BinTable | KeptRows) -> BinTable:
        """Return the bin table of a state."""
        return state if isinstance(state, BinTable) else self.binning.table(state.p, state.y, weight=state.weight)

    def value(self, state: BinTable | KeptRows) -> float:
        """Return the metric of a state."""
        return float(self.errors(self.table_of(state)))

    def measure(self, rows: Any) -> float:
        """Return the metric of ``rows``."""
        return float(self.errors(self.table(rows)))

    def null_of(self, state: BinTable | KeptRows, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the range of the metric for a calibrated model, from a state; groups need simulated gaps."""
        table = self.table_of(state)
        if table.groups is not None:
            return band_of(self.errors(calibrated_groups(table, table.groups, draws=draws, seed=seed)), level=level)
        if (factor := self.gap_factor(table)) is not None:
            return gap_band(table, factor / table.mass, level=level)
        return band_of(self.errors(calibrated_table(table, draws=draws, seed=seed)), level=level)

    def interval_of(
        self, state: BinTable | KeptRows, *, level: float = 0.95, draws: int = 1000, seed: int = 0
    ) -> Interval:
        """Return the confidence interval of the error in these bins, from a state.

        Raises:
            NoIntervalError: If no interval with the nominal coverage is known.
        """
        table = self.table_of(state)
        if self.gap_factor(table) is None:
            raise self._unknown()
        gate = self.null_of(table, level=level, draws=draws, seed=seed).high
        return error_interval(table, gate, level=level)

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the mean and the central range of the metric for a calibrated model, from the bin table.

        Raises:
            NoIntervalError: If there are fewer than ten groups, or more than memory allows.
        """
        return self.null_of(self.grouped_table(rows), level=level, draws=draws, seed=seed)

    def interval(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the confidence interval of the error in these bins.

        Raises:
            NoIntervalError: If no interval with the nominal coverage is known, or there are fewer than ten groups, or more
                than memory allows.
        """
        return self.interval_of(self.grouped_table(rows), level=level, draws=draws, seed=seed)


def require_fixed_edges(binning: Binning) -> None:
    """Check that tables of parts of the data can be added.

    Raises:
        InputError: For equal-mass bins, whose edges depend on all data.
    """
    if isinstance(binning, EqualMass):
        raise InputError("equal-width bins to merge", f"{binning}", "call the metric on all rows")
