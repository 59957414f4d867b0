"""Paired comparisons of models on the same rows: which model is better, by how much, and whether the difference is significant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.notebook import to_html
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import are_events
from calibrant.data.predictions import Predictions, check_class_order
from calibrant.errors import InputError, NoIntervalError
from calibrant.evaluate.panel import check_metrics, default_metrics, in_percent
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Error, MeanMetric, Metric
from calibrant.statistics.paired import (
    FEWEST_COMPARED,
    FEWEST_OF_ROWS,
    PairedTest,
    holm,
    paired_square_test,
    paired_test,
    scarce_errors,
    shown_p,
)

_OF_SQUARES = "the test is of the squares of the bins' gaps"
SMALL = 1e-3  # smaller differences are shown with two significant digits


@dataclass(frozen=True)
class ComparisonRow:
    """One metric of both models, and their difference.

    Args:
        metric: The metric's repr.
        a: The value for A.
        b: The value for B.
        difference: B − A.
        low: Lower end of the difference's confidence interval, or None if no interval with the nominal coverage is known.
        high: Upper end of this interval, or None.
        p_value: p-value of the hypothesis of no difference, corrected for the number of metrics (Holm); None if no valid
            test is known.
        winner: "a" or "b" if the corrected p-value is below 1 − level, otherwise None.
        note: What is tested, if the difference itself is not; or why there is no test, and how many rows would suffice.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    winner: Literal["a", "b"] | None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    Args:
        rows: One row per metric.
        verdict: The result in words.
        n: Number of rows of the predictions.
        level: Coverage of the intervals, in (0, 1).
    """

    rows: tuple[ComparisonRow, ...]
    verdict: str
    n: int
    level: float

    _repr_html_ = to_html

    def __str__(self) -> str:
        return self.verdict


def compare(
    a: Data,
    b: Data,
    *,
    metrics: Sequence[Metric] | None = None,
    names: tuple[str, str] = ("A", "B"),
    level: float = 0.95,
) -> Comparison:
    """Compare two models, or two calibrators, on the same rows.

    Rows are paired, so that the difficulty of a row cancels. If the rows have groups, the groups are the independent units.
    The p-values are corrected for the number of metrics.

    No valid test for the difference of two ECEs is known if the errors of the models have different shapes. Instead, the
    test compares the squared gaps of the same bins, minus their sampling bias (``paired_square_test``). A model is called
    better calibrated if its squared gaps are significantly smaller and its ECE is smaller too. A test needs at least 20 wrong
    decisions of each model (or 20 groups with a wrong decision). For the log-loss and the Brier score of independent rows,
    5 wrong decisions suffice, but only those on which the models differ count.

    Args:
        a: Labelled predictions of model A.
        b: Predictions of model B for the same rows in the same order.
        metrics: The metrics to compare. None compares the accuracy, log-loss, Brier score and ECE, as far as they apply.
        names: Names of the models in the verdict.
        level: Coverage of the intervals, in (0, 1); a difference is significant if its corrected p-value is below 1 − level.

    Returns:
        A comparison with one row per metric and a verdict.

    Raises:
        InputError: If the rows or labels of the two models differ.

    Examples:
        >>> from calibrant import Predictions
        >>> labels = ([0, 1] * 9 + [1, 0]) * 20  # 40 of 400 decisions are wrong
        >>> sharp = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 200, labels)
        >>> blunt = Predictions.from_logits([[0.5, 0.0], [0.0, 0.5]] * 200, labels)
        >>> compare(blunt, sharp).rows[1].winner
        'b'

    References:
        Holm 1979; Hall 1992 (means); Widmann et al. 2019 (the unbiased squares).
    """
    return compare_all({names[0]: a, names[1]: b}, metrics=metrics, level=level)[names]


def compare_all(
    models: Mapping[str, Data], *, metrics: Sequence[Metric] | None = None, level: float = 0.95
) -> dict[tuple[str, str], Comparison]:
    """Compare each pair of several models on the same rows, with p-values corrected for all pairs and metrics (Holm's method).

    Args:
        models: Predictions of at least two models, by name.
        metrics: As in ``compare``.
        level: As in ``compare``; the intervals are not corrected.

    Returns:
        A dict from each pair of model names to the comparison of these two models.

    Raises:
        InputError: As in ``compare``.

    Examples:
        >>> from calibrant import Predictions
        >>> rows = {
        ...     t: Predictions.from_logits([[2.5 / t, 0.0], [0.0, 2.5 / t]] * 50, [0, 1] * 45 + [1, 0] * 5)
        ...     for t in (1, 2, 3)
        ... }
        >>> sorted(compare_all({f"T = {t}": data for t, data in rows.items()}))[0]
        ('T = 1', 'T = 2')
    """
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    pairs, chosen, tests = {}, {}, {}
    for names in combinations(models, 2):
        pairs[names] = a, b = _paired_rows(*(models[name] for name in names))
        known = [*default_metrics(a), *default_metrics(b)]
        usual = [metric for metric in (Accuracy(), NLL(), Brier(), ECE()) if known.count(metric) == 2]
        chosen[names] = usual if metrics is None else check_metrics(metrics)
        tests[names] = [_test(metric, a, b, level=level) for metric in chosen[names]]
    # metrics without a test do not count in the correction
    p_values = iter(holm([test.p_value for of in tests.values() for test in of if isinstance(test, PairedTest)]))
    found = {}
    for names, (a, b) in pairs.items():
        rows = []
        for metric, test in zip(chosen[names], tests[names], strict=True):
            corrected = test if isinstance(test, str) else replace(test, p_value=next(p_values))
            rows.append(_comparison_row(metric, metric(a), metric(b), corrected, level=level))
        verdict = _verdict(rows, chosen[names], names, level=level)
        found[names] = Comparison(tuple(rows), verdict, a.count, level)
    return found


def _paired_rows(a: Data, b: Data) -> tuple[Data, Data]:
    """Return both models' rows of positive weight, with groups if either model has groups.

    Raises:
        InputError: If the rows of the two models differ.
    """
    for data in (a, b):
        require_rows(data, what="a comparison")
    if len(a) != len(b):
        raise InputError("A and B on the same rows", f"{len(a):,} and {len(b):,} rows", "compare one test set")
    same = {
        "weights": same_weights(a, b),
        "groups": a.groups is None or b.groups is None or torch.equal(a.groups.cpu(), b.groups.cpu()),
        "kind of outcomes": are_events(a) == are_events(b),
        "classes": getattr(a, "classes", None) == getattr(b, "classes", None) or type(a) is not type(b),
    }
    if other := [what for what, alike in same.items() if not alike]:
        raise InputError(f"A and B with the same {other[0]}", "different ones", "compare on one test set")
    truth, other_truth = map(_what_happened, (a, b))
    if truth is not None and other_truth is not None and not torch.equal(truth, other_truth):
        if isinstance(a, Predictions) and isinstance(b, Predictions):
            check_class_order(b.class_names, a.class_names, of="of A")
        row = int(torch.nonzero(truth != other_truth)[0])
        got = f"label {int(truth[row])} and {int(other_truth[row])} in row {row}"
        raise InputError("A and B on the same rows in the same order", got, "sort both in the same way")
    if a.groups is None and b.groups is not None:
        a = replace(a, groups=b.groups)
    return a.counted, b.counted


def same_weights(a: Data, b: Data) -> bool:
    """Return whether the rows of ``a`` and ``b`` have the same weights, or both have none."""
    return (a.weights is None) == (b.weights is None) and torch.equal(a.row_weights.cpu(), b.row_weights.cpu())


def _what_happened(data: Data) -> Tensor | None:
    """Return the outcomes (N,), true classes or events; None for decisions without classes."""
    if are_events(data):
        return data.y.long().cpu()
    labels = data.require_labels() if isinstance(data, Predictions) else data.labels
    return None if labels is None else labels.cpu()


def _test(metric: Metric, a: Data, b: Data, *, level: float) -> PairedTest | str:
    """Return the test of B − A, or the reason why there is no test.

    The reason is empty if no valid test is known for the metric or if losses are infinite; the row then has no note.
    """
    try:
        if isinstance(metric, Accuracy | Error):
            return _test_of_decisions(metric, a, b, level=level)
        if not isinstance(metric, ECE | MeanMetric):
            return ""
        if lacking := _lacking(metric, a, b):
            return lacking
        if isinstance(metric, ECE):
            binned = ((metric.cells(rows), rows.confidence - rows.correct.double()) for rows in (a, b))
            return paired_square_test(*binned, groups=a.groups, weight=a.weights)
        difference = (metric.rows(b) - metric.rows(a)).cpu()
        if not bool(torch.isfinite(difference).all()):
            return ""
        return paired_test(difference, groups=a.groups, level=level, weight=a.weights)
    except NoIntervalError as error:  # a single row or group, or too few of them for the metric's own test
        return str(error)


def _lacking(metric: Metric, a: Data, b: Data) -> str:
    """Return a sentence if there are too few wrong decisions for a test of ``metric``, otherwise an empty string.

    With few wrong decisions, a single one could decide the variance.
    """
    loss = metric.of_labels if isinstance(metric, NLL | Brier) else None
    enough = FEWEST_OF_ROWS if a.groups is None and a.weights is None and loss else FEWEST_COMPARED
    if (scarce := scarce_errors(a, b, loss=loss, enough=enough)) is None:
        return ""
    seen, rows = scarce
    counted = "on which the models differ" if loss and isinstance(a, Predictions) else "of each model"
    seen = math.floor(seen)
    if a.groups is not None:
        return f"{enough} groups with wrong decisions {counted} are needed, but there are only {seen}; use more groups"
    return (
        f"{enough} wrong decisions {counted} are needed, but there are only {seen}; about {rows:,} rows would be enough"
    )


def _test_of_decisions(metric: MeanMetric, a: Data, b: Data, *, level: float) -> PairedTest:
    """Return the test for a metric of decisions: Student's t, or the exact sign test if few rows are decided differently.

    References:
        McNemar 1947.
    """
    from scipy.stats import binomtest

    difference = (metric.rows(b) - metric.rows(a)).cpu()
    test = paired_test(difference, groups=a.groups, level=level, weight=a.weights)
    more, differing = int((difference > 0).sum()), int((difference != 0).sum())
    if a.groups is not None or a.weights is not None or not 0 < differing < FEWEST_COMPARED:
        return test
    exact = binomtest(more, differing)
    p_value, ends = float(exact.pvalue), exact.proportion_ci(level)
    # Clopper and Pearson's interval for the share of the rows decided differently, as a difference; excludes 0 if p < 1 − level
    low, high = ((2 * end - 1) * differing / len(a) for end in ends)
    least, most = (-1.0, 1.0) if p_value >= 1 - level else (0.0, 1.0) if low > 0 else (-1.0, 0.0)
    low, high = (min(max(end, least), most) for end in (min(test.low, low), max(test.high, high)))
    return PairedTest(test.difference, low, high, p_value)


def _comparison_row(metric: Metric, a: float, b: float, test: PairedTest | str, *, level: float) -> ComparisonRow:
    """Return the row of a metric with the values ``a`` and ``b``, from its test or the reason why there is none."""
    if isinstance(test, str):
        return ComparisonRow(repr(metric), a, b, b - a, None, None, None, None, test)
    winner: Literal["a", "b"] | None = None
    if test.p_value < 1 - level:
        sizes = (abs(a), abs(b)) if metric.better == "zero" else (-a, -b) if metric.better == "higher" else (a, b)
        winner = "b" if sizes[1] < sizes[0] else "a"
    if isinstance(metric, ECE):
        winner = winner if test.difference * (b - a) > 0 else None
        return ComparisonRow(repr(metric), a, b, b - a, None, None, test.p_value, winner, _OF_SQUARES)
    return ComparisonRow(repr(metric), a, b, test.difference, test.low, test.high, test.p_value, winner)


def _verdict(rows: Sequence[ComparisonRow], metrics: Sequence[Metric], names: tuple[str, str], *, level: float) -> str:
    """Return the verdict in words: on calibration first, if an ECE is compared, and then on the other metrics."""
    others = list(zip(metrics, rows, strict=True))
    sentences = []
    if calibration := next((pair for pair in others if isinstance(pair[0], ECE)), None):
        others.remove(calibration)
        sentences = [_on_calibration(*calibration, names)]
    for side, (winner, loser) in {"a": names, "b": names[::-1]}.items():
        if reasons := [_reason(metric, row, level=level) for metric, row in others if row.winner == side]:
            sentences.append(f"{winner} is better than {loser}: {'; '.join(reasons)}.")
    if even := [type(metric).__name__ for metric, row in others if row.p_value is not None and row.winner is None]:
        sentences.append(f"{names[0]} and {names[1]} do not differ significantly in {_or(even)}.")
    untested = [(type(metric).__name__, row.note) for metric, row in others if row.p_value is None]
    for note in dict.fromkeys(note for _, note in untested):
        without = ", ".join(name for name, own in untested if own == note)
        sentences.append(f"Not tested: {without}{f' ({note})' if note else ''}.")
    return " ".join(sentences)


def _on_calibration(metric: Metric, row: ComparisonRow, names: tuple[str, str]) -> str:
    """Return a sentence on which of two models is better calibrated, by how much, and whether the difference is significant."""
    better, other = names if row.difference > 0 else names[::-1]
    size = f"lower by {_size(metric, row.difference)}"
    if row.winner is not None:
        return f"{better} is better calibrated than {other}: its ECE is {size} ({shown_p(row.p_value)})."
    said = f"the ECE of {better} is {size}" if row.difference else "both have the same ECE"
    if row.p_value is None:
        return f"It was not tested which model is better calibrated{f' ({row.note})' if row.note else ''}: {said}."
    return f"{names[0]} and {names[1]} do not differ significantly in calibration: {said} ({shown_p(row.p_value)})."


def _reason(metric: Metric, row: ComparisonRow, *, level: float) -> str:
    """Return the difference of a metric in words, with its interval and p-value."""
    word = {"higher": "higher", "lower": "lower", "zero": "closer to 0"}[metric.better]
    sure = shown_p(row.p_value)
    if row.low is not None and row.high is not None:
        near, far = sorted(map(abs, (row.low, row.high)))
        near = 0.0 if row.low * row.high < 0 else near  # an interval that contains 0 excludes no small difference
        sure = f"{100 * level:.3g} % interval {_size(metric, near, far)}, {sure}"
    return f"its {type(metric).__name__} is {word} by {_size(metric, row.difference)} ({sure})"


def _size(metric: Metric, *values: float) -> str:
    """Return the size of a difference, or a range of sizes, in percentage points where the metric is shown in percent."""
    scale, digits, unit = (100, ".2f", " points") if in_percent(metric) else (1, ".4f", "")
    digits = digits if max(map(abs, values)) >= SMALL else ".2g"
    return " to ".join(f"{scale * abs(value):{digits}}" for value in values) + unit


def _or(names: Sequence[str]) -> str:
    """Return names as text, joined by commas and "or"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
