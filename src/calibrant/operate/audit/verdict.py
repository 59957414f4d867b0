"""Figures of a pool from a labelled sample, and the verdict on limits after each batch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_mapping, check_number, check_sequence, refuse
from calibrant._core.config import json_data
from calibrant._core.constraints import Kind, checked
from calibrant.binning import EqualWidth
from calibrant.errors import Remedy
from calibrant.operate.audit.figures import ABSOLUTE, BINNED, Pool, figure_of
from calibrant.operate.audit.sample import LEARN, Sample, feature_groups
from calibrant.operate.check import verdict_of_all, verdict_of_bounds
from calibrant.statistics import Interval
from calibrant.statistics.labelled import Drawn, Floats, Integers, interval_of, terms_of

SomeSample = Annotated[Sample, Kind(Sample, "draw it with sample, or load it with Sample.load")]
LEVEL = 0.95
FEWEST = 10  # labels below which no figure is offered
_BINS = 15
_BOUNDS = {"nll": (0.0, math.inf), "brier": (0.0, 2.0), "cost-gap": (0.0, math.inf), "cost": (-math.inf, math.inf)}
_UNIT = (0.0, 1.0)  # that of the other figures
# The mean and variance of |X| for a standard normal X, from which the sum of the bins' absolute errors is bounded.
_ABSOLUTE, _ABSOLUTE_VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi


@dataclass(frozen=True)
class AuditLine:
    """The verdict on one limit.

    Args:
        figure: Its name, with the group if there are groups.
        limit: The limit.
        at_most: Whether it is a maximum.
        interval: The interval that decides: wider than that of the figure, since it holds at every look.
        verdict: "pass", "fail" or "not enough evidence".
        more: Labels that are still needed, about; None if not even all rows of the pool would decide.
    """

    figure: str
    limit: float
    at_most: bool
    interval: Interval
    verdict: str
    more: int | None

    def __str__(self) -> str:
        told = f"({self.figure} {self.interval}, {'≤' if self.at_most else '≥'} {self.limit:g})"
        if self.verdict != "not enough evidence":
            return f"decided: {self.verdict} {told}"
        needed = "stop: no affordable number decides" if self.more is None else f"label about {self.more:,} more"
        return f"{needed} {told}"


@dataclass(frozen=True)
class Audit:
    """What labelled rows say of the pool they were drawn from.

    Args:
        figures: Name → estimate with its 95 % interval; with groups "accuracy[north]" …
        lines: The verdicts on limits.
        labels: Number of labels.
        unlabelled: Rows that were drawn and have no label; they count as left out by chance.
        looks: Batches, after each of which a verdict was possible.
    """

    figures: dict[str, Interval]
    lines: tuple[AuditLine, ...]
    labels: int
    unlabelled: int
    looks: int

    @property
    def verdict(self) -> str | None:
        """ "pass", "fail" or "not enough evidence"; None without limits."""
        found = {line.verdict for line in self.lines}
        return verdict_of_all(found) if found else None

    @property
    def more(self) -> int | None:
        """Labels that are still needed, about; 0 if the verdict is there, None if no number of labels decides."""
        if self.verdict in (None, "pass", "fail"):
            return 0
        needed = [line.more for line in self.lines if line.verdict == "not enough evidence"]
        return None if None in needed else max(one for one in needed if one is not None)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {**json_data(self), "verdict": self.verdict, "more": self.more}

    def __str__(self) -> str:
        width = max(map(len, self.figures), default=0)
        rows = [f"{name:<{width}}  {one}" for name, one in self.figures.items()]
        missing = (
            f"; {self.unlabelled:,} drawn rows have no label and count as left out by chance" if self.unlabelled else ""
        )
        batches = "1 batch" if self.looks == 1 else f"{self.looks} batches"
        return "\n".join(
            [*rows, *map(str, self.lines), f"{self.labels:,} labels in {batches}, 95 % intervals{missing}"]
        )


@checked
def audit(
    pool: Any, sample: SomeSample, labels: Any = None, *, figures: Sequence[str] = ("accuracy",),
    maximum: Mapping[str, float] | None = None, minimum: Mapping[str, float] | None = None, by: str | None = None,
    costs: Any = None,
) -> Audit:  # fmt: skip
    """Estimate figures of all rows of ``pool`` from the labelled rows of ``sample``.

    The probabilities predict each row's value, a temperature fitted to the labels sharpens that, and the labels correct it: a
    regression estimate. It stays right where the probabilities are wrong; it is narrow where they are good.

    Args:
        pool: As in ``sample``: the same scores.
        sample: What was drawn.
        labels: As in ``Sample.labelled``; None takes those of the sample.
        figures: Any of "accuracy", "error", "nll", "brier", "cost"; "aurc", the area under the risk–coverage curve; "ece"; of two
            classes "event-ece", that of the second class's probability; "classwise-ece", the mean of those of all classes;
            "cost-gap", |realised − foreseen| mean cost.
        maximum: Figure → the largest value allowed.
        minimum: Figure → the smallest value allowed. After every batch a limit is decided wrongly with probability at most 2.5 %
            over all batches together, whenever one stops; of several limits, groups or models any of them.
        by: A feature of the pool: every figure by its groups, each of which has to keep the limits.
        costs: As in ``sample``; None takes those of the draw.

    Raises:
        InputError: If fewer than ten rows are labelled, or the pool is another.
    """
    known = sample.within(source := sample.pool_with(pool, costs=costs), labels)
    limits = [(figure_of(name, argument=kind), check_number(value, name=f"{kind}[{name!r}]"), kind == "maximum")
              for kind, given in (("maximum", maximum), ("minimum", minimum))
              for name, value in check_mapping(given, name=kind, example=f"{kind}={{'accuracy': 0.9}}").items()]  # fmt: skip
    for name, value, at_most in limits:
        least, most = _BOUNDS.get(name, _UNIT)
        least = -most if source.other is not None or source.others else least
        if not least <= value <= most:
            expected = f"a limit of {name} from {least:g} to {most:g}"
            raise refuse(expected, f"{value:g}", "write 90 % as 0.9", argument="maximum" if at_most else "minimum")
    wanted = [figure_of(name, argument="figures") for name in check_sequence(figures, name="figures")]
    names = list(dict.fromkeys([*wanted, *(name for name, _, _ in limits)]))
    evidence = {after: _LabelledPool(one, known, by) for after, one in source.compared.items()}
    terms = {full + after: (name, found, one) for after, found in evidence.items()
             for name in names for full, one in found.terms(name).items()}  # fmt: skip
    intervals = {full: found.interval(name, one, alpha=1 - LEVEL) for full, (name, found, one) in terms.items()}
    tests = [(full, *limit) for limit in limits for full, (name, *_) in terms.items() if name == limit[0]]
    # 1/2 + 1/6 + 1/12 + … = 1: however many batches there are, the errors of all looks, limits, groups and models together stay
    # within the level.
    alpha = (1 - LEVEL) / (known.batches * (known.batches + 1) * max(len(tests), 1))
    lines = [terms[full][1].line(full, terms[full][2], limit, alpha=alpha) for full, *limit in tests]
    count = int((known.labels >= 0).sum())
    return Audit(intervals, tuple(lines), count, len(known.labels) - count, known.batches)


@dataclass(frozen=True)
class _Centred:
    """A figure's estimate, its ends at every α, and how they are made."""

    centre: float
    ends: Callable[[float], tuple[float, float]]
    method: str = "regression estimate, empirical likelihood"


