"""The test of two models' squared gaps, the paired bootstrap, and Holm's correction for several tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import NoIntervalError
from calibrant.statistics._resampling import count_units, quantiles, resampled_means
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.clusters import unit_sums
from calibrant.statistics.enough import need_groups
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import PairedTest, check_finite_rows

Floats: TypeAlias = NDArray[np.float64]

MARGIN = 1.0
CAUTION = 1.04  # the ratio is divided by this, because the simulation uses estimated shapes
TAIL = 0.005  # p-values below this are extrapolated by a normal tail fitted at this quantile of the draws
FEWEST_GROUPS = (
    100  # of 30 the covariance of 16 bins or more is too uncertain: with large effects 12 % of tests rejected
)
EXACT = 1e-12  # differences below this part of both errors are rounding
_TINY = 1e-300


def paired_square_test(
    a: BinnedRows,
    b: BinnedRows,
    *,
    groups: Tensor | None = None,
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> PairedTest:
    """Test whether two models have the same squared error on the same rows; the difference is θ̂_B − θ̂_A.

    Args:
        a: Rows of the first model in its bins.
        b: The same rows of the second model in its bins.
        groups: (N,) cluster of each row; whole clusters are then the independent units.
        draws: Number of simulated sets of gaps under the hypothesis, ≥ 100.
        seed: Same seed, same p-value; the models may be swapped.
        level: Coverage of the interval.

    Raises:
        NoIntervalError: If there is only one row, or fewer than 100 groups.

    Examples:
        >>> from calibrant.statistics.binned import BinnedRows
        >>> index, p = torch.zeros(200, dtype=torch.int64), torch.full((200,), 0.9)
        >>> wrong, right = torch.arange(200) % 2, torch.arange(200) % 10 > 0
        >>> test = paired_square_test(BinnedRows(index, p, wrong, 1), BinnedRows(index, p, right, 1))
        >>> test.high < 0, test.p_value < 0.05
        (True, True)

    References:
        Widmann, Lindsten & Zachariah 2019 (the estimate); Efron & Tibshirani 1993, chapter 16 (tests by the parametric bootstrap).
    """
    if groups is not None:
        need_groups(groups, what="squared gaps", least=FEWEST_GROUPS)
    if a.p.shape[0] < 2:
        raise NoIntervalError("at least two rows to compare on", "one", "compare on more")
    return _gaps(a, b, groups).test(draws=draws, seed=seed, level=level)


def _tail(drawn: Floats, value: float) -> float:
    """Return the probability of ``value`` or more; beyond the quantile 1 − ``TAIL`` by a normal tail fitted there."""
    edge = float(np.quantile(drawn, 1 - TAIL))
    if value <= edge or edge <= 0:
        return float(((drawn >= value).sum() + 1) / (len(drawn) + 1))
    return math.erfc(normal_quantile(1 - TAIL) * value / edge / math.sqrt(2)) / 2


@dataclass(frozen=True)
class _Ratio:
    """The studentised difference and its parts, for each of D sets of gaps."""

    value: Floats  # (D,) difference / error
    difference: Floats  # (D,) θ̂_B − θ̂_A
    error: Floats  # (D,) √V under the hypothesis
    first: Floats  # (D,) θ̂_A
    second: Floats  # (D,) θ̂_B
    common: Floats  # (D,) θ
    spread: Floats  # (D,) standard error of θ
    shape: Floats  # (D, M) u of both models
    linear: tuple[Floats, Floats, Floats]  # (D,) e_A, e_B, and 4 u_A'C u_B
    cross: Floats  # (D,) unbiased c


@dataclass(frozen=True)
class PairedGaps:
    """The weighted gaps of two models in their M non-empty bins, and their covariance.

    Args:
        gap: (M,) those of the first model, then those of the second.
        covariance: (M, M).
        share: (M,) fraction of rows in each bin.
        column: (M,) which column of normal numbers drives each gap: twice its bin, plus 1 for the second model.
        half: Number of non-empty bins of the first model.
    """

    gap: Floats
    covariance: Floats
    share: Floats
    column: NDArray[np.int64]
    half: int

    def test(self, *, draws: int, seed: int, level: float) -> PairedTest:
        """Test the second model's squared error minus the first's.

        Args:
            draws: Number of simulated sets of gaps under the hypothesis.
            seed: Same seed, same p-value.
            level: Coverage of the interval.
        """
        found = self._ratio(self.gap[None])
        difference = float(found.difference[0])
        size = EXACT * float((self.gap**2).sum())
        if abs(difference) <= size:
            return PairedTest(0.0, 0.0, 0.0, 1.0)
        if float(np.trace(self.covariance)) <= size:  # all rows are identical
            return PairedTest(difference, difference, difference, 0.0)
        drawn = self._ratio(self._drawn(found, draws=draws, seed=seed)).value
        value, error = float(found.value[0]) / CAUTION, float(found.error[0]) * CAUTION
        p_value = min(1.0, 2 * min(_tail(drawn, value), _tail(-drawn, -value)))
        lower, upper = (float(end) * error for end in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
        half = normal_quantile((1 + level) / 2) * self._own_error(found) * CAUTION
        low, high = difference - max(upper, half), difference - min(lower, -half)
        if p_value >= 1 - level:
            low, high = min(low, 0.0), max(high, 0.0)
        elif difference > 0:
            low = max(low, 0.0)
        else:
            high = min(high, 0.0)
        return PairedTest(difference, low, high, p_value)

    @property
    def _sides(self) -> tuple[slice, slice]:
        """Slices of the first and of the second model's bins."""
        return slice(0, self.half), slice(self.half, None)

    def _quadratic(self) -> tuple[float, float, float]:
        """Return 2 Σ C_ij² over the blocks of the covariance: first model, second model, first by second."""
        product = 2 * self.covariance**2
        one, two = self._sides
        return float(product[one, one].sum()), float(product[two, two].sum()), float(product[one, two].sum())

    def _ratio(self, gaps: Floats) -> _Ratio:
        """Return the studentised difference in each set of gaps (D, M)."""
        one, two = self._sides
        (first, shape_1), (second, shape_2) = (self._square_and_shape(gaps[:, side], side) for side in (one, two))
        shape = np.concatenate([shape_1, shape_2], axis=1)
        weighted = 4 * self.covariance
        linear = tuple(
            ((shape[:, i] @ weighted[i, j]) * shape[:, j]).sum(axis=1) for i, j in ((one, one), (two, two), (one, two))
        )
        q_1, q_2, q_12 = self._quadratic()
        cross = ((gaps[:, one] @ weighted[one, two]) * gaps[:, two]).sum(axis=1) - 2 * q_12
        common, spread = _common(first, second, linear[0], linear[1], (q_1, q_2, q_12))
        variance = q_1 + q_2 - 2 * q_12 + common * (linear[0] + linear[1]) - 2 * np.minimum(common * linear[2], cross)
        error, difference = np.sqrt(np.maximum(variance, _TINY)), second - first
        found = (linear[0], linear[1], linear[2])
        return _Ratio(difference / error, difference, error, first, second, common, spread, shape, found, cross)

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

    def _drawn(self, found: _Ratio, *, draws: int, seed: int) -> Floats:
        """Return sets of gaps (draws, M) drawn under the hypothesis: around each model's shape, with one θ for both."""
        centre = found.shape[0] * math.sqrt(float(found.common[0] + MARGIN * found.spread[0]))
        values, vectors = np.linalg.eigh(self.covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        width = int(self.column.max()) // 2 + 1
        normal = np.random.default_rng(seed).standard_normal((-(-draws // 2), 2, width))
        both = np.concatenate([normal, normal[:, ::-1]])  # so that swapped models have the same draws
        columns = both.transpose(0, 2, 1).reshape(len(both), -1)[:, self.column]
        result: Floats = centre + columns @ root
        return result

    def _own_error(self, found: _Ratio) -> float:
        """Return the standard error of the difference with each model's own θ."""
        one, two = max(float(found.first[0]), 0.0), max(float(found.second[0]), 0.0)
        e_1, e_2, e_12 = (float(part[0]) for part in found.linear)
        q_1, q_2, q_12 = self._quadratic()
        cross = min(math.sqrt(one * two) * e_12, float(found.cross[0]))
        return math.sqrt(max(q_1 + q_2 - 2 * q_12 + one * e_1 + two * e_2 - 2 * cross, 0.0))


def _common(
    first: Floats, second: Floats, linear_1: Floats, linear_2: Floats, quadratic: tuple[float, float, float]
) -> tuple[Floats, Floats]:
    """Return θ (D,), the mean of both estimates that is uncorrelated with their difference, and its standard error."""
    q_1, q_2, q_12 = quadratic
    common = np.maximum((first + second) / 2, 0.0)
    for _ in range(4):  # the weights depend on θ: fixed-point iteration, converged to one per cent
        one, two = q_1 + common * linear_1, q_2 + common * linear_2
        weight = np.clip((two - q_12) / np.maximum(one + two - 2 * q_12, _TINY), 0.0, 1.0)
        common = np.maximum(weight * first + (1 - weight) * second, 0.0)
    variance = weight**2 * one + (1 - weight) ** 2 * two + 2 * weight * (1 - weight) * q_12
    return common, np.sqrt(np.maximum(variance, 0.0))


def _gaps(a: BinnedRows, b: BinnedRows, groups: Tensor | None) -> PairedGaps:
    both, width = (a, b), a.bins + b.bins
    if groups is None:
        covariance = _over_rows(both, width)
    else:  # when whole groups are sampled
        parts = torch.cat([unit_sums(rows, groups).centred for rows in both], dim=1)
        covariance = parts.T @ parts
    sums = covariance.cpu().numpy()
    tables = [rows.table() for rows in both]
    whole = torch.cat([table.weight for table in tables]).cpu().numpy()
    gap = torch.cat([table.weight * table.gap for table in tables]).cpu().numpy()
    place = np.concatenate([2 * np.arange(a.bins), 2 * np.arange(b.bins) + 1])
    filled, share = np.flatnonzero(whole > 0), whole[whole > 0]
    half = int((filled < a.bins).sum())
    return PairedGaps(gap[filled], sums[np.ix_(filled, filled)], share, place[filled], half)


def _over_rows(both: tuple[BinnedRows, BinnedRows], width: int) -> Tensor:
    """Return the covariance (B + B′, B + B′) of both models' weighted gaps over rows.

    Row i contributes s_i (ε_i 1[i in b] − d_b), with its normalised weight s_i and ε = p − y.
    """
    home, parts = [], []
    for rows, start in zip(both, (0, both[0].bins), strict=True):
        home.append(rows.index.clamp_min(0) + start)
        parts.append(torch.where(rows.index >= 0, rows.p.double() - rows.y.double(), 0.0) * rows.shares)
    flat = [home[one] * width + home[two] for one, two in ((0, 0), (1, 1), (0, 1))]
    products = [parts[one] * parts[two] for one, two in ((0, 0), (1, 1), (0, 1))]
    table = torch.bincount(torch.cat(flat), weights=torch.cat(products), minlength=width**2).view(width, width)
    table = table + torch.triu(table, 1).T
    shares, places = both[0].shares, torch.cat(home)
    gap = torch.bincount(places, weights=torch.cat(parts), minlength=width)
    mixed = torch.outer(torch.bincount(places, weights=torch.cat(parts) * shares.repeat(2), minlength=width), gap)
    total = shares.square().sum()
    return (table - mixed - mixed.T + total * torch.outer(gap, gap)) / (1 - total)


def paired_bootstrap(
    differences: Tensor,
    *,
    groups: Tensor | None = None,
    draws: int = 1000,
) -> list[PairedTest]:
    """Test each column of row-wise differences between two models by the bootstrap, with the same resamples for all columns.

    Args:
        differences: (N, C) or (N,): a − b in every row, one column per metric.
        groups: (N,) cluster of each row; whole clusters are resampled.
        draws: Resamples, ≥ 2.

    Returns:
        One test per column: the 95 % percentile interval of the mean, and the p-value of Student's t with the standard error of
        the resampled means.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> import torch
        >>> test = paired_bootstrap(torch.tensor([0.1, 0.2, 0.0, 0.1] * 25))[0]
        >>> test.low > 0, test.p_value < 0.05
        (True, True)

    References:
        Efron & Tibshirani 1993, chapter 16.
    """
    from scipy.special import stdtr

    columns = check_finite_rows(differences, groups, name="differences")
    units, drawn = count_units(columns, groups), resampled_means(columns, groups=groups, draws=draws, seed=0)
    means = columns.double().mean(dim=0).tolist()
    # the bootstrap's standard error is too small by the factor √((units − 1) / units)
    errors = drawn.std(axis=0, ddof=1) * math.sqrt(units / (units - 1))
    tests = []
    for at, (mean, error) in enumerate(zip(means, errors.tolist(), strict=True)):
        p_value = float(2 * stdtr(units - 1, -abs(mean) / error)) if error else float(mean == 0)
        tests.append(PairedTest(mean, *quantiles(drawn[:, at], level=0.95), p_value))
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple testing: the smallest times m, the next times m − 1 …, never decreasing.

    Args:
        p_values: One per test, in [0, 1].

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    References:
        Holm 1979.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        corrected[at] = largest
    return corrected
