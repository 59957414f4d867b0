"""A judge corrected by a few human labels: scores of systems with intervals, their ranking, and the judge's own calibration.

Judges score every row, people label some. Let m(x) be the judge's score, recalibrated by the labels. A system's score is the
mean of m over all its rows plus the mean of human − m over its labelled rows: the prediction corrects nothing by itself, the
labels do, so a judge that favours a system, a position or a length costs width and not validity.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from calibrant._core.check import as_array, as_tensor, check_mapping, refuse, shown
from calibrant._core.constraints import checked
from calibrant._core.minimise import Objective, minimise
from calibrant.data.predictions import BinaryPairs
from calibrant.errors import NoIntervalError, Remedy
from calibrant.operate import Sample, audit
from calibrant.statistics import Interval
from calibrant.statistics.labelled import Drawn, Floats, Integers, Terms, interval_of, terms_of

Names = NDArray[Any]

LEVEL = 0.95
FEWEST = 10  # labels below which a system, or a level of a column, gets no figure
LEARN = 30  # labels from which on the judge is recalibrated
_CLIP = 0.02  # judges that answer 0 or 1 have finite log-odds so; a slope of 1 then means that 2 % of them are wrong
_LEVELS = 12  # values of a column above which numbers are cut into thirds
_COPIES = 1e6  # of the log, that make it a sample of a population without end


@dataclass(frozen=True)
class JudgeCalibration:
    """The judge against people, on all rows as the labelled ones tell.

    Args:
        agreement: How often the judge's decision at ½ is what a person says.
        difference: Mean judge − mean person: above 0 it is lenient.
        slope: Of the log-odds of people on the judge's, summed over judges: below 1 it is over-confident.
        correlation: ρ of the recalibrated judge and people.
        ece: The expected calibration error of the mean judge; None where annotators disagree.
        annotators: How often two annotators of one row agree; None where no row has two labels.
    """

    agreement: Interval
    difference: Interval
    slope: float
    correlation: float
    ece: Interval | None = None
    annotators: float | None = None

    @property
    def gain(self) -> float:
        """√(1 − ρ²): what part of the half-width of the labels alone the judge can leave at best, of evenly drawn rows."""
        return math.sqrt(1 - self.correlation**2)


@dataclass(frozen=True)
class Ranking:
    """The order of the systems, with simultaneous 95 % for all pairs together.

    Args:
        order: The systems from the highest estimate down.
        ranks: System → best and worst rank that the labels leave possible, from 1.
        better: Pairs (better, worse) that are decided.
        differences: (a, b) → the difference of the scores, each a before b in ``order``.
        more: (a, b) → about how many more labels in all decide an undecided pair; None if not even labels of all rows do.
    """

    order: tuple[str, ...]
    ranks: dict[str, tuple[int, int]]
    better: tuple[tuple[str, str], ...]
    differences: dict[tuple[str, str], Interval]
    more: dict[tuple[str, str], int | None]


@dataclass(frozen=True)
class JudgeAudit:
    """What a judge and a few human labels say together.

    Args:
        scores: System → its score; of comparisons its win rate.
        ranking: Of the systems.
        calibration: Of the judge.
        bias: "system=A", "length=long" … → mean judge − mean person there, all rows of that kind.
        position: By how much the place shown first is favoured, in probability; None without the other order.
        consistent: How often the judge decides the same in both orders; None without the other order.
        refused: System or level → why it has no figure.
        rows: Rows that the judge scored.
        labels: Rows that people labelled.
        human: System → score by the labels alone, for comparison.
        probabilities: (N,) the recalibrated judge.
    """

    scores: dict[str, Interval]
    ranking: Ranking
    calibration: JudgeCalibration
    bias: dict[str, Interval]
    position: Interval | None
    consistent: float | None
    refused: dict[str, str]
    rows: int
    labels: int
    human: dict[str, Interval]
    probabilities: Floats = field(repr=False)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data, without the probabilities."""
        found = asdict(replace(self, probabilities=np.empty(0)))
        del found["probabilities"]
        found["calibration"]["gain"] = self.calibration.gain
        ranking = found["ranking"]
        for name in ("differences", "more"):
            ranking[name] = [{"a": a, "b": b, name: value} for (a, b), value in ranking[name].items()]
        ranking["ranks"] = {name: list(ends) for name, ends in self.ranking.ranks.items()}
        return found

    def __str__(self) -> str:
        about = self.calibration
        width = max((len(name) for name in (*self.scores, *self.bias)), default=0)
        lines = [f"{self.labels:,} human labels for {self.rows:,} rows that the judge scored; 95 % intervals"]
        for name in self.ranking.order:
            best, worst = self.ranking.ranks[name]
            rank = f"rank {best}" if best == worst else f"rank {best} to {worst}"
            lines.append(f"  {name:<{width}}  {_told(self.scores[name])}  {rank}")
        lines += [f"  {name:<{width}}  no score: {why}" for name, why in self.refused.items()]
        if self.ranking.differences:
            better = [f"{a} over {b}" for a, b in self.ranking.better]
            lines.append("decided: " + ("; ".join(better) or "no pair"))
            undecided = [f"{a} and {b} ({_needed(count)})" for (a, b), count in self.ranking.more.items()]
            lines += ["undecided: " + "; ".join(undecided)] if undecided else []
        lines.append(
            f"judge and people agree in {_told(about.agreement)}; judge − people {_told(about.difference, '+')}"
        )
        if about.annotators is not None:
            lines.append(f"two people agree in {about.annotators:.1%}")
        if self.position is not None:
            told = _told(self.position, "+")
            lines.append(f"the answer shown first gains {told}; the same verdict in both orders: {self.consistent:.1%}")
        lines += [f"judge − people, {name:<{width}}  {_told(one, '+')}" for name, one in self.bias.items()]
        lines.append(
            f"with even rows the judge leaves at best {about.gain:.0%} of the half-width of the labels alone (√(1 − ρ²))"
        )
        return "\n".join(lines)