class _LabelledPool:
    """The labelled rows, and the terms of each figure of one model, or of the difference of two."""

    def __init__(self, pool: Pool, sample: Sample, by: str | None) -> None:
        seen = sample.labels >= 0
        self.pool, self.sample, self.seen, self.by = pool, sample, seen, by
        self.rows, self.labels = sample.rows[seen], sample.labels[seen]
        if len(self.rows) < FEWEST:
            remedy = "label more of the rows that were drawn"
            raise refuse(f"at least {FEWEST} labelled rows", f"{len(self.rows)}", remedy)
        self.temperature = pool.fitted_temperature(self.rows, self.labels) if seen.sum() >= LEARN else 1.0
        self.groups: tuple[list[str], Integers] | None = None if by is None else feature_groups(pool, by)

    def terms(self, name: str) -> dict[str, _Centred]:
        """Return the evidence on a figure, by group if there are groups."""
        if name in ABSOLUTE and self.pool.other is not None:
            ours, theirs = (_LabelledPool(one, self.sample, self.by).terms(name) for one in self.pool.alone)
            return {full: _difference(ours[full], theirs[full]) for full in ours}
        parts: list[tuple[str, NDArray[np.bool_]]] = [(name, np.ones(len(self.pool), bool))]
        if self.groups is not None:
            parts = [(f"{name}[{one}]", self.groups[1] == at) for at, one in enumerate(self.groups[0])]
        for full, members in parts:
            if (count := int(members[self.rows].sum())) < FEWEST:
                remedy = Remedy(
                    "draw with aim='worst group'", command="draw with calibrant sample --aim 'worst group' --by"
                )
                raise refuse(f"at least {FEWEST} labelled rows of each group", f"{count} for {full}", remedy)
        evidence: dict[str, list[_Centred]] = {full: [] for full, _ in parts}
        for mean in self.pool.means(name):
            expected = None if name == "aurc" else self.pool.outlook(mean, temperature=self.temperature).mean
            confidence = self.pool.outlook(mean).mean if name in BINNED else None  # at temperature 1
            for full, members in parts:
                evidence[full].append(self._evidence(mean, members, expected, confidence))
        return {full: found[0] if len(found) == 1 else _average(found) for full, found in evidence.items()}

    def _evidence(
        self, mean: str, members: NDArray[np.bool_], expected: Floats | None, confidence: Floats | None
    ) -> _Centred:
        pool, chosen = self.pool, members[self.rows]
        if expected is None:  # of a row's rank among the members
            pool = pool.ranked(members)
            expected = pool.outlook(mean, temperature=self.temperature).mean
        rows = self.rows[chosen]
        seen = pool.values(mean, rows, self.labels[chosen])
        bounds = pool.bounds(mean, rows, temperature=self.temperature)
        drawn = self.sample.drawn(chosen, pool=int(members.sum()))
        terms = terms_of(seen, expected[rows], bounds, drawn, float(expected[members].mean()))
        found = _Centred(terms.centre, lambda alpha: interval_of(terms, alpha=alpha))
        if confidence is not None:
            index = np.full(len(pool), -1)
            edges = EqualWidth(_BINS).edges(torch.from_numpy(confidence)).numpy()
            index[members] = np.clip(np.searchsorted(edges, confidence[members], side="left") - 1, 0, _BINS - 1)
            away = np.bincount(index[members], (confidence - expected)[members], _BINS).astype(np.float64)
            return _binned(found, away, index[members], index[rows], seen, expected[rows], drawn)
        return _magnitude(found) if mean == "cost-gap" else found

    def interval(self, name: str, found: _Centred, *, alpha: float) -> Interval:
        """Return the interval of a figure, within the values that it can have."""
        least, most = _BOUNDS.get(name, _UNIT) if self.pool.other is None else (-math.inf, math.inf)
        low, high, middle = (min(max(float(one), least), most) for one in (*found.ends(alpha), found.centre))
        return Interval(middle, low, high, 1 - alpha, found.method)

    def line(self, full: str, evidence: _Centred, limit: Sequence[Any], *, alpha: float) -> AuditLine:
        """Return the verdict on one limit (figure, value, whether it is a maximum)."""
        name, value, at_most = limit
        found = self.interval(name, evidence, alpha=alpha)
        verdict = verdict_of_bounds(found.low, found.high, value, minimum=not at_most)
        return AuditLine(
            full, value, at_most, found, verdict, self._more(found, value) if verdict == "not enough evidence" else 0
        )

    def _more(self, found: Interval, value: float) -> int | None:
        """Return about how many more labels bring the limit out of the interval of the next look.

        Its half-width falls as 1/√n, and grows as the normal quantile, since that look may spend less: k / (k + 2) of the error of
        the k-th.
        """
        from scipy.special import ndtri

        labels, alpha, look = len(self.rows), 1 - found.level, self.sample.batches
        wider = float(ndtri(alpha / 2 * look / (look + 2)) / ndtri(alpha / 2))
        half = wider * (found.high - found.estimate if value >= found.estimate else found.estimate - found.low)
        away = abs(value - found.estimate)
        needed = math.inf if away == 0 else labels * (half / away) ** 2
        return None if needed > len(self.pool) else max(FEWEST, math.ceil(needed) - labels)


