"""Base classes of metrics: frozen dataclasses that hold a configuration and are called on predictions; binned errors among them."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from calibrant._core.check import check_same_kind, check_same_weights, refuse, shown
from calibrant._core.constraints import Draws, Kind, Level, PublicCalls, Seed
from calibrant._core.numerics import add_records
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth
from calibrant.binning.row_sums import table_for
from calibrant.data.checks import Data, Rows
from calibrant.errors import NoIntervalError
from calibrant.statistics.binned import BinnedRows, error_interval
from calibrant.statistics.clusters import clustered_interval, clustered_table, need_units
from calibrant.statistics.interval import Excess, MeanSums
from calibrant.statistics.means import Interval
from calibrant.statistics.null import band_of, drawn_table, gap_band, redrawn_band

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
class Metric(metaclass=PublicCalls):
    """Base class of all metrics. The fields are the configuration, which the repr shows.

    A subclass is a frozen dataclass that implements ``__call__`` and sets the attributes below on the class. Subclass
    ``MeanMetric`` for a mean over rows, ``SumMetric`` for any other function of a sum: both can be computed in parts and
    merged. ``calibrant.testing.check_metric`` checks that a subclass behaves as every metric must.

    Attributes:
        better: "lower" unless a subclass says "higher", or "zero" for a signed statistic, which is best at 0.
        bounds: Smallest and largest value; of an error 0 and 1.
        notion: Which calibration it measures ("confidence", "top-label", "classwise", "canonical"), or "accuracy",
            "proper score" …
        cite: The publication that defines it.
        needs_classes: Whether it needs the probabilities of all classes; if so, it refuses top-label pairs.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> from calibrant.metrics import require_rows
        >>> @dataclass(frozen=True)
        ... class LargestConfidence(Metric):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def __call__(self, data):
        ...         return require_rows(data, what=self).confidence.max().item()
        >>> LargestConfidence()(Pairs.from_probs([0.75, 0.25], [1, 0]))
        0.75
    """

    better: ClassVar[Literal["lower", "higher", "zero"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str]
    cite: ClassVar[str]
    needs_classes: ClassVar[bool] = False

    @property
    def measures_calibration(self) -> bool:
        """Whether this is a calibration error, to be compared with the value expected if calibrated."""
        return self.notion in NOTIONS

    @abstractmethod
    def __call__(self, data: Data) -> float:
        """Return the metric of ``data``."""

    def interval(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the metric's confidence interval (``statistics.interval``).

        Args:
            data: Predictions or pairs; if they have groups, the groups are the independent units.
            level: Nominal coverage.
            draws: Sets of gaps drawn for the limit if calibrated of a binned error of rows in groups.
            seed: Same seed, same interval.

        Raises:
            NoIntervalError: If no method is known to have the nominal coverage, or there are too few data.
        """
        raise NoIntervalError(
            "a metric that is a mean over rows or knows its interval",
            f"{shown(self, most=200)}, for which none is known to cover",
            "compare it with null_band",
        )

    def null_band(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the mean and the central range of the metric if the probabilities were calibrated (``statistics.null_band``).

        Args:
            data: Predictions or pairs.
            level: The band holds the central fraction ``level`` of the values.
            draws: Label sets drawn.
            seed: Same seed, same band.

        Raises:
            NoIntervalError: For rows in groups.
        """
        return redrawn_band(self, data, level=level, draws=draws, seed=seed)


@dataclass(frozen=True)
class SumMetric(Metric, Generic[S]):
    """A metric that is a function of a sum: states of batches, processes and machines are added.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> from calibrant.metrics import require_rows
        >>> @dataclass(frozen=True)
        ... class Sums:
        ...     squares: float
        ...     mass: float
        ...
        ...     def __add__(self, other):
        ...         return Sums(self.squares + other.squares, self.mass + other.mass)
        >>> @dataclass(frozen=True)
        ... class RootMeanSquareConfidence(SumMetric[Sums]):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def state(self, data):
        ...         data = require_rows(data, what=self)
        ...         weights = torch.ones(len(data)) if data.weights is None else data.weights
        ...         return Sums(float((weights * data.confidence**2).sum()), float(weights.sum()))
        ...
        ...     def value(self, state):
        ...         return (state.squares / state.mass) ** 0.5
        >>> RootMeanSquareConfidence()(Pairs.from_probs([0.7, 0.1], [1, 0]))
        0.5
    """

    @abstractmethod
    def state(self, data: Data) -> S:
        """Return the state (sums) of ``data``."""

    @abstractmethod
    def value(self, state: S) -> float:
        """Return the metric's value for a state."""

    def __call__(self, data: Data) -> float:
        """Return the metric of ``data``."""
        return self.value(self.state(data))


@dataclass(frozen=True)
class MeanState:
    """The sum of one number per row, and the number of rows; for weighted rows the weighted sum and the sum of weights."""

    total: float
    count: float

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor | None) -> "MeanState":
        """Return the sum of ``rows`` (N,), weighted by ``weight`` (N,) or by 1, and the sum of the weights."""
        if weight is None:
            return cls(float(rows.sum(dtype=torch.float64)), int(rows.shape[0]))
        return cls(float((rows.double() * weight).sum()), weight.sum().item())

    def __add__(self, other: "MeanState") -> "MeanState":
        return add_records(self, other)


