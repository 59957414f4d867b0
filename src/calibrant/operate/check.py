"""The deployment gate: limits on metrics that pass, fail, or lack evidence, by finite-sample confidence bounds; limits in a file."""

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import (
    check_mapping,
    check_number,
    refuse,
    shown,
)
from calibrant._core.config import json_data
from calibrant._core.constraints import checked
from calibrant._core.files import read_text
from calibrant._core.notebook import to_html
from calibrant._core.numerics import add_records, row_chunks
from calibrant._core.paths import as_path
from calibrant._core.paths import shown as printed
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data, need_predictions, refuse_dependent
from calibrant.data.predictions import Events, Predictions
from calibrant.errors import CalibrantError, FileFormatError, InputError, Remedy
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Error, Metric
from calibrant.operate.bounds import Moments, calibration_ends, mean_ends, share_ends
from calibrant.operate.rows import LABELLED_ROWS, Labelled, cost_gaps, values_of_rows
from calibrant.rows import RowSource
from calibrant.statistics.enough import FEWEST_COMPARED, scarce_errors
from calibrant.statistics.means import paired_test

Verdict = Literal["pass", "fail", "not enough evidence"]
Kind = Literal["maximum", "minimum", "no_worse"]

Floats = NDArray[np.float64]

LIMITED = ("accuracy", "error", "brier", "ece", "event-ece")
_BINNED = ("ece", "event-ece")
WORST = "worst-group-"
COST_GAP = "cost-gap"
_METRICS: dict[str, Metric] = {
    "accuracy": Accuracy(),
    "error": Error(),
    "brier": Brier(),
    "ece": ECE(),
    "event-ece": ECE(),
    "nll": NLL(),
}
_RANGE = {"accuracy": (0.0, 1.0), "error": (0.0, 1.0), "brier": (0.0, 2.0)}
_BINS = EqualWidth(15)
# what is refused: a limit without what it needs, and that without the limit
_BASELINE = (
    (
        "a baseline to be no worse than",
        "none",
        Remedy(
            "pass the predictions of the model before", command="add --baseline, the predictions of the model before"
        ),
    ),
    (
        "a limit on what may be worse beside a baseline",
        "none",
        Remedy("pass no_worse, or leave baseline out", command="add --no-worse, or leave --baseline out"),
    ),
)
_FEATURES = (
    ("features for a worst-group limit", "none", Remedy("pass features={'column': values}", command="add --by")),
    ("a worst-group limit beside features", "none", f"limit {WORST}ece, or leave features (--by) out"),
)
_NO_WORSE = Remedy("read both whole", command="name single files that fit in memory, or use --max and --min")
_BOTH = Remedy("pass both or neither", command="give both --costs and --max cost-gap=…")
_COSTS = (("costs with a limit of cost-gap", "one without the other", _BOTH),) * 2
DIRECTION = 0.025  # error probability of each line in each direction
TOGETHER = 0.05  # probability that any of the lines is decided wrongly
_WIDEST = 1e100  # range of changes: squares of wider ones leave the range of numbers, and say nothing
_ENOUGH = 1e9  # larger numbers of rows are not given as advice


