"""The largest ECE of any group, and its paired difference between two calibrations of the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions
from calibrant.binning import EqualWidth
from calibrant.evaluate._group_sums import feature_columns, partitions_of

BINS, MINIMUM, EVENTS, DRAWS = 15, 100, 5.0, 500  # of a group's ECE, as in evaluate.subgroups; resamples of the rows
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WorstGroup:
    """The largest ECE over the groups of two-class rows, for any number of times that each row occurs.

    Args:
        cells: For each column, group · 15 + bin (N,) of every row, and the number of groups.
        residual: p − y (N,).
        large: For each column, which groups count.
    """

    cells: tuple[tuple[NDArray[np.int64], int], ...]
    residual: Floats
    large: tuple[NDArray[np.bool_], ...]

    @classmethod
    def of(cls, data: Predictions, others: Sequence[Predictions] = ()) -> "WorstGroup":
        """Return the groups of ``data`` with 100 rows and 5 expected events, of ``data`` and of ``others`` alike."""
        pairs = data.one_vs_rest(1)
        home = EqualWidth(BINS).assign(pairs.p).numpy()
        cells, large = [], []
        for parts in partitions_of(feature_columns(data, None), data, depth=1, bins=4):
            groups = len(parts.names)
            counts = np.bincount(parts.code, minlength=groups) >= MINIMUM
            for one in (data, *others):
                p = one.one_vs_rest(1).p.numpy()
                counts &= np.bincount(parts.code, weights=p * (1 - p), minlength=groups) >= EVENTS
            cells.append((parts.code * BINS + home, groups))
            large.append(counts)
        return cls(tuple(cells), (pairs.p - pairs.y).numpy(), tuple(large))

    def error(self, times: Floats) -> float:
        """Return the largest ECE where row i occurs ``times[i]`` times."""
        found = [0.0]
        for (cell, groups), large in zip(self.cells, self.large, strict=True):
            gap = np.bincount(cell, weights=times * self.residual, minlength=groups * BINS).reshape(groups, BINS)
            mass = np.bincount(cell // BINS, weights=times, minlength=groups)
            kept = large & (mass > 0)
            found.append(float((np.abs(gap).sum(axis=1)[kept] / mass[kept]).max(initial=0.0)))
        return max(found)


def paired_worst(a: Sequence[Predictions], b: Sequence[Predictions], *, draws: int = DRAWS) -> list[float]:
    """Return the mean difference over splits (b less a), and its 95 % interval by the bootstrap's standard error.

    A unit of the bootstrap is a row of the set (``groups``), which several splits may hold; both calibrations are of the same rows.

    Args:
        a: The rows of each split after one calibration.
        b: The same rows after the other.
        draws: Resamples.
    """
    both = [(WorstGroup.of(x, [y]), WorstGroup.of(y, [x])) for x, y in zip(a, b, strict=True)]
    homes = [np.arange(len(x)) if x.groups is None else x.groups.numpy() for x in a]
    count, rng = 1 + max(int(home.max()) for home in homes), np.random.default_rng(0)

    def difference(times: Floats) -> float:
        found = [y.error(times[home]) - x.error(times[home]) for (x, y), home in zip(both, homes, strict=True)]
        return float(np.mean(found))

    drawn = [difference(np.bincount(rng.integers(0, count, count), minlength=count) * 1.0) for _ in range(draws)]
    middle, half = difference(np.ones(count)), 1.96 * float(np.std(drawn, ddof=1))
    return [round(end, 5) for end in (middle, middle - half, middle + half)]
