"""Intervals for binned calibration errors, where bootstrap and normal intervals have poor coverage.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight. Its expectation is δ_b, and it is
close to normal with standard error s_b. The calibration error is Σ_b |δ_b|, and its plug-in estimate is Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|, so the
plug-in is biased upward. The corrected error is the sum of the m_b that solve f(m_b, s_b) = |d_b| for each bin (m_b = 0
where |d_b| ≤ s_b √(2/π), the smallest mean of a folded normal). In a bin for which a calibrated model expects fewer than
two events, s_b is at least the standard error of a calibrated model. Otherwise, a bin in which no event was seen would
have an s_b near 0, and its whole probability would count as error.

*Width.* Where |δ_b| ≫ s_b, the error is locally linear in d, with variance Σ_b s_b². Where |δ_b| is nearer to 0, |d_b|
varies less, so this variance is an upper bound. It is replaced with the variance of the signed sum where that is larger,
and z is Student's quantile. A bin in which all decisions are correct (or wrong) has an estimated variance of 0. For the
width only, its rate is therefore (y_b + z²/2 · w_b) / (n_b + z² w_b), where w_b is the bin's fraction of rows, as in
Wilson's interval.

*Ends.* The lower end is low = corrected − excess − z √Σ s_b². It is 0 unless the plug-in exceeds the (1 + level)/2
quantile of its null distribution (its distribution for a calibrated model), and it is at most ``STEEPEST`` times the
amount by which the plug-in exceeds this quantile. At δ = 0, where the error is not differentiable, this test has coverage
(1 + level)/2 by construction. The excess is the mean amount by which m_b ≥ 0 is too high where δ_b is near 0, summed over
bins as if the m_b were the truth. The upper end is high = corrected + LIFT · (plug-in − corrected) + z √Σ s_b², and at
most 1. The correction is too large where |δ_b| ≈ s_b; LIFT, chosen by simulation, reverses part of it. Where all δ_b have
one sign, Σ_b |δ_b| is |Σ_b δ_b|, the error of a single bin with all rows: high is at least the upper end for this single
bin, and at least the plug-in. A larger error has a larger variance where a_b nears 1/2, by Σ_b v_b² |1 − 2 a_b| for each
unit of error. Therefore x = z √(Σ s_b² + x Σ v_b² |1 − 2 a_b|) is added instead if it is larger, as in Wilson's interval.
The sum is over the bins that contain at least two events and two rows without an event; the other bins have the variance
of a calibrated model.

*Many bins.* The error of the correction is proportional to the correction, a sum over bins, while the half-width grows
only with the square root of the number of bins. Suppose that the noise is spread over more than about 25 bins, and that
the correction, or the sum of the expected gaps of bins with fewer than two expected events, exceeds half of the
half-width. Then nothing is corrected. With the errors e_b of the d_b, the triangle inequality gives
Σ |d_b| − Σ |e_b| ≤ Σ |δ_b|, and E Σ |d_b| ≥ Σ |δ_b|. Therefore low is the plug-in minus the (1 + level)/2 quantile of the
noise, and high is the plug-in + z √Σ s_b².

*Groups.* A group's effect moves all its bins in one direction. With S (G, B) from ``Design.sums``, the variance of the
signed sum Σ_b sign_b d_b is Σ_g (Σ_b sign_b S_gb)². The bins' gaps under calibration are drawn jointly as ξᵀS with
independent standard normal ξ_g (a multiplier bootstrap), divided by √(χ²_ν / ν), since S is estimated from ν + 1 groups.

*If calibrated*, a sum of absolute gaps a Σ_b |D_b| with D_b = Σ_{i in b} w_i (p_i − y_i) is close to a normal variable
with some skewness, and its cells are close to independent. The outcomes of a cell are treated as u times a binomial count
X of n trials with probability q that has the same mean and variance: u = Σ w² p / Σ w p, n q = Σ w p / u,
n q (1 − q) = Σ w² p (1 − p) / u². De Moivre's mean absolute deviation is

    E |X − n q| = 2 ν (1 − q) C(n, ν) q^ν (1 − q)^(n − ν),    ν = ⌊n q⌋ + 1,

and E |X − n q|³ ≈ v √(8 v / π + 1) with v = n q (1 − q), which is exact for rare events and in the normal limit. The mean,
variance and third moment of the sum give its quantiles (Cornish & Fisher). No random numbers are drawn, and the cost does
not depend on the number of rows. From 500 rows and 3 classes to a million rows, the 97.5 % limits lie within 2 % of those
obtained from many draws, and within 1 % for the ECE. Where few events are expected in all cells together, the skewness
exceeds that of folded normals, and the limits are quantiles of drawn counts.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import BinTable
from calibrant.statistics.means import Floats, Interval, normal_quantile, student_quantile

LIFT = 0.15
# Where the δ_b are 0, the excess is 0.3 s_b on average, because the m_b scatter, and should be 0.5 s_b: it is multiplied by AGAIN.
# BORNE half-widths of it are ignored, since such gaps scatter less than the width allows for. With BORNE = 0.25, two of 132
# populations were missed in 8 and 10 % of samples; with 0, intervals were up to 5 % longer.
AGAIN, BORNE = 1.6, 0.1
# Largest slope of the lower end beyond the gate. If the end jumped there, a slightly miscalibrated model would be missed as often as
# its plug-in exceeds the gate. With slope 1 the triangle inequality alone would make the end valid, but too low for a model far off.
STEEPEST = 3.0
MOST_BINS = 25.0  # effective number of bins in the noise, (Σ s)² / Σ s², up to which the correction may have any size
MOST_CHANCE = 0.5  # with more bins: largest correction, or expected gap of sparse bins, as a fraction of the half-width
FEW_EVENTS = 2.0  # a bin with a smaller n a (1 − a) is sparse: its gap is far from normal
# The signs are estimated from the same rows, so a group's effects partly cancel in the signed sum. In simulations with large
# effects, its standard error is too small by about this factor (7.8 to 8.2 % of intervals missed).
SIGNS = 1.05
# A folded normal has skewness 0.995, and a sum of independent ones has less. For 1 to 2,000 rows with confidences from 0.5 to
# 0.9999, the limits of the expansion are within 5 % or one row of simulated limits up to this skewness; from a skewness of about 4,
# they can exclude the mean.
MOST_SKEWED = 1.25
_DRAWS = 10_000  # number of drawn sets of counts, used where the skewness is larger
_RATIOS = np.linspace(0, 6, 6001)  # beyond 6 standard errors, folding adds less than 1e-9 to the mean
_STEPS = np.linspace(0, 6, 121)


def calibrated_table(table: BinTable, *, draws: int, seed: int) -> BinTable:
    """Return the table with its outcome sums replaced by (draws, B) simulated sums of calibrated models.

    The sums are binomial counts for independent rows, and come from gaps ξᵀS / √(χ²_ν / ν) for groups.
    """
    rng = np.random.default_rng(seed)
    if table.groups is None:
        square, mean, noise = (one.cpu().numpy() for one in (table.squares[1], table.sum_p, table.noise))
        trials, rate, unit = _matching_binomials(mean, noise, square)
        counts = rng.binomial(trials, rate, size=(draws, len(rate)))
        return replace(table, sum_y=torch.from_numpy(counts * unit).to(table.sum_p))
    sums = table.groups.cpu()
    # ξᵀS is normal with covariance SᵀS, as is a vector of B standard normals times the square root of SᵀS
    if sums.shape[0] > sums.shape[1]:
        values, vectors = torch.linalg.eigh(sums.T @ sums)
        # a square root turns a rounding error of 1e-16 into 1e-8, so tiny eigenvalues are set to 0; the symmetric root is robust
        sums = vectors * torch.where(values > 1e-10 * values[-1], values, 0.0).sqrt() @ vectors.T
    normal = torch.from_numpy(rng.standard_normal((draws, len(sums))))
    scale = torch.from_numpy(np.sqrt(rng.chisquare(table.degrees, size=(draws, 1)) / table.degrees))
    return replace(table, sum_y=table.sum_p - (normal @ sums / scale).to(table.sum_p) * table.total)


def _grouped_error(signed: Floats, sums: Floats, degrees: float, *, least: float, level: float) -> float:
    """Return the standard error of Σ_b |d_b|, times the ratio of the Student and normal quantiles.

    The standard error is the largest of four: of the signed sum; of the signed sum if uncertain bins have the signs that
    make it largest; of independent bins; and ``least``, of independent rows (which is > 0 even if nearly all decisions
    are correct).
    """
    # Where groups' effects are large, the gaps of a sample can all be near 0 with mixed signs although all gaps of the population
    # have one sign, and the sum over mixed signs hardly varies. Uncertain bins therefore take the sign that adds to the clear ones.
    sign, squares = np.sign(signed), (sums**2).sum(axis=0)
    clear = np.abs(signed) > 2 * np.sqrt(squares)
    known = np.where(clear, sign, 0.0) if clear.any() else np.ones_like(signed)
    worst = np.where(clear, sign, np.sign(sums.T @ (sums @ known)))
    largest = max(float(((sums @ one) ** 2).sum()) for one in (sign, worst))
    probability = (1 + level) / 2
    wider = student_quantile(probability, degrees) / normal_quantile(probability)
    return SIGNS * max(math.sqrt(largest), math.sqrt(squares.sum()), least) * wider


def error_interval(
    table: BinTable, gate: float, *, level: float = 0.95, error: float | None = None, scale: float = 1.0
) -> Interval:
    """Return the confidence interval of a binned calibration error, as derived in the module's docstring.

    Args:
        table: Counts and sums (B,).
        gate: The (1 + level) / 2 quantile of the plug-in error, ``scale`` included, for a calibrated model with the same
            probabilities and bins. An error up to this value does not reject calibration, and the lower end is then 0.
        level: Nominal coverage.
        error: Standard error of the sum over bins, for independent bins. If None, it is computed from the table's rows,
            or from their groups.
        scale: Factor between the sum over bins and the error (1/K for the mean over K classes).

    Returns:
        Interval: The ``estimate`` is the plug-in error. The interval is for the error of the population in the same bins.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> table = EqualWidth(15).table(torch.full((1000,), 0.8), torch.arange(1000) % 10 < 7)
        >>> print(error_interval(table, 0.02))
        0.1 [0.07154, 0.1292]
    """
    z, gate = normal_quantile((1 + level) / 2), gate / scale
    columns = torch.stack([table.count.double(), table.sum_p, table.sum_y, *table.squares]).cpu().numpy()
    count, sum_p, sum_y = columns[:3]
    part, p, y, pp, py = columns[3:] / table.total**2
    weight = count / table.total
    mean, rate = (np.clip(sums / np.where(count > 0, count, 1), 0, 1) for sums in (sum_p, sum_y))
    rows = weight**2 / np.where(part > 0, part, 1)  # effective number of each bin
    signed = (sum_p - sum_y) / table.total  # d_b
    plug_in = float(np.abs(signed).sum())
    # Row i contributes v_i (x_i 1[i in b] − d_b), where x = p − y and v_i is its share of the mass. Therefore
    # s_b² = Σ v² x² − 2 d_b Σ v² x + d_b² Σ v², without a model of how outcomes depend on probabilities or weights.
    linear, square = p - y, pp - 2 * py + y  # Σ v² x and Σ v² x², for outcomes 0 and 1
    seen = np.maximum(square - 2 * signed * linear + signed**2 * part.sum(), 0)
    calibrated = np.maximum(p - pp, 0)
    if table.groups is None or error is not None:
        # where few events n p (1 − p) are expected, with the bin's effective number of rows n
        few = rows * calibrated < FEW_EVENTS * part
        spread = np.sqrt(np.where(few, np.maximum(seen, calibrated), seen))
    else:
        spread = np.sqrt((table.groups.cpu().numpy() ** 2).sum(axis=0))
    if error is None:
        added = z * z * weight  # pseudo-rows, half of them correct
        wider = (rate * rows + added / 2) / np.maximum(rows + added, 1e-300)
        apart = np.maximum(seen + part * (wider * (1 - wider) - rate * (1 - rate)), 0).sum()
        together = (square - 2 * plug_in * np.sign(signed) * linear).sum() + plug_in**2 * part.sum()
        ratio = student_quantile((1 + level) / 2, max(1 / float(part.sum()) - 1, 1)) / z
        error = math.sqrt(max(float(apart), float(together))) * ratio
        if table.groups is not None:
            error = _grouped_error(signed, table.groups.cpu().numpy(), table.degrees, least=error, level=level)
    half, each = z * error, unfold(np.abs(signed), spread)
    correction = plug_in - float(each.sum())

    widest = np.maximum(rate * (1 - rate), mean * (1 - mean))
    noise = np.sqrt(part * widest)
    sparse = float(noise[rows * widest < FEW_EVENTS].sum()) * math.sqrt(2 / math.pi)
    many = float(noise.sum()) ** 2 > MOST_BINS * float((noise**2).sum())
    if many and max(correction, sparse) > MOST_CHANCE * half:
        # outcomes may vary more than those of a calibrated model, so the noise is scaled with the bins' standard errors
        more = float(np.sqrt(part * rate * (1 - rate)).sum()) / max(float(np.sqrt(calibrated).sum()), 1e-300)
        low, high = max(0.0, plug_in - gate * max(more, 1.0)), plug_in + half
        method = "plug-in less the noise of its bins"
    else:
        variance = float((spread**2).sum())
        excess = float((np.interp(each / np.maximum(spread, 1e-300), _STEPS, _unfolded_bias()) * spread).sum())
        least = plug_in - correction - max(AGAIN * excess - BORNE * half, 0.0) - half
        low = max(0.0, min(least, STEEPEST * (plug_in - gate)))
        clear = rows * np.minimum(rate, 1 - rate) > FEW_EVENTS - 1e-9  # against rounding
        rise = z * z * float((part * np.abs(1 - 2 * rate))[clear].sum()) / 2
        above = max(half, rise + math.sqrt(rise * rise + z * z * variance))
        total = abs(float(signed.sum()))  # gap of a single bin with all rows, in which gaps of both signs cancel
        whole = (1 - LIFT) * float(unfold(total, math.sqrt(variance))) + LIFT * total
        high = max(max(plug_in - (1 - LIFT) * correction, whole) + above, plug_in)
        method = "folded-normal inversion, null-test gate"
    return Interval(plug_in * scale, low * scale, min(high * scale, 1.0), level, method)


def gap_band(table: BinTable, factor: float, *, level: float) -> Interval:
    """Return the central range of ``factor`` · Σ_b |Σ_{i in b} w_i (p_i − y_i)| for a calibrated model.

    The rows are independent. The module's docstring explains the method.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> one = EqualWidth(1).table(torch.full((100,), 0.8), torch.ones(100))
        >>> band = gap_band(one, 0.01, level=0.95)
        >>> round(band.estimate, 4), round(band.high, 3)
        (0.0318, 0.091)
    """
    columns = torch.stack([table.count.double(), table.sum_p, table.squares[1], table.squares[3]]).cpu().numpy()
    count, mean, square, fourth = columns[
        :, (columns[2] > columns[3]) & (columns[1] > 0)
    ]  # elsewhere outcomes are certain
    if not len(count):
        return Interval(0.0, 0.0, 0.0, level, "no uncertain outcome")
    unit = square / mean
    expected, v = mean / unit, (square - fourth) / unit**2
    miss = np.clip(v / expected, 1e-300, 1.0)  # 1 − q
    hit = np.clip(1 - miss, 1e-300, 1.0)
    n, nu = expected / hit, np.floor(expected) + 1
    whole, hits, misses = (torch.from_numpy(x + 1).lgamma().numpy() for x in (n, nu, np.maximum(n - nu, 1e-3 - 1)))
    log_choose = whole - hits - misses
    deviation = 2 * nu * miss * np.exp(log_choose + nu * np.log(hit) + (n - nu) * np.log(miss))
    deviation = np.minimum(deviation, np.sqrt(v))  # the formula is approximate if the number of trials is not whole
    third = v * np.sqrt(8 / math.pi * v + 1) - 3 * deviation * v + 2 * deviation**3
    scale, largest = factor * unit, factor * float(np.maximum(mean, count - mean).sum())
    centre, error = float(scale @ deviation), math.sqrt(max(float(scale**2 @ (v - deviation**2)), 0.0))
    skew = float(scale**3 @ third) / error**3 if error else 0.0
    if abs(skew) > MOST_SKEWED:
        rng, total = np.random.default_rng(0), np.zeros(_DRAWS)
        for trials, rate, *cell in zip(
            *_matching_binomials(mean, square - fourth, square)[:2], scale, expected, strict=True
        ):
            total += cell[0] * np.abs(rng.binomial(trials, rate, size=_DRAWS) - cell[1])
        low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2]).tolist()
        # the limit is a possible value of the error, so rounding must not make the error exceed the limit
        low, high = min(low, centre), min(max(high * (1 + 1e-9), centre), largest)
        return Interval(centre, low, high, level, f"binomials of few events, {_DRAWS} draws")
    z = normal_quantile((1 + level) / 2)
    # for few rows, the expansion can lie beyond the possible values
    low, high = (min(max(centre + error * (x + skew * (z * z - 1) / 6), 0.0), largest) for x in (-z, z))
    return Interval(centre, low, high, level, "mean absolute deviations of binomials, Cornish–Fisher")


def _matching_binomials(mean: Floats, noise: Floats, square: Floats) -> tuple[Any, Floats, Floats]:
    """Return the number of trials, probability and unit (B,) of the binomials that match the bins' moments.

    Args:
        mean: (B,) Σ w p.
        noise: (B,) Σ w² p (1 − p), the variance.
        square: (B,) Σ w² p.
    """
    unit = np.divide(square, mean, out=np.ones_like(mean), where=mean > 0)
    expected = mean / unit
    left = expected - noise / unit**2
    trials = np.where(left > 0, np.rint(expected**2 / np.where(left > 0, left, 1)), 0)  # n = m² / (m − v)
    trials = np.maximum(trials, np.ceil(expected - 1e-9)).astype(np.int64)
    return trials, np.clip(expected / np.maximum(trials, 1), 0.0, 1.0), unit


def unfold(folded: Floats | float, spread: Floats | float) -> Floats:
    """Return the m ≥ 0 for which |N(m, spread²)| has mean ``folded``, or 0 if no m gives such a small mean."""
    # With r = m/s, E|N(m, s²)| / s = √(2/π) exp(−r²/2) + r erf(r/√2) increases in r. Its inverse is found by linear interpolation
    # in a table; beyond the end of the table it equals r to 1e-9. Values below √(2/π), the mean at m = 0, have no inverse: such a
    # gap is no larger than expected if calibrated, and 0 is returned.
    ratio = folded / np.maximum(spread, 1e-300)
    inverse = np.where(ratio > _RATIOS[-1], ratio, np.interp(ratio, _folded_means(), _RATIOS))
    return np.where(np.greater(spread, 0), inverse * spread, folded)


@cache
def _folded_means() -> Floats:
    """Return the means of |N(r, 1)| for the r in ``_RATIOS``."""
    r = torch.from_numpy(_RATIOS)
    found: Floats = (math.sqrt(2 / math.pi) * (-r.square() / 2).exp() + r * (r / math.sqrt(2)).erf()).numpy()
    return found


@cache
def _unfolded_bias() -> Floats:
    """Return the upward bias of unfolded gaps, max(E unfold(|N(r, 1)|, 1) − r, 0), at r = 0, .05 … 6.

    Unfolded gaps are never negative, so small ones are too high on average.
    """
    # on a grid of step 1/400 that also contains r + noise, for noise from −8 to 8
    unfolded = unfold(np.abs(np.linspace(-8, 14, 8801)), 1.0)
    chance = np.exp(-(np.linspace(-8, 8, 6401) ** 2) / 2)
    means: Floats = np.lib.stride_tricks.sliding_window_view(unfolded, 6401)[::20] @ chance / chance.sum()
    return np.maximum(means - _STEPS, 0)


def consistency_bars(table: BinTable, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return limits for each bin that contain a calibrated model's outcome frequency with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability in (0, 1) for each bin, not for all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. They are quantiles of
            the binomial with this mean and the effective sample size.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> low, high = consistency_bars(EqualWidth(1).table(torch.full((100,), 0.8), torch.ones(100)))
        >>> low.item(), high.item()
        (0.72, 0.88)

    References:
        Bröcker & Smith 2007.
    """
    from scipy.special import bdtr, bdtrik

    count, mean = table.effective.cpu(), table.mean.cpu()
    if table.weighted:
        count = torch.where(count > 0, count.round().clamp_min(1), 0)
    tail = (1 - level) / 2

    def quantile(q: float) -> Tensor:
        n, p = count.long().numpy(), mean.numpy()
        found = np.nan_to_num(np.ceil(bdtrik(q, n, p)))  # bdtrik is NaN for p = 0
        less = np.maximum(found - 1, 0)  # rounding in bdtrik may lead just beyond a whole number
        return torch.from_numpy(np.where(bdtr(less, n, p) >= q, less, found)) / count  # NaN in an empty bin

    return quantile(tail), quantile(1 - tail)
