"""Is a model calibrated for everyone: the gap of every group of rows, and one test for the worst of them.

A group's figures come from its bin table; groups overlap, so that the largest of their gaps is compared with that of normal
numbers with the groups' own correlations.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_count, check_number
from calibrant._core.notebook import to_html
from calibrant.binning import BinTable, EqualWidth
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.errors import NoIntervalError
from calibrant.evaluate.partitions import feature_columns, partitions_of
from calibrant.metrics import ECE
from calibrant.statistics import interval
from calibrant.statistics.design import Clusters, require_groups
from calibrant.statistics.means import normal_quantile, skewed_ends
from calibrant.statistics.paired import shown_p

Floats = NDArray[np.float64]

_BINS = EqualWidth(15)
# Largest skewness times quantile that the interval of a gap is corrected for: Hall's transformation of a larger one makes the
# interval much longer than coverage needs.
_MAX_SKEW = 0.6
# parts of the level: of the test of the largest gap, of those of the bins within each group
_OF_GAP, _OF_SHAPE = 0.8, 0.2
_MIN_EVENTS = 5.0  # effective Σ p (1 − p) of a group, or of bins put together, below which a gap is far from normal
_MIN_CLUSTERS = 10.0  # effective number of them in a group
_INFINITE = 40.0  # |z| beyond 38 has p = 0


@dataclass(frozen=True, kw_only=True)
class TestedPart:
    """The figures that a group of rows and a label have in common.

    Args:
        n: Rows; counted rows as often as they are counted.
        confidence: Mean probability of the event.
        rate: Its frequency.
        gap: confidence − rate, the calibration in the large: positive where the model is over-confident.
        ece: Calibration error within the part, in 15 bins of equal width.
        ece_low: Lower end of its interval, or None where none is known to cover.
        ece_high: Upper end, or None.
        p_adjusted: For the worst of all parts: below 0.05 in at most 5 % of calibrated models for any part; None where too few rows are
            to be tested. It is the smaller of the gap's, with four fifths of the level, and of that of the bins within the part, with
            one fifth.
        evidence: Which of them it is: "gap", or "shape" of bins that are off though the mean may be right.
    """

    n: int
    confidence: float
    rate: float
    gap: float
    ece: float
    ece_low: float | None = None
    ece_high: float | None = None
    p_adjusted: float | None = None
    evidence: Literal["gap", "shape"] = "gap"


@dataclass(frozen=True, kw_only=True)
class Subgroup(TestedPart):
    """One group of rows.

    Args:
        group: What its rows have in common, in words.
        columns: The same as pairs of column and category.
        low: Lower end of the gap's interval, for this group alone.
        high: Upper end.
        all_low: Lower end of an interval that holds for all groups at once.
        all_high: Upper end.
        p: Of the gap, if the group were calibrated; two-sided.
        p_adjusted: As in ``TestedPart``.
    """

    group: str
    columns: tuple[tuple[str, str], ...]
    low: float
    high: float
    all_low: float
    all_high: float
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class Subgroups:
    """What ``subgroups`` found.

    Args:
        rows: One a group, the strongest evidence first.
        event: What the probabilities are of.
        p_value: Of the worst group: that no group is worse than chance.
        left_out: Groups with too few rows or expected events to say anything about.
        level: Of the intervals.

    Examples:
        >>> Subgroups((), "the decision is right", 1.0, 0, 0.95).verdict
        'There is no group with enough rows.'
    """

    rows: tuple[Subgroup, ...]
    event: str
    p_value: float
    left_out: int
    level: float

    _repr_html_ = to_html

    @property
    def verdict(self) -> str:
        """The result of the test in words."""
        if not self.rows:
            return "There is no group with enough rows."
        return verdict_on(self.rows, self.rows[0].group, unit="group", few="small groups", level=self.level)

    def __str__(self) -> str:
        return self.verdict


def verdict_on(parts: Sequence[TestedPart], worst: str, *, unit: str, few: str, level: float) -> str:
    """Return the verdict of the one test for the worst part.

    Args:
        parts: Those that were tested, the strongest evidence first; at least one.
        worst: Name of the first.
        unit: What a part is: "group" or "label".
        few: What may hide gaps: "small groups".
        level: Of the test, in (0, 1).
    """
    first = parts[0]
    flagged = sum(part.p_adjusted is not None and part.p_adjusted < 1 - level for part in parts)
    if not flagged:
        return (
            f"No {unit}'s gap or calibration error is larger than chance explains (worst: {worst}, adjusted "
            f"{shown_p(first.p_adjusted)}); {few} may hide gaps that these rows cannot show."
        )
    means = f"mean probability {100 * first.confidence:.3g} %, frequency {100 * first.rate:.3g} %"
    if first.evidence == "shape":
        said = f"calibration error {100 * first.ece:.2g} points; {means}"
    else:
        said = f"{means}, too {'high' if first.gap > 0 else 'low'} by {100 * abs(first.gap):.2g} points"
    verb = "is" if flagged == 1 else "are"
    return (
        f"{flagged} of {len(parts)} {unit}s {verb} further off than chance explains; the clearest is {worst} ({said}; "
        f"adjusted {shown_p(first.p_adjusted)})."
    )


def subgroups(
    predictions: Data,
    features: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    depth: int = 1,
    minimum: int = 100,
    bins: int = 4,
    draws: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Subgroups:
    """Return the calibration of every group of rows, with one test for the worst of them.

    Two things are tested of each group: its gap, and the gaps of its bins, which can be off while the mean is right. A group's first
    statistic is its gap over the standard error that it has if the model is calibrated, taken to the normal
    distribution by its exact skewness (Cornish & Fisher). The largest over all groups is compared with that of ``draws`` sets of
    normal statistics with the covariances of the groups, which overlap: the chance of a false alarm for any group is at most
    1 − ``level`` however many there are. The second is the sum of the squared standardised gaps of its bins, whose p-value is
    multiplied by the number of groups (Bonferroni). Rows of one cluster (``groups``) are not taken for independent, and weights count. The
    intervals of a gap are corrected for the skewness of its rows (Hall), except with weights.

    The event is the second class for two classes, else that the decision is right; for pairs it is their outcome. For
    another class k pass ``predictions.one_vs_rest(k)``.

    Args:
        predictions: Labelled predictions or pairs.
        features: Names out of ``predictions.features``, or a dict of columns (N,); None takes all of ``predictions``. Names,
            and up to 20 distinct whole numbers, are categories; other numbers are cut into quantile bins; NaN is a category.
        depth: Largest number of columns whose intersections are looked at.
        minimum: Fewest rows of a group; smaller ones, and those with fewer than 5 expected events, or clusters worth
            fewer than ten of equal size, are left out.
        bins: Quantile bins of a column of numbers.
        draws: Sets of statistics drawn.
        seed: Same seed, same numbers.
        level: Coverage of the intervals.

    Raises:
        InputError: If a column is missing or has too many categories, or there are too many groups.
        NoIntervalError: For fewer than ten clusters.

    Examples:
        >>> from calibrant import Pairs
        >>> p, y = [0.7] * 400, [1] * 140 + [0] * 60 + [1] * 90 + [0] * 110
        >>> found = subgroups(Pairs.from_probs(p, y), {"site": ["a"] * 200 + ["b"] * 200})
        >>> found.rows[0].group, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('site = b', 0.25, True)

    References:
        Westfall & Young 1993 (the maximum statistic); Hébert-Johnson et al. 2018; Cornish & Fisher 1938; Hall 1992, Eq. 2.5
        (intervals).
    """
    for name, count, low in (("depth", depth, 1), ("minimum", minimum, 1), ("bins", bins, 2), ("draws", draws, 100)):
        check_count(count, name=name, low=low)
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    columns = feature_columns(predictions, features)
    counted = torch.nonzero(predictions.row_weights > 0)[:, 0].cpu()
    if len(counted) < len(predictions):  # rows of weight 0 are in no group
        columns = {
            name: column[counted.numpy() if isinstance(column, np.ndarray) else counted]
            for name, column in columns.items()
        }
    data = require_rows(predictions, what="subgroups")
    pairs, event = _pairs_and_event(data)
    require_groups(pairs.groups, what="subgroups")
    known = [
        _Group.of(pairs, names, np.flatnonzero(partition.code == at))
        for partition in partitions_of(columns, data, depth=depth, bins=bins)
        for at, names in enumerate(partition.names)
    ]
    groups = [one for one in known if len(one.rows) >= minimum and one.enough]
    if not groups:
        return Subgroups((), event, 1.0, len(known), level)
    covariance = _covariance(groups, pairs)
    largest = _largest_drawn(covariance, draws=draws, seed=seed)
    found = [
        _subgroup(one, pairs, float(covariance[at, at]), largest, count=len(groups), level=level)
        for at, one in enumerate(groups)
    ]
    ranked = sorted(found, key=lambda row: (row.p_adjusted, row.p, -abs(row.gap)))
    return Subgroups(tuple(ranked), event, ranked[0].p_adjusted, len(known) - len(groups), level)


def _pairs_and_event(data: Data) -> tuple[Pairs, str]:
    if isinstance(data, Pairs):
        return data, "the outcome" if are_events(data) else "the decision is right"
    return (data.top_label(), "the decision is right") if data.classes > 2 else (data.one_vs_rest(1), "class 1")


@dataclass(frozen=True)
class _Group:
    """One group: its rows and their sums; variances are those of a calibrated model, in shares of the group's own mass.

    Args:
        names: (column, category) of each column.
        rows: (n,) where its rows are.
        share: (n,) their weights, normalised to sum to 1.
        table: Its bins.
        third: Σ of the rows' third central moments of share · y.
        cells: (B,) number of the cell of each bin: neighbours are put together until they expect ``_MIN_EVENTS``.
        units: (U, cells) sums over its clusters, centred and scaled so that their squares add up to the variance; None without.
        codes: (U,) the clusters.
        degrees: Of freedom of that variance; infinite for independent rows, whose variance is known if calibrated.
        effective: Clusters of equal size that are worth as much.
    """

    names: tuple[tuple[str, str], ...]
    rows: NDArray[np.int64]
    share: Floats
    table: BinTable
    third: float
    cells: NDArray[np.int64]
    units: Floats | None = None
    codes: NDArray[np.int64] | None = None
    degrees: float = math.inf
    effective: float = math.inf

    @classmethod
    def of(cls, pairs: Pairs, names: tuple[tuple[str, str], ...], rows: NDArray[np.int64]) -> "_Group":
        """Return the sums of ``rows`` (n,) of all pairs."""
        part = pairs[torch.from_numpy(rows)]
        p, x = part.p.cpu().numpy(), (part.p - part.y).cpu().numpy()
        weights = part.row_weights.cpu().numpy()
        share, index = weights / weights.sum(), _BINS.assign(part.p.cpu())
        table = BinTable.from_pairs(index, part.p.cpu(), part.y.cpu(), bins=_BINS.bins, weight=_on_cpu(part.weights))
        # the third central moment of a Bernoulli outcome is p (1 − p) (1 − 2p)
        third, cells = float((share**3 * p * (1 - p) * (1 - 2 * p)).sum()), _cell_of_bin(_expected_events(table))
        if part.groups is None:
            return cls(names, rows, share, table, third, cells)
        codes, unit = np.unique(part.groups.cpu().numpy(), return_inverse=True)
        count, size = int(cells[-1]) + 1, np.bincount(unit, share)
        sums = np.bincount(unit * count + cells[index.numpy()], share * x, len(codes) * count).reshape(-1, count)
        clusters = Clusters.of(torch.from_numpy(size))
        # what a cluster adds beyond its share of the gap: over these the gap varies
        units = (sums - np.outer(size, sums.sum(axis=0))) * clusters.scale.numpy()[:, None]
        return cls(names, rows, share, table, third, cells, units, codes, clusters.degrees, clusters.effective)

    @property
    def enough(self) -> bool:
        """Whether it holds enough to be tested: by its probabilities and clusters, not by outcomes."""
        return float(_expected_events(self.table).sum()) >= _MIN_EVENTS and self.effective >= _MIN_CLUSTERS

    @property
    def gap(self) -> float:
        """Mean probability minus frequency."""
        return float((self.table.sum_p - self.table.sum_y).sum()) / self.table.mass

    @property
    def noise(self) -> Floats:
        """(B,) variance of each bin's part of the gap, of independent rows."""
        return np.asarray(self.table.noise.numpy() / self.table.mass**2)

    def shape_p(self) -> float:
        """Return the p-value of Σ z² over its cells: whether bins of the group are off, though its mean may be right.

        z are the cells' gaps over their standard errors if calibrated. Σ z² has the mean k and, of independent rows, the variance
        Σ (2 + κ) with the kurtosis κ ≈ 1 / expected events; it is compared with the χ² of these moments (Hosmer & Lemeshow's
        statistic for fixed probabilities). Over clusters the variance is 2 Σ r² with the cells' correlations r, and F takes χ²'s
        place.
        """
        from scipy.special import chdtrc, fdtrc

        k = int(self.cells[-1]) + 1
        if k < 2:
            return 1.0
        signed = (self.table.sum_p - self.table.sum_y).numpy() / self.table.mass
        events = _expected_events(self.table)
        gap, noise, expected = (np.bincount(self.cells, x, k) for x in (signed, self.noise, events))
        if self.units is None:
            # Σ z² is compared with (k / d) χ²_d, which has the mean k and the variance 2 k² / d
            degrees = 2 * k**2 / (2 + 1 / expected).sum()
            return float(chdtrc(degrees, (gap**2 / noise).sum() * degrees / k))
        covariance = self.units.T @ self.units
        own = np.diag(covariance)
        # the same two moments with correlated cells: Σ r² stands for k
        degrees = k**2 / (covariance**2 / np.outer(own, own).clip(min=1e-300)).sum()
        return float(fdtrc(degrees, self.degrees, (gap**2 / np.maximum(own, noise)).sum() / k))

    def statistic(self, variance: float) -> float:
        """Return the gap over its standard error if calibrated, on the scale of the normal distribution.

        For clusters Student's t is taken to it by its quantiles, for independent rows what their skewness adds is subtracted.
        """
        from scipy.special import ndtri, stdtr

        if variance <= 0:  # probabilities of 0 and 1 alone: any gap disproves them
            return 0.0 if self.gap == 0 else math.copysign(_INFINITE, self.gap)
        z = self.gap / math.sqrt(variance)
        if self.units is not None:
            return math.copysign(min(-float(ndtri(stdtr(self.degrees, -abs(z)))), _INFINITE), z)
        skew = -self.third / variance**1.5  # of p − y
        bent = z - skew * (min(abs(z), 3.0) ** 2 - 1) / 6  # beyond 3 the expansion is not monotone for every skewness
        return bent if bent * z > 0 else 0.0

    def spread(self, pairs: Pairs) -> tuple[float, float]:
        """Return the standard error of the gap, whether or not it is calibrated, and the skewness to correct its interval for.

        The standard error is at least that of a calibrated group. The skewness is that of the rows' (or clusters') own
        contributions: few events make the gap skewed, so that a symmetric interval misses on one side. It is 0 where the symmetric
        interval covers better in simulation: for weights, whose few large ones make the estimated skewness noise, and where the
        standard error is that of a calibrated group, which does not vary with the outcomes.
        """
        if self.units is None:
            x = (pairs.p - pairs.y).cpu().numpy()[self.rows]
            part = self.share * (x - self.gap)
        else:
            part = self.units.sum(axis=1)
        square, cube = (float((part**power).sum()) for power in (2, 3))
        error, calibrated = math.sqrt(square), math.sqrt(self.noise.sum())
        skew = cube / square**1.5 if error > calibrated and pairs.weights is None else 0.0
        return max(error, calibrated), skew


