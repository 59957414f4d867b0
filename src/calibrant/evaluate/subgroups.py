"""Tests of whether a model is calibrated for every group of rows: each group's gap, and one test for the worst group.

The p-values are corrected for the number of groups by Holm's method, which is valid however the groups overlap.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from calibrant._core.check import check_count, check_number
from calibrant._core.notebook import to_html
from calibrant.binning import EqualMass
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.record import taken
from calibrant.evaluate.partitions import Names, feature_columns, groups_of
from calibrant.metrics import ECE
from calibrant.statistics.design import Design, require_groups
from calibrant.statistics.means import skewed_ends, skewed_p
from calibrant.statistics.paired import holm, shown_p

# Largest product of skewness and quantile that the interval of a gap is corrected for. With a larger one, Hall's transformation makes
# the interval much longer than coverage needs.
_MAX_SKEW = 0.6
# parts of the level for the test of each group's gap, and for the test of the bins within each group
_OF_GAP, _OF_SHAPE = 0.8, 0.2
_MIN_EVENTS = 5.0  # with a smaller effective Σ p (1 − p), the gap of a group or of merged bins is far from normal
_MIN_CLUSTERS = 10.0  # smallest effective number of clusters in a tested group
_MOST_CELLS = 15  # largest number of bins in the test of the bins within a group


@dataclass(frozen=True, kw_only=True)
class Subgroup:
    """The figures of one group of rows, or of the rows of one label; figures of a test that was not made are None.

    The event is the outcome whose probability is evaluated.

    Args:
        name: The name of the group, such as "region = EU", or of the label.
        columns: For a group, pairs of column and category.
        n: Number of rows.
        positives: Number of rows with the event.
        confidence: Mean probability of the event.
        rate: Frequency of the event.
        gap: ``confidence`` − ``rate``, the calibration in the large; positive if the model is over-confident.
        low: Lower end of the gap's interval, for this group only.
        high: Upper end of this interval.
        all_low: Lower end of an interval that is valid for all groups at once (Bonferroni).
        all_high: Upper end of this interval.
        ece: Calibration error within the group, in 15 bins of equal width.
        p: Two-sided p-value of the gap, under the hypothesis that the group is calibrated.
        p_adjusted: The p-value adjusted for the number of groups: for a calibrated model, the probability that any group is
            below 0.05 is at most 5 %. It is the smaller of two p-values, one for the gap, which gets four fifths of the
            level, and one for the bins within the group, which gets one fifth.
        evidence: Which of the two p-values is smaller: "gap", or "shape" if bins are off although the mean may be correct.
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
    p: float | None = None
    p_adjusted: float | None = None
    evidence: Literal["gap", "shape"] = "gap"

    @property
    def p_shown(self) -> str:
        """The adjusted p-value as text for tables."""
        p = self.p_adjusted
        return "–" if p is None else "<0.0001" if p < 1e-4 else f"{p:.2g}"


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """The figures of groups of rows, or of labels, and one test for the worst of them.

    Args:
        rows: One row per group, with the strongest evidence first; untested labels come last.
        level: Coverage of the intervals, in (0, 1).
        event: The event whose probability is evaluated.
        left_out: Number of groups that were not tested, because they have too few rows or expected events.
        unit: What each row describes: a "group" or a "label".

    Examples:
        >>> Subgroups(rows=()).verdict
        'No group has enough rows and events to be tested.'
    """

    rows: tuple[Subgroup, ...]
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
    def p_value(self) -> float:
        """The adjusted p-value of the worst group, or 1 if no group was tested."""
        return min((row.p_adjusted for row in self.rows if row.p_adjusted is not None), default=1.0)

    @property
    def verdict(self) -> str:
        """The result of the tests in words."""
        if not (tested := self.tested):
            return f"No {self.unit} has enough rows and events to be tested."
        unit, first = self.unit, tested[0]
        sure = f"adjusted {shown_p(first.p_adjusted)}"
        flagged = sum(row.p_adjusted is not None and row.p_adjusted < 1 - self.level for row in tested)
        if not flagged:
            return (
                f"No {unit} is significantly miscalibrated (worst: {first.name}, {sure}), "
                "but there may be errors that are too small to detect with these rows."
            )
        said = f"mean probability {100 * first.confidence:.3g} %, frequency {100 * first.rate:.3g} %"
        if first.evidence == "shape":
            said = f"calibration error {100 * first.ece:.2g} points; {said}"
        else:
            said += f", too {'high' if first.gap > 0 else 'low'} by {100 * abs(first.gap):.2g} points"
        are = "is" if flagged == 1 else "are"
        clearest = f"the evidence is strongest for {first.name} ({said}; {sure})"
        return f"{flagged} of {len(tested)} {unit}s {are} significantly miscalibrated; {clearest}."

    def __str__(self) -> str:
        return self.verdict


