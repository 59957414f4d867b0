"""Base classes of metrics.

``Metric`` is any function of predictions, ``SumMetric`` a function of sums over rows, ``MeanMetric`` a mean over rows, and
``RankedMetric`` a function of all rows in order of confidence.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from calibrant._core.check import check_same_weights, shown
from calibrant.data.checks import Data, require_predictions, require_rows
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.statistics.design import require_ungrouped
from calibrant.statistics.interval import band_of, redraw
from calibrant.statistics.losses import Excess, MeanSums, rows_interval
from calibrant.statistics.means import Interval

# Notions of calibration, in this order: of the confidence alone; of the confidence within each predicted class (Gupta & Ramdas
# 2022); of every class's probability; of the whole probability vector. Canonical calibration implies all others, and top-label
# calibration implies confidence calibration. Classwise calibration implies neither of these two.
NOTIONS = ("confidence", "top-label", "classwise", "canonical")


class Sum(Protocol):
    """A state that supports addition."""

    def __add__(self, other: Self) -> Self:
        """Return the state of the data of both parts together."""


S = TypeVar("S", bound=Sum)


@dataclass(frozen=True)
class Metric(ABC):
    """The base class of all metrics.

    A subclass is a frozen dataclass that implements ``measure`` and sets the attributes below on the class. Its fields are
    its configuration, which the repr shows. For a mean over rows, subclass ``MeanMetric``; for any other function of sums,
    subclass ``SumMetric``. Both can be computed from parts of the data. ``calibrant.testing.check_metric`` checks that a
    subclass behaves as every metric must.

    Attributes:
        better: "lower" by default, "higher", or "zero" for a signed statistic, which is best at 0.
        bounds: Smallest and largest possible value; (0, 1) for an error.
        notion: The notion of calibration that the metric measures ("confidence", "top-label", "classwise" or "canonical"),
            or what it measures instead, such as "accuracy" or "proper score".
        cite: The publication that defines the metric.
        needs_classes: Whether the metric needs the probabilities of all classes. Such a metric rejects pairs, which contain
            only confidences.

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
            data: Labelled predictions or pairs, or logits (N, K) if ``labels`` are given.
            labels: (N,) integers in [0, K) for logits, or None.

        Raises:
            InputError: If the data are invalid, contain no row of positive weight, or are pairs although the metric needs
                the probabilities of all classes.

        Examples:
            >>> from calibrant.metrics import ECE
            >>> round(ECE()([[2.0, 0.0], [0.0, 1.0]], [0, 0]), 4)
            0.4251
        """
        return self.measure(self.check(data if labels is None else Predictions.from_logits(data, labels)))

    def check(self, data: Data) -> Any:
        """Return the rows of ``data`` with positive weight, or raise an error if this metric cannot measure them."""
        return (require_predictions if self.needs_classes else require_rows)(data, what=self)

    @abstractmethod
    def measure(self, rows: Any) -> float:
        """Return the metric's value for ``rows``, predictions or pairs that ``check`` has returned."""

    @property
    def measures_calibration(self) -> bool:
        """Whether this metric is a calibration error, to be compared with its value for a calibrated model."""
        return self.notion in NOTIONS

    def interval(self, rows: Any, *, level: float = 0.95) -> Interval:
        """Return the metric's confidence interval, as ``statistics.interval`` does.

        Args:
            rows: Predictions or pairs that ``check`` has returned. If they have groups, the groups are the independent
                units.
            level: Nominal coverage, in (0, 1).

        Raises:
            NoIntervalError: If no method is known to have the nominal coverage, or there are too few rows.
        """
        raise self._unknown()

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the metric's mean and central range for a calibrated model, as ``statistics.null_band`` does.

        Args:
            rows: Predictions or pairs that ``check`` has returned.
            level: The fraction of simulated values inside the band, in (0, 1).
            draws: Number of simulated label sets.
            seed: Seed of the simulation; the same seed gives the same band.

        Raises:
            NoIntervalError: If the rows have groups; only binned errors have a band for these.
        """
        require_ungrouped(rows.groups, what=self)
        generator = torch.Generator().manual_seed(seed)
        values = [self.measure(redraw(rows, generator=generator)) for _ in range(draws)]
        return band_of(torch.tensor(values, dtype=torch.float64), level=level)

    def _unknown(self) -> NoIntervalError:
        """Return the error for a metric without a known interval."""
        expected = "a metric that is a mean over rows or has an interval of its own"
        got = f"{shown(self, most=200)}, for which no interval with the nominal coverage is known"
        return NoIntervalError(expected, got, "compare it with null_band")


@dataclass(frozen=True)
class SumMetric(Metric, Generic[S]):
    """A metric that is a function of sums over rows.

    The sums are its state. The states of batches, processes and machines can be added.

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
        """Return the sums over ``rows``, all or some of the predictions or pairs that ``check`` has returned."""

    @abstractmethod
    def value(self, state: S) -> float:
        """Return the metric's value for a state."""

    def measure(self, rows: Any) -> float:
        """Return the metric's value for ``rows``."""
        return self.value(self.state(rows))

    def interval_of(self, state: S, *, level: float = 0.95) -> Interval:
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

    Subclasses implement ``rows``. Confidence intervals and paired tests then need no further code.

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
        """Return the float64 numbers (N,) whose mean is the metric; the mean is weighted if ``data`` has weights."""

    def excess(self, data: Any) -> Excess | None:
        """Return which values the rows could take with other labels, or None if this is not known."""
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

    def interval_of(self, state: MeanSums, *, level: float = 0.95) -> Interval:
        """Return Wilson's interval for a proportion, and Student's t corrected for skewness for any other mean.

        Raises:
            NoIntervalError: If there are too few wrong decisions, or the mean is infinite.
        """
        return state.interval(self, level=level)

    def interval(self, rows: Any, *, level: float = 0.95) -> Interval:
        """Return the confidence interval of the mean. If the rows have groups, the groups are the independent units.

        Raises:
            NoIntervalError: If there are too few wrong decisions or groups, or the mean is infinite.
        """
        return rows_interval(self.rows(rows), rows, what=self, level=level, excess=self.excess)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The confidence and correctness of every row, nine bytes per row: the state of metrics that need all rows in order.

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
        """Return the distinct confidences (M,) in ascending order, and Σ w and Σ w y (M,) over the rows with each of them."""
        values, code = torch.unique(self.p, return_inverse=True)
        w = torch.ones_like(self.p) if self.weight is None else self.weight
        mass, right = (torch.bincount(code, weights=one, minlength=len(values)) for one in (w, w * self.y))
        return values, mass, right


@dataclass(frozen=True)
class RankedMetric(SumMetric[KeptRows]):
    """A metric that is a function of the confidence and correctness of every row."""

    notion = "confidence"

    def state(self, rows: Any) -> KeptRows:
        """Return the confidence and correctness of the rows."""
        return KeptRows.of(rows)
