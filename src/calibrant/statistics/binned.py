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

*Squares* are differentiable at calibration, unlike Σ_b w_b |δ_b|: ``squared_error`` is Σ_b w_b δ_b², the gaps' mean square,
less its sampling bias, so that it can be negative.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import BinTable, GroupedGaps
from calibrant.statistics.means import Interval, normal_quantile, student_quantile

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
_RATIOS = torch.linspace(0, 6, 6001, dtype=torch.float64)  # beyond 6 standard errors a fold adds less than 1e-9
_BLOCK = 1 << 22  # normal numbers drawn at once


@dataclass(frozen=True)
class BinnedRows:
    """Each row's bin, probability, outcome and weight.

    Args:
        index: (N,) bin of each row, −1 if in no bin.
        p: (N,) probability.
        y: (N,) outcome.
        bins: B.
        weight: (N,) float64, or None for 1 each.
    """

    index: Tensor
    p: Tensor
    y: Tensor
    bins: int
    weight: Tensor | None = None

    def table(self) -> BinTable:
        """Return the bin table."""
        return BinTable.from_pairs(self.index, self.p, self.y, bins=self.bins, weight=self.weight)

    @property
    def residual(self) -> Tensor:
        """(N,) float64 p − y."""
        return self.p.double() - self.y.double()


