"""Accuracy and error rate of the decision."""

from dataclasses import dataclass

from torch import Tensor

from calibrant._data import Data, need_rows
from calibrant.metrics._base import MeanMetric

__all__ = ["Accuracy", "Error"]


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """Fraction of rows whose decision is the label.

    Examples:
        >>> from calibrant import Predictions
        >>> Accuracy()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better = "higher"
    bounds = (0.0, 1.0)
    notion = "accuracy"
    cite = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 where the decision is correct, else 0 (N,)."""
        return need_rows(data, what=self).correct.double()


@dataclass(frozen=True)
class Error(MeanMetric):
    """Fraction of rows whose decision is not the label: 1 − accuracy.

    Examples:
        >>> from calibrant import Predictions
        >>> Error()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better = "lower"
    bounds = (0.0, 1.0)
    notion = "accuracy"
    cite = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 where the decision is wrong, else 0 (N,)."""
        return 1 - need_rows(data, what=self).correct.double()
