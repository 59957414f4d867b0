"""Bins of [0, 1], and the table of sums per bin from which binned errors, their intervals and diagrams are computed.

Bins are (lo, hi], as in the papers, but the first bin also contains 0.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_count, check_same_weights, refuse, shown
from calibrant._core.numerics import add_records
from calibrant._kernel import TIE, bin_of, pair_bins
from calibrant.errors import InputError

__all__ = ["BinTable", "Binning", "EqualMass", "EqualWidth"]

MAX_BINS = 1 << 20  # largest number of bins, whose sums fit in memory
LOOP_BINS = 1000  # largest number of bins for the compiled loops, in which each thread's table must stay in the cache


@dataclass(frozen=True, eq=False)
class BinTable:
    """Sums over the rows of each bin. The tables of batches, processes and machines can be added.

    Args:
        count: (B,) number of rows in each bin: int64, or float64 sums of weights.
        sum_p: (B,) float64 sum of the probabilities in each bin.
        sum_y: (B,) float64 sum of the outcomes in each bin; (…, B) for several tables with the same probabilities.
        total: Number of all rows, including rows in no bin (the papers' interpolated equal-mass bins drop some).
        squares: (5, B) float64 sums Σ w², Σ w²p, Σ w²y, Σ w²p², Σ w²py, from which variances are computed; w = 1 without
            weights.
        weighted: Whether the rows have weights.
        groups: S (G, B) for rows in G groups, where SᵀS is the covariance of the bins' weighted gaps; None for independent
            rows. Tables with groups cannot be added.
        degrees: Degrees of freedom of this covariance.

    Examples:
        >>> p, y = torch.tensor([0.2, 0.3, 0.9]), torch.tensor([0, 1, 1])
        >>> table = BinTable.from_pairs(torch.tensor([0, 0, 1]), p, y, bins=2)
        >>> table.count, table.gap
        (tensor([2, 1]), tensor([-0.2500, -0.1000], dtype=torch.float64))
    """

    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    total: float
    squares: Tensor
    weighted: bool = False
    groups: Tensor | None = None
    degrees: float = 0.0

    @classmethod
    def from_pairs(cls, index: Tensor, p: Tensor, y: Tensor, *, bins: int, weight: Tensor | None = None) -> "BinTable":
        """Return the table of pairs.

        Args:
            index: (N,) bin of each pair; −1 for a pair in no bin.
            p: (N,) probabilities.
            y: (N,) outcomes.
            bins: Number of bins B.
            weight: (N,) weights of the pairs; None gives each pair the weight 1.
        """
        total = int(index.shape[0]) if weight is None else weight.sum().item()
        if len(index) and int(index.min()) < 0:
            keep = index >= 0
            index, p, y = index[keep], p[keep], y[keep]
            weight = None if weight is None else weight[keep]
        p, y = p.double(), y.double()
        if weight is None:
            return cls.of_sums(_sum_by_bin(index, (torch.ones_like(p), p, y, p * p, p * y), bins), total)
        w = weight.double()
        v = w.square()
        sums = _sum_by_bin(index, (w, w * p, w * y, v, v * p, v * y, v * p * p, v * p * y), bins)
        return cls(sums[0], sums[1], sums[2], total, sums[3:], weighted=True)

    @classmethod
    def of_sums(cls, sums: Tensor, total: float) -> "BinTable":
        """Return the table of rows without weights, from ``sums`` (5, B): the number of rows, Σp, Σy, Σp² and Σpy per bin."""
        return cls(sums[0].round().long(), sums[1], sums[2], total, sums)

    def __add__(self, other: "BinTable") -> "BinTable":
        check_same_weights(self.weighted, other.weighted)
        if self.count.shape != other.count.shape:
            bins = f"{self.count.shape[0]} and {other.count.shape[0]}"
            raise InputError("tables with the same number of bins", bins, "merge tables of the same binning only")
        return add_records(self, other, weighted=self.weighted)

    def parts(self, count: int) -> "list[BinTable]":
        """Return this table split into ``count`` consecutive tables with the same number of bins."""
        names = ("count", "sum_p", "sum_y", "squares") + (() if self.groups is None else ("groups",))
        columns = zip(*(getattr(self, name).chunk(count, dim=-1) for name in names), strict=True)
        return [replace(self, **dict(zip(names, part, strict=True))) for part in columns]

    @property
    def mean(self) -> Tensor:
        """The mean probability of each bin, (B,) float64; 0 for an empty bin."""
        return (self.sum_p / self.count).nan_to_num_().clamp_(0, 1)

    @property
    def rate(self) -> Tensor:
        """The mean outcome of each bin, (…, B) float64; 0 for an empty bin. Clipped to [0, 1], because weights cause rounding."""
        return (self.sum_y / self.count).nan_to_num_().clamp_(0, 1)

    @property
    def gap(self) -> Tensor:
        """The mean probability minus the mean outcome of each bin, (…, B) float64; 0 for an empty bin."""
        # the simulated outcomes of an empty bin are 0 up to rounding, and a rounding error over 0 is infinite
        return ((self.sum_p - self.sum_y) / self.count).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    @property
    def weight(self) -> Tensor:
        """The fraction of all rows in each bin, (B,) float64."""
        return self.count.double() / self.total

    @property
    def effective(self) -> Tensor:
        """The effective number of rows of each bin, (Σw)² / Σw², (B,) float64."""
        return (self.count.double().square() / self.squares[0]).nan_to_num_()

    @property
    def noise(self) -> Tensor:
        """The variance Σ w² p (1 − p) of Σ w y in each bin if the probabilities are calibrated, (B,)."""
        return (self.squares[1] - self.squares[3]).clamp_min(0)

    def errors(self, *, norm: float = 1) -> Tensor:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm) for each table (…).

        Raises:
            InputError: If the table is empty, because its error is then undefined and not 0.
        """
        if self.total <= 0:
            expected, got = "at least one row for a binned error", "no rows"
            raise refuse(expected, got, "check how the rows were selected")
        return (self.weight * self.gap.abs() ** norm).sum(dim=-1) ** (1 / norm)

    def error(self, *, norm: float = 1) -> float:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm), the ECE for ``norm=1`` and the RMS calibration error for ``norm=2``."""
        return float(self.errors(norm=norm))


def _sum_by_bin(index: Tensor, columns: tuple[Tensor, ...], bins: int) -> Tensor:
    """Return the sums (C, B) of C columns (N,) over the rows of each bin."""
    return torch.stack([torch.bincount(index, weights=one, minlength=bins) for one in columns])


class Binning(ABC):
    """The base class of ``EqualWidth`` and ``EqualMass``, which assign probabilities to bins.

    Examples:
        >>> EqualWidth(2).edges(torch.tensor([0.1, 0.9]))
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    bins: int

    @abstractmethod
    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the increasing float64 edges (B′ + 1,) for ``p`` (N,), with weights ``weight`` (N,) or 1 each."""

    @abstractmethod
    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the int64 bin index (N,) of each value of ``p`` (N,), or −1 for a value in no bin."""

    def table(self, p: Tensor, y: Tensor, *, weight: Tensor | None = None) -> BinTable:
        """Return the table of pairs ``p`` (N,) in [0, 1] and ``y`` (N,) in {0, 1}, with weights ``weight`` (N,) or 1 each."""
        if isinstance(self, EqualWidth) and weight is None and p.device.type == "cpu" and self.bins <= LOOP_BINS:
            return BinTable.of_sums(pair_bins(p, y, self.bins), p.shape[0])
        return BinTable.from_pairs(self.assign(p, weight=weight), p, y, bins=self.bins, weight=weight)


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
        check_count(self.bins, name="bins", high=MAX_BINS)

    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return i / B for i = 0 … B, in float64."""
        return torch.arange(self.bins + 1, dtype=torch.float64, device=p.device) / self.bins

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) of each value of ``p`` (N,).

        Values up to 6e-8 above an edge are treated as lying on it. Probabilities therefore have the same bins in float32 and
        float64, although .6 in float32 is .60000002.
        """
        return bin_of(p, self.bins)


