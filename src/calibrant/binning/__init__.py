"""Bins of [0, 1], and the tables of sums from which every binned error, diagram and calibrator is computed.

Bins are (lo, hi], as in the papers; the first also holds 0, the last holds 1.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Bins, Fits, PublicCalls
from calibrant._kernels import cpu
from calibrant.binning.table import BinTable
from calibrant.errors import InputError

__all__ = ["BinTable", "Binning", "EqualMass", "EqualWidth"]

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

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        return BinTable.from_pairs(self.assign(p, weight=weight), p, y, bins=self.bins, weight=weight)


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
        """Return the bin index (N,) of each of ``p`` (N,), where one within 1e-12 above an edge lies on it; weights have no effect."""
        edges = self.edges(p) + TIE
        if self.bins > _MANY_BINS:
            return index_of(p, edges)
        # blocks whose temporaries stay in the cache
        return torch.cat([self._assign(part.to(torch.float64), edges) for part in p.split(_BLOCK)])

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the sums of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, weighted by ``weight`` (N,) or by 1."""
        if weight is None and cpu.serves(p) and self.bins <= _MANY_BINS:
            return BinTable.of_sums(cpu.pair_bins(p, y, self.edges(p) + TIE), p.shape[0])
        return super().table(p, y, weight=weight)

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
        if self.ties == "interpolated":
            return self._cuts(p, weight)
        upper = torch.full((self.bins,), -1.0, dtype=torch.float64, device=p.device)
        upper.scatter_reduce_(0, self.assign(p, weight=weight), p.to(torch.float64), reduce="amax")
        return edges_of_largest(upper)

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) of each of ``p`` (N,); −1 for samples the interpolated edges drop.

        With ``weight`` (N,) a value goes to the part of ``numpy.array_split(range(M), B)`` that holds the first unit of its mass.
        M is the number of positive weights, which are scaled to sum to it.
        """
        index = torch.searchsorted(self._cuts(p, weight), p.to(torch.float64).contiguous())
        if self.ties == "together":
            return index
        return torch.where((index > 0) & (index <= self.bins), index - 1, -1)

    def _cuts(self, p: Tensor, weight: Tensor | None) -> Tensor:
        """Return the largest value (B − 1,) of every bin but the last, or the interpolated edges (B + 1,).

        Raises:
            InputError: For no rows, and for weights with interpolated edges: they define no ranks to interpolate between.
        """
        p = p.to(torch.float64).contiguous()
        if not (rows := p.shape[0]):
            got = "a selection of none"
            raise refuse("at least one row for bins of equal mass", got, "check how the rows were selected")
        if self.ties == "interpolated":
            if weight is not None:
                raise InputError(
                    "rows without weights for interpolated bins", "weights", "use EqualMass(ties='together')"
                )
            return self.edges_between(rows, _sorted(p).__getitem__, p.device)
        # Part b starts at rank s_b. A value's first row has a rank ≥ s_b where the row before that rank is smaller.
        if weight is None:
            return _sorted(p)[(split_starts(rows, self.bins)[1:] - 1).to(p.device)] + TIE
        ranked, order = torch.sort(p)
        return ranked[_part_ends(weight[order].cumsum(0), self.bins, int((weight > 0).sum()))] + TIE

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


def _part_ends(up_to: Tensor, bins: int, rows: int) -> Tensor:
    """Return the index (bins − 1,) of the last entry of every part except the final one, for entries in ascending order.

    Args:
        up_to: (M,) cumulative weights, which are scaled to sum to ``rows``.
        bins: Number of parts; their sizes are those of ``numpy.array_split``.
        rows: Number of entries with positive weight.
    """
    starts = split_starts(rows, bins)[1:].to(up_to.device, torch.float64)
    if not rows:
        raise refuse("at least one row of positive weight", "none", "check how the rows were selected")
    scaled = up_to * (rows / float(up_to[-1]))
    rounding = 1e-9 * rows  # error of cumulative weights, which must not move an end past a whole number of rows
    return torch.searchsorted(scaled, starts - rounding).clamp_max(up_to.shape[0] - 1)


def _sorted(p: Tensor) -> Tensor:
    # numpy sorts float64 more than ten times faster than torch on a CPU
    return torch.from_numpy(np.sort(p.detach().numpy())) if p.device.type == "cpu" else torch.sort(p).values


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
