"""Accuracy and error rate of the decision."""

from dataclasses import dataclass

from torch import Tensor

from calibrant.binning import EqualWidth
from calibrant.binning.row_sums import plain, table_for
from calibrant.data.checks import Rows
from calibrant.data.predictions import Predictions
from calibrant.metrics._base import MeanMetric, MeanState

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
    of_decisions = True

    def state(self, data: Rows) -> MeanState:
        """Return sum and count of the rows."""
        return MeanState(_hits(data), len(data)) if plain(data) else super().state(data)

    def rows(self, data: Rows) -> Tensor:
        """Return 1 where the decision is correct, else 0 (N,)."""
        return data.correct.double()


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
    of_decisions = True

    def state(self, data: Rows) -> MeanState:
        """Return sum and count of the rows."""
        return MeanState(len(data) - _hits(data), len(data)) if plain(data) else super().state(data)

    def rows(self, data: Rows) -> Tensor:
        """Return 1 where the decision is wrong, else 0 (N,)."""
        return 1 - data.correct.double()


def _hits(data: Predictions) -> float:
    """Return the number of right decisions, from the table of 15 bins, which most ask for next."""
    return float(table_for(EqualWidth(15), data).sum_y.sum())
