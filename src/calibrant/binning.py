"""Bins of [0, 1], and the table of sums that every binned error, diagram and calibrator is computed from.

Bins are (lo, hi], as in the papers; the first also holds 0, the last holds 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant._check import check_choice, check_count
from calibrant.errors import InputError

__all__ = ["BinTable", "Binning", "EqualMass", "EqualWidth"]


@dataclass(frozen=True, eq=False)
class BinTable:
    """Counts and sums a bin: a sum that merges across batches, processes and machines.

    Args:
        count: (B,) int64, samples in each bin.
        sum_p: (B,) float64, sum of the probabilities.
        sum_y: (B,) float64, sum of the outcomes.
        total: Samples seen, including any that no bin holds (the papers' interpolated equal-mass bins drop some).
    """

    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    total: int

    @classmethod
    def from_pairs(cls, index: Tensor, p: Tensor, y: Tensor, *, bins: int) -> "BinTable":
        """Sum pairs ``p`` (N,), ``y`` (N,) by their bin ``index`` (N,); an index of −1 belongs to no bin."""
        total = int(index.shape[0])
        if total and int(index.min()) < 0:
            keep = index >= 0
            index, p, y = index[keep], p[keep], y[keep]
        return cls(
            count=torch.bincount(index, minlength=bins),
            sum_p=torch.bincount(index, weights=p.to(torch.float64), minlength=bins),
            sum_y=torch.bincount(index, weights=y.to(torch.float64), minlength=bins),
            total=total,
        )

    def __add__(self, other: "BinTable") -> "BinTable":
        if self.count.shape != other.count.shape:
            raise InputError(
                f"expected tables of equally many bins, got {self.count.shape[0]} and {other.count.shape[0]}; "
                "merge tables of one binning only"
            )
        return BinTable(
            self.count + other.count, self.sum_p + other.sum_p, self.sum_y + other.sum_y, self.total + other.total
        )

    @property
    def gap(self) -> Tensor:
        """(B,) float64: mean probability minus mean outcome of each bin; 0 in an empty bin."""
        return (self.sum_p - self.sum_y) / self.count.clamp_min(1)

    @property
    def weight(self) -> Tensor:
        """(B,) float64: share of all samples in each bin."""
        return self.count.to(torch.float64) / max(self.total, 1)

    def error(self, *, norm: float = 1) -> float:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm): ECE for ``norm=1``, RMS calibration error for 2."""
        return float((self.weight * self.gap.abs() ** norm).sum() ** (1 / norm))

    def maximum(self) -> float:
        """Return the largest |gap| of a non-empty bin: MCE."""
        return float(self.gap.abs().max())

    def unweighted(self) -> float:
        """Return the mean |gap| over non-empty bins: ACE."""
        filled = self.count > 0
        return float(self.gap.abs()[filled].mean()) if bool(filled.any()) else 0.0


class Binning(ABC):
    """How probabilities are put into bins: ``EqualWidth`` or ``EqualMass``."""

    bins: int

    @abstractmethod
    def edges(self, p: Tensor) -> Tensor:
        """Return the B′ + 1 increasing edges (float64) that ``p`` (N,) gives."""

    @abstractmethod
    def assign(self, p: Tensor) -> Tensor:
        """Return the bin index (N,) int64 of each of ``p`` (N,), or −1 where no bin holds it."""

    def table(self, p: Tensor, y: Tensor) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}."""
        return BinTable.from_pairs(self.assign(p), p, y, bins=self.bins)


def index_of(p: Tensor, edges: Tensor) -> Tensor:
    """Return the index (N,) of the bin (lo, hi] of ``edges`` (B + 1,) that holds ``p``; below the first: 0, above the last: B − 1."""
    index = torch.bucketize(p.to(torch.float64).contiguous(), edges.to(p.device), right=False) - 1
    return index.clamp_(0, edges.shape[0] - 2)


@dataclass(frozen=True)
class EqualWidth(Binning):
    """Bins ((b−1)/B, b/B] of equal width (Guo et al. 2017; Mukhoti et al. 2020 §2).

    Args:
        bins: Number of bins, ≥ 1.

    Example:
        >>> EqualWidth(bins=10).assign(torch.tensor([0.0, 0.1, 0.11, 1.0], dtype=torch.float64))
        tensor([0, 0, 1, 9])
    """

    bins: int = 15

    def __post_init__(self) -> None:
        check_count(self.bins, name="bins")

    def edges(self, p: Tensor) -> Tensor:
        """Return i / B for i = 0 … B, in float64."""
        return torch.arange(self.bins + 1, dtype=torch.float64, device=p.device) / self.bins

    def assign(self, p: Tensor) -> Tensor:
        """Return the bin index (N,) of each of ``p`` (N,)."""
        return index_of(p, self.edges(p))


@dataclass(frozen=True)
class EqualMass(Binning):
    """Bins of equally many samples (Nguyen & O'Connor 2015; AdaECE in Mukhoti et al. 2020).

    Args:
        bins: Number of bins, ≥ 1.
        ties: ``"together"`` splits the sorted sample as ``numpy.array_split`` does (larger parts first) and keeps
            equal values in the bin of their first row, so that the result does not depend on row order; bins that
            become empty stay empty. ``"interpolated"`` is what the papers' code does: quantile edges by linear
            interpolation and bins (lo, hi], so the least confident sample is always dropped, and on saturated
            ties every sample may be.

    Example:
        >>> EqualMass(bins=2).assign(torch.tensor([0.9, 0.2, 0.9, 0.9]))
        tensor([0, 0, 0, 0])
    """

    bins: int = 15
    ties: Literal["together", "interpolated"] = "together"

    def __post_init__(self) -> None:
        check_count(self.bins, name="bins")
        check_choice(self.ties, name="ties", choices=("together", "interpolated"))

    def edges(self, p: Tensor) -> Tensor:
        """Return the edges: the papers' interpolated quantiles, or the largest value of each filled bin after a leading 0."""
        if self.ties == "interpolated":
            return self._interpolated_edges(p)
        index = self.assign(p)
        upper = torch.full((self.bins,), -1.0, dtype=torch.float64, device=p.device)
        upper.scatter_reduce_(0, index, p.to(torch.float64), reduce="amax")
        upper = upper[upper >= 0]
        return torch.cat([upper.new_zeros(1), upper[:-1], upper.new_ones(1)])

    def assign(self, p: Tensor) -> Tensor:
        """Return the bin index (N,) of each of ``p`` (N,); −1 for samples the interpolated edges drop."""
        p = p.to(torch.float64).contiguous()  # torch warns of a strided column
        if self.ties == "interpolated":
            index = torch.bucketize(p, self._interpolated_edges(p), right=False) - 1
            return torch.where((index >= 0) & (index < self.bins), index, -1)
        first_rank = torch.searchsorted(torch.sort(p).values, p, right=False)
        size, larger = divmod(p.shape[0], self.bins)
        starts = torch.arange(self.bins, device=p.device) * size
        starts += torch.arange(self.bins, device=p.device).clamp_max(larger)
        return torch.searchsorted(starts, first_rank, right=True) - 1

    def _interpolated_edges(self, p: Tensor) -> Tensor:
        # numpy.interp(linspace(0, N, B + 1), arange(N), sorted p): the last point lies past the last rank and clamps
        ranked = torch.sort(p.to(torch.float64)).values
        at = torch.linspace(0, p.shape[0], self.bins + 1, dtype=torch.float64, device=p.device)
        below = at.floor().long().clamp_max(p.shape[0] - 1)
        above = (below + 1).clamp_max(p.shape[0] - 1)
        return ranked[below] + (at - below).clamp(0, 1) * (ranked[above] - ranked[below])
