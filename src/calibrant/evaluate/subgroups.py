"""Tests whether a model is calibrated for every group of rows: the gap of each group, and one test of the worst.

A group's figures are computed from its bin table. Groups overlap, so their largest gap is compared with the maximum of normal
variables that have the same correlations.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_count, check_number
from calibrant._core.notebook import to_html
from calibrant.binning import BinTable, EqualWidth
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.record import taken
from calibrant.errors import NoIntervalError
from calibrant.evaluate.partitions import Names, feature_columns, groups_of
from calibrant.metrics import ECE
from calibrant.statistics import interval
from calibrant.statistics.design import Design, require_groups
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
class Subgroup:
    """One group of rows, or the rows of one label; None means that the figure was not tested.

    Args:
        name: The name of the group, such as "region = EU", or the label.
        columns: For a group, pairs of column and category.
        n: Number of rows.
        positives: Number of rows with the event.
        confidence: Mean probability of the event.
        rate: Frequency of the event.
        gap: confidence − rate, the calibration in the large; positive if the model is over-confident.
        low: Lower end of the gap's interval, for this group only.
        high: Upper end of this interval.
        all_low: Lower end of an interval that holds for all groups at once; NaN for labels.
        all_high: Upper end of this interval; NaN for labels.
        ece: Calibration error within the group, in 15 bins of equal width.
        ece_low: Lower end of its confidence interval, or None if no interval with the nominal coverage is known.
        ece_high: Upper end, or None.
        p: Two-sided p-value of the gap if the group is calibrated.
        p_adjusted: The p-value adjusted for the number of groups: for a calibrated model, the probability that any group is
            below 0.05 is at most 5 %. It is the smaller of two: that of the gap, which gets four fifths of the level, and that
            of the bins within the group, which gets one fifth.
        evidence: Which of the two is smaller: "gap", or "shape" if bins are off although the mean may be correct.
    """

    name: str
    columns: Names = ()
    n: int
    positives: int
    confidence: float
    rate: float
    gap: float
    low: float | None = None
    high: float | None = None
    all_low: float = math.nan
    all_high: float = math.nan
    ece: float
    ece_low: float | None = None
    ece_high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    evidence: Literal["gap", "shape"] = "gap"

    @property
    def p_shown(self) -> str:
        """The adjusted p-value as tables show it."""
        p = self.p_adjusted
        return "–" if p is None else "<0.0001" if p < 1e-4 else f"{p:.2g}"


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """Groups of rows, or labels, and one test for the worst of them.

    Args:
        rows: One row per group, with the strongest evidence first; untested labels come last.
        p_value: The adjusted p-value of the worst group.
        level: Coverage of the intervals, in (0, 1).
        event: The event whose probability is evaluated.
        left_out: Number of groups with too few rows or expected events.
        unit: The word for a row: "group" or "label".

    Examples:
        >>> Subgroups(rows=()).verdict
        'There is no group with enough rows and events.'
    """

    rows: tuple[Subgroup, ...]
    p_value: float = 1.0
    level: float = 0.95
    event: str = ""
    left_out: int = 0
    unit: Literal["group", "label"] = "group"

    _repr_html_ = to_html

    @property
    def tested(self) -> tuple[Subgroup, ...]:
        """The groups that were tested."""
        return tuple(row for row in self.rows if row.p_adjusted is not None)

    @property
    def verdict(self) -> str:
        """The result of the test in words."""
        if not (tested := self.tested):
            return f"There is no {self.unit} with enough rows and events."
        unit, first = self.unit, tested[0]
        sure = f"adjusted {shown_p(first.p_adjusted)}"
        flagged = sum(row.p_adjusted is not None and row.p_adjusted < 1 - self.level for row in tested)
        if not flagged:
            return (
                f"No {unit}'s gap or calibration error is larger than chance explains (worst: {first.name}, {sure}); "
                f"small {unit}s may hide gaps that these rows cannot show."
            )
        said = f"mean probability {100 * first.confidence:.3g} %, frequency {100 * first.rate:.3g} %"
        if first.evidence == "shape":
            said = f"calibration error {100 * first.ece:.2g} points; {said}"
        else:
            said += f", too {'high' if first.gap > 0 else 'low'} by {100 * abs(first.gap):.2g} points"
        are = "is" if flagged == 1 else "are"
        clearest = f"the clearest is {first.name} ({said}; {sure})"
        return f"{flagged} of {len(tested)} {unit}s {are} further off than chance explains; {clearest}."

    def __str__(self) -> str:
        return self.verdict


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

    Each group has two tests: of its gap, and of the gaps of its bins, which can be off although the mean is correct. The first
    statistic is the gap divided by its standard error for a calibrated model, corrected for skewness (Cornish & Fisher). The
    largest over all groups is compared with the largest of simulated normal statistics that have the covariances of the
    overlapping groups. The second statistic is the sum of squared standardised gaps of the bins; its p-value is multiplied by the
    number of groups (Bonferroni). The probability of a false alarm is at most 1 − ``level``, however many groups there are.

    Rows of one cluster (``groups``) count as dependent, and weights are used. The intervals of gaps are corrected for skewness
    (Hall), except with weights. The event is the second of two classes; for more classes, that the decision is correct; for
    pairs, their outcome. For another class k pass ``predictions.one_vs_rest(k)``.

    Args:
        predictions: Labelled predictions or pairs.
        features: Names of columns in ``predictions.features``, or a dict of columns (N,); None takes all of them. Text, and up
            to 20 distinct whole numbers, are categories; other numbers are divided into quantile bins; NaN is a category.
        depth: Largest number of columns that are combined to form groups, ≥ 1.
        minimum: Smallest number of rows of a group, ≥ 1. Groups with fewer rows, fewer than 5 expected events, or effectively
            fewer than ten clusters are left out.
        bins: Number of quantile bins of a column of numbers, ≥ 1.
        draws: Number of simulated sets of statistics.
        seed: Seed of the simulation; the same seed gives the same numbers.
        level: Coverage of the intervals, in (0, 1).

    Returns:
        The groups in order of evidence, with a verdict.

    Raises:
        InputError: If a column is missing or has too many categories, or there are too many groups.
        NoIntervalError: If there are fewer than ten clusters.

    Examples:
        >>> from calibrant import Pairs
        >>> p, y = [0.7] * 400, [1] * 140 + [0] * 60 + [1] * 90 + [0] * 110
        >>> found = subgroups(Pairs.from_probs(p, y), {"site": ["a"] * 200 + ["b"] * 200})
        >>> found.rows[0].name, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('site = b', 0.25, True)

    References:
        Westfall & Young 1993 (the maximum statistic); Hébert-Johnson et al. 2018; Cornish & Fisher 1938; Hall 1992, Eq. 2.5
        (intervals).
    """
    for name, count, low in (("depth", depth, 1), ("minimum", minimum, 1), ("bins", bins, 2), ("draws", draws, 100)):
        check_count(count, name=name, low=low)
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    kept = predictions.row_weights > 0
    columns = taken(feature_columns(predictions, features), kept.cpu())  # rows of weight 0 are in no group
    pairs, event = _pairs_and_event(require_rows(predictions, what="subgroups"))
    require_groups(pairs.groups, what="subgroups")
    parts = groups_of(columns, depth=depth, bins=bins, weights=pairs.weights)
    known = [_Group(names, rows, pairs) for names, rows in parts]
    groups = [one for one in known if len(one.rows) >= minimum and one.enough]
    if not groups:
        return Subgroups(rows=(), event=event, left_out=len(known), level=level)
    covariance = _covariance(groups, pairs)
    largest = _largest_drawn(covariance, draws=draws, seed=seed)
    found = [
        _subgroup(one, variance, largest, count=len(groups), level=level)
        for one, variance in zip(groups, np.diag(covariance).tolist(), strict=True)
    ]
    ranked = sorted(found, key=by_evidence)
    left_out = len(known) - len(groups)
    return Subgroups(
        rows=tuple(ranked), event=event, p_value=ranked[0].p_adjusted or 0.0, left_out=left_out, level=level
    )


