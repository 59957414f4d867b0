"""Metrics of how well confidences rank rows: the error among the most confident rows, and out-of-distribution detection."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant._core.check import check_choice
from calibrant.data.checks import Data, require_predictions, require_rows, require_unweighted
from calibrant.data.predictions import Predictions
from calibrant.metrics._base import KeptRows, RankedMetric
from calibrant.metrics.proper import entropy_rows


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error rate among the most confident rows, for every fraction of rows kept.

    Args:
        coverage: (N,) fraction of rows kept, from 1/N to 1.
        risk: (N,) error rate among the rows kept; rows with equal confidence all count with their mean error.

    Examples:
        >>> RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.5])).risk[-1]
        tensor(0.5000)
    """

    coverage: Tensor
    risk: Tensor


@dataclass(frozen=True)
class AURC(RankedMetric):
    """Area under the risk–coverage curve: the mean over k of the error rate among the k most confident rows.

    The area measures accuracy and how well the confidences rank correct decisions above wrong ones, but not calibration. The
    result is averaged over all orders of rows with equal confidence, so the order of the rows does not matter.

    Examples:
        >>> from calibrant import Pairs
        >>> round(AURC()(Pairs.from_probs([0.9, 0.8, 0.7], [1, 0, 1])), 4)
        0.2778

    References:
        Geifman & El-Yaniv 2017; Geifman, Uziel & El-Yaniv 2019.
    """

    notion = "selective prediction"
    cite = "Geifman et al. 2019"

    def value(self, state: KeptRows) -> float:
        """Return the mean over k of the risk among the k most confident rows."""
        # Let n rows, e of them errors, share a confidence, with a rows and w errors before them. The risk at the k-th row is
        # (w + (k − a) e/n) / k, and its sum over these n rows is e + (w − a e/n) (H(a + n) − H(a)), with harmonic numbers H. The
        # digamma function extends H to non-integers, which weights need; these are scaled to sum to the number of rows.
        mass, right = state.by_confidence()[1:]
        scale = len(state.p) / float(mass.sum())
        count = mass.flip(0).mul_(scale)
        wrong = count - right.flip(0).mul_(scale)
        last, wrong_before = count.cumsum(0), wrong.cumsum(0).sub_(wrong)
        harmonic = torch.cat([last.new_zeros(1), last]).add_(1).digamma_().diff()
        excess = wrong_before.sub_((last - count).mul_(wrong).div_(count))
        return float(excess.mul_(harmonic).add_(wrong).sum() / last[-1])


def risk_coverage(data: Data) -> RiskCoverage:
    """Return the error rate among the most confident rows, for every fraction of rows kept.

    Args:
        data: Labelled predictions or pairs, without weights.

    Returns:
        The coverages and error rates, from the most confident row to all rows.

    Raises:
        InputError: If these are not predictions or pairs, or they have weights.

    Examples:
        >>> from calibrant import Pairs
        >>> risk_coverage(Pairs.from_probs([0.9, 0.8, 0.7], [1, 0, 1])).risk
        tensor([0.0000, 0.5000, 0.3333], dtype=torch.float64)

    References:
        El-Yaniv & Wiener 2010.
    """
    what = "a risk–coverage curve"
    rows = require_unweighted(require_rows(data, what=what), what=what)
    _, mass, right = KeptRows.of(rows).by_confidence()
    count, wrong = mass.flip(0), (mass - right).flip(0)
    errors = torch.repeat_interleave(wrong / count, count.long()).cumsum(0)
    risk = errors / torch.arange(1, errors.shape[0] + 1, device=errors.device)
    kept = torch.arange(1, risk.shape[0] + 1, dtype=torch.float64, device=risk.device)
    return RiskCoverage(kept / risk.shape[0], risk)


Score = Literal["entropy", "confidence"]
ROUNDING = 1e-13  # relative; summing an entropy in another order changes the result by less


