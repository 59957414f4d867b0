"""Finite-sample confidence bounds, computed from sums.

For rows y ≥ −B and a bet t ≥ 0, exp(t y − ψ(tB) y² / B²) with ψ(u) = −log(1 − u) − u is at most 1 + t y (Fan, Grama & Liu
2015, lemma 4.1). If E y ≤ 0, the product over independent rows (an e-value) has expectation at most 1, so by Markov's
inequality it exceeds 1/α with probability at most α, for every distribution and number of rows. Its logarithm needs Σ y and
Σ y² only. The e-values of a fixed grid of bets are averaged, so that no bet is chosen by the data.

The calibration error of B bins is θ = Σ_b |E x 1_b| for rows x = p − y in [−1, 1]; it is the maximum over sign vectors s
of E s_b x. Hence
*above*  if θ ≤ c, then E(s_b x − c) ≤ 0 for every s: e-values are averaged over sign vectors;
*below*  if θ ≥ c, then E(c − s_b x) ≤ 0 for at least one s: the smallest e-value over s is used.

The lower bound is the best of three, one of which holds only asymptotically, for bins with many rows: it is sharp where the gaps of
neighbouring bins have opposite signs. Let a_b be the population's |gap| of bin b times its probability, D_b = |Σ_i x_i| / N its
estimate, and s_b the standard error.
Σ_b D_b is biased upward by up to √(2/π) s_b per bin, since an absolute value is. Instead each bin contributes s_b ψ(D_b / s_b),

    ψ(z) = |z| − κ exp(−z² / (2 w²)),    κ such that E ψ(α + Z) ≤ α for every α ≥ 0, Z standard normal,

which is never biased upward and loses little for large gaps. With m(α) and v(α) the mean and variance of ψ(α + Z), V the variance
of the sum and z the normal quantile, √V ≤ (V + V₀) / (2 √V₀) makes the bound a sum over bins, maximised over each unknown gap:

    Σ_b a_b ≥ Σ_b s_b ψ(D_b / s_b) − Σ_b s_b max_α [m(α) − α + t_b v(α)] − z √V₀ / 2,    t_b = z s_b / (2 √V₀),  any V₀ > 0.

Sums of bins are assumed normal, so bins with few expected errors are left out, which only lowers the bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DEVIATIONS = np.array([0.6, 0.45, 0.33, 0.24, 0.17, 0.12, 0.08, 0.05, 0.0])  # SDs of y, a bet for each; 0: the largest
_STAKES = np.array([0.14] * 6 + [0.05, 0.05, 0.06])  # weights of the bets
_LARGEST = 0.9  # largest bet as a fraction of 1/B, at which a single row could reduce the e-value to 0
_BY_SIGNS, _WHOLE, _ALTERNATING = 0.1, 0.3, 0.6  # of α, for the three lower bounds of a calibration error
# places of a normal number, so close that the p-values of interest (.004) are summed from twenty of them or more
_NORMAL = np.linspace(-6, 6, 241)
_ROUNDING = 1e-9  # variance of a row below which it is rounding of its sums
_ROUNDS, _PLACES = 5, 33  # grid search, accurate to 32^−5 of the range
WIDTH = 0.8  # w; a smaller w loses less at large gaps and has a larger variance at small ones
# smallest Σ p (1 − p) of a bin that is used, in units of log 1/α: further into the tail, normality needs more rows
_FEWEST = 2.0
_SLOPES = np.linspace(0.0, 3.0, 301)  # of t
_VARIANCES = np.linspace(0.7, 1.7, 6)  # V₀ in units of Σ s²


@dataclass(frozen=True)
class Moments:
    """Sums of rows x by bin.

    Args:
        count: (…, B) number of rows.
        total: (…, B) Σ x.
        squares: (…, B) Σ x².
    """

    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, x: Floats, index: NDArray[np.int64] | None = None, *, bins: int = 1) -> "Moments":
        """Return the sums of ``x`` (N,) by bin ``index`` (N,), or of one bin."""
        where = np.zeros(len(x), dtype=np.int64) if index is None else index
        sums = [np.bincount(where, weights=w, minlength=bins).astype(float) for w in (np.ones(len(x)), x, x * x)]
        return cls(*sums)


def share_ends(successes: float, rows: float, *, alpha: float) -> tuple[float, float]:
    """Return the Clopper–Pearson bounds of a probability, each missed with probability at most ``alpha``.

    Examples:
        >>> low, high = share_ends(0, 100, alpha=0.025)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.036)
    """
    from scipy.special import betaincinv

    low = 0.0 if successes <= 0 else float(betaincinv(successes, rows - successes + 1, alpha))
    high = 1.0 if successes >= rows else float(betaincinv(successes + 1, rows - successes, 1 - alpha))
    return low, high


def mean_ends(moments: Moments, *, low: float, high: float, alpha: float) -> tuple[float, float]:
    """Return bounds of the mean of independent rows in [low, high], each missed with probability at most ``alpha``.

    Args:
        moments: Sums of the rows, as one bin.
        low: Smallest possible value of a row.
        high: Largest possible value of a row.
        alpha: In (0, 1).
    """
    width = high - low
    n, total = float(moments.count.sum()), float(moments.total.sum())
    unit = (total - n * low) / width  # Σ of (row − low) / width, in [0, 1]
    squares = (float(moments.squares.sum()) - 2 * low * total + n * low * low) / width**2

    def above(c: Floats) -> Floats:
        return _log_stake(unit - c * n, squares - 2 * c * unit + c * c * n, largest=c, rows=n, alpha=alpha)

    def below(c: Floats) -> Floats:
        return _log_stake(c * n - unit, squares - 2 * c * unit + c * c * n, largest=1 - c, rows=n, alpha=alpha)

    needed, mean = math.log(1 / alpha), unit / n
    return (
        low + width * _last(lambda c: above(c) >= needed, mean),
        low + width * _first(lambda c: below(c) >= needed, mean, 1.0),
    )


def calibration_ends(moments: Moments, *, confidences: Floats, alpha: float) -> tuple[float, float]:
    """Return bounds of a binned calibration error Σ_b |E x 1_b|, each missed with probability at most ``alpha``.

    Args:
        moments: (B,) sums of p − y by bin.
        confidences: (B,) sums of p by bin.
        alpha: In (0, 1). The lower bound uses 30 % of it for the binomial test of over- or underconfidence overall, 60 %
            for gaps of alternating signs, and 10 % for e-values of all sign vectors, which are valid for any number of errors.
    """
    plug_in = float(np.abs(moments.total).sum() / moments.count.sum())
    mean, signs, below = confidences.sum() / moments.count.sum(), _BY_SIGNS * alpha, math.log(1 / alpha)
    low = max(
        _last(lambda c: log_above(moments, c, alpha=signs) >= -math.log(signs), plug_in),
        _last(lambda c: whole_gap_p(moments, mean, c) <= _WHOLE * alpha / 2, plug_in),
        float(alternating_low(moments, confidences, alpha=_ALTERNATING * alpha)),
    )
    return low, _first(lambda c: log_below(moments, c, alpha=alpha) >= below, plug_in, 1.0)


def fails_limit(moments: Moments, *, confidences: Floats, limit: float, alpha: float) -> NDArray[np.bool_]:
    """Return whether the lower bound of ``calibration_ends`` is above ``limit``, for many samples (R,) at once.

    Args:
        moments: (R, B) sums of p − y by bin.
        confidences: (R, B) sums of p by bin.
        limit: Limit on the calibration error.
        alpha: In (0, 1).
    """
    mean = confidences.sum(axis=-1) / moments.count.sum(axis=-1)
    by_signs = log_above(moments, limit, alpha=_BY_SIGNS * alpha) >= -math.log(_BY_SIGNS * alpha)
    whole = whole_gap_p(moments, mean, limit) <= _WHOLE * alpha / 2
    return np.asarray(by_signs | whole | (alternating_low(moments, confidences, alpha=_ALTERNATING * alpha) > limit))


def log_above(moments: Moments, limit: float | Floats, *, alpha: float) -> Floats:
    """Return the log e-value (…) against "the calibration error is at most ``limit``", which is rejected at α if ≥ log(1/α).

    Args:
        moments: (…, B) sums of p − y by bin.
        limit: One number, or (…).
        alpha: The level for which the bets are optimised.
    """
    c = _limits(limit, moments)
    bet, scale = _bets(float(moments.count.sum(axis=-1).max()), 1 + c, alpha)  # (9, …, 1)
    plus, minus = (bet * (s * moments.total - c * moments.count) - scale * _squares(moments, s * c) for s in (1, -1))
    free = np.sum(np.logaddexp(plus, minus) - math.log(2), axis=-1)  # the mean over all sign vectors
    return _mixed(np.logaddexp(free, _one_change(plus, minus)) - math.log(2))


def log_below(moments: Moments, limit: float | Floats, *, alpha: float) -> Floats:
    """Return the log e-value (…) against "the calibration error is at least ``limit``"; arguments as ``log_above``."""
    c = _limits(limit, moments)
    # the error is at most 1: at that limit a bet cannot lose, but must stay finite
    bet, scale = _bets(float(moments.count.sum(axis=-1).max()), np.maximum(1 - c, 1e-12), alpha)
    plus, minus = (bet * (c * moments.count - s * moments.total) - scale * _squares(moments, s * c) for s in (1, -1))
    return _mixed(np.minimum(plus, minus).sum(axis=-1))


def whole_gap_p(moments: Moments, confidence: float | Floats, limit: float | Floats) -> Floats:
    """Return the smaller of both one-sided p-values (…) of |E p − accuracy| ≤ limit, for rows whose confidences are drawn too.

    The number of correct rows minus its expectation under the limit is binomial (conservative for unequal probabilities, Hoeffding
    1956), exact however few errors are expected. The sample's mean confidence differs from E p, which adds Var(p) − 2 Cov(p, y) a
    row where that is positive: the variance of p − y beyond that of y. This part is a mean of all rows, and taken as normal.
    """
    from scipy.special import bdtr, bdtrc

    count, total = moments.count.sum(axis=-1), moments.total.sum(axis=-1)
    rows = np.rint(count).astype(np.int64)
    right = np.rint(confidence * rows - total)
    rate = right / np.maximum(rows, 1)
    beyond = moments.squares.sum(axis=-1) - total**2 / np.maximum(count, 1) - rows * rate * (1 - rate)
    noise = np.sqrt(np.where(beyond > _ROUNDING * count, beyond, 0.0))
    z = _NORMAL if np.any(noise > 0) else np.zeros(1)
    mass = np.exp(-(z**2) / 2)
    mass = mass / mass.sum()
    shape = np.broadcast_shapes(np.shape(right), np.shape(limit))
    seen, mean, bound, size, scale = (
        np.broadcast_to(part, shape)[..., None] for part in (right, confidence, limit, rows, noise)
    )
    moved = seen - z * scale
    up_to, least = np.floor(moved + 1e-9), np.ceil(moved - 1e-9)
    over = bdtr(np.clip(up_to, 0, size), size, np.clip(mean - bound, 0, 1))
    under = bdtrc(np.clip(least - 1, 0, size), size, np.clip(mean + bound, 0, 1))
    over, under = np.where(up_to < 0, 0.0, over) @ mass, np.where(least <= 0, 1.0, under) @ mass
    return np.asarray(np.minimum(over, under))


def alternating_low(moments: Moments, confidences: Floats, *, alpha: float) -> Floats:
    """Return the lower bound (…) of Σ_b |E x 1_b|, missed with probability at most ``alpha`` for bins with many rows.

    Args:
        moments: (…, B) sums of x = p − y by bin.
        confidences: (…, B) sums of p by bin.
        alpha: In (0, 1/2).
    """
    from scipy.special import ndtri

    count, total, rows = moments.count, moments.total, moments.count.sum(axis=-1, keepdims=True)
    p = confidences / np.maximum(count, 1)
    expected = count * p * (1 - p)
    counts = expected >= _FEWEST * math.log(1 / alpha)
    # a bin with few errors by chance must not get a smaller variance than its confidences imply
    spread = np.where(counts, np.sqrt(np.maximum(moments.squares - total**2 / rows, expected)) / rows, 0.0)
    z = np.where(counts, np.abs(total) / rows / np.where(counts, spread, 1.0), 0.0)
    factor, costs = _bound_by_slope()
    seen = (spread * (z - factor * np.exp(-(z**2) / (2 * WIDTH**2)))).sum(axis=-1)
    quantile, variance = float(-ndtri(alpha)), (spread**2).sum(axis=-1)
    best = np.full(np.shape(seen), math.inf)
    for unit in _VARIANCES:
        root = np.sqrt(np.maximum(unit * variance, 1e-300))
        slopes = quantile * spread / (2 * root[..., None])
        lost = (spread * np.interp(slopes, _SLOPES, costs)).sum(axis=-1) + quantile * root / 2
        best = np.minimum(best, lost)
    left: Floats = np.maximum(seen - best, 0.0)
    return left


@cache
def _bound_by_slope() -> tuple[float, Floats]:
    """Return κ, and max_α [m(α) − α + t v(α)] at ``_SLOPES``."""
    gaps, z = np.linspace(0, 8, 161), np.linspace(-9, 17, 2601)
    density = np.exp(-((z - gaps[:, None]) ** 2) / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    dip = np.exp(-(z**2) / (2 * WIDTH**2))
    factor = float(((density @ np.abs(z) - gaps) / (density @ dip)).max())
    values = np.abs(z) - factor * dip
    mean = density @ values
    variance = density @ values**2 - mean**2
    return factor, np.asarray((mean - gaps + _SLOPES[:, None] * variance).max(axis=1))


def _limits(limit: float | Floats, moments: Moments) -> Floats:
    return np.broadcast_to(limit, np.broadcast_shapes(np.shape(limit), moments.count.shape[:-1]))[..., None]


def _squares(moments: Moments, centre: Floats) -> Floats:
    """Return Σ (x − centre)² by bin."""
    return np.asarray(moments.squares - 2 * centre * moments.total + centre * centre * moments.count)


def _one_change(plus: Floats, minus: Floats) -> Floats:
    """Return the log of the mean e-value over the sign vectors that change sign at most once from bin to bin."""
    start = np.zeros((*plus.shape[:-1], 1))
    up = np.concatenate([start, np.cumsum(plus, axis=-1)], axis=-1)
    down = np.concatenate([start, np.cumsum(minus, axis=-1)], axis=-1)
    logs = np.concatenate([up + down[..., -1:] - down, down + up[..., -1:] - up], axis=-1)
    return np.asarray(np.logaddexp.reduce(logs, axis=-1) - math.log(logs.shape[-1]))


def _bets(rows: float, largest: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return t and ψ(tB)/B² (9, …) of the bets on rows y ≥ −B = −``largest`` (…)."""
    deviations = _DEVIATIONS.reshape(-1, *[1] * np.ndim(largest))
    with np.errstate(divide="ignore"):
        bets = np.minimum(math.sqrt(2 * math.log(1 / alpha) / rows) / deviations, _LARGEST / largest)
    return bets, (-np.log1p(-bets * largest) - bets * largest) / largest**2


