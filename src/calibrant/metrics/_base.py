"""What every metric is: a frozen record of its configuration, called on predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.predictions import BinaryPairs, Predictions

Data = Predictions | BinaryPairs

# What "calibrated" can mean, from weak to strong: of the confidence alone; of the confidence within each predicted
# class (Gupta & Ramdas 2022); of every class's probability; of the whole probability vector.
NOTIONS = ("confidence", "top-label", "classwise", "canonical")


class Sum(Protocol):
    """A state that adds."""

    def __add__(self, other: Self) -> Self:
        """Return the state of both parts together."""


S = TypeVar("S", bound=Sum)


@dataclass(frozen=True)
class Metric(ABC):
    """A figure of merit. Its fields are its configuration, so its repr is a table header.

    Class facts: ``better`` ("lower" or "higher"), ``bounds`` (smallest and largest value), ``notion`` (which
    calibration it measures, or "accuracy", "proper score" …), ``cite`` (its source), ``needs_classes`` (whether it
    needs the probabilities of all classes, so that top-label pairs do not do).
    """

    better: ClassVar[Literal["lower", "higher"]]
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
    """A metric that is a function of a sum: its state adds across batches, processes and machines."""

    @abstractmethod
    def state(self, data: Data) -> S:
        """Return the state (sums) of ``data``."""

    @abstractmethod
    def value(self, state: S) -> float:
        """Return the metric's value for a state."""

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        return self.value(self.state(data))


@runtime_checkable
class HasInfluence(Protocol):
    """A metric whose error in a sample is, to first order, a mean over rows, so that two models can be compared."""

    def influence(self, data: Data) -> tuple[float, Tensor]:
        """Return the estimate that differences are taken of, and what each row (N,) adds to it."""


@dataclass(frozen=True)
class MeanState:
    """Sum of one number a row, and the rows."""

    total: float
    count: int

    def __add__(self, other: "MeanState") -> "MeanState":
        return MeanState(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class MeanMetric(SumMetric[MeanState]):
    """A metric that is the mean of one number a row; subclasses give the rows."""

    @abstractmethod
    def rows(self, data: Data) -> Tensor:
        """Return the numbers (N,) in float64 whose mean is the metric."""

    def influence(self, data: Data) -> tuple[float, Tensor]:
        """Return the mean and the rows (N,)."""
        rows = self.rows(data)
        return float(rows.mean()), rows

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        rows = self.rows(data)
        return MeanState(float(rows.sum(dtype=torch.float64)), int(rows.shape[0]))

    def value(self, state: MeanState) -> float:
        """Return the mean."""
        return state.total / state.count


def need_predictions(data: Data, *, metric: Metric) -> Predictions:
    """Return ``data`` if it holds all K probabilities.

    Raises:
        InputError: If it holds top-label pairs only.
    """
    if isinstance(data, Predictions):
        return data
    raise InputError(
        f"expected predictions over all classes for {metric}, got top-label pairs; use a top-label metric such as ECE()"
    )
