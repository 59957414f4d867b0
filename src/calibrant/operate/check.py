"""The deployment gate: limits on metrics that pass, fail, or lack evidence, by finite-sample confidence bounds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_mapping, check_number
from calibrant._core.config import json_data
from calibrant._core.notebook import to_html
from calibrant._core.numerics import row_chunks
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics import NLL, Brier
from calibrant.operate.bounds import Moments, calibration_ends, mean_ends, share_ends
from calibrant.operate.line import Line
from calibrant.operate.rows import LABELLED, values_of_rows
from calibrant.statistics.enough import FEWEST_COMPARED, scarce_errors
from calibrant.statistics.means import paired_test

Verdict = Literal["pass", "fail", "not enough evidence"]
Floats = NDArray[np.float64]

LIMITED = {"accuracy": "higher", "error": "lower", "brier": "lower", "ece": "lower", "event-ece": "lower"}
WORST = "worst-group-"
DIRECTION = 0.025  # error probability of each line in each direction
TOGETHER = 0.05  # probability that any of the lines is decided wrongly
_BINNED = ("ece", "event-ece")
_BINS = EqualWidth(15)
_MOST_GROUPS = 1000
_WIDEST = 1e100  # range of changes: squares of wider ones leave the range of numbers
_WIDTHS = 1.43  # (z₀.₉₇₅ + z₀.₈) / z₀.₉₇₅: a bound so many of its widths from the limit stays on its side in four of five samples
_ENOUGH = 1e9  # larger numbers of rows are not given as advice


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
        verdicts = {line.verdict for line in self.lines}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "not enough evidence"

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data; infinite bounds are null."""
        return {"verdict": self.verdict, "alpha": self.alpha, "lines": [json_data(asdict(line)) for line in self.lines]}

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
) -> Check:
    """Decide each limit by its confidence bounds, not by its point estimate.

    A line passes if its bounds show that the limit is met, fails if they show that it is not, and is "not enough evidence"
    otherwise. Each decision is wrong with probability at most 2.5 %, and any of m lines with probability at most 5 % (each
    direction at 5 % / m, if that is less). This holds for any number of independent rows, with two exceptions. The log-loss has Student's
    t, where both models decide at least 20 rows wrongly; it says nothing of kinds of rows that are not in the sample. The parts of the
    ECE's lower bound that detect a gap over all rows beside spread confidences, or gaps of alternating signs, are asymptotic.

    Args:
        predictions: Labelled, without weights, on rows on which neither model nor calibrator was fitted, one of each group.
        maximum: Metric → largest value allowed. Metrics: accuracy, error, brier (0 to 2), ece (of the decision's confidence, 15
            equal-width bins), event-ece (of the second class's probability of two, which the decision's confidence hides where events
            are rare); with "worst-group-" before the name, of the worst group of every column in ``features``.
        minimum: Metric → smallest value allowed.
        no_worse: Metric (also nll) → largest deterioration allowed against the baseline, ≥ 0.
        baseline: Predictions of the previous model for the same rows in the same order.
        features: Column name → (N,) group of each row, for the worst-group metrics.

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
    rows = LABELLED.check(predictions, "predictions", "check")
    given = {"maximum": maximum, "minimum": minimum, "no_worse": no_worse}
    limits = {kind: check_mapping(of_metrics, name=kind, example="{'ece': 0.03}") for kind, of_metrics in given.items()}
    columns = check_mapping(features, name="features", example="{'column': values}")
    for kind, of_metrics in limits.items():
        for name, limit in of_metrics.items():
            _check_limit(kind, name, limit)
    count = sum(map(len, limits.values()))
    if not count:
        raise InputError("check needs at least one limit, such as a maximum of ece=0.03")
    if bool(limits["no_worse"]) != (baseline is not None):
        raise InputError("no_worse and baseline, the predictions of the model before, need each other")
    if any(name.startswith(WORST) for name in {**limits["maximum"], **limits["minimum"]}) != bool(columns):
        raise InputError(
            "a limit on the worst group and the columns of the groups need each other; give both, such as worst-group-ece=0.1 "
            "and region"
        )
    before = None if baseline is None else _check_same_rows(LABELLED.check(baseline, "baseline", "check"), rows)
    # Bonferroni over the lines, once there are more than two of them
    alpha = min(DIRECTION, TOGETHER / count)
    parts = _rows_of_groups(rows, columns)
    lines = []
    for kind, of_metrics in limits.items():
        for metric, limit in of_metrics.items():
            if kind == "no_worse":
                assert before is not None
                found = _change(metric, rows, before, alpha=alpha)
            elif metric.startswith(WORST):
                found = _worst(metric.removeprefix(WORST), parts, alpha=alpha)
            else:
                found = bounded(metric, rows, alpha=alpha)
            lines.append(_line(kind, metric, limit, found))
    return Check(tuple(lines), alpha)


def assert_calibrated(predictions: Data, *, ece: float | None = None, **limits: Any) -> Check:
    """Fail a test whose predictions break a limit, and skip it, with the reason, if the rows are too few to say.

    Args:
        predictions: As in ``check``.
        ece: Short for ``maximum={"ece": …}``.
        **limits: Others of ``check``: maximum, minimum, no_worse with baseline, features.

    Raises:
        AssertionError: If a limit is broken.

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


