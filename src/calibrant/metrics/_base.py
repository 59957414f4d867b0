"""What every metric is: a frozen record of its configuration, called on predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from calibrant._check import refuse, shown
from calibrant._data import Data, need_rows
from calibrant.binning import Binning, EqualWidth

__all__ = ["MeanMetric", "MeanState", "Metric", "Sum", "SumMetric"]


# What "calibrated" can mean: of the confidence alone; of the confidence within each predicted class (Gupta & Ramdas 2022);
# of every class's probability; of the whole probability vector. Canonical implies all others, and top-label implies
# confidence; classwise implies neither of these two.
NOTIONS = ("confidence", "top-label", "classwise", "canonical")


class Sum(Protocol):
    """A state that adds."""

    def __add__(self, other: Self) -> Self:
        """Return the state of both parts together."""


S = TypeVar("S", bound=Sum)


@dataclass(frozen=True)
class Metric(ABC):
    """A figure of merit: the base of all metrics. Its fields are its configuration, so its repr is a table header.

    A subclass is a frozen dataclass that implements ``__call__`` and sets the facts below as plain class attributes; a mean
    over rows extends ``MeanMetric``, any other function of a sum ``SumMetric``, and both then stream and merge.
    ``calibrant.testing.check_metric`` holds it to what every metric keeps.

    Attributes:
        better: "lower", "higher", or "zero" for a signed statistic, which is best at 0.
        bounds: Smallest and largest value.
        notion: Which calibration it measures ("confidence", "top-label", "classwise", "canonical"), or "accuracy",
            "proper score" …
        cite: Its source.
        needs_classes: Whether it needs the probabilities of all classes, so that top-label pairs do not do.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
        >>> @dataclass(frozen=True)
        ... class MeanConfidence(Metric):
        ...     better, bounds, notion, cite = "higher", (0.0, 1.0), "sharpness", "–"
        ...
        ...     def __call__(self, data):
        ...         return float(need_rows(data, what=self).confidence.mean())
        >>> MeanConfidence()(BinaryPairs.from_probs([0.75, 0.25], [1, 0]))
        0.5
    """

    better: ClassVar[Literal["lower", "higher", "zero"]]
    bounds: ClassVar[tuple[float, float]]
    notion: ClassVar[str]
    cite: ClassVar[str]
    needs_classes: ClassVar[bool] = False

    @property
    def measures_calibration(self) -> bool:
        """Whether this is a calibration error, so that a calibrated model's expected value is a yardstick for it."""
        return self.notion in NOTIONS

    @abstractmethod
    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""


@dataclass(frozen=True)
class SumMetric(Metric, Generic[S]):
    """A metric that is a function of a sum: its state adds across batches, processes and machines.

    Examples:
        >>> from dataclasses import dataclass
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
        >>> @dataclass(frozen=True)
        ... class Counted:
        ...     right: int
        ...
        ...     def __add__(self, other):
        ...         return Counted(self.right + other.right)
        >>> from calibrant import BinaryPairs
        >>> from calibrant.metrics import need_rows
        >>> @dataclass(frozen=True)
        ... class RightDecisions(SumMetric[Counted]):
        ...     better, bounds, notion, cite = "higher", (0.0, float("inf")), "accuracy", "–"
        ...
        ...     def state(self, data):
        ...         return Counted(int(need_rows(data, what=self).correct.sum()))
        ...
        ...     def value(self, state):
        ...         return float(state.right)
        >>> RightDecisions()(BinaryPairs.from_probs([0.75, 0.25], [1, 0]))
        1.0
    """

    @abstractmethod
    def state(self, data: Data) -> S:
        """Return the state (sums) of ``data``."""

    @abstractmethod
    def value(self, state: S) -> float:
        """Return the metric's value for a state."""

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        return self.value(self.state(data))


@dataclass(frozen=True)
class MeanState:
    """Sum of one number a row, and the rows; of weighted rows both are sums of weights."""

    total: float
    count: float

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor | None) -> "MeanState":
        """Return the sum of ``rows`` (N,), with ``weight`` (N,) or once each."""
        if weight is None:
            return cls(float(rows.sum(dtype=torch.float64)), int(rows.shape[0]))
        return cls(float((rows.double() * weight).sum()), weight.sum().item())

    def __add__(self, other: "MeanState") -> "MeanState":
        if not isinstance(other, MeanState):
            raise refuse("another MeanState", shown(other), "add states of one metric")
        return MeanState(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class MeanMetric(SumMetric[MeanState]):
    """A metric that is the mean of one number a row; a subclass gives the rows, and gets intervals and tests.

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
        """Return the numbers (N,) in float64 whose mean, by the weights of ``data`` if it has any, is the metric."""

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        counted = need_rows(data, what=self)
        return MeanState.of(self.rows(counted), counted.weights)

    def value(self, state: MeanState) -> float:
        """Return the mean."""
        if not isinstance(state, MeanState) or state.count <= 0:
            raise refuse(f"a state of at least one row for {self}", shown(state), "make it with state(data)")
        return state.total / state.count


def as_binning(binning: object) -> Binning:
    """Return a binning; an integer is that number of equal-width bins.

    Raises:
        InputError: If it is anything else, with what to write.
    """
    if isinstance(binning, Binning):
        return binning
    if isinstance(binning, int) and not isinstance(binning, bool):
        return EqualWidth(binning)
    remedy = "write EqualWidth(15), EqualMass(15) or a number of equal-width bins"
    raise refuse("a binning", shown(binning), remedy)


def check_norm(value: Any) -> float:
    """Return the exponent of a mean gap if it is 1 (mean absolute) or 2 (root mean square)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in (1, 2):
        raise refuse("norm 1 or 2", shown(value), "choose 1 for the mean absolute gap or 2 for the root mean square")
    return float(value)