def by_evidence(row: Subgroup) -> tuple[bool, float, float, float]:
    """Return the key that sorts the strongest evidence first; what was not tested has none."""
    p_adjusted, p = (math.inf if p is None else p for p in (row.p_adjusted, row.p))
    return row.p_adjusted is None, p_adjusted, p, -abs(row.gap)


def figures_of(name: str, table: BinTable, *, n: int, positives: int) -> Subgroup:
    """Return the figures of ``n`` rows with this bin table, without a test."""
    p, y = float(table.sum_p.sum()) / table.total, float(table.sum_y.sum()) / table.total
    gap = float((table.sum_p - table.sum_y).sum()) / table.total
    return Subgroup(name=name, n=n, positives=positives, confidence=p, rate=y, gap=gap, ece=table.error())


def _pairs_and_event(data: Data) -> tuple[Pairs, str]:
    """Return the pairs that are tested, on the CPU, and what they are of."""
    if isinstance(data, Pairs):
        pairs, event = data, "the outcome" if are_events(data) else "the decision is right"
    elif data.classes > 2:
        pairs, event = data.top_label(), "the decision is right"
    else:
        pairs, event = data.one_vs_rest(1), "class 1"
    groups, weights = (None if one is None else one.cpu() for one in (pairs.groups, pairs.weights))
    return Pairs(pairs.p.cpu(), pairs.y.cpu(), groups=groups, weights=weights), event