@dataclass(frozen=True)
class BoundedFigure:
    """A value with bounds, each missed with probability at most α, and the centre to which they converge with more rows.

    ``more`` and ``note`` say how many more rows would give bounds, and why there are none.
    """

    value: float
    low: float
    high: float
    centre: float
    n: int
    more: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One limit with its verdict and bounds.

    Args:
        metric: Name of the metric; "worst-group-…" for the worst of several groups.
        kind: "maximum", "minimum" or "no_worse".
        limit: The largest, or smallest, value allowed; for "no_worse" the largest deterioration allowed.
        value: The value on these rows; for "no_worse" the change (positive is worse).
        low: Lower bound.
        high: Upper bound.
        n: Number of rows.
        verdict: "pass", "fail" or "not enough evidence".
        more_rows: About how many more rows would decide, if the estimate does not change; None if it is decided, or no number
            of rows would decide.
        note: A remark for the reader.
    """

    metric: str
    kind: Kind
    limit: float
    value: float
    low: float
    high: float
    n: int
    verdict: Verdict
    more_rows: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """The limit as text, such as "ece ≤ 0.03"."""
        if self.kind == "no_worse":
            return f"{self.metric} no worse than the baseline + {self.limit:g}"
        return f"{self.metric} {'≤' if self.kind == 'maximum' else '≥'} {self.limit:g}"

    @property
    def more(self) -> str:
        """How many more rows would decide, to two digits and beside those there are; empty if no number is known."""
        if self.more_rows is None:
            return ""
        times = self.more_rows / self.n
        beside = f" ({times:,.2g} times as many as these)" if 2 <= times < 100 else ""
        if times >= 100:
            beside = ", more than 100 times these: the limit is too near what the model reaches; take another, or leave it open"
        return f"about {float(f'{self.more_rows:.2g}'):,.0f} more rows would decide{beside}"

    def __str__(self) -> str:
        text = f"{self.name}: {self.verdict} ({self.value:.4f}, between {self.low:.4f} and {self.high:.4f}, n = {self.n:,})"
        if self.verdict == "not enough evidence":
            text += f"; {self.more or 'the value is too close to the limit for any number of rows to decide'}"
        return text + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True)
class Check:
    """The result of ``check``.

    Args:
        lines: One per limit.
        alpha: Error probability of each line in each direction.
    """

    lines: tuple[Line, ...]
    alpha: float

    _repr_html_ = to_html

    @property
    def verdict(self) -> Verdict:
        """ "fail" if a line fails, "pass" if all pass, else "not enough evidence"."""
        return verdict_of_all({line.verdict for line in self.lines})

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data; infinite bounds are null."""
        lines = [{"name": line.name, **json_data(line)} for line in self.lines]
        return {"verdict": self.verdict, "alpha": self.alpha, "lines": lines}

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(str(line) for line in self.lines)])


@dataclass(frozen=True)
class GateSums:
    """What the bounds of one metric are computed from: sums over rows, which add, in memory and on disk.

    Args:
        moments: Of the rows whose mean is the metric; of the ECE p − y by bin; of the cost gap realised − foreseen cost.
        confidences: (B,) Σ p by bin, of the ECE alone.
        ends: Least and largest cost that a decision may have, of the cost gap alone.
    """

    moments: Moments
    confidences: Floats | None = None
    ends: tuple[float, float] = (math.inf, -math.inf)

    @classmethod
    def of(cls, metric: str, data: Data, costs: Any = None) -> "GateSums":
        """Return the sums of labelled, independent rows.

        Args:
            metric: One of ``LIMITED``, or cost-gap.
            data: The rows.
            costs: (K, A) costs[true, action], for cost-gap.
        """
        if metric == COST_GAP:
            gaps, own = cost_gaps(data, costs, what="costs")
            return cls(Moments.of(gaps), ends=(float(own.min()), float(own.max())))
        if metric not in _BINNED:
            return cls(Moments.of(_rows_of_mean(metric, data)))
        # of an event every probability from 0 to 1 counts, of a decision its confidence
        if metric == "event-ece":
            of_event = _of_event(data)
            p, y = of_event.p.cpu(), of_event.y
        else:
            p, y = data.confidence.cpu(), data.correct
        index = np.asarray(_BINS.assign(p).numpy())
        x = np.asarray((p - y.cpu().double()).numpy())
        # Σ p by bin says how many errors are expected in it: bins of few have no part in the asymptotic bound
        confidences = np.bincount(index, p.double().numpy(), minlength=_BINS.bins).astype(np.float64)
        return cls(Moments.of(x, index, bins=_BINS.bins), confidences)

    def __add__(self, other: "GateSums") -> "GateSums":
        ends = (min(self.ends[0], other.ends[0]), max(self.ends[1], other.ends[1]))
        return add_records(self, other, ends=ends)


