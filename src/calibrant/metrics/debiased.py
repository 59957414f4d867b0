"""Debiased calibration error: the squared error, with what sampling adds to it taken off."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.binning import BinTable
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import Data
from calibrant.metrics._binned import BinnedMetric
from calibrant.statistics import Interval, normal_quantile

__all__ = ["DebiasedECE"]


@dataclass(frozen=True)
class DebiasedECE(BinnedMetric):
    """√max(0, Σ_b |B_b|/N · (gap_b² − a_b (1 − a_b) / (n_b − 1))), with a_b the accuracy and n_b the rows of bin b.

    The mean of gap_b² over samples is the true squared gap plus the variance of a_b, of which the subtracted term is an
    unbiased estimate; so ``squared`` is unbiased. Its root is not (the root of a mean is not the mean of roots), and no
    rooted estimator is: near 0 it is still too high. Bins of a single row, whose variance cannot be estimated, are left out.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import BinaryPairs
        >>> pairs = BinaryPairs.from_probs([0.9] * 10, [1] * 8 + [0] * 2)
        >>> DebiasedECE()(pairs), round(DebiasedECE().squared(pairs), 4)
        (0.0, -0.0078)

    References:
        Kumar, Liang & Ma 2019, Definition 5.1 (the debiased estimator); Bröcker 2012.
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Kumar et al. 2019"

    def errors(self, table: BinTable) -> Tensor:
        """Return the rooted error (…) of tables (…, B)."""
        return squared_errors(table).clamp_min(0).sqrt()

    def squared(self, data: Data) -> float:
        """Return the unbiased squared error, which can be negative."""
        return float(squared_errors(self.cells(data).table()))

    def interval(self, data: Data, *, level: float = 0.95, seed: int = 0, null: Tensor | None = None) -> Interval:
        """Return the root of a normal interval of the squared error.

        Raises:
            NoIntervalError: For clustered rows.
        """
        if data.groups is not None:
            raise NoIntervalError(f"expected independent rows, got groups, for which {self!r} has no interval; use ECE")
        table = self.cells(data).table()
        square, variance, counted = _parts(table)
        # Var(gap²) = 4 δ² v + 2 v² for a normal gap of variance v
        spread = (counted * (4 * (square - variance).clamp_min(0) * variance + 2 * variance.square())).sum().sqrt()
        half = normal_quantile((1 + level) / 2) * float(spread)
        centre = float(squared_errors(table))
        low, high = (math.sqrt(max(0.0, end)) for end in (centre - half, centre + half))
        return Interval(math.sqrt(max(0.0, centre)), low, min(high, 1.0), level, "normal for the square, rooted")


def squared_errors(table: BinTable) -> Tensor:
    """Return the unbiased squared error (…) of tables (…, B)."""
    square, variance, _ = _parts(table)
    return (table.weight * torch.where(table.count > 1, square - variance, 0.0)).sum(dim=-1)


def _parts(table: BinTable) -> tuple[Tensor, Tensor, Tensor]:
    """Return gap² and its excess (…, B), and the squared weights of bins with two rows or more."""
    rate = table.sum_y / table.count.clamp_min(1)
    variance = rate * (1 - rate) / (table.count - 1).clamp_min(1)
    return table.gap.square(), variance, table.weight.square() * (table.count > 1)
