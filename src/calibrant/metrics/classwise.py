"""Classwise calibration error: every class's probability against its frequency."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.check import check_same_kind
from calibrant._core.constraints import Draws, Kind, Level, Seed
from calibrant._core.numerics import row_chunks
from calibrant._kernels import cpu, reference
from calibrant.binning import AnyBinning, BinTable, EqualMass, EqualWidth, MassSketch
from calibrant.data.checks import ClassRows, need_predictions, repeated
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import SumMetric
from calibrant.metrics.calibration_error import ECE
from calibrant.statistics import error_interval
from calibrant.statistics.clusters import centred_sums, clustered_gaps, group_degrees
from calibrant.statistics.enough import need_groups
from calibrant.statistics.means import Interval, mean_error

_MOST_COPIED = 1 << 22
_MOST_BINS = 1000  # per class in the compiled loop
_MOST_CLUSTER_SUMS = 1 << 26  # half a gigabyte
_DENSE_BYTES = 1 << 28  # of tables drawn at once; above this only the cells that received a label are stored


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

    def null_draws(self, data: ClassRows, *, draws: int, seed: int) -> Tensor:
        """Return the metric (draws,) of labels drawn from the probabilities."""
        need_groups(data.groups, what=self)
        if data.groups is not None:
            degrees = group_degrees(data.groups, data.weights)
            gaps = clustered_gaps(self._cluster_sums(data, data.groups), draws=draws, seed=seed, degrees=degrees)
            means: Tensor = gaps.abs().sum(dim=1) / data.classes
            return means
        predictions = need_predictions(repeated(data, what=self), metric=self)
        table = self._table(predictions)
        weight, cells = predictions.weights, table.count.shape[0]
        drawn = self._drawn_cells(predictions, draws=draws, seed=seed)
        if 8 * draws * cells > _DENSE_BYTES:
            if weight is None:
                return _sparse_errors(table, torch.cat([hit.int() for _, hit in drawn])) / predictions.classes
            most = f"at most {_DENSE_BYTES // 8 // draws:,} bins of all classes for the uncertainty of {self!r} of weighted rows"
            raise NoIntervalError(most, f"{cells:,}", "use fewer bins, or ECE()")
        sums = torch.zeros(draws * cells, dtype=torch.float64, device=predictions.logits.device)
        offset, one = torch.arange(draws, device=sums.device) * cells, sums.new_ones(1, 1)
        for rows, hit in drawn:
            inside, once = hit >= 0, one if weight is None else weight.double()[rows, None]
            sums.index_add_(0, (hit + offset)[inside], once.expand_as(hit)[inside])
        return replace(table, sum_y=sums.view(draws, -1)).errors() / predictions.classes

    def _drawn_cells(self, predictions: Predictions, *, draws: int, seed: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of rows with the cells (n, draws) of labels drawn from their probabilities; −1 if in no bin."""
        generator = torch.Generator().manual_seed(seed)
        for whole, block, cells in self._cells(predictions):
            for rows in row_chunks(block.shape[0], draws, itemsize=2):  # a few MiB for the draws of these rows
                cumulative, cell = block[rows].cumsum(dim=1), cells[rows]
                uniform = torch.rand(cell.shape[0], draws, dtype=torch.float64, generator=generator).to(cell.device)
                # inverse of the cumulative distribution; scaled by its last entry, which rounding leaves near 1
                drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:]).clamp_max(cell.shape[1] - 1)
                yield slice(whole.start + rows.start, whole.start + rows.stop), cell.gather(1, drawn)

    def interval(
        self, data: ClassRows, *, level: Level = 0.95, draws: Draws = 1000, seed: Seed = 0, null: Tensor | None = None
    ) -> Interval:
        """Return the interval of the error in these bins; if there are groups, they are the independent units.

        Raises:
            NoIntervalError: For fewer than ten groups.
        """
        need_groups(data.groups, what=self)
        if data.classes == 2:  # both classes have the same error: counted twice it would look more certain
            one = ECE(self.binning).interval(data.one_vs_rest(1), level=level, draws=draws, seed=seed, null=null)
            return replace(one, estimate=self(data))
        table = self._table(data)
        error = mean_error(self._signed(data, table), groups=data.groups, weight=data.weights)
        null = self.null_draws(data, draws=draws, seed=seed) if null is None else null
        return error_interval(table, null, level=level, error=error, scale=1 / data.classes)

    def _cluster_sums(self, predictions: Predictions, groups: Tensor) -> Tensor:
        """Return Σ (p − y) / N by group and cell (G, K · B), centred over groups."""
        _, code = torch.unique(groups.to(predictions.logits.device), return_inverse=True)
        count, cells, labels = int(code.max()) + 1, predictions.classes * self.binning.bins, predictions.need_labels()
        if count * cells > _MOST_CLUSTER_SUMS:
            raise NoIntervalError(
                f"at most {_MOST_CLUSTER_SUMS:,} sums of groups and bins for {self!r}",
                f"{count * cells:,}",
                "use fewer bins, or ECE()",
            )
        sums = torch.zeros(count * cells, dtype=torch.float64, device=code.device)
        once = predictions.row_weights
        for rows, p, cell in self._cells(predictions):
            inside, home, weight = cell >= 0, code[rows, None] * cells, once[rows, None]
            sums.index_add_(0, (home + cell)[inside], (p * weight)[inside])
            hit = cell.gather(1, labels[rows, None])
            sums.index_add_(0, (home + hit)[hit >= 0], -weight[hit >= 0])
        return centred_sums(sums.view(count, cells) / float(once.sum()), torch.bincount(code, weights=once))

    def _table(self, predictions: Predictions) -> BinTable:
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
        size, some = predictions.classes * self.binning.bins, isinstance(self.binning, EqualMass)
        count, sum_p, sum_y, squares = torch.zeros(4, size, dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(predictions):
            by = None if weight is None else weight[rows].double()
            _add_at(sum_y, cell.gather(1, labels[rows, None]), by, some=some)
            if by is not None:
                by = by[:, None].expand_as(p)
                _add_at(squares, cell, by.square(), some=some)
            _add_at(count, cell, by, some=some)
            _add_at(sum_p, cell, p if by is None else by * p, some=some)
        # a count of n stands for n rows, and only sampling weights add to the variance by their squares
        if weight is None or not weight.is_floating_point():
            total = len(predictions) if weight is None else weight.sum().item()
            return BinTable(count.round().long(), sum_p, sum_y, total)
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
            index = self.binning.assign(p.reshape(-1)).view_as(p) if columns is None else columns[rows].long()
            yield rows, p, torch.where(index >= 0, index + offset, -1) if columns is not None else index + offset


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