def bounded(metric: str, data: Data, *, alpha: float) -> Bounds:
    """Return the value of ``metric`` with its bounds.

    Args:
        metric: Accuracy and error have exact binomial bounds; brier and ece those of ``operate.bounds``.
        data: Labelled, independent rows.
        alpha: Error probability of each bound.
    """
    n = len(data)
    if metric in _BINNED:
        p, y = _pairs_of_metric(metric, data)
        index = np.asarray(_BINS.assign(p).numpy())
        moments = Moments.of(p.numpy() - y, index, bins=_BINS.bins)
        # Σ p by bin says how many errors are expected in it: bins of few have no part in the asymptotic bound
        confidences = np.bincount(index, p.double().numpy(), minlength=_BINS.bins).astype(np.float64)
        ends = calibration_ends(moments, confidences=confidences, alpha=alpha)
        value, centre = float(np.abs(moments.total).sum()) / n, _centre(moments)
    else:
        rows = _rows_of_mean(metric, data)
        value = centre = float(rows.mean())
        if metric == "brier":
            ends = mean_ends(Moments.of(rows), low=0, high=2, alpha=alpha)
        else:
            ends = share_ends(round(value * n), n, alpha=alpha)
    return Bounds(value, min(ends[0], value), max(ends[1], value), centre, n)


def verdict_of_bounds(low: float, high: float, limit: float, *, minimum: bool) -> Verdict:
    """Return the verdict of a figure's bounds: not the estimate decides, so that at the limit either is wrong with at most α."""
    kept, broken = (low >= limit, high < limit) if minimum else (high <= limit, low > limit)
    return "fail" if broken else "pass" if kept else "not enough evidence"


def _line(kind: str, metric: str, limit: float, found: Bounds) -> Line:
    verdict = verdict_of_bounds(found.low, found.high, limit, minimum=kind == "minimum")
    more, note = _more_rows(found, limit) if verdict == "not enough evidence" else None, found.note
    if more is not None and metric in _BINNED and f"{found.centre:.4f}" != f"{found.value:.4f}":
        # noise of the bins lifts the value, and goes as rows are added: a reader who counts from the value is misled
        note = f"counted from {found.centre:.4f}, the value without the noise of its bins"
    sign = {"maximum": "≤", "minimum": "≥", "no_worse": "no worse than the baseline +"}[kind]
    return Line(
        name=f"{metric} {sign} {limit:g}",
        value=found.value,
        low=found.low,
        high=found.high,
        n=found.n,
        limit=limit,
        verdict=verdict,
        metric=metric,
        kind=kind,
        more_rows=more,
        note=note,
    )