@checked
def check(
    predictions: Labelled | RowSource,
    *,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    no_worse: Mapping[str, float] | None = None,
    baseline: Labelled | None = None,
    features: Mapping[str, Any] | Sequence[str] | None = None,
    costs: Any = None,
) -> Check:
    """Decide each limit by its confidence bounds, not by its point estimate.

    A line passes if its bounds show that the limit is met, fails if they show that it is not, and is "not enough evidence"
    otherwise. Each decision is wrong with probability at most 2.5 %, and any of m lines with probability at most 5 % (each
    direction at 5 % / m, if that is less). This holds for any number of independent rows, except for the log-loss (Student's t,
    offered where both models decide at least 20 rows wrongly) and the parts of the ECE's lower bound that detect a gap over all
    rows beside spread confidences, or gaps of alternating signs, which are asymptotic.

    Args:
        predictions: Labelled, on rows on which neither model nor calibrator was fitted, one of each group; or a source of such rows,
            which is read once and need not fit in memory.
        maximum: Metric → largest value allowed. Metrics: accuracy, error, brier (0 to 2), ece (of the decision's confidence, 15
            equal-width bins), event-ece (of the second class's probability of two, which the decision's confidence hides where events
            are rare); with
            "worst-group-" before the name, of the worst group of every column in ``features``; and cost-gap, by how much the mean
            cost of decisions at ``costs`` may differ from the cost that the probabilities foresee.
        minimum: Metric → smallest value allowed.
        no_worse: Metric (also nll) → largest deterioration allowed against the baseline, ≥ 0.
        baseline: Predictions of the previous model; compared in pairs if they are of the same rows in the same order.
        features: Column name → (N,) group of each row, for the worst-group metrics; of a source the names of its features.
        costs: (K, A) costs[true, action], for cost-gap.

    Raises:
        InputError: For an unknown metric, a limit outside the metric's range, or rows that are not independent.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9] * 2000, [1] * 1800 + [0] * 200)
        >>> found = check(data, maximum={"ece": 0.05}, minimum={"accuracy": 0.95})
        >>> [line.verdict for line in found.lines]
        ['pass', 'fail']

    References:
        Fan, Grama & Liu 2015, lemma 4.1; Clopper & Pearson 1934; Hoeffding 1956.
    """
    requested = _requested({"maximum": maximum, "minimum": minimum, "no_worse": no_worse})
    columns = _checked_rows(predictions, baseline, features, costs, requested)
    # Bonferroni over the lines, once there are more than two of them
    alpha = min(DIRECTION, TOGETHER / len(requested))
    wanted = (tuple(dict.fromkeys(name for kind, name, _ in requested if kind != "no_worse")), columns, costs)
    # one path: sums of chunks are added, and in memory the rows are a single chunk
    if isinstance(predictions, RowSource):
        sums, rows, groups = predictions.fold(_of_stream, _joined, *wanted)
        _need_enough_groups(rows, groups)
    else:
        sums = _chunk_sums(predictions, *wanted)
    lines = []
    for kind, name, limit in requested:
        note = ""
        if kind == "no_worse":
            found, note = _change_and_remark(name, predictions, baseline, alpha=alpha)
        elif name.startswith(WORST):
            found_in = [key for key in sums if key[2] == name]
            found_in.sort(key=lambda key: (list(columns).index(key[0]), key[1]))
            named = {f"{column} = {value}": sums[column, value, name] for column, value, _ in found_in}
            found, note = _worst(name.removeprefix(WORST), named, alpha=alpha)
        else:
            found = bounded(name, sums["", "", name], alpha=alpha)
        lines.append(_line_of_limit(kind, name, limit, found, note))
    return Check(tuple(lines), alpha)


def _requested(given: Mapping[Kind, Mapping[str, float] | None]) -> list[tuple[Kind, str, float]]:
    """Return the kind, the metric and the value of each limit; at least one."""
    requested = [
        (kind, name, _check_limit(kind, name, limit))
        for kind, limits in given.items()
        for name, limit in check_mapping(limits, name=kind, example="{'ece': 0.03}").items()
    ]
    if not requested:
        remedy = Remedy("pass for example maximum={'ece': 0.03}", command="add for example --max ece=0.03")
        raise refuse("at least one limit", "none", remedy)
    return requested


def _checked_rows(
    predictions: Data | RowSource,
    baseline: Data | None,
    features: Any,
    costs: Any,
    requested: Sequence[tuple[Kind, str, float]],
) -> Any:
    """Refuse what a limit needs without it; return the columns of the worst groups."""
    names, streamed = [name for _, name, _ in requested], isinstance(predictions, RowSource)
    no_worse = any(kind == "no_worse" for kind, _, _ in requested)
    if streamed and no_worse:
        raise refuse("rows in memory beside a baseline, with which each is compared", "a source of rows", _NO_WORSE)
    columns = features or () if streamed else check_mapping(features, name="features", example="{'column': values}")
    for passed, needed, (without, alone) in (
        (baseline is not None, no_worse, _BASELINE),
        (bool(columns), any(name.startswith(WORST) for name in names), _FEATURES),
        (costs is not None, COST_GAP in names, _COSTS),
    ):
        if passed != needed:
            raise refuse(*(without if needed else alone))
    return columns


