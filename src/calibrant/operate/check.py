"""The deployment gate: each limit on a metric passes, fails or lacks evidence, based on confidence bounds.

A bound decides, never the point estimate. An undecided limit comes with the number of further rows that would decide it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.config import json_data
from calibrant._core.notebook import to_html
from calibrant._core.numerics import row_chunks
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data, require_predictions
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.predictions import Predictions, check_class_order
from calibrant.errors import InputError, NoIntervalError
from calibrant.evaluate.partitions import feature_columns, groups_of
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Error, MeanMetric
from calibrant.operate.bounds import Line, mean_ends, share_ends
from calibrant.operate.rows import names_of, require_window
from calibrant.statistics import interval
from calibrant.statistics.paired import FEWEST_COMPARED, paired_test, scarce_errors

Verdict = Literal["pass", "fail", "not enough evidence"]
Floats = NDArray[np.float64]

SMALLER = ("error", "brier", "ece", "event-ece")  # metrics for which smaller is better
LIMITED = {"maximum": SMALLER, "minimum": ("accuracy",), "no_worse": ("accuracy", *SMALLER, "nll")}
_KINDS = {"maximum": "a maximum", "minimum": "a minimum", "no_worse": "a limit against a baseline"}
_OPTIONS = {
    "maximum": "--max",
    "minimum": "--min",
    "no_worse": "--no-worse",
    "baseline": "--baseline",
    "features": "--by",
}
WORST = "worst-group-"
DIRECTION = 0.025  # error probability of each limit in each direction
TOGETHER = 0.05  # probability that any of the limits is decided wrongly
_MEANS: dict[str, MeanMetric] = {"accuracy": Accuracy(), "error": Error(), "brier": Brier()}
_FEW = 50  # with fewer rows, the intervals for the ECE and the Brier score were not simulated at these levels
_BINS = 4  # number of bins for a numeric column that defines groups
_WIDEST = 1e100  # widest range of changes; the squares of larger changes would overflow
_POWER = 0.8  # probability that the advised number of rows leads to a decision
_ENOUGH = 1e9  # largest number of rows that is ever advised


@dataclass(frozen=True)
class Check:
    """The result of ``check``.

    Args:
        lines: One line per limit.
        alpha: Error probability of each line in each direction.
    """

    lines: tuple[Line, ...]
    alpha: float

    _repr_html_ = to_html

    @property
    def verdict(self) -> Verdict:
        """The verdict: "fail" if any line fails, "pass" if all lines pass, else "not enough evidence"."""
        verdicts = {line.verdict for line in self.lines}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "not enough evidence"

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data; infinite bounds become null."""
        return {"verdict": self.verdict, **json_data(self)}

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(str(line) for line in self.lines)])


