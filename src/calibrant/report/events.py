"""The figures of an event's probability: of two classes, or of pairs of a probability and an outcome."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.data.pairs import Pairs
from calibrant.errors import FitError
from calibrant.evaluate import calibration_line
from calibrant.evaluate.tables import Row
from calibrant.plot.diagrams import Diagram, Floats, IsotonicDiagram, diagram_of, isotonic_diagram, pair_columns
from calibrant.report.model import Table, table_of_states
from calibrant.report.wording import points, signed, too_high_or_low
from calibrant.statistics.means import Interval, normal_quantile

FEWEST = 20  # events, and rows without one, below which gap and slope have no interval: fewer were not simulated
ONE_SIDED = 0.9  # of the ECE: a mean gap of as much leaves 5 % of it to the other side
LEVEL = 0.95
BARS = 20  # of the histograms of rows with and without the event


@dataclass(frozen=True, eq=False)
class EventFigures:
    """The figures of an event's probability before calibration, or after it.

    Args:
        ece: The calibration error in 15 bins of equal width, with its interval and limits.
        gap: Calibration in the large, mean probability − frequency; its interval is normal. All intervals are NaN where rows are
            dependent or weighted, or too few have the event or have it not.
        slope: Of the log-odds (Cox 1958); None where the outcomes do not determine it.
        intercept: Likewise.
        brier: Mean (p − y)².
        auroc: The chance that a row with the event has the higher probability, half for equal ones; None without such pairs.
        diagram: In bins of equal mass; its confidence is the mean probability, its accuracy the frequency of the event.
        isotonic: The isotonic curve and its band.
        histogram: (2, 20) fractions of the rows with and without the event in bins of equal width.
    """

    ece: Row
    gap: Interval
    slope: Interval | None
    intercept: Interval | None
    brier: float
    auroc: float | None
    diagram: Diagram
    isotonic: IsotonicDiagram
    histogram: Floats

    @property
    def lacking(self) -> str:
        """The kind of rows of which there is none, in words, or ""."""
        return {0.0: "rows with the event", 1.0: "rows without it"}.get(self.diagram.accuracy, "")

    @property
    def off(self) -> list[str]:
        """What gap and slope say with their own intervals, in words; empty where both contain a calibrated model's."""
        parts = []
        if _excludes(self.gap, 0):
            parts.append(f"{too_high_or_low(self.gap.estimate)} on average")
        if self.slope is not None and _excludes(self.slope, 1):
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


def event_of(pairs: Pairs, ece: Row, *, independent: bool) -> EventFigures:
    """Return the figures of an event.

    Args:
        pairs: The event's probability and outcome in each row of positive weight.
        ece: The calibration error of the event's probability in 15 bins of equal width, with its interval and limits.
        independent: Whether rows are independent and have no weights.
    """
    p, y, weight = pair_columns(pairs)
    diagram, rows, events = diagram_of(pairs), float(weight.sum()), float(y @ weight)
    mean, brier = diagram.confidence - diagram.accuracy, float((p - y) ** 2 @ weight) / rows
    # Var (p − y) has both parts: that of p over rows, and that of the outcomes
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(max(brier - mean**2, 0.0) / rows)
    known = independent and min(events, rows - events) >= FEWEST
    slope = intercept = None
    with suppress(FitError):
        line = calibration_line(pairs)
        slope, intercept = _with_ends(line.slope, known), _with_ends(line.intercept, known)
    # Mann–Whitney: rows without the event below each value, and half of those at it
    code = np.unique(p, return_inverse=True)[1]
    hits, misses = np.bincount(code, weight * y), np.bincount(code, weight * (1 - y))
    both = events * (rows - events)
    return EventFigures(
        ece=ece,
        gap=_with_ends(Interval(mean, mean - half, mean + half, LEVEL, "normal"), known),
        slope=slope,
        intercept=intercept,
        brier=brier,
        auroc=float((hits * (np.cumsum(misses) - misses / 2)).sum() / both) if both else None,
        diagram=diagram,
        isotonic=isotonic_diagram(pairs),
        histogram=np.stack([np.histogram(p, BARS, (0, 1), weights=weight * one)[0] / rows for one in (y, 1 - y)]),
    )


