"""Intervals and tests of means over rows or groups of rows, corrected for skewness.

A mean over N rows is Σ_u c_u with one contribution c_u per unit (a row, or a group of rows). Everything here is computed from
these contributions, which include the weights: the standard error s = √Σ (c_u − c̄)² and the skewness a = Σ (c_u − c̄)³ / s³ of
the mean. Hall's transformation g(T) of Student's T = (mean − truth) / s is compared with Student's t.

Where few large rows decide a mean with the standard error s and the skewness a, T is itself skewed: its lower tail is longer. The
monotone transformation

    g(T) = T + a T² / 3 + a² T³ / 27 + a / 6                                                (Hall 1992, Eq. 2.5)

removes this to the next order. For a count of x rare events it gives nearly the exact Poisson interval from x ≈ 5 on.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from calibrant._core.check import check_dense, check_row_tensor, check_row_weight, check_same_weights, refuse, shown
from calibrant._core.notebook import to_html
from calibrant.errors import NoIntervalError

# The sandwich variance of weighted rows is raised towards that of independent weights by at most this many of its own
# standard deviations.
REACH = 3.0
# A skewness estimated from few rows is noisy; above this (ten equal events have .32) the correction would only add length.
MOST_SKEW = 0.4
MOST_SUMS = 1 << 26  # of all groups: half a gigabyte a figure


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Args:
        estimate: The value of the metric.
        low: Lower end.
        high: Upper end.
        level: Nominal coverage in (0, 1).
        method: Name of the method.
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
class PairedTest:
    """A difference between two models on the same rows.

    Args:
        difference: Mean of a − b.
        low: Lower end of its interval.
        high: Upper end.
        p_value: Two-sided, of the hypothesis that the difference is 0.
    """

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Spread:
    """Standard error, skewness and sample size of a mean.

    Args:
        error: The standard error.
        skew: The skewness, clipped to ±``MOST_SKEW``.
        units: Number of independent units; with weights the effective number.
    """

    error: float
    skew: float
    units: float


def mean_of(rows: Tensor, weight: Tensor | None) -> float:
    """Return the mean of ``rows`` (N,), weighted by ``weight`` (N,) > 0 if there is one."""
    wide = rows.double()
    return float(wide.mean() if weight is None else (wide * weight).sum() / weight.sum())


@dataclass(frozen=True)
class Contributions:
    """The centred contribution of each unit, a row or a group, to a mean.

    Args:
        part: (U,) Σ_{i in u} w_i (row_i − mean) / Σw.
        units: Number of units; with weights the effective number, of groups the degrees of freedom plus 1.
        unbiased: Whether Σ part² is the variance without a factor units / (units − 1).
    """

    part: Tensor
    units: float
    unbiased: bool = False

    def total(self, power: int) -> float:
        """Return Σ part^power over all units."""
        return float(self.part.pow(power).sum())

    @property
    def spread(self) -> Spread:
        """Standard error, skewness and number of units of their sum."""
        return spread_of(self.units, self.total(2), self.total(3), unbiased=self.unbiased)


def contributions(rows: Tensor, groups: Tensor | None, weight: Tensor | None = None) -> Contributions:
    """Return the contribution of each unit to the mean of ``rows`` (N,).

    A weighted mean is a ratio; to first order its variation is that of these centred contributions, which includes that of Σw.
    """
    centred = rows.double() - mean_of(rows, weight)
    if weight is None and groups is None:
        return Contributions(centred / len(rows), len(rows))
    normalised = torch.ones_like(centred) if weight is None else weight.to(centred)
    normalised = normalised / normalised.sum()
    if groups is None:
        return Contributions(centred * normalised, 1 / float(normalised.square().sum()))
    return UnitSums.of_column(groups, normalised, centred).contributions(0)


@dataclass(frozen=True, eq=False)
class Powers:
    """Power sums of independent rows x with weights w, of which central moments are made; they add.

    Args:
        sums: (4, 5) Σ w^k x^j for k = 1 … 4 and j = 0 … 4.
        weighted: Whether rows have weights, else w is 1.
        unit: What weights are divided by, a power of 2: their fourth power must not leave the range of numbers.
    """

    sums: Tensor
    weighted: bool
    unit: float = 1.0

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor | None) -> "Powers":
        """Return the sums of ``rows`` (N,)."""
        x = rows.double()
        w = torch.ones_like(x) if weight is None else weight.to(x)
        unit = 2.0 ** math.floor(math.log2(float(w.max())))
        powers = torch.stack([x.pow(j) for j in range(5)], dim=1)
        weights = torch.stack([(w / unit).pow(k) for k in range(1, 5)])
        return cls((weights @ powers).cpu(), weight is not None, unit)

    def __add__(self, other: "Powers") -> "Powers":
        check_same_weights(self.weighted, other.weighted)
        unit, order = max(self.unit, other.unit), torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
        mine, theirs = (one.sums * (one.unit / unit) ** order for one in (self, other))
        return Powers(mine + theirs, self.weighted, unit)

    @property
    def mass(self) -> float:
        """Σ w."""
        return float(self.sums[0, 0]) * self.unit

    @property
    def mean(self) -> float:
        """Σ w x / Σ w."""
        return float(self.sums[0, 1] / self.sums[0, 0])

    @property
    def units(self) -> float:
        """Rows of equal weight that would vary as much, (Σw)² / Σw²."""
        return float(self.sums[0, 0] ** 2 / self.sums[1, 0])

    def central(self, k: int, power: int) -> float:
        """Return Σ w^k (x − mean)^power, by the binomial theorem."""
        mean, sums = self.mean, self.sums[k - 1].tolist()
        return math.fsum(math.comb(power, j) * (-mean) ** (power - j) * sums[j] for j in range(power + 1))

    def total(self, power: int) -> float:
        """Return Σ (w / Σw)^power (x − mean)^power: of the rows' contributions to the mean."""
        found = self.central(power, power) / float(self.sums[0, 0]) ** power
        return max(found, 0.0) if power % 2 == 0 else found

    def spread(self) -> Spread:
        """Return standard error, skewness and number of units of the mean.

        With normalised weights v the sandwich variance Σ v² (row − mean)² is too small in most samples if few rows with large
        weights decide it, because most samples hold too few of them. Kish's (1965) variance Σ v² · Σ v (row − mean)² assumes that
        weights and rows are independent, and is less variable. The larger one is used, but at most ``REACH`` standard deviations
        √(2 / degrees) above the sandwich variance, so that the result converges to the sandwich estimate; the degrees are
        Satterthwaite's (1946).
        """
        square = self.total(2)
        found = spread_of(self.units, square, self.total(3))
        if not self.weighted or not square:
            return found
        independent = self.central(1, 2) / float(self.sums[0, 0]) / self.units
        # √(2 / degrees) = √Σ c⁴ / Σ c²
        ratio = min(independent / square, 1 + REACH * math.sqrt(self.total(4)) / square)
        return Spread(found.error * math.sqrt(max(ratio, 1.0)), found.skew, found.units)