def check(
    predictions: Data,
    *,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    no_worse: Mapping[str, float] | None = None,
    baseline: Data | None = None,
    features: Sequence[str] | Mapping[str, Any] = (),
) -> Check:
    """Decide each limit by confidence bounds instead of point estimates.

    A limit passes if the bounds show that it is met, and fails if they show that it is not met. Otherwise its verdict is "not
    enough evidence". Each decision is wrong with probability at most 2.5 %, and any of m decisions with probability at most 5 %
    (with more than two limits, each direction is tested at 5 % / m). Accuracy and error have exact bounds. With at least 50 rows,
    the ECE and the Brier score have the bounds of their intervals (``statistics.interval``), whose coverage was simulated; with
    fewer rows, or if there is no interval, they have bounds that are valid for every distribution. A change in a mean is tested
    with Student's t, provided that both models decide at least 20 rows wrongly. If both models give the same predictions in every
    row, the change is exactly 0. A comparison with a baseline says nothing about kinds of rows that are not in the sample.

    Args:
        predictions: Labelled predictions without weights, for rows on which neither the model nor a calibrator was fitted. Rows
            must be independent, with at most one row from each group.
        maximum: The largest allowed value for each metric. Metrics are accuracy, error, brier (0 to 2), ece (of the decision's
            confidence, with 15 equal-width bins) and event-ece (of the probability of the second of two classes; if this class
            is rare, the decision's confidence hides this error). The prefix "worst-group-" means the worst group over all
            columns in ``features``.
        minimum: The smallest allowed value for each metric.
        no_worse: For each metric (including nll), the largest allowed deterioration relative to the baseline, ≥ 0.
        baseline: Predictions of the previous model for the same rows in the same order.
        features: The columns for the worst-group metrics: names of features in the predictions, or a dict from names to columns
            (N,). Each category is a group; a numeric column is cut into four groups of about equal size.

    Returns:
        The verdict, with one line per limit.

    Raises:
        InputError: If a metric is unknown, a limit lies outside the range of its metric, or the rows are not independent.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9] * 2000, [1] * 1800 + [0] * 200)
        >>> found = check(data, maximum={"ece": 0.05}, minimum={"accuracy": 0.95})
        >>> [line.verdict for line in found.lines]
        ['pass', 'fail']

    References:
        Fan, Grama & Liu 2015, lemma 4.1; Clopper & Pearson 1934; Hoeffding 1956.
    """
    rows = require_window(predictions, what="check")
    given = (("maximum", maximum or {}), ("minimum", minimum or {}), ("no_worse", no_worse or {}))
    limits = [(kind, metric, limit) for kind, of_metrics in given for metric, limit in of_metrics.items()]
    for kind, metric, limit in limits:
        _check_limit(kind, metric, limit)
    if not limits:
        raise InputError(f"check needs at least one limit, such as a maximum of 0.03 for ece ({_argument('maximum')})")
    if no_worse and baseline is None:
        raise InputError(f"a limit against a baseline needs the previous model's predictions ({_argument('baseline')})")
    if baseline is not None and not no_worse:
        raise InputError(f"a baseline needs a limit on how much worse a metric may be ({_argument('no_worse')})")
    of_worst = any(metric.startswith(WORST) for _, metric, _ in limits)
    if of_worst and not len(features):
        raise InputError(f"a limit on the worst group needs the columns that define groups ({_argument('features')})")
    if len(features) and not of_worst:
        raise InputError("the columns that define groups need a limit on the worst group, such as worst-group-ece=0.1")
    before = None if baseline is None else _same_rows(require_window(baseline, what="check"), rows)
    # Bonferroni correction for more than two lines
    alpha = min(DIRECTION, TOGETHER / len(limits))
    unchanged = before is not None and _same_predictions(rows, before)
    parts: dict[str, Data] = {}
    if len(features):
        groups = groups_of(feature_columns(rows, features), depth=1, bins=_BINS)
        parts = {f"{column} = {value}": rows[torch.from_numpy(at)] for ((column, value),), at in groups}
    lines = []
    for kind, metric, limit in limits:
        if kind == "no_worse" and before is not None:
            found = _change(metric, rows, before, alpha=alpha)
            if unchanged:
                found = Bounds(0.0, 0.0, 0.0, 0.0, len(rows))
        elif metric.startswith(WORST):
            found = _worst(metric.removeprefix(WORST), parts, alpha=alpha)
        else:
            found = metric_bounds(metric, rows, alpha=alpha)
        lines.append(_line(kind, metric, limit, found, alpha=alpha))
    return Check(tuple(lines), alpha)


def assert_calibrated(predictions: Data, *, ece: float | None = None, **limits: Any) -> Check:
    """Fail a test if predictions violate a limit. If there are too few rows to decide, skip the test and state the reason.

    Args:
        predictions: As in ``check``.
        ece: The largest allowed ECE, short for ``maximum={"ece": …}``.
        **limits: Further arguments of ``check``: maximum, minimum, no_worse with baseline, features.

    Returns:
        The result of ``check``, if the test neither fails nor is skipped.

    Raises:
        AssertionError: If a limit is violated.
        InputError: As in ``check``.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9] * 2000, [1] * 1800 + [0] * 200)
        >>> assert_calibrated(data, ece=0.05).verdict
        'pass'
    """
    if ece is not None:
        limits["maximum"] = {**(limits.get("maximum") or {}), "ece": ece}
    found = check(predictions, **limits)
    if found.verdict == "fail":
        raise AssertionError(str(found))
    if found.verdict == "not enough evidence":
        import pytest

        pytest.skip(str(found))
    return found


@dataclass(frozen=True)
class Bounds:
    """A value with bounds, each violated with probability at most α, and the centre to which they converge with more rows.

    If there are no bounds, ``more`` is the number of further rows that would give bounds, and ``note`` is the reason.
    """

    value: float
    low: float
    high: float
    centre: float
    n: int
    more: int | None = None
    note: str = ""


