"""Intervals of means over rows, or over groups of rows, corrected for skewness.

A mean over N rows is Σ_u c_u with one contribution c_u per unit (a row, or a group of rows). These contributions, which
include the weights, give the standard error s = √Σ (c_u − c̄)² and the skewness a = Σ (c_u − c̄)³ / s³ of the mean. Hall's
transformation g(T) of Student's T = (mean − truth) / s is compared with Student's t.

If a few large rows dominate the mean, T itself is skewed: its lower tail is longer. The monotone transformation

    g(T) = T + a T² / 3 + a² T³ / 27 + a / 6                                                (Hall 1992, Eq. 2.5)

removes this skewness to the next order. For a count of x rare events, the result is close to the exact Poisson interval
from x ≈ 5 on.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_same_weights
from calibrant._core.notebook import to_html
from calibrant._core.numerics import slices
from calibrant.errors import NoIntervalError
from calibrant.statistics.design import Design

Floats: TypeAlias = NDArray[np.float64]

# The sandwich variance of weighted rows is raised towards that of independent weights by at most this many of its own
# standard deviations.
REACH = 3.0
# A skewness estimated from few rows is noisy. Above this value (ten equal events have .32), the correction would only add length.
MAX_SKEW = 0.4


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Args:
        estimate: The value of the metric.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Nominal coverage in (0, 1).
        method: Name of the method.

    Examples:
        >>> print(Interval(0.8, 0.71, 0.87, 0.95, "Wilson score"))
        0.8 [0.71, 0.87]
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    _repr_html_ = to_html

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Spread:
    """The standard error, skewness and sample size of a mean.

    Args:
        error: The standard error.
        skew: The skewness, clipped to ±``MAX_SKEW``.
        units: Number of independent units; the effective number with weights, the degrees of freedom plus 1 with groups.
    """

    error: float
    skew: float
    units: float

    @classmethod
    def of(cls, units: float, square: float, cube: float, *, unbiased: bool = False) -> "Spread":
        """Return the spread of a sum of centred contributions c.

        Args:
            units: Number of independent units.
            square: Σ c².
            cube: Σ c³.
            unbiased: Whether Σ c² already is the unbiased variance, without a factor units / (units − 1).
        """
        if square == 0 or units < 2:
            return cls(0.0, 0.0, units)
        skew = max(-MAX_SKEW, min(MAX_SKEW, cube / square**1.5))
        return cls(math.sqrt(square * (1.0 if unbiased else units / (units - 1))), skew, units)


@dataclass(frozen=True, eq=False)
class Powers:
    """Power sums of independent rows x with weights w. They can be added, and give central moments.

    Args:
        sums: (4, 5) Σ w^k x^j for k = 1 … 4 and j = 0 … 4.
        weighted: Whether the rows have weights; otherwise w is 1.
    """

    sums: Tensor
    weighted: bool

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor | None) -> "Powers":
        """Return the power sums of ``rows`` (N,) with weights ``weight`` (N,), or without weights if it is None."""
        sums = torch.zeros(4, 5, dtype=torch.float64, device=rows.device)
        for some in slices(len(rows), 1 << 14):  # blocks whose powers fit into the cache
            x = rows[some].double()
            basis = torch.stack([torch.ones_like(x), x, x * x])
            scaled = basis[None]
            if weight is not None:
                w = weight[some].to(x)
                scaled = basis * torch.stack([w, w * w, w * w * w, w * w * w * w])[:, None]
            # the entries of basis · basisᵀ with x⁰, x¹, x², x³ and x⁴
            sums += (scaled @ basis.T)[:, [0, 0, 0, 1, 2], [0, 1, 2, 2, 2]]
        return cls(sums.cpu(), weight is not None)

    def __add__(self, other: "Powers") -> "Powers":
        check_same_weights(self.weighted, other.weighted)
        return Powers(self.sums + other.sums, self.weighted)

    @property
    def mass(self) -> float:
        """The sum of weights, Σ w."""
        return float(self.sums[0, 0])

    @property
    def mean(self) -> float:
        """The weighted mean, Σ w x / Σ w."""
        return float(self.sums[0, 1] / self.sums[0, 0])

    @property
    def units(self) -> float:
        """The effective number of rows, (Σw)² / Σw²."""
        return float(self.sums[0, 0] ** 2 / self.sums[1, 0])

    def central(self, k: int, power: int) -> float:
        """Return Σ w^k (x − mean)^power, computed by the binomial theorem."""
        mean, sums = self.mean, self.sums[k - 1].tolist()
        return math.fsum(math.comb(power, j) * (-mean) ** (power - j) * sums[j] for j in range(power + 1))

    def total(self, power: int) -> float:
        """Return Σ (w / Σw)^power (x − mean)^power, a moment of the rows' contributions to the mean."""
        found = self.central(power, power) / self.mass**power
        return max(found, 0.0) if power % 2 == 0 else found

    def spread(self) -> Spread:
        """Return the standard error, the skewness and the number of units of the mean.

        With normalised weights v, the sandwich variance Σ v² (row − mean)² is too small in most samples if it is dominated
        by few rows with large weights, because most samples contain too few of them. Kish's (1965) variance
        Σ v² · Σ v (row − mean)² assumes that weights and rows are independent, and is less variable. The larger of the two
        is used, but at most ``REACH`` standard deviations √(2 / degrees) above the sandwich variance, so that the result
        converges to the sandwich estimate. The degrees of freedom are Satterthwaite's (1946).
        """
        square = self.total(2)
        found = Spread.of(self.units, square, self.total(3))
        if not self.weighted or not square:
            return found
        independent = self.central(1, 2) / self.mass / self.units
        # √(2 / degrees) = √Σ c⁴ / Σ c²
        ratio = min(independent / square, 1 + REACH * math.sqrt(self.total(4)) / square)
        return Spread(found.error * math.sqrt(max(ratio, 1.0)), found.skew, found.units)


