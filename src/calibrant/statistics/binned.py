"""Intervals for binned calibration errors, for which the bootstrap and the normal interval of the plug-in have poor coverage.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight: E d_b = δ_b, and d_b is close to normal
with standard error s_b. The error is Σ_b |δ_b|, its plug-in estimate Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|, so the
plug-in is biased upward. The corrected error solves f(m_b, s_b) = |d_b| for each bin (m_b = 0 where |d_b| ≤ s_b √(2/π), the
smallest mean of a folded normal) and sums the m_b. Where a calibrated bin has fewer than two expected events, s_b is at least what
it has if calibrated: a bin in which none was seen would have s_b near 0, and its whole probability would count as its error.

*Width.* Where |δ_b| ≫ s_b the error is locally linear in d, with variance Σ_b s_b²; nearer to 0 |d_b| varies less, so this is
an upper bound. The variance of the signed sum takes its place where it is larger, and z is Student's quantile. A bin in which all
decisions are correct (or wrong) has an estimated variance of 0. For the width only, its rate is therefore
(y_b + z²/2 · w_b) / (n_b + z² w_b) with the bin's fraction of rows w_b, as in Wilson's interval.

*Ends.* low = corrected − excess − z √Σ s_b², but 0 unless the plug-in exceeds the (1 + level)/2 quantile of its null distribution,
that of a calibrated model, and at most ``STEEPEST`` times what it exceeds it by: at δ = 0, where the error is not differentiable, this
test has coverage (1 + level)/2 by construction. The excess is the mean by which m_b ≥ 0 is too high where δ_b is near 0, summed over
bins as if the m_b were the truth. high = corrected + LIFT · (plug-in − corrected) + z √Σ s_b², and 1 at most: the correction is too
large where |δ_b| ≈ s_b, and LIFT, chosen by simulation, reverses a part of it. Where all δ_b have one sign Σ_b |δ_b| is |Σ_b δ_b|,
the error of one bin of all rows: high is at least what it is for that, and at least the plug-in. A larger error has a larger variance
where a_b nears 1/2, by Σ_b v_b² |1 − 2 a_b| for each unit, so that x = z √(Σ s_b² + x Σ v_b² |1 − 2 a_b|) is added if it is more, as
in Wilson's interval: over the bins that hold two events and two rows without; the others have their variance if calibrated.

*Many bins.* The error of the correction is proportional to the correction, a sum over bins, while the half-width grows only
with the root of the number of bins. Where the noise is spread over more than about 25 bins and the correction exceeds half of the
half-width, or the expected gaps of bins with fewer than two expected events do, nothing is corrected: with the errors e_b of the d_b
the triangle inequality gives Σ |d_b| − Σ |e_b| ≤ Σ |δ_b|, and E Σ |d_b| ≥ Σ |δ_b|. So low is the plug-in minus the (1 + level)/2
quantile of the noise, and high the plug-in + z √Σ s_b².

*Groups.* A group's effect moves all its bins in one direction: with S (G, B) of ``Design.sums`` the variance of the signed sum
Σ_b sign_b d_b is Σ_g (Σ_b sign_b S_gb)². The bins' gaps under calibration are drawn jointly as ξᵀS with independent standard normal
ξ_g (a multiplier bootstrap), divided by √(χ²_ν / ν), since S is estimated from ν + 1 groups.

*If calibrated*, sums of absolute gaps a Σ_b |D_b| with D_b = Σ_{i in b} w_i (p_i − y_i) are close to normal with a skewness, over
cells that are close to independent. The outcomes of a cell are a binomial count X of n trials of probability q in units of u, with its
mean and variance: u = Σ w² p / Σ w p, n q = Σ w p / u, n q (1 − q) = Σ w² p (1 − p) / u². De Moivre's mean absolute deviation is

    E |X − n q| = 2 ν (1 − q) C(n, ν) q^ν (1 − q)^(n − ν),    ν = ⌊n q⌋ + 1,

and E |X − n q|³ ≈ v √(8 v / π + 1) with v = n q (1 − q), which is exact for rare events and for normal ones. Mean, variance and third
moment of the sum give its quantiles (Cornish & Fisher). Nothing is drawn, and the cost does not depend on the number of rows: the 97.5 %
limits lie within 2 % of those of many draws from 500 rows and 3 classes to a million rows, within 1 % for the ECE. Where few events
are expected in all cells together, the skewness is larger than that of folded normals, and the limits are quantiles of drawn counts.
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
# The m_b scatter, so that the excess is 0.3 s_b on average where the δ_b are 0, and should be 0.5: it counts so many times. A part of
# it, by half-widths, is borne, since such gaps scatter less than the width allows for; with 0.25 two of 132 populations were missed
# in 8 and 10 %, with 0 intervals were up to 5 % longer.
AGAIN, BORNE = 1.6, 0.1
# Largest slope of the lower end beyond the gate. With a jump there, a model that is off by little would be missed as often as its
# plug-in exceeds the gate; with slope 1 the end would be valid by the triangle inequality alone, and low where a model is far off.
STEEPEST = 3.0
MOST_BINS = 25.0  # effective number of bins in the noise, (Σ s)² / Σ s², up to which the correction may have any size
MOST_CHANCE = 0.5  # with more bins: largest correction, or expected gap of sparse bins, as a fraction of the half-width
FEW_EVENTS = 2.0  # a bin with a smaller n a (1 − a) is sparse: its gap is far from normal
# The signs are estimated from the same rows, so that a group's effects partly cancel in the signed sum: in simulation its
# standard error is too small by about this factor where effects are large (7.8 to 8.2 % of intervals missed).
SIGNS = 1.05
# A folded normal has skewness 0.995, a sum of independent ones less. For 1 to 2,000 rows of confidences from 0.5 to 0.9999, the
# expansion's limits are within 5 % or one row of simulated ones up to this skewness; from about 4, they can exclude the mean.
MOST_SKEWED = 1.25
_DRAWS = 10_000  # sets of counts, where the skewness is larger
_RATIOS = np.linspace(0, 6, 6001)  # beyond 6 standard errors a fold adds less than 1e-9
_STEPS = np.linspace(0, 6, 121)


def calibrated_table(table: BinTable, *, draws: int, seed: int) -> BinTable:
    """Return the table with outcome sums (draws, B) of calibrated models: binomial counts, or for groups gaps ξᵀS / √(χ²_ν / ν)."""
    rng = np.random.default_rng(seed)
    if table.groups is None:
        square, mean, noise = (one.cpu().numpy() for one in (table.squares[1], table.sum_p, table.noise))
        trials, rate, unit = _matching_binomials(mean, noise, square)
        counts = rng.binomial(trials, rate, size=(draws, len(rate)))
        return replace(table, sum_y=torch.from_numpy(counts * unit).to(table.sum_p))
    sums = table.groups.cpu()
    # ξᵀS is normal with covariance SᵀS, and so is a normal of as many numbers as bins times the root of that
    if sums.shape[0] > sums.shape[1]:
        values, vectors = torch.linalg.eigh(sums.T @ sums)
        # a root makes 1e-16 of the largest 1e-8, so that what is 0 but for rounding is 0; the symmetric one rounding moves little
        sums = vectors * torch.where(values > 1e-10 * values[-1], values, 0.0).sqrt() @ vectors.T
    normal = torch.from_numpy(rng.standard_normal((draws, len(sums))))
    scale = torch.from_numpy(np.sqrt(rng.chisquare(table.degrees, size=(draws, 1)) / table.degrees))
    return replace(table, sum_y=table.sum_p - (normal @ sums / scale).to(table.sum_p) * table.total)


def _grouped_error(signed: Floats, sums: Floats, degrees: float, *, least: float, level: float) -> float:
    """Return the standard error of Σ_b |d_b|, times the ratio of the quantiles of Student's t and the normal.

    It is the largest of four: that of the signed sum, that with the signs of doubtful bins that make it largest, that of
    independent bins, and ``least``, that of independent rows (which is > 0 even if nearly all decisions are correct).
    """
    # Where groups' effects are large, the gaps of a sample can all be near 0 with mixed signs though all of the population's
    # are of one sign, and the sum over mixed signs hardly varies: doubtful bins take the sign that goes with the clear ones.
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
    """Return the interval of a binned error: see the docstring of this module.

    Args:
        table: Counts and sums (B,).
        gate: The (1 + level) / 2 quantile of the plug-in error, ``scale`` included, of a calibrated model with the same probabilities
            and bins: up to it calibration is not rejected, and the lower end is 0.
        level: Nominal coverage.
        error: Standard error of the sum over bins, of independent bins; None takes that of the table's rows, or their groups.
        scale: The error is ``scale`` times the sum over bins (1/K for the mean over K classes).

    Returns:
        Interval: ``estimate`` is the plug-in; the true value is that of the population in these same bins.

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
    # Row i contributes v_i (x_i 1[i in b] − d_b) with x = p − y and its part v_i of the mass, so s_b² = Σ v² x² − 2 d_b Σ v² x + d_b² Σ v²:
    # no model of how outcomes depend on probabilities or weights is needed.
    linear, square = p - y, pp - 2 * py + y  # Σ v² x and Σ v² x², of outcomes 0 and 1
    seen = np.maximum(square - 2 * signed * linear + signed**2 * part.sum(), 0)
    calibrated = np.maximum(p - pp, 0)
    if table.groups is None or error is not None:
        # a bin's expected events, n p (1 − p) of as many rows of equal weight as its own are worth, are few
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
        # the outcomes of a miscalibrated model may vary more than if calibrated: the noise grows as the bins' standard errors do
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
        total = abs(float(signed.sum()))  # of one bin of all rows, in which gaps of both signs cancel
        whole = (1 - LIFT) * float(unfold(total, math.sqrt(variance))) + LIFT * total
        high = max(max(plug_in - (1 - LIFT) * correction, whole) + above, plug_in)
        method = "folded-normal inversion, null-test gate"
    return Interval(plug_in * scale, low * scale, min(high * scale, 1.0), level, method)