def _on_cpu(weights: torch.Tensor | None) -> torch.Tensor | None:
    return None if weights is None else weights.cpu()


def _expected_events(table: BinTable) -> Floats:
    """Return n p (1 − p) (B,) of each bin, n being the rows of equal weight that its own are worth."""
    return np.asarray((table.effective * table.noise / torch.where(table.count > 0, table.squares[0], 1)).numpy())


def _cell_of_bin(expected: Floats) -> NDArray[np.int64]:
    """Return the cell (B,) of each bin; the last cell takes what is left."""
    cells, cell, held = np.zeros(len(expected), dtype=np.int64), 0, 0.0
    for b, events in enumerate(expected):
        cells[b] = cell
        held += events
        if held >= _MIN_EVENTS and expected[b + 1 :].sum() >= _MIN_EVENTS:
            cell, held = cell + 1, 0.0
    return cells


def _covariance(groups: Sequence[_Group], pairs: Pairs) -> Floats:
    """Return the covariance (G, G) of the groups' gaps if calibrated: over the rows, or over the clusters, that they share."""
    from scipy.sparse import csr_array

    if pairs.groups is None:
        # two sums of independent rows vary together by the rows that they share
        p = pairs.p.cpu().numpy()
        parts = [(one.share * np.sqrt(p[one.rows] * (1 - p[one.rows])), one.rows) for one in groups]
    else:
        parts = [(one.units.sum(axis=1), one.codes) for one in groups]  # type: ignore[union-attr, misc]
    starts = np.cumsum([0, *(len(values) for values, _ in parts)])
    columns = np.unique(np.concatenate([places for _, places in parts]), return_inverse=True)[1]
    matrix = csr_array((np.concatenate([values for values, _ in parts]), columns, starts))
    covariance = np.asarray((matrix @ matrix.T).todense())
    if pairs.groups is None:
        return covariance
    # Where few clusters have the event, the estimated variance is small in just those samples that have too few of them, whose gap
    # is large. Rows of a cluster vary together, so that the variance of independent rows, known if calibrated, is a lower end.
    own = np.diag(covariance)
    least = np.maximum(own, [one.noise.sum() for one in groups])
    factor = np.sqrt(least / np.where(own > 0, own, least.clip(min=1e-300)))
    raised = covariance * np.outer(factor, factor)
    np.fill_diagonal(raised, least)
    return np.asarray(raised)


