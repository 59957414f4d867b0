"""Is a model calibrated for everyone: the gap of every group of rows, and one test for the worst of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from calibrant._core.constraints import MOST_DRAWS, Count, Integer, Level, Seed, checked
from calibrant._core.notebook import to_html
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.evaluate._group_sums import (
    BINS,
    FEWEST_EVENTS,
    EventRows,
    Floats,
    GroupSums,
    covariance_of,
    feature_columns,
    gap_spread,
    largest_drawn,
    partitions_of,
)
from calibrant.metrics import ECE
from calibrant.statistics.design import need_groups
from calibrant.statistics.means import normal_quantile, skewed_ends

# Largest skewness times quantile that the interval of a gap is corrected for: Hall's transformation of a larger one makes the
# interval much longer than coverage needs.
_MOST_SKEW = 0.6
_GATE_DRAWS = 400  # of a group's ECE if calibrated
_OF_GAP, _OF_SHAPE = (
    0.8,
    0.2,
)  # parts of the level: of the test of the largest gap, of those of the bins within each group
_FEWEST_CLUSTERS = 10.0  # effective number of them in a group


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
            f"No {unit}'s gap or calibration error is larger than chance explains (worst: {worst}, adjusted p = "
            f"{first.p_adjusted:.2g}); {few} may hide gaps that these rows cannot show."
        )
    means = f"mean probability {100 * first.confidence:.3g} %, frequency {100 * first.rate:.3g} %"
    if first.evidence == "shape":
        said = f"calibration error {100 * first.ece:.2g} points; {means}"
    else:
        said = f"{means}, too {'high' if first.gap > 0 else 'low'} by {100 * abs(first.gap):.2g} points"
    verb = "is" if flagged == 1 else "are"
    p_value = "< 0.001" if first.p_adjusted is not None and first.p_adjusted < 0.001 else f"= {first.p_adjusted:.2g}"
    return (
        f"{flagged} of {len(parts)} {unit}s {verb} further off than chance explains; the clearest is {worst} ({said}; "
        f"adjusted p {p_value})."
    )


@checked
def subgroups(
    predictions: Data,
    features: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    depth: Count = 1,
    minimum: Count = 100,
    bins: Annotated[int, Integer(2, 1000)] = 4,
    draws: Annotated[int, Integer(100, MOST_DRAWS)] = 10_000,
    seed: Seed = 0,
    level: Level = 0.95,
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
        >>> from calibrant import Pairs, are_events
        >>> p, y = [0.7] * 400, [1] * 140 + [0] * 60 + [1] * 90 + [0] * 110
        >>> found = subgroups(Pairs.from_probs(p, y), {"site": ["a"] * 200 + ["b"] * 200})
        >>> found.rows[0].group, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('site = b', 0.25, True)

    References:
        Westfall & Young 1993 (the maximum statistic); Hébert-Johnson et al. 2018; Cornish & Fisher 1938; Hall 1992, Eq. 2.5
        (intervals).
    """
    data = require_rows(predictions, what="subgroups")
    columns = feature_columns(predictions, features)
    if len(data) < len(predictions):  # rows of weight 0 are in no group
        columns = dict(replace(predictions, features=columns).counted.features or {})
    pairs, event = _pairs_and_event(data)
    need_groups(pairs.groups, what="subgroups")
    rows = EventRows.of(pairs)
    kept = [
        GroupSums.of(rows, parts, at)
        for parts in partitions_of(columns, data, depth=depth, bins=bins)
        for at in range(len(parts.names))
    ]
    found = [one for one in kept if one.n >= minimum and enough(one)]
    if not found:
        return Subgroups((), event, 1.0, len(kept), level)
    ranked = tuple(rows_of(found, rows, covariance_of(rows, found), draws=draws, seed=seed, level=level))
    return Subgroups(ranked, event, ranked[0].p_adjusted, len(kept) - len(found), level)


def enough(group: GroupSums) -> bool:
    """Return whether a group holds enough information to be tested: by its probabilities and clusters, not by outcomes."""
    return group.expected >= FEWEST_EVENTS and group.effective >= _FEWEST_CLUSTERS