def _magnitude(mean: _Centred) -> _Centred:
    """Return the absolute value of a mean, from 0 where it may have either sign."""

    def ends(alpha: float) -> tuple[float, float]:
        low, high = mean.ends(alpha)
        return max(0.0, low, -high), max(-low, high)

    return replace(mean, centre=abs(mean.centre), ends=ends)


def _difference(first: _Centred, second: _Centred) -> _Centred:
    """Return a figure of one model minus that of another, each with its interval at half of α."""

    def ends(alpha: float) -> tuple[float, float]:
        (low, high), (below, above) = (one.ends(alpha / 2) for one in (first, second))
        return low - above, high - below

    return _Centred(first.centre - second.centre, ends, "difference of two intervals")


def _average(parts: Sequence[_Centred]) -> _Centred:
    """Return the mean of figures of the same rows, whatever their dependence: its standard error is at most the mean of theirs."""

    def ends(alpha: float) -> tuple[float, float]:
        low, high = np.mean([one.ends(alpha) for one in parts], axis=0)
        return float(low), float(high)

    return _Centred(float(np.mean([one.centre for one in parts])), ends, "mean of intervals")


def _binned(
    mean: _Centred, away: Floats, index: Integers, at: Integers, seen: Floats, expected: Floats, drawn: Drawn
) -> _Centred:
    """Return the sum of the absolute gaps of bins, Σ (confidence − correctness) / N.

    The sum of absolute estimates is at least the ECE on average; it is above it by at most the sum of the bins' absolute errors.
    Errors of sure rows are rare events, of which no bin may have seen one: the reach is at least that of the mean over all bins.

    Args:
        mean: Over all bins.
        away: (B,) Σ (confidence − expectation) of each bin's rows.
        index: (N,) the bin of each row.
        at: (n,) that of each labelled row.
        seen: (n,) whether it is correct, or the event.
        expected: (n,) its expectation.
        drawn: How the labelled rows were drawn.
    """
    n, residual, square = len(index), seen - expected, (drawn.factors / len(seen)) ** 2
    gap = away / n - np.bincount(at, drawn.weights * residual, _BINS) / n
    of_chance = np.bincount(at, square * expected * (1 - expected), _BINS)
    variance = np.maximum(np.bincount(at, square * residual**2, _BINS), of_chance)
    mass = np.bincount(index, minlength=_BINS) / n
    variance = np.where(np.bincount(at, minlength=_BINS) > 0, variance, mass**2)

    def ends(alpha: float) -> tuple[float, float]:
        from scipy.special import stdtrit

        z = float(stdtrit(max(len(seen) / _BINS, 2.0), 1 - alpha / 2))
        total, error = float(np.abs(gap).sum()), math.sqrt(float(variance.sum()))
        low, high = mean.ends(alpha)
        down, up = mean.centre - low, high - mean.centre
        # errors that no label has shown add to the gap of confidences that are too high, and take from that of too low ones
        below = up if gap.sum() > 0 else down
        reach = _ABSOLUTE * float(np.sqrt(variance).sum()) + z * math.sqrt(_ABSOLUTE_VARIANCE) * error
        return total - max(reach, below), total + max(z * error, down, up)

    # the estimate is the ECE with the gaps that chance alone makes taken off
    centre = float(np.sqrt(np.maximum(gap**2 - variance, 0)).sum())
    return _Centred(centre, ends, "sum of bounded bins")