class _Group:
    """One group: its rows and their sums; variances are those of a calibrated model, in shares of the group's own mass.

    Args:
        names: What its rows have in common.
        rows: (n,) where they are.
        pairs: All rows, on the CPU.

    Attributes:
        share: (n,) the rows' weights, normalised to sum to 1.
        table: Its bins.
        expected: (B,) n p (1 − p) of each bin, n being the rows of equal weight that its own are worth.
        cells: (B,) number of the cell of each bin: neighbours are put together until they expect ``_MIN_EVENTS``.
        codes: (U,) its clusters; empty without.
        units: (U, cells) sums over its clusters, centred and scaled so that their squares add up to the variance; None of independent
            rows, whose variance is known if calibrated.
        degrees: Of freedom of that variance.
    """

    def __init__(self, names: Names, rows: NDArray[np.int64], pairs: Pairs) -> None:
        self.names, self.rows, self.pairs = names, rows, pairs[torch.from_numpy(rows)]
        part, index = self.pairs, _BINS.assign(self.pairs.p)
        self.table = table = BinTable.from_pairs(index, part.p, part.y, bins=_BINS.bins, weight=part.weights)
        self.expected = (table.effective * table.noise / torch.where(table.count > 0, table.squares[0], 1)).numpy()
        self.cells = _cell_of_bin(self.expected)
        design = Design.of(part.p, groups=part.groups, weight=part.weights)
        self.share = design.share.numpy()
        self.enough = float(self.expected.sum()) >= _MIN_EVENTS
        self.codes, self.units = np.zeros(0, dtype=np.int64), None
        if part.groups is not None:
            self.codes = part.groups.unique().numpy()
            count = int(self.cells[-1]) + 1
            cell = torch.from_numpy(self.cells)[index]
            self.units = design.sums(count, [(slice(None), cell, part.p - part.y)]).numpy()
            self.degrees = design.clusters.degrees
            self.enough &= design.clusters.effective >= _MIN_CLUSTERS

    @property
    def gap(self) -> float:
        """Mean probability minus frequency."""
        return float((self.table.sum_p - self.table.sum_y).sum()) / self.table.total

    @cached_property
    def noise(self) -> Floats:
        """(B,) variance of each bin's part of the gap, of independent rows."""
        return np.asarray(self.table.noise.numpy() / self.table.total**2)

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
        signed = (self.table.sum_p - self.table.sum_y).numpy() / self.table.total
        gap, noise, expected = (np.bincount(self.cells, x, k) for x in (signed, self.noise, self.expected))
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
        p = self.pairs.p.numpy()
        # of p − y: the third central moment of a Bernoulli outcome is p (1 − p) (1 − 2p)
        skew = -float((self.share**3 * p * (1 - p) * (1 - 2 * p)).sum()) / variance**1.5
        bent = z - skew * (min(abs(z), 3.0) ** 2 - 1) / 6  # beyond 3 the expansion is not monotone for every skewness
        return bent if bent * z > 0 else 0.0

    def spread(self) -> tuple[float, float]:
        """Return the standard error of the gap, whether or not it is calibrated, and the skewness to correct its interval for.

        The standard error is at least that of a calibrated group. The skewness is that of the rows' (or clusters') own
        contributions: few events make the gap skewed, so that a symmetric interval misses on one side. It is 0 where the symmetric
        interval covers better in simulation: for weights, whose few large ones make the estimated skewness noise, and where the
        standard error is that of a calibrated group, which does not vary with the outcomes.
        """
        if self.units is None:
            part = self.share * ((self.pairs.p - self.pairs.y).numpy() - self.gap)
        else:
            part = self.units.sum(axis=1)
        square, cube = (float((part**power).sum()) for power in (2, 3))
        error, calibrated = math.sqrt(square), math.sqrt(self.noise.sum())
        skew = cube / square**1.5 if error > calibrated and self.pairs.weights is None else 0.0
        return max(error, calibrated), skew


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
        p, places = pairs.p.numpy(), [one.rows for one in groups]
        values = [one.share * np.sqrt(p[one.rows] * (1 - p[one.rows])) for one in groups]
    else:
        places = [one.codes for one in groups]
        values = [one.units.sum(axis=1) for one in groups if one.units is not None]
    starts = np.cumsum([0, *map(len, values)])
    columns = np.unique(np.concatenate(places), return_inverse=True)[1]
    matrix = csr_array((np.concatenate(values), columns, starts))
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
    normal = np.random.default_rng(seed).standard_normal((draws, len(spread)))
    return np.sort(np.abs(normal @ root).max(axis=1))


