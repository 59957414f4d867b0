"""Tests of two models on the same rows: of mean differences and of squared gaps, and Holm's correction.

The test of squared gaps: let d be the weighted gaps of both models in their bins, and C their covariance. The unbiased squared errors
are θ_A and θ_B, each Σ (d_b² − C_bb), and the statistic is (θ_B − θ_A) / √V, where V is its variance under the hypothesis
θ_A = θ_B = θ. Near θ = 0 the statistic is far from normal, so its distribution is simulated by a parametric bootstrap: gaps vary
around each model's own shape, scaled to the same θ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import NoIntervalError
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.design import Design, require_groups
from calibrant.statistics.means import contributions, normal_quantile, skewed_ends, student_quantile

Floats: TypeAlias = NDArray[np.float64]

MARGIN = 1.0
CAUTION = 1.04  # the ratio is divided by this, because the simulation uses estimated shapes
TAIL = 0.005  # p-values below this are extrapolated by a normal tail fitted at this quantile of the draws
# With 30 groups, the covariance of 16 or more bins is too uncertain: 12 % of tests rejected a true hypothesis
FEWEST_GROUPS = 100
EXACT = 1e-12  # smaller differences, relative to both errors, are rounding
_TINY = 1e-300


@dataclass(frozen=True)
class PairedTest:
    """A difference between two models on the same rows.

    Args:
        difference: Mean of a − b.
        low: Lower end of its interval; NaN if there is none.
        high: Upper end of its interval; NaN if there is none.
        p_value: Two-sided p-value of the hypothesis that the difference is 0.
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_test(
    differences: Tensor,
    *,
    groups: Tensor | None = None,
    level: float = 0.95,
    weight: Tensor | None = None,
    least_error: float = 0.0,
) -> PairedTest:
    """Test whether the mean of row-wise differences between two models is 0, by Student's t corrected for skewness.

    The degrees of freedom match the variance of Σ c², where c are the contributions of the rows: 2 (Σ c²)² / Σ c⁴
    (Satterthwaite). Differences of two models are often symmetric, and then an estimated skewness that is only noise makes the
    test reject too often; if one model is sharper, the skewness is real. So each end of the interval, and the p-value, is the
    more cautious of two: with the estimated skewness, and with it reduced by the factor max(0, 1 − 4 Σ c⁶ / (Σ c³)²).

    Args:
        differences: (N,) a − b in every row, finite.
        groups: (N,) cluster of each row; clusters are then the independent units.
        level: Coverage of the interval, in (0, 1).
        weight: (N,) float64 weights > 0, or None.
        least_error: Lower bound on the standard error of the mean, to account for losses that did not occur in the sample.

    Returns:
        The difference with its interval and p-value; p < 1 − level if and only if the interval excludes 0.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> test = paired_test(torch.tensor([0.1, 0.2, 0.0, 0.1] * 25))
        >>> test.low > 0, test.p_value < 0.05
        (True, True)

    References:
        Hall 1992, On the removal of skewness by transformation, Eq. 2.5; Satterthwaite 1946.
    """
    from scipy.special import stdtr

    mean, part, spread = contributions(differences, Design.of(differences, groups=groups, weight=weight))
    if spread.units < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to compare on", "one", "compare on more data")
    if spread.error == 0:  # equal differences have no variance to test with, but all have one sign: the sign test
        p_value = 1.0 if mean == 0 else 2.0 ** (1 - min(spread.units, 1000))
        undecided = p_value >= 1 - level
        return PairedTest(mean, min(mean, 0.0) if undecided else mean, max(mean, 0.0) if undecided else mean, p_value)
    second, third, fourth, sixth = (float(part.pow(power).sum()) for power in (2, 3, 4, 6))
    error, degrees = max(spread.error, least_error), min(spread.units - 1, 2 * second**2 / fourth)
    real = max(0.0, 1 - 4 * sixth / third**2) if third else 0.0
    quantile, t = student_quantile((1 + level) / 2, degrees), mean / error
    skews = (spread.skew, spread.skew * real)
    low, high = zip(*(skewed_ends(mean, error, skew, quantile) for skew in skews), strict=True)
    statistics = [halls_transform(t, skew) for skew in skews]
    # if they have different signs, the interval contains 0
    least = min(map(abs, statistics)) if statistics[0] * statistics[1] > 0 else 0.0
    return PairedTest(mean, min(low), max(high), float(2 * stdtr(degrees, -least)))


def halls_transform(statistic: float, skew: float) -> float:
    """Return Hall's transformation g(T) of Student's statistic T of a mean with this skewness (Hall 1992, Eq. 2.5)."""
    return statistic + skew * statistic**2 / 3 + skew**2 * statistic**3 / 27 + skew / 6


