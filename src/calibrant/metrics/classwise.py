"""Classwise calibration error: every class's probability against its frequency."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_same_kind
from calibrant._core.constraints import Draws, Kind, Level, Seed
from calibrant._core.numerics import add_records, row_chunks
from calibrant._kernels import cpu, reference
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth, FixedBins, MassSketch
from calibrant.data.checks import ClassRows, Data
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import SumMetric
from calibrant.metrics.calibration_error import ECE
from calibrant.statistics import error_interval
from calibrant.statistics.clusters import clustered_gaps
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.means import Interval, Powers, UnitSums
from calibrant.statistics.null import BinSums

_MOST_COPIED = 1 << 22
_MOST_BINS = 1000  # per class in the compiled loop
_DENSE_BYTES = 1 << 28  # of tables drawn at once; above this only the cells that received a label are stored
_SETS, _BLOCK, _WHOLE = 64, 1 << 11, 1 << 15  # sets of labels of a block of rows; its rows; rows before the first block
_UNIFORMS = 1 << 19  # numbers drawn at once


@dataclass(frozen=True)
class ClassTables:
    """The bins of all classes: one flat table (K · B), or for equal-mass bins one sketch per class."""

    classes: int
    table: BinTable | None = None
    sketches: tuple[MassSketch, ...] = ()

    def __add__(self, other: "ClassTables") -> "ClassTables":
        check_same_kind(self, other)
        table = self.table + other.table if self.table is not None and other.table is not None else None
        merged = tuple(a + b for a, b in zip(self.sketches, other.sketches, strict=True))
        return ClassTables(self.classes, table, merged)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The moments of the error of three or more classes, from which its interval follows; they add.

    Args:
        classes: K.
        table: The bins of all classes (K · B,).
        units: Σ w (p − y) by group and bin; None for independent rows.
        signed: Of independent rows' Σ_k ± (p − y), with the signs of the gaps of a row's bins, which take a second look at the rows.
        null: (draws,) values for labels drawn from the probabilities; likewise.
    """

    classes: int
    table: BinTable
    units: UnitSums | None = None
    signed: Powers | None = None
    null: Tensor | None = None

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return add_records(self, other, classes=self.classes)