@dataclass(frozen=True)
class Clusters:
    """What the sizes of groups say about a variance estimated from the groups' sums.

    A large group pulls the mean towards itself, so its centred sum is too small: with fractions of rows v_g and one effect a
    group, E c_g² = v_g² σ² (1 − 2 v_g + Σ v²) where v_g² σ² is wanted.

    Args:
        scale: (G,) 1 / √(1 − 2 v_g + Σ v²), by which centred sums are multiplied so that Σ c² is unbiased.
        degrees: Of freedom of Σ c², by its mean and variance for normal effects; G − 1 for equal sizes.
        effective: 1 / Σ v², the number of groups of equal size that are worth as much.

    References:
        Bell & McCaffrey 2002 (bias-reduced linearisation); Satterthwaite 1946.
    """

    scale: Tensor
    degrees: float
    effective: float

    @classmethod
    def of(cls, sizes: Tensor) -> "Clusters":
        """Return them for sizes (G,) > 0: numbers of rows, or sums of weights."""
        v = sizes.double() / sizes.sum()
        square = v.square().sum()
        left = (1 - 2 * v + square).clamp_min(1e-12)  # ≥ (1 − v)²: 0 only for a group that holds every row
        if v.shape[0] < 2:
            return cls(torch.ones_like(v), 0.0, 1.0)
        # Σ c² is a quadratic form u'Bu of the effects, B = A − v a' − a v' + (Σ a) v v' with A = diag a, a = v² / left.
        # Its degrees are 2 mean² / variance = tr(B)² / tr(B²), from sums over groups only: B is diagonal plus rank two.
        return cls(left.rsqrt(), cls.degrees_of(cls.parts_of(v, left).sum(dim=1), float(square)), float(1 / square))

    @staticmethod
    def parts_of(v: Tensor, left: Tensor) -> Tensor:
        """Return (5, G) a, a², a v, a v² and a² v with a = v² / left: their sums over groups are what the degrees follow from."""
        a = v.square() / left
        return torch.stack([a, a.square(), a * v, a * v.square(), a.square() * v])

    @staticmethod
    def degrees_of(parts: Tensor, square: float) -> float:
        """Return the degrees of freedom from the sums (5,) of ``parts_of`` and Σ v²."""
        total, aa, av, avv, aav = parts.tolist()
        trace = total - 2 * av + total * square
        low_rank = 2 * (square * aa + av**2) - 4 * total * square * av + (total * square) ** 2
        scatter = aa + 2 * (total * avv - 2 * aav) + low_rank
        # rounding leaves nothing where one group has nearly all weight
        return float(trace**2 / scatter) if scatter > 0 else 0.0


