"""Intervals for binned calibration errors, where neither the bootstrap nor a normal interval of the plug-in covers.

Let d_b = Σ_{i in b} (p_i − y_i) / N be the signed gap of bin b times its weight: E d_b = δ_b, and d_b is close to normal
with standard error s_b. The error is Σ_b |δ_b|, its plug-in Σ_b |d_b|.

*Correction.* E|d_b| is the mean of a folded normal, f(δ, s) = s √(2/π) exp(−δ²/2s²) + |δ| (2Φ(|δ|/s) − 1) ≥ |δ|: what
finite samples add. The corrected error solves f(m_b, s_b) = |d_b| for each bin (m_b = 0 where |d_b| ≤ s_b √(2/π), the
least a folded normal can have as its mean) and sums the m_b.

*Width.* Where |δ_b| ≫ s_b the error is locally linear in d, with variance Σ_b s_b²; nearer to 0 |d_b| varies less, so
that this is an upper bound.

*Ends.* low = corrected − z √Σ s_b², but 0 unless the plug-in exceeds the (1 + level)/2 quantile of what a calibrated
model shows (its exact null distribution): at δ = 0, where the error is not differentiable, the test covers, by
construction, at (1 + level)/2. high = corrected + LIFT · (plug-in − corrected) + z √Σ s_b², or the plug-in if that is more:
the correction overshoots where |δ_b| ≈ s_b, and LIFT, set by simulation, gives back a part of it.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.binning import BinTable
from calibrant.statistics._resampling import quantiles
from calibrant.statistics.interval import Interval, normal_quantile

__all__ = ["BinnedEstimate", "consistency_bars", "corrected_error", "error_interval", "interval_ends"]

LIFT = 0.15
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

    Example:
        >>> one = BinTable(torch.tensor([100]), torch.tensor([80.0]).double(), torch.tensor([79.0]).double(), 100)
        >>> estimate = corrected_error(one)
        >>> estimate.plug_in.item() > estimate.corrected.item()
        True
    """
    signed = table.gap * table.weight
    spread = gap_variance(table).sqrt() if spread is None else spread
    corrected = unfold(signed.abs(), spread)
    return BinnedEstimate(signed.abs().sum(dim=-1), corrected.sum(dim=-1), spread.square().sum(dim=-1).sqrt())


def gap_variance(table: BinTable) -> Tensor:
    """Return the variance s_b² (…, B) of weight_b · gap_b, the rows' bins being random too.

    From counts and sums alone: within a bin the outcomes' variance is a (1 − a); that of the probabilities, at most a
    quarter of the squared bin width, is left out, to the safe side.
    """
    rate = table.sum_y / table.count.clamp_min(1)
    second = table.weight * (rate * (1 - rate) + table.gap.square())
    return (second - (table.weight * table.gap).square()).clamp_min(0) / max(table.total, 1)


def unfold(folded: Tensor, spread: Tensor) -> Tensor:
    """Return the m ≥ 0 whose folded normal |N(m, spread²)| has the mean ``folded``; 0 if none is that small."""
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
        error: Standard error of the sum over bins; None takes √Σ spread².
        scale: The error is ``scale`` times the sum over bins (1/K for the mean over K classes).

    Returns:
        Interval: ``estimate`` is the plug-in; the true value is that of the population in these same bins.
    """
    found = corrected_error(table, spread=spread)
    if error is not None:
        found = replace(found, error=torch.as_tensor(error))
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
    half = normal_quantile((1 + level) / 2) * found.error
    low = torch.where(found.plug_in > gate, (found.corrected - half).clamp_min(0), 0.0)
    return low, torch.maximum(found.centre + half, found.plug_in)


def consistency_bars(table: BinTable, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return, for each bin, between which outcome frequencies a calibrated model stays with probability ``level``.

    Args:
        table: Counts and sums (B,).
        level: Probability of a bin, not of all bins together.

    Returns:
        low, high: (B,) float64 frequencies around the bin's mean probability; NaN for an empty bin. Exact for the
        binomial with that mean.

    Example:
        >>> one = BinTable(torch.tensor([100]), torch.tensor([80.0]).double(), torch.tensor([60.0]).double(), 100)
        >>> low, high = consistency_bars(one)
        >>> low.item(), high.item()
        (0.72, 0.88)

    References:
        Bröcker & Smith 2007.
    """
    from scipy.stats import binom

    count = table.count.cpu().double()
    mean = (table.sum_p.cpu() / count.clamp_min(1)).clamp(0, 1)
    tail = (1 - level) / 2
    ends = [torch.from_numpy(binom.ppf(q, count.numpy(), mean.numpy())) / count for q in (tail, 1 - tail)]
    low, high = (torch.where(count > 0, end, torch.nan) for end in ends)
    return low, high
