"""The null distribution of a metric: its values for a perfectly calibrated model with the same probabilities.

Bins depend on the probabilities alone, so only outcomes are drawn: for binned errors one binomial per cell of nearly equal
probabilities, at a cost that does not grow with the number of rows.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_same_weights
from calibrant._core.constraints import Draws, Level, Seed, checked
from calibrant._core.numerics import add_records, row_chunks, slices
from calibrant.binning import BinTable
from calibrant.data.checks import Data, need_rows
from calibrant.data.predictions import BinaryPairs
from calibrant.statistics._resampling import quantiles
from calibrant.statistics.binned import BinnedRows, error_interval
from calibrant.statistics.clusters import RowUnits, cluster_error, clustered_gaps, unit_sums
from calibrant.statistics.enough import FEWEST, need_independent
from calibrant.statistics.interval import AnyMetric
from calibrant.statistics.means import Interval, UnitSums

Floats = NDArray[np.float64]

# Rows of one bin whose probabilities agree to 1/1024 share a cell, and are drawn as if all had the cell's mean: that adds
# at most the fraction 1/6144 to the variance (reached by probabilities spread evenly over the cell next to 0 or 1).
CELLS = 1024
_COARSE = 256  # cells for rows with weights, which are also divided by weight
_MOST_STEPS = 1 << 12  # factors of 1.25 between 1 and the largest or smallest float64
_SPAN = 2 * _MOST_STEPS * _COARSE  # numbers of cells of a bin
_DRAWN = 1 << 22  # outcomes drawn at once


@runtime_checkable
class HasNull(Protocol):
    """A metric with its own method to draw values under calibration, faster than by drawing labels."""

    def null_draws(self, data: Data, *, draws: int, seed: int) -> Tensor:
        """Return values (draws,) of the metric for outcomes drawn from the probabilities."""


@checked
def null_band(
    metric: AnyMetric,
    predictions: Data,
    *,
    draws: Draws = 1000,
    seed: Seed = 0,
    level: Level = 0.95,
) -> Interval:
    """Return the mean and the central range of ``metric`` if the predicted probabilities were perfectly calibrated.

    Labels are drawn from the predicted probabilities; everything else is kept. For a value inside the band calibration is not
    rejected. With ``groups`` the bins' sums are drawn with the covariance of whole groups (``clustered_gaps``).

    Args:
        metric: Any metric.
        predictions: The data; for ``BinaryPairs`` outcomes are drawn from ``p``.
        draws: Label sets drawn, ≥ 1.
        seed: Same seed, same band.
        level: The band holds the central fraction ``level`` of the draws.

    Returns:
        Interval: ``estimate`` is the value expected if calibrated (the mean over draws), ``high`` the (1 + level) / 2 limit if
            calibrated, by default the 97.5 % limit.

    Raises:
        NoIntervalError: For grouped rows, if there are fewer than ten groups or the metric is not binned.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> 0 < null_band(ECE(), data).estimate < 0.1
        True

    References:
        Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    values = null_draws(metric, predictions, draws=draws, seed=seed).numpy()
    low, high = quantiles(values, level=level)
    return Interval(float(values.mean()), low, high, level, f"labels drawn from the probabilities, {draws} draws")


@checked
def null_draws(metric: AnyMetric, predictions: Data, *, draws: Draws = 1000, seed: Seed = 0) -> Tensor:
    """Return values (draws,) of ``metric`` for labels drawn from the predicted probabilities.

    Args:
        metric: Any metric.
        predictions: The data.
        draws: Label sets drawn, ≥ 1.
        seed: Same seed, same values.
    """
    predictions = need_rows(predictions, what=metric)
    if isinstance(metric, HasNull):
        return metric.null_draws(predictions, draws=draws, seed=seed).cpu().double()
    need_independent(predictions.groups, what=metric)
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor([metric(redraw(predictions, generator=generator)) for _ in range(draws)], dtype=torch.float64)


