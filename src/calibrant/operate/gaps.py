"""A lower bound of the calibration error Σ_b a_b that is sharp where the gaps of neighbouring bins have opposite signs.

Let a_b be the population's |gap| of bin b times its probability, D_b = |Σ_i x_i| / N its estimate, and s_b the standard error.
Σ_b D_b is biased upward by up to √(2/π) s_b per bin, since an absolute value is. Instead each bin contributes s_b ψ(D_b / s_b),

    ψ(z) = |z| − κ exp(−z² / (2 w²)),    κ such that E ψ(α + Z) ≤ α for every α ≥ 0, Z standard normal,

which is never biased upward and loses little for large gaps. With m(α) and v(α) the mean and variance of ψ(α + Z), V the variance
of the sum and z the normal quantile, √V ≤ (V + V₀) / (2 √V₀) makes the bound a sum over bins, maximised over each unknown gap:

    Σ_b a_b ≥ Σ_b s_b ψ(D_b / s_b) − Σ_b s_b max_α [m(α) − α + t_b v(α)] − z √V₀ / 2,    t_b = z s_b / (2 √V₀),  any V₀ > 0.

Sums of bins are assumed normal, so bins with few expected errors are left out, which only lowers the bound.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from calibrant.operate.moments import Moments

__all__ = ["alternating_low"]

Floats = NDArray[np.float64]

WIDTH = 0.8  # w; a smaller w loses less at large gaps and has a larger variance at small ones
# smallest Σ p (1 − p) of a bin that is used, in units of log 1/α: further into the tail, normality needs more rows
_FEWEST = 2.0
_SLOPES = np.linspace(0.0, 3.0, 301)  # of t
_VARIANCES = np.linspace(0.7, 1.7, 6)  # V₀ in units of Σ s²


def alternating_low(moments: Moments, confidences: Floats, *, alpha: float) -> Floats:
    """Return the lower bound (…) of Σ_b |E x 1_b|, missed with probability at most ``alpha`` for bins with many rows.

    Args:
        moments: (…, B) sums of x = p − y by bin.
        confidences: (…, B) sums of p by bin.
        alpha: In (0, 1/2).
    """
    from scipy.special import ndtri

    count, total, rows = moments.count, moments.total, moments.count.sum(axis=-1, keepdims=True)
    p = confidences / np.maximum(count, 1)
    expected = count * p * (1 - p)
    counts = expected >= _FEWEST * math.log(1 / alpha)
    # a bin with few errors by chance must not get a smaller variance than its confidences imply
    spread = np.where(counts, np.sqrt(np.maximum(moments.squares - total**2 / rows, expected)) / rows, 0.0)
    z = np.where(counts, np.abs(total) / rows / np.where(counts, spread, 1.0), 0.0)
    factor, costs = _table()
    seen = (spread * (z - factor * np.exp(-(z**2) / (2 * WIDTH**2)))).sum(axis=-1)
    quantile, variance = float(-ndtri(alpha)), (spread**2).sum(axis=-1)
    best = np.full(np.shape(seen), math.inf)
    for unit in _VARIANCES:
        root = np.sqrt(np.maximum(unit * variance, 1e-300))
        slopes = quantile * spread / (2 * root[..., None])
        lost = (spread * np.interp(slopes, _SLOPES, costs)).sum(axis=-1) + quantile * root / 2
        best = np.minimum(best, lost)
    left: Floats = np.maximum(seen - best, 0.0)
    return left


@cache
def _table() -> tuple[float, Floats]:
    """Return κ, and max_α [m(α) − α + t v(α)] at ``_SLOPES``."""
    gaps, z = np.linspace(0, 8, 161), np.linspace(-9, 17, 2601)
    density = np.exp(-((z - gaps[:, None]) ** 2) / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    dip = np.exp(-(z**2) / (2 * WIDTH**2))
    factor = float(((density @ np.abs(z) - gaps) / (density @ dip)).max())
    values = np.abs(z) - factor * dip
    mean = density @ values
    variance = density @ values**2 - mean**2
    return factor, np.asarray((mean - gaps + _SLOPES[:, None] * variance).max(axis=1))
