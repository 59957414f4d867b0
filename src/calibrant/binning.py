"""Bins of [0, 1], and the table of sums that every binned error, diagram and calibrator is computed from.

Bins are (lo, hi], as in the papers; the first also holds 0, the last holds 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._check import check_choice, check_count
from calibrant._kernels import cpu, cuda_sums
from calibrant._numerics import row_chunks
from calibrant.errors import InputError

__all__ = ["BinTable", "Binning", "EqualMass", "EqualWidth", "MassSketch"]

TIE = 1e-12  # a probability through log and exp, as calibrators give it, is off by less; nearer ones count as equal
_BLOCK = 1 << 15
_MANY_BINS = 10_000  # beyond, rounding of a product may be off by a bin, and a search among the edges decides
_FEW_BINS = 64  # up to so many an accelerator sums by a product with the membership matrix


@dataclass(frozen=True, eq=False)
class BinTable:
    """Counts and sums a bin: a sum that merges across batches, processes and machines.

    Args:
        count: (B,) int64, samples in each bin.
        sum_p: (B,) float64, sum of the probabilities.
        sum_y: (B,) float64, sum of the outcomes; (…, B) is as many tables with the same probabilities.
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
        if index.is_cuda and bins <= _FEW_BINS:
            return cls(*_device_sums(index, p, y, bins), total=total)
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
        """(…, B) float64: mean probability minus mean outcome of each bin; 0 in an empty bin."""
        return (self.sum_p - self.sum_y) / self.count.clamp_min(1)

    @property
    def weight(self) -> Tensor:
        """(B,) float64: share of all samples in each bin."""
        return self.count.to(torch.float64) / max(self.total, 1)

    def errors(self, *, norm: float = 1) -> Tensor:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm) for each table (…)."""
        if norm == 1:
            return (self.weight * self.gap.abs()).sum(dim=-1)
        return (self.weight * self.gap.abs() ** norm).sum(dim=-1) ** (1 / norm)

    def error(self, *, norm: float = 1) -> float:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm): ECE for ``norm=1``, RMS calibration error for 2."""
        return float(self.errors(norm=norm))

    def maximum(self) -> float:
        """Return the largest |gap| of a non-empty bin: MCE."""
        return float(self.gap.abs().max())


class Binning(ABC):
    """How probabilities are put into bins: ``EqualWidth`` or ``EqualMass``."""

    bins: int

    @abstractmethod
    def edges(self, p: Tensor) -> Tensor:
        """Return the B′ + 1 increasing edges (float64) that ``p`` (N,) gives."""

    @abstractmethod
    def assign(self, p: Tensor) -> Tensor:
        """Return the bin index (N,) int64 of each of ``p`` (N,), or −1 where no bin holds it."""

    @abstractmethod
    def table(self, p: Tensor, y: Tensor) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}."""


def _device_sums(index: Tensor, p: Tensor, y: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, Σp and Σy a bin as one matrix product: millions of atomic additions into a few bins would queue."""
    totals = p.new_zeros(bins, 3, dtype=torch.float64)
    names = torch.arange(bins, device=index.device)
    for rows in row_chunks(index.shape[0], bins, device=index.device):
        member = (index[rows, None] == names).double()
        columns = torch.stack(
            [torch.ones_like(p[rows], dtype=torch.float64), p[rows].double(), y[rows].double()], dim=1
        )
        totals += member.T @ columns
    count, sum_p, sum_y = totals.unbind(dim=1)
    return count.round().long(), sum_p, sum_y


def index_of(p: Tensor, edges: Tensor) -> Tensor:
    """Return the index (N,) of the bin (lo, hi] of ``edges`` (B + 1,) that holds ``p``; below the first: 0, above the last: B − 1."""
    index = torch.bucketize(p.to(torch.float64).contiguous(), edges.to(p.device), right=False) - 1
    return index.clamp_(0, edges.shape[0] - 2)


