"""Hall's transformation, which removes the skewness of Student's T = (mean − truth) / s.

Where few large rows decide a mean with the standard error s and the skewness a, T is itself skewed: its lower tail is longer. The
monotone transformation

    g(T) = T + a T² / 3 + a² T³ / 27 + a / 6                                                (Hall 1992, Eq. 2.5)

removes this to the next order. For a count of x rare events it gives nearly the exact Poisson interval from x ≈ 5 on.
"""

import math

from calibrant._core.check import check_number

__all__ = ["skewed_ends", "transformed"]


def skewed_ends(mean: float, error: float, skew: float, quantile: float) -> tuple[float, float]:
    """Return both ends of the interval of a mean: the values at which g(T) is ± ``quantile``.

    Args:
        mean: The estimate.
        error: Its standard error.
        skew: Its skewness Σ c³ / (Σ c²)^1.5 over the rows' contributions c; 0 gives mean ± quantile · error. Above about 0.8 /
            quantile the interval becomes much longer than coverage needs, so that callers clip it.
        quantile: Largest |g(T)| inside the interval, such as 1.96; positive.

    Raises:
        InputError: For arguments that are no finite numbers, a negative error, or a quantile that is not positive.

    Examples:
        >>> low, high = skewed_ends(0.0, 1.0, 0.2, 1.96)
        >>> round(low, 2), round(high, 2)
        (-1.72, 2.34)
    """
    mean, error = check_number(mean, name="mean"), check_number(error, name="error", low=0)
    skew, quantile = check_number(skew, name="skew"), check_number(quantile, name="quantile", low=0, open_low=True)
    low, high = (mean - error * _inverse(q, skew) for q in (quantile, -quantile))
    return low, high


def transformed(statistic: float, skew: float) -> float:
    """Return g(T).

    Args:
        statistic: Student's T.
        skew: Skewness of the mean.

    Examples:
        >>> transformed(2.0, 0.0)
        2.0
    """
    return statistic + skew * statistic**2 / 3 + skew**2 * statistic**3 / 27 + skew / 6


def _inverse(quantile: float, skew: float) -> float:
    """Return the T with g(T) = ``quantile``, from g(T) − a/6 = ((1 + a T/3)³ − 1) / a."""
    if abs(skew) < 1e-6:  # the limit a → 0, where the formula below would divide rounding errors by a
        return quantile
    return 3 * (math.cbrt(1 + skew * (quantile - skew / 6)) - 1) / skew
