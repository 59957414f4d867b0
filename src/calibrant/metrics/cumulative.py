"""Calibration errors of cumulative residuals, and Spiegelhalter's statistic: no bins and no kernel width."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.binning import MassSketch
from calibrant.data.checks import Rows
from calibrant.metrics._base import Metric, SketchMetric


def cumulated(sketch: MassSketch) -> Tensor:
    """Return Σ_{p_i ≤ v} (p_i − y_i) / N (M + 1,): 0, then the value at each distinct confidence v in ascending order."""
    residual = (sketch.sum_p - sketch.sum_y) / sketch.count.sum()
    return torch.cat([residual.new_zeros(1), residual.cumsum(0)])


@dataclass(frozen=True)
class KSError(SketchMetric):
    """max_v |Σ_{confidence ≤ v} (confidence − correct)| / N: the Kolmogorov–Smirnov calibration error.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(KSError()(BinaryPairs.from_probs([0.9, 0.6], [1, 0])), 4)
        0.3

    References:
        Gupta et al. 2021, Eq. 8.
    """

    cite = "Gupta et al. 2021"

    def value(self, state: MassSketch) -> float:
        """Return the largest absolute cumulative residual."""
        return float(cumulated(state).abs().max())


@dataclass(frozen=True)
class KuiperError(SketchMetric):
    """The range of the cumulative residuals: the largest total miscalibration over any interval of confidence.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(KuiperError()(BinaryPairs.from_probs([0.9, 0.6], [0, 1])), 4)
        0.45

    References:
        Arrieta-Ibarra et al. 2022; Tygert 2021.
    """

    cite = "Arrieta-Ibarra et al. 2022"

    def value(self, state: MassSketch) -> float:
        """Return the range of the cumulative residuals."""
        path = cumulated(state)
        return float(path.max() - path.min())


@dataclass(frozen=True)
class TwoBinError(SketchMetric):
    """E_t [(Σ_{p < t} (p − y))² + (Σ_{p ≥ t} (p − y))²] / N² over a uniform threshold t: the averaged two-bin error.

    Truthful: predicting the true probabilities minimises its expectation on a finite sample, which holds for no other
    calibration error here (variances add over any partition, so no other prediction can lower that part). It is a square:
    its root is on the scale of the smooth calibration error.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(TwoBinError()(BinaryPairs.from_probs([0.5, 0.5], [1, 1])), 4)
        0.25

    References:
        Hartline, Hu & Wu 2025.
    """

    cite = "Hartline et al. 2025"

    def value(self, state: MassSketch) -> float:
        """Return the mean over thresholds of the sum of both bins' squared residuals."""
        left = cumulated(state)
        ends = state.value.new_tensor([0.0]), state.value, state.value.new_tensor([1.0])
        probability = torch.cat(ends).diff()  # that a uniform threshold has exactly the first j values below it
        return float((probability * (left.square() + (left[-1] - left).square())).sum())


@dataclass(frozen=True)
class SpiegelhalterZ(Metric):
    """Σ (y − p)(1 − 2p) / √Σ (1 − 2p)² p (1 − p) of the top label: standard normal if calibrated.

    A test statistic, not an effect size: |Z| grows with N. Z > 0 if the Brier score is higher than calibration would give.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(SpiegelhalterZ()(BinaryPairs.from_probs([0.9, 0.6, 0.7], [1, 0, 1])), 4)
        -0.252

    References:
        Spiegelhalter 1986.
    """

    better = "zero"
    bounds = (-math.inf, math.inf)
    notion = "test statistic"
    cite = "Spiegelhalter 1986"

    def __call__(self, data: Rows) -> float:
        """Return Z; if all confidences are 0, ½ or 1: ±inf if a confidence of 0 or 1 is wrong, else 0."""
        p, y = data.confidence, data.correct.double()
        # (y − p)(1 − 2p) is the part of (y − p)² whose mean is 0 if calibrated: (y − p)² = p (1 − p) + (1 − 2p)(y − p)
        excess = float((data.row_weights * (p - y) * (2 * p - 1)).sum())
        variance = float((data.row_weights.square() * (1 - 2 * p).square() * p * (1 - p)).sum())
        if variance == 0:
            return 0.0 if excess == 0 else math.copysign(math.inf, excess)
        return excess / math.sqrt(variance)
