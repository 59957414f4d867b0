"""Accuracy and error rate of the decision."""

from dataclasses import dataclass

from torch import Tensor

from calibrant.binning import EqualWidth
from calibrant.binning.row_sums import plain, table_for
from calibrant.data.checks import Data, need_rows
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

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        rows = need_rows(data, what=self)
        return MeanState(_hits(rows), len(rows)) if plain(rows) else super().state(rows)

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

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        rows = need_rows(data, what=self)
        return MeanState(len(rows) - _hits(rows), len(rows)) if plain(rows) else super().state(rows)

    def rows(self, data: Data) -> Tensor:
        """Return 1 where the decision is wrong, else 0 (N,)."""
        return 1 - need_rows(data, what=self).correct.double()


def _hits(data: Predictions) -> float:
    """Return the number of right decisions, from the table of 15 bins, which most ask for next."""
    return float(table_for(EqualWidth(15), data).sum_y.sum())
