"""Intervals for binned calibration errors, for which the bootstrap and the normal interval of the plug-in have poor coverage.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight: E d_b = δ_b, and d_b is close to normal
with standard error s_b. The error is Σ_b |δ_b|, its plug-in estimate Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|, so the
plug-in is biased upward. The corrected error solves f(m_b, s_b) = |d_b| for each bin (m_b = 0 where |d_b| ≤ s_b √(2/π), the
smallest mean of a folded normal) and sums the m_b. Where a calibrated bin has fewer than two expected events, s_b is at least what
it has if calibrated: a bin in which none was seen would have s_b near 0, and its whole probability would count as its error.

*Width.* Where |δ_b| ≫ s_b the error is locally linear in d, with variance Σ_b s_b²; nearer to 0 |d_b| varies less, so this is
an upper bound. The variance of the signed sum takes its place where it is larger, and z is Student's
quantile (``table_error``). A bin in which all decisions are correct (or wrong) has an estimated variance of 0. For the width
only, its rate is therefore (y_b + z²/2 · w_b) / (n_b + z² w_b) with the bin's fraction of rows w_b, as in Wilson's interval.

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
half-width, or the expected gaps of bins with fewer than two expected events do (``chance_decides``), nothing is corrected: with
the errors e_b of the d_b the triangle inequality gives Σ |d_b| − Σ |e_b| ≤ Σ |δ_b|, and E Σ |d_b| ≥ Σ |δ_b|. So low is the
plug-in minus the (1 + level)/2 quantile of the noise, and high the plug-in + z √Σ s_b².

*Squares* are differentiable at calibration, unlike Σ_b w_b |δ_b|: ``squared_error`` is Σ_b w_b δ_b², the gaps' mean square,
less its sampling bias, so that it can be negative.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Fits, Level, checked
from calibrant.binning import BinTable
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import Interval, student_quantile

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
_RATIOS = torch.linspace(0, 6, 6001, dtype=torch.float64)  # beyond 6 standard errors a fold adds less than 1e-9


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
    def shares(self) -> Tensor:
        """(N,) float64: the weights, normalised to sum to 1."""
        if self.weight is None:
            return torch.full_like(self.p, 1 / self.p.shape[0], dtype=torch.float64)
        return self.weight / self.weight.sum()


@dataclass(frozen=True)
class BinnedEstimate:
    """A binned error, its value corrected for the bias of a finite sample, and its standard error.

    Args:
        plug_in: Σ_b |d_b|, the usual estimate; (…).
        corrected: Σ_b m_b; (…).
        excess: By how much ``corrected`` is too high on average where gaps are near 0, if the m_b are the truth; (…).
        variance: Σ_b s_b², of what was seen; (…).
        slope: How much larger the variance is for each unit of a larger error; (…).
        whole: ``centre`` of one bin of all rows, in which gaps of both signs cancel; (…).
        error: Standard error √Σ_b s_b²; (…).
    """

    plug_in: Tensor
    corrected: Tensor
    excess: Tensor
    variance: Tensor
    slope: Tensor
    whole: Tensor
    error: Tensor

    @property
    def centre(self) -> Tensor:
        """The least biased point estimate: the corrected value, with the fraction ``LIFT`` of the correction reversed."""
        return self.corrected + LIFT * (self.plug_in - self.corrected)


def corrected_error(table: BinTable, *, spread: Tensor | None = None) -> BinnedEstimate:
    """Return Σ_b weight_b |gap_b| of a bin table, corrected bin by bin by the folded normal.

    Args:
        table: Counts and sums (…, B), one table for each index of the leading dimensions.
        spread: Standard errors (…, B) of weight_b · gap_b; None takes those of independent rows.

    Examples:
        >>> from calibrant.binning import BinTable
        >>> one = BinTable(torch.tensor([100]), torch.tensor([80.0]).double(), torch.tensor([79.0]).double(), 100)
        >>> estimate = corrected_error(one)
        >>> estimate.plug_in.item() > estimate.corrected.item()
        True
    """
    signed = table.gap * table.weight
    if spread is None:
        seen, calibrated = gap_variance(table), table.noise / table.mass**2
        spread = torch.where(table.expected_events < FEW_EVENTS, torch.maximum(seen, calibrated), seen).sqrt()
    each, variance = unfold(signed.abs(), spread), spread.square().sum(dim=-1)
    excess = (_unfolded_bias(each / spread.clamp_min(1e-300)) * spread).sum(dim=-1)
    total = signed.sum(dim=-1).abs()
    whole = (1 - LIFT) * unfold(total, variance.sqrt()) + LIFT * total
    few = table.effective * torch.minimum(table.rate, 1 - table.rate) < FEW_EVENTS
    slope = torch.where(few, 0.0, table.squared_shares * (1 - 2 * table.rate).abs()).sum(dim=-1)
    return BinnedEstimate(
        plug_in=signed.abs().sum(dim=-1),
        corrected=each.sum(dim=-1),
        excess=excess,
        variance=variance,
        slope=slope,
        whole=whole,
        error=variance.sqrt(),
    )


def gap_variance(table: BinTable, *, pseudo: float = 0.0) -> Tensor:
    """Return the variance s_b² (…, B) of weight_b · gap_b, where the number of rows in a bin is random too.

    Row i contributes v_i (x_i 1[i in b] − d_b) with x = p − y and its part v_i of the mass, so s_b² = Σ v² x² − 2 d_b Σ v² x + d_b² Σ v²:
    no model of how outcomes depend on probabilities or weights is needed. A table without second moments takes all rows of a bin to
    have its mean probability.

    Args:
        table: Counts and sums (…, B).
        pseudo: Number of pseudo-rows, half of them correct, distributed over the bins in proportion to their rows: z² for a
            width > 0 where all decisions are correct.
    """
    signed, part = table.weight * table.gap, table.squared_shares
    linear, square = table.gap_squares
    variance = (square - 2 * signed * linear) / table.mass**2 + signed.square() * part.sum(dim=-1, keepdim=True)
    added = pseudo * table.weight
    rate = (table.rate * table.effective + added / 2) / (table.effective + added).clamp_min(1e-300)
    wider = rate * (1 - rate) - table.rate * (1 - table.rate)
    return (variance + part * wider).clamp_min(0)


def table_error(table: BinTable, *, level: float = 0.95) -> Tensor:
    """Return the standard error (…) of Σ_b weight_b |gap_b| of independent rows, with pseudo-rows as in Wilson's interval.

    It is the larger one of that of independent bins and that of the signed sum, times the ratio of the quantiles of Student's t and
    the normal, of the effective sample size (Σw)² / Σw².

    Args:
        table: Counts and sums (…, B).
        level: Of the interval, which sets the number z² of pseudo-rows.
    """
    quantile, part = normal_quantile((1 + level) / 2), table.squared_shares.sum(dim=-1)
    (linear, square), whole = table.gap_squares, table.errors()
    signed = (square - 2 * whole[..., None] * torch.sign(table.gap) * linear).sum(dim=-1) / table.mass**2
    apart = gap_variance(table, pseudo=quantile**2).sum(dim=-1)
    wider = student_quantile((1 + level) / 2, max(1 / float(part.max()) - 1, 1)) / quantile
    return torch.maximum(apart, signed + whole.square() * part).sqrt() * wider


def chance_decides(table: BinTable, found: BinnedEstimate, *, level: float = 0.95) -> Tensor:
    """Return whether (…) too much of an error may be chance for its interval to have the nominal coverage.

    Args:
        table: Counts and sums (…, B).
        found: The corrected error of ``table``.
        level: Of the interval.
    """
    limit = MOST_CHANCE * normal_quantile((1 + level) / 2) * found.error
    rate, mean = table.sum_y / table.filled, (table.sum_p / table.filled).clamp(0, 1)
    variance = torch.maximum(rate * (1 - rate), mean * (1 - mean))
    noise = (table.squared_shares * variance).sqrt()
    many = noise.sum(dim=-1).square() > MOST_BINS * noise.square().sum(dim=-1)
    sparse = torch.where(table.effective * variance < FEW_EVENTS, noise, 0.0).sum(dim=-1) * math.sqrt(2 / math.pi)
    return many & ((found.plug_in - found.corrected > limit) | (sparse > limit))


def unfold(folded: Tensor, spread: Tensor) -> Tensor:
    """Return the m ≥ 0 for which |N(m, spread²)| has the mean ``folded``, or 0 if the mean is larger for every m."""
    # E|N(m, s²)| / s = √(2/π) exp(−r²/2) + r erf(r/√2) with r = m/s increases in r, so it has an inverse, here by linear
    # interpolation in a table; beyond the table's end it equals r to 1e-9. Values below √(2/π), the mean at m = 0, have no
    # inverse: the gap is no larger than that expected if calibrated, and 0 is returned.
    ratio = folded / spread.clamp_min(1e-300)
    means = _folded_mean(_RATIOS).to(folded.device)
    right = torch.searchsorted(means, ratio.contiguous()).clamp(1, means.shape[0] - 1)
    fraction = (ratio - means[right - 1]) / (means[right] - means[right - 1])
    step = _RATIOS[1].to(folded.device)
    inverse = torch.where(ratio > _RATIOS[-1], ratio, (right - 1 + fraction) * step)
    inverse = torch.where(ratio <= means[0], 0.0, inverse)
    return torch.where(spread > 0, inverse * spread, folded)


def _unfolded_bias(ratio: Tensor) -> Tensor:
    """Return E unfold(|N(r, 1)|, 1) − r for r ≥ 0, where it is positive: no unfolded gap is negative, so that small ones are too high."""
    known = _known_bias().to(ratio.device)
    step = 6 / (known.shape[0] - 1)
    place = (ratio / step).clamp_max(known.shape[0] - 1.001)
    left = place.long()
    return torch.lerp(known[left], known[left + 1], place - left)


@cache
def _known_bias() -> Tensor:
    ratio = torch.linspace(0, 6, 121, dtype=torch.float64)
    noise = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    chance = torch.exp(-noise.square() / 2)
    mean = unfold((ratio[:, None] + noise).abs(), torch.ones(1, dtype=torch.float64)) @ chance / chance.sum()
    return (mean - ratio).clamp_min(0)


def _folded_mean(ratio: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2) + ratio * torch.erf(ratio / math.sqrt(2))


def _filled_table(table: Any, *, name: str) -> BinTable:
    if not isinstance(table, BinTable) or table.total <= 0:
        remedy = "make one with EqualWidth(15).table(p, y)"
        raise refuse("a bin table of at least one row", shown(table), remedy)
    return table


FilledTable = Annotated[BinTable, Fits(_filled_table, "of at least one row")]


def error_interval(
    table: BinTable,
    gate: float,
    *,
    level: float = 0.95,
    spread: Tensor | None = None,
    error: float | None = None,
    scale: float = 1.0,
) -> Interval:
    """Return the interval of a binned error: see the docstring of this module.

    Args:
        table: Counts and sums (B,).
        gate: The (1 + level) / 2 quantile of the plug-in error, ``scale`` included, of a calibrated model with the same probabilities
            and bins: up to it calibration is not rejected, and the lower end is 0.
        level: Nominal coverage.
        spread: Standard errors (B,) of weight_b · gap_b; None takes those of independent rows.
        error: Standard error of the sum over bins; None takes ``table_error``.
        scale: The error is ``scale`` times the sum over bins (1/K for the mean over K classes).

    Returns:
        Interval: ``estimate`` is the plug-in; the true value is that of the population in these same bins.
    """
    found = corrected_error(table, spread=spread)
    found = replace(found, error=table_error(table, level=level) if error is None else torch.as_tensor(error))
    limit = torch.as_tensor(gate / scale)
    if bool(chance_decides(table, found, level=level)):
        low, high = _uncorrected_ends(table, found, limit, level=level)
        method = "plug-in less the noise of its bins"
    else:
        (low, high), method = interval_ends(found, limit, level=level), "folded-normal inversion, null-test gate"
    return Interval(float(found.plug_in) * scale, float(low) * scale, min(float(high) * scale, 1.0), level, method)


def _uncorrected_ends(table: BinTable, found: BinnedEstimate, gate: Tensor, *, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends for many bins: the plug-in less the noise that the gate has if calibrated, and plus its own error.

    The outcomes of a miscalibrated model may vary more than if calibrated: the noise grows as the bins' standard errors do.
    """
    part, rate, own = table.squared_shares, table.rate, table.noise / table.mass**2
    more = (part * rate * (1 - rate)).sqrt().sum(dim=-1) / own.sqrt().sum(dim=-1).clamp_min(1e-300)
    high = found.plug_in + normal_quantile((1 + level) / 2) * found.error
    return (found.plug_in - gate * more.clamp_min(1)).clamp_min(0), high