@dataclass(frozen=True, eq=False)
class UnitSums:
    """Sums over the rows of each group, of which a variance over groups is made; they add over chunks, workers and days.

    Args:
        keys: (G,) int64 groups, ascending.
        rows: (G,) how many rows each has.
        mass: (G,) Σ w.
        sums: (G, C) Σ w x of each column.
        dropped: 1 if there were too many sums to keep, so that none is kept, else 0.
        most: How many are kept.
    """

    keys: Tensor
    rows: Tensor
    mass: Tensor
    sums: Tensor
    dropped: int = 0
    most: int = MOST_SUMS

    @classmethod
    def of(
        cls,
        groups: Tensor,
        weight: Tensor,
        columns: int,
        parts: Iterable[tuple[slice, Tensor, Tensor]],
        *,
        most: int | None = None,
    ) -> "UnitSums":
        """Return the sums of rows in ``groups`` (N,) with weights (N,).

        Args:
            groups: One of each row.
            weight: 1 for rows that count once.
            columns: C.
            parts: Rows, and for these the columns (n, …), −1 for none, that the numbers w x (n, …) are added to.
            most: Sums that are kept; None for ``MOST_SUMS``.
        """
        most = MOST_SUMS if most is None else most
        keys, code = torch.unique(groups.to(weight.device), return_inverse=True)
        count = keys.shape[0]
        rows, mass = (torch.bincount(code, weights=w, minlength=count).double() for w in (None, weight.double()))
        if count * columns > most:
            return cls(keys[:0], rows[:0], mass[:0], mass.new_zeros(0, columns), 1, most)
        sums = mass.new_zeros(count * columns)
        for some, column, values in parts:
            inside, home = column >= 0, code[some].reshape(-1, *[1] * (column.dim() - 1)) * columns + column
            sums.index_add_(0, home[inside], values[inside])
        return cls(keys, rows, mass, sums.view(count, columns), 0, most)

    @classmethod
    def of_column(cls, groups: Tensor, weight: Tensor, values: Tensor) -> "UnitSums":
        """Return the sums of one column of ``values`` (N,)."""
        home = torch.zeros(values.shape[0], dtype=torch.int64, device=values.device)
        weight = weight.to(values.device)
        return cls.of(groups, weight, 1, [(slice(None), home, values * weight)])

    def __add__(self, other: "UnitSums") -> "UnitSums":
        # a group may have rows in several pieces
        keys, place = torch.unique(torch.cat([self.keys, other.keys]), return_inverse=True)
        dropped = self.dropped or other.dropped or int(keys.shape[0] * self.sums.shape[1] > self.most)
        if dropped:
            return UnitSums(keys[:0], self.rows[:0], self.mass[:0], self.sums[:0], 1, self.most)
        both = (torch.cat([getattr(self, name), getattr(other, name)]) for name in ("rows", "mass", "sums"))
        rows, mass, sums = (x.new_zeros(keys.shape[0], *x.shape[1:]).index_add_(0, place, x) for x in both)
        return UnitSums(keys, rows, mass, sums, 0, self.most)

    def need(self, *, what: object, least: int) -> None:
        """Raise unless they are worth ``least`` groups of equal size.

        Raises:
            NoIntervalError: Then, and for groups of which no sums are kept.
        """
        if self.dropped:
            most = f"at most {self.most // self.sums.shape[1]:,} groups for the uncertainty of {shown(what, most=200)}"
            raise NoIntervalError(most, "more", "use fewer bins, ECE(), or larger groups")
        for sizes in (self.rows, self.mass):  # many groups of which one has nearly all weight are one
            need_clusters(sizes, what=what, least=least)

    @cached_property
    def clusters(self) -> "Clusters":
        """What their sizes say about a variance."""
        return Clusters.of(self.mass)

    @cached_property
    def centred(self) -> Tensor:
        """(G, C) sums over Σw, less each group's part of the total in proportion to its mass, scaled as in ``Clusters``.

        So Σ over groups of their products is the covariance of the columns' Σ w x / Σ w.
        """
        whole = self.mass.sum()
        parts = (self.sums - (self.mass / whole)[:, None] * self.sums.sum(dim=0)) / whole
        return parts * self.clusters.scale[:, None]

    @property
    def degrees(self) -> float:
        """Of freedom of a variance over the groups."""
        return self.clusters.degrees

    def contributions(self, column: int) -> Contributions:
        """Return those of each group to the mean of a column."""
        return Contributions(self.centred[:, column], self.degrees + 1, unbiased=True)