@dataclass(frozen=True)
class EqualWidth(Binning):
    """Bins ((b−1)/B, b/B] of equal width (Guo et al. 2017; Mukhoti et al. 2020 §2).

    Args:
        bins: Number of bins, ≥ 1.

    Examples:
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
        edges = self.edges(p)
        if self.bins > _MANY_BINS:
            return index_of(p, edges)
        # in blocks whose temporaries stay in the cache
        return torch.cat([self._assign(part.to(torch.float64), edges) for part in p.split(_BLOCK)])

    def table(self, p: Tensor, y: Tensor) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}."""
        if p.is_cuda and self.bins <= cuda_sums.MOST_BINS and p.shape[0] and cuda_sums.available():
            return BinTable(*cuda_sums.bin_sums(p, y, self.edges(p)), total=p.shape[0])
        if cpu.serves(p) and self.bins <= _MANY_BINS:
            return BinTable(*cpu.pair_bins(p, y, self.edges(p)), total=p.shape[0])
        block = p.shape[0] if p.is_cuda else _BLOCK
        parts = zip(p.split(block), y.split(block), strict=True)
        tables = [BinTable.from_pairs(self.assign(part), part, hit, bins=self.bins) for part, hit in parts]
        return BinTable(
            count=torch.stack([table.count for table in tables]).sum(dim=0),
            sum_p=torch.stack([table.sum_p for table in tables]).sum(dim=0),
            sum_y=torch.stack([table.sum_y for table in tables]).sum(dim=0),
            total=p.shape[0],
        )

    def _assign(self, p: Tensor, edges: Tensor) -> Tensor:
        # Four times faster than a search among the edges, and the same: where rounding could decide, the search does.
        scaled = p * self.bins
        index = scaled.ceil().sub_(1).clamp_(0, self.bins - 1).long()
        close = torch.nonzero(scaled.sub_(scaled.round()).abs_() < 1e-9)[:, 0]
        if close.numel():
            index[close] = index_of(p[close], edges)
        return index


@dataclass(frozen=True)
class EqualMass(Binning):
    """Bins of equally many samples (Nguyen & O'Connor 2015; AdaECE in Mukhoti et al. 2020).

    Args:
        bins: Number of bins, ≥ 1.
        ties: ``"together"`` splits the sorted sample as ``numpy.array_split`` does (larger parts first) and keeps
            equal values (within 1e-12) in the bin of their first row, so that the result does not depend on row order;
            bins that become empty stay empty. ``"interpolated"`` is what the papers' code does: quantile edges by linear
            interpolation and bins (lo, hi], so the least confident sample is always dropped, and on saturated
            ties every sample may be.

    Examples:
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
        p = p.to(torch.float64).contiguous()
        if self.ties == "interpolated":
            index = torch.bucketize(p, self._interpolated_edges(p), right=False) - 1
            return torch.where((index >= 0) & (index < self.bins), index, -1)
        # Part b starts at rank s_b. A value's first row has a rank ≥ s_b where the row before that rank is smaller.
        starts = split_starts(p.shape[0], self.bins)[1:].to(p.device)
        return torch.bucketize(p, _sorted(p)[starts - 1] + TIE, right=False)

    def table(self, p: Tensor, y: Tensor) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}."""
        return BinTable.from_pairs(self.assign(p), p, y, bins=self.bins)

    def sketch(self, p: Tensor, y: Tensor) -> "MassSketch":
        """Return the state of pairs ``p`` (N,), ``y`` (N,) that merges before the bins are known."""
        return MassSketch.from_pairs(self, p, y)

    def _interpolated_edges(self, p: Tensor) -> Tensor:
        # numpy.interp(linspace(0, N, B + 1), arange(N), sorted p): the last point lies past the last rank and clamps
        ranked = _sorted(p.to(torch.float64))
        at = torch.linspace(0, p.shape[0], self.bins + 1, dtype=torch.float64, device=p.device)
        below = at.floor().long().clamp_max(p.shape[0] - 1)
        above = (below + 1).clamp_max(p.shape[0] - 1)
        return ranked[below] + (at - below).clamp(0, 1) * (ranked[above] - ranked[below])


