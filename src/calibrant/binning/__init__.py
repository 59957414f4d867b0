"""Bins of [0, 1], and the tables of sums from which every binned error, diagram and calibrator is computed.

Bins are (lo, hi], as in the papers; the first also holds 0, the last holds 1.
"""

import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_same_kind, check_same_weights, refuse, shown
from calibrant._core.constraints import Bins, Fits, PublicCalls
from calibrant._kernels import cpu, cuda
from calibrant.binning.table import BinTable
from calibrant.errors import InputError

__all__ = ["BinTable", "Binning", "EqualMass", "EqualWidth", "MassSketch"]

TIE = 1e-12  # probabilities this close count as equal: the log and exp in a calibrator change them by less
_BLOCK = 1 << 15
_MANY_BINS = 10_000  # beyond this p · B may round to a neighbouring bin, so the edges are searched instead


class Binning(metaclass=PublicCalls):
    """How probabilities are put into bins: ``EqualWidth`` or ``EqualMass``."""

    bins: int

    @abstractmethod
    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the B′ + 1 increasing edges (float64) for ``p`` (N,), weighted by ``weight`` (N,) or by 1."""

    @abstractmethod
    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) int64 of each of ``p`` (N,), or −1 where no bin holds it."""

    @abstractmethod
    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""


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

    bins: Bins = 15

    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return i / B for i = 0 … B, in float64."""
        return torch.arange(self.bins + 1, dtype=torch.float64, device=p.device) / self.bins

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) of each of ``p`` (N,); weights have no effect."""
        edges = self.edges(p)
        if self.bins > _MANY_BINS:
            return index_of(p, edges)
        # blocks whose temporaries stay in the cache
        return torch.cat([self._assign(part.to(torch.float64), edges) for part in p.split(_BLOCK)])

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        if weight is not None:
            return BinTable.from_pairs(self.assign(p), p, y, bins=self.bins, weight=weight)
        if p.is_cuda and self.bins <= cuda.MOST_BINS and p.shape[0] and cuda.available():
            return BinTable(*cuda.bin_sums(p, y, self.edges(p)), total=p.shape[0])
        if cpu.serves(p) and self.bins <= _MANY_BINS:
            return BinTable(*cpu.pair_bins(p, y, self.edges(p)), total=p.shape[0])
        block = p.shape[0] if p.is_cuda else _BLOCK
        parts = zip(p.split(block), y.split(block), strict=True)
        tables = [BinTable.from_pairs(self.assign(part), part, hit, bins=self.bins) for part, hit in parts]
        return reduce(operator.add, tables)

    def _assign(self, p: Tensor, edges: Tensor) -> Tensor:
        # Four times faster than searching the edges, with the same result: values within rounding of an edge are searched.
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

    bins: Bins = 15
    ties: Literal["together", "interpolated"] = "together"

    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the edges: the papers' interpolated quantiles, or 0 followed by the largest value of each filled bin."""
        fixed = self._fixed(p, weight)
        if self.ties == "interpolated":
            return fixed.cuts
        upper = torch.full((self.bins,), -1.0, dtype=torch.float64, device=p.device)
        return edges_of_largest(upper.scatter_reduce_(0, fixed.assign(p), p.to(torch.float64), reduce="amax"))

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) of each of ``p`` (N,); −1 for samples the interpolated edges drop.

        With ``weight`` (N,) a value goes to the part of ``numpy.array_split(range(M), B)`` that holds the first unit of its mass.
        M is the number of positive weights, which are scaled to sum to it.
        """
        return self._fixed(p, weight).assign(p)

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        return BinTable.from_pairs(self.assign(p, weight=weight), p, y, bins=self.bins, weight=weight)

    def sketch(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> "MassSketch":
        """Return a state of pairs ``p`` (N,), ``y`` (N,) that can be merged; the bins are made after all parts are added."""
        return MassSketch.from_pairs(self, p, y, weight=weight)

    def _fixed(self, p: Tensor, weight: Tensor | None) -> "FixedBins":
        """Return the bins of rows that are all there."""
        p = p.to(torch.float64).contiguous()
        _need_any(p)
        if weight is None:
            return self.fixed_by(_sorted(p), None, p.shape[0])
        ranked, order = torch.sort(p)
        return self.fixed_by(ranked, weight[order].cumsum(0), int((weight > 0).sum()))

    def fixed_by(self, value: Tensor, up_to: Tensor | None, rows: int) -> "FixedBins":
        """Return the bins of ascending values (M,); ``up_to`` (M,) cumulates the weights of ``rows`` rows, None of one row a value.

        Raises:
            InputError: For weights with interpolated edges: they define no ranks to interpolate between.
        """
        if self.ties == "together":
            # Part b starts at rank s_b. A value's first row has a rank ≥ s_b where the row before that rank is smaller.
            ends = split_starts(rows, self.bins)[1:] - 1 if up_to is None else part_ends(up_to, self.bins, rows)
            return FixedBins(self.bins, value[ends.to(value.device)] + TIE)
        if up_to is None:
            return FixedBins(self.bins, self.edges_between(rows, value.__getitem__, value.device), ends=True)
        if up_to.is_floating_point():
            raise InputError("rows without weights for interpolated bins", "weights", "use EqualMass(ties='together')")

        def at_ranks(ranks: Tensor) -> Tensor:
            return value[torch.searchsorted(up_to, ranks, right=True)]

        return FixedBins(self.bins, self.edges_between(int(up_to[-1]), at_ranks, value.device), ends=True)

    def edges_between(self, rows: int, value_at: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
        """Return the papers' interpolated edges (B + 1,) of rows of which ``value_at`` gives the values at ranks (R,) from 0."""
        # numpy.interp(linspace(0, N, B + 1), arange(N), sorted p): the last point lies past the last rank and is clamped
        at = torch.linspace(0, rows, self.bins + 1, dtype=torch.float64, device=device)
        below = at.floor().long().clamp_max(rows - 1)
        low, high = value_at(torch.cat([below, (below + 1).clamp_max(rows - 1)])).chunk(2)
        return low + (at - below).clamp(0, 1) * (high - low)