def gap_band(table: BinTable, factor: float, *, level: float) -> Interval:
    """Return the band of ``factor`` · Σ_b |Σ_{i in b} w_i (p_i − y_i)| of independent rows if calibrated; see this module.

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
    deviation = np.minimum(deviation, np.sqrt(v))  # of trials that are not whole the formula is approximate
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
        # the limit is a possible value of the error, which must not exceed it by rounding
        low, high = min(low, centre), min(max(high * (1 + 1e-9), centre), largest)
        return Interval(centre, low, high, level, f"binomials of few events, {_DRAWS} draws")
    z = normal_quantile((1 + level) / 2)
    # of few rows the expansion can lie beyond what is possible
    low, high = (min(max(centre + error * (x + skew * (z * z - 1) / 6), 0.0), largest) for x in (-z, z))
    return Interval(centre, low, high, level, "mean absolute deviations of binomials, Cornish–Fisher")


def _matching_binomials(mean: Floats, noise: Floats, square: Floats) -> tuple[Any, Floats, Floats]:
    """Return whole trials, probability and unit (B,) of the binomials of mean Σ w p and variance Σ w² p (1 − p), with Σ w² p."""
    unit = np.divide(square, mean, out=np.ones_like(mean), where=mean > 0)
    expected = mean / unit
    left = expected - noise / unit**2
    trials = np.where(left > 0, np.rint(expected**2 / np.where(left > 0, left, 1)), 0)  # n = m² / (m − v)
    trials = np.maximum(trials, np.ceil(expected - 1e-9)).astype(np.int64)
    return trials, np.clip(expected / np.maximum(trials, 1), 0.0, 1.0), unit


def unfold(folded: Floats | float, spread: Floats | float) -> Floats:
    """Return the m ≥ 0 for which |N(m, spread²)| has the mean ``folded``, or 0 if the mean is larger for every m."""
    # E|N(m, s²)| / s = √(2/π) exp(−r²/2) + r erf(r/√2) with r = m/s increases in r, so it has an inverse, here by linear
    # interpolation in a table; beyond the table's end it equals r to 1e-9. Values below √(2/π), the mean at m = 0, have no
    # inverse: the gap is no larger than that expected if calibrated, and 0 is returned.
    ratio = folded / np.maximum(spread, 1e-300)
    inverse = np.where(ratio > _RATIOS[-1], ratio, np.interp(ratio, _folded_means(), _RATIOS))
    return np.where(np.greater(spread, 0), inverse * spread, folded)


@cache
def _folded_means() -> Floats:
    r = torch.from_numpy(_RATIOS)
    found: Floats = (math.sqrt(2 / math.pi) * (-r.square() / 2).exp() + r * (r / math.sqrt(2)).erf()).numpy()
    return found


@cache
def _unfolded_bias() -> Floats:
    """Return E unfold(|N(r, 1)|, 1) − r at r = 0, .05 … 6, where positive: no unfolded gap is negative, so small ones are too high."""
    # on a grid of step 1/400 on which r + noise lies too, for noise from −8 to 8
    unfolded = unfold(np.abs(np.linspace(-8, 14, 8801)), 1.0)
    chance = np.exp(-(np.linspace(-8, 8, 6401) ** 2) / 2)
    means: Floats = np.lib.stride_tricks.sliding_window_view(unfolded, 6401)[::20] @ chance / chance.sum()
    return np.maximum(means - _STEPS, 0)


def consistency_bars(table: BinTable, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return for each bin the limits within which a calibrated model's outcome frequency lies with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability in (0, 1) for each bin, not for all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. Quantiles of the
            binomial with that mean and the effective sample size.

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
        found = np.nan_to_num(np.ceil(bdtrik(q, n, p)))  # NaN for p = 0
        less = np.maximum(found - 1, 0)  # bdtrik is an inverse up to rounding, which may lead beyond a whole number
        return torch.from_numpy(np.where(bdtr(less, n, p) >= q, less, found)) / count  # NaN in an empty bin

    return quantile(tail), quantile(1 - tail)
