"""Accuracy and error of the decision."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from calibrant.metrics._base import Data, MeanMetric

__all__ = ["Accuracy", "Error"]


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """Share of rows whose decision is the label.

    Example:
        >>> from calibrant import Predictions
        >>> Accuracy()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better: ClassVar[Literal["lower", "higher"]] = "higher"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "accuracy"
    cite: ClassVar[str] = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 where the decision is right (N,)."""
        return data.correct.double()


@dataclass(frozen=True)
class Error(MeanMetric):
    """Share of rows whose decision is not the label: 1 − accuracy.

    Example:
        >>> from calibrant import Predictions
        >>> Error()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "accuracy"
    cite: ClassVar[str] = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 where the decision is wrong (N,)."""
        return 1 - data.correct.double()