def edges_of_largest(upper: Tensor) -> Tensor:
    """Return the edges (B′ + 1,) of bins whose largest values are ``upper`` (B,), −1 of an empty one, which has none."""
    upper = upper[upper >= 0]
    return torch.cat([upper.new_zeros(1), upper[:-1], upper.new_ones(1)])


def split_starts(rows: int, bins: int) -> Tensor:
    """Return the first rank (bins,) of each part of ``numpy.array_split(range(rows), bins)``."""
    size, larger = divmod(rows, bins)
    part = torch.arange(bins)
    return part * size + part.clamp_max(larger)


def part_ends(up_to: Tensor, bins: int, rows: int) -> Tensor:
    """Return the index (bins − 1,) of the last entry of every part except the final one, for entries in ascending order.

    Args:
        up_to: (M,) cumulative int64 counts of rows, or cumulative weights, which are scaled to sum to ``rows``.
        bins: Number of parts; their sizes are those of ``numpy.array_split``.
        rows: Number of entries with positive weight.
    """
    if not up_to.is_floating_point():
        return torch.searchsorted(up_to, split_starts(int(up_to[-1]), bins)[1:].to(up_to.device))
    starts = split_starts(rows, bins)[1:].to(up_to.device, torch.float64)
    if not rows:
        raise refuse("at least one row of positive weight", "none", "check how the rows were selected")
    scaled = up_to * (rows / float(up_to[-1]))
    rounding = 1e-9 * rows  # error of cumulative weights, which must not move an end past a whole number of rows
    return torch.searchsorted(scaled, starts - rounding).clamp_max(up_to.shape[0] - 1)


def _need_any(p: Tensor) -> None:
    if not p.shape[0]:
        raise refuse(
            "at least one row for bins of equal mass", "a selection of none", "check how the rows were selected"
        )


def _sorted(p: Tensor) -> Tensor:
    # numpy sorts float64 more than ten times faster than torch on a CPU
    return torch.from_numpy(np.sort(p.detach().numpy())) if p.device.type == "cpu" else torch.sort(p).values


