"""Computes the figures of a model's predictions before or after calibration, from which every section is built."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.binning import BinTable, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import FitError
from calibrant.evaluate import calibration_line
from calibrant.evaluate.multilabel import measure
from calibrant.evaluate.panel import Row
from calibrant.metrics import ECE, ClasswiseECE, Metric
from calibrant.plot.diagrams import (
    BINS,
    LEVEL,
    Diagram,
    IsotonicDiagram,
    diagram_of,
    event_pairs,
    is_event,
    isotonic_diagram,
    pair_columns,
)
from calibrant.report.model import Model
from calibrant.report.wording import points, too_high_or_low
from calibrant.statistics.means import Interval, normal_quantile

BINNING = EqualWidth(BINS)
FEWEST = 20  # smallest numbers of rows with and without the event for which intervals of gap and slope were simulated
ONE_SIDED = 0.9  # a mean gap of this fraction of the ECE leaves 5 % of the ECE to the other side


@dataclass(frozen=True, eq=False)
class Event:
    """The figures of an event's probability: the second of two classes, the outcome of pairs, or one of several labels.

    Args:
        ece: The calibration error in 15 bins of equal width, with its interval and limits.
        gap: Calibration in the large, mean probability − frequency, with a normal interval. The ends of this and the
            other intervals are NaN if rows are dependent or weighted, or too few rows are with or without the event.
        slope: Slope of the logistic regression on the log-odds (Cox 1958); None if the outcomes do not determine it.
        intercept: The intercept of that regression; None if the outcomes do not determine it.
        brier: Mean (p − y)².
        auroc: Probability that a row with the event has a higher p than a row without it, counting ties as half; None if
            there are no such pairs of rows.
        isotonic: The isotonic curve and its band.
    """

    ece: Row
    gap: Interval
    slope: Interval | None
    intercept: Interval | None
    brier: float
    auroc: float | None
    isotonic: IsotonicDiagram

    @property
    def off(self) -> list[str]:
        """Phrases for the gap and the slope if their intervals exclude the value of a calibrated model."""
        parts = []
        if excludes(self.gap, 0):
            parts.append(f"{too_high_or_low(self.gap.estimate)} on average")
        if self.slope is not None and excludes(self.slope, 1):
            slope = self.slope.estimate
            parts.append(f"too {'extreme' if slope < 1 else 'close together'} (slope {slope:.2f}, 1 is right)")
        return parts

    @property
    def side(self) -> str:
        """The direction of the error, in words."""
        if self.off:
            return ", and ".join(self.off)
        # the gap sums the bins' gaps with signs, the ECE without; if both are close, 95 % of the mass has one sign
        if abs(self.gap.estimate) >= ONE_SIDED * self.ece.value:
            return f"{too_high_or_low(self.gap.estimate)} on average"
        return f"off by {points(self.ece.value)} on average, too high in some ranges and too low in others"


def event_of(pairs: Pairs, ece: Row) -> Event:
    """Return the figures of an event.

    Args:
        pairs: The event's probability and outcome in each row with positive weight.
        ece: The calibration error of the event's probability in 15 bins of equal width, with its interval and limits.
    """
    p, y, weight = pair_columns(pairs)
    rows, events = float(weight.sum()), float(y @ weight)
    mean, brier = float((p - y) @ weight) / rows, float((p - y) ** 2 @ weight) / rows
    # Var (p − y) includes the variance of p over rows and that of the outcomes
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(max(brier - mean**2, 0.0) / rows)
    known = pairs.groups is None and pairs.weights is None and min(events, rows - events) >= FEWEST

    def with_ends(one: Interval) -> Interval:
        return one if known else replace(one, low=math.nan, high=math.nan)

    slope = intercept = None
    with suppress(FitError):
        line = calibration_line(pairs)
        slope, intercept = with_ends(line.slope), with_ends(line.intercept)
    # Mann–Whitney: count rows without the event below each value, and half of those equal to it
    code = np.unique(p, return_inverse=True)[1]
    hits, misses = np.bincount(code, weight * y), np.bincount(code, weight * (1 - y))
    both = events * (rows - events)
    return Event(
        ece=ece,
        gap=with_ends(Interval(mean, mean - half, mean + half, LEVEL, "normal")),
        slope=slope,
        intercept=intercept,
        brier=brier,
        auroc=float((hits * (np.cumsum(misses) - misses / 2)).sum() / both) if both else None,
        isotonic=isotonic_diagram(pairs),
    )


def excludes(one: Interval, value: float) -> bool:
    """Return whether an interval is known and does not contain ``value``."""
    return one.low > value or one.high < value


@dataclass(frozen=True, eq=False)
class State:
    """A model's predictions before or after calibration, with their figures.

    Args:
        data: The predictions.
        rows: The rows of the table of metrics, one per metric.
        pairs: The pairs that the pictures show: decisions with their confidences, or the event's probabilities.
        diagram: The reliability diagram of the pairs in bins of equal mass.
        event: The figures of the event, or None if the pairs are decisions.
        classes: The bins of each class's probability; empty for pairs and for several labels.
    """

    data: Data | MultiLabel
    rows: Sequence[Row]
    pairs: Pairs
    diagram: Diagram
    event: Event | None
    classes: Sequence[BinTable]

    def row(self, metric: Metric) -> Row:
        """Return the row of a metric."""
        return next(row for row in self.rows if row.metric == repr(metric))

    @property
    def ece(self) -> Row:
        """The row with the ECE of the event's probability, or of the confidence if there is no event."""
        return self.row(ECE()) if self.event is None else self.event.ece

    @property
    def lacking(self) -> str:
        """The kind of rows that an event lacks, in words, or ""."""
        kinds = {0.0: "rows with the event", 1.0: "rows without it"}
        return kinds.get(self.diagram.accuracy, "") if self.event else ""


def state_of(model: Model, data: Data | MultiLabel, *, draws: int, label: str | None = None) -> State:
    """Return the figures of a model's predictions.

    Args:
        model: The model.
        data: The model's ``before`` or ``after``.
        draws: As in ``write_report``.
        label: The label to show, if there are several.
    """
    place: dict[str, Any] = {"file": model.file or model.name, "split": model.split, "draws": draws}
    place["calibrator"] = None if data is model.before else model.calibrated_with
    rows, event = data.counted, None
    pairs = rows.label(label or 0) if isinstance(rows, MultiLabel) else event_pairs(rows)
    if isinstance(rows, MultiLabel) or is_event(rows):
        event = event_of(pairs, measure(pairs, metrics=[ECE(BINNING)], **place)[0])
    tables = ClasswiseECE(BINNING).table(rows).parts(rows.classes) if isinstance(rows, Predictions) else ()
    return State(data, measure(data, **place), pairs, diagram_of(pairs), event, tables)