def interval_ends(found: BinnedEstimate, gate: Tensor, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return both ends (…) of the interval of a binned error.

    Args:
        found: Estimates (…).
        gate: (…) the (1 + level) / 2 quantile of the plug-in of a calibrated model.
        level: Nominal coverage.
    """
    z = normal_quantile((1 + level) / 2)
    half, rise = z * found.error, z**2 * found.slope / 2
    beyond = STEEPEST * (found.plug_in - gate)
    least = found.corrected - (AGAIN * found.excess - BORNE * half).clamp_min(0) - half
    low = torch.where(beyond > 0, torch.minimum(least, beyond).clamp_min(0), 0.0)
    above = torch.maximum(half, rise + (rise.square() + z**2 * found.variance).sqrt())
    return low, torch.maximum(torch.maximum(found.centre, found.whole) + above, found.plug_in)


def squared_error(table: BinTable) -> Tensor:
    """Return the unbiased squared error (…) of tables (…, B), which can be negative; bins of one row are left out.

    Args:
        table: Counts and sums.

    Examples:
        >>> from calibrant.binning import BinTable
        >>> one = BinTable(torch.tensor([10]), torch.tensor([9.0]).double(), torch.tensor([8.0]).double(), 10)
        >>> round(float(squared_error(one)), 4)
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


@checked
def consistency_bars(table: FilledTable, *, level: Level = 0.95) -> tuple[Tensor, Tensor]:
    """Return for each bin the limits within which a calibrated model's outcome frequency lies with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability for each bin, not for all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. Quantiles of the
            binomial with that mean and the effective sample size.

    Examples:
        >>> from calibrant.binning import BinTable
        >>> one = BinTable(torch.tensor([100]), torch.tensor([80.0]).double(), torch.tensor([60.0]).double(), 100)
        >>> low, high = consistency_bars(one)
        >>> low.item(), high.item()
        (0.72, 0.88)

    References:
        Bröcker & Smith 2007.
    """
    from scipy.stats import binom

    count = table.effective.cpu().double()
    mean = (table.sum_p / table.filled).cpu().clamp(0, 1)
    count = count if table.squares is None else torch.where(count > 0, count.round().clamp_min(1), 0)
    tail = (1 - level) / 2
    ends = [torch.from_numpy(binom.ppf(q, count.numpy(), mean.numpy())) / count for q in (tail, 1 - tail)]
    low, high = (torch.where(count > 0, end, torch.nan) for end in ends)
    return low, high
