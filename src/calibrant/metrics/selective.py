"""Selective prediction: the error among the most confident rows."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.constraints import checked
from calibrant.binning import EqualMass, MassSketch
from calibrant.data.checks import Data, MeasuredRows
from calibrant.metrics._base import SketchMetric

_MOST_RISKS = 1 << 24  # up to this many rows the risk is computed at every k; beyond, by harmonic numbers


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error among the most confident rows, by the fraction of rows kept.

    Args:
        coverage: (N,) fraction of rows kept: 1/N … 1.
        risk: (N,) error among them; rows of equal confidence each count with their mean error.

    Examples:
        >>> RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.5])).risk[-1]
        tensor(0.5000)
    """

    coverage: Tensor
    risk: Tensor


@dataclass(frozen=True)
class AURC(SketchMetric):
    """Area under the risk–coverage curve: mean over k of the error among the k most confident rows.

    It measures how well the confidences rank correct above wrong decisions, and the accuracy, but not calibration. For ties
    it is the mean over all orders, so it does not depend on the order of the rows.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(AURC()(BinaryPairs.from_decisions([0.9, 0.8, 0.7], [1, 0, 1])), 4)
        0.2778

    References:
        Geifman & El-Yaniv 2017; Geifman, Uziel & El-Yaniv 2019.
    """

    notion = "selective prediction"
    cite = "Geifman et al. 2019"
    of_decisions = True

    def value(self, state: MassSketch) -> float:
        """Return the mean over k of the risk among the k most confident rows, in O(distinct confidences)."""
        if state.squares is None and int(state.count.sum()) <= _MOST_RISKS:
            return float(_risks(state).mean())
        # Let n rows share a confidence, e of them errors, with a rows and w errors before them. The risk at the k-th row is
        # (w + (k − a) e/n) / k, and its sum over these n rows is e + (w − a e/n) (H(a + n) − H(a)), with H the harmonic numbers,
        # by the digamma function also for non-integers: sampling weights are scaled to sum to the number of rows.
        scale = 1.0 if state.squares is None else state.rows / float(state.count.sum())
        count = state.count.flip(0).double() * scale
        wrong = count - state.sum_y.flip(0) * scale
        last, errors = count.cumsum(0), wrong.cumsum(0)
        before, rate = last - count, wrong / count
        harmonic = torch.special.digamma(last + 1) - torch.special.digamma(before + 1)
        return float((wrong + (errors - wrong - before * rate) * harmonic).sum() / last[-1])


@checked
def risk_coverage(data: Annotated[Data, MeasuredRows("a risk–coverage curve", weighted=False)]) -> RiskCoverage:
    """Return the risk–coverage curve of the confidences.

    Args:
        data: Labelled predictions or pairs.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> risk_coverage(BinaryPairs.from_decisions([0.9, 0.8, 0.7], [1, 0, 1])).risk
        tensor([0.0000, 0.5000, 0.3333], dtype=torch.float64)

    References:
        El-Yaniv & Wiener 2010.
    """
    risk = _risks(EqualMass(1).sketch(data.confidence, data.correct))
    kept = torch.arange(1, risk.shape[0] + 1, dtype=torch.float64, device=risk.device)
    return RiskCoverage(kept / risk.shape[0], risk)


def _risks(sketch: MassSketch) -> Tensor:
    """Return the error (N,) among the k most confident rows, k = 1 … N."""
    count, wrong = sketch.count.flip(0), (sketch.count - sketch.sum_y).flip(0)
    errors = torch.repeat_interleave(wrong / count, count).cumsum(0)
    return errors / torch.arange(1, errors.shape[0] + 1, device=errors.device)