def rows_of(
    found: Sequence[GroupSums], rows: EventRows, covariance: Floats, *, draws: int, seed: int, level: float
) -> list[Subgroup]:
    """Return the tested groups, the strongest evidence first; ``covariance`` (G, G) is that of their gaps if calibrated."""
    largest = largest_drawn(covariance, draws=draws, seed=seed)
    wide = float(np.quantile(largest, level))
    made = [
        _subgroup_of(one, rows, covariance[at, at], largest, count=len(found), wide=wide, level=level, seed=seed)
        for at, one in enumerate(found)
    ]
    return sorted(made, key=lambda row: (row.p_adjusted, row.p, -abs(row.gap)))


def _pairs_and_event(data: Data) -> tuple[Pairs, str]:
    if isinstance(data, Pairs):
        return data, "the outcome" if are_events(data) else "the decision is right"
    if data.classes > 2:
        return data.top_label(), "the decision is right"
    return data.one_vs_rest(1), "class 1"


def statistic_of(group: GroupSums, variance: float) -> float:
    """Return the gap over its standard error if calibrated, on the scale of the normal distribution.

    For clusters Student's t is taken to it by its quantiles, for independent rows what their skewness adds is subtracted.
    """
    from scipy.special import ndtri, stdtr

    if (
        variance <= 0
    ):  # probabilities of 0 and 1 alone: any gap disproves them; 40 stands for infinity, since |z| > 38 has p = 0
        return 0.0 if group.gap == 0 else math.copysign(40.0, group.gap)
    z = group.gap / math.sqrt(variance)
    if group.units is not None:
        return -math.copysign(min(-float(ndtri(stdtr(group.degrees, -abs(z)))), 40.0), -z)
    skew = -group.third / variance**1.5  # of p − y
    bent = z - skew * (min(abs(z), 3.0) ** 2 - 1) / 6  # beyond 3 the expansion is not monotone for every skewness
    return bent if bent * z > 0 else 0.0


def _subgroup_of(
    group: GroupSums,
    rows: EventRows,
    variance: float,
    largest: Floats,
    *,
    count: int,
    wide: float,
    level: float,
    seed: int,
) -> Subgroup:
    from scipy.special import ndtr, stdtrit

    statistic = statistic_of(group, variance)
    p = float(2 * ndtr(-abs(statistic)))
    # + 1 in both counts: the observed set is one more draw (Davison & Hinkley 1997), so that p is never 0
    above = len(largest) - int(np.searchsorted(largest, abs(statistic), side="left"))
    by_gap = max(p, min((above + 1) / (len(largest) + 1), count * p)) / _OF_GAP
    # Bonferroni over groups; dividing by the parts of the level makes both comparable with it
    by_shape = group.shape_p() * count / _OF_SHAPE
    confidence, rate = (float(sums.sum()) / group.table.total for sums in (group.table.sum_p, group.table.sum_y))
    gap, spread = group.gap / group.mass, gap_spread(group, rows)
    ends = [
        # of clusters the quantile of Student's t at the same probability
        _gap_ends(gap, *spread, quantile if group.units is None else float(stdtrit(group.degrees, ndtr(quantile))))
        for quantile in (normal_quantile((1 + level) / 2), wide)
    ]
    ece, ece_low, ece_high = _ece_of_group(group, rows, level=level)
    names = group.parts.names[group.at]
    return Subgroup(
        group=" and ".join(f"{column} = {value}" for column, value in names),
        columns=names,
        n=group.n,
        confidence=confidence,
        rate=rate,
        gap=gap,
        low=ends[0][0],
        high=ends[0][1],
        all_low=ends[1][0],
        all_high=ends[1][1],
        ece=ece,
        ece_low=ece_low,
        ece_high=ece_high,
        p=p,
        p_adjusted=min(by_gap, by_shape, 1.0),
        evidence="gap" if by_gap <= by_shape else "shape",
    )


def _gap_ends(gap: float, error: float, skew: float, quantile: float) -> tuple[float, float]:
    """Return both ends of the interval of a gap, corrected for its skewness."""
    held = math.copysign(min(abs(skew), _MOST_SKEW / quantile), skew)
    low, high = skewed_ends(gap, error, held, quantile)
    return max(low, -1.0), min(high, 1.0)


def _ece_of_group(group: GroupSums, rows: EventRows, *, level: float) -> tuple[float, float | None, float | None]:
    """Return the group's ECE with its interval, where the rows are independent."""
    if rows.cluster is not None:
        return group.table.error(), None, None
    found = ECE(EqualWidth(BINS)).interval_of(group.table, level=level)
    return found.estimate, found.low, found.high