def metric_bounds(metric: str, data: Data, *, alpha: float) -> Bounds:
    """Return the value of ``metric`` with its bounds.

    Args:
        metric: Name of the metric. Accuracy and error have exact binomial bounds; brier and ece have the bounds of their
            intervals or, with few rows, of ``mean_ends``.
        data: Labelled, independent rows.
        alpha: Error probability of each bound.

    Returns:
        The value and its bounds.
    """
    n = len(data)
    if metric in ("accuracy", "error"):
        value = _MEANS[metric](data)
        low, high = share_ends(round(value * n), n, alpha=alpha)
        return Bounds(value, min(low, value), max(high, value), value, n)
    pairs = None if metric == "brier" else _pairs_of_metric(metric, data)
    measure, rows = (Brier(), require_predictions(data, what="brier")) if pairs is None else (ECE(), pairs)
    value = measure(rows)
    centre = value if pairs is None else _centre(pairs)
    if n >= _FEW:
        with suppress(NoIntervalError):
            own = interval(measure, rows, level=1 - 2 * alpha)
            return Bounds(value, min(own.low, value), max(own.high, value), centre, n)
    if pairs is None:
        low, high = mean_ends(_rows_of_mean("brier", rows), low=0, high=2, alpha=alpha)
    else:
        # a binned error is at least the gap over all rows together
        below, above = mean_ends((pairs.p - pairs.y).cpu().double().numpy(), low=-1, high=1, alpha=alpha / 2)
        low, high = max(below, -above, 0.0), 1.0
    return Bounds(value, min(low, value), max(high, value), centre, n)


def _line(kind: str, metric: str, limit: float, found: Bounds, *, alpha: float) -> Line:
    if kind == "minimum":
        kept, broken = found.low >= limit, found.high < limit
    else:
        kept, broken = found.high <= limit, found.low > limit
    verdict = "fail" if broken else "pass" if kept else "not enough evidence"
    more, note = None, found.note
    if verdict == "not enough evidence":
        more = found.more or _rows_to_decide(found, limit, alpha=alpha)
        if more is not None and not note and f"{found.centre:.4f}" != f"{found.value:.4f}":
            # sampling noise in the bins raises the value but vanishes with more rows, so the number of rows is computed without it
            note = f"counted from {found.centre:.4f}, the value without the sampling noise in its bins"
    sign = {"maximum": "≤", "minimum": "≥", "no_worse": "no worse than the baseline +"}[kind]
    name = f"{metric} {sign} {limit:g}"
    return Line(name, found.value, found.low, found.high, found.n, limit, verdict, metric, kind, more, note)


def _rows_to_decide(found: Bounds, limit: float, *, alpha: float) -> int | None:
    """Return how many further rows lead to a decision with probability .8, or None if no reasonable number does.

    Given n rows, the true value is about N(centre, s²). After m further rows, the new centre is N(centre, s² m / (n + m)), and the
    bounds are closer to it by the factor √(n / (n + m)).
    """
    from scipy.special import ndtr, ndtri

    below, above = found.centre - found.low, found.high - found.centre
    error = (above if limit > found.centre else below) / float(-ndtri(alpha))
    if not 0 < error < math.inf:
        return None
    more = found.n * np.geomspace(1 / max(found.n, 1), max(_ENOUGH / found.n, 1), 400)
    scale, spread = np.sqrt(found.n / (found.n + more)), error * np.sqrt(more / (found.n + more))
    under = ndtr((limit - above * scale - found.centre) / spread)
    over = ndtr((found.centre - below * scale - limit) / spread)
    enough = under + over >= _POWER
    return math.ceil(more[enough.argmax()]) if enough.any() else None


