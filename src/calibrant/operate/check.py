"""The deployment gate: limits on metrics that pass, fail, or lack evidence, by finite-sample confidence bounds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from calibrant._core.arguments import check_mapping
from calibrant._core.check import as_array, check_number, refuse
from calibrant.data.checks import Data
from calibrant.errors import InputError, Remedy
from calibrant.operate.measures import COST_GAP, LIMITED, WORST, Bounded, better_of, bounded, change, cost_gap
from calibrant.operate.rows import need_independent

__all__ = ["Check", "Line", "check"]

Verdict = Literal["pass", "fail", "not enough evidence"]
Kind = Literal["maximum", "minimum", "no_worse"]

DIRECTION = 0.025  # error probability of each line in each direction
TOGETHER = 0.05  # probability that any of the lines is decided wrongly
_ENOUGH = 1e9  # larger numbers of rows are not given as advice


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

    def __str__(self) -> str:
        text = f"{self.name}: {self.verdict} ({self.value:.4f}, between {self.low:.4f} and {self.high:.4f}, n = {self.n:,})"
        if self.verdict == "not enough evidence":
            if self.more_rows is None:
                text += "; the value is too close to the limit for any number of rows to decide"
            else:
                text += f"; about {self.more_rows:,} more rows would decide"
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

    @property
    def verdict(self) -> Verdict:
        """ "fail" if a line fails, "pass" if all pass, else "not enough evidence"."""
        verdicts = {line.verdict for line in self.lines}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "not enough evidence"

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data; infinite bounds are null."""
        lines = [{"name": line.name, **asdict(line)} for line in self.lines]
        finite = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in x.items()} for x in lines
        ]
        return {"verdict": self.verdict, "alpha": self.alpha, "lines": finite}

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(str(line) for line in self.lines)])


