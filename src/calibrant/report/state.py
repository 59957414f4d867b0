"""The figures of a model's predictions, before or after calibration: the one state on which every section of a report rests."""

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
from calibrant.evaluate.tables import Row, measure
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
FEWEST = 20  # events, and rows without one, below which gap and slope have no interval: fewer were not simulated
ONE_SIDED = 0.9  # of the ECE: a mean gap of as much leaves 5 % of it to the other side


@dataclass(frozen=True, eq=False)
class Event:
    """The figures of an event's probability: of two classes, of pairs of a probability and an outcome, or of one of several labels.

    Args:
        ece: The calibration error in 15 bins of equal width, with its interval and limits.
        gap: Calibration in the large, mean probability − frequency; its interval is normal. All intervals are NaN where rows are
            dependent or weighted, or too few have the event or have it not.
        slope: Of the log-odds (Cox 1958); None where the outcomes do not determine it.
        intercept: Likewise.
        brier: Mean (p − y)².
        auroc: The chance that a row with the event has the higher probability, half for equal ones; None without such pairs.
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
        """What gap and slope say with their own intervals, in words; empty where both contain a calibrated model's."""
        parts = []
        if excludes(self.gap, 0):
            parts.append(f"{too_high_or_low(self.gap.estimate)} on average")
        if self.slope is not None and excludes(self.slope, 1):
            slope = self.slope.estimate
            parts.append(f"too {'extreme' if slope < 1 else 'close together'} (slope {slope:.2f}, 1 is right)")
        return parts

    @property
    def side(self) -> str:
        """How the probabilities are off, in words."""
        if self.off:
            return ", and ".join(self.off)
        # the gap is the bins' gaps with their signs, the ECE the same without: alike, 95 % of that mass has one sign
        if abs(self.gap.estimate) >= ONE_SIDED * self.ece.value:
            return f"{too_high_or_low(self.gap.estimate)} on average"
        return f"off by {points(self.ece.value)} on average, too high in some ranges and too low in others"


def event_of(pairs: Pairs, ece: Row) -> Event:
    """Return the figures of an event.

    Args:
        pairs: The event's probability and outcome in each row of positive weight.
        ece: The calibration error of the event's probability in 15 bins of equal width, with its interval and limits.
    """
    p, y, weight = pair_columns(pairs)
    rows, events = float(weight.sum()), float(y @ weight)
    mean, brier = float((p - y) @ weight) / rows, float((p - y) ** 2 @ weight) / rows
    # Var (p − y) has both parts: that of p over rows, and that of the outcomes
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(max(brier - mean**2, 0.0) / rows)
    known = pairs.groups is None and pairs.weights is None and min(events, rows - events) >= FEWEST

    def with_ends(one: Interval) -> Interval:
        return one if known else replace(one, low=math.nan, high=math.nan)

    slope = intercept = None
    with suppress(FitError):
        line = calibration_line(pairs)
        slope, intercept = with_ends(line.slope), with_ends(line.intercept)
    # Mann–Whitney: rows without the event below each value, and half of those at it
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
    """Return whether an interval that is known does not hold ``value``."""
    return one.low > value or one.high < value


@dataclass(frozen=True, eq=False)
class State:
    """A model's predictions before calibration, or after it, with their figures.

    Args:
        data: The predictions.
        rows: Every metric of the panel.
        pairs: What the pictures show: the decisions with their confidences, or the event's probabilities.
        diagram: Of the pairs, in bins of equal mass.
        event: The figures of the event, or None where the pairs are decisions.
        classes: The bins of each class's probability; none for pairs and for several labels.
    """

    data: Data | MultiLabel
    rows: Sequence[Row]
    pairs: Pairs
    diagram: Diagram
    event: Event | None
    classes: Sequence[BinTable]

    def row(self, metric: Metric) -> Row:
        """Return the row of a metric that every panel has."""
        return next(row for row in self.rows if row.metric == repr(metric))

    @property
    def ece(self) -> Row:
        """The row of the ECE of the event, or of the decision's confidence."""
        return self.row(ECE()) if self.event is None else self.event.ece

    @property
    def lacking(self) -> str:
        """The kind of rows of which an event has none, in words, or ""."""
        kinds = {0.0: "rows with the event", 1.0: "rows without it"}
        return kinds.get(self.diagram.accuracy, "") if self.event else ""


def state_of(model: Model, data: Data | MultiLabel, *, draws: int, label: str | None = None) -> State:
    """Return the figures of a model's predictions.

    Args:
        model: The model.
        data: Its ``before`` or ``after``.
        draws: As in ``write_report``.
        label: Which of several labels is shown.
    """
    place: dict[str, Any] = {"file": model.file or model.name, "split": model.split, "draws": draws}
    place["calibrator"] = None if data is model.before else model.calibrated_with
    rows, event = data.counted, None
    pairs = rows.label(label or 0) if isinstance(rows, MultiLabel) else event_pairs(rows)
    if isinstance(rows, MultiLabel) or is_event(rows):
        event = event_of(pairs, measure(pairs, metrics=[ECE(BINNING)], **place)[0])
    tables = ClasswiseECE(BINNING).state(rows).parts(rows.classes) if isinstance(rows, Predictions) else ()
    return State(data, measure(data, **place), pairs, diagram_of(pairs), event, tables)