def _chunk_sums(data: Any, names: Sequence[str], columns: Mapping[str, Any], costs: Any) -> dict[Any, GateSums]:
    """Return (column, value, limit) → the sums of its rows; all rows have the column ""."""
    sums = {("", "", name): GateSums.of(name, data, costs) for name in names if not name.startswith(WORST)}
    worst = [name for name in names if name.startswith(WORST)]
    for column, value, part in _rows_by_value(data, columns):
        sums |= {(column, value, name): GateSums.of(name.removeprefix(WORST), part) for name in worst}
    return sums


# the sums of some chunks of a source, their number of rows, and the group of each row that has one
Streamed = tuple[dict[Any, GateSums], int, NDArray[np.int64]]


def _of_stream(data: Data, names: Sequence[str], columns: Sequence[str], costs: Any) -> Streamed:
    """Return the sums of one chunk of a source, whose features are the columns, its rows, and their groups."""
    LABELLED_ROWS.check(data, "predictions", "check")
    held = data.features or {}
    if missing := [name for name in columns if name not in held]:
        raise refuse(
            f"a feature {missing[0]!r} beside the rows", f"{sorted(held)}", "name columns feature:NAME in the files"
        )
    groups = np.empty(0, np.int64) if data.groups is None else data.groups.cpu().numpy()
    return _chunk_sums(data, names, {name: held[name] for name in columns}, costs), len(data), groups


def _joined(one: Streamed, other: Streamed) -> Streamed:
    """Return the sums of two chunks, of values in either."""
    sums, more = one[0], other[0]
    joined = sums | {key: sums[key] + own if key in sums else own for key, own in more.items()}
    return joined, one[1] + other[1], np.concatenate([one[2], other[2]])


def _need_enough_groups(rows: int, groups: NDArray[np.int64]) -> None:
    """Raise, as for rows in memory, unless each row of a source is the only one of its group; and if only some have one."""
    if 0 < len(groups) < rows:
        got = f"them beside {len(groups):,} of {rows:,} rows"
        raise refuse("groups in every file or in none", got, "write the column to all files, or leave it out")
    if 0 < (different := len(np.unique(groups))) < rows:
        refuse_dependent(rows, different, argument="predictions")


def _change_and_remark(metric: str, data: Any, baseline: Any, *, alpha: float) -> tuple[BoundedFigure, str]:
    """Return how much worse the metric is than the baseline's, with a remark on how they are compared."""
    paired = same_rows(data, baseline)
    found = change_against(metric, data, baseline, paired=paired, alpha=alpha)
    note = "" if paired else "the baseline holds other rows, so they are compared unpaired"
    note += "; Welch's t" if metric == "nll" and not paired else ""
    return found, "; ".join(part for part in (note, found.note) if part)


def verdict_of_bounds(low: float, high: float, limit: float, *, minimum: bool) -> Verdict:
    """Return the verdict of a figure's bounds: not the estimate decides, so that at the limit either is wrong with at most α."""
    kept, broken = (low >= limit, high < limit) if minimum else (high <= limit, low > limit)
    return "fail" if broken else "pass" if kept else "not enough evidence"


def verdict_of_all(verdicts: Set[str]) -> Verdict:
    """Return the verdict of several limits: one that fails decides, and all must pass."""
    if "fail" in verdicts:
        return "fail"
    return "pass" if verdicts == {"pass"} else "not enough evidence"


def _line_of_limit(kind: Kind, metric: str, limit: float, found: BoundedFigure, note: str) -> Line:
    verdict = verdict_of_bounds(found.low, found.high, limit, minimum=kind == "minimum")
    more = _more_rows(found, limit) if verdict == "not enough evidence" else None
    if more is not None and metric in _BINNED and f"{found.centre:.4f}" != f"{found.value:.4f}":
        # noise of the bins lifts the value, and goes as rows are added: a reader who counts from the value is misled
        counted = f"counted from {found.centre:.4f}, the value without the noise of its bins"
        note = f"{counted}; {note}" if note else counted
    return Line(metric, kind, limit, found.value, found.low, found.high, found.n, verdict, more, note)