def _more_rows(found: Bounds, limit: float) -> int | None:
    """Return after how many more rows the bound that crosses the limit would leave it in four of five samples.

    Widths shrink as n^−½. Where the bound would be expected on the limit itself, only half of the samples would decide.
    """
    if found.more is not None:
        return found.more
    # the estimate converges to its centre, and the bound approaches it as n^−½
    distance = limit - found.centre
    width = (found.high if distance > 0 else found.low) - found.centre
    if distance == 0 or width == 0 or not math.isfinite(width):
        return None
    more = found.n * ((_WIDTHS * width / distance) ** 2 - 1)
    return None if not more < _ENOUGH else max(1, math.ceil(more))


def _worst(metric: str, parts: Mapping[str, Data], *, alpha: float) -> Bounds:
    """Return the worst value over groups; to fail, one group is tested at α / groups, to pass, every group at α."""
    pick, near, far = (max, "low", "high") if LIMITED[metric] == "lower" else (min, "high", "low")
    # one bad group is enough to fail, so m groups share α; passing claims something of all, each at α (intersection–union)
    wide = {name: bounded(metric, part, alpha=alpha / len(parts)) for name, part in parts.items()}
    each = {name: bounded(metric, part, alpha=alpha) for name, part in parts.items()}
    worst = pick(wide, key=lambda name: wide[name].value)
    last = pick(each, key=lambda name: getattr(each[name], far))
    low, high = sorted((pick(getattr(found, near) for found in wide.values()), getattr(each[last], far)))
    note = f"worst group {worst} ({wide[worst].n:,} rows)"
    if last != worst:
        note += f", least certain {last} ({each[last].n:,} rows)"
    return Bounds(wide[worst].value, low, high, each[last].centre, each[last].n, note=note)


def _rows_of_groups(data: Data, features: Mapping[str, Any]) -> dict[str, Data]:
    """Return "column = value" → the rows, for every value of every column."""
    parts: dict[str, Data] = {}
    for column, values in features.items():
        array = values_of_rows(values, name=str(column), rows=len(data))
        known, codes = np.unique(array.astype(str) if array.dtype == object else array, return_inverse=True)
        if len(known) > _MOST_GROUPS:
            raise InputError(
                f"{column} holds {len(known):,} different values, which are no groups; bin the column first"
            )
        for code, value in enumerate(known):
            parts[f"{column} = {value}"] = data[torch.from_numpy(np.nonzero(codes == code)[0])]
    return parts


def _check_same_rows(baseline: Data, data: Data) -> Data:
    if len(baseline) != len(data) or not torch.equal(_outcomes(baseline), _outcomes(data)):
        raise InputError("the baseline must hold the same rows in the same order, and its labels differ")
    return baseline


def _outcomes(data: Data) -> torch.Tensor:
    return (data.y if isinstance(data, Pairs) else data.need_labels()).cpu().double()


def _check_limit(kind: str, name: str, limit: float) -> None:
    metric = name if kind == "no_worse" else name.removeprefix(WORST)
    if name == "nll" and kind != "no_worse":
        raise InputError(
            "nll has no bound that holds for every model; limit brier, or nll by no_worse against a baseline"
        )
    if metric not in LIMITED and (kind, metric) != ("no_worse", "nll"):
        raise InputError(f"{name!r} is no metric to limit; choose one of {', '.join(LIMITED)}, also after {WORST}")
    if kind != "no_worse" and (LIMITED[metric] == "lower") != (kind == "maximum"):
        other = "minimum" if kind == "maximum" else "maximum"
        raise InputError(f"a {kind} of {name} keeps it from becoming better; limit it by a {other}")
    high = 2 if metric == "brier" else 1
    check_number(limit, name=f"the limit of {name}")
    if not 0 <= limit <= high:
        percent = f"; {limit:g} % is {limit / 100:g}" if high < limit <= 100 and metric != "nll" else ""
        raise InputError(f"the limit of {name} must lie in [0, {high}], not {limit:g}{percent}")