def mean_interval(
    rows: Tensor, *, groups: Tensor | None = None, level: float = 0.95, weight: Tensor | None = None
) -> Interval:
    """Return the Student's t interval of a mean, corrected for skewness.

    Args:
        rows: (N,) finite numbers.
        groups: (N,) cluster of each row, or None. Clusters are the independent units.
        level: Nominal coverage in (0, 1).
        weight: (N,) positive float64 weights, or None.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> print(mean_interval(torch.tensor([0.0, 1.0, 0.0, 1.0] * 25)))
        0.5 [0.4003, 0.5997]

    References:
        Hall 1992, On the removal of skewness by transformation, Eq. 2.5; Kish 1965 (weights).
    """
    if groups is None:
        moments = Powers.of(rows, weight)
        return interval_from(moments.mean, moments.spread(), level=level)
    mean, _, spread = contributions(rows, Design.of(rows, groups=groups, weight=weight))
    return interval_from(mean, spread, level=level)


def contributions(rows: Tensor, design: Design) -> tuple[float, Tensor, Spread]:
    """Return the mean of ``rows`` (N,), the centred contribution (U,) of each unit to this mean, and its spread.

    A weighted mean is a ratio. To first order, its variation is the variation of these contributions, which includes the
    variation of Σw.
    """
    mean = float((rows.double() * design.share).sum())
    part = design.sums_of(rows.double() - mean)
    grouped = design.unit is not None
    square, cube = (float(part.pow(power).sum()) for power in (2, 3))
    return mean, part, Spread.of(design.units, square, cube, unbiased=grouped)


def interval_from(mean: float, spread: Spread, *, level: float) -> Interval:
    """Return the interval of a mean with the given spread.

    Raises:
        NoIntervalError: If there is only one row or group.
    """
    if spread.units < 2:
        raise NoIntervalError("at least two rows, or groups of rows, for an interval", "one", "measure on more data")
    quantile = student_quantile((1 + level) / 2, spread.units - 1)
    low, high = skewed_ends(mean, spread.error, spread.skew, quantile)
    return Interval(mean, low, high, level, "Student's t, corrected for skewness (Hall 1992)")