def _more_rows(found: BoundedFigure, limit: float) -> int | None:
    """Return how many more rows would move the bound that crosses the limit onto it, if widths shrink as n^−½."""
    if found.more is not None:
        return found.more
    # the estimate converges to its centre, and the bound approaches it as n^−½
    distance = limit - found.centre
    width = (found.high if distance > 0 else found.low) - found.centre
    if distance == 0 or width == 0 or not math.isfinite(width):
        return None
    more = found.n * ((width / distance) ** 2 - 1)
    return None if not more < _ENOUGH else max(1, math.ceil(more))


def _worst(metric: str, parts: dict[str, GateSums], *, alpha: float) -> tuple[BoundedFigure, str]:
    """Return the worst value over groups; to fail, one group is tested at α / groups, to pass, every group at α."""
    pick, near, far = (max, "low", "high") if better_of(metric) == "lower" else (min, "high", "low")
    # one bad group is enough to fail, so m groups share α; passing claims something of all, each at α (intersection–union)
    wide = {name: bounded(metric, part, alpha=alpha / len(parts)) for name, part in parts.items()}
    each = {name: bounded(metric, part, alpha=alpha) for name, part in parts.items()}
    worst = pick(wide, key=lambda name: wide[name].value)
    last = pick(each, key=lambda name: getattr(each[name], far))
    low, high = sorted((pick(getattr(found, near) for found in wide.values()), getattr(each[last], far)))
    note = f"worst group {worst} ({wide[worst].n:,} rows)"
    if last != worst:
        note += f", least certain {last} ({each[last].n:,} rows)"
    return BoundedFigure(wide[worst].value, low, high, each[last].centre, each[last].n), note


def _rows_by_value(data: Data, features: Mapping[str, Any]) -> Iterator[tuple[str, Any, Data]]:
    """Yield column, value and the data of its rows, for every value of every column."""
    for column, values in features.items():
        name = str(column)
        array = values_of_rows(values, name=name, rows=len(data))
        known, codes = np.unique(array.astype(str) if array.dtype == object else array, return_inverse=True)
        if len(known) > 1000:
            raise refuse(f"groups in {column}", f"{len(known)} different values", "bin the column first")
        for code, value in enumerate(known):
            yield name, value, data[torch.from_numpy(np.nonzero(codes == code)[0])]


def same_rows(a: Data, b: Data) -> bool:
    """Return whether ``a`` and ``b`` may be of the same rows: equally many, with the same labels in the same order."""
    if len(a) != len(b) or type(a) is not type(b):
        return False
    return a.labels is not None and b.labels is not None and torch.equal(a.labels.cpu(), b.labels.cpu())


def _check_limit(kind: Kind, name: str, limit: float) -> float:
    if name == COST_GAP and kind == "maximum":
        return check_number(limit, name=f"the limit of {name}", low=0)
    metric = name.removeprefix(WORST)
    known = (*LIMITED, "nll") if kind == "no_worse" else LIMITED
    if name == "nll" and kind != "no_worse":
        raise InputError(
            f"a bounded metric to limit ({', '.join(LIMITED)})",
            "nll, whose mean has no bound that holds for every model",
            Remedy(
                "compare it with a baseline (no_worse), or limit brier",
                command="compare it with a baseline (--no-worse), or limit brier",
            ),
        )
    if metric not in known or (kind == "no_worse" and name != metric):
        worst = "" if kind == "no_worse" else f", or {WORST} before one of them"
        raise refuse(f"a metric to limit ({', '.join(known)}{worst})", repr(name), "choose one of these")
    if kind != "no_worse" and (better_of(metric) == "lower") != (kind == "maximum"):
        limited, other = ("largest", "minimum") if kind == "maximum" else ("smallest", "maximum")
        why = f", since {better_of(metric)} is better"
        remedy = Remedy(f"limit it by {other}{why}", command=f"limit it by --{other[:3]}{why}")
        raise refuse(f"a limit on {name} that keeps it from being worse", f"the {limited} allowed", remedy)
    return check_number(limit, name=f"the limit of {name}", low=0, high=2 if metric == "brier" else 1)