def _change(metric: str, data: Data, baseline: Data, *, alpha: float) -> Bounds:
    """Return how much worse ``data`` is than ``baseline`` on the same rows (positive is worse), with bounds."""
    if metric == "nll":
        return _change_of_log_loss(data, baseline, alpha=alpha)
    sign = 1 if LIMITED[metric] == "lower" else -1
    if metric in _BINNED:
        # two intervals at α / 2 each: the difference of their ends is missed with at most α
        new, old = (bounded(metric, rows, alpha=alpha / 2) for rows in (data, baseline))
        return Bounds(new.value - old.value, new.low - old.high, new.high - old.low, new.centre - old.centre, len(data))
    rows = sign * (_rows_of_mean(metric, data) - _rows_of_mean(metric, baseline))
    reach = 2.0 if metric == "brier" else 1.0
    mean = float(rows.mean())
    return Bounds(mean, *mean_ends(Moments.of(rows), low=-reach, high=reach, alpha=alpha), mean, len(data))


def _change_of_log_loss(new: Data, old: Data, *, alpha: float) -> Bounds:
    """Return how much larger the mean log-loss is than the old model's, with bounds by Student's t where errors are enough."""
    if not isinstance(new, Predictions) or not isinstance(old, Predictions) or new.classes != old.classes:
        raise InputError("a log-loss is compared between predictions over the same classes")
    losses = torch.stack([model.nll.cpu().double() for model in (new, old)])
    if bool((infinite := ~torch.isfinite(losses)).any()):
        raise InputError(f"the log-loss is infinite in {int(infinite.any(dim=0).sum())} rows; limit brier instead")
    difference = losses[0] - losses[1]
    change, n = float(difference.mean()), len(new)
    scarce = scarce_errors(new, old, loss=NLL().of_labels) if bool((difference != 0).any()) else (0.0, n)
    if scarce:
        seen, enough = scarce
        note = f"{FEWEST_COMPARED} wrong decisions that tell log-losses apart are needed, {math.floor(seen)} were seen"
        low, high = -math.inf, math.inf
        # rows that were not seen are taken to change no more than the largest loss that any label of these rows would have
        reach = max(-float(model.log_probs.min()) for model in (new, old))
        if reach < _WIDEST:
            note += f"; no row is taken to change by more than {reach:.3g}"
            low, high = mean_ends(Moments.of(difference.numpy()), low=-reach, high=reach, alpha=alpha)
        return Bounds(change, low, high, change, n, max(enough - n, 1), note)
    error = _expected_error(new, old, change)
    test = paired_test(difference, level=1 - 2 * alpha, least_error=error)[0]
    return Bounds(change, test.low, test.high, change, n)


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


def _rows_of_mean(metric: str, data: Data) -> Floats:
    """Return the rows (N,) whose mean is ``metric``."""
    if metric == "brier":
        return np.asarray(Brier().rows(data).cpu().double().numpy())
    right = np.asarray(data.correct.cpu().double().numpy())
    return right if metric == "accuracy" else 1 - right


def _pairs_of_metric(metric: str, data: Data) -> tuple[torch.Tensor, Floats]:
    """Return the probabilities (N,) and outcomes (N,) of the decisions, or of the event: the second of two classes."""
    if metric == "ece":
        # of an event every probability from 0 to 1 counts, of a decision its confidence
        return data.confidence.cpu(), np.asarray(data.correct.cpu().double().numpy())
    if isinstance(data, Predictions) and data.classes == 2:
        data = data.one_vs_rest(1)
    if not are_events(data):
        raise InputError("event-ece needs two classes, or pairs of a probability and an outcome; limit ece instead")
    return data.p.cpu(), np.asarray(data.y.cpu().double().numpy())


def _centre(moments: Moments) -> float:
    """Return the calibration error with the sampling variance subtracted from each bin's squared gap."""
    n = moments.count.sum()
    # |Σ x|² is too large by Σ x² − (Σ x)² / n on average; where nothing is left the bin has no gap to show
    variance = np.maximum(moments.squares - moments.total**2 / np.maximum(moments.count, 1), 0)
    return float(np.sqrt(np.maximum(moments.total**2 - variance, 0)).sum() / n)
