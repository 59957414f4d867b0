"""The Kolmogorov–Smirnov calibration error: cumulative residuals, without bins or a kernel width."""

from dataclasses import dataclass

from calibrant.metrics._base import KeptRows, RankedMetric


@dataclass(frozen=True)
class KSError(RankedMetric):
    """max_v |Σ_{confidence ≤ v} (confidence − correct)| / N: the Kolmogorov–Smirnov calibration error.

    Examples:
        >>> from calibrant import Pairs
        >>> round(KSError()(Pairs.from_probs([0.9, 0.6], [1, 0])), 4)
        0.3

    References:
        Gupta et al. 2021, Eq. 8.
    """

    cite = "Gupta et al. 2021"

    def value(self, state: KeptRows) -> float:
        """Return the largest absolute cumulative residual."""
        p, mass, right = state.by_confidence()
        return float((p * mass - right).cumsum(0).abs().max() / mass.sum())