def calibrated_groups(table: BinTable, groups: GroupedGaps, *, draws: int, seed: int) -> BinTable:
    """Return the table with outcome sums (draws, B) of calibrated models: gaps ξᵀS / √(χ²_ν / ν)."""
    home, rng = groups.sums.cpu(), np.random.default_rng(seed)
    # ξᵀS is normal with covariance SᵀS, and so is a normal of as many numbers as bins times the root of that
    if home.shape[0] > home.shape[1]:
        values, vectors = torch.linalg.eigh(home.T @ home)
        # a root makes 1e-16 of the largest 1e-8, so that what is 0 but for rounding is 0; the symmetric one rounding moves little
        home = vectors * torch.where(values > 1e-10 * values[-1], values, 0.0).sqrt() @ vectors.T
    count, gaps = home.shape[0], []
    for start in range(0, draws, step := max(1, _BLOCK // count)):
        size = min(step, draws - start)
        normal = torch.from_numpy(rng.standard_normal((size, count)))
        root = torch.from_numpy(np.sqrt(rng.chisquare(groups.degrees, size=(size, 1)) / groups.degrees))
        gaps.append(normal @ home / root)
    drawn = torch.cat(gaps).to(table.sum_p.device)
    return replace(table, sum_y=table.sum_p - drawn * table.total)


def _grouped_error(table: BinTable, groups: GroupedGaps, *, least: float, level: float) -> float:
    """Return the standard error of Σ_b weight_b |gap_b|, times the ratio of the quantiles of Student's t and the normal.

    It is the largest of four: that of the signed sum, that with the signs of doubtful bins that make it largest, that of
    independent bins, and ``least``, that of independent rows (which is > 0 even if nearly all decisions are correct).
    """
    sums, gap = groups.sums, table.weight * table.gap
    # Where groups' effects are large, the gaps of a sample can all be near 0 with mixed signs though all of the population's
    # are of one sign, and the sum over mixed signs hardly varies: doubtful bins take the sign that goes with the clear ones.
    clear = gap.abs() > 2 * sums.square().sum(dim=0).sqrt()
    known = torch.where(clear, torch.sign(gap), 0.0) if bool(clear.any()) else torch.ones_like(gap)
    worst = torch.where(clear, torch.sign(gap), torch.sign(sums.T @ (sums @ known)))
    signed = max(float((sums @ sign).square().sum()) for sign in (torch.sign(gap), worst)) ** 0.5
    probability = (1 + level) / 2
    wider = student_quantile(probability, groups.degrees) / normal_quantile(probability)
    return float(SIGNS * max(signed, float(sums.square().sum().sqrt()), least) * wider)


def error_interval(
    table: BinTable,
    gate: float,
    *,
    level: float = 0.95,
    error: float | None = None,
    scale: float = 1.0,
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
    z, gate, mass = normal_quantile((1 + level) / 2), gate / scale, table.mass
    groups = table.groups if error is None else None
    weight, rate, rows = table.weight, table.rate, table.effective
    signed = weight * table.gap  # d_b
    plug_in = float(signed.abs().sum())
    # Row i contributes v_i (x_i 1[i in b] − d_b) with x = p − y and its part v_i of the mass, so s_b² = Σ v² x² − 2 d_b Σ v² x + d_b² Σ v²:
    # no model of how outcomes depend on probabilities or weights is needed.
    part, p, y, pp, py = table.squares / mass**2
    linear, square = p - y, pp - 2 * py + y  # Σ v² x and Σ v² x², of outcomes 0 and 1
    seen = (square - 2 * signed * linear + signed.square() * part.sum()).clamp_min(0)
    if groups is None:
        calibrated = table.noise / mass**2
        # a bin's expected events, n p (1 − p) of as many rows of equal weight as its own are worth, are few
        few = rows * calibrated < FEW_EVENTS * part
        spread = torch.where(few, torch.maximum(seen, calibrated), seen).sqrt()
    else:
        spread = groups.sums.square().sum(dim=0).sqrt()
    if error is None:
        added = z * z * weight  # pseudo-rows, half of them correct
        wider = (rate * rows + added / 2) / (rows + added).clamp_min(1e-300)
        apart = (seen + part * (wider * (1 - wider) - rate * (1 - rate))).clamp_min(0)
        together = (square - 2 * plug_in * torch.sign(signed) * linear).sum() + plug_in**2 * part.sum()
        ratio = student_quantile((1 + level) / 2, max(1 / float(part.sum()) - 1, 1)) / z
        error = math.sqrt(max(float(apart.sum()), float(together))) * ratio
        if groups is not None:
            error = _grouped_error(table, groups, least=error, level=level)
    half, each = z * error, unfold(signed.abs(), spread)
    correction = plug_in - float(each.sum())

    mean = (table.sum_p / table.filled).clamp(0, 1)
    widest = torch.maximum(rate * (1 - rate), mean * (1 - mean))
    noise = (part * widest).sqrt()
    sparse = float(torch.where(rows * widest < FEW_EVENTS, noise, 0.0).sum()) * math.sqrt(2 / math.pi)
    many = float(noise.sum()) ** 2 > MOST_BINS * float(noise.square().sum())
    if many and max(correction, sparse) > MOST_CHANCE * half:
        # the outcomes of a miscalibrated model may vary more than if calibrated: the noise grows as the bins' standard errors do
        calibrated_spread = float((table.noise / mass**2).sqrt().sum())
        more = float((part * rate * (1 - rate)).sqrt().sum()) / max(calibrated_spread, 1e-300)
        low, high = max(0.0, plug_in - gate * max(more, 1.0)), plug_in + half
        method = "plug-in less the noise of its bins"
    else:
        variance = float(spread.square().sum())
        excess = float((_unfolded_bias(each / spread.clamp_min(1e-300)) * spread).sum())
        least = plug_in - correction - max(AGAIN * excess - BORNE * half, 0.0) - half
        beyond = STEEPEST * (plug_in - gate)
        low = max(0.0, min(least, beyond))
        clear = rows * torch.minimum(rate, 1 - rate) >= FEW_EVENTS
        rise = z * z * float((part * (1 - 2 * rate).abs())[clear].sum()) / 2
        above = max(half, rise + math.sqrt(rise * rise + z * z * variance))
        total = signed.sum().abs().cpu()  # of one bin of all rows, in which gaps of both signs cancel
        whole = (1 - LIFT) * float(unfold(total, total.new_tensor(variance).sqrt())) + LIFT * float(total)
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
    some = (table.noise > 0) & (table.sum_p > 0)  # elsewhere outcomes are certain
    if not bool(some.any()):
        return Interval(0.0, 0.0, 0.0, level, "no uncertain outcome")
    columns = torch.stack([table.count.double(), table.sum_p, table.noise, table.squares[1]])
    count, mean, noise, square = columns[:, some].cpu().numpy()
    trials, rate, unit = matching_binomials(mean, noise, square)
    expected, v = mean / unit, noise / unit**2
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
        for cell in range(len(scale)):
            total += scale[cell] * np.abs(rng.binomial(trials[cell], rate[cell], size=_DRAWS) - expected[cell])
        low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2]).tolist()
        # the limit is a possible value of the error, which must not exceed it by rounding
        low, high = min(low, centre), min(max(high * (1 + 1e-9), centre), largest)
        return Interval(centre, low, high, level, f"binomials of few events, {_DRAWS} draws")
    z = normal_quantile((1 + level) / 2)
    # of few rows the expansion can lie beyond what is possible
    low, high = (min(max(centre + error * (x + skew * (z * z - 1) / 6), 0.0), largest) for x in (-z, z))
    return Interval(centre, low, high, level, "mean absolute deviations of binomials, Cornish–Fisher")


def matching_binomials(mean: np.ndarray, noise: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return whole trials, probability and unit (B,) of the binomials of mean Σ w p and variance Σ w² p (1 − p), with Σ w² p."""
    unit = np.divide(square, mean, out=np.ones_like(mean), where=mean > 0)
    expected = mean / unit
    left = expected - noise / unit**2
    trials = np.where(left > 0, np.rint(expected**2 / np.where(left > 0, left, 1)), 0)  # n = m² / (m − v)
    trials = np.maximum(trials, np.ceil(expected - 1e-9)).astype(np.int64)
    return trials, np.clip(expected / np.maximum(trials, 1), 0.0, 1.0), unit


def unfold(folded: Tensor, spread: Tensor) -> Tensor:
    """Return the m ≥ 0 for which |N(m, spread²)| has the mean ``folded``, or 0 if the mean is larger for every m."""
    # E|N(m, s²)| / s = √(2/π) exp(−r²/2) + r erf(r/√2) with r = m/s increases in r, so it has an inverse, here by linear
    # interpolation in a table; beyond the table's end it equals r to 1e-9. Values below √(2/π), the mean at m = 0, have no
    # inverse: the gap is no larger than that expected if calibrated, and 0 is returned.
    ratio, means = folded / spread.clamp_min(1e-300), _folded_means().to(folded.device)
    right = torch.searchsorted(means, ratio.contiguous()).clamp(1, means.shape[0] - 1)
    fraction = (ratio - means[right - 1]) / (means[right] - means[right - 1])
    inverse = torch.where(ratio > _RATIOS[-1], ratio, (right - 1 + fraction) * float(_RATIOS[1]))
    inverse = torch.where(ratio <= means[0], 0.0, inverse)
    return torch.where(spread > 0, inverse * spread, folded)


@cache
def _folded_means() -> Tensor:
    return math.sqrt(2 / math.pi) * torch.exp(-_RATIOS.square() / 2) + _RATIOS * torch.erf(_RATIOS / math.sqrt(2))


def _unfolded_bias(ratio: Tensor) -> Tensor:
    """Return E unfold(|N(r, 1)|, 1) − r for r ≥ 0, where it is positive: no unfolded gap is negative, so that small ones are too high."""
    known = _known_bias().to(ratio.device)
    step = 6 / (known.shape[0] - 1)
    place = (ratio / step).clamp_max(known.shape[0] - 1.001)
    left = place.long()
    return torch.lerp(known[left], known[left + 1], place - left)


@cache
def _known_bias() -> Tensor:
    # on a grid of step 1/400 on which r + noise lies too, for r = 0, 0.05 … 6 and noise from −8 to 8
    unfolded = unfold(torch.linspace(-8, 14, 8801, dtype=torch.float64).abs(), torch.ones(1, dtype=torch.float64))
    chance = torch.exp(-torch.linspace(-8, 8, 6401, dtype=torch.float64).square() / 2)
    mean = unfolded.unfold(0, 6401, 20) @ chance / chance.sum()
    return (mean - torch.linspace(0, 6, 121, dtype=torch.float64)).clamp_min(0)


def squared_error(table: BinTable) -> Tensor:
    """Return the unbiased squared error (…) of tables (…, B), which can be negative; bins of one row are left out.

    Args:
        table: Counts and sums.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> round(float(squared_error(EqualWidth(1).table(torch.full((10,), 0.9), torch.arange(10) < 8))), 4)
        -0.0078

    References:
        Kumar, Liang & Ma 2019, Definition 5.1; Bröcker 2012.
    """
    variance = table.rate * (1 - table.rate) / left_over(table)
    return (table.weight * torch.where(table.effective > 1, table.gap.square() - variance, 0.0)).sum(dim=-1)


def left_over(table: BinTable) -> Tensor:
    """Return n − 1 (…, B), with n the effective sample size of each bin; 1 for a bin of one row.

    The expectation of a (1 − a) is the outcomes' variance times 1 − 1/n, so a (1 − a) / (n − 1) is an unbiased estimate of the
    variance of their mean a.

    Args:
        table: Counts and sums.
    """
    left = table.effective - 1
    return torch.where(left > 0, left, 1)


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

    count, mean = table.effective.cpu(), (table.sum_p / table.filled).cpu().clamp(0, 1)
    if table.weighted:
        count = torch.where(count > 0, count.round().clamp_min(1), 0)
    tail = (1 - level) / 2

    def quantile(q: float) -> Tensor:
        n, p = count.long().numpy(), mean.numpy()
        found = np.nan_to_num(np.ceil(bdtrik(q, n, p)))  # NaN for p = 0
        less = np.maximum(found - 1, 0)  # bdtrik is an inverse up to rounding, which may lead beyond a whole number
        return torch.from_numpy(np.where(bdtr(less, n, p) >= q, less, found)) / count

    ends = [quantile(q) for q in (tail, 1 - tail)]
    low, high = (torch.where(count > 0, end, torch.nan) for end in ends)
    return low, high