def _mixed(logs: Floats) -> Floats:
    """Return the log of the weighted mean e-value over the bets, the first axis."""
    return np.asarray(np.logaddexp.reduce(logs + np.log(_STAKES).reshape(-1, *[1] * (logs.ndim - 1)), axis=0))


def _log_stake(total: Floats, squares: Floats, *, largest: Floats, rows: float, alpha: float) -> Floats:
    bet, scale = _bets(rows, np.maximum(largest, 1e-12), alpha)
    # at limit 0, rows cannot lie below it, so a single row above it disproves it
    return np.where(largest > 0, _mixed(bet * total - scale * squares), np.where(total > 0, math.inf, 0.0))


def _last(holds: Callable[[Floats], NDArray[np.bool_]], high: float) -> float:
    """Return the largest c in [0, ``high``] up to which ``holds`` is true; 0 if it is false at 0."""
    low = 0.0
    for _ in range(_ROUNDS):
        places = np.linspace(low, high, _PLACES)
        first = int(np.argmin(holds(places)))  # the first that does not hold; 0 also if all do
        if first == 0:
            return high if bool(holds(places[-1:])[0]) else low
        low, high = float(places[first - 1]), float(places[first])
    return low


def _first(holds: Callable[[Floats], NDArray[np.bool_]], low: float, high: float) -> float:
    """Return the smallest c in [low, high] from which ``holds`` is true up to ``high``; ``high`` if there is none."""
    for _ in range(_ROUNDS):
        places = np.linspace(low, high, _PLACES)
        last = _PLACES - 2 - int(np.argmin(holds(places[:-1])[::-1]))  # the last that does not hold
        if bool(holds(places[last : last + 1])[0]):
            return low
        low, high = float(places[last]), float(places[last + 1])
    return high