def _of_event(data: Data) -> Events:
    """Return the probability and the outcome of the second of two classes."""
    if isinstance(data, Events):
        return data
    predictions = need_predictions(data, metric=ECE())
    if predictions.classes != 2:
        remedy = "limit ece, of the decision's confidence"
        raise refuse("two classes for event-ece", str(predictions.classes), remedy)
    return predictions.one_vs_rest(1)


def better_of(metric: str) -> Literal["lower", "higher", "zero"]:
    """Return whether a lower or a higher value of ``metric`` is better."""
    return _METRICS[metric.removeprefix(WORST)].better


def bounded(metric: str, sums: GateSums, *, alpha: float) -> BoundedFigure:
    """Return the value of ``metric`` with its bounds.

    Args:
        metric: Accuracy and error have exact binomial bounds; brier, ece and the cost gap, |realised − foreseen| of the mean cost of
            the decisions of least expected cost, those of ``operate.bounds``.
        sums: Of the rows.
        alpha: Error probability of each bound.
    """
    moments = sums.moments
    n = round(float(moments.count.sum()))
    mean = value = centre = float(moments.total.sum()) / n
    if sums.confidences is not None:
        value, centre = float(np.abs(moments.total).sum()) / n, _centre(moments)
        ends = calibration_ends(moments, confidences=sums.confidences, alpha=alpha)
    elif metric == COST_GAP:
        # realised − foreseen cost of a row lies within ± the range of costs; not 0, by which bets are scaled
        reach = max(sums.ends[1] - sums.ends[0], 1e-300)
        low, high = mean_ends(moments, low=-reach, high=reach, alpha=alpha)
        value = centre = abs(mean)
        ends = max(0.0, low, -high), max(abs(low), abs(high))  # from 0 where the difference may have either sign
    elif metric == "brier":
        ends = mean_ends(moments, low=0, high=2, alpha=alpha)
    else:
        ends = share_ends(round(value * n), n, alpha=alpha)
    return BoundedFigure(value, min(ends[0], value), max(ends[1], value), centre, n)


def change_against(metric: str, data: Data, baseline: Data, *, paired: bool, alpha: float) -> BoundedFigure:
    """Return how much worse ``data`` is than ``baseline`` (positive is worse), with bounds.

    Args:
        metric: One of ``LIMITED``, or nll.
        data: Predictions of the new model.
        baseline: Predictions of the old model.
        paired: Whether both are of the same rows in the same order.
        alpha: Error probability of each bound.

    Raises:
        InputError: For an infinite log-loss, or log-losses over other classes.
    """
    if metric == "nll":
        models = (need_predictions(rows, metric=NLL()) for rows in (data, baseline))
        return _change_of_log_loss(*models, paired=paired, alpha=alpha)
    sign = 1 if better_of(metric) == "lower" else -1
    n = min(len(data), len(baseline))
    if metric in _BINNED or not paired:
        # two intervals at α / 2 each: the difference of their ends is missed with at most α
        new, old = (bounded(metric, GateSums.of(metric, rows), alpha=alpha / 2) for rows in (data, baseline))
        ends = sorted((sign * (new.low - old.high), sign * (new.high - old.low)))
        return BoundedFigure(sign * (new.value - old.value), ends[0], ends[1], sign * (new.centre - old.centre), n)
    rows = sign * (_rows_of_mean(metric, data) - _rows_of_mean(metric, baseline))
    reach = _RANGE[metric][1]
    low, high = mean_ends(Moments.of(rows), low=-reach, high=reach, alpha=alpha)
    return BoundedFigure(float(rows.mean()), low, high, float(rows.mean()), n)


