"""Groups of rows: how columns part them, their gaps, how these vary together if the model is calibrated, and the largest of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.binning import BinTable, EqualMass, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.data.record import Column, check_column
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.design import Clusters

MOST_GROUPS = 2000
_MOST_WHOLE = 20  # distinct whole numbers, up to which they are categories


@dataclass(frozen=True)
class Parts:
    """One way to part the rows: by a column, or by the intersections of several.

    Args:
        code: (N,) int64 part of each row.
        names: (G,) of each part, one (column, category) a column.
    """

    code: NDArray[np.int64]
    names: tuple[tuple[tuple[str, str], ...], ...]


def partitions_of(columns: Mapping[str, Column], data: Data, *, depth: int, bins: int) -> list[Parts]:
    """Return the partitions by every column, and by every set of up to ``depth`` columns; parts without rows are left out.

    Raises:
        InputError: If a column has too many categories, or there are too many groups.
    """
    single = [_partition_by(name, column, data, bins=bins) for name, column in columns.items()]
    found = [
        _crossed(chosen) for size in range(1, min(depth, len(single)) + 1) for chosen in combinations(single, size)
    ]
    if (count := sum(len(parts.names) for parts in found)) > MOST_GROUPS:
        raise refuse(f"at most {MOST_GROUPS:,} groups", f"{count:,}", "name fewer columns, or lower depth or bins")
    return found


def feature_columns(data: Data, features: Any) -> dict[str, Column]:
    """Return the columns that ``features`` names or holds; None stands for all that ``data`` has."""
    own = dict(data.features or {})
    if features is None:
        if not own:
            raise refuse("features", "none", "pass them here, or when making the predictions")
        return own
    if isinstance(features, Mapping):
        named = {
            str(name): check_column(values, name=f"the feature {name!r}", rows=len(data))
            for name, values in features.items()
        }
        if not named:
            raise refuse("at least one column", "none", "name the columns to part the rows by")
        return named
    several = isinstance(features, Sequence) and not isinstance(features, str) and len(features)
    if wrong := [name for name in features if not isinstance(name, str)] if several else [features]:
        raise refuse("features as names or a dict of columns", shown(wrong[0]), 'write ["region", "age"]')
    missing = [name for name in features if name not in own]
    if missing:
        got = ", ".join(map(repr, sorted(own))) or "none"
        raise refuse(f"features out of those of the predictions for {missing[0]!r}", got, "pass a dict of columns")
    return {name: own[name] for name in features}


def _partition_by(name: str, column: Column, data: Data, *, bins: int) -> Parts:
    if not isinstance(column, Tensor):
        return _categories(name, column)
    values = column.cpu().numpy()
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    distinct = np.unique(values[~missing])
    whole = values.dtype.kind != "f"
    if len(distinct) <= (_MOST_WHOLE if whole else bins):
        return _categories(name, np.where(missing, "missing", values.astype(str)) if missing.any() else values)
    weight = None if data.weights is None else data.weights.cpu()[torch.from_numpy(~missing)]
    # missing values are the part after the last bin
    code = np.full(len(values), bins, dtype=np.int64)
    present = torch.from_numpy(values[~missing].astype(np.float64))
    code[~missing] = EqualMass(bins).assign(present, weight=weight).numpy()
    kept, code = np.unique(code, return_inverse=True)
    labels = [
        "missing" if part == bins else f"{_number(values[code == at].min())} to {_number(values[code == at].max())}"
        for at, part in enumerate(kept.tolist())
    ]
    return Parts(code, tuple(((name, label),) for label in labels))


def _categories(name: str, values: NDArray[Any]) -> Parts:
    known, code = _factorized(values)
    if len(known) > MOST_GROUPS:
        raise refuse(f"at most {MOST_GROUPS:,} categories in {name!r}", f"{len(known):,}", "group them first")
    return Parts(code, tuple(((name, str(value)),) for value in known.tolist()))


def _factorized(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct values in order and the number (N,) of each row's; Arrow hashes names, which NumPy would sort."""
    if values.dtype.kind not in "UO":
        known, code = np.unique(values, return_inverse=True)
        return known, code.astype(np.int64)
    import pyarrow as pa

    try:
        found = pa.array(values.tolist(), type=pa.large_string()).dictionary_encode()
    except UnicodeEncodeError:  # half a character, which Arrow's text cannot hold
        known, code = np.unique(values, return_inverse=True)
        return known, code.astype(np.int64)
    known, place = np.unique(np.array(found.dictionary.to_pylist(), dtype=object), return_inverse=True)
    return known, place[found.indices.to_numpy()].astype(np.int64)