@dataclass(frozen=True, eq=False)
class MassSketch(metaclass=PublicCalls):
    """Counts and sums by value: a state that is added over shards, from which equal-mass bins are then made.

    Exact up to 65,536 distinct values. With more, values in one cell [c/65536, (c + 1)/65536) count as equal: a bin edge moves
    by less than a cell, and the calibration error changes by at most twice the fraction of rows in the cells that hold the
    edges.

    Args:
        binning: The equal-mass bins to be made.
        value: (M,) increasing largest values of the cells.
        count: (M,) int64 rows, or float64 sums of weights.
        sum_p: (M,) float64 sum of probabilities.
        sum_y: (M,) float64 sum of outcomes.
        squares: (M,) float64 sums of squared weights; None without weights.
        rows: Number of rows with a positive weight; 0 without weights.
    """

    CELLS = 1 << 16

    binning: EqualMass
    value: Tensor
    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    squares: Tensor | None = None
    rows: int = 0

    @classmethod
    def from_pairs(cls, binning: EqualMass, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> "MassSketch":
        """Return the sketch of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        _need_any(p)
        p, y = p.to(torch.float64), y.to(torch.float64)
        if weight is None:
            return cls._gather(binning, p, [torch.ones_like(p, dtype=torch.int64), p, y])
        sums = [weight, p * weight, y * weight]
        return cls._gather(binning, p, [*sums, weight.square()], rows=int((weight > 0).sum()))

    @classmethod
    def _gather(cls, binning: EqualMass, value: Tensor, columns: list[Tensor], *, rows: int = 0) -> "MassSketch":
        key, code = torch.unique(value, return_inverse=True)
        if key.shape[0] > cls.CELLS:
            if binning.ties == "interpolated":
                raise InputError(
                    f"at most {cls.CELLS} distinct values to merge interpolated bins",
                    f"{key.shape[0]}",
                    "use ties='together', or call the metric on all rows at once",
                )
            cell = (value * cls.CELLS).long().clamp_max(cls.CELLS - 1)
            _, code = torch.unique(cell, return_inverse=True)
        size = int(code.max()) + 1
        largest = torch.zeros(size, dtype=torch.float64, device=value.device)
        largest.scatter_reduce_(0, code, value, reduce="amax")
        count, *sums = columns
        counts = torch.zeros(size, dtype=count.dtype, device=value.device).index_add_(0, code, count)
        sum_p, sum_y, *squares = (torch.bincount(code, w, size) for w in sums)
        return cls(binning, largest, counts, sum_p, sum_y, squares[0] if squares else None, rows)

    def __add__(self, other: "MassSketch") -> "MassSketch":
        check_same_kind(self, other)
        check_same_weights(self.squares is None, other.squares is None)
        if self.binning != other.binning:
            raise InputError(f"sketches for {self.binning}", f"{other.binning}", "merge those of one metric only")
        names = ["value", "count", "sum_p", "sum_y"] + ["squares"] * (self.squares is not None)
        value, *sums = (torch.cat([getattr(self, name), getattr(other, name)]) for name in names)
        return MassSketch._gather(self.binning, value, sums, rows=self.rows + other.rows)

    def fixed(self) -> "FixedBins":
        """Return the bins of all rows together."""
        return self.binning.fixed_by(self.value, self.count.cumsum(0), self.rows)

    def table(self) -> BinTable:
        """Return the bin table of all rows together."""
        bins, index = self.binning.bins, self.fixed().assign(self.value)
        inside = index >= 0

        def gathered(values: Tensor) -> Tensor:
            return values.new_zeros(bins).index_add_(0, index[inside], values[inside])

        count, sum_p, sum_y = (gathered(values) for values in (self.count, self.sum_p, self.sum_y))
        squares = None if self.squares is None else gathered(self.squares)
        return BinTable(count, sum_p, sum_y, self.count.sum().item(), squares)


@dataclass(frozen=True, eq=False)
class FixedBins(Binning):
    """Bins of equal mass that were made from other rows: those of all data, for a part of them.

    Args:
        bins: B.
        cuts: (B − 1,) the largest value of every bin but the last, or of K columns (K, B − 1); with ``ends`` also where the first
            begins and the last ends.
        ends: Whether values beyond these two are in no bin.
    """

    bins: int
    cuts: Tensor
    ends: bool = False

    @classmethod
    def of_columns(cls, columns: Sequence["FixedBins"]) -> "FixedBins":
        """Return the bins of K columns."""
        return replace(columns[0], cuts=torch.stack([one.cuts for one in columns]))

    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the edges (B + 1,), whatever ``p`` and ``weight`` are."""
        inner = self.cuts.to(p.device)
        return inner if self.ends else torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) int64 of each of ``p`` (N,), or (N, K) of columns (N, K); −1 where no bin holds it."""
        index = torch.searchsorted(self.cuts.to(p.device), p.double().movedim(0, -1).contiguous()).movedim(-1, 0)
        if not self.ends:
            return index
        return torch.where((index > 0) & (index <= self.bins), index - 1, -1)

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        return BinTable.from_pairs(self.assign(p), p, y, bins=self.bins, weight=weight)


def as_binning(binning: Any, *, name: str) -> Binning:
    """Return ``binning``, or for an integer that number of equal-width bins.

    Raises:
        InputError: If it is neither a binning nor an integer.
    """
    if isinstance(binning, Binning):
        return binning
    if isinstance(binning, int | np.integer) and not isinstance(binning, bool):
        return EqualWidth(int(binning))
    remedy = "write EqualWidth(15), EqualMass(15) or a number of equal-width bins"
    raise refuse(f"{name} as a binning", shown(binning), remedy)


AnyBinning = Annotated[Binning, Fits(as_binning, "or a number of equal-width bins")]