def _change_of_log_loss(new: Predictions, old: Predictions, *, paired: bool, alpha: float) -> BoundedFigure:
    """Return how much larger the mean log-loss is than the old model's, with bounds; ``change_against`` says the rest."""
    losses = [model.nll for model in (new, old)]  # not NLL().rows, which would warn before the error
    if infinite := next(filter(None, (int((~torch.isfinite(rows)).sum()) for rows in losses)), 0):
        got = f"an infinite one in {infinite} rows"
        raise refuse("a finite log-loss", got, "give the calibrator a floor, or limit brier instead")
    if new.classes != old.classes:
        expected = f"a baseline over the same classes, K = {new.classes}, for its log-loss"
        raise refuse(expected, f"{old.classes}", "compare one task, or their accuracy or brier")
    a, b = (np.asarray(rows.cpu().double().numpy()) for rows in losses)
    n, change = min(len(new), len(old)), float(a.mean() - b.mean())
    alike = paired and bool((a == b).all())
    if scarce := (0.0, n) if alike else scarce_errors(new, old, loss=NLL().of_labels if paired else None):
        seen, enough = scarce
        note = f"{FEWEST_COMPARED} wrong decisions that tell log-losses apart are needed, {math.floor(seen)} were seen"
        low, high = _range_of_change(new, old) if paired else (-math.inf, math.inf)
        if 0 < high - low < _WIDEST:  # what a label could change bounds the mean
            note += f"; of rows not seen none is taken to change by more than {max(high, -low):.3g}"
            low, high = mean_ends(Moments.of(a - b), low=low, high=high, alpha=alpha)
        return BoundedFigure(change, low, high, change, n, max(enough - n, 1), note)
    if not paired:
        return _change_of_means(a, b, alpha=alpha)
    error = _expected_error(new, old, change)
    test = paired_test(torch.from_numpy(a - b), level=1 - 2 * alpha, least_error=error)[0]
    return BoundedFigure(change, test.low, test.high, change, n)


def _range_of_change(new: Predictions, old: Predictions) -> tuple[float, float]:
    """Return the least and the largest change in log-loss that a label of any of the rows could show.

    Rows that are not seen are to change no more. Where few rows change at all, or one by far the most, these cannot speak for others:
    then it is as much as the largest loss that a label of these rows would have.
    """
    ends, reach, largest = [], [], 0.0
    for rows in row_chunks(len(new), new.classes):
        logs = old.log_probs_in(rows), new.log_probs_in(rows).to(old.logits.device)
        change_of = logs[0] - logs[1]
        known = torch.where(change_of.isnan(), math.inf, change_of)  # of probability 0 in both
        ends.append(torch.stack(known.aminmax()).cpu())
        reach.append(known.abs().amax(dim=1).double().cpu())
        largest = max(largest, *(-float(one.amin()) for one in logs))
    found, size = torch.stack(ends).double(), torch.cat(reach)
    low, high = float(found[:, 0].min()), float(found[:, 1].max())
    # (Σ s)² / Σ s²: so many rows of equal change would vary as much
    telling = float(size.sum().square() / size.square().sum().clamp_min(1e-300))
    return (low, high) if telling >= FEWEST_COMPARED else (min(low, -largest), max(high, largest))


def _expected_error(new: Predictions, old: Predictions, mean: float) -> float:
    """Return the larger of the standard errors of the ``mean`` change in log-loss that both models' probabilities foresee.

    Where a sample holds few of the largest changes the error seen is too small, and the sharper model passes too often.
    """
    squares = torch.zeros(2, dtype=torch.float64)
    for rows in row_chunks(len(new), new.classes):
        logs = torch.stack([model[rows].log_probs.double().cpu() for model in (new, old)])
        change_of = logs[1] - logs[0] - mean
        # a label of probability 0 is not expected
        squares += (logs.exp() * torch.where(change_of.isfinite(), change_of, 0.0).square()).sum(dim=(1, 2))
    return math.sqrt(float(squares.max())) / len(new)


def _change_of_means(new: Floats, old: Floats, *, alpha: float) -> BoundedFigure:
    """Return the change of an unbounded mean between other rows, with asymptotic bounds by Welch's t."""
    from scipy.special import stdtrit

    # Welch: variances of both means, with Satterthwaite's degrees of freedom
    parts = [float(rows.var(ddof=1)) / len(rows) for rows in (new, old)]
    shares = [part**2 / (len(rows) - 1) for part, rows in zip(parts, (new, old), strict=True)]
    freedom = sum(parts) ** 2 / sum(shares) if sum(shares) > 0 else 1.0
    mean = float(new.mean() - old.mean())
    half = float(stdtrit(freedom, 1 - alpha)) * math.sqrt(sum(parts))
    return BoundedFigure(mean, mean - half, mean + half, mean, min(len(new), len(old)))