@checked
def judge_audit(
    judge: Any, human: Any, *, systems: Any = None, inclusion: Any = None, questions: Any = None,
    by: Mapping[str, Any] | None = None, swapped: Any = None,
    target: Literal["rows", "population"] = "rows",
) -> JudgeAudit:  # fmt: skip
    """Correct a judge's scores of systems by a few human labels.

    Rows to label should be drawn by chance, as ``judge_rows`` and ``operate.sample`` do. Annotators who disagree: a row's value is their
    mean, so a score is what an annotator says on average.

    Args:
        judge: (N,) the probability, score or verdict in [0, 1] that the answer is right, or that the first of two is better; (N, J)
            of several judges, which are pooled by a logistic regression.
        human: (N,) what a person says, in [0, 1] (a tie is ½), or −1 without a label; (N, A) of several annotators.
        systems: (N,) the system of each row, or a pair of two (N,) for comparisons: the first and the second; None is one system.
        inclusion: (N,) the probability with which each labelled row was drawn, of all batches together; None: evenly within each system.
        questions: (N,) ids: systems that answer the same question, labelled together, are compared as pairs.
        by: Name → (N,) column, such as length: the judge's bias by its values, or by thirds of numbers.
        swapped: As ``judge``, from answers shown in the other order, of the same event; both orders are averaged in log-odds.
        target: "rows": the mean over the rows of the log. "population": over questions like these, with a wider interval.

    Raises:
        InputError: If values lie outside of [0, 1], or columns have other lengths.
        NoIntervalError: If no system has ten labels.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> right = rng.random(2000) < np.repeat([0.8, 0.6], 1000)
        >>> judge = np.where(rng.random(2000) < 0.93, right, ~right).astype(float)  # wrong in 7 % of the rows
        >>> human = np.where(rng.random(2000) < 0.15, right, -1)  # people label every seventh row
        >>> found = judge_audit(judge, human, systems=np.repeat(["new", "old"], 1000))
        >>> found.ranking.better
        (('new', 'old'),)

    References:
        Angelopoulos et al. 2023, Prediction-Powered Inference; Zou and Donner 2008 (differences from the ends of two intervals);
        Mogstad et al. 2024, Inference for Ranks.
    """
    scores, other = judge_matrix(judge, "judge"), None if swapped is None else judge_matrix(swapped, "swapped")
    rows = len(scores)
    labels = judge_matrix(human, "human", missing=True, rows=rows)
    log_odds = log_odds_of_orders(scores, other)
    value, given = mean_of_people(labels)
    seen = np.asarray(given.any(axis=1))
    if seen.sum() < FEWEST:
        given_rows = str(int(seen.sum()))
        raise NoIntervalError(f"at least {FEWEST} human labels", given_rows, "label more rows", argument="human")
    chance = inclusion_of(inclusion, seen)
    raw = 1 / (1 + np.exp(-log_odds.mean(axis=1)))
    if other is None and scores.shape[1] == 1:
        raw = scores[:, 0]
    # Judges are averaged in log-odds: a sure judge counts for more than an undecided one.
    slope, fitted = recalibrated(log_odds, value, seen)
    rounds = _Rows(raw, fitted, value, seen, chance, target == "population", labels.shape[1] > 1)
    names, parts = numbered_systems(systems, rows)
    unit = (
        np.arange(rows)
        if questions is None
        else np.unique(_names_of_rows(questions, "questions", rows), return_inverse=True)[1]
    )
    figures, refused = _systems(rounds, names, parts, unit)
    if not figures:
        raise NoIntervalError(
            f"a system with at least {FEWEST} human labels", next(iter(refused.values())), "label more rows of each"
        )
    bias = {}
    for column, values in check_mapping(by, name="by", example="by={'length': lengths}").items():
        levels = _levels(_names_of_rows(values, f"by[{column!r}]", rows))
        known = {level: int((seen & members).sum()) for level, members in levels.items()}
        if max(known.values()) < FEWEST:
            refused[column] = f"no value has {FEWEST} labels"
            continue
        for level, members in levels.items():
            if known[level] < FEWEST:
                refused[f"{column}={level}"] = f"{known[level]} labels, of {FEWEST} at least"
            else:
                bias[f"{column}={level}"] = rounds.bias(members)
    if len(figures) > 1 and len(parts) == 1:
        bias |= {f"system={name}": rounds.bias(parts[0] == at) for at, name in enumerate(names) if name in figures}
    position, consistent = (None, None) if other is None else _position(scores.mean(axis=1), other.mean(axis=1))
    calibration = _calibration(rounds, slope, labels, given)
    return JudgeAudit(
        {name: one.interval(1 - LEVEL) for name, one in figures.items()}, _ranking(figures, int(seen.sum()), rows),
        calibration, bias, position, consistent, refused, rows, int(seen.sum()),
        {name: one.alone for name, one in figures.items()}, fitted,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Rows that the judge scored: raw and recalibrated scores, people's values, which rows have one, and its chance.

    Of a population without end the rows are a sample. The mean of annotators is not known even where all rows are labelled.
    """

    raw: Floats
    fitted: Floats
    value: Floats
    seen: NDArray[np.bool_]
    chance: Floats | None
    endless: bool
    annotated: bool

    def terms(self, members: NDArray[np.bool_], *, value: Floats, expected: Floats) -> Terms:
        """Return the terms of the mean of ``value`` over ``members``, with ``expected`` as the control variate."""
        chosen = np.flatnonzero(members & self.seen)
        count = int(members.sum())
        # without a design the labelled rows count as a simple random sample of the members
        even = np.full(len(chosen), len(chosen) / count)
        inclusion = even if self.chance is None else self.chance[chosen]
        copies = _COPIES if self.endless or self.annotated else 1.0  # of rows: the chance of each falls by as much
        # one stratum: n of N rows, whose finite-population factor 1 − n / N vanishes where there are copies without end
        drawn = Drawn(np.zeros(len(chosen), np.int64), inclusion / copies, round(count * copies))
        # What a person may say bounds the residuals, so that the interval stays wide where no disagreement was seen.
        ends = np.zeros(len(chosen)), np.ones(len(chosen))
        return terms_of(value[chosen], expected[chosen], ends, drawn, float(expected[members].mean()))

    def interval(
        self, terms: Terms, expected: Floats, alpha: float, *, shared: float = 0.0, method: str = "corrected judge"
    ) -> Interval:
        """Return the interval of a mean; of a population with the chance of which rows the log has."""
        low, high = interval_of(terms, alpha=alpha, shared=shared)
        if self.endless:
            from scipy.special import ndtri

            # Which questions the log has is chance too: the variance of their expectations adds to that of the labels.
            spread = -float(ndtri(alpha / 2)) * float(expected.std()) / math.sqrt(len(expected))
            low, high = (terms.centre + math.copysign(math.hypot(end - terms.centre, spread), side)
                         for end, side in ((low, -1), (high, 1)))  # fmt: skip
        middle, low, high = (float(min(max(end, 0.0), 1.0)) for end in (terms.centre, low, high))
        return Interval(middle, low, high, 1 - alpha, method)

    def mean(
        self, members: NDArray[np.bool_], value: Floats, expected: Floats, *, method: str = "corrected judge"
    ) -> Interval:
        """Return the interval of the mean of ``value`` over ``members``, with ``expected`` as the control variate."""
        terms = self.terms(members, value=value, expected=expected)
        return self.interval(terms, expected[members], 1 - LEVEL, method=method)

    def bias(self, members: NDArray[np.bool_]) -> Interval:
        """Return mean judge − mean person of some rows."""
        found = self.mean(members, self.value, self.fitted)
        judged = float(self.raw[members].mean())
        return replace(found, estimate=judged - found.estimate, low=judged - found.high, high=judged - found.low)


@dataclass(frozen=True)
class _System:
    """One system: its terms, and for each labelled row its question and its part of the estimate's error."""

    rows: _Rows
    terms: Terms
    expected: Floats
    unit: Integers
    alone: Interval
    shared: float = 0.0

    def interval(self, alpha: float) -> Interval:
        return self.rows.interval(self.terms, self.expected, alpha, shared=self.shared)

    def correlation(self, other: "_System") -> float:
        """Return that of the errors of both estimates, from questions that people labelled for both."""
        # errors are correlated through questions that both systems answered: Σ over questions of the product of their parts
        units, code = np.unique(np.r_[self.unit, other.unit], return_inverse=True)
        ours, theirs = (
            np.bincount(at, one.terms.values / len(one.terms.values), len(units))
            for at, one in ((code[: len(self.unit)], self), (code[len(self.unit) :], other))
        )
        size = math.sqrt(float(ours @ ours) * float(theirs @ theirs))
        return float(ours @ theirs) / size if size > 0 else 0.0


def _systems(
    rows: _Rows, names: Sequence[str], parts: Sequence[Integers], unit: Integers
) -> tuple[dict[str, _System], dict[str, str]]:
    """Return the figures of each system, and why some have none.

    A comparison is a row of both systems: of the second with the judge and the person turned round.
    """
    turned = replace(rows, raw=1 - rows.raw, fitted=1 - rows.fitted, value=1 - rows.value)
    doubled = rows
    if len(parts) > 1:
        columns = ("raw", "fitted", "value", "seen", *(["chance"] if rows.chance is not None else []))
        both: dict[str, Any] = {name: np.r_[getattr(rows, name), getattr(turned, name)] for name in columns}
        doubled = replace(rows, **both)
        unit = np.r_[unit, unit]
    of = np.concatenate(parts)
    figures, refused = {}, {}
    for at, name in enumerate(names):
        members = of == at
        count = int((members & doubled.seen).sum())
        if count < FEWEST:
            refused[name] = f"{count} human labels, of {FEWEST} at least"
            continue
        terms = doubled.terms(members, value=doubled.value, expected=doubled.fitted)
        alone = doubled.mean(members, doubled.value, np.zeros(len(of)), method="labels alone")
        figures[name] = _System(doubled, terms, doubled.fitted[members], unit[members & doubled.seen], alone)
    # One judge scored them all: its errors on others tell of the variance of a system's errors, half as much as its own errors.
    informative = {name: one.terms.informative for name, one in figures.items()}
    total = 0.0 if len(parts) > 1 else sum(informative.values())  # a comparison counts for both of its systems already
    return {
        name: replace(one, shared=max(total - informative[name], 0.0) / 2) for name, one in figures.items()
    }, refused


def _ranking(figures: Mapping[str, _System], labels: int, rows: int) -> Ranking:
    order = tuple(sorted(figures, key=lambda name: -figures[name].terms.centre))
    pairs = list(combinations(order, 2))
    # Bonferroni: simple, and valid whatever the dependence of pairs that share a system
    alpha = (1 - LEVEL) / max(len(pairs), 1)  # of each pair, so that all hold together
    ends = {name: one.interval(alpha) for name, one in figures.items()}
    differences, more, better = {}, {}, []
    for a, b in pairs:
        one, two = ends[a], ends[b]
        r = figures[a].correlation(figures[b])
        # The ends of both intervals give the variances at the ends of the difference (Zou and Donner, Eq. 4).
        down, up = one.estimate - one.low, two.high - two.estimate
        below = math.sqrt(max(down**2 + up**2 - 2 * r * down * up, 0.0))
        up, down = one.high - one.estimate, two.estimate - two.low
        above = math.sqrt(max(up**2 + down**2 - 2 * r * up * down, 0.0))
        middle = one.estimate - two.estimate
        differences[a, b] = Interval(middle, middle - below, middle + above, 1 - alpha, "corrected judge, simultaneous")
        if middle > below:
            better.append((a, b))
        else:
            # The half-width falls as 1 / √labels.
            needed = math.inf if middle == 0 else labels * (below / middle) ** 2
            more[a, b] = None if needed > rows else max(FEWEST, math.ceil(needed) - labels)
    # A rank is possible unless a decided pair excludes it; all pairs hold together, so all ranks do.
    worse = [b for _, b in better]
    above_of = [a for a, _ in better]
    ranks = {name: (1 + worse.count(name), len(order) - above_of.count(name)) for name in order}
    return Ranking(order, ranks, tuple(better), differences, more)


def recalibrated(log_odds: Floats, value: Floats, seen: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the sum of the slopes, and P(person says 1 | judges) of every row: a logistic regression with a weak prior.

    The slopes of J judges have the prior N(1 / J, 1), the intercept N(0, 2²): without labels the log-odds' mean is kept.
    """
    judges = log_odds.shape[1]
    # the prior's centre: the mean of the judges as they are
    start = torch.tensor([0.0, *[1 / judges] * judges], dtype=torch.float64)
    if seen.sum() >= LEARN:
        design = torch.from_numpy(np.column_stack([np.ones(int(seen.sum())), log_odds[seen]]))
        truth = torch.from_numpy(value[seen])
        # standard deviation 2 of the intercept and 1 of each slope: wide beside what thirty labels say, and finite where they separate
        precision = torch.tensor([0.25, *[1.0] * judges], dtype=torch.float64)

        def second(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            z = design @ at
            p = z.sigmoid()
            return (softplus(z) - truth * z).sum(), (p - truth) @ design, (design.T * (p * (1 - p))) @ design

        loss = Objective(1.0, second, ridge=precision / 2, centre=start)
        start = minimise(loss, start, enough=1e-5).theta
    weights = start.numpy()
    return float(weights[1:].sum()), 1 / (1 + np.exp(-(weights[0] + log_odds @ weights[1:])))


def log_odds_of_orders(scores: Floats, other: Floats | None) -> Floats:
    """Return the judges' log-odds (N, J): the mean of both orders, where there are two.

    Raises:
        InputError: If the other order has another shape.
    """
    if other is None:
        return _log_odds_of_scores(scores)
    if other.shape != scores.shape:
        raise refuse(f"swapped of shape {scores.shape}, as judge", shown(other.shape), "score both orders of every row")
    return (_log_odds_of_scores(scores) + _log_odds_of_scores(other)) / 2


def mean_of_people(labels: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what people say of each row (N,), the mean of its labels, 0 without one, and which labels (N, A) there are."""
    given = labels >= 0
    return np.where(given, labels, 0).sum(axis=1) / np.maximum(given.sum(axis=1), 1), given


def inclusion_of(inclusion: Any, needed: NDArray[np.bool_]) -> Floats | None:
    """Return the checked probabilities (N,) of rows to have been drawn, of which those ``needed`` are read.

    Raises:
        InputError: If there are others.
    """
    if inclusion is None:
        return None
    chance: Floats = as_tensor(inclusion, name="inclusion").detach().cpu().double().numpy()
    if chance.shape != needed.shape or not ((chance[needed] > 0) & (chance[needed] <= 1)).all():
        expected = "inclusion probabilities in (0, 1] of all labelled rows"
        remedy = Remedy("pass those of operate.sample", command="put back what sample wrote, or take the column out")
        raise refuse(expected, "others", remedy)
    return chance


def _calibration(rows: _Rows, slope: float, labels: Floats, given: NDArray[np.bool_]) -> JudgeCalibration:
    everything = np.ones(len(rows.raw), bool)
    right = rows.raw >= 0.5
    agreed, expected = (np.where(right, one, 1 - one) for one in (rows.value, rows.fitted))
    agreement = rows.mean(everything, agreed, expected)
    value, fitted = rows.value[rows.seen], rows.fitted[rows.seen]
    varies = value.std() > 0 and fitted.std() > 0
    # A judge that people contradict is turned round by its slope, so that ρ of the recalibrated one is not negative.
    moments = np.cov(value, fitted, aweights=None if rows.chance is None else 1 / rows.chance[rows.seen])
    size = math.sqrt(moments[0, 0] * moments[1, 1])
    correlation = min(max(0.0, float(moments[0, 1]) / size), 1.0) if varies else 0.0
    ece = None
    if np.isin(rows.value, (0.0, 1.0)).all():
        chosen = np.flatnonzero(rows.seen)
        # The mean judge as it is, not recalibrated: its own error is asked for.
        drawn = np.full(len(chosen), len(chosen) / len(rows.raw)) if rows.chance is None else rows.chance[chosen]
        outcomes = torch.zeros(len(rows.raw), dtype=torch.int64)  # are not read
        pairs = BinaryPairs.from_probs(torch.from_numpy(rows.raw), outcomes)
        columns = chosen, drawn, np.zeros(len(chosen), np.int64), rows.value[chosen].astype(np.int64)
        sample = Sample(*columns, "event-ece", 0, len(pairs))
        ece = audit(pairs, sample, figures=["event-ece"]).figures["event-ece"]
    count = given.sum(axis=1)
    several = count >= 2
    # Of c labels c (c − 1) / 2 pairs; two people agree who give one row the same label, be it a tie or a rating.
    same = sum(given[:, a] & given[:, b] & (labels[:, a] == labels[:, b])
               for a, b in combinations(range(labels.shape[1]), 2))  # fmt: skip
    pairs_of = count * (count - 1) / 2
    annotators = float((same / np.maximum(pairs_of, 1))[several].mean()) if several.any() else None
    return JudgeCalibration(agreement, rows.bias(everything), slope, correlation, ece, annotators)


def _position(first: Floats, second: Floats) -> tuple[Interval, float]:
    """Return by how much the judge favours what it sees first, from the same event in both orders, and how often it does not."""
    from scipy.special import stdtrit

    # the same event in both orders: half of the difference is what the place adds
    half = (first - second) / 2
    middle = float(half.mean())
    reach = float(stdtrit(len(half) - 1, 0.5 + LEVEL / 2)) * float(half.std(ddof=1)) / math.sqrt(len(half))
    same = np.sign(first - 0.5) == np.sign(second - 0.5)
    return Interval(middle, middle - reach, middle + reach, LEVEL, "Student"), float(same.mean())


def _levels(values: Names) -> dict[str, NDArray[np.bool_]]:
    """Return the rows of each value of a column, or of the thirds of numbers with many values."""
    names = np.unique(values)
    if values.dtype.kind in "iuf" and len(names) > _LEVELS:
        low, high = np.quantile(values, [1 / 3, 2 / 3])
        return {
            f"up to {low:g}": values <= low, f"{low:g} to {high:g}": (values > low) & (values <= high),
            f"above {high:g}": values > high,
        }  # fmt: skip
    return {str(name): values == name for name in names}


def numbered_systems(systems: Any, rows: int) -> tuple[list[str], list[Integers]]:
    """Return the systems' names, and each row's system by number; of comparisons that of the first and of the second."""
    if systems is None:
        return ["all"], [np.zeros(rows, np.int64)]
    compared = isinstance(systems, tuple | list) and len(systems) == 2 and not isinstance(systems[0], str)
    columns = [_names_of_rows(one, "systems", rows) for one in (systems if compared else [systems])]
    names, code = np.unique(np.concatenate(columns).astype(str), return_inverse=True)
    parts = np.split(np.asarray(code, np.int64), len(columns))
    if compared and (parts[0] == parts[1]).any():
        raise refuse(
            "two systems in each comparison",
            f"{str(names[parts[0][parts[0] == parts[1]][0]])!r} with itself",
            "leave it out",
        )
    return [str(name) for name in names], parts


def _names_of_rows(values: Any, name: str, rows: int) -> Names:
    found: Names = as_array(values, name=name)
    if found.shape != (rows,):
        raise refuse(f"{name} ({rows},), one for each row", shown(found.shape), "pass one value for each row")
    if found.dtype.kind == "c" or (found.dtype == object and not all(isinstance(one, str | int) for one in found)):
        raise refuse(f"{name} as texts or numbers", "others", "pass one name or number for each row")
    return found.astype(str) if found.dtype == object else found


def judge_matrix(values: Any, name: str, *, missing: bool = False, rows: int | None = None) -> Floats:
    """Return (N, J) float64 in [0, 1], or −1 where there is none."""
    found = as_tensor(values, name=name).detach().cpu().double().numpy()
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.size or (rows is not None and len(found) != rows):
        expected = f"{name} with one row for each of judge's" if rows is not None else f"{name} (N,) or (N, J)"
        raise refuse(expected, shown(found.shape), "pass one value for each row, or one column for each of several")
    wrong = ~((found >= 0) & (found <= 1) | (missing & (found == -1)))
    if wrong.any():
        at = tuple(int(one) for one in np.argwhere(wrong)[0])
        allowed = "in [0, 1], or -1 for none" if missing else "in [0, 1]"
        raise refuse(
            f"{name} {allowed}", f"{found[at]:g} in row {at[0]}", "scale ratings: (score − lowest) / (highest − lowest)"
        )
    return found


def _log_odds_of_scores(p: Floats) -> Floats:
    held = np.clip(p, _CLIP, 1 - _CLIP)
    return np.asarray(np.log(held / (1 - held)))


def _told(one: Interval, sign: str = "") -> str:
    return f"{100 * one.estimate:{sign}.1f} % [{100 * one.low:{sign}.1f}, {100 * one.high:{sign}.1f}]"


def _needed(count: int | None) -> str:
    return "no affordable number of labels decides" if count is None else f"about {count:,} more labels decide"
