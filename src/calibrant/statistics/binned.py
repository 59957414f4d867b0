"""Intervals for binned calibration errors, for which the bootstrap and the normal interval of the plug-in have poor coverage.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight: E d_b = δ_b, and d_b is close to normal
with standard error s_b. The error is Σ_b |δ_b|, its plug-in estimate Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|, so the
plug-in is biased upward. The corrected error solves f(m_b, s_b) = |d_b| for each bin (m_b = 0 where |d_b| ≤ s_b √(2/π), the
smallest mean of a folded normal) and sums the m_b.

*Width.* Where |δ_b| ≫ s_b the error is locally linear in d, with variance Σ_b s_b²; nearer to 0 |d_b| varies less, so this
is an upper bound. A bin in which all decisions are correct (or wrong) has an estimated variance of 0. For the width only, its
rate is therefore (y_b + z²/2 · w_b) / (n_b + z² w_b) with the bin's fraction of rows w_b, as in Wilson's interval.

*Ends.* low = corrected − z √Σ s_b², but 0 unless the plug-in exceeds the (1 + level)/2 quantile of its null distribution, that
of a calibrated model: at δ = 0, where the error is not differentiable, this test has coverage (1 + level)/2 by construction.
high = corrected + LIFT · (plug-in − corrected) + z √Σ s_b², or the plug-in if that is larger: the correction is too large where
|δ_b| ≈ s_b, and LIFT, chosen by simulation, reverses a part of it.

*No interval.* The error of the correction is proportional to the correction, a sum over bins, while the half-width grows only
with the root of the number of bins. So no interval is returned (``chance_decides``) where the noise is spread over more than
about 25 bins and either the correction exceeds half of the half-width (near calibration), or the expected gaps of bins with
fewer than two expected events do.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant._core.arguments import check_kind, check_level
from calibrant._core.check import check_number, check_row_tensor, refuse, shown
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
MOST_BINS = 25.0  # effective number of bins in the noise, (Σ s)² / Σ s², up to which the correction may have any size
MOST_CHANCE = 0.5  # with more bins: largest correction, or expected gap of sparse bins, as a fraction of the half-width
FEW_EVENTS = 2.0  # a bin with a smaller n a (1 − a) is sparse: its gap is far from normal
_RATIOS = torch.linspace(0, 6, 6001, dtype=torch.float64)  # beyond 6 standard errors a fold adds less than 1e-9


@dataclass(frozen=True)
class BinnedEstimate:
    """A binned error, its value corrected for the bias of a finite sample, and its standard error.

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
    signed = need_table(table).gap * table.weight
    if spread is not None:
        _check_spread(spread, table)
    spread = gap_variance(table).sqrt() if spread is None else spread
    corrected = unfold(signed.abs(), spread)
    return BinnedEstimate(signed.abs().sum(dim=-1), corrected.sum(dim=-1), spread.square().sum(dim=-1).sqrt())


def gap_variance(table: BinTable, *, pseudo: float = 0.0) -> Tensor:
    """Return the variance s_b² (…, B) of weight_b · gap_b, where the number of rows in a bin is random too.

    It uses counts and sums only: within a bin the outcomes have variance a (1 − a). The variance of the probabilities, at
    most a quarter of the squared bin width, and their covariance with the outcomes are neglected. The result is too large where
    accuracy rises at least half as fast as confidence within the bin, and otherwise too small by at most that quarter.

    Args:
        table: Counts and sums (…, B).
        pseudo: Number of pseudo-rows, half of them correct, distributed over the bins in proportion to their rows: z² for a
            width > 0 where all decisions are correct.
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
    """Return the standard error (…) of Σ_b weight_b |gap_b| of independent rows, with pseudo-rows as in Wilson's interval.

    Args:
        table: Counts and sums (…, B).
        level: Of the interval, which sets the number z² of pseudo-rows.
    """
    pseudo = normal_quantile((1 + check_level(level)) / 2) ** 2
    need_table(table)
    return gap_variance(table, pseudo=pseudo).sum(dim=-1).sqrt()


def chance_decides(table: BinTable, found: BinnedEstimate, *, level: float = 0.95) -> Tensor:
    """Return whether (…) too much of an error may be chance for its interval to have the nominal coverage.

    Args:
        table: Counts and sums (…, B).
        found: The corrected error of ``table``.
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
    """Return the interval of a binned error: see the docstring of this module.

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
            "chance to be a small part of the error",
            (
                f"{float(found.plug_in) * scale:.4f} of which about "
                f"{float(found.plug_in - found.corrected) * scale:.4f} is chance"
            ),
            "use fewer bins or a coarser metric such as ECE(), or measure on more rows",
        )
    # the gate: for a plug-in below the 97.5 % limit if calibrated the lower end is 0, because calibration is not rejected; this
    # keeps the coverage at and near a true error of 0, where the normal approximation fails
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
    """Return for each bin the limits within which a calibrated model's outcome frequency lies with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability for each bin, not for all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. Quantiles of the
            binomial with that mean, and for sampling weights with the effective sample size.

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
        raise refuse(
            f"spread of shape {tuple(table.gap.shape)}, ≥ 0", shown(spread), "pass one number per bin, or None"
        )
