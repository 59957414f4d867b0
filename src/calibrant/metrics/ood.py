"""Out-of-distribution detection by the entropy or the confidence of predictions."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from calibrant._core.constraints import checked
from calibrant.data.checks import MeasuredRows
from calibrant.data.predictions import Predictions
from calibrant.metrics.proper import entropy_rows

Score = Literal["entropy", "confidence"]
Scored = Annotated[Predictions, MeasuredRows("an ROC curve", weighted=False)]
ROUNDING = 1e-13  # relative: the entropy of the same probabilities in another order differs by less


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Rates at every threshold, most extreme score first.

    Args:
        false_positive: (T,) fraction of negatives at or above the threshold, 0 … 1.
        true_positive: (T,) fraction of positives.
        threshold: (T,) scores; the first is +inf.

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
        """Area under the curve: the probability that a positive scores above a negative, ties counting one half."""
        return float(torch.trapezoid(self.true_positive, self.false_positive))


@checked
def ood_auroc(inside: Scored, outside: Scored, *, score: Score = "entropy") -> float:
    """Return the area under the ROC curve of detecting out-of-distribution rows; 0.5 is chance.

    Args:
        inside: Predictions on in-distribution data; labels are not needed.
        outside: Predictions on out-of-distribution data.
        score: "entropy" (outside rows are the positives, with high scores) or "confidence" (inside rows are the positives).

    Examples:
        >>> from calibrant import Predictions
        >>> inside, outside = Predictions.from_logits([[5.0, 0.0]]), Predictions.from_logits([[0.1, 0.2]])
        >>> ood_auroc(inside, outside)
        1.0

    References:
        Hendrycks & Gimpel 2017; Mukhoti et al. 2020 §6.
    """
    return ood_roc(inside, outside, score=score).area


@checked
def ood_roc(inside: Scored, outside: Scored, *, score: Score = "entropy") -> RocCurve:
    """Return the ROC curve of detecting out-of-distribution rows.

    Args:
        inside: As in ``ood_auroc``.
        outside: As there.
        score: As there.

    Examples:
        >>> from calibrant import Predictions
        >>> inside, outside = Predictions.from_logits([[5.0, 0.0]]), Predictions.from_logits([[0.1, 0.2]])
        >>> ood_roc(inside, outside).true_positive
        tensor([0., 1., 1.], dtype=torch.float64)
    """
    if score == "entropy":
        return roc_curve(entropy_rows(outside), entropy_rows(inside))
    return roc_curve(inside.confidence, outside.confidence)


def roc_curve(positive: Tensor, negative: Tensor) -> RocCurve:
    """Return the ROC curve for scores of positives (P,) and negatives (N,); scores equal up to rounding are one threshold."""
    scores = torch.unique(torch.cat([positive, negative]).double())
    # a gap above rounding starts a threshold: the step function must not jump between scores that are equal but for it
    new = torch.diff(scores, prepend=scores.new_full((1,), -torch.inf)) > ROUNDING * scores.abs()
    threshold = scores[new].flip(0)
    above = [
        scored.shape[0] - torch.searchsorted(torch.sort(scored.double()).values, threshold.contiguous())
        for scored in (positive, negative)
    ]
    true, false = (torch.cat([count.new_zeros(1), count]).double() for count in above)
    first = threshold.new_full((1,), torch.inf)
    return RocCurve(false / negative.shape[0], true / positive.shape[0], torch.cat([first, threshold]))