def _with_ends(one: Interval, known: bool) -> Interval:
    return one if known else replace(one, low=math.nan, high=math.nan)


def event_table(name: str, states: Sequence[EventFigures], *, margin: float) -> Table:
    """Return every statistic, before and after calibration, with what it is if calibrated and what to do.

    Args:
        name: Name of the event.
        states: Its figures, one or two.
        margin: ECE above which an error is large.
    """
    last = states[-1]
    together = "Read it with the slope; together they are Platt scaling." if last.slope else "As for the slope."
    ranking = "For more of it train a better model: one correction for all hardly changes the ranking."
    both = "Compare models by it: lower is better, calibration and ranking together."
    large = "calibration in the large: mean probability − rate, in points"
    ece = [state.ece.value_and_interval for state in states]
    brier = [(f"{state.brier:.4f}", "") for state in states]
    auroc = [("–" if state.auroc is None else f"{state.auroc:.4f}", "") for state in states]
    rows: list[tuple[Any, ...]] = [
        (large, [_cells(state.gap, scale=100, form="+.2f") for state in states], "0", _gap_advice(last)),
        ("slope of the log-odds", [_cells(state.slope) for state in states], "1", _slope_advice(last)),
        ("intercept, given the slope", [_cells(state.intercept) for state in states], "0", together),
        ("ECE of the event, 15 bins", ece, last.ece.limits, _ece_advice(last, margin)),
        ("Brier score (p − y)²", brier, "", both),
        ("AUROC (ranking)", auroc, "", "As for the slope." if last.auroc is None else ranking),
    ]
    note = "What to do refers to the last column of figures."
    if math.isnan(last.gap.low):
        note += f" Gap and slope have no interval here: they need independent rows, {FEWEST} events and {FEWEST} rows without one."
    return table_of_states(f"The probability of {name}", "statistic", rows, states=len(states), note=note)


def _cells(one: Interval | None, *, scale: float = 1, form: str = ".3f") -> tuple[str, str]:
    if one is None:
        return "–", ""
    value, low, high = (signed(scale * x, form) for x in (one.estimate, one.low, one.high))
    return value, "" if math.isnan(one.low) else f"{low} to {high}"


def _excludes(one: Interval, value: float) -> bool:
    """Return whether an interval that is known does not hold ``value``."""
    return one.low > value or one.high < value


def _gap_advice(state: EventFigures) -> str:
    if state.lacking:
        return f"Check the labels: there are no {state.lacking}."
    if math.isnan(state.gap.low):
        return "Label more rows to tell the average."
    if not _excludes(state.gap, 0):
        return "Nothing: the average is right, as far as these rows can tell."
    side = "rarer" if state.gap.estimate > 0 else "more frequent"
    if not state.ece.significant:
        return f"Look again on other rows: the event may be {side} than the model expects, or that is chance (one in twenty)."
    return f"Refit on recent rows, or correct for a new rate (PriorShift): the event is {side} than the model expects."


def _slope_advice(state: EventFigures) -> str:
    if state.isotonic.band_p[0] == state.isotonic.band_p[-1]:
        return "None: all probabilities are equal, so that nothing is ranked."
    if state.lacking:
        return f"Label {state.lacking}: there are none."
    slope = state.slope
    if slope is None or math.isnan(slope.low):
        return "Label more rows to tell the slope."
    if not _excludes(slope, 1):
        return "Nothing: high and low probabilities are spread as they should be."
    word = "Shrink the log-odds: probabilities are too near 0 and 1"
    if slope.estimate > 1:
        word = "Stretch the log-odds: probabilities are too close together"
    return f"{word}. A temperature of about {1 / max(slope.estimate, 1e-3):.2f} does it."


def _ece_advice(state: EventFigures, margin: float) -> str:
    if state.ece.null_high is not None and not state.ece.significant:
        return "Nothing to correct: a calibrated model scores as much by chance."
    return "Calibrate." if state.ece.value >= margin else "Below your margin: calibrate only if it costs nothing."