def skewed_ends(mean: float, error: float, skew: float, quantile: float) -> tuple[float, float]:
    """Return both ends of the interval of a mean, the values at which g(T) is ± ``quantile``.

    Args:
        mean: The estimate.
        error: Standard error of the estimate.
        skew: Skewness Σ c³ / (Σ c²)^1.5 over the rows' contributions c; 0 gives mean ± quantile · error. Above about
            0.8 / quantile, the interval becomes much longer than coverage needs, so callers clip the skewness.
        quantile: Largest |g(T)| inside the interval, such as 1.96; positive.

    Examples:
        >>> low, high = skewed_ends(0.0, 1.0, 0.2, 1.96)
        >>> round(low, 2), round(high, 2)
        (-1.72, 2.34)
    """

    # the inverse of g follows from g(T) − a/6 = ((1 + a T/3)³ − 1) / a; for a → 0 this would divide rounding errors by a
    low, high = (
        mean - error * (g if abs(skew) < 1e-6 else 3 * (math.cbrt(1 + skew * (g - skew / 6)) - 1) / skew)
        for g in (quantile, -quantile)
    )
    return low, high


def skewed_p(z: float, skew: float) -> float:
    """Return the two-sided p-value of a statistic ``z`` that is normal apart from its skewness (Cornish & Fisher 1938).

    Examples:
        >>> round(skewed_p(1.96, 0.0), 3), round(skewed_p(1.96, 0.3), 3)
        (0.05, 0.069)
    """
    bent = z - skew * (min(abs(z), 3.0) ** 2 - 1) / 6  # beyond 3, the expansion may not be monotone
    return math.erfc(abs(bent) / math.sqrt(2)) if bent * z > 0 else 1.0


def student_quantile(probability: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution.

    References:
        Abramowitz & Stegun 1972, 26.7.5; from 100 degrees of freedom on, the error of the expansion is below 1e-9.
    """
    z = normal_quantile(probability)
    if degrees < 100:
        from scipy.special import stdtrit  # imported here, because the import takes longer than evaluating a small file

        return float(stdtrit(degrees, probability))
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + (first + (second + (third + fourth / degrees) / degrees) / degrees) / degrees


def normal_quantile(probability: float) -> float:
    """Return a quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(probability)


def share_interval(successes: float, count: float, *, level: float = 0.95) -> Interval:
    """Return Wilson's interval of a proportion, with a Poisson-type end for one to three successes or failures.

    The coverage of Wilson's interval is too low for some proportions near 0: with .17 expected successes, it misses in 16 %
    of samples. For x = 1, 2 or 3 successes (or failures), the end next to 0 (or its distance from 1) is therefore
    ½ χ²_{1 − level}(2x) / count.

    Args:
        successes: Number of successes among ``count``; for weighted rows, neither needs to be a whole number.
        count: Number of rows, ≥ 1.
        level: Nominal coverage in (0, 1).

    Examples:
        >>> print(share_interval(99, 100))
        0.99 [0.9455, 0.9995]

    References:
        Wilson 1927; Brown, Cai & DasGupta 2001, §4.1.1 (modified Wilson interval).
    """
    z, p = normal_quantile((1 + level) / 2), successes / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(max(p * (1 - p), 0.0) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    if 1 <= successes <= 3 or 1 <= count - successes <= 3:
        from scipy.special import chdtri
    if 1 <= successes <= 3:
        low = float(chdtri(2 * successes, level)) / 2 / count
    if 1 <= count - successes <= 3:
        high = 1 - float(chdtri(2 * (count - successes), level)) / 2 / count
    # min and max guard against rounding for a proportion of 0 or 1
    return Interval(p, min(low, p), max(high, p), level, "Wilson score, modified next to 0 and 1")