@dataclass(frozen=True)
class ClasswiseECE(SumMetric[ClassTables]):
    """(1/K) Σ_k Σ_b |B_bk|/N · |frequency − probability|, over all N rows and all K classes.

    Mukhoti et al. (2020) print the sum to K − 1, a misprint: their code averages over all classes. Probabilities of 0 are
    included (in the first bin), and so are classes absent from the labels.

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

    def state(self, data: ClassRows) -> ClassTables:
        """Return the bins of all classes; for equal-mass bins, whose edges depend on all data, sketches that can be merged."""
        if isinstance(self.binning, EqualMass):
            pairs = (data.one_vs_rest(k) for k in range(data.classes))
            sketches = tuple(self.binning.sketch(one.p, one.y, weight=one.weights) for one in pairs)
            return ClassTables(data.classes, sketches=sketches)
        return ClassTables(data.classes, self._table(data))

    def value(self, state: Annotated[ClassTables, Kind(ClassTables, "make it with state(data)")]) -> float:
        """Return the mean over classes of the binned error."""
        tables = [state.table] if state.table is not None else [sketch.table() for sketch in state.sketches]
        return sum(table.error() for table in tables) / state.classes

    def in_fixed_bins(self, state: ClassTables) -> "ClasswiseECE":
        """Return the metric in the bins of equal mass of all data, whose ``state`` is given: then its moments add."""
        own = [sketch.fixed() for sketch in state.sketches]
        return replace(self, binning=own[1] if len(own) == 2 else FixedBins.of_columns(own))

    def sums_of_tables(self, state: ClassTables) -> ClassSums:
        """Return the moments of three or more classes' independent rows, before the second look, from the sketches of ``state``."""
        tables = [sketch.table() for sketch in state.sketches]
        names = ["count", "sum_p", "sum_y"] + ["squares"] * (tables[0].squares is not None)
        columns = {name: torch.cat([getattr(table, name) for table in tables]) for name in names}
        return ClassSums(state.classes, BinTable(**columns, total=tables[0].total))

    def moments(self, data: ClassRows) -> BinSums | ClassSums:
        """Return sums that the interval and the values if calibrated are computed from: of two classes those of the second.

        Those of independent rows need a second look at the rows, ``once_more``.
        """
        if data.classes == 2:  # both have the same error: counted twice it would look more certain
            return self._event.moments(data.one_vs_rest(1))
        table, groups = self._table(data), data.groups
        if groups is None:
            return ClassSums(data.classes, table)
        size = data.classes * self.binning.bins
        return ClassSums(data.classes, table, UnitSums.of(groups, data.row_weights, size, self._residuals(data)))

    def once_more(self, data: Any, first: ClassSums, *, start: int, seed: int, drawn: Tensor) -> Powers:
        """Return ``signed`` of some of the rows, which adds, and add labels drawn from their probabilities to ``drawn``.

        Args:
            data: Predictions of independent rows.
            first: The sums of all rows.
            start: How many rows lie before these, by their counts if they have any: the labels drawn do not depend on how rows
                are divided.
            seed: Same seed, same labels.
            drawn: (draws, K · B) from ``no_labels``.
        """
        self._draw(data, start=start, seed=seed, drawn=drawn)
        return Powers.of(self._signed(data, first.table), data.weights)

    def no_labels(self, data: Data, draws: int) -> Tensor:
        """Return zeros (draws, K · B): how often, or with what weight, labels drawn from the probabilities lie in each cell."""
        # counts need half the memory of sums of weights
        kind = torch.int32 if data.weights is None else torch.float64
        size = draws, data.classes * self.binning.bins if isinstance(data, Predictions) else 0
        return torch.zeros(size, dtype=kind, device=data.scores.device)

    def errors_of(self, moments: ClassSums, drawn: Tensor) -> Tensor:
        """Return the metric (draws,) of the labels ``drawn``."""
        parts = (drawn[some].double() for some in row_chunks(*drawn.shape))
        return torch.cat([replace(moments.table, sum_y=part).errors() for part in parts]) / moments.classes

    def null_of(self, moments: BinSums | ClassSums, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of labels drawn from the probabilities that ``moments`` are of."""
        if not isinstance(moments, ClassSums):
            return self._event.null_of(moments, draws=draws, seed=seed)
        if moments.units is not None:
            moments.units.need(what=self, least=FEWEST)
            units, degrees = moments.units, moments.units.degrees
            gaps = clustered_gaps(units.centred, draws=draws, seed=seed, degrees=degrees)
            return torch.as_tensor(gaps.abs().sum(dim=1) / moments.classes)
        assert moments.null is not None
        return moments.null

    def interval_of(self, moments: BinSums | ClassSums, *, null: Tensor, level: float) -> Interval:
        """Return the interval from sums, with the values (draws,) of the metric if calibrated.

        Raises:
            NoIntervalError: For fewer than ten groups.
        """
        if not isinstance(moments, ClassSums):
            return self._event.interval_of(moments, null=null, level=level)
        if moments.units is None:
            assert moments.signed is not None
            square = moments.signed.total(2)
        else:
            moments.units.need(what=self, least=FEWEST)
            square = float((moments.units.centred @ torch.sign(moments.table.gap)).square().sum())
        scale = 1 / moments.classes
        return error_interval(moments.table, null, level=level, error=math.sqrt(square), scale=scale)

    def null_draws(self, data: ClassRows, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of labels drawn from the probabilities."""
        moments = self.moments(data)
        if not isinstance(moments, ClassSums) or moments.units is not None:
            return self.null_of(moments, draws=draws, seed=seed)
        if data.weights is not None or self._dense(data.classes, draws):
            if not self._dense(data.classes, draws):
                most = f"at most {_DENSE_BYTES // 8 // draws:,} bins of all classes for the uncertainty of {self!r} of weighted rows"
                raise NoIntervalError(most, f"{data.classes * self.binning.bins:,}", "use fewer bins, or ECE()")
            drawn = self.no_labels(data, draws)
            self._draw(data, start=0, seed=seed, drawn=drawn)
            return self.errors_of(moments, drawn)
        blocks = self._hits(data, start=0, draws=draws, seed=seed)
        hits = [(hit if block is None else hit[:, _picks(seed, block, draws)]).int() for block, _, hit in blocks]
        return _sparse_errors(moments.table, torch.cat(hits)) / moments.classes

    def interval(
        self, data: ClassRows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0, null: Tensor | None = None
    ) -> Interval:
        """Return the interval of the error in these bins; if there are groups, they are the independent units.

        Raises:
            NoIntervalError: For fewer than ten groups.
        """
        null = self.null_draws(data, draws=draws, seed=seed) if null is None else null
        moments = self.moments(data)
        if isinstance(moments, ClassSums) and moments.units is None:
            moments = replace(moments, signed=Powers.of(self._signed(data, moments.table), data.weights))
        return replace(self.interval_of(moments, null=null, level=level), estimate=self(data))

    @property
    def _event(self) -> ECE:
        return ECE(self.binning)

    def looks_twice(self, classes: int, draws: int) -> bool:
        """Return whether independent rows of so many classes need ``once_more``, and what it keeps is not too much."""
        return classes > 2 and draws > 0 and self._dense(classes, draws)

    def _dense(self, classes: int, draws: int) -> bool:
        return 8 * draws * classes * self.binning.bins <= _DENSE_BYTES

    def _draw(self, data: Any, *, start: int, seed: int, drawn: Tensor) -> None:
        """Add labels drawn from the probabilities to ``drawn``."""
        (draws, cells), weight, home, one = drawn.shape, data.weights, drawn.device, drawn.new_ones(1, 1)
        for block, parts in groupby(self._hits(data, start=start, draws=draws, seed=seed), key=lambda part: part[0]):
            some = drawn if block is None else drawn.new_zeros(_SETS, cells)
            offset, flat = torch.arange(len(some), device=home) * cells, some.view(-1)
            for _, rows, hit in parts:
                at, count = hit + offset, (one if weight is None else weight[rows, None]).expand_as(hit)
                inside = slice(None) if int(hit.amin()) >= 0 else hit >= 0  # choosing takes as long as adding
                flat.index_add_(0, at[inside].reshape(-1), count[inside].reshape(-1))
            if block is not None:
                picks = _picks(seed, block, draws).to(home)
                for part in row_chunks(draws, cells):
                    drawn[part] += some[picks[part]]

    def _hits(
        self, data: Predictions, *, start: int, draws: int, seed: int
    ) -> Iterator[tuple[int | None, slice, Tensor]]:
        """Yield rows with the cells (n, draws) of labels drawn from their probabilities, −1 if in no bin, or (n, ``_SETS``) of a block.

        Of the first ``_WHOLE`` rows all sets of labels are drawn, and the block is None. Of each block of further rows ``_SETS`` are,
        of which every draw takes one at random (``_picks``): its labels have the same distribution, and two draws share one block in
        ``_SETS``. The numbers that labels are drawn from are those at the row's place in one sequence.
        """
        for whole, p, cells in self._cells(data):
            at = whole.start
            while at < whole.stop:
                block = (start + at) // _BLOCK
                all_sets = draws <= _SETS or block < _WHOLE // _BLOCK
                sets = draws if all_sets else _SETS
                rows = slice(at, min(whole.stop, (block + 1) * _BLOCK - start, at + max(1, _UNIFORMS // sets)))
                mine = slice(at - whole.start, rows.stop - whole.start)
                cumulative, cell = p[mine].cumsum(dim=1), cells[mine]
                bits = np.random.Philox(key=2 * seed + (not all_sets))
                width = -(-sets // 4) * 4  # four numbers a step of the sequence
                bits.advance((start + at) * (width // 4))
                random = np.random.Generator(bits).random((rows.stop - at, width))[:, :sets]
                uniform = torch.from_numpy(np.ascontiguousarray(random)).to(cell.device)
                # inverse of the cumulative distribution; scaled by its last entry, which rounding leaves near 1
                drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:]).clamp_max(cell.shape[1] - 1)
                yield None if all_sets else block, rows, cell.gather(1, drawn)
                at = rows.stop

    def _residuals(self, predictions: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with cells (n, …) and what each adds to Σ w (p − y) of the cell."""
        labels, once = predictions.need_labels(), predictions.row_weights
        for rows, p, cell in self._cells(predictions):
            yield rows, cell, p * once[rows, None]
            yield rows, cell.gather(1, labels[rows, None]), -once[rows, None]

    def _table(self, predictions: Predictions) -> BinTable:
        if self not in predictions.sums:
            predictions.sums[self] = self._made_table(predictions)
        table: BinTable = predictions.sums[self]
        return table

    def _made_table(self, predictions: Predictions) -> BinTable:
        labels = predictions.need_labels()
        # for half precision the compiled loop needs a float32 copy, so large logits take the other path
        copied = predictions.logits.itemsize < 4 and predictions.logits.numel() > _MOST_COPIED
        loops = predictions.given_probs is None and predictions.weights is None and cpu.serves(predictions.logits)
        if loops and not copied and isinstance(self.binning, EqualWidth) and self.binning.bins <= _MOST_BINS:
            edges = self.binning.edges(predictions.logits)
            count, sum_p, sum_y, near = cpu.class_bins(predictions.logits, labels, edges)
            table = BinTable(count, sum_p, sum_y, total=len(predictions) - near.shape[0])
            return table + self._sums(_by_pytorch(predictions[near])) if near.shape[0] else table
        return self._sums(predictions)

    def _sums(self, predictions: Predictions) -> BinTable:
        labels, weight = predictions.need_labels(), predictions.weights
        size, some = predictions.classes * self.binning.bins, not isinstance(self.binning, EqualWidth)
        count, sum_p, sum_y, squares = torch.zeros(4, size, dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            by = None if weight is None else weight[rows]
            _add_at(sum_y, cell.gather(1, labels[rows, None]), by, some=some)
            if by is not None:
                by = by[:, None].expand_as(p)
                _add_at(squares, cell, by.square(), some=some)
            _add_at(count, cell, by, some=some)
            _add_at(sum_p, cell, p if by is None else by * p, some=some)
        if weight is None:
            return BinTable(count.round().long(), sum_p, sum_y, len(predictions))
        return BinTable(count, sum_p, sum_y, weight.sum().item(), squares)

    def _signed(self, predictions: Predictions, table: BinTable) -> Tensor:
        sign, labels = torch.cat([torch.sign(table.gap), table.gap.new_zeros(1)]), predictions.need_labels()
        signed = torch.empty(len(predictions), dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            signs = sign[cell]  # cell −1 (in no bin) reads the 0 at the end
            signed[rows] = (signs * p).sum(dim=1) - signs.gather(1, labels[rows, None])[:, 0]
        return signed

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
            if columns is not None:
                index = columns[rows].long()
            elif isinstance(self.binning, FixedBins):
                index = self.binning.assign(p)
            else:
                index = self.binning.assign(p.reshape(-1)).view_as(p)
            cell = index + offset
            # every value has a bin of equal width
            yield rows, p, cell if isinstance(self.binning, EqualWidth) else torch.where(index >= 0, cell, -1)


def _picks(seed: int, block: int, draws: int) -> Tensor:
    """Return which of its sets of labels (draws,) each draw takes of a block of rows."""
    return torch.from_numpy(np.random.default_rng([seed, block]).integers(_SETS, size=draws))


def _sparse_errors(table: BinTable, hits: Tensor) -> Tensor:
    """Return Σ_b |Σp − Σy| / N (draws,), where the labels of each draw lie in the cells ``hits`` (N, draws), −1 if in none.

    Most cells receive no label in any draw: their |Σp| are summed once, and each draw adds the change in the cells it hits.
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
    # Σ_b |Σp − Σy| = Σ_b Σp + Σ over cells with a label of (|Σp − Σy| − Σp)
    change = (table.sum_p[cell] - counts).abs() - size[cell]
    return (
        torch.zeros(draws, dtype=torch.float64, device=size.device).index_add_(0, draw, change) + size.sum()
    ) / table.total


def _by_pytorch(predictions: Predictions) -> Predictions:
    """Return ``predictions`` with sums of rows by PyTorch, so that bins do not depend on compiled loops."""
    return replace(predictions, known={"log_sum": reference.log_sums(predictions.logits, predictions.row_max)})


def _add_at(sums: Tensor, index: Tensor, values: Tensor | None, *, some: bool) -> None:
    """Add ``values``, or 1 each, to the ``sums`` at ``index``, ``some`` of which may be −1; by a full histogram if they are many."""
    index, values = index.reshape(-1), None if values is None else values.reshape(-1)
    if some:
        inside = index >= 0
        index, values = index[inside], None if values is None else values[inside]
    if index.shape[0] < sums.shape[0]:
        sums.index_add_(0, index, sums.new_ones(1).expand(index.shape[0]) if values is None else values)
    else:
        sums += torch.bincount(index, weights=values, minlength=sums.shape[0])
