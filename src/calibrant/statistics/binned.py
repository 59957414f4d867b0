"""Intervals for binned calibration errors, where neither the bootstrap nor a normal interval of the plug-in covers.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight: E d_b = δ_b, and d_b is close to normal
with standard error s_b. The error is Σ_b |δ_b|, its plug-in Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|: what
finite samples add. The corrected error solves f(m_b, s_b) = |d_b| for each bin (m_b = 0 where |d_b| ≤ s_b √(2/π), the
least a folded normal can have as its mean) and sums the m_b.

*Width.* Where |δ_b| ≫ s_b the error is locally linear in d, with variance Σ_b s_b²; nearer to 0 |d_b| varies less, so
that this is an upper bound. A bin in which all decisions are right (or wrong) has no variance of its own; for the width
alone, its rate is therefore (y_b + z²/2 · w_b) / (n_b + z² w_b) with the bin's share of rows w_b, as in Wilson's interval.

*Ends.* low = corrected − z √Σ s_b², but 0 unless the plug-in exceeds the (1 + level)/2 quantile of what a calibrated
model shows (its exact null distribution): at δ = 0, where the error is not differentiable, the test covers, by
construction, at (1 + level)/2. high = corrected + LIFT · (plug-in − corrected) + z √Σ s_b², or the plug-in if that is more:
the correction overshoots where |δ_b| ≈ s_b, and LIFT, set by simulation, gives back a part of it.

*Refused.* The correction is a sum over bins, wrong by a part of itself; the half-width grows only as the root of the number
of bins. So where more than about 25 bins share the noise, and the correction is more than half of the half-width (near
calibration) or that much of the chance part lies in bins with fewer than two expected events, no interval is offered:
``chance_decides``.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant._arguments import check_kind, check_level
from calibrant._check import check_number, check_row_tensor, refuse, shown
from calibrant.binning import BinTable
from calibrant.errors import NoIntervalError
from calibrant.statistics._resampling import quantiles
from calibrant.statistics._results import Interval
from calibrant.statistics._tables import need_table
from calibrant.statistics.interval import normal_quantile

__all__ = [
    "BinnedEstimate",
    "chance_decides",
    "consistency_bars",
    "corrected_error",
    "error_interval",
    "interval_ends",
    "table_error",
]

LIFT = 0.15
MOST_BINS = 25.0  # that share the noise, (Σ s)² / Σ s², up to which the correction holds whatever its size
MOST_CHANCE = 0.5  # of the half-width, that the correction, or the chance part of nearly empty bins, may be beyond that
FEW_EVENTS = 2.0  # n a (1 − a) of a bin, below which its gap is far from normal
_RATIOS = torch.linspace(0, 6, 6001, dtype=torch.float64)  # beyond 6 standard errors a fold adds less than 1e-9


@dataclass(frozen=True)
class BinnedEstimate:
    """A binned error with what the sample's size added to it taken off.

    Args:
        plug_in: Σ_b |d_b|, the usual estimate; (…).
        corrected: Σ_b m_b; (…).
        error: Standard error √Σ_b s_b²; (…).
    """

    plug_in: Tensor
    corrected: Tensor
    error: Tensor

    @property
    def centre(self) -> Tensor:
        """The corrected value with a part of the correction given back: the least biased single figure."""
        return self.corrected + LIFT * (self.plug_in - self.corrected)


def corrected_error(table: BinTable, *, spread: Tensor | None = None) -> BinnedEstimate:
    """Return Σ_b weight_b |gap_b| of a bin table, corrected bin by bin by the folded normal.

    Args:
        table: Counts and sums (…, B); leading dimensions are tables of their own.
        spread: Standard errors (…, B) of weight_b · gap_b; None takes those of independent rows.

    Examples:
        >>> from calibrant.binning import BinTable
        >>> one = BinTable(torch.tensor([100]), torch.tensor([80.0]).double(), torch.tensor([79.0]).double(), 100)
        >>> estimate = corrected_error(one)
        >>> estimate.plug_in.item() > estimate.corrected.item()
        True
    """
    signed = need_table(table).gap * table.weight
    if spread is not None:
        _check_spread(spread, table)
    spread = gap_variance(table).sqrt() if spread is None else spread
    corrected = unfold(signed.abs(), spread)
    return BinnedEstimate(signed.abs().sum(dim=-1), corrected.sum(dim=-1), spread.square().sum(dim=-1).sqrt())


def gap_variance(table: BinTable, *, pseudo: float = 0.0) -> Tensor:
    """Return the variance s_b² (…, B) of weight_b · gap_b, the rows' bins being random too.

    From counts and sums alone: within a bin the outcomes' variance is a (1 − a). That of the probabilities, at most a
    quarter of the squared bin width, and their covariance with the outcomes are left out: to the safe side where, within
    the bin, accuracy rises at least half as fast as confidence, and else too small by at most that quarter.

    Args:
        table: Counts and sums (…, B).
        pseudo: Rows, half of them right, added to the whole table in proportion to the bins' rows: z² for a width that
            does not vanish where all decisions are right.
    """
    added = pseudo * table.weight
    if table.squares is None:
        rate = (table.sum_y + added / 2) / (table.count + added).clamp_min(1e-300)
        second = table.weight * (rate * (1 - rate) + table.gap.square())
        return (second - (table.weight * table.gap).square()).clamp_min(0) / max(table.total, 1)
    rate = (table.rate * table.effective + added / 2) / (table.effective + added).clamp_min(1e-300)
    signed, part = table.weight * table.gap, table.squared_shares
    second = part * (rate * (1 - rate) + table.gap.square()) - 2 * part * signed * table.gap
    return (second + signed.square() * part.sum(dim=-1, keepdim=True)).clamp_min(0)


def table_error(table: BinTable, *, level: float = 0.95) -> Tensor:
    """Return the standard error (…) of Σ_b weight_b |gap_b| of independent rows, widened where few decisions are wrong.

    Args:
        table: Counts and sums (…, B).
        level: Of the interval it is for: z² pseudo-rows are added, as in Wilson's interval.
    """
    pseudo = normal_quantile((1 + check_level(level)) / 2) ** 2
    need_table(table)
    return gap_variance(table, pseudo=pseudo).sum(dim=-1).sqrt()


def chance_decides(table: BinTable, found: BinnedEstimate, *, level: float = 0.95) -> Tensor:
    """Return whether (…) chance weighs so much in an error that no interval of it is known to cover.

    Args:
        table: Counts and sums (…, B).
        found: Its corrected error.
        level: Of the interval.
    """
    need_table(table)
    _need_estimate(found)
    check_level(level)
    limit = MOST_CHANCE * normal_quantile((1 + level) / 2) * found.error
    rate, mean = table.sum_y / table.filled, (table.sum_p / table.filled).clamp(0, 1)
    variance = torch.maximum(rate * (1 - rate), mean * (1 - mean))
    noise = (table.squared_shares * variance).sqrt()
    many = noise.sum(dim=-1).square() > MOST_BINS * noise.square().sum(dim=-1)
    sparse = torch.where(table.effective * variance < FEW_EVENTS, noise, 0.0).sum(dim=-1) * math.sqrt(2 / math.pi)
    return many & ((found.plug_in - found.corrected > limit) | (sparse > limit))


def unfold(folded: Tensor, spread: Tensor) -> Tensor:
    """Return the m ≥ 0 whose folded normal |N(m, spread²)| has the mean ``folded``; 0 if none is that small."""
    # E|N(m, s²)| / s = √(2/π) exp(−r²/2) + r erf(r/√2) with r = m/s is increasing in r, so the inverse exists; it is read
    # from a table by linear interpolation, and equals r to 1e-9 beyond the table's end. Values below √(2/π), the mean at
    # m = 0, have no inverse: there the gap is no larger than chance alone makes it, and 0 is returned.
    ratio = folded / spread.clamp_min(1e-300)
    means = _folded_mean(_RATIOS).to(folded.device)
    right = torch.searchsorted(means, ratio.contiguous()).clamp(1, means.shape[0] - 1)
    share = (ratio - means[right - 1]) / (means[right] - means[right - 1])
    step = _RATIOS[1].to(folded.device)
    inverse = torch.where(ratio > _RATIOS[-1], ratio, (right - 1 + share) * step)
    inverse = torch.where(ratio <= means[0], 0.0, inverse)
    return torch.where(spread > 0, inverse * spread, folded)


def _folded_mean(ratio: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2) + ratio * torch.erf(ratio / math.sqrt(2))


def error_interval(
    table: BinTable,
    null: Tensor,
    *,
    level: float = 0.95,
    spread: Tensor | None = None,
    error: float | None = None,
    scale: float = 1.0,
) -> Interval:
    """Return the interval of a binned error: see the head of this module.

    Args:
        table: Counts and sums (B,).
        null: (draws,) plug-in errors, ``scale`` included, of a calibrated model with the same probabilities and bins.
        level: Nominal coverage.
        spread: Standard errors (B,) of weight_b · gap_b; None takes those of independent rows.
        error: Standard error of the sum over bins; None takes ``table_error``.
        scale: The error is ``scale`` times the sum over bins (1/K for the mean over K classes).

    Returns:
        Interval: ``estimate`` is the plug-in; the true value is that of the population in these same bins.

    Raises:
        NoIntervalError: If the correction for chance outweighs the interval (``chance_decides``).
    """
    check_level(level)
    check_number(scale, name="scale", low=0, open_low=True)
    need_table(table)
    if error is not None:
        error = check_number(error, name="error", low=0)
    if not check_row_tensor(null, name="null").shape[0]:
        raise refuse("null as a tensor (draws,)", shown(null), "make it with null_draws")
    found = corrected_error(table, spread=spread)
    found = replace(found, error=table_error(table, level=level) if error is None else torch.as_tensor(error))
    if bool(chance_decides(table, found, level=level)):
        raise NoIntervalError(
            f"expected chance to be a small part of the error, got {float(found.plug_in) * scale:.4f} of which about "
            f"{float(found.plug_in - found.corrected) * scale:.4f} is chance; use fewer bins or a coarser metric such as "
            "ECE(), or measure on more rows"
        )
    # the gate: below the 97.5 % limit if calibrated, the lower end is 0, because calibration is not rejected there; this
    # gives coverage at and near a true error of 0, where the normal approximation of the plug-in fails
    gate = quantiles(null.cpu().double().numpy(), level=level)[1] / scale
    low, high = interval_ends(found, torch.as_tensor(gate), level=level)
    plug_in, high_end = float(found.plug_in) * scale, min(float(high) * scale, 1.0)
    return Interval(plug_in, float(low) * scale, high_end, level, "folded-normal inversion, null-test gate")


def interval_ends(found: BinnedEstimate, gate: Tensor, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return both ends (…) of the interval of a binned error.

    Args:
        found: Estimates (…).
        gate: (…) the (1 + level) / 2 quantile of the plug-in of a calibrated model.
        level: Nominal coverage.
    """
    half = normal_quantile((1 + check_level(level)) / 2) * _need_estimate(found).error
    if not isinstance(gate, Tensor) or gate.shape != found.plug_in.shape or not gate.is_floating_point():
        raise refuse(f"gate of shape {tuple(found.plug_in.shape)}", shown(gate), "pass a quantile of null_draws")
    low = torch.where(found.plug_in > gate, (found.corrected - half).clamp_min(0), 0.0)
    return low, torch.maximum(found.centre + half, found.plug_in)


def consistency_bars(table: BinTable, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return, for each bin, between which outcome frequencies a calibrated model stays with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability of a bin, not of all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. Exact for the
        binomial with that mean; of sampling weights that of as many rows of equal weight as would vary as much.

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

    count = need_table(table).effective.cpu().double()
    mean = (table.sum_p / table.filled).cpu().clamp(0, 1)
    count = count if table.squares is None else torch.where(count > 0, count.round().clamp_min(1), 0)
    tail = (1 - check_level(level)) / 2
    ends = [torch.from_numpy(binom.ppf(q, count.numpy(), mean.numpy())) / count for q in (tail, 1 - tail)]
    low, high = (torch.where(count > 0, end, torch.nan) for end in ends)
    return low, high


def _need_estimate(found: Any) -> BinnedEstimate:
    return check_kind(found, BinnedEstimate, name="found", remedy="pass corrected_error(table)")


def _check_spread(spread: Any, table: BinTable) -> None:
    check_row_tensor(spread, name="spread", dims=table.gap.dim(), floating=True)
    if spread.shape != table.gap.shape or not bool((spread >= 0).all()):
        raise refuse(f"spread of shape {tuple(table.gap.shape)}, ≥ 0", shown(spread), "pass one number a bin, or None")