def paired_square_test(
    a: BinnedRows,
    b: BinnedRows,
    *,
    groups: Tensor | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> PairedTest:
    """Test whether two models have the same squared calibration error; the difference θ̂_B − θ̂_A has no interval.

    Args:
        a: Rows of the first model in its bins.
        b: The same rows of the second model in its bins.
        groups: (N,) cluster of each row; whole clusters are then the independent units.
        draws: Number of simulated sets of gaps under the hypothesis, ≥ 100.
        seed: Same seed, same p-value; the models may be swapped.

    Raises:
        NoIntervalError: If there is only one row, or fewer than 100 groups.

    Examples:
        >>> from calibrant.statistics.binned import BinnedRows
        >>> index, p = torch.zeros(200, dtype=torch.int64), torch.full((200,), 0.9)
        >>> wrong, right = torch.arange(200) % 2, torch.arange(200) % 10 > 0
        >>> test = paired_square_test(BinnedRows(index, p, wrong, 1), BinnedRows(index, p, right, 1))
        >>> test.difference < 0, test.p_value < 0.05
        (True, True)

    References:
        Widmann, Lindsten & Zachariah 2019 (the estimate); Efron & Tibshirani 1993, chapter 16 (tests by the parametric bootstrap).
    """
    require_groups(groups, what="squared gaps", least=FEWEST_GROUPS)
    if a.p.shape[0] < 2:
        raise NoIntervalError("at least two rows to compare on", "one", "compare on more")
    both = _Gaps.of(a, b, groups)
    seen = both.measure(both.gap[None])
    difference = float(seen.second[0] - seen.first[0])
    size = EXACT * float((both.gap**2).sum())
    if abs(difference) <= size:
        return PairedTest(0.0, math.nan, math.nan, 1.0)
    if float(np.trace(both.covariance)) <= size:  # all rows are identical
        return PairedTest(difference, math.nan, math.nan, 0.0)
    drawn = both.measure(both.drawn(seen, draws=draws, seed=seed))
    ratios = (drawn.second - drawn.first) / drawn.error
    value = difference / float(seen.error[0]) / CAUTION
    p_value = min(1.0, 2 * min(_tail(ratios, value), _tail(-ratios, -value)))
    return PairedTest(difference, math.nan, math.nan, p_value)


def _tail(drawn: Floats, value: float) -> float:
    """Return the probability of ``value`` or more; beyond the quantile 1 − ``TAIL`` by a normal tail fitted there."""
    edge = float(np.quantile(drawn, 1 - TAIL))
    if value <= edge or edge <= 0:
        return float(((drawn >= value).sum() + 1) / (len(drawn) + 1))
    return math.erfc(normal_quantile(1 - TAIL) * value / edge / math.sqrt(2)) / 2


@dataclass(frozen=True)
class _SquareEstimates:
    """Estimates from D sets of gaps: θ̂_A, θ̂_B and the error √V under the hypothesis (D,), with intermediate results."""

    first: Floats
    second: Floats
    error: Floats
    common: Floats  # (D,) θ
    spread: Floats  # (D,) standard error of θ
    shape: Floats  # (D, M) u of both models


@dataclass(frozen=True)
class _Gaps:
    """The weighted gaps of two models in their M non-empty bins, and their covariance.

    Args:
        gap: (M,) gaps of the first model, then those of the second.
        covariance: (M, M) covariance of the gaps.
        share: (M,) fraction of rows in each bin.
        column: (M,) which column of normal numbers drives each gap: twice its bin, plus 1 for the second model.
        half: Number of non-empty bins of the first model.
    """

    gap: Floats
    covariance: Floats
    share: Floats
    column: NDArray[np.int64]
    half: int

    @classmethod
    def of(cls, a: BinnedRows, b: BinnedRows, groups: Tensor | None) -> "_Gaps":
        """Return the gaps of the same rows in two models' bins, and their covariance over rows or over groups."""
        width, starts = a.bins + b.bins, ((a, 0), (b, a.bins))
        design = Design.of(a.p, groups=groups, weight=a.weight)
        home = [torch.where(rows.index >= 0, rows.index + start, -1) for rows, start in starts]
        if groups is not None:
            parts = design.sums(
                width, [(slice(None), at, rows.residual) for at, (rows, _) in zip(home, starts, strict=True)]
            )
            covariance = parts.T @ parts
        else:
            covariance = _over_rows(home, [rows.residual * design.share for rows in (a, b)], design.share, width)
        tables = [rows.table() for rows in (a, b)]
        whole = torch.cat([table.weight for table in tables]).cpu().numpy()
        gap = torch.cat([table.weight * table.gap for table in tables]).cpu().numpy()
        column = np.concatenate([2 * np.arange(a.bins), 2 * np.arange(b.bins) + 1])
        filled = np.flatnonzero(whole > 0)
        square = covariance.cpu().numpy()[np.ix_(filled, filled)]
        return cls(gap[filled], square, whole[filled], column[filled], int((filled < a.bins).sum()))

    def measure(self, gaps: Floats) -> _SquareEstimates:
        """Return the estimates of each set of gaps (D, M), and their error under the hypothesis."""
        one, two = slice(0, self.half), slice(self.half, None)
        blocks, weighted = ((one, one), (two, two), (one, two)), 4 * self.covariance
        q_1, q_2, q_12 = (2 * float((self.covariance[i, j] ** 2).sum()) for i, j in blocks)
        (first, shape_1), (second, shape_2) = (self._square_and_shape(gaps[:, side], side) for side in (one, two))
        shape = np.concatenate([shape_1, shape_2], axis=1)
        e_1, e_2, e_12 = (((shape[:, i] @ weighted[i, j]) * shape[:, j]).sum(axis=1) for i, j in blocks)
        cross = ((gaps[:, one] @ weighted[one, two]) * gaps[:, two]).sum(axis=1) - 2 * q_12
        # θ: the mean of both estimates that is uncorrelated with their difference
        common = np.maximum((first + second) / 2, 0.0)
        for _ in range(4):  # its weights depend on θ: fixed-point iteration, converged to one per cent
            v_1, v_2 = q_1 + common * e_1, q_2 + common * e_2
            weight = np.clip((v_2 - q_12) / np.maximum(v_1 + v_2 - 2 * q_12, _TINY), 0.0, 1.0)
            common = np.maximum(weight * first + (1 - weight) * second, 0.0)
        of_common = weight**2 * v_1 + (1 - weight) ** 2 * v_2 + 2 * weight * (1 - weight) * q_12
        variance = q_1 + q_2 - 2 * q_12 + common * (e_1 + e_2) - 2 * np.minimum(common * e_12, cross)
        error, spread = np.sqrt(np.maximum(variance, _TINY)), np.sqrt(np.maximum(of_common, 0.0))
        return _SquareEstimates(first, second, error, common, spread, shape)

    def _square_and_shape(self, gaps: Floats, side: slice) -> tuple[Floats, Floats]:
        """Return θ̂ (D,) of one model, and its shape u (D, B): √E[δ_b² | d] with the sign of d_b, scaled to Σ u² = 1."""
        noise, prior = np.maximum(np.diag(self.covariance)[side], _TINY), self.share[side] ** 2
        square = (gaps**2 - noise).sum(axis=1)
        size = np.maximum(square, math.sqrt(2 * float((noise**2).sum())))
        prior = np.outer(size / prior.sum(), prior)
        kept = prior / (prior + noise)
        energy = kept**2 * gaps**2 + kept * noise
        total = np.maximum(energy.sum(axis=1, keepdims=True), _TINY)
        return square, np.copysign(np.sqrt(energy / total), gaps)

    def drawn(self, seen: _SquareEstimates, *, draws: int, seed: int) -> Floats:
        """Return sets of gaps (draws, M) drawn under the hypothesis: around each model's shape, with one θ for both."""
        centre = seen.shape[0] * math.sqrt(float(seen.common[0] + MARGIN * seen.spread[0]))
        values, vectors = np.linalg.eigh(self.covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        width = int(self.column.max()) // 2 + 1
        normal = np.random.default_rng(seed).standard_normal((-(-draws // 2), 2, width))
        both = np.concatenate([normal, normal[:, ::-1]])  # so that swapped models have the same draws
        result: Floats = centre + both.transpose(0, 2, 1).reshape(len(both), -1)[:, self.column] @ root
        return result


def _over_rows(home: list[Tensor], parts: list[Tensor], share: Tensor, width: int) -> Tensor:
    """Return the covariance (B + B′, B + B′) of both models' weighted gaps over rows.

    Row i contributes s_i (ε_i 1[i in b] − d_b), with its normalised weight s_i and ε = p − y.

    Args:
        home: (N,) of each model: the bin of each row, −1 for none.
        parts: (N,) of each model: s ε.
        share: (N,) s.
        width: B + B′.
    """
    parts = [torch.where(at >= 0, part, 0.0) for at, part in zip(home, parts, strict=True)]
    home = [at.clamp_min(0) for at in home]
    pairs = ((0, 0), (1, 1), (0, 1))
    flat, products = zip(*((home[i] * width + home[j], parts[i] * parts[j]) for i, j in pairs), strict=True)
    table = torch.bincount(torch.cat(flat), weights=torch.cat(products), minlength=width**2).view(width, width)
    table = table + torch.triu(table, 1).T
    places, both, total = torch.cat(home), torch.cat(parts), share.square().sum()
    gap = torch.bincount(places, weights=both, minlength=width)
    mixed = torch.outer(torch.bincount(places, weights=both * share.repeat(2), minlength=width), gap)
    return (table - mixed - mixed.T + total * torch.outer(gap, gap)) / (1 - total)


def shown_p(p_value: float | None) -> str:
    """Return a p-value as text, with enough digits to see whether it is below a level; None means that there was no test."""
    if p_value is None:
        return "not tested"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3g}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests by Holm's method.

    The smallest is multiplied by m, the next by m − 1, and so on; corrected values never decrease in this order.

    Args:
        p_values: m p-values in [0, 1], one per test.

    Returns:
        The corrected p-values, in the order of ``p_values``.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    References:
        Holm 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order, corrected = np.argsort(p), np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return corrected.tolist()  # type: ignore[no-any-return]
