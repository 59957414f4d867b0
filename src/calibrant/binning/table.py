"""The table of sums a bin that every binned error, diagram and calibrator is computed from; public in ``calibrant.binning``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.check import check_same_kind, check_same_weights, refuse
from calibrant._core.constraints import PublicCalls
from calibrant._core.numerics import add_records, row_chunks
from calibrant.errors import InputError

_FEW_BINS = 64  # up to so many an accelerator sums by a product with the membership matrix


@dataclass(frozen=True, eq=False)
class BinTable(metaclass=PublicCalls):
    """Counts and sums a bin: a sum that merges across batches, processes and machines.

    It is all that a binned error, its interval and its limit if calibrated are computed from.

    Args:
        count: (B,) samples in each bin: int64, or float64 sums of weights.
        sum_p: (B,) float64, sum of the probabilities.
        sum_y: (B,) float64, sum of the outcomes; (…, B) is as many tables with the same probabilities.
        total: Samples seen, including any that no bin holds (the papers' interpolated equal-mass bins drop some).
        squares: (B,) float64, sums of squared weights; None without weights.
        second: (4, B) float64 Σ w²p, Σ w²y, Σ w²p², Σ w²py, of which variances are made. None takes all samples of a bin to have its
            mean probability.
    """

    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    total: float
    squares: Tensor | None = None
    second: Tensor | None = None

    @classmethod
    def from_pairs(cls, index: Tensor, p: Tensor, y: Tensor, *, bins: int, weight: Tensor | None = None) -> "BinTable":
        """Sum pairs ``p`` (N,), ``y`` (N,) by their bin ``index`` (N,); an index of −1 belongs to no bin.

        ``weight`` (N,) is 1 each if None.
        """
        total = int(index.shape[0]) if weight is None else weight.sum().item()
        if int(index.shape[0]) and int(index.min()) < 0:
            keep = index >= 0
            index, p, y = index[keep], p[keep], y[keep]
            weight = None if weight is None else weight[keep]
        p, y = p.double(), y.double()
        if weight is None:
            few = index.is_cuda and bins <= _FEW_BINS
            columns = (torch.ones_like(p), p, y, p * p, p * y)
            return cls.of_sums(_device_sums(index, columns, bins) if few else _sums(index, columns, bins), total)
        w = weight.double()
        v = w.square()
        count, sum_p, sum_y, squares, *second = _sums(
            index, (w, w * p, w * y, v, v * p, v * y, v * p * p, v * p * y), bins
        )
        return cls(count, sum_p, sum_y, total, squares, torch.stack(second))

    @classmethod
    def of_sums(cls, sums: Tensor, total: float) -> "BinTable":
        """Return the table of samples without weights, of whose bins ``sums`` (5, B) holds the number, Σp, Σy, Σp² and Σpy."""
        return cls(sums[0].round().long(), sums[1], sums[2], total, None, sums[1:])

    def __add__(self, other: "BinTable") -> "BinTable":
        check_same_kind(self, other)
        check_same_weights(self.squares is None, other.squares is None)
        if self.count.shape != other.count.shape:
            raise InputError(
                "tables of equally many bins",
                f"{self.count.shape[0]} and {other.count.shape[0]}",
                "merge tables of one binning only",
            )
        return add_records(self, other)

    def parts(self, count: int) -> "list[BinTable]":
        """Return the ``count`` tables that lie one after the other in this one."""

        def cut(values: Tensor | None) -> list[Tensor | None]:
            return [None] * count if values is None else list(values.chunk(count, dim=-1))

        columns = zip(
            *(cut(one) for one in (self.count, self.sum_p, self.sum_y, self.squares, self.second)), strict=True
        )
        return [BinTable(n, p, y, self.total, squares, second) for n, p, y, squares, second in columns]

    @property
    def filled(self) -> Tensor:
        """(B,): the counts, and 1 in an empty bin: what a bin's sums are divided by."""
        return torch.where(self.count > 0, self.count, 1)

    @property
    def gap(self) -> Tensor:
        """(…, B) float64: mean probability minus mean outcome of each bin; 0 in an empty bin."""
        return (self.sum_p - self.sum_y) / self.filled

    @property
    def rate(self) -> Tensor:
        """(…, B) float64: mean outcome of each bin, within [0, 1] whatever rounding weights bring; 0 in an empty bin."""
        return (self.sum_y / self.filled).clamp(0, 1)

    @property
    def weight(self) -> Tensor:
        """(B,) float64: share of all samples in each bin."""
        return self.count.to(torch.float64) / self.mass

    @property
    def mass(self) -> float:
        """The sum of all weights, and 1 of an empty table: what sums are divided by."""
        return self.total if self.total > 0 else 1

    @property
    def squared_weights(self) -> Tensor:
        """(B,) float64: Σ w² of each bin."""
        return self.count.double() if self.squares is None else self.squares

    @property
    def squared_shares(self) -> Tensor:
        """(B,) float64: Σ (w_i / Σw)² over the samples of each bin: what variances of weighted means are made of."""
        return self.weight / self.mass if self.squares is None else self.squares / self.mass**2

    @property
    def effective(self) -> Tensor:
        """(B,): samples of equal weight that would vary as much as those of each bin: (Σw)² / Σw²."""
        return self.count if self.squares is None else self.count**2 / torch.where(self.count > 0, self.squares, 1)

    @property
    def gap_squares(self) -> tuple[Tensor, Tensor]:
        """(B,) Σ w² (p − y) and Σ w² (p − y)², of outcomes 0 and 1; by the bins' means alone if ``second`` is None.

        Then all samples of a bin are taken to have its mean probability, which leaves out Σ w² (p − p̄)² − 2 Σ w² (p − p̄)(y − ȳ).
        """
        if self.second is not None:
            p, y, pp, py = self.second
            return p - y, pp - 2 * py + y
        size = self.squared_weights
        return size * self.gap, size * (self.rate * (1 - self.rate) + self.gap.square())

    @property
    def noise(self) -> Tensor:
        """(B,) Σ w² p (1 − p), the variance of Σ w y if the probabilities are calibrated; by the bins' means if ``second`` is None."""
        if self.second is not None:
            return (self.second[0] - self.second[2]).clamp_min(0)
        mean = (self.sum_p / self.filled).clamp(0, 1)
        return self.squared_weights * mean * (1 - mean)

    @property
    def expected_events(self) -> Tensor:
        """(B,) Σ p (1 − p), times the share of the bin's samples that are worth one of equal weight: what its noise is worth."""
        size = self.squared_weights
        return self.effective * self.noise / torch.where(size > 0, size, 1)

    @property
    def decided(self) -> Tensor:
        """(2, 2) Σ w and Σ w² of the samples whose outcome is 0, and of the others."""
        right = torch.stack([self.sum_y.sum(), self.sum_y.sum() if self.second is None else self.second[1].sum()])
        both = torch.stack([self.count.double().sum(), self.squared_weights.sum()])
        return torch.stack([both - right, right]).cpu()

    def errors(self, *, norm: float = 1) -> Tensor:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm) for each table (…).

        Raises:
            InputError: If no row was summed: an empty table has no error, not one of 0.
        """
        self._need_rows()
        if norm == 1:
            return (self.weight * self.gap.abs()).sum(dim=-1)
        return (self.weight * self.gap.abs() ** norm).sum(dim=-1) ** (1 / norm)

    def error(self, *, norm: float = 1) -> float:
        """Return (Σ_b weight_b |gap_b|^norm)^(1/norm): ECE for ``norm=1``, RMS calibration error for 2."""
        return float(self.errors(norm=norm))

    def maximum(self) -> float:
        """Return the largest |gap| of a non-empty bin: MCE."""
        self._need_rows()
        return float(self.gap.abs().max())

    def _need_rows(self) -> None:
        if self.total <= 0:
            raise refuse(
                "at least one row for a binned error", "a selection of none", "check how the rows were selected"
            )


def _sums(index: Tensor, columns: tuple[Tensor, ...], bins: int) -> Tensor:
    """Return the sums (C, B) of each column (N,) over the rows of each bin."""
    return torch.stack([torch.bincount(index, weights=one, minlength=bins) for one in columns])


def _device_sums(index: Tensor, columns: tuple[Tensor, ...], bins: int) -> Tensor:
    """Return the same as a matrix product: millions of atomic additions into a few bins would queue."""
    totals = columns[0].new_zeros(len(columns), bins)
    names = torch.arange(bins, device=index.device)
    for rows in row_chunks(index.shape[0], bins, device=index.device):
        totals += torch.stack([one[rows] for one in columns]) @ (index[rows, None] == names).double()
    return totals