def null_outcomes(
    index: Tensor, p: Tensor, *, bins: int, draws: int, seed: int, weight: Tensor | None = None
) -> Tensor:
    """Return sums of outcomes (draws, bins) for y ~ Bernoulli(p), with fixed bins.

    Args:
        index: (N,) bin of each row; −1 if in no bin.
        p: (N,) probabilities.
        bins: B.
        draws: Number of draws.
        seed: Same seed, same sums.
        weight: (N,) positive, by which outcomes are multiplied; None for 1.

    Examples:
        >>> sums = null_outcomes(torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 0.0]), bins=2, draws=4, seed=0)
        >>> sums.tolist() == [[2.0, 0.0]] * 4
        True
    """
    return NullCells.of(BinnedRows(index, p, p, bins, weight)).outcomes(bins=bins, draws=draws, seed=seed)


@dataclass(frozen=True, eq=False)
class NullCells:
    """Rows of one bin whose probabilities nearly agree, put together in cells: what outcomes are drawn from; cells add.

    Args:
        keys: (C,) int64 bin · 2²¹ + cell within it, ascending.
        sums: (3, C) Σ 1, Σ w and Σ w p.
        weighted: Whether rows have weights, else w is 1.
    """

    keys: Tensor
    sums: Tensor
    weighted: bool

    @classmethod
    def of(cls, rows: BinnedRows) -> "NullCells":
        """Return the cells of rows in their bins."""
        index, p, weight = rows.index, rows.p, rows.weight
        inside = index >= 0
        home, wide = index[inside].cpu(), p[inside].cpu().double()
        w = torch.ones_like(wide) if weight is None else weight[inside].cpu().double()
        if weight is not None:
            # 1/256 in probability and a factor of 1.25 in weight: in a draw each row has the mean weight, which lowers the variance
            # by at most 1 %
            steps = (w.log() / math.log(1.25)).floor().long() + _MOST_STEPS
            cell = steps * _COARSE + (wide * _COARSE).long().clamp_max(_COARSE - 1)
        else:
            cell = (wide * CELLS).long().clamp_max(CELLS - 1)
        return cls._merged(home * _SPAN + cell, torch.stack([torch.ones_like(w), w, w * wide]), weight is not None)

    @classmethod
    def _merged(cls, keys: Tensor, sums: Tensor, weighted: bool) -> "NullCells":
        known, place = torch.unique(keys, return_inverse=True)
        added = [torch.bincount(place, weights=values, minlength=len(known)) for values in sums]
        return cls(known, torch.stack(added), weighted)

    def __add__(self, other: "NullCells") -> "NullCells":
        check_same_weights(self.weighted, other.weighted)
        keys, sums = torch.cat([self.keys, other.keys]), torch.cat([self.sums, other.sums], dim=1)
        return NullCells._merged(keys, sums, self.weighted)

    def outcomes(self, *, bins: int, draws: int, seed: int) -> Tensor:
        """Return sums of outcomes (draws, bins) as ``null_outcomes`` does."""
        (count, mass, sum_p), home = self.sums.numpy(), (self.keys // _SPAN).numpy()
        times = count.astype(np.int64)
        mean, rng = np.clip(sum_p / mass, 0.0, 1.0), np.random.default_rng(seed)
        sums = np.zeros((bins, draws))
        for some in slices(len(times), max(1, _DRAWN // draws)):  # the same numbers as of all cells at once
            drawn: NDArray[Any] = rng.binomial(times[some, None], mean[some, None], size=(len(times[some]), draws))
            drawn = drawn * (mass / count)[some, None] if self.weighted else drawn
            starts = np.concatenate([[0], np.flatnonzero(np.diff(home[some])) + 1])  # cells are sorted by bin
            sums[home[some][starts]] += np.add.reduceat(drawn, starts, axis=0)
        return torch.from_numpy(np.ascontiguousarray(sums.T))


@dataclass(frozen=True, eq=False)
class BinSums:
    """The moments of a binned error over rows in fixed bins, from which its interval and null follow; they add.

    Args:
        table: Of the bins, with second moments.
        cells: Of nearly equal probabilities; None for rows in groups.
        units: Σ w (p − y) by group and bin, or their products where a group is read as one row; None for independent rows.
    """

    table: BinTable
    cells: NullCells | None
    units: UnitSums | RowUnits | None = None

    @classmethod
    def of(cls, rows: BinnedRows, groups: Tensor | None = None) -> "BinSums":
        """Return the moments of rows in their bins; ``groups`` (N,) are the independent units, if any."""
        table = rows.table(moments=True)
        if groups is not None:
            return cls(table, None, unit_sums(rows, groups))
        return cls(table, NullCells.of(rows))

    def __add__(self, other: "BinSums") -> "BinSums":
        return add_records(self, other)

    @property
    def decided(self) -> Tensor:
        """(2, 2) as ``decided_of`` returns it, where outcomes are right decisions."""
        table, second = self.table, self.table.second
        assert second is not None
        mass, square = table.count.double().sum(), (table.count if table.squares is None else table.squares).sum()
        right = torch.stack([table.sum_y.sum(), second[1].sum()])
        return torch.stack([torch.stack([mass, square]) - right, right]).cpu()

    def null(self, what: object, *, draws: int, seed: int) -> BinTable:
        """Return the table with outcome sums (draws, B) drawn as if the probabilities were calibrated.

        Raises:
            NoIntervalError: For fewer than ten groups, or too many, of ``what``.
        """
        if self.cells is None:
            units = self.need_units(what)
            gaps = clustered_gaps(units.centred, draws=draws, seed=seed, degrees=units.degrees)
            return replace(self.table, sum_y=self.table.sum_p - gaps * self.table.total, second=None)
        sums = self.cells.outcomes(bins=self.table.count.shape[0], draws=draws, seed=seed)
        return replace(self.table, sum_y=sums.to(self.table.sum_p.device), second=None)

    def interval(self, what: object, null: Tensor, *, level: float) -> Interval:
        """Return the interval of Σ_b weight_b |gap_b|, whose values (draws,) if calibrated are ``null``."""
        if self.cells is not None:
            return error_interval(self.table, null, level=level)
        units = self.need_units(what)
        error = cluster_error(self.table, units.centred, level=level, degrees=units.degrees)
        spread = units.centred.square().sum(dim=0).sqrt()
        return error_interval(self.table, null, level=level, spread=spread, error=error)

    def need_units(self, what: object) -> UnitSums | RowUnits:
        """Return the sums of groups if there are enough of them.

        Raises:
            NoIntervalError: If not.
        """
        assert self.units is not None
        self.units.need(what=what, least=FEWEST)
        return self.units


@runtime_checkable
class HasMoments(Protocol):
    """A calibration error whose uncertainty follows from sums that add."""

    def moments(self, data: Any) -> Any:
        """Return the sums of ``data``."""

    def null_of(self, moments: Any, *, draws: int, seed: int) -> Tensor:
        """Return values (draws,) of the metric if calibrated."""


def redraw(predictions: Data, *, generator: torch.Generator) -> Data:
    """Return the same predictions with labels drawn from their probabilities.

    Args:
        predictions: Predictions over all classes, or pairs.
        generator: Source of randomness.
    """
    if isinstance(predictions, BinaryPairs):
        happened = torch.rand(len(predictions), dtype=torch.float64, generator=generator) < predictions.p.cpu()
        return replace(
            predictions, y=happened.double().to(predictions.p.device), decision=None, labels=None, features=None
        )
    drawn = []
    for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
        p = predictions.float64_probs(rows)
        uniform = torch.rand(len(p), 1, dtype=torch.float64, generator=generator).to(p.device)
        cumulative = p.cumsum(dim=1)
        below = (cumulative < uniform * cumulative[:, -1:]).sum(dim=1)
        drawn.append(below.clamp_max(predictions.classes - 1))
    computed = vars(predictions)
    names = ("row_max", "log_sum", "predicted", "confidence", "float32_sums")  # these do not depend on the labels
    known = {name: computed[name] for name in names if name in computed}
    return replace(predictions, labels=torch.cat(drawn), known=known)
