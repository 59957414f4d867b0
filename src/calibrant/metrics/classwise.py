"""Classwise calibration error: every class's probability against its frequency."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.constraints import Draws, Kind, Level, Seed
from calibrant._core.numerics import row_chunks
from calibrant._kernels import cpu
from calibrant.binning import TIE, AnyBinning, BinTable, EqualMass, EqualWidth
from calibrant.data.checks import ClassRows
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics._base import SumMetric
from calibrant.metrics.calibration_error import ECE
from calibrant.statistics.binned import error_interval
from calibrant.statistics.clusters import clustered_table
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.means import Interval, Powers, UnitSums
from calibrant.statistics.null import band_of, gap_band

_MOST_COPIED = 1 << 22
_MOST_BINS = 1000  # per class in the compiled loop


@dataclass(frozen=True)
class ClasswiseECE(SumMetric[BinTable]):
    """(1/K) Σ_k Σ_b |B_bk|/N · |frequency − probability|, over all N rows and all K classes.

    Mukhoti et al. (2020) print the sum to K − 1, a misprint: their code averages over all classes. Probabilities of 0 are
    included (in the first bin), and so are classes absent from the labels. Of two classes both have the same error, up to
    probabilities on an edge: intervals and limits are then the means of those of each class's event, which count rows once.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ClasswiseECE()(Predictions.from_probs([[1.0, 0.0, 0.0]], [1])), 4)
        0.6667

    References:
        Kull et al. 2019 Eq. 2; Nixon et al. 2019 (SCE).
    """

    binning: AnyBinning = field(default=EqualWidth(15))

    notion = "classwise"
    cite = "Kull et al. 2019"
    needs_classes = True

    def state(self, data: ClassRows) -> BinTable:
        """Return the bins of all classes as one table (K · B).

        Raises:
            InputError: For equal-mass bins, whose edges depend on all data.
        """
        if isinstance(self.binning, EqualMass):
            raise InputError("equal-width bins to merge", f"{self.binning}", "call the metric on all rows")
        return self.table(data)

    def value(self, state: Annotated[BinTable, Kind(BinTable, "make it with state(data)")]) -> float:
        """Return the mean over classes of the binned error."""
        return state.error() / self._classes(state)

    def __call__(self, data: ClassRows) -> float:
        """Return the value on ``data``, a Python float."""
        return self.value(self.table(data))

    def moments(self, data: Predictions) -> BinTable:
        """Return sums that the limit if calibrated is computed from: the state."""
        return self.state(data)

    def signed(self, data: Predictions, table: BinTable) -> Powers:
        """Return what the interval needs beside the ``table`` of all rows: moments of each row's Σ_k ± (p_k − y_k), which add.

        The signs are those of the gaps of its bins. How the classes of a row vary together is in no table.
        """
        sign, labels = torch.cat([torch.sign(table.gap), table.gap.new_zeros(1)]), data.need_labels()
        signed = torch.empty(len(data), dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(data):
            signs = sign[cell]  # cell −1 (in no bin) reads the 0 at the end
            signed[rows] = (signs * p).sum(dim=1) - signs.gather(1, labels[rows, None])[:, 0]
        return Powers.of(signed, data.weights)

    def null_of(self, state: BinTable, *, level: float = 0.95, draws: int = 0, seed: int = 0) -> Interval:
        """Return the band of the metric if calibrated, of independent rows, from a state."""
        if self._classes(state) == 2:
            return _mean_of([self._event.null_of(one, level=level) for one in state.parts(2)])
        return gap_band(state, torch.full_like(state.sum_p, 1 / (state.mass * self._classes(state))), level=level)

    def null_band(self, data: ClassRows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the mean and the central range of the metric if calibrated; of groups from drawn gaps.

        Raises:
            NoIntervalError: For fewer than ten groups, or too many.
        """
        if data.groups is None:
            return self.null_of(self.table(data), level=level)
        if data.classes == 2:
            events = (data.one_vs_rest(k) for k in range(2))
            return _mean_of([self._event.null_band(one, level=level, draws=draws, seed=seed) for one in events])
        return self._null_of_units(self.table(data), self._units(data), level=level, draws=draws, seed=seed)

    def interval_of(self, state: BinTable, *, level: float, signed: Powers | None = None) -> Interval:
        """Return the interval from a state of independent rows; of more than two classes with ``signed`` of the same rows."""
        if self._classes(state) == 2:
            return _mean_of([self._event.interval_of(one, level=level) for one in state.parts(2)])
        assert signed is not None
        error, scale = math.sqrt(signed.total(2)), 1 / self._classes(state)
        return error_interval(state, self.null_of(state, level=level).high, level=level, error=error, scale=scale)

    def interval(self, data: ClassRows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0) -> Interval:
        """Return the interval of the error in these bins; if there are groups, they are the independent units.

        Raises:
            NoIntervalError: For fewer than ten groups, or too many.
        """
        if data.classes == 2 and data.groups is not None:
            events = (data.one_vs_rest(k) for k in range(2))
            return _mean_of([self._event.interval(one, level=level, draws=draws, seed=seed) for one in events])
        table = self.table(data)
        if data.groups is None:
            signed = None if data.classes == 2 else self.signed(data, table)
            return self.interval_of(table, level=level, signed=signed)
        units = self._units(data)
        gate = self._null_of_units(table, units, level=level, draws=draws, seed=seed).high
        square = float((units.centred @ torch.sign(table.gap)).square().sum())
        return error_interval(table, gate, level=level, error=math.sqrt(square), scale=1 / data.classes)

    def table(self, data: Predictions) -> BinTable:
        """Return the bins of all classes as one table (K · B), which is made once."""
        if self not in data.sums:
            data.sums[self] = self._made_table(data)
        table: BinTable = data.sums[self]
        return table

    @property
    def _event(self) -> ECE:
        return ECE(self.binning)

    def _classes(self, table: BinTable) -> int:
        return table.count.shape[0] // self.binning.bins

    def _units(self, data: Predictions) -> UnitSums:
        size = data.classes * self.binning.bins
        units = UnitSums.of(data.groups, data.row_weights, size, self._residuals(data))  # type: ignore[arg-type]
        units.need(what=self, least=FEWEST)
        return units

    def _null_of_units(self, table: BinTable, units: UnitSums, *, level: float, draws: int, seed: int) -> Interval:
        drawn = clustered_table(table, units, draws=draws, seed=seed)
        return band_of(drawn.errors() / self._classes(table), level=level)

    def _residuals(self, predictions: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with cells (n, …) and what each adds to Σ w (p − y) of the cell."""
        labels, once = predictions.need_labels(), predictions.row_weights
        for rows, p, cell in self._cells(predictions):
            yield rows, cell, p * once[rows, None]
            yield rows, cell.gather(1, labels[rows, None]), -once[rows, None]

    def _made_table(self, predictions: Predictions) -> BinTable:
        labels = predictions.need_labels()
        # for half precision the compiled loop needs a float32 copy, so large logits take the other path
        copied = predictions.logits.itemsize < 4 and predictions.logits.numel() > _MOST_COPIED
        loops = predictions.given_probs is None and predictions.weights is None and cpu.serves(predictions.logits)
        if loops and not copied and isinstance(self.binning, EqualWidth) and self.binning.bins <= _MOST_BINS:
            edges = self.binning.edges(predictions.logits) + TIE
            return BinTable.of_sums(cpu.class_bins(predictions.logits, labels, edges), len(predictions))
        size, weight = predictions.classes * self.binning.bins, predictions.weights
        sums = torch.zeros(8, size, dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            w = torch.ones_like(p[:, :1]) if weight is None else weight[rows, None]
            v, own = w.square(), labels[rows, None]
            at_label, p_label = cell.gather(1, own), p.gather(1, own)
            every = (w.expand_as(p), w * p, v.expand_as(p), v * p, v * p * p)
            for place, column in zip((0, 1, 3, 4, 6), every, strict=True):
                _add_at(sums[place], cell, column)
            for place, column in zip((2, 5, 7), (w, v, v * p_label), strict=True):
                _add_at(sums[place], at_label, column)
        if weight is None:
            return BinTable.of_sums(sums[[0, 1, 2, 6, 7]], len(predictions))
        return BinTable(sums[0], sums[1], sums[2], weight.sum().item(), sums[3], sums[4:])

    def _cells(self, predictions: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with their probabilities (n, K) and cells (n, K) = class · B + bin, −1 if in no bin."""
        bins, classes = self.binning.bins, predictions.classes
        offset = torch.arange(classes, device=predictions.logits.device) * bins
        columns = None
        if isinstance(self.binning, EqualMass):  # its bins need a whole column at a time
            pairs, weight = (predictions.one_vs_rest(k).p for k in range(classes)), predictions.weights
            columns = torch.stack([self.binning.assign(p, weight=weight).int() for p in pairs], dim=1)
        for rows in row_chunks(len(predictions), classes):
            p = predictions.float64_probs(rows)
            index = self.binning.assign(p.reshape(-1)).view_as(p) if columns is None else columns[rows].long()
            yield rows, p, torch.where(index >= 0, index + offset, -1)


def _mean_of(intervals: list[Interval]) -> Interval:
    estimate, low, high = (
        sum(getattr(one, name) for one in intervals) / len(intervals) for name in ("estimate", "low", "high")
    )
    return replace(intervals[0], estimate=estimate, low=low, high=high)


def _add_at(sums: Tensor, index: Tensor, values: Tensor) -> None:
    """Add ``values`` to the ``sums`` at ``index``, some of which may be −1; by a full histogram if they are many."""
    index, values = index.reshape(-1), values.reshape(-1)
    inside = index >= 0
    index, values = index[inside], values[inside]
    if index.shape[0] < sums.shape[0]:
        sums.index_add_(0, index, values)
    else:
        sums += torch.bincount(index, weights=values, minlength=sums.shape[0])
