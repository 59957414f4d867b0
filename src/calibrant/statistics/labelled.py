"""The regression estimate of a pool's mean from few labelled rows, and its interval.

Batches 1 … K of labelled rows are drawn without replacement, batch k from the rows that are left, with inclusion probability
π_i. With the weight ω_k of a batch that of row i of batch k is

    W_i = ω_k / π_i + Σ_{l > k} ω_l,

as it is known for certain when later batches are drawn. Of N_k rows left an even draw of n_k has a variance in proportion to
N_k (N_k − n_k) / n_k, and ω_k to its inverse: even batches so make up one even draw, and a batch of all that is left leaves no
doubt. Σ W_i f_i / N is unbiased whatever the design has learned from earlier
labels, since each batch is so given those before it. The estimate is that of the residuals from a regression on the expected
values m, plus the regression's mean over the pool.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_FEWEST = 10  # informative residuals below which the logarithm of the likelihood ratio is compared with that of one rare event
_ROUNDING = 1e-12  # of its parts, within which a residual is 0


@dataclass(frozen=True)
class Drawn:
    """Labelled rows and how they were drawn.

    Args:
        batch: (n,) number of the batch of each row, from 0.
        inclusion: (n,) its probability in that batch, given the batches before.
        pool: Number of rows N of the pool.
        answered: (n,) fraction of the rows of its batch that were labelled, or None for all. Rows without a label count as
            left out by chance.
    """

    batch: Integers
    inclusion: Floats
    pool: int
    answered: Floats | None = None

    @property
    def labelled(self) -> Floats:
        """(n,) the probability of each row to be drawn and labelled."""
        return self.inclusion if self.answered is None else self.inclusion * self.answered

    @property
    def mixing(self) -> Floats:
        """(K,) ω of each batch."""
        sizes = np.bincount(self.batch).astype(float)
        drawn = sizes if self.answered is None else np.bincount(self.batch, 1 / self.answered)
        left = np.maximum(self.pool - np.cumsum(drawn) + drawn, sizes)
        spread = left * (left - sizes) / sizes
        found = (spread == 0).astype(float) if (spread == 0).any() else 1 / spread
        return np.asarray(found / found.sum())

    @property
    def weights(self) -> Floats:
        """(n,) W: how many rows of the pool each labelled row stands for."""
        later = 1 - np.cumsum(self.mixing)
        known = later[self.batch] if self.answered is None else later[self.batch] / self.answered
        return np.asarray(self.mixing[self.batch] / self.labelled + known)

    @property
    def factors(self) -> Floats:
        """(n,) what a residual is multiplied by in its term: N⁻¹ of its weight, with a correction for a finite population.

        The correction is exact for no events among n drawn evenly, and elsewhere √(1 − π) or slightly more.
        """
        part = self.labelled
        kept = np.where(part < 1, part, 0.5)
        return np.asarray(
            np.where(part < 1, -kept / np.log1p(-kept), 0.0) * len(part) * self.mixing[self.batch] / (part * self.pool)
        )


@dataclass(frozen=True)
class Terms:
    """Independent terms whose mean is an estimate.

    Args:
        centre: The estimate.
        values: (n,) terms around it, each times its finite-population correction; their mean is 0.
        low: The smallest value that a term can have.
        high: The largest.
        lost: Degrees of freedom that the regression took.
    """

    centre: float
    values: Floats
    low: float
    high: float
    lost: int = 1

    @property
    def informative(self) -> float:
        """The effective number of terms that differ from 0: for events of probability p about n p."""
        squares = self.values**2
        fourth = float((squares**2).sum())
        return float(squares.sum()) ** 2 / fourth if fourth > 0 else 0.0


def terms_of(seen: Floats, expected: Floats, bounds: tuple[Floats, Floats], drawn: Drawn, mean: float) -> Terms:
    """Return the terms of the regression estimate.

    Args:
        seen: (n,) f of the labelled rows.
        expected: (n,) m of them.
        bounds: (n,) smallest and (n,) largest value of f of each.
        drawn: How they were drawn.
        mean: The mean of m over the pool.

    References:
        Särndal, Swensson and Wretman 1992, Model Assisted Survey Sampling, §6.4 (regression estimate, g-weights).
    """
    weights, slope, lost = drawn.weights, 1.0, 1
    total = weights.sum()
    centred = expected - (weights @ expected) / total
    square = float(weights @ centred**2)
    # Where all expectations are equal but for rounding there is nothing to regress on.
    varies = square > 1e-18 * float(weights @ expected**2)
    if len(seen) >= 3 * _FEWEST and varies:
        # Calibrated expectations have slope 1; the labels are combined with ten labelled rows' worth of that prior.
        prior = square * _FEWEST / len(seen)
        slope, lost = (float(weights @ (centred * seen)) + prior) / (square + prior), 2
    level = float(weights @ (seen - slope * expected)) / total
    residual = seen - slope * expected - level
    # A residual of rounding would count as information on the variance, where no event was seen.
    residual[np.abs(residual) <= _ROUNDING * (np.abs(seen) + np.abs(slope * expected) + abs(level))] = 0.0
    estimate = slope * mean + level
    factor = drawn.factors
    values = factor * residual
    low, high = (factor * (bound - slope * expected - level) for bound in bounds)
    middle = values.mean()
    return Terms(estimate, values - middle, float(low.min() - middle), float(high.max() - middle), lost)


def interval_of(terms: Terms, *, alpha: float, shared: float = 0.0) -> tuple[float, float]:
    """Return the ends of the interval of the mean of bounded terms, by the empirical likelihood ratio.

    Whatever distribution on [low, high] has the mean μ, the likelihood of the terms under it is at most exp(−n K(μ)) times
    that of the terms' own distribution, with n K(μ) = max_λ Σ log(1 + λ (x_i − μ)). Since the distribution may hold values that
    were not drawn, the interval stays wide where no informative row was seen. Twice n K is compared with the squared quantile
    of Student's t for the number of informative terms, and n K at most with log(2 / α), the bound for an event not seen.

    Args:
        terms: The terms.
        alpha: One minus the nominal coverage.
        shared: Informative terms of other means whose residuals have the same cause, so that they tell of these terms' variance.

    References:
        Owen 2001, Empirical Likelihood, §2.2; Honda and Takemura 2010, §3 (distributions on a bounded interval).
    """
    from scipy.special import stdtrit

    rare = -math.log(alpha / 2)
    degrees = max(terms.informative + shared - terms.lost, 1.0)
    limit = min(float(stdtrit(degrees, 1 - alpha / 2)) ** 2 / 2, rare)
    limit *= len(terms.values) / max(len(terms.values) - 1 - terms.lost, 1)
    upper = _end(terms.values, max(terms.high, float(terms.values.max())), limit)
    lower = -_end(-terms.values, max(-terms.low, -float(terms.values.min())), limit)
    return terms.centre + lower, terms.centre + upper


def _end(values: Floats, high: float, limit: float) -> float:
    """Return the largest mean whose likelihood ratio is within ``limit``, for terms of mean 0 that are at most ``high``.

    With t = λ / (1 + λ μ) the ratio is Σ log(1 − t x) − n log(1 − t μ). Its derivative in t is 0 at μ = s / (1 + t s), with
    s = Σ x / (1 − t x) / n, so that both μ and the ratio n log(1 + t s) + Σ log(1 − t x) are functions of t alone, which grow up to
    its bound 1 / high. Beyond, t stays there.
    """
    from scipy.optimize import brentq

    if high <= 0:
        return 0.0
    count, top = len(values), (1 - 1e-12) / high

    def tilted(t: float) -> tuple[float, float]:
        kept = 1 - t * values
        return float((values / kept).sum()) / count, float(np.log(kept).sum())

    level, logs = tilted(top)
    if count * math.log1p(top * level) + logs <= limit:
        return high * -math.expm1((logs - limit) / count)

    def above(t: float) -> float:
        level, logs = tilted(t)
        return count * math.log1p(t * level) + logs - limit

    t = float(brentq(above, 0.0, top, xtol=1e-12 * top, rtol=1e-12))
    level, _ = tilted(t)
    return level / (1 + t * level)
