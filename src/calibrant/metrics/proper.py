"""Proper scores: negative log-likelihood and Brier score."""

from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from calibrant._core.warn import warn_user
from calibrant.binning.row_sums import plain_scores
from calibrant.data.checks import Data, need_predictions
from calibrant.errors import ZeroProbabilityWarning
from calibrant.functional.formulas import brier_rows
from calibrant.metrics._base import MeanMetric, MeanState

__all__ = ["NLL", "Brier"]


@dataclass(frozen=True)
class NLL(MeanMetric):
    """Mean −log p of the label, in nats; +inf, with a warning, if a label has probability 0.

    Examples:
        >>> from calibrant import Predictions
        >>> round(NLL()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7201
    """

    better = "lower"
    bounds = (0.0, inf)
    notion = "proper score"
    cite = "Good 1952"
    needs_classes = True

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        predictions = need_predictions(data, metric=self)
        scores = plain_scores(predictions)
        if scores is None or not isfinite(scores.nll):
            return super().state(predictions)
        return MeanState(scores.nll, len(predictions))

    def rows(self, data: Data) -> Tensor:
        """Return −log p of the label (N,)."""
        rows = need_predictions(data, metric=self).nll
        # one pass over the rows in the usual case: the sum is finite only if every row is
        infinite = 0 if isfinite(float(rows.sum())) else int(torch.isinf(rows).sum())
        if infinite:
            warn_user(
                f"expected positive probability for every label, got 0 in {infinite} rows, so the log-loss is "
                "infinite; give the calibrator a floor",
                ZeroProbabilityWarning,
            )
        return rows


@dataclass(frozen=True)
class Brier(MeanMetric):
    """Mean Σ_k (p_k − y_k)², summed over classes: 0 to 2, as in Brier (1950).

    Examples:
        >>> from calibrant import Predictions
        >>> round(Brier()(Predictions.from_probs([[0.7, 0.2, 0.1]], [0])), 4)
        0.14
    """

    better = "lower"
    bounds = (0.0, 2.0)
    notion = "proper score"
    cite = "Brier 1950"
    needs_classes = True

    def state(self, data: Data) -> MeanState:
        """Return sum and count of the rows."""
        predictions = need_predictions(data, metric=self)
        scores = plain_scores(predictions)
        return super().state(predictions) if scores is None else MeanState(scores.brier, len(predictions))

    def rows(self, data: Data) -> Tensor:
        """Return Σ_k (p_k − y_k)² (N,)."""
        return brier_rows(need_predictions(data, metric=self))
