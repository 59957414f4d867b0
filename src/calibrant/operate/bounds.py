"""Bounds on a probability and on a mean of bounded values, valid for every distribution and number of independent rows.

For rows y ≥ −B and a bet t ≥ 0, exp(t y − ψ(tB) y² / B²) with ψ(u) = −log(1 − u) − u is at most 1 + t y (Fan, Grama & Liu
2015, lemma 4.1). If E y ≤ 0, the product over independent rows (an e-value) has expectation at most 1, so by Markov's
inequality it exceeds 1/α with probability at most α. Its logarithm needs Σ y and Σ y² only. The e-values of a fixed grid of
bets are averaged, so that no bet is chosen by the data.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DEVIATIONS = np.array(
    [0.6, 0.45, 0.33, 0.24, 0.17, 0.12, 0.08, 0.05, 1e-300]
)  # SDs of y, a bet for each; the last: the largest
_STAKES = np.array([0.14] * 6 + [0.05, 0.05, 0.06])  # weights of the bets
_LARGEST = 0.9  # largest bet as a fraction of 1/B, at which a single row could reduce the e-value to 0
_HALVINGS = 60


def share_ends(successes: float, rows: float, *, alpha: float) -> tuple[float, float]:
    """Return the Clopper–Pearson bounds on a probability; each is violated with probability at most ``alpha``.

    Examples:
        >>> low, high = share_ends(0, 100, alpha=0.025)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.036)
    """
    from scipy.special import betaincinv

    low = 0.0 if successes <= 0 else float(betaincinv(successes, rows - successes + 1, alpha))
    high = 1.0 if successes >= rows else float(betaincinv(successes + 1, rows - successes, 1 - alpha))
    return low, high


def mean_ends(rows: Floats, *, low: float, high: float, alpha: float) -> tuple[float, float]:
    """Return bounds on the mean of independent ``rows`` (N,) in [low, high]; each fails with probability at most ``alpha``."""
    unit = (rows - low) / (high - low)
    least, most = _least_mean(unit, alpha=alpha), 1 - _least_mean(1 - unit, alpha=alpha)
    return low + (high - low) * least, low + (high - low) * most


def _least_mean(x: Floats, *, alpha: float) -> float:
    """Return the lower bound on the mean of rows ``x`` (N,) in [0, 1]: the largest c for which "the mean is ≤ c" is rejected."""
    n, total, squares = len(x), float(x.sum()), float((x * x).sum())

    def rejected(c: float) -> bool:
        # y = x − c ≥ −c, so that B = c
        bets = np.minimum(math.sqrt(2 * math.log(1 / alpha) / n) / _DEVIATIONS, _LARGEST / c)
        scale = (-np.log1p(-bets * c) - bets * c) / c**2
        logs = bets * (total - c * n) - scale * (squares - 2 * c * total + c * c * n)
        return float(np.logaddexp.reduce(logs + np.log(_STAKES))) >= math.log(1 / alpha)

    low, high = 0.0, total / n
    for _ in range(_HALVINGS if total > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