def _crossed(chosen: Sequence[Parts]) -> Parts:
    code = chosen[0].code
    names = chosen[0].names
    for other in chosen[1:]:
        # renumbered after each column, so that the product of two counts cannot overflow
        kept, code = np.unique(code * len(other.names) + other.code, return_inverse=True)
        names = tuple(names[k // len(other.names)] + other.names[k % len(other.names)] for k in kept.tolist())
    return Parts(code.astype(np.int64), names)


def _number(value: Any) -> str:
    return f"{value:.6g}"


Floats = NDArray[np.float64]
BINS = 15
FEWEST_EVENTS = 5.0  # effective Σ p (1 − p) of a group, or of bins put together, below which a gap is far from normal


@dataclass(frozen=True)
class EventRows:
    """The event of every row in its bin, its part of the mass, and its cluster if rows are not independent."""

    binned: BinnedRows
    share: Floats
    cluster: NDArray[np.int64] | None

    @classmethod
    def of(cls, pairs: Pairs) -> "EventRows":
        """Return the rows of ``pairs``."""
        p, weight = pairs.p.cpu().double(), None if pairs.weights is None else pairs.weights.cpu()
        binned = BinnedRows(EqualWidth(BINS).assign(pairs.p.cpu()), p, pairs.y.cpu().double(), BINS, weight)
        cluster = None if pairs.groups is None else np.unique(pairs.groups.cpu().numpy(), return_inverse=True)[1]
        share = pairs.row_weights.cpu()
        return cls(binned, (share / share.sum()).numpy(), cluster)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.binned.weight is not None

    @property
    def residual(self) -> Floats:
        """(N,) share (p − y)."""
        return np.asarray(self.share * (self.binned.p - self.binned.y).numpy())

    @property
    def noise(self) -> Floats:
        """(N,) the variance of each row's residual if calibrated."""
        p = self.binned.p.numpy()
        return np.asarray(self.share**2 * p * (1 - p))


@dataclass(frozen=True)
class GroupSums:
    """One group: where its rows are, and their sums.

    Args:
        parts: The partition.
        at: Which of its parts.
        table: The group's bins, with second moments.
        whole: Mass of all rows of all groups.
        third: Σ of the rows' third central moments of share · y, if calibrated.
        cells: (B,) number of the cell of each bin: neighbours are put together until they expect ``FEWEST_EVENTS``.
        units: (U, cells) sums over the clusters of the group, centred and scaled so that their squares add up to the variance.
        degrees: Of freedom of that variance; infinite for independent rows, whose variance is known if calibrated.
        effective: Clusters of equal size that are worth as much.
    """

    parts: Parts
    at: int
    table: BinTable
    whole: float
    third: float
    cells: NDArray[np.int64]
    units: Floats | None = None
    degrees: float = math.inf
    effective: float = math.inf

    @classmethod
    def of(cls, rows: EventRows, parts: Parts, at: int) -> "GroupSums":
        """Return the sums of part ``at`` of ``parts``."""
        inside = np.flatnonzero(parts.code == at)
        chosen, b = torch.from_numpy(inside), rows.binned
        weight = None if b.weight is None else b.weight[chosen]
        mine = BinnedRows(b.index[chosen], b.p[chosen], b.y[chosen], BINS, weight)
        table, whole = mine.table(), float(len(b.p) if b.weight is None else b.weight.sum())
        p, share = mine.p.numpy(), rows.share[inside]
        # the third central moment of a Bernoulli outcome is p (1 − p) (1 − 2p)
        third = float((share**3 * p * (1 - p) * (1 - 2 * p)).sum())
        found = cls(parts, at, table, whole, third, _cell_of_bin(table.expected_events.numpy()))
        if rows.cluster is None:
            return found
        _, code = np.unique(rows.cluster[inside], return_inverse=True)
        count, k = int(code.max()) + 1, int(found.cells[-1]) + 1
        sizes = np.bincount(code, weights=share)
        # one count over pairs (cluster, cell) instead of a loop over clusters
        flat = code * k + found.cells[mine.index.numpy()]
        sums = np.bincount(flat, weights=rows.residual[inside], minlength=count * k).reshape(count, k)
        clusters = Clusters.of(torch.from_numpy(sizes))
        # what a cluster adds beyond its share of the gap: over these the gap varies
        units = (sums - np.outer(sizes / sizes.sum(), sums.sum(axis=0))) * clusters.scale.numpy()[:, None]
        return replace(found, units=units, degrees=clusters.degrees, effective=clusters.effective)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """(N,) whether each row belongs to it."""
        return np.asarray(self.parts.code == self.at)

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.inside.sum())

    @property
    def mass(self) -> float:
        """Its share of all rows' mass."""
        return self.table.total / self.whole

    @property
    def gap(self) -> float:
        """Σ share (p − y), of all rows' mass."""
        return float((self.table.sum_p - self.table.sum_y).sum()) / self.whole

    @property
    def null(self) -> Floats:
        """(B,) variance of each bin's part of the gap, if calibrated and rows are independent."""
        return np.asarray(self.table.noise.numpy() / self.whole**2)

    @property
    def noise(self) -> float:
        """Variance of the gap, if calibrated and rows are independent."""
        return float(self.null.sum())

    @property
    def expected(self) -> float:
        """Effective number of expected events Σ p (1 − p)."""
        return float(self.table.expected_events.sum())

    def shape_p(self) -> float:
        """Return the p-value of Σ z² over its cells: whether bins of the group are off, though its mean may be right.

        z are the cells' gaps over their standard errors if calibrated. Σ z² has the mean k and, of independent rows, the variance
        Σ (2 + κ) with the kurtosis κ ≈ 1 / expected events; it is compared with the χ² of these moments (Hosmer & Lemeshow's
        statistic for fixed probabilities). Over clusters the variance is 2 Σ r² with the cells' correlations r, and F takes χ²'s
        place.
        """
        from scipy.stats import chi2, f

        k = int(self.cells[-1]) + 1
        if k < 2:
            return 1.0
        signed = (self.table.sum_p - self.table.sum_y).numpy() / self.whole
        gap, null = (np.bincount(self.cells, weights=x, minlength=k) for x in (signed, self.null))
        if self.units is None:
            events = np.bincount(self.cells, weights=self.table.expected_events.numpy(), minlength=k)
            # Var z² = 2 + κ for a standardised sum of outcomes, whose excess kurtosis κ is about 1 / Σ p (1 − p)
            spread = (2 + 1 / events).sum()
            # Σ z² is compared with (k / d) χ²_d, which has the mean k and the variance 2 k² / d
            degrees = 2 * k**2 / spread
            return float(chi2.sf((gap**2 / null).sum() * degrees / k, degrees))
        covariance = self.units.T @ self.units
        own = np.diag(covariance)
        # the same two moments with correlated cells: Σ r² stands for k
        degrees = k**2 / (covariance**2 / np.outer(own, own).clip(min=1e-300)).sum()
        return float(f.sf((gap**2 / np.maximum(own, null)).sum() / k, degrees, self.degrees))


def _cell_of_bin(expected: Floats) -> NDArray[np.int64]:
    """Return the cell (B,) of each bin; the last cell takes what is left."""
    cells, cell, held = np.zeros(len(expected), dtype=np.int64), 0, 0.0
    for b, events in enumerate(expected):
        cells[b] = cell
        held += events
        if held >= FEWEST_EVENTS and expected[b + 1 :].sum() >= FEWEST_EVENTS:
            cell, held = cell + 1, 0.0
    return cells


def covariance_of(rows: EventRows, found: Sequence[GroupSums]) -> Floats:
    """Return the covariance (G, G) of the groups' Σ share (p − y) if calibrated: over rows, or over clusters."""
    partitions = list({id(one.parts): one.parts for one in found}.values())
    places = {id(parts): [(i, one.at) for i, one in enumerate(found) if one.parts is parts] for parts in partitions}
    if rows.cluster is not None:
        count = int(rows.cluster.max()) + 1
        sums = np.zeros((count, len(found)))
        for i, one in enumerate(found):
            assert one.units is not None
            sums[np.unique(rows.cluster[one.inside]), i] = one.units.sum(axis=1)
        return _at_least_of_rows(sums.T @ sums, found)
    covariance = np.zeros((len(found), len(found)))
    for first in partitions:
        for second in partitions:
            size = len(second.names)
            # two sums of independent rows vary together by the rows that they share
            both = np.bincount(first.code * size + second.code, weights=rows.noise, minlength=len(first.names) * size)
            table = both.reshape(len(first.names), size)
            for i, at in places[id(first)]:
                for j, other in places[id(second)]:
                    covariance[i, j] = table[at, other]
    return covariance


def _at_least_of_rows(covariance: Floats, found: Sequence[GroupSums]) -> Floats:
    """Return the covariance with each variance at least that of independent rows, and the same correlations.

    Where few clusters have the event, the estimated variance is small in just those samples that have too few of them, whose gap is
    large. Rows of a cluster vary together, so that the variance of independent rows, which is known if calibrated, is a lower end.
    """
    own = np.diag(covariance)
    least = np.maximum(own, [one.noise for one in found])
    factor = np.sqrt(least / np.where(own > 0, own, least.clip(min=1e-300)))
    raised = covariance * np.outer(factor, factor)
    np.fill_diagonal(raised, least)
    return np.asarray(raised)


def largest_drawn(covariance: Floats, *, draws: int, seed: int) -> Floats:
    """Return the largest |z| (draws,) over groups of normal statistics with these correlations, in order of size."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # the symmetric one, which rounding does not turn
    rng = np.random.default_rng(seed)
    # 32 MB of normal numbers at a time
    found, step = np.empty(draws), max(1, (1 << 22) // len(spread))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        found[start : start + size] = np.abs(rng.standard_normal((size, len(spread))) @ root).max(axis=1)
    return np.sort(found)


def gap_spread(group: GroupSums, rows: EventRows) -> tuple[float, float]:
    """Return the standard error of the gap, whether or not the group is calibrated, and the skewness to correct its interval for.

    The standard error is at least that of a calibrated group. The skewness is that of the rows' (or clusters') own contributions:
    few events make the gap skewed, so that a symmetric interval misses on one side. It is 0 where the symmetric interval covers
    better in simulation: for weights, whose few large ones make the estimated skewness noise, and where the standard error
    is that of a calibrated group, which does not vary with the outcomes.
    """
    if group.units is None:
        inside = group.inside
        share = rows.share[inside] / group.mass
        part = share * ((rows.binned.p - rows.binned.y).numpy()[inside] - group.gap / group.mass)
    else:
        part = group.units.sum(axis=1) / group.mass
    square, cube = (float((part**power).sum()) for power in (2, 3))
    error, calibrated = math.sqrt(square), math.sqrt(group.noise) / group.mass
    skew = cube / square**1.5 if error > calibrated and not rows.weighted else 0.0
    return max(error, calibrated), skew
