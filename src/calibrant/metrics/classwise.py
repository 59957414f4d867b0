"""The classwise calibration error, which compares every class's probability with its frequency."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant._kernel import class_bins, class_signs
from calibrant.binning import LOOP_BINS, BinTable, EqualMass, EqualWidth
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import KeptRows
from calibrant.metrics.calibration_error import ECE, BinnedMetric
from calibrant.statistics.binned import error_interval
from calibrant.statistics.means import Interval, Powers, normal_quantile


@dataclass(frozen=True)
class ClasswiseECE(BinnedMetric):
    """Classwise calibration error (1/K) Σ_k Σ_b |B_bk|/N · |frequency − probability|, over all N rows and K classes.

    Mukhoti et al. (2020) print a sum up to K − 1, which is a misprint: their code averages over all classes. Probabilities
    of 0 are included (in the first bin), and so are classes that do not occur in the labels. With two classes, both have
    the same error, apart from probabilities on a bin edge. Intervals and limits are then means over the two classes, so
    that no row counts twice.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ClasswiseECE()(Predictions.from_probs([[1.0, 0.0, 0.0]], [1])), 4)
        0.6667

    References:
        Kull et al. 2019 Eq. 2; Nixon et al. 2019 (SCE).
    """

    notion = "classwise"
    by_class = True
    cite = "Kull et al. 2019"
    needs_classes = True

    def gap_factor(self, table: BinTable) -> float:
        """Return 1 / K."""
        return self.binning.bins / table.count.shape[0]

    def errors(self, table: BinTable) -> Tensor:
        """Return the binned error (…), averaged over classes, for tables (…, K · B)."""
        return table.errors() * self.gap_factor(table)

    def signed(self, data: Predictions, table: BinTable) -> Powers:
        """Return the moments of each row's Σ_k ± (p_k − y_k), which the interval needs in addition to the ``table`` of all rows.

        The signs are the signs of the gaps of the row's bins. The table does not show how the classes of a row vary together.
        """
        sign, labels = torch.sign(table.gap), data.require_labels()
        if self._in_loops(data):
            return Powers.of(class_signs(data.logits, labels, sign.view(data.classes, -1)), data.weights)
        sign = torch.cat([sign, sign.new_zeros(1)])
        signed = torch.empty(len(data), dtype=torch.float64, device=labels.device)
        for rows, p, cell in self._cells(data):
            signs = sign[cell]  # cell −1 (in no bin) reads the 0 at the end
            signed[rows] = torch.linalg.vecdot(signs, p) - signs.gather(1, labels[rows, None])[:, 0]
        return Powers.of(signed, data.weights)

    def null_of(self, state: BinTable | KeptRows, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the range of the metric for a calibrated model, from a state."""
        table = self.table_of(state)
        if self.gap_factor(table) != 0.5:
            return super().null_of(table, level=level, draws=draws, seed=seed)
        one = ECE(self.binning)
        return _mean_of([one.null_of(event, level=level, draws=draws, seed=seed) for event in table.parts(2)])

    def interval_of(self, state: BinTable | KeptRows, *, level: float = 0.95, signed: Powers | None = None) -> Interval:
        """Return the confidence interval of the error in these bins, from a state.

        Args:
            state: The bin table or the rows.
            level: Nominal coverage, in (0, 1).
            signed: The result of ``signed`` for the same rows, which is needed for more than two classes and independent rows.

        Raises:
            NoIntervalError: If ``signed`` is needed but None.
        """
        table = self.table_of(state)
        if self.gap_factor(table) == 0.5:
            return _mean_of([ECE(self.binning).interval_of(event, level=level) for event in table.parts(2)])
        if table.groups is not None:
            square = float((table.groups @ torch.sign(table.gap)).square().sum())
        else:
            if signed is None:
                expected = "the moments of ClasswiseECE.signed for more than two classes"
                raise NoIntervalError(expected, "none", "pass signed, or call interval with the rows")
            # half of the z² rows that Wilson's interval adds are wrong, by 2 at most; without a wrong row, nothing else varies
            z2 = normal_quantile((1 + level) / 2) ** 2
            added = z2 / 2 / (signed.units + z2)
            square = max(signed.total(2), 4 * added * (1 - added) / signed.units)
        gate = self.null_of(table, level=level).high
        return error_interval(table, gate, level=level, error=math.sqrt(square), scale=self.gap_factor(table))

    def interval(self, rows: Predictions, *, level: float = 0.95) -> Interval:
        """Return the confidence interval of the error in these bins. If the rows have groups, these are the independent units.

        Raises:
            NoIntervalError: If there are fewer than ten groups, or more groups than fit into memory.
        """
        table = self.grouped_table(rows)
        signed = self.signed(rows, table) if table.groups is None and rows.classes > 2 else None
        return self.interval_of(table, level=level, signed=signed)

    def table(self, data: Predictions) -> BinTable:
        """Return the bins of all classes as one table (K · B); it is computed once and cached."""
        labels, weight = data.require_labels(), data.weights
        if self not in data.sums:
            if weight is None and self._in_loops(data):
                found = BinTable.of_sums(class_bins(data.logits, labels, self.binning.bins), len(data))
            else:
                parts = []
                for rows, p, cell in self._cells(data):
                    y = torch.zeros_like(p).scatter_(1, labels[rows, None], 1.0)
                    w = None if weight is None else weight[rows].repeat_interleave(data.classes)
                    size = data.classes * self.binning.bins
                    parts.append(BinTable.from_pairs(cell.flatten(), p.flatten(), y.flatten(), bins=size, weight=w))
                # the table counts rows, not pairs of a row and a class
                found = replace(sum(parts[1:], parts[0]), total=len(data) if weight is None else weight.sum().item())
            data.sums[self] = found
        table: BinTable = data.sums[self]
        return table

    def _in_loops(self, data: Predictions) -> bool:
        """Return whether the kernel has this binning of the softmax of the logits."""
        plain = data.given_probs is None and data.logits.device.type == "cpu"
        return plain and isinstance(self.binning, EqualWidth) and self.binning.bins <= LOOP_BINS

    def residuals(self, data: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with their cells (n, …) and the amounts that each row adds to Σ (p − y) of these cells."""
        labels = data.require_labels()
        for rows, p, cell in self._cells(data):
            yield rows, cell, p
            yield rows, cell.gather(1, labels[rows, None]), p.new_full((len(p), 1), -1.0)

    def _cells(self, data: Predictions) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield blocks of rows with their probabilities (n, K) and cells (n, K), class · B + bin, or −1 for no bin."""
        bins, classes = self.binning.bins, data.classes
        offset = torch.arange(classes, device=data.logits.device) * bins
        columns = None
        if isinstance(self.binning, EqualMass):  # equal-mass edges depend on a whole column
            pairs, weight = (data.one_vs_rest(k).p for k in range(classes)), data.weights
            columns = torch.stack([self.binning.assign(p, weight=weight).int() for p in pairs], dim=1)
        for rows in row_chunks(len(data), classes):
            p = data.float64_probs(rows)
            index = self.binning.assign(p.reshape(-1)).view_as(p) if columns is None else columns[rows].long()
            yield rows, p, torch.where(index >= 0, index + offset, -1)


def _mean_of(intervals: list[Interval]) -> Interval:
    """Return the interval whose estimate and ends are the means over ``intervals``."""
    ends = {name: sum(getattr(one, name) for one in intervals) / len(intervals) for name in ("estimate", "low", "high")}
    return replace(intervals[0], **ends)