def _subgroup(group: _Group, variance: float, largest: Floats, *, count: int, level: float) -> Subgroup:
    """Return the figures of a group; ``largest`` (draws,) are the sorted simulated maxima over all ``count`` groups."""
    from scipy.special import ndtr, stdtrit

    statistic = group.statistic(variance)
    p = float(2 * ndtr(-abs(statistic)))
    # + 1 in both counts: the observed set is one more draw (Davison & Hinkley 1997), so that p is never 0
    above = len(largest) - int(np.searchsorted(largest, abs(statistic), side="left"))
    by_gap = max(p, min((above + 1) / (len(largest) + 1), count * p)) / _OF_GAP
    # Bonferroni over groups; dividing by the parts of the level makes both comparable with it
    by_shape = group.shape_p() * count / _OF_SHAPE
    table, (error, skew) = group.table, group.spread()

    def ends(quantile: float) -> tuple[float, float]:
        # of clusters the quantile of Student's t at the same probability
        if group.units is not None:
            quantile = float(stdtrit(group.degrees, ndtr(quantile)))
        held = math.copysign(min(abs(skew), _MAX_SKEW / quantile), skew)
        low, high = skewed_ends(group.gap, error, held, quantile)
        return max(low, -1.0), min(high, 1.0)

    (low, high), (all_low, all_high) = map(ends, (normal_quantile((1 + level) / 2), float(np.quantile(largest, level))))
    ece_low = ece_high = None
    if group.units is None:
        with suppress(NoIntervalError):
            found = interval(ECE(_BINS), group.pairs, level=level)
            ece_low, ece_high = found.low, found.high
    name = " and ".join(f"{column} = {value}" for column, value in group.names)
    return replace(
        figures_of(name, table, n=len(group.rows), positives=int(group.pairs.y.sum())),
        columns=group.names,
        low=low,
        high=high,
        all_low=all_low,
        all_high=all_high,
        ece_low=ece_low,
        ece_high=ece_high,
        p=p,
        p_adjusted=min(by_gap, by_shape, 1.0),
        evidence="gap" if by_gap <= by_shape else "shape",
    )