def subgroups(
    predictions: Data,
    features: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    depth: int = 1,
    minimum: int = 100,
    bins: int = 4,
    level: float = 0.95,
) -> Subgroups:
    """Return the calibration of every group of rows, with one test for the worst group.

    The gap of a group is its mean probability of the event minus the event's frequency. Each group has two tests: one of
    its gap, and one of the gaps of its bins, which can be off although the mean is correct. The first statistic is the gap
    divided by its standard error for a calibrated model, corrected for skewness (Cornish & Fisher). The second statistic is
    the sum of squared standardised gaps of the bins (Hosmer & Lemeshow). The p-values are corrected for the number of
    groups: the probability of a false alarm is at most 1 − ``level``, however many groups there are and however they
    overlap.

    Rows of one cluster (``groups``) are treated as dependent, and weights are used. The intervals of gaps are corrected for
    skewness (Hall) unless the rows have weights. With two classes, the event is the second class. With more classes, the
    event is that the decision is correct, and for pairs it is their outcome. To test the probability of another class k,
    pass ``predictions.one_vs_rest(k)``.

    Args:
        predictions: Labelled predictions or pairs.
        features: Names of columns in ``predictions.features``, or a dict of columns (N,); None uses all columns. Text, and
            up to 20 distinct whole numbers, are categories; other numbers are divided into quantile bins; NaN is a category.
        depth: Largest number of columns that are combined to form groups, ≥ 1.
        minimum: Smallest number of rows of a group, ≥ 1. Groups with fewer rows, fewer than 5 expected events, or an
            effective number of clusters below ten are left out.
        bins: Number of quantile bins of a column of numbers, ≥ 2.
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
        Holm 1979; Hébert-Johnson et al. 2018; Cornish & Fisher 1938; Hosmer & Lemeshow 1980; Hall 1992, Eq. 2.5 (intervals).
    """
    for name, count, low in (("depth", depth, 1), ("minimum", minimum, 1), ("bins", bins, 2)):
        check_count(count, name=name, low=low)
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    kept = predictions.row_weights > 0
    columns = taken(feature_columns(predictions, features), kept.cpu())  # rows of weight 0 belong to no group
    pairs, event = _pairs_and_event(require_rows(predictions, what="subgroups"))
    require_groups(pairs.groups, what="subgroups")
    parts = [(names, pairs[torch.from_numpy(rows)]) for names, rows in groups_of(columns, depth=depth, bins=bins)]
    found = with_tests(
        [(" and ".join(f"{column} = {value}" for column, value in names), names, part) for names, part in parts],
        minimum=minimum,
        level=level,
    )
    rows = tuple(row for row in found if row.p is not None)
    return Subgroups(rows=rows, event=event, left_out=len(found) - len(rows), level=level)


def _pairs_and_event(data: Data) -> tuple[Pairs, str]:
    """Return the tested pairs on the CPU, and the event that their probabilities are for, in words."""
    if isinstance(data, Pairs):
        pairs, event = data, "the outcome" if are_events(data) else "the decision is right"
    elif data.classes > 2:
        pairs, event = data.top_label(), "the decision is right"
    else:
        pairs, event = data.one_vs_rest(1), "class 1"
    groups, weights = (None if one is None else one.cpu() for one in (pairs.groups, pairs.weights))
    return Pairs(pairs.p.cpu(), pairs.y.cpu(), groups=groups, weights=weights), event


def with_tests(parts: Sequence[tuple[str, Names, Pairs]], *, minimum: int, level: float) -> list[Subgroup]:
    """Return the figures of each part of the rows, with the strongest evidence first.

    Parts with fewer than ``minimum`` rows, or with too few expected events or clusters, are not tested and come last.

    Args:
        parts: The name, columns and rows of each part.
        minimum: Smallest number of rows of a tested part.
        level: Coverage of the intervals, in (0, 1).
    """
    rows = [_figures(*part) for part in parts]
    large = [at for at, (*_, pairs) in enumerate(parts) if len(pairs) >= minimum and _is_testable(pairs)]
    found = [_with_test(rows[at], parts[at][2], count=len(large), level=level) for at in large]
    adjusted = holm([row.p_adjusted for row in found if row.p_adjusted is not None])
    for at, row, p_adjusted in zip(large, found, adjusted, strict=True):
        rows[at] = replace(row, p_adjusted=p_adjusted)
    return sorted(rows, key=lambda row: (row.p is None, row.p_adjusted or 0.0, row.p or 0.0, -abs(row.gap)))


def _figures(name: str, columns: Names, pairs: Pairs) -> Subgroup:
    """Return the figures of a part of the rows, without a test."""
    weight = pairs.row_weights
    p, y = (float(weight @ one / weight.sum()) for one in (pairs.p, pairs.y))
    happened = int(pairs.y.sum())
    return Subgroup(
        name=name, columns=columns, n=len(pairs), positives=happened, confidence=p, rate=y, gap=p - y, ece=ECE()(pairs)
    )


