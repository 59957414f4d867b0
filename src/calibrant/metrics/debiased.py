"""The debiased calibration error: the root of a mean squared gap less its sampling bias."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.constraints import Draws, Level, Seed
from calibrant.binning import BinTable
from calibrant.data.checks import Rows
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import BinnedMetric, KeptRows
from calibrant.statistics.binned import left_over, squared_error
from calibrant.statistics.enough import check_enough_errors, need_independent
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import Interval

FEWEST_BINS = 5.0  # effective number of bins in the noise; with fewer, a small square is far from normal
CLEAR = 4.0  # with fewer bins the square must exceed 0 by this many half-widths of its interval


@dataclass(frozen=True)
class DebiasedECE(BinnedMetric):
    """√max(0, Σ_b |B_b|/N · (gap_b² − a_b (1 − a_b) / (n_b − 1))), with a_b the accuracy and n_b the rows of bin b.

    The expectation of gap_b² is the true squared gap plus the variance of a_b, of which the subtracted term is an unbiased
    estimate. Bins of a single row, whose variance cannot be estimated, are left out. The root of the unbiased square is not unbiased:
    near 0 it is still too high on average.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Pairs
        >>> DebiasedECE()(Pairs.from_probs([0.9] * 10, [1] * 8 + [0] * 2))
        0.0

    References:
        Kumar, Liang & Ma 2019, Definition 5.1 (the debiased estimator); Bröcker 2012.
    """

    cite = "Kumar et al. 2019"

    def errors(self, table: BinTable) -> Tensor:
        """Return the rooted error (…) of tables (…, B)."""
        return squared_error(table).clamp_min(0).sqrt()

    def interval(self, data: Rows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the root of a normal interval of the squared error.

        Raises:
            NoIntervalError: For grouped rows, for few wrong decisions, and where few bins decide a square near 0.
        """
        need_independent(data.groups, what=self)
        return self.interval_of(self.table(data), level=level)

    def interval_of(self, state: BinTable | KeptRows, *, level: float) -> Interval:
        """Return the interval from a state of independent rows."""
        table = self.table_of(state)
        check_enough_errors(table.decided, what=self, weighted=table.squares is not None)
        square, error = squared_error(table), square_error(table)
        if bool(few_bins_decide(table, square, error, level=level)):
            raise NoIntervalError(
                "a squared error well above chance, or one that many bins share",
                f"neither for {self!r}",
                "use the interval of ECE(), or measure on more rows",
            )
        z = normal_quantile((1 + level) / 2)
        # A larger square varies more: by 4 c for each unit, spread evenly over the bins. So the upper end lies x higher with
        # x = z √(error² + 4 c x), where what was seen is the least likely; with the error alone it lay too low for few rows.
        slope = 2 * z**2 * float((table.squared_shares * table.rate * (1 - table.rate)).sum())
        above = slope + (slope**2 + (z * error).square()).sqrt()
        low, high = (float(end.clamp(0, 1).sqrt()) for end in (square - z * error, square + above))
        return Interval(float(square.clamp_min(0).sqrt()), low, high, level, "normal for the square, rooted")


def square_error(table: BinTable) -> Tensor:
    """Return the standard error (…) of ``squared_error``, from the gaps of tables (…, B).

    To first order row i of bin b contributes 2 δ_b ε_i + δ_b² − θ, with the mean square 4 δ_b² a (1 − a) + (δ_b² − θ)² in the bin;
    the second-order term ε² adds 2 (a (1 − a) / N)² per bin.
    """
    noise = table.rate * (1 - table.rate)
    square = (table.gap.square() - noise / left_over(table)).clamp_min(0)
    whole = (table.weight * square).sum(dim=-1, keepdim=True)
    linear = (table.squared_shares * (4 * square * noise + (square - whole).square())).sum(dim=-1)
    each = table.weight / table.effective.clamp_min(1)  # 1 / N, where each row counts once
    quadratic = 2 * torch.where(table.effective > 1, noise * each, 0.0).square().sum(dim=-1)
    return (linear + quadratic).sqrt()


def few_bins_decide(table: BinTable, square: Tensor, error: Tensor, *, level: float) -> Tensor:
    """Return whether (…) a square is near 0 and few bins decide it, so that its distribution is far from normal."""
    noise = table.rate * (1 - table.rate)
    shared = noise.sum(dim=-1).square() / noise.square().sum(dim=-1).clamp_min(1e-300)
    half = normal_quantile((1 + level) / 2) * error
    return (square < CLEAR * half) & (shared < FEWEST_BINS)
