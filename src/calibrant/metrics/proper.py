"""Proper scores: negative log-likelihood and Brier score."""

import warnings
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant.errors import ZeroProbabilityWarning
from calibrant.metrics._base import Data, MeanMetric, need_predictions

__all__ = ["NLL", "Brier"]


@dataclass(frozen=True)
class NLL(MeanMetric):
    """Mean −log p of the label, in nats; +inf, with a warning, if a label has probability 0.

    Example:
        >>> from calibrant import Predictions
        >>> round(NLL()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7201
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, inf)
    notion: ClassVar[str] = "proper score"
    cite: ClassVar[str] = "Good 1952"
    needs_classes: ClassVar[bool] = True

    def rows(self, data: Data) -> Tensor:
        """Return −log p of the label (N,)."""
        rows = need_predictions(data, metric=self).nll
        infinite = torch.isinf(rows)
        if bool(infinite.any()):
            warnings.warn(
                f"expected positive probability for every label, got 0 in {int(infinite.sum())} rows, so the log-loss is "
                "infinite; give the calibrator a floor",
                ZeroProbabilityWarning,
                stacklevel=2,
            )
        return rows


@dataclass(frozen=True)
class Brier(MeanMetric):
    """Mean Σ_k (p_k − y_k)², summed over classes: 0 to 2, as Brier (1950) has it.

    Example:
        >>> from calibrant import Predictions
        >>> round(Brier()(Predictions.from_probs([[0.7, 0.2, 0.1]], [0])), 4)
        0.14
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 2.0)
    notion: ClassVar[str] = "proper score"
    cite: ClassVar[str] = "Brier 1950"
    needs_classes: ClassVar[bool] = True

    def rows(self, data: Data) -> Tensor:
        """Return Σ_k (p_k − y_k)² (N,)."""
        predictions = need_predictions(data, metric=self)
        labels = predictions.need_labels()
        terms = torch.empty(len(predictions), dtype=torch.float64, device=predictions.logits.device)
        for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
            if predictions.probs is not None:
                p = predictions.probs[rows].to(torch.float64, copy=True)
            else:
                p = (predictions.logits[rows].double() - predictions.log_norm[rows, None]).exp_()
            index = labels[rows, None]
            p.scatter_add_(1, index, p.new_full(index.shape, -1.0))
            torch.sum(p.square_(), dim=1, out=terms[rows])
        return terms
