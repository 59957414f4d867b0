"""Accuracy, log-loss, Brier score and entropy, and the calibration and refinement parts of a score."""

from abc import abstractmethod
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

import torch
from torch import Tensor

from calibrant._core.check import check_choice
from calibrant._core.numerics import row_chunks
from calibrant._core.warn import warn_user
from calibrant._kernel import label_excess
from calibrant.binning import BinTable
from calibrant.data.checks import Data, require_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, ZeroProbabilityWarning
from calibrant.metrics._base import MeanMetric, SumMetric
from calibrant.metrics.calibration_error import BinnedMetric
from calibrant.statistics.losses import Excess


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """Fraction of rows whose decision is the label.

    Examples:
        >>> from calibrant import Predictions
        >>> Accuracy()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    better = "higher"
    notion = "accuracy"
    cite = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 for each correct decision and 0 for each wrong one (N,)."""
        return data.correct.double()


@dataclass(frozen=True)
class Error(MeanMetric):
    """Fraction of rows whose decision is not the label: 1 − accuracy.

    Examples:
        >>> from calibrant import Predictions
        >>> Error()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        0.5
    """

    notion = "accuracy"
    cite = ""

    def rows(self, data: Data) -> Tensor:
        """Return 1 for each wrong decision and 0 for each correct one (N,)."""
        return 1 - data.correct.double()


@dataclass(frozen=True)
class _LabelLoss(MeanMetric):
    """A mean loss that can be computed for every possible label, not only for the true one."""

    notion = "proper score"
    needs_classes = True

    @abstractmethod
    def of_labels(self, log_probs: Tensor) -> Tensor:
        """Return the loss (n, K) that each label would have, from log-probabilities (n, K)."""


@dataclass(frozen=True)
class NLL(_LabelLoss):
    """Log-loss: the mean of −log p of the label, in nats. If a label has probability 0, it is +inf, with a warning.

    Examples:
        >>> from calibrant import Predictions
        >>> round(NLL()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7201
    """

    bounds = (0.0, inf)
    cite = "Good 1952"

    def rows(self, data: Predictions) -> Tensor:
        """Return −log p of the label (N,)."""
        rows: Tensor = data.nll
        # a finite sum proves that every row is finite, so the usual case takes one pass
        infinite = 0 if isfinite(float(rows.sum())) else int(torch.isinf(rows).sum())
        if infinite:
            warn_user(
                f"expected a positive probability for every label, got 0 in {infinite} row{'s' * (infinite > 1)}, so the "
                "log-loss is infinite; check these labels, or give every class a probability above 0",
                ZeroProbabilityWarning,
            )
        return rows

    def of_labels(self, log_probs: Tensor) -> Tensor:
        """Return the loss (n, K) that each label would have."""
        return -log_probs

    def excess(self, data: Predictions) -> Excess:
        """Return which losses the rows could have over all labels."""
        return Excess(*label_excess(data.logits))


@dataclass(frozen=True)
class Brier(_LabelLoss):
    """Brier score: the mean over rows of Σ_k (p_k − y_k)², between 0 and 2.

    Examples:
        >>> from calibrant import Predictions
        >>> round(Brier()(Predictions.from_probs([[0.7, 0.2, 0.1]], [0])), 4)
        0.14

    References:
        Brier 1950.
    """

    bounds = (0.0, 2.0)
    cite = "Brier 1950"

    def rows(self, data: Predictions) -> Tensor:
        """Return Σ_k (p_k − y_k)² (N,)."""
        labels, terms = data.require_labels()[:, None], []
        if data.given_probs is None:
            brier: Tensor = data.statistics.brier
            return brier
        for rows in row_chunks(len(data), data.classes, device=data.logits.device):
            gaps = data.float64_probs(rows)
            gaps = gaps.scatter_add(1, labels[rows], gaps.new_full((len(gaps), 1), -1.0))
            terms.append(gaps.square_().sum(dim=1))
        return torch.cat(terms)

    def of_labels(self, log_probs: Tensor) -> Tensor:
        """Return the score Σ_k p_k² + 1 − 2 p_j (n, K) for each label j."""
        p = log_probs.exp()
        return p.square().sum(dim=1, keepdim=True) + 1 - 2 * p

    def excess(self, data: Predictions) -> Excess:
        """Return which scores the rows could have over all labels."""
        return Excess(*label_excess(data.logits, squared=True))


@dataclass(frozen=True)
class _SplitMean(SumMetric[Tensor]):
    """A mean over all rows, or only over the correctly or the incorrectly classified rows."""

    where: Literal["all", "correct", "wrong"]

    bounds = (0.0, inf)
    needs_classes = True

    @abstractmethod
    def terms(self, predictions: Predictions) -> Tensor:
        """Return the terms (N,) of the mean."""

    def __post_init__(self) -> None:
        check_choice(self.where, name="where", choices=("all", "correct", "wrong"))

    def state(self, rows: Predictions) -> Tensor:
        """Return the sums Σ w x and Σ w (2,) over the selected rows."""
        terms, weight = self.terms(rows), rows.row_weights
        if self.where != "all":
            chosen = rows.correct == (self.where == "correct")
            terms, weight = terms[chosen], weight[chosen]
        return torch.stack([terms @ weight, weight.sum()])

    def value(self, state: Tensor) -> float:
        """Return the mean over the selected rows.

        Raises:
            InputError: If no row is selected.
        """
        if not state[1]:
            raise InputError(f"at least one {self.where} row", "none", "use where='all'")
        return float(state[0] / state[1])