def _worst(metric: str, parts: Mapping[str, Data], *, alpha: float) -> Bounds:
    """Return the worst value over groups, with bounds that fail if one group fails at α / groups, and pass if all pass at α."""
    pick, near, far = (max, "low", "high") if metric in SMALLER else (min, "high", "low")
    # One bad group suffices to fail, so m groups share α. Passing is a claim about all groups, each tested at α (intersection–union).
    wide = {name: metric_bounds(metric, part, alpha=alpha / len(parts)) for name, part in parts.items()}
    each = {name: metric_bounds(metric, part, alpha=alpha) for name, part in parts.items()}
    worst = pick(wide, key=lambda name: wide[name].value)
    last = pick(each, key=lambda name: getattr(each[name], far))
    low, high = sorted((pick(getattr(found, near) for found in wide.values()), getattr(each[last], far)))
    note = f"worst group {worst} ({wide[worst].n:,} rows)"
    if last != worst:
        note += f", least certain {last} ({each[last].n:,} rows)"
    return Bounds(wide[worst].value, low, high, each[last].centre, each[last].n, note=note)


def _same_rows(baseline: Data, data: Data) -> Data:
    before, now = (
        (one.y if isinstance(one, Pairs) else one.require_labels()).cpu().double() for one in (baseline, data)
    )
    if not torch.equal(before, now):
        check_class_order(names_of(baseline), names_of(data), of="of the model")
        raise InputError("the baseline must contain the same rows in the same order, but its labels differ")
    if getattr(baseline, "classes", 0) != getattr(data, "classes", 0):
        raise InputError("the baseline must contain predictions for the same classes")
    return baseline


def _same_predictions(data: Data, baseline: Data) -> bool:
    """Return whether two models give every class the same probability in every row, and decide alike."""
    if isinstance(data, Predictions) and isinstance(baseline, Predictions):
        now, before = ((one.log_probs.cpu().double(), one.predicted.cpu()) for one in (data, baseline))
        return all(map(torch.equal, now, before))
    return isinstance(data, Pairs) and isinstance(baseline, Pairs) and torch.equal(data.p.cpu(), baseline.p.cpu())


def _check_limit(kind: str, name: str, limit: float) -> None:
    metric_in = {one: name if one == "no_worse" else name.removeprefix(WORST) for one in LIMITED}
    metric = metric_in[kind]
    if metric not in LIMITED[kind]:
        known = f"{', '.join(LIMITED[kind])}{f', also after {WORST}' if kind != 'no_worse' else ''}"
        other = next((one for one, metrics in LIMITED.items() if metric_in[one] in metrics), None)
        remedy = f"give {_KINDS[other]} instead ({_argument(other)})" if other else f"choose one of {known}"
        raise InputError(f"{name!r} cannot have {_KINDS[kind]}; {remedy}")
    high = 2 if metric == "brier" else 1
    if not 0 <= limit <= high:
        percent = f"; {limit:g} % is {limit / 100:g}" if high < limit <= 100 and metric != "nll" else ""
        raise InputError(f"the limit of {name} must lie in [0, {high}], not {limit:g}{percent}")


def _argument(name: str) -> str:
    return f"`{name}=`, or `{_OPTIONS[name]}` on the command line"


def _change(metric: str, data: Data, baseline: Data, *, alpha: float) -> Bounds:
    """Return how much worse ``data`` is than ``baseline`` on the same rows (positive is worse), with bounds."""
    if metric == "nll":
        return _change_of_log_loss(data, baseline, alpha=alpha)
    if metric not in _MEANS:
        # two intervals at α / 2 each, so that the difference between their bounds is violated with probability at most α
        new, old = (metric_bounds(metric, rows, alpha=alpha / 2) for rows in (data, baseline))
        return Bounds(new.value - old.value, new.low - old.high, new.high - old.low, new.centre - old.centre, len(data))
    sign, reach = 1 if metric in SMALLER else -1, 2.0 if metric == "brier" else 1.0
    rows = sign * (_rows_of_mean(metric, data) - _rows_of_mean(metric, baseline))
    mean = float(rows.mean())
    # if few rows differ, the estimated variance may be far too small
    if (rows != 0).sum() >= FEWEST_COMPARED and scarce_errors(data, baseline) is None:
        test = paired_test(torch.from_numpy(rows), level=1 - 2 * alpha)
        return Bounds(mean, test.low, test.high, mean, len(data))
    return Bounds(mean, *mean_ends(rows, low=-reach, high=reach, alpha=alpha), mean, len(data))