def _rows_of_mean(metric: str, data: Data) -> Floats:
    """Return the rows (N,) whose mean is ``metric``."""
    rows: Tensor = _METRICS[metric].rows(data)  # type: ignore[attr-defined]
    return np.asarray(rows.cpu().double().numpy())


def _centre(moments: Moments) -> float:
    """Return the calibration error with the sampling variance subtracted from each bin's squared gap."""
    n = moments.count.sum()
    # |Σ x|² is too large by Σ x² − (Σ x)² / n on average; where nothing is left the bin has no gap to show
    variance = np.maximum(moments.squares - moments.total**2 / np.maximum(moments.count, 1), 0)
    return float(np.sqrt(np.maximum(moments.total**2 - variance, 0)).sum() / n)


_TABLES = ("maximum", "minimum", "no_worse")


@dataclass(frozen=True)
class Policy:
    """Limits of a gate.

    Args:
        maximum: Metric → largest value allowed.
        minimum: Metric → smallest value allowed.
        no_worse: Metric → largest deterioration allowed against the baseline.
        by: Columns for the worst-group metrics.

    Examples:
        >>> Policy.from_text("[maximum]\\nece = 0.03").maximum
        {'ece': 0.03}
    """

    maximum: dict[str, float] = field(default_factory=dict)
    minimum: dict[str, float] = field(default_factory=dict)
    no_worse: dict[str, float] = field(default_factory=dict)
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for table in _TABLES:
            limits = getattr(self, table)
            if not isinstance(limits, Mapping):
                remedy = f"write [{table}] and below it metric = number"
                raise refuse(f"[{table}] in the policy as a table", shown(limits), remedy)
            for metric, limit in limits.items():
                name = f"{metric} under [{table}] in the policy"
                if isinstance(limit, str):
                    raise refuse(f"{name} as a number", shown(limit), f"write for example {metric} = 0.03")
                check_number(limit, name=name)
        if not isinstance(self.by, tuple | list) or not all(isinstance(column, str) for column in self.by):
            raise refuse("by in the policy as names of columns", shown(self.by), 'write by = ["column"]')

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Policy":
        """Read a policy file.

        Args:
            path: A TOML file.

        Raises:
            FileFormatError: If it cannot be read.
            InputError: If it contains anything but limits.
        """
        place = as_path(path)
        text = read_text(place)
        try:
            return cls.from_text(text)
        except CalibrantError as error:
            raise error.at(printed(place)) from error

    @classmethod
    def from_text(cls, text: str) -> "Policy":
        """Read a policy from TOML ``text``."""
        try:
            found = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number with too many digits
            raise FileFormatError("TOML in the policy", f"{error}", "correct it (a number is 0.03, not .03)") from error
        by = found.pop("by", ())
        unknown = sorted(set(found) - set(_TABLES))
        if unknown:
            tables = ", ".join(f"[{table}]" for table in _TABLES)
            raise refuse(f"the tables {tables} and by in the policy", repr(unknown[0]), "rename or remove it")
        policy = cls(**found, by=(by,) if isinstance(by, str) else tuple(by) if isinstance(by, list) else by)
        if not (policy.maximum or policy.minimum or policy.no_worse):
            remedy = "write for example [maximum] and below it ece = 0.03"
            raise refuse("at least one limit in the policy", "none", remedy)
        return policy

    def updated(self, other: "Policy") -> "Policy":
        """Return these limits with those of ``other`` added; where both limit a metric, ``other`` wins."""
        return Policy(
            self.maximum | other.maximum,
            self.minimum | other.minimum,
            self.no_worse | other.no_worse,
            tuple(dict.fromkeys((*self.by, *other.by))),
        )


def read_limits(texts: Sequence[str], *, option: str) -> dict[str, float]:
    """Return {metric: number} from the texts "metric=number" passed to ``option``.

    Raises:
        InputError: If a text has another form, or a metric has two limits.
    """
    limits: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if name.strip() in limits:
            raise InputError(f"one {option} of {name.strip()}", "two", "keep one of them")
        try:
            limits[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name.strip() or not math.isfinite(limits[name.strip()]):
            raise InputError(f"{option} METRIC=NUMBER", f"{text!r}", f"write for example {option} ece=0.03")
    return limits