def need_clusters(sizes: Tensor, *, what: object, least: int) -> None:
    """Raise if groups of these sizes (G,) are worth fewer than ``least`` of equal size.

    Raises:
        NoIntervalError: Then.
    """
    need_effective(len(sizes), Clusters.of(sizes).effective, what=what, least=least)


def need_effective(count: int, effective: float, *, what: object, least: int) -> None:
    """Raise if so many groups are worth fewer than ``least`` of equal size.

    Raises:
        NoIntervalError: Then.
    """
    # rounding must not refuse ten groups of equal size
    if effective < least - 1e-6:
        worth = "" if count < least else f" that are worth {effective:.1f} of equal size"
        raise NoIntervalError(
            f"at least {least} groups of rows for the uncertainty of {shown(what, most=200)}",
            f"{count}{worth}",
            f"measure on about {math.ceil(count * least / max(effective, 1.0)):,} groups like these",  # worth in proportion
        )


def spread_of(units: float, second: float, third: float, *, unbiased: bool = False) -> Spread:
    """Return the spread of a sum of centred contributions c of ``units`` units, from Σ c² and Σ c³.

    ``unbiased`` says that Σ c² is the variance without a factor units / (units − 1).
    """
    if second == 0 or units < 2:
        return Spread(0.0, 0.0, units)
    skew = max(-MOST_SKEW, min(MOST_SKEW, third / second**1.5))
    return Spread(math.sqrt(second * (1.0 if unbiased else units / (units - 1))), skew, units)


def skewed_ends(mean: float, error: float, skew: float, quantile: float) -> tuple[float, float]:
    """Return both ends of the interval of a mean: the values at which g(T) is ± ``quantile``.

    Args:
        mean: The estimate.
        error: Its standard error.
        skew: Its skewness Σ c³ / (Σ c²)^1.5 over the rows' contributions c; 0 gives mean ± quantile · error. Above about 0.8 /
            quantile the interval becomes much longer than coverage needs, so that callers clip it.
        quantile: Largest |g(T)| inside the interval, such as 1.96; positive.

    Examples:
        >>> low, high = skewed_ends(0.0, 1.0, 0.2, 1.96)
        >>> round(low, 2), round(high, 2)
        (-1.72, 2.34)
    """
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


def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def mean_interval(
    rows: Tensor, *, groups: Tensor | None = None, level: float = 0.95, weight: Tensor | None = None
) -> Interval:
    """Return the interval of a mean: Student's t, corrected for skewness.

    Args:
        rows: (N,) finite numbers.
        groups: (N,) cluster of each row; clusters are then the independent units.
        level: Nominal coverage in (0, 1).
        weight: (N,) float64, positive, or None.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> print(mean_interval(torch.tensor([0.0, 1.0, 0.0, 1.0] * 25)))
        0.5 [0.4003, 0.5997]

    References:
        Hall 1992, On the removal of skewness by transformation, Eq. 2.5; Kish 1965 (weights).
    """
    (rows,) = check_finite_rows(rows, groups, weight, name="rows").unbind(dim=1)
    if groups is None:
        moments = Powers.of(rows, weight)
        return interval_from(moments.mean, moments.spread(), level=level)
    return interval_from(mean_of(rows, weight), contributions(rows, groups, weight).spread, level=level)


def interval_from(mean: float, spread: Spread, *, level: float) -> Interval:
    """Return the interval of a mean with this spread.

    Raises:
        NoIntervalError: If there is only one row or group.
    """
    if spread.units < 2:
        raise NoIntervalError("at least two rows, or groups of rows, for an interval", "one", "measure on more data")
    return Interval(
        mean, *_skewed_interval(mean, spread, level=level), level, "Student's t, corrected for skewness (Hall 1992)"
    )


def _skewed_interval(mean: float, spread: Spread, *, level: float) -> tuple[float, float]:
    return skewed_ends(mean, spread.error, spread.skew, student_quantile((1 + level) / 2, spread.units - 1))


