"""Classwise calibration error: every class's probability against its frequency."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant.binning import Binning, BinTable, EqualMass, EqualWidth, MassSketch
from calibrant.metrics._base import Data, SumMetric, need_predictions
from calibrant.metrics._binned import need_two_groups
from calibrant.predictions import Predictions
from calibrant.statistics import Interval, corrected_error, error_interval, mean_error

__all__ = ["ClasswiseECE"]

_DENSE_BYTES = 1 << 28  # of tables drawn at once; beyond, only the cells that a label was drawn into are looked at


@dataclass(frozen=True)
class ClassTables:
    """The bins of all classes: one flat table (K · B), or for equal-mass bins one sketch a class."""

    classes: int
    table: BinTable | None = None
    sketches: tuple[MassSketch, ...] = ()

    def __add__(self, other: "ClassTables") -> "ClassTables":
        table = self.table + other.table if self.table is not None and other.table is not None else None
        merged = tuple(a + b for a, b in zip(self.sketches, other.sketches, strict=True))
        return ClassTables(self.classes, table, merged)


@dataclass(frozen=True)
class ClasswiseECE(SumMetric[ClassTables]):
    """(1/K) Σ_k Σ_b |B_bk|/N · |frequency − probability|, over all N rows and all K classes.

    Mukhoti et al. (2020) print the sum to K − 1, a misprint: their code averages all classes. Probabilities of 0
    count (in the first bin), and classes absent from the labels count.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(ClasswiseECE()(Predictions.from_probs([[1.0, 0.0, 0.0]], [1])), 4)
        0.6667

    References:
        Kull et al. 2019 Eq. 2; Nixon et al. 2019 (SCE).
    """

    binning: Binning = field(default=EqualWidth(15))

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "classwise"
    cite: ClassVar[str] = "Kull et al. 2019"
    needs_classes: ClassVar[bool] = True

    def state(self, data: Data) -> ClassTables:
        """Return the bins of all classes; for equal-mass bins, whose edges all data decide, sketches that merge."""
        predictions = need_predictions(data, metric=self)
        if isinstance(self.binning, EqualMass):
            pairs = (predictions.one_vs_rest(k) for k in range(predictions.classes))
            sketches = tuple(self.binning.sketch(one.p, one.y) for one in pairs)
            return ClassTables(predictions.classes, sketches=sketches)
        return ClassTables(predictions.classes, self._table(predictions))

    def value(self, state: ClassTables) -> float:
        """Return the mean over classes of the binned error."""
        tables = [state.table] if state.table is not None else [sketch.table() for sketch in state.sketches]
        return sum(table.error() for table in tables) / state.classes

    def null_draws(self, data: Data, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) with labels drawn from the probabilities."""
        predictions = need_predictions(data, metric=self)
        table = self._table(predictions)
        hits = self._drawn_cells(predictions, draws=draws, seed=seed)
        if 8 * draws * table.count.shape[0] > _DENSE_BYTES:
            return _sparse_errors(table, torch.cat([cells.int() for cells in hits])) / predictions.classes
        sums = torch.zeros(draws * table.count.shape[0], dtype=torch.float64, device=predictions.logits.device)
        offset = torch.arange(draws, device=sums.device) * table.count.shape[0]
        for cells in hits:
            flat = (cells + offset)[cells >= 0]
            sums.index_add_(0, flat, sums.new_ones(1).expand(flat.shape[0]))
        return replace(table, sum_y=sums.view(draws, -1)).errors() / predictions.classes

    def _drawn_cells(self, predictions: Predictions, *, draws: int, seed: int) -> Iterator[Tensor]:
        """Yield, for blocks of rows, the cells (n, draws) of labels drawn from the probabilities; −1 for none."""
        generator = torch.Generator().manual_seed(seed)
        for _, block, cells in self._cells(predictions):
            for rows in row_chunks(block.shape[0], draws, itemsize=2):  # a few MiB for the draws of these rows
                cumulative, cell = block[rows].cumsum(dim=1), cells[rows]
                uniform = torch.rand(cell.shape[0], draws, dtype=torch.float64, generator=generator).to(cell.device)
                drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:]).clamp_max(cell.shape[1] - 1)
                yield cell.gather(1, drawn)

    def interval(self, data: Data, *, level: float = 0.95, seed: int = 0, null: Tensor | None = None) -> Interval:
        """Return the interval of the error in these bins; rows of one group are not taken for independent."""
        predictions = need_predictions(data, metric=self)
        null = self.null_draws(data, draws=500, seed=seed) if null is None else null
        table = self._table(predictions)
        need_two_groups(data.groups)
        error = mean_error(self._signed(predictions, table), groups=data.groups)
        classes = predictions.classes
        return error_interval(table, null, level=level, error=error, scale=1 / classes)

    def influence(self, data: Data) -> tuple[float, Tensor]:
        """Return the corrected error, and what each row (N,) adds to it, by the signs of its bins."""
        predictions = need_predictions(data, metric=self)
        table, classes = self._table(predictions), predictions.classes
        return float(corrected_error(table).centre) / classes, self._signed(predictions, table) / classes

    def _table(self, predictions: Predictions) -> BinTable:
        labels, size = predictions.need_labels(), predictions.classes * self.binning.bins
        count = torch.zeros(size, dtype=torch.int64, device=labels.device)
        sum_p, sum_y = torch.zeros(2, size, dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            hit = cell.gather(1, labels[rows, None])[:, 0]
            flat, values = cell.reshape(-1), p.reshape(-1)
            if isinstance(self.binning, EqualMass) and self.binning.ties == "interpolated":
                hit, values, flat = hit[hit >= 0], values[flat >= 0], flat[flat >= 0]
            _count_in(count, flat)
            _sum_in(sum_p, flat, values)
            _count_in(sum_y, hit)
        return BinTable(count, sum_p, sum_y, len(predictions))

    def _signed(self, predictions: Predictions, table: BinTable) -> Tensor:
        sign, labels = torch.cat([torch.sign(table.gap), table.gap.new_zeros(1)]), predictions.need_labels()
        signed = torch.empty(len(predictions), dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            signs = sign[cell]  # a cell of −1 is no cell: it reads the 0 at the end
            signed[rows] = (signs * p).sum(dim=1) - signs.gather(1, labels[rows, None])[:, 0]
        return signed

    def _cells(self, predictions: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with their probabilities (n, K) and cells (n, K) = class · B + bin, −1 for none."""
        bins, classes = self.binning.bins, predictions.classes
        offset = torch.arange(classes, device=predictions.logits.device) * bins
        columns = None
        if isinstance(self.binning, EqualMass):  # its bins need a whole column at a time
            pairs = (predictions.one_vs_rest(k).p for k in range(classes))
            columns = torch.stack([self.binning.assign(p).int() for p in pairs], dim=1)
        for rows in row_chunks(len(predictions), classes):
            if predictions.probs is not None:
                p = predictions.probs[rows].double()
            else:
                p = (predictions.logits[rows].double() - predictions.log_norm[rows, None]).exp_()
            index = self.binning.assign(p.reshape(-1)).view_as(p) if columns is None else columns[rows].long()
            yield rows, p, torch.where(index >= 0, index + offset, -1) if columns is not None else index + offset


def _sparse_errors(table: BinTable, hits: Tensor) -> Tensor:
    """Return Σ_b |Σp − Σy| / N (draws,) where the outcomes of a draw are ``hits`` (N, draws), cells or −1.

    Most cells are hit by no label: their sum is one number, from which the few that are hit are told apart.
    """
    size, draws = table.sum_p.abs(), hits.shape[1]
    cells = torch.sort(hits.t().contiguous(), dim=1).values
    new = torch.ones_like(cells, dtype=torch.bool)
    new[:, 1:] = cells[:, 1:] != cells[:, :-1]
    first = torch.nonzero(new.reshape(-1))[:, 0]
    counts = torch.diff(first, append=first.new_tensor([cells.numel()])).double()
    cell, draw = cells.reshape(-1)[first].long(), first // cells.shape[1]
    inside = cell >= 0
    cell, draw, counts = cell[inside], draw[inside], counts[inside]
    change = (table.sum_p[cell] - counts).abs() - size[cell]
    return (
        torch.zeros(draws, dtype=torch.float64, device=size.device).index_add_(0, draw, change) + size.sum()
    ) / table.total


def _count_in(counts: Tensor, index: Tensor) -> None:
    """Add how often each place is in ``index`` to ``counts``; a histogram as long as ``counts`` where that is worth it."""
    if index.shape[0] < counts.shape[0]:
        counts.index_add_(0, index, counts.new_ones(1).expand(index.shape[0]))
    else:
        counts += torch.bincount(index, minlength=counts.shape[0])


def _sum_in(sums: Tensor, index: Tensor, values: Tensor) -> None:
    if index.shape[0] < sums.shape[0]:
        sums.index_add_(0, index, values)
    else:
        sums += torch.bincount(index, weights=values, minlength=sums.shape[0])
