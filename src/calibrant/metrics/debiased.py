"""The debiased calibration error: the square root of the mean squared gap minus its sampling bias."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.binning import BinTable
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import KeptRows
from calibrant.metrics.calibration_error import BinnedMetric
from calibrant.statistics.design import require_ungrouped
from calibrant.statistics.losses import check_enough_errors
from calibrant.statistics.means import Interval, normal_quantile

FEWEST_BINS = 5.0  # effective number of bins that contribute noise; with fewer, a small square is far from normal
CLEAR = 4.0  # with fewer bins, the square must exceed 0 by this many half-widths of its interval


@dataclass(frozen=True)
class DebiasedECE(BinnedMetric):
    """Debiased calibration error, √max(0, Σ_b |B_b|/N · (gap_b² − a_b (1 − a_b) / (n_b − 1))).

    Bin b has accuracy a_b and n_b rows. The expectation of gap_b² is the true squared gap plus the variance of a_b, and the
    subtracted term is an unbiased estimate of this variance. Bins with a single row, whose variance cannot be estimated, are
    left out. The root of the unbiased square is itself biased: near 0, it is too high on average.

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
        """Return the square root (…) of the debiased squared error for tables (…, B)."""
        return squared_error(table).clamp_min(0).sqrt()

    def interval_of(self, state: BinTable | KeptRows, *, level: float = 0.95) -> Interval:
        """Return the square roots of the ends of a normal interval of the squared error.

        Raises:
            NoIntervalError: If the rows have groups, if there are too few wrong decisions, or if the squared error is near
                0 and comes from few bins.
        """
        table, z = self.table_of(state), normal_quantile((1 + level) / 2)
        require_ungrouped(table.groups, what=self)
        both, right = (
            torch.stack([one.sum() for one in sums])
            for sums in ((table.count.double(), table.squares[0]), (table.sum_y, table.squares[2]))
        )
        check_enough_errors(torch.stack([both - right, right]).cpu(), what=self, weighted=table.weighted)
        square, noise = squared_error(table), table.rate * (1 - table.rate)
        part = table.squares[0] / table.total**2  # Σ v² of each bin, for weights v that sum to 1
        # To first order, row i of bin b contributes 2 δ_b ε_i + δ_b² − θ, whose mean square in the bin is
        # 4 δ_b² a (1 − a) + (δ_b² − θ)². The second-order term ε² adds 2 (a (1 − a) / N)² per bin.
        gaps = (table.gap.square() - noise / (table.effective - 1).clamp_min(1e-300)).clamp_min(0)
        linear = (part * (4 * gaps * noise + (gaps - (table.weight * gaps).sum()).square())).sum()
        each = table.weight / table.effective.clamp_min(1)  # 1 / N, where each row counts once
        error = (linear + 2 * torch.where(table.effective > 1, noise * each, 0.0).square().sum()).sqrt()
        shared = noise.sum().square() / noise.square().sum().clamp_min(1e-300)
        if bool((square < CLEAR * z * error) & (shared < FEWEST_BINS)):
            raise NoIntervalError(
                "a squared error well above chance, or one that many bins contribute to",
                f"neither for {self!r}",
                "use the interval of ECE(), or more rows",
            )
        # A larger square has a larger variance, by 4 c per unit if it is spread evenly over the bins. The upper end is therefore
        # higher by x = z √(error² + 4 c x), which makes the observed value just unlikely enough. Without 4 c x, the end was too low
        # for few rows.
        slope = 2 * z**2 * float((part * noise).sum())
        above = slope + (slope**2 + (z * error).square()).sqrt()
        low, high = (float(end.clamp(0, 1).sqrt()) for end in (square - z * error, square + above))
        return Interval(float(square.clamp_min(0).sqrt()), low, high, level, "normal for the square, rooted")


def squared_error(table: BinTable) -> Tensor:
    """Return the unbiased squared error (…) for tables (…, B), which can be negative.

    Bins with a single row are left out. The expectation of a (1 − a) is the variance of the outcomes times 1 − 1/n, where n
    is the bin's effective sample size. Therefore a (1 − a) / (n − 1) is an unbiased estimate of the variance of their mean a.
    """
    left = table.effective - 1
    squares = table.gap.square() - table.rate * (1 - table.rate) / left
    return (table.weight * torch.where(left > 0, squares, 0.0)).sum(dim=-1)
