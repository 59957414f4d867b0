"""Metrics for several labels per row, pooled and averaged over labels, and a test of the worst label.

The labels of a row are dependent, so the independent units of every interval are rows or groups of rows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import refuse
from calibrant._core.warn import warn_user
from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.errors import NoIntervalError, ZeroProbabilityWarning
from calibrant.evaluate.panel import Panel, Row, panel
from calibrant.evaluate.subgroups import Subgroups, with_tests
from calibrant.metrics import ECE, Metric
from calibrant.statistics import interval, null_band
from calibrant.statistics.design import require_groups
from calibrant.statistics.means import Interval, mean_interval

_MIN_UNITS = 10  # smallest number of rows or groups with a positive label, and with a negative label


def multilabel_panel(predictions: MultiLabel, *, uncertainty: bool = True, level: float = 0.95) -> Panel:
    """Return the NLL, Brier score, bias and ECE of several labels per row, pooled (micro) and averaged over labels (macro).

    The NLL is in nats. The Brier score is the mean of (p − y)², from 0 to 1. The bias is the mean probability minus the
    frequency. The ECE has 15 bins of equal width. The interval of a mean is Student's t interval, corrected for skewness and
    computed from each row's contribution. The interval of the pooled ECE is ``interval(ECE(), predictions.pooled())``. The
    macro ECE has 15 bins for each label, most of which mainly contain noise. It therefore has no interval, but its mean
    for a calibrated model is given.

    Args:
        predictions: Labelled predictions of several labels per row.
        uncertainty: Whether to compute intervals.
        level: Coverage of the intervals, in (0, 1).

    Returns:
        Two rows per metric, pooled and macro.

    Raises:
        InputError: If a label is missing in all rows, so that a mean over labels cannot include it.

    Examples:
        >>> from calibrant import MultiLabel
        >>> data = MultiLabel.from_probs([[0.8, 0.3], [0.8, 0.3]] * 50, [[1, 0], [1, 1]] * 25 + [[1, 0], [0, 0]] * 25)
        >>> rows = multilabel_panel(data)
        >>> [(row.metric, row.average, round(row.value, 3)) for row in rows][4:6]
        [('Bias', 'pooled', 0.05), ('Bias', 'macro', 0.05)]
    """
    data = _require_known(predictions)
    none = _few_events(data) if uncertainty else "left out"
    rows, labels = Panel(), [data.label(k) for k in range(len(data.names))]

    def add(
        metric: str,
        average: Literal["pooled", "macro"],
        value: float,
        found: Interval | str,
        null_mean: float | None = None,
    ) -> None:
        low, high, refused = (None, None, found) if isinstance(found, str) else (found.low, found.high, None)
        place: dict[str, Any] = {"n": len(data), "labels": len(labels), "average": average}
        rows.append(Row(metric, value, low, high, None, null_mean=null_mean, refused=refused, label=metric, **place))

    def of_scores(scores: Tensor) -> Interval | str:
        if none or not bool(torch.isfinite(scores).all()):
            return none or "an infinite log-loss has no interval"
        return mean_interval(scores, groups=data.groups, weight=data.weights, level=level)

    weight, known = data.row_weights, data.known.double()
    of_label = weight @ known  # (L,) weight of the rows in which each label is known
    for metric, terms in label_terms(data).items():
        sums = weight @ terms
        means = sums / of_label
        pooled, macro = float(sums.sum() / of_label.sum()), float(means.mean())
        if not math.isfinite(pooled):
            message = (
                "expected a positive probability of what happened for every label, got 0, so the log-loss is infinite; "
                "check these labels, or give both outcomes of every label a probability above 0"
            )
            warn_user(message, ZeroProbabilityWarning)
        # One number per row, whose weighted mean is the metric m and whose variation is that of the metric's linear part. Pooled:
        # m + Σ_j known_ij (t_ij − m) W / Σ_j W_j; macro: m + 1/L Σ_j known_ij (t_ij − m_j) W / W_j. The number of known labels
        # differs between rows.
        of_rows = ((terms - pooled) * known).sum(dim=1) * weight.sum() / of_label.sum()
        of_means = ((terms - means) * known * weight.sum() / of_label).mean(dim=1)
        add(metric, "pooled", pooled, of_scores(pooled + of_rows))
        add(metric, "macro", macro, of_scores(macro + of_means))

    every = data.pooled()
    try:
        ends = none or interval(ECE(), every, level=level)
    except NoIntervalError as error:
        ends = str(error)
    add("ECE", "pooled", ECE()(every), ends)
    # the mean of a sum does not depend on dependences between rows or labels
    null = np.mean([null_band(ECE(), replace(pairs, groups=None)).estimate for pairs in labels])
    why = "more bins than an interval is known for" if uncertainty else "left out"
    add("ECE", "macro", float(np.mean([ECE()(pairs) for pairs in labels])), why, null_mean=float(null))
    return rows


def label_terms(data: MultiLabel) -> dict[str, Tensor]:
    """Return the float64 terms (N, L) of each metric, one for each label of each row; missing labels have the term 0.

    The NLL term is −log of the probability of the outcome, computed from the logits so that it is never rounded to 0 or ∞.
    The Brier term is (p − y)², and the bias term is p − y.
    """
    y, z = data.require_labels() == 1, data.logits.double()
    gap = data.probs.double() - y.double()
    terms = {"NLL": F.softplus(torch.where(y, -z, z)), "Brier": gap.square(), "Bias": gap}
    return {metric: torch.where(data.known, values, 0.0) for metric, values in terms.items()}


def _require_known(predictions: MultiLabel) -> MultiLabel:
    """Return the rows of positive weight.

    Raises:
        InputError: If a label is not known in any of these rows.
    """
    if not isinstance(predictions, MultiLabel):
        remedy = "use panel and subgroups for one class per row, or make MultiLabel where several can be true"
        raise refuse("predictions as a MultiLabel", f"a {type(predictions).__name__}", remedy)
    data = predictions.counted
    data.require_labels()
    if len(unknown := torch.nonzero(~data.known.any(dim=0))):
        got = f"{data.names[int(unknown[0])]!r} missing (-1) in all rows"
        raise refuse("each label to be known in at least one row", got, "leave its column out, or select other rows")
    return data


def _few_events(data: MultiLabel) -> str:
    """Return a sentence if too few rows or groups have a positive label, or a negative one, for an interval.

    Otherwise return an empty string.
    """
    for kind, value in (("positive", 1), ("negative", 0)):
        holding = data[(data.require_labels() == value).any(dim=1)]
        units = holding.effective_count if holding.groups is None else len(holding.groups.unique())
        if units < _MIN_UNITS:
            unit = "rows" if data.groups is None else "groups"
            return f"expected at least {_MIN_UNITS} {unit} with a {kind} label for an interval, got {units:.3g}; measure on more rows"
    return ""


def label_table(predictions: MultiLabel, *, minimum: int = 100, level: float = 0.95) -> Subgroups:
    """Return the calibration of every label, with one test for the worst label.

    Each label is tested as ``subgroups`` tests a group, by its gap (mean probability minus frequency) and by the gaps of its
    bins. Holm's method adjusts the p-values for the number of labels, whatever the dependence between labels: the
    probability of a false alarm is at most 1 − ``level``.

    Args:
        predictions: Labelled predictions of several labels per row; their groups and weights are used.
        minimum: Smallest number of rows of a tested label, ≥ 1. Labels with fewer than 5 expected events are not tested
            either.
        level: Coverage of the intervals, in (0, 1).

    Returns:
        One row per label, with the strongest evidence first, and a verdict.

    Raises:
        InputError: If a label is missing in all rows.
        NoIntervalError: If there are fewer than ten groups of rows.

    Examples:
        >>> from calibrant import MultiLabel
        >>> y = [[1, 0]] * 70 + [[0, 1]] * 70 + [[0, 0]] * 60
        >>> found = label_table(MultiLabel.from_probs([[0.35, 0.8]] * 200, y, names=["cat", "dog"]))
        >>> found.rows[0].name, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('dog', 0.45, True)

    References:
        Holm 1979.
    """
    data = _require_known(predictions)
    require_groups(data.groups, what="labels")
    parts = [(name, (), data.label(name)) for name in data.names]
    return Subgroups(rows=tuple(with_tests(parts, minimum=minimum, level=level)), level=level, unit="label")


def measure(
    data: Data | MultiLabel, *, metrics: Sequence[Metric] | None = None, draws: int = 1000, **place: str | None
) -> list[Row]:
    """Return one row per metric.

    Args:
        data: Labelled predictions with one class or several labels per row, or top-label pairs.
        metrics: The metrics. None is the default panel, which is the only choice for several labels per row.
        draws: Number of simulated label sets for intervals and for the limits of a calibrated model; 0 omits both.
        place: The row's file, split, calibrator and group.
    """
    if isinstance(data, MultiLabel):
        figures = multilabel_panel(data, uncertainty=draws > 0)
    else:
        figures = panel(data, metrics=metrics, uncertainty=draws > 0, draws=max(draws, 1))
    return [replace(row, **place) for row in figures]  # type: ignore[arg-type]