@dataclass(frozen=True)
class MeanMetric(SumMetric[MeanState]):
    """A metric that is the mean of one number per row; subclasses implement ``rows``. Intervals and tests work for all of them.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import Pairs
        >>> from calibrant.metrics import require_rows
        >>> @dataclass(frozen=True)
        ... class OneSided(MeanMetric):
        ...     better, bounds, notion, cite = "lower", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def rows(self, data):
        ...         return (require_rows(data, what=self).confidence - data.correct.double()).clamp_min(0)
        >>> OneSided()(Pairs.from_probs([0.75, 0.25], [1, 0]))
        0.125
    """

    @abstractmethod
    def rows(self, data: Data) -> Tensor:
        """Return the float64 numbers (N,) whose mean, weighted by the weights of ``data`` if any, is the metric."""

    def state(self, data: Rows) -> MeanState:
        """Return sum and count of the rows."""
        return MeanState.of(self.rows(data), data.weights)

    def value(self, state: MeanState) -> float:
        """Return the mean."""
        if not isinstance(state, MeanState) or state.count <= 0:
            raise refuse(f"a state of at least one row for {self}", shown(state), "make it with state(data)")
        return state.total / state.count

    def excess(self, data: Data) -> Excess | None:
        """Return what the rows could be for every label; None where that is not known."""
        return None

    def moments(self, data: Data) -> MeanSums:
        """Return sums that the interval is computed from; they add."""
        return MeanSums.of(self.rows(data), data, self.excess(data))

    def interval_of(self, moments: MeanSums, *, level: float) -> Interval:
        """Return the interval from sums."""
        return moments.interval(self, level=level)

    def interval(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return Wilson's interval of a proportion, and of any other mean Student's t corrected for skewness.

        Raises:
            NoIntervalError: For few wrong decisions or groups, and for an infinite value.
        """
        return self.interval_of(self.moments(data), level=level)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Confidence and correctness of every row: the state of metrics that need all rows in order; nine bytes a row.

    Args:
        p: (N,) float64 confidences.
        y: (N,) bool, whether the decision is right.
        weight: (N,) float64, or None.
    """

    p: Tensor
    y: Tensor
    weight: Tensor | None = None

    @classmethod
    def of(cls, data: Data) -> "KeptRows":
        """Return those of ``data``."""
        return cls(data.confidence, data.correct, data.weights)

    def __add__(self, other: "KeptRows") -> "KeptRows":
        check_same_kind(self, other)
        check_same_weights(self.weight is None, other.weight is None)
        weight = None if self.weight is None or other.weight is None else torch.cat([self.weight, other.weight])
        return KeptRows(torch.cat([self.p, other.p]), torch.cat([self.y, other.y]), weight)

    def by_confidence(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct confidences (M,), ascending, with Σ w and Σ w y of the rows of each."""
        values, code = torch.unique(self.p, return_inverse=True)
        w = torch.ones_like(self.p) if self.weight is None else self.weight
        mass, right = (torch.bincount(code, weights=one, minlength=len(values)) for one in (w, w * self.y))
        return values, mass, right


@dataclass(frozen=True)
class RankedMetric(SumMetric[KeptRows]):
    """A metric that is a function of the confidences and correct decisions of all rows."""

    notion = "confidence"

    def state(self, data: Rows) -> KeptRows:
        """Return confidence and correctness of the rows."""
        return KeptRows.of(data)


Norm = Literal[1, 2]  # of the gaps: their mean absolute value, or their root mean square


BinnedState = Annotated[BinTable | KeptRows, Kind((BinTable, KeptRows), "make it with state(data)")]


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | KeptRows]):
    """A metric that is a function of a bin table: of confidences and correct decisions, in the bins of ``binning``.

    The value, the interval and the limit if calibrated are all computed from that table.
    """

    binning: AnyBinning = field(default=EqualWidth(15))

    notion = "confidence"

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric (…) of tables (…, B)."""

    def cells(self, data: Data) -> BinnedRows:
        """Return each row's bin, confidence and correctness."""
        p = data.confidence
        return BinnedRows(self.binning.assign(p, weight=data.weights), p, data.correct, self.binning.bins, data.weights)

    def table(self, data: Data) -> BinTable:
        """Return the bin table of rows that are all there."""
        return table_for(self.binning, data)

    def __call__(self, data: Rows) -> float:
        """Return the value on ``data``, a Python float."""
        return float(self.errors(self.table(data)))

    def state(self, data: Rows) -> BinTable | KeptRows:
        """Return the bin table; for equal-mass bins, whose edges depend on all data, the rows."""
        return KeptRows.of(data) if isinstance(self.binning, EqualMass) else self.table(data)

    def moments(self, data: Data) -> BinTable | KeptRows:
        """Return sums that the interval and the limit if calibrated are computed from: the state."""
        return self.state(data)

    def table_of(self, state: BinTable | KeptRows) -> BinTable:
        """Return the bin table of a state."""
        return state if isinstance(state, BinTable) else self.binning.table(state.p, state.y, weight=state.weight)

    def value(self, state: BinnedState) -> float:
        """Return the metric of a state."""
        return float(self.errors(self.table_of(state)))

    def gap_weights(self, table: BinTable) -> Tensor | None:
        """Return the a (B,) of a metric Σ_b a_b |Σ_{i in b} w_i (p_i − y_i)|; None for any other function of the table."""
        return None

    def null_of(self, state: BinTable | KeptRows, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the band of the metric if calibrated, of independent rows, from a state."""
        table = self.table_of(state)
        weights = self.gap_weights(table)
        if weights is not None:
            return gap_band(table, weights, level=level)
        return band_of(self.errors(drawn_table(table, draws=draws, seed=seed)), level=level)

    def null_band(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the mean and the central range of the metric if calibrated, from its table; of groups from drawn gaps.

        Raises:
            NoIntervalError: For fewer than ten groups, or too many.
        """
        table = self.table(data)
        if data.groups is None:
            return self.null_of(table, level=level, draws=draws, seed=seed)
        drawn = clustered_table(table, need_units(self.cells(data), data.groups, what=self), draws=draws, seed=seed)
        return band_of(self.errors(drawn), level=level)


@dataclass(frozen=True)
class GapMetric(BinnedMetric):
    """A binned metric Σ_b weight_b |gap_b|, which has an interval (``statistics.binned``)."""

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors()

    def gap_weights(self, table: BinTable) -> Tensor | None:
        """Return 1 / Σw for every bin."""
        return torch.full_like(table.sum_p, 1 / table.mass)

    def interval_of(self, state: BinTable | KeptRows, *, level: float) -> Interval:
        """Return the interval from a state of independent rows."""
        table = self.table_of(state)
        return error_interval(table, self.null_of(table, level=level).high, level=level)

    def interval(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the interval of the error in these bins.

        Raises:
            NoIntervalError: For fewer than ten groups.
        """
        table = self.table(data)
        if data.groups is None:
            return self.interval_of(table, level=level)
        units = need_units(self.cells(data), data.groups, what=self)
        null = band_of(self.errors(clustered_table(table, units, draws=draws, seed=seed)), level=level)
        return clustered_interval(table, units, null.high, level=level)