def _change_of_log_loss(new: Data, old: Data, *, alpha: float) -> Bounds:
    """Return the increase of the mean log-loss over the old model, with Student's t bounds if there are enough errors."""
    new, old = (require_predictions(model, what="a log-loss") for model in (new, old))
    losses = torch.stack([model.nll.cpu().double() for model in (new, old)])
    if bool((infinite := ~torch.isfinite(losses)).any()):
        raise InputError(
            f"the log-loss is infinite in {int(infinite.any(dim=0).sum())} rows; set a limit on brier instead"
        )
    difference = losses[0] - losses[1]
    change, n = float(difference.mean()), len(new)
    if scarce := scarce_errors(new, old, loss=NLL().of_labels):
        seen, enough = scarce
        note = f"{FEWEST_COMPARED} wrong decisions with different log-losses are needed, but only {math.floor(seen)} were seen"
        low, high = -math.inf, math.inf
        # assumes that no unseen row changes by more than the largest loss of any label on these rows
        reach = max(-float(model.log_probs.min()) for model in (new, old))
        if reach < _WIDEST:
            note += f"; this assumes that no row changes by more than {reach:.3g}"
            low, high = mean_ends(difference.numpy(), low=-reach, high=reach, alpha=alpha)
        return Bounds(change, low, high, change, n, enough - n, note)
    test = paired_test(difference, level=1 - 2 * alpha)
    below, above = _expected_reach(new, old, change, alpha=alpha)
    return Bounds(change, min(test.low, change - below), max(test.high, change + above), change, n)


def _expected_reach(new: Predictions, old: Predictions, mean: float, *, alpha: float) -> tuple[float, float]:
    """Return how far the mean change in log-loss may lie below and above ``mean``, according to the models' own probabilities.

    If a sample contains few of the largest changes, the variance estimated from it is too small, and the sharper model would pass too
    often. Changes with second and third moments V and S vary like a Poisson number of events of size S / V, with V³ / S² of them on
    average. On the side of the large changes, the distance is based on the upper bound of this number; on the other side, it is
    normal. Each distance is the larger of the two that the models imply.
    """
    from scipy.special import gammaincinv, ndtri

    moments = torch.zeros(2, 2, dtype=torch.float64)  # (power, model)
    for rows in row_chunks(len(new), new.classes):
        logs = torch.stack([model[rows].log_probs.double().cpu() for model in (new, old)])
        change_of = logs[1] - logs[0] - mean
        # a label of probability 0 contributes nothing to the expectation
        change_of = torch.where(change_of.isfinite(), change_of, 0.0)
        moments += torch.stack([(logs.exp() * change_of**power).sum(dim=(1, 2)) for power in (2, 3)])
    ends = [0.0, 0.0]
    for second, third in moments.T.tolist():
        normal = far = -float(ndtri(alpha)) * math.sqrt(second)
        if third:
            count = second**3 / third**2
            far = max(normal, abs(third) / second * (float(gammaincinv(count + 1, 1 - alpha)) - count))
        both = (normal, far) if third > 0 else (far, normal)
        ends = [max(end, one / len(new)) for end, one in zip(ends, both, strict=True)]
    return ends[0], ends[1]


def _rows_of_mean(metric: str, data: Data) -> Floats:
    """Return the rows (N,) whose mean is ``metric``."""
    return np.asarray(_MEANS[metric].rows(data).cpu().double().numpy())


def _pairs_of_metric(metric: str, data: Data) -> Pairs:
    """Return the pairs for a metric: those of the decisions or, for "event-ece", those of the second of two classes."""
    if metric == "ece":
        # the probability of an event ranges from 0 to 1, whereas a decision has its confidence
        return data.top_label()
    if isinstance(data, Predictions) and data.classes == 2:
        return data.one_vs_rest(1)
    if not are_events(data):
        raise InputError("event-ece needs two classes, or pairs of a probability and an outcome; limit ece instead")
    return data


def _centre(pairs: Pairs) -> float:
    """Return the calibration error after subtracting the sampling variance from each bin's squared gap."""
    binning, x = EqualWidth(15), (pairs.p - pairs.y).cpu().double().numpy()
    index = binning.assign(pairs.p.cpu()).numpy()
    count, total, squares = (np.bincount(index, weights) for weights in (None, x, x * x))
    # |Σ x|² is too large by Σ x² − (Σ x)² / n on average; if nothing is left, the bin has no gap
    variance = np.maximum(squares - total**2 / np.maximum(count, 1), 0)
    return float(np.sqrt(np.maximum(total**2 - variance, 0)).sum() / len(x))
