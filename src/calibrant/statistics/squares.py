"""Unbiased squared binned errors, which unlike Σ_b w_b |δ_b| are differentiable at calibration.

``squared_error`` is Σ_b w_b δ_b², the gaps' mean square; ``squared_gaps`` is Σ_b (w_b δ_b)², of the weighted gaps whose absolute sum
is the ECE. The sampling bias of either is subtracted, so both can be negative.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant._core.arguments import check_index, check_row_weight
from calibrant._core.check import check_count, check_row_tensor
from calibrant.binning import BinTable
from calibrant.statistics.binned import gap_variance

__all__ = ["BinnedRows", "left_over", "squared_error", "squared_gaps"]


@dataclass(frozen=True)
class BinnedRows:
    """Each row's bin, probability, outcome and weight.

    Args:
        index: (N,) bin of each row, −1 if in no bin.
        p: (N,) probability.
        y: (N,) outcome.
        bins: B.
        weight: (N,) int64 counts or float64 sampling weights, or None for 1 each.
    """

    index: Tensor
    p: Tensor
    y: Tensor
    bins: int
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        rows = check_row_tensor(self.p, name="p").shape[0]
        check_row_tensor(self.y, name="y", rows=rows)
        check_index(self.index, rows=rows, bins=check_count(self.bins, name="bins"))
        check_row_weight(self.weight, rows=rows)

    def table(self, *, moments: bool = False) -> BinTable:
        """Return the bin table, with ``moments`` its second moments too."""
        return BinTable.from_pairs(self.index, self.p, self.y, bins=self.bins, weight=self.weight, moments=moments)

    @property
    def shares(self) -> Tensor:
        """(N,) float64: the weights, normalised to sum to 1."""
        if self.weight is None:
            return torch.full_like(self.p, 1 / self.p.shape[0], dtype=torch.float64)
        return self.weight.double() / self.weight.sum()


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


def squared_gaps(table: BinTable) -> Tensor:
    """Return the unbiased Σ_b (w_b gap_b)² (…) of tables (…, B), which can be negative.

    A weighted gap d_b is a mean over all rows, so the expectation of its square is too high by its variance, estimated by
    (w_b (a_b (1 − a_b) + gap_b²) − d_b²) / (N − 1), which is subtracted. The variance of the probabilities within a bin, at most a
    quarter of its squared width, is neglected.

    Args:
        table: Counts and sums.

    Examples:
        >>> from calibrant.binning import BinTable
        >>> one = BinTable(torch.tensor([10]), torch.tensor([9.0]).double(), torch.tensor([8.0]).double(), 10)
        >>> round(float(squared_gaps(one)), 4)
        -0.0078

    References:
        Widmann, Lindsten & Zachariah 2019, the unbiased estimator of the squared kernel calibration error.
    """
    left = 1 - table.squared_shares.sum(dim=-1, keepdim=True)
    # not with the table's second moments, so that the metric is one function of counts and sums, however they were summed
    variance = gap_variance(replace(table, second=None)) / torch.where(left > 0, left, 1)
    return torch.where(left > 0, (table.weight * table.gap).square() - variance, 0.0).sum(dim=-1)