@dataclass(frozen=True)
class EqualMass(Binning):
    """Bins with the same number of samples (Nguyen & O'Connor 2015; AdaECE in Mukhoti et al. 2020).

    Args:
        bins: Number of bins, ≥ 1.
        ties: ``"together"`` splits the sorted sample like ``numpy.array_split`` (larger parts first) and keeps equal values
            (within 1e-12) in the bin of the first of them, so that the result does not depend on the order of rows. A bin
            that becomes empty stays empty. ``"interpolated"`` follows the papers' code, with linearly interpolated quantiles
            as edges and bins (lo, hi]. It always drops the least confident sample, and may drop every sample if all are
            tied.

    Examples:
        >>> EqualMass(bins=2).assign(torch.tensor([0.9, 0.2, 0.9, 0.9]))
        tensor([0, 0, 0, 0])
    """

    bins: int = 15
    ties: Literal["together", "interpolated"] = "together"

    def __post_init__(self) -> None:
        check_count(self.bins, name="bins", high=MAX_BINS)
        check_choice(self.ties, name="ties", choices=("together", "interpolated"))

    def edges(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the edges: the papers' interpolated quantiles, or 0 followed by the largest value of each non-empty bin."""
        if self.ties == "interpolated":
            return self._cuts(p, weight)
        upper = torch.full((self.bins,), -1.0, dtype=torch.float64, device=p.device)
        upper.scatter_reduce_(0, self.assign(p, weight=weight), p.double(), reduce="amax")
        upper = upper[upper >= 0]
        return torch.cat([upper.new_zeros(1), upper[:-1], upper.new_ones(1)])

    def assign(self, p: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Return the bin index (N,) of each value of ``p`` (N,), or −1 for samples that interpolated edges drop.

        With ``weight`` (N,), the M positive weights are scaled to sum to M, and a value belongs to the part of
        ``numpy.array_split(range(M), B)`` that contains the first unit of its mass.
        """
        index = torch.searchsorted(self._cuts(p, weight), p.double().contiguous())
        if self.ties == "together":
            return index
        return torch.where((index > 0) & (index <= self.bins), index - 1, -1)

    def _cuts(self, p: Tensor, weight: Tensor | None) -> Tensor:
        """Return the largest value (B − 1,) of every bin but the last, or the interpolated edges (B + 1,).

        Raises:
            InputError: If there are weights and the edges are interpolated, which needs ranks.
        """
        p, rows, order = p.double().contiguous(), p.shape[0], None
        if (
            p.device.type == "cpu" and weight is None
        ):  # NumPy sorts float64 more than ten times faster than PyTorch on a CPU
            ranked = torch.from_numpy(np.sort(p.detach().numpy()))
        else:
            ranked, order = torch.sort(p)
        if self.ties == "interpolated":
            if weight is not None:
                expected, remedy = "rows without weights for interpolated bins", "use EqualMass(ties='together')"
                raise InputError(expected, "weights", remedy)
            # numpy.interp(linspace(0, N, B + 1), arange(N), sorted p); the last point lies past the last rank and is clamped
            at = torch.linspace(0, rows, self.bins + 1, dtype=torch.float64, device=p.device)
            below = at.floor().long().clamp_max(rows - 1)
            low, high = ranked[below], ranked[(below + 1).clamp_max(rows - 1)]
            return low + (at - below).clamp(0, 1) * (high - low)
        # Part b starts at rank s_b. The first row with a value has rank ≥ s_b exactly if the row before rank s_b has a smaller value.
        count = rows if weight is None else int((weight > 0).sum())
        part = torch.arange(1, self.bins, device=p.device)
        starts = part * (count // self.bins) + part.clamp_max(count % self.bins)
        if weight is None:
            return ranked[starts - 1] + TIE
        up_to = weight[order].cumsum(0)
        # rounding of cumulative weights must not move an end past a whole number of rows
        ends = torch.searchsorted(up_to * (count / float(up_to[-1])), starts.double() - 1e-9 * count)
        return ranked[ends.clamp_max(rows - 1)] + TIE


def as_binning(binning: Any, *, name: str = "binning") -> Binning:
    """Return ``binning`` itself or, for an integer, as many equal-width bins.

    Raises:
        InputError: If ``binning`` is neither a binning nor an integer.
    """
    if isinstance(binning, Binning):
        return binning
    if isinstance(binning, int | np.integer) and not isinstance(binning, bool):
        return EqualWidth(int(binning))
    remedy = "write EqualWidth(15), EqualMass(15) or a number of equal-width bins"
    raise refuse(f"{name} as a binning", shown(binning), remedy)