def _largest_drawn(covariance: Floats, *, draws: int, seed: int) -> Floats:
    """Return the largest |z| (draws,) over groups of normal statistics with these correlations, in order of size."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # the symmetric one, which rounding does not turn
    rng = np.random.default_rng(seed)
    # 32 MB of normal numbers at a time
    step = max(1, (1 << 22) // len(spread))
    sizes = [min(step, draws - start) for start in range(0, draws, step)]
    return np.sort(np.concatenate([np.abs(rng.standard_normal((n, len(spread))) @ root).max(axis=1) for n in sizes]))


def _subgroup(group: _Group, pairs: Pairs, variance: float, largest: Floats, *, count: int, level: float) -> Subgroup:
    """Return the figures of a group: ``largest`` (draws,) are those of the ``count`` groups if calibrated, in order."""
    from scipy.special import ndtr, stdtrit

    statistic = group.statistic(variance)
    p = float(2 * ndtr(-abs(statistic)))
    # + 1 in both counts: the observed set is one more draw (Davison & Hinkley 1997), so that p is never 0
    above = len(largest) - int(np.searchsorted(largest, abs(statistic), side="left"))
    by_gap = max(p, min((above + 1) / (len(largest) + 1), count * p)) / _OF_GAP
    # Bonferroni over groups; dividing by the parts of the level makes both comparable with it
    by_shape = group.shape_p() * count / _OF_SHAPE
    gap, (error, skew) = group.gap, group.spread(pairs)

    def ends(quantile: float) -> tuple[float, float]:
        # of clusters the quantile of Student's t at the same probability
        if group.units is not None:
            quantile = float(stdtrit(group.degrees, ndtr(quantile)))
        held = math.copysign(min(abs(skew), _MAX_SKEW / quantile), skew)
        low, high = skewed_ends(gap, error, held, quantile)
        return max(low, -1.0), min(high, 1.0)

    low, high = ends(normal_quantile((1 + level) / 2))
    all_low, all_high = ends(float(np.quantile(largest, level)))
    ece_low = ece_high = None
    if group.units is None:
        with suppress(NoIntervalError):
            found = interval(ECE(_BINS), pairs[torch.from_numpy(group.rows)], level=level)
            ece_low, ece_high = found.low, found.high
    return Subgroup(
        n=len(group.rows),
        confidence=float(group.table.sum_p.sum()) / group.table.mass,
        rate=float(group.table.sum_y.sum()) / group.table.mass,
        gap=gap,
        ece=group.table.error(),
        ece_low=ece_low,
        ece_high=ece_high,
        p_adjusted=min(by_gap, by_shape, 1.0),
        evidence="gap" if by_gap <= by_shape else "shape",
        group=" and ".join(f"{column} = {value}" for column, value in group.names),
        columns=group.names,
        low=low,
        high=high,
        all_low=all_low,
        all_high=all_high,
        p=p,
    )