@dataclass(frozen=True)
class SplitNLL(_SplitMean):
    """Mean of −log p of the label, in nats, over only the correctly or only the incorrectly classified rows.

    Args:
        where: "correct" or "wrong"; "all" gives the same value as ``NLL``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(SplitNLL("wrong")(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        1.3133

    References:
        Mukhoti et al. 2020, Figure 1.
    """

    where: Literal["all", "correct", "wrong"] = "wrong"

    notion = "proper score"
    cite = "Mukhoti et al. 2020"

    def terms(self, predictions: Predictions) -> Tensor:
        """Return the negative log-probability of each row's label (N,)."""
        return NLL().rows(predictions)


@dataclass(frozen=True)
class Entropy(_SplitMean):
    """Mean entropy −Σ_k p_k log p_k of the predicted probabilities, in nats.

    A good model has high entropy on the rows that it classifies incorrectly, and low entropy on the other rows. The
    attribute ``better`` is nevertheless "lower" for every ``where``.

    Args:
        where: The rows to average over: "all", "correct" or "wrong".

    Examples:
        >>> from calibrant import Predictions
        >>> round(Entropy()(Predictions.from_probs([[0.5, 0.5]], [0])), 4)
        0.6931

    References:
        Mukhoti et al. 2020, Figure 1.
    """

    where: Literal["all", "correct", "wrong"] = "all"

    notion = "sharpness"
    cite = "Shannon 1948"

    def terms(self, predictions: Predictions) -> Tensor:
        """Return the entropy of each row (N,)."""
        return entropy_rows(predictions)


def entropy_rows(predictions: Predictions) -> Tensor:
    """Return the entropy (N,) of each row's probabilities, in nats.

    Args:
        predictions: Predictions over all classes; labels are not needed.

    Returns:
        (N,) float64 entropies between 0 and log K.

    Raises:
        InputError: If these are not predictions over all classes.

    Examples:
        >>> from calibrant import Predictions
        >>> entropy_rows(Predictions.from_probs([[1.0, 0.0]]))
        tensor([0.], dtype=torch.float64)
    """
    require_predictions(predictions, what="the entropy")
    parts = []
    for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
        if predictions.given_probs is not None:
            p = predictions.float64_probs(rows)
            parts.append(-torch.xlogy(p, p).sum(dim=1))
        else:
            log_p = predictions.log_probs_in(rows)
            p = log_p.exp()
            parts.append(-torch.where(p > 0, p * log_p, 0.0).sum(dim=1))
    return torch.cat(parts).clamp_min_(0).add_(0.0)  # −0 becomes 0


@dataclass(frozen=True)
class ScorePart(BinnedMetric):
    """The base class of the binned parts of the confidences' Brier score or log-loss."""

    score: Literal["brier", "log"] = "brier"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.score, name="score", choices=("brier", "log"))


@dataclass(frozen=True)
class CalibrationLoss(ScorePart):
    """Calibration part of a score of the confidences, Σ_b |B_b|/N · d(a_b, c_b).

    Bin b has accuracy a_b and mean confidence c_b. Each confidence is replaced with the mean of its bin, and scored as the
    probability that the decision is correct. The score is then the sum of this part and ``RefinementLoss``.
    ``evaluate.refinement`` splits a score without bins.

    Args:
        binning: As in ``ECE``.
        score: "brier", where d is the squared difference, or "log", where d is the Kullback–Leibler divergence in nats
            (+inf if a bin has mean confidence 0 or 1 and a different accuracy).

    Examples:
        >>> from calibrant import Pairs
        >>> round(CalibrationLoss()(Pairs.from_probs([0.8] * 10, [1] * 5 + [0] * 5)), 4)
        0.09

    References:
        Murphy 1973; Bröcker 2009.
    """

    bounds = (0.0, float("inf"))
    cite = "Murphy 1973"

    def errors(self, table: BinTable) -> Tensor:
        """Return the loss (…) of tables (…, B)."""
        if self.score == "brier":
            return (table.weight * table.gap.square()).sum(dim=-1)
        rate, mean = table.rate, table.mean
        divergence = _cross(rate, mean) - _cross(rate, rate)
        return (table.weight * torch.where(table.count > 0, divergence, 0.0)).sum(dim=-1)


@dataclass(frozen=True)
class RefinementLoss(ScorePart):
    """Refinement part of a score of the confidences, Σ_b |B_b|/N · h(a_b).

    Recalibrating the bins, which have accuracies a_b, cannot remove this part.

    Args:
        binning: As in ``ECE``.
        score: "brier", where h is the variance a_b (1 − a_b) of the outcomes in the bin, or "log", where h is their entropy.

    Examples:
        >>> from calibrant import Pairs
        >>> RefinementLoss()(Pairs.from_probs([0.8] * 10, [1] * 5 + [0] * 5))
        0.25

    References:
        Murphy 1973; Bröcker 2009.
    """

    notion = "refinement"
    cite = "Murphy 1973"

    def errors(self, table: BinTable) -> Tensor:
        """Return the loss (…) of tables (…, B)."""
        rate = table.rate
        left = rate * (1 - rate) if self.score == "brier" else _cross(rate, rate)
        return (table.weight * left).sum(dim=-1)


def _cross(rate: Tensor, mean: Tensor) -> Tensor:
    """Return −a log c − (1 − a) log(1 − c), with 0 log 0 = 0."""
    return -torch.xlogy(rate, mean) - torch.xlogy(1 - rate, 1 - mean)