@dataclass(frozen=True, eq=False)
class RocCurve:
    """False and true positive rates at every threshold, from the highest threshold to the lowest.

    Args:
        false_positive: (T,) fraction of negatives with a score at or above the threshold, from 0 to 1.
        true_positive: (T,) fraction of positives with a score at or above the threshold, from 0 to 1.
        threshold: (T,) scores, descending; the first is +inf.

    Examples:
        >>> diagonal = torch.tensor([0.0, 1.0])
        >>> RocCurve(diagonal, diagonal, diagonal).area
        0.5
    """

    false_positive: Tensor
    true_positive: Tensor
    threshold: Tensor

    @property
    def area(self) -> float:
        """The area under the curve: the probability that a positive scores above a negative, with ties counted as one half."""
        return float(torch.trapezoid(self.true_positive, self.false_positive))


def ood_auroc(inside: Predictions, outside: Predictions, *, score: Score = "entropy") -> float:
    """Return the area under the ROC curve for detecting out-of-distribution rows, in [0, 1]; 0.5 is chance.

    Args:
        inside: Predictions on in-distribution data; labels are not needed.
        outside: Predictions on out-of-distribution data; labels are not needed.
        score: "entropy", with out-of-distribution rows as positives, or "confidence", with in-distribution rows as positives.

    Returns:
        The area.

    Raises:
        InputError: If these are not predictions over all classes, or they have weights.

    Examples:
        >>> from calibrant import Predictions
        >>> inside, outside = Predictions.from_logits([[5.0, 0.0]]), Predictions.from_logits([[0.1, 0.2]])
        >>> ood_auroc(inside, outside)
        1.0

    References:
        Hendrycks & Gimpel 2017; Mukhoti et al. 2020 §6.
    """
    return ood_roc(inside, outside, score=score).area


def ood_roc(inside: Predictions, outside: Predictions, *, score: Score = "entropy") -> RocCurve:
    """Return the ROC curve for detecting out-of-distribution rows.

    Args:
        inside: Predictions on in-distribution data; labels are not needed.
        outside: Predictions on out-of-distribution data; labels are not needed.
        score: "entropy", with out-of-distribution rows as positives, or "confidence", with in-distribution rows as positives.

    Returns:
        The curve.

    Raises:
        InputError: If these are not predictions over all classes, or they have weights.

    Examples:
        >>> from calibrant import Predictions
        >>> inside, outside = Predictions.from_logits([[5.0, 0.0]]), Predictions.from_logits([[0.1, 0.2]])
        >>> ood_roc(inside, outside).true_positive
        tensor([0., 1., 1.], dtype=torch.float64)
    """
    what = "an ROC curve"
    check_choice(score, name="score", choices=("entropy", "confidence"))
    inside, outside = (require_predictions(require_unweighted(one, what=what), what=what) for one in (inside, outside))
    if score == "entropy":
        return roc_curve(entropy_rows(outside), entropy_rows(inside))
    return roc_curve(inside.confidence, outside.confidence)


def roc_curve(positive: Tensor, negative: Tensor) -> RocCurve:
    """Return the ROC curve for the scores of positives (P,) and negatives (N,).

    Scores that differ only by rounding share a threshold.
    """
    scores = torch.unique(torch.cat([positive, negative]).double())
    # scores that differ only by rounding must not become two thresholds
    new = torch.diff(scores, prepend=scores.new_full((1,), -torch.inf)) > ROUNDING * scores.abs()
    threshold = scores[new].flip(0)
    above = [
        scored.shape[0] - torch.searchsorted(torch.sort(scored.double()).values, threshold.contiguous())
        for scored in (positive, negative)
    ]
    true, false = (torch.cat([count.new_zeros(1), count]).double() for count in above)
    first = threshold.new_full((1,), torch.inf)
    return RocCurve(false / negative.shape[0], true / positive.shape[0], torch.cat([first, threshold]))