def split_starts(rows: int, bins: int) -> Tensor:
    """Return the first rank (bins,) of each part that ``numpy.array_split`` makes of ``rows`` rows."""
    size, larger = divmod(rows, bins)
    part = torch.arange(bins)
    return part * size + part.clamp_max(larger)


def _sorted(p: Tensor) -> Tensor:
    # numpy sorts float64 more than ten times faster than torch on a CPU
    return torch.from_numpy(np.sort(p.detach().numpy())) if p.device.type == "cpu" else torch.sort(p).values


@dataclass(frozen=True, eq=False)
class MassSketch:
    """Counts and sums by value: what equal-mass bins can be made of after shards have been added.

    Exact while there are at most 65,536 distinct values. Beyond, values that share a cell ((c)/65536, (c + 1)/65536) count
    as equal, so an edge of a bin moves by less than a cell, and the error of the calibration error is at most twice the
    share of rows in the cells that hold the edges.

    Args:
        binning: The equal-mass bins to make.
        value: (M,) increasing largest values of the cells.
        count: (M,) int64 rows.
        sum_p: (M,) float64 sum of probabilities.
        sum_y: (M,) float64 sum of outcomes.
    """

    CELLS: ClassVar[int] = 1 << 16

    binning: EqualMass
    value: Tensor
    count: Tensor
    sum_p: Tensor
    sum_y: Tensor

    @classmethod
    def from_pairs(cls, binning: EqualMass, p: Tensor, y: Tensor) -> "MassSketch":
        """Return the sketch of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}."""
        p = p.to(torch.float64)
        return cls._gather(binning, p, torch.ones_like(p, dtype=torch.int64), p, y.to(torch.float64))

    @classmethod
    def _gather(cls, binning: EqualMass, value: Tensor, count: Tensor, sum_p: Tensor, sum_y: Tensor) -> "MassSketch":
        key, code = torch.unique(value, return_inverse=True)
        if key.shape[0] > cls.CELLS:
            if binning.ties == "interpolated":
                raise InputError(
                    f"expected at most {cls.CELLS} distinct values to merge interpolated bins, got {key.shape[0]}; "
                    "use ties='together', or call the metric on all rows at once"
                )
            cell = (value * cls.CELLS).long().clamp_max(cls.CELLS - 1)
            _, code = torch.unique(cell, return_inverse=True)
        size = int(code.max()) + 1
        largest = torch.zeros(size, dtype=torch.float64, device=value.device)
        largest.scatter_reduce_(0, code, value, reduce="amax")
        counts = torch.zeros(size, dtype=torch.int64, device=value.device).index_add_(0, code, count)
        return cls(binning, largest, counts, *(torch.bincount(code, w, size) for w in (sum_p, sum_y)))

    def __add__(self, other: "MassSketch") -> "MassSketch":
        if self.binning != other.binning:
            raise InputError(
                f"expected sketches for {self.binning}, got {other.binning}; merge those of one metric only"
            )
        columns = ("value", "count", "sum_p", "sum_y")
        joined = [torch.cat([getattr(self, name), getattr(other, name)]) for name in columns]
        return MassSketch._gather(self.binning, *joined)

    def table(self) -> BinTable:
        """Return the bin table of all rows together."""
        ranked = torch.repeat_interleave(self.value, self.count) if self.binning.ties == "interpolated" else None
        if ranked is not None:
            index = torch.bucketize(self.value, self.binning.edges(ranked), right=False) - 1
            index = torch.where((index >= 0) & (index < self.binning.bins), index, -1)
        else:
            up_to = self.count.cumsum(0)
            starts = split_starts(int(up_to[-1]), self.binning.bins)[1:].to(up_to.device)
            last_before = torch.searchsorted(up_to, starts - 1, right=True)
            index = torch.bucketize(self.value, self.value[last_before] + TIE, right=False)
        inside, bins = index >= 0, self.binning.bins
        counts = torch.zeros(bins, dtype=torch.int64, device=index.device).index_add_(
            0, index[inside], self.count[inside]
        )
        sum_p, sum_y = (torch.bincount(index[inside], w[inside], bins) for w in (self.sum_p, self.sum_y))
        return BinTable(counts, sum_p, sum_y, int(self.count.sum()))