def paired_test(
    differences: Tensor,
    *,
    groups: Tensor | None = None,
    level: float = 0.95,
    weight: Tensor | None = None,
    least_error: float = 0.0,
) -> list[PairedTest]:
    """Test for each column of row-wise differences between two models whether its mean is 0.

    Args:
        differences: (N, C) or (N,): a − b in every row, one column per metric.
        groups: (N,) cluster of each row; clusters are then the independent units.
        level: Coverage of the intervals.
        weight: (N,) float64, positive, or None.
        least_error: Standard error below which that of a mean is not taken: losses that were not seen decide it too.

    Returns:
        One test per column, by Student's t corrected for skewness, with fewer degrees of freedom if few rows decide the mean;
        p < 1 − level if and only if the interval excludes 0.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> test = paired_test(torch.tensor([0.1, 0.2, 0.0, 0.1] * 25))[0]
        >>> test.low > 0, test.p_value < 0.05
        (True, True)

    References:
        Hall 1992, On the removal of skewness by transformation, Eq. 2.5.
    """
    tests = []
    for column in check_finite_rows(differences, groups, weight, name="differences").unbind(dim=1):
        found = contributions(column, groups, weight)
        powers, spread = [found.total(power) for power in (2, 3, 4, 6)], found.spread
        if spread.error:
            spread = replace(spread, error=max(spread.error, least_error))
        tests.append(mean_test(mean_of(column, weight), spread, powers, level=level))
    return tests


def mean_test(mean: float, spread: Spread, powers: Sequence[float], *, level: float) -> PairedTest:
    """Test whether a mean is 0, with fewer degrees of freedom if few rows decide it.

    The degrees of Student's t match the variance of Σ c²: 2 (Σ c²)² / Σ c⁴ (Satterthwaite), which is 2x if x equal events decide.
    Differences of two models are often symmetric, and a skewness that is only noise of Σ c³ makes the test reject too often; where one
    model is sharper than the other the skewness is real. So each end, and the p-value, is the wider one with the skewness and
    with max(0, 1 − 4 Σ c⁶ / (Σ c³)²) of it, which is 1 − 4/x for x equal events.

    Args:
        mean: Mean of the differences.
        spread: Its standard error, skewness and number of units.
        powers: Σ c², Σ c³, Σ c⁴ and Σ c⁶ over the units' contributions.
        level: Coverage of the interval.

    Raises:
        NoIntervalError: If there is only one row or group.

    References:
        Satterthwaite 1946.
    """
    from scipy.special import stdtr

    second, third, fourth, sixth = powers
    if spread.units < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to compare on", "one", "compare on more data")
    if spread.error == 0:  # equal differences have no variance to test with, but all have one sign: the sign test
        p_value = 1.0 if mean == 0 else 2.0 ** (1 - min(spread.units, 1000))
        undecided = p_value >= 1 - level
        return PairedTest(mean, min(mean, 0.0) if undecided else mean, max(mean, 0.0) if undecided else mean, p_value)
    units = min(spread.units, 1 + 2 * second**2 / fourth)
    part = max(0.0, 1 - 4 * sixth / third**2) if third else 0.0
    spreads = [Spread(spread.error, skew, units) for skew in (spread.skew, spread.skew * part)]
    low, high = zip(*(_skewed_interval(mean, one, level=level) for one in spreads), strict=True)
    statistics = [transformed(mean / spread.error, one.skew) for one in spreads]
    # where they have two signs neither end excludes 0
    least = min(map(abs, statistics)) if statistics[0] * statistics[1] > 0 else 0.0
    return PairedTest(mean, min(low), max(high), float(2 * stdtr(units - 1, -least)))


def check_finite_rows(rows: Tensor, groups: Tensor | None, weight: Tensor | None = None, *, name: str) -> Tensor:
    """Return ``rows`` as columns (N, C) if they are finite numbers (N,) or (N, C), of which each has a group and weight, if any."""
    check_dense(rows, name=name)
    if rows.dim() not in (1, 2) or rows.numel() == 0:
        got = f"shape {tuple(rows.shape)} and {rows.dtype}"
        raise refuse(f"{name} of shape (N,) or (N, C)", got, "pass one number a row")
    if not bool(torch.isfinite(rows.double()).all()):
        raise refuse(f"finite {name}", "others", "leave them out, or give the calibrator a floor")
    if groups is not None:
        check_row_tensor(groups, name="groups", rows=rows.shape[0])
    check_row_weight(weight, rows=rows.shape[0])
    return rows if rows.dim() == 2 else rows[:, None]