def check(
    predictions: Data,
    *,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    no_worse: Mapping[str, float] | None = None,
    baseline: Data | None = None,
    features: Mapping[str, Any] | None = None,
    costs: Any = None,
) -> Check:
    """Decide each limit by its confidence bounds, not by its point estimate.

    A line passes if its bounds show that the limit is met, fails if they show that it is not, and is "not enough evidence"
    otherwise. Each decision is wrong with probability at most 2.5 %, and any of m lines with probability at most 5 % (each
    direction at 5 % / m, if that is less). This holds for any number of independent rows, except for the log-loss (Student's t,
    offered where both models decide at least 20 rows wrongly) and the parts of the ECE's lower bound that detect a gap over all
    rows beside spread confidences, or gaps of alternating signs, which are asymptotic.

    Args:
        predictions: Labelled, on rows on which neither model nor calibrator was fitted.
        maximum: Metric → largest value allowed. Metrics: accuracy, error, brier (0 to 2), ece (15 equal-width bins); with
            "worst-group-" before the name, of the worst group of every column in ``features``; and cost-gap, by how much the mean
            cost of decisions at ``costs`` may differ from the cost that the probabilities foresee.
        minimum: Metric → smallest value allowed.
        no_worse: Metric (also nll) → largest deterioration allowed against the baseline, ≥ 0.
        baseline: Predictions of the previous model; compared in pairs if they are of the same rows in the same order.
        features: Column name → (N,) group of each row, for the worst-group metrics.
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
    requested: list[tuple[Kind, str, float]] = []
    given: tuple[tuple[Kind, Mapping[str, float] | None], ...] = (
        ("maximum", maximum),
        ("minimum", minimum),
        ("no_worse", no_worse),
    )
    for kind, limits in given:
        named = check_mapping(limits, name=kind, example="{'ece': 0.03}")
        requested += [(kind, name, _check_limit(kind, name, limit)) for name, limit in named.items()]
    if not requested:
        raise refuse(
            "at least one limit", "none", "pass for example maximum={'ece': 0.03} (in the shell: --max ece=0.03)"
        )
    need_independent(predictions, name="predictions")
    _check_baseline(baseline, needed=bool(no_worse))
    alpha = min(DIRECTION, TOGETHER / len(requested))
    columns = check_mapping(features, name="features", example="{'column': values}")
    worst = any(name.startswith(WORST) for _, name, _ in requested)
    if columns and not worst:
        raise refuse("a worst-group limit beside features", "none", f"limit {WORST}ece, or leave features (--by) out")
    parts = _parts(predictions, columns) if worst else {}
    if (costs is None) == any(name == COST_GAP for _, name, _ in requested):
        got = "one without the other"
        raise refuse(
            "costs with a limit of cost-gap",
            got,
            Remedy("pass both or neither", command="give both --costs and --max cost-gap=…"),
        )
    return Check(
        tuple(
            _decided(kind, name, limit, cost_gap(predictions, costs, alpha=alpha), "")
            if name == COST_GAP
            else _line(kind, name, limit, predictions, baseline, parts, alpha=alpha)
            for kind, name, limit in requested
        ),
        alpha,
    )


def _line(
    kind: Kind, metric: str, limit: float, data: Data, baseline: Data | None, parts: dict[str, Data], *, alpha: float
) -> Line:
    if kind == "no_worse" and baseline is not None:
        paired = same_rows(data, baseline)
        found, worst = change(metric, data, baseline, paired=paired, alpha=alpha), ""
        note = "" if paired else "the baseline holds other rows, so they are compared unpaired"
        if metric == "nll" and not paired:
            note += "; Welch's t"
        note = "; ".join(part for part in (note, found.note) if part)
        return _decided(kind, metric, limit, found, note)
    if metric.startswith(WORST):
        found, worst = _worst(metric.removeprefix(WORST), parts, alpha=alpha)
        return _decided(kind, metric, limit, found, worst)
    return _decided(kind, metric, limit, bounded(metric, data, alpha=alpha), "")


def _decided(kind: Kind, metric: str, limit: float, found: Bounded, note: str) -> Line:
    kept, broken = found.high <= limit, found.low > limit
    if kind == "minimum":
        kept, broken = found.low >= limit, found.high < limit
    verdict: Verdict = "fail" if broken else "pass" if kept else "not enough evidence"
    more = None if kept or broken else _more_rows(found, limit)
    return Line(metric, kind, limit, found.value, found.low, found.high, found.n, verdict, more, note)


def _more_rows(found: Bounded, limit: float) -> int | None:
    """Return how many more rows would move the bound that crosses the limit onto it, if widths shrink as n^−½."""
    if found.more is not None:
        return found.more
    distance = limit - found.centre
    width = (found.high if distance > 0 else found.low) - found.centre
    if distance == 0 or width == 0 or not math.isfinite(width):
        return None
    more = found.n * ((width / distance) ** 2 - 1)
    return None if not more < _ENOUGH else max(1, math.ceil(more))


def _worst(metric: str, parts: dict[str, Data], *, alpha: float) -> tuple[Bounded, str]:
    """Return the worst value over groups; to fail, one group is tested at α / groups, to pass, every group at α."""
    lower = better_of(metric) == "lower"
    wide = {name: bounded(metric, part, alpha=alpha / len(parts)) for name, part in parts.items()}
    each = {name: bounded(metric, part, alpha=alpha) for name, part in parts.items()}
    pick = max if lower else min
    worst = pick(wide, key=lambda name: wide[name].value)
    if lower:
        low, last = max(found.low for found in wide.values()), max(each, key=lambda name: each[name].high)
        high = each[last].high
    else:
        high, last = min(found.high for found in wide.values()), min(each, key=lambda name: each[name].low)
        low = each[last].low
    note = f"worst group {worst} ({wide[worst].n:,} rows)"
    if last != worst:
        note += f", least certain {last} ({each[last].n:,} rows)"
    return Bounded(wide[worst].value, low, high, each[last].centre, each[last].n), note


def _parts(data: Data, features: Mapping[str, Any]) -> dict[str, Data]:
    """Return "column = value" → the data of its rows, for every value of every column."""
    if not features:
        raise refuse(
            "features for a worst-group limit", "none", Remedy("pass features={'column': values}", command="add --by")
        )
    parts: dict[str, Data] = {}
    for column, values in features.items():
        name = str(column)
        array = as_array(values, name=name)
        if array.shape != (len(data),):
            raise refuse(f"{column} of shape ({len(data)},)", f"shape {array.shape}", "pass one value per row")
        known, codes = np.unique(array.astype(str) if array.dtype == object else array, return_inverse=True)
        if len(known) > 1000:
            raise refuse(f"groups in {column}", f"{len(known)} different values", "bin the column first")
        for code, value in enumerate(known):
            parts[f"{column} = {value}"] = data[torch.from_numpy(np.nonzero(codes == code)[0])]
    return parts


def same_rows(a: Data, b: Data) -> bool:
    """Return whether ``a`` and ``b`` may be of the same rows: equally many, with the same labels in the same order."""
    if len(a) != len(b) or type(a) is not type(b):
        return False
    if a.labels is None or b.labels is None:
        return False
    return torch.equal(a.labels.cpu(), b.labels.cpu())


def _check_limit(kind: Kind, name: str, limit: float) -> float:
    if name == COST_GAP and kind == "maximum":
        return check_number(limit, name=f"the limit of {name}", low=0)
    metric = name.removeprefix(WORST)
    known = (*LIMITED, "nll") if kind == "no_worse" else LIMITED
    if name == "nll" and kind != "no_worse":
        raise InputError(
            f"a bounded metric to limit ({', '.join(LIMITED)})",
            "nll, whose mean has no bound that holds for every model",
            "compare it with a baseline (no_worse, in the shell --no-worse), or limit brier",
        )
    if metric not in known or (kind == "no_worse" and name != metric):
        worst = "" if kind == "no_worse" else f", or {WORST} before one of them"
        raise refuse(f"a metric of {', '.join(known)}{worst} in {kind}", repr(name), "choose one of these")
    if kind != "no_worse" and (better_of(metric) == "lower") != (kind == "maximum"):
        other = "minimum" if kind == "maximum" else "maximum"
        raise refuse(
            f"{name} under {other}", f"it under {kind}", f"limit it by {other}, since {better_of(metric)} is better"
        )
    return check_number(limit, name=f"the limit of {name}", low=0, high=2 if metric == "brier" else 1)


def _check_baseline(baseline: Data | None, *, needed: bool) -> None:
    if needed and baseline is None:
        raise refuse(
            "a baseline to be no worse than",
            "none",
            "pass the predictions of the model before (in the shell: --baseline)",
        )
    if baseline is not None:
        need_independent(baseline, name="baseline")
        if not needed:
            raise refuse("a limit in no_worse beside a baseline", "none", "pass no_worse, or leave baseline out")