def _expected_events(pairs: Pairs) -> float:
    """Return the expected number of events, Σ p (1 − p), for the effective number of rows of ``pairs``."""
    counted = pairs.row_weights.square()
    return pairs.effective_count * float(counted @ (pairs.p * (1 - pairs.p)) / counted.sum())


def _is_testable(pairs: Pairs) -> bool:
    """Return whether enough events are expected, and in enough clusters."""
    if pairs.groups is not None:
        design = Design.of(pairs.p, groups=pairs.groups, weight=pairs.weights)
        if design.clusters.effective < _MIN_CLUSTERS:
            return False
    return _expected_events(pairs) >= _MIN_EVENTS


def _with_test(row: Subgroup, pairs: Pairs, *, count: int, level: float) -> Subgroup:
    """Return the figures of one of ``count`` groups with the two tests of its rows and the intervals of its gap."""
    from scipy.special import chdtrc, fdtrc, ndtri, stdtr, stdtrit

    design = Design.of(pairs.p, groups=pairs.groups, weight=pairs.weights)
    share, p, residual = design.share.numpy(), pairs.p.numpy(), (pairs.p - pairs.y).numpy()
    outcome = p * (1 - p)
    expected = share**2 * outcome
    noise = float(expected.sum())  # variance of the gap for independent rows of a calibrated model
    contributions = design.sums_of(pairs.p - pairs.y - row.gap).numpy()
    square, cube = (float((contributions**power).sum()) for power in (2, 3))
    # cells of probabilities with equal numbers of expected events; rows whose outcome is certain are in no cell (−1)
    cells = EqualMass(min(_MOST_CELLS, max(1, int(_expected_events(pairs) / _MIN_EVENTS))))
    uncertain = outcome > 0
    cell = np.full(len(p), -1)
    cell[uncertain] = np.unique(
        cells.assign(pairs.p[uncertain], weight=torch.from_numpy(expected[uncertain])), return_inverse=True
    )[1]
    # the fourth cumulant of an outcome is q (1 − 6 q) with q = p (1 − p)
    values = (share * residual, expected, share**4 * outcome * (1 - 6 * outcome))
    gaps, noises, fourth = (np.bincount(cell[uncertain], one[uncertain]) for one in values)
    k = len(gaps)
    if pairs.groups is None:
        # skewness of p − y: the third central moment of a Bernoulli outcome is p (1 − p) (1 − 2p)
        by_gap = skewed_p(row.gap / math.sqrt(noise), -float((share * expected * (1 - 2 * p)).sum()) / noise**1.5)
        # Σ z² over the cells has mean k and variance Σ (2 + κ), with the excess kurtosis κ; compared with a χ² that has these moments
        degrees = 2 * k**2 / (2 + fourth / noises**2).sum()
        by_shape = float(chdtrc(degrees, (gaps**2 / noises).sum() * degrees / k))
    else:
        # Where few clusters have the event, the estimated variance is small in just those samples with too few such clusters, whose
        # gap is large. Rows of a cluster vary together, so the variance of independent rows is a lower bound.
        by_gap = float(2 * stdtr(design.clusters.degrees, -abs(row.gap) / math.sqrt(max(square, noise))))
        sums = design.sums(k, [(slice(None), torch.from_numpy(cell), pairs.p - pairs.y)]).numpy()
        covariance = sums.T @ sums
        own = np.diag(covariance)
        # the same two moments for correlated cells
        degrees = k**2 / (covariance**2 / np.outer(own, own).clip(min=1e-300)).sum()
        by_shape = float(fdtrc(degrees, design.clusters.degrees, (gaps**2 / np.maximum(own, noises)).sum() / k))

    # Few events make the gap skewed, so that a symmetric interval misses on one side. In simulations, the symmetric interval covers
    # better for weighted rows, where few large weights make the estimated skewness noisy, and where the standard error is that of a
    # calibrated group.
    skew = cube / square**1.5 if square > noise and pairs.weights is None else 0.0

    def ends(tail: float) -> tuple[float, float]:
        quantile = float(-ndtri(tail) if pairs.groups is None else -stdtrit(design.clusters.degrees, tail))
        held = math.copysign(min(abs(skew), _MAX_SKEW / quantile), skew)
        low, high = skewed_ends(row.gap, math.sqrt(max(square, noise)), held, quantile)
        return max(low, -1.0), min(high, 1.0)

    (low, high), (all_low, all_high) = ends((1 - level) / 2), ends((1 - level) / 2 / count)
    row = replace(row, low=low, high=high, all_low=all_low, all_high=all_high, p=by_gap)
    if k > 1 and by_shape / _OF_SHAPE < by_gap / _OF_GAP:
        return replace(row, p_adjusted=min(by_shape / _OF_SHAPE, 1.0), evidence="shape")
    return replace(row, p_adjusted=min(by_gap / _OF_GAP, 1.0))
