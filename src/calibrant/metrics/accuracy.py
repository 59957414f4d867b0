"""Accuracy and error rate of the decision."""

from dataclasses import dataclass

from torch import Tensor

from calibrant.binning import EqualWidth
from calibrant.binning.row_sums import plain, table_for
from calibrant.data.checks import Rows
from calibrant.metrics._base import MeanMetric, MeanState


class _DecisionMean(MeanMetric):
    """A mean of right or of wrong decisions."""

    notion = "accuracy"
    cite = ""
    of_decisions = True

    def state(self, data: Rows) -> MeanState:
        """Return sum and count of the rows, from the table of 15 bins where it can, which most ask for next."""
        if not plain(data):
            return super().state(data)
        hits = float(table_for(EqualWidth(15), data).sum_y.sum())
        return MeanState(hits if self.better == "higher" else len(data) - hits, len(data))


@dataclass(frozen=True)
class Accuracy(_DecisionMean):
    """Fraction of rows whose decision is the label.

    Examples:
        >>> from calibrant import Predictions
        >>> Accuracy()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better = "higher"

    def rows(self, data: Rows) -> Tensor:
        """Return 1 where the decision is correct, else 0 (N,)."""
        return data.correct.double()


@dataclass(frozen=True)
class Error(_DecisionMean):
    """Fraction of rows whose decision is not the label: 1 − accuracy.

    Examples:
        >>> from calibrant import Predictions
        >>> Error()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    def rows(self, data: Rows) -> Tensor:
        """Return 1 where the decision is wrong, else 0 (N,)."""
        return 1 - data.correct.double()
