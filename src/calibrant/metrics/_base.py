"""Base classes of metrics: frozen dataclasses that hold a configuration and are called on predictions; binned errors among them."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Kind, PublicCalls
from calibrant._core.numerics import add_records
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth, MassSketch
from calibrant.binning.row_sums import confidence_for, table_for
from calibrant.data.checks import Data, Rows
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.interval import MeanSums
from calibrant.statistics.means import Interval
from calibrant.statistics.null import BinSums

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
        of_decisions: Whether it counts right and wrong decisions; if so, it refuses events, which are neither.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
        >>> @dataclass(frozen=True)
        ... class LargestConfidence(Metric):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def __call__(self, data):
        ...         return need_rows(data, what=self).confidence.max().item()
        >>> LargestConfidence()(BinaryPairs.from_probs([0.75, 0.25], [1, 0]))
        0.75
    """

    better: ClassVar[Literal["lower", "higher", "zero"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str]
    cite: ClassVar[str]
    needs_classes: ClassVar[bool] = False
    of_decisions: ClassVar[bool] = False

    @property
    def measures_calibration(self) -> bool:
        """Whether this is a calibration error, to be compared with the value expected if calibrated."""
        return self.notion in NOTIONS

    @abstractmethod
    def __call__(self, data: Data) -> float:
        """Return the metric of ``data``."""


@dataclass(frozen=True)
class SumMetric(Metric, Generic[S]):
    """A metric that is a function of a sum: states of batches, processes and machines are added.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
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
        ...         data = need_rows(data, what=self)
        ...         weights = torch.ones(len(data)) if data.weights is None else data.weights
        ...         return Sums(float((weights * data.confidence**2).sum()), float(weights.sum()))
        ...
        ...     def value(self, state):
        ...         return (state.squares / state.mass) ** 0.5
        >>> RootMeanSquareConfidence()(BinaryPairs.from_probs([0.7, 0.1], [1, 0]))
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
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
        >>> @dataclass(frozen=True)
        ... class OneSided(MeanMetric):
        ...     better, bounds, notion, cite = "lower", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def rows(self, data):
        ...         return (need_rows(data, what=self).confidence - data.correct.double()).clamp_min(0)
        >>> OneSided()(BinaryPairs.from_probs([0.75, 0.25], [1, 0]))
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

    def moments(self, data: Rows) -> MeanSums:
        """Return sums that the interval is computed from."""
        return MeanSums.of(self, data)

    def interval_of(self, moments: MeanSums, *, level: float, null: Tensor | None = None) -> Interval:
        """Return the interval of the metric from ``moments``."""
        return moments.interval(self, level=level)


@dataclass(frozen=True)
class SketchMetric(SumMetric[MassSketch]):
    """A metric that is a function of the counts, confidences and correct decisions in order of confidence."""

    notion = "confidence"

    def state(self, data: Rows) -> MassSketch:
        """Return counts and sums by confidence: exact up to 65,536 distinct values, else in that many cells."""
        return EqualMass(1).sketch(data.confidence, data.correct, weight=data.weights)


Norm = Literal[1, 2]  # of the gaps: their mean absolute value, or their root mean square


BinnedState = Annotated[BinTable | MassSketch, Kind((BinTable, MassSketch), "make it with state(data)")]


@dataclass(frozen=True)
class CellMetric(Metric):
    """A metric that is a function of bins' sums: its values if calibrated follow from the sums ``moments``."""

    @abstractmethod
    def cells(self, data: Rows) -> BinnedRows:
        """Return each row's bin, confidence and correctness."""

    @abstractmethod
    def errors(self, table: BinTable) -> Tensor:
        """Return the metric (…) of tables (…, B)."""

    def moments(self, data: Rows) -> BinSums:
        """Return sums that the interval and the values if calibrated are computed from."""
        return BinSums.of(self.cells(data), data.groups)

    def null_of(self, moments: BinSums, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of outcomes drawn from the confidences that ``moments`` are of."""
        return self.errors(moments.null(self, draws=draws, seed=seed))

    def null_draws(self, data: Rows, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of outcomes drawn from the confidences."""
        return self.null_of(self.moments(data), draws=draws, seed=seed)


@dataclass(frozen=True)
class BinnedMetric(SumMetric[BinTable | MassSketch], CellMetric):
    """A metric that is a function of the bin table of confidences and correct decisions, in the bins of ``binning``."""

    binning: AnyBinning = field(default=EqualWidth(15))

    notion = "confidence"

    def cells(self, data: Rows) -> BinnedRows:
        """Return each row's bin, confidence and correctness."""
        p = confidence_for(self.binning, data)
        index = self.binning.assign(p, weight=data.weights)
        return BinnedRows(index, p, data.correct, self.binning.bins, data.weights)

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

    def in_fixed_bins(self, state: MassSketch) -> Self:
        """Return the metric in the bins of equal mass of all data, whose ``state`` is given: then its moments add."""
        return replace(self, binning=state.fixed())
