"""The report on the probability of an event: two classes, or pairs of a probability and an outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.errors import FitError
from calibrant.evaluate import calibration_line
from calibrant.plot.diagrams import Diagram, IsotonicDiagram, diagram_of, event_pairs, isotonic_diagram
from calibrant.report.advice import points, signed, too_high_or_low
from calibrant.report.model import Table, table_of_states
from calibrant.report.tables import Row
from calibrant.statistics.means import Interval, normal_quantile

PERCENT = 100
FEWEST = 20  # events, and rows without one, below which gap and slope have no interval: fewer were not simulated
ONE_SIDED = 0.9  # of the ECE: a mean gap of as much leaves 5 % of it to the other side
LEVEL = 0.95
Floats = NDArray[np.float64]


def percents(data: Data) -> list[list[float]]:
    """Return the rows, Σp and Σy with a probability in [i, i + 1) % for i from 0 to 100, of the event, or of the decision's confidence."""
    pairs = event_pairs(data)
    p, y, weight = (column.detach().cpu().double().numpy() for column in (pairs.p, pairs.y, pairs.row_weights))
    # the edges as numbers: 100 p would move a probability across them by its rounding
    at = np.searchsorted(np.arange(1, PERCENT + 1) / PERCENT, p, side="right")
    return [np.bincount(at, weight * one, minlength=PERCENT + 1).tolist() for one in (1.0, p, y)]


@dataclass(frozen=True, eq=False)
class EventFigures:
    """The figures of an event's probability before calibration, or after it.

    Args:
        pairs: The event's probability and outcome in each row of positive weight.
        ece: The calibration error of the event's probability in 15 bins of equal width, with its interval and limits.
        independent: Whether rows are independent and count once or as often as they occurred.
    """

    pairs: Pairs
    ece: Row
    independent: bool

    @cached_property
    def _columns(self) -> tuple[Floats, Floats, Floats]:
        columns = (self.pairs.p, self.pairs.y, self.pairs.row_weights)
        p, y, weight = (column.detach().cpu().double().numpy() for column in columns)
        return p, y, weight

    def _mean(self, values: Floats) -> float:
        return float(np.average(values, weights=self._columns[2]))

    @cached_property
    def rows(self) -> float:
        """Rows, by their counts or weights."""
        return float(self._columns[2].sum())

    @cached_property
    def events(self) -> float:
        """Rows with the event."""
        return float(self._columns[1] @ self._columns[2])

    @cached_property
    def mean(self) -> float:
        """Mean probability."""
        return self._mean(self._columns[0])

    @property
    def rate(self) -> float:
        """Frequency of the event."""
        return self.events / self.rows

    @property
    def lacking(self) -> str:
        """The kind of rows of which there is none, in words, or ""."""
        return "rows with the event" if not self.events else "rows without it" if self.events == self.rows else ""

    @property
    def enough(self) -> bool:
        """Whether there are events, and rows without one, for intervals of gap and slope."""
        return self.independent and min(self.events, self.rows - self.events) >= FEWEST

    @property
    def all_equal(self) -> bool:
        """Whether every row has the same probability, so that nothing is ranked."""
        return bool(self.pairs.p.min() == self.pairs.p.max())

    @cached_property
    def gap(self) -> Interval:
        """Calibration in the large: mean probability − frequency; its interval is normal and has both variances."""
        mean = self.mean - self.rate
        # Var (p − y) has both parts: that of p over rows, and that of the outcomes
        half = normal_quantile((1 + LEVEL) / 2) * float(np.sqrt(max(self.brier - mean**2, 0.0) / self.rows))
        return Interval(mean, mean - half, mean + half, LEVEL, "normal")

    @cached_property
    def line(self) -> tuple[Interval, Interval] | None:
        """The slope and the intercept of the log-odds (Cox 1958); None where the outcomes do not determine them."""
        try:
            fitted = calibration_line(self.pairs)
        except FitError:
            return None
        return fitted.slope, fitted.intercept

    @cached_property
    def brier(self) -> float:
        """Mean (p − y)² of the event."""
        p, y, _ = self._columns
        return self._mean((p - y) ** 2)

    @cached_property
    def auroc(self) -> float | None:
        """The chance that a row with the event has the higher probability; rows of equal probability count one half."""
        p, y, weight = self._columns
        code = np.unique(p, return_inverse=True)[1]
        hits, misses = np.bincount(code, weight * y), np.bincount(code, weight * (1 - y))
        # Mann–Whitney: rows without the event below each value, and half of those at it
        pairs = hits.sum() * misses.sum()
        return float((hits * (np.cumsum(misses) - misses / 2)).sum() / pairs) if pairs else None

    @cached_property
    def diagram(self) -> Diagram:
        """The reliability diagram of the event in bins of equal mass."""
        return diagram_of(self.pairs)

    @cached_property
    def isotonic(self) -> IsotonicDiagram:
        """The isotonic curve and its band."""
        return isotonic_diagram(self.pairs)

    @cached_property
    def percents(self) -> tuple[list[float], list[float]]:
        """The events, and the rows without one, with p in [i, i + 1) % for i from 0 to 100."""
        count, _, hits = percents(self.pairs)
        return hits, [rows - events for rows, events in zip(count, hits, strict=True)]

    @cached_property
    def off(self) -> list[str]:
        """What gap and slope say with their own intervals, in words; empty where both contain a calibrated model's."""
        parts = []
        if self.enough and not self.gap.low <= 0 <= self.gap.high:
            parts.append(f"{too_high_or_low(self.gap.estimate)} on average")
        if self.enough and self.line is not None and not self.line[0].low <= 1 <= self.line[0].high:
            slope = self.line[0].estimate
            parts.append(f"too {'extreme' if slope < 1 else 'close together'} (slope {slope:.2f}, 1 is right)")
        return parts

    @property
    def side(self) -> str:
        """How the probabilities are off, in words."""
        both = f"off by {points(self.ece.value)} on average, too high in some ranges and too low in others"
        return ", and ".join(self.off) or (
            f"{too_high_or_low(self.gap.estimate)} on average" if self.one_side else both
        )

    @property
    def one_side(self) -> str:
        """ "high" or "low" where the gap has no interval and nearly all bins are off to that side, else ""."""
        gap = self.gap.estimate
        # the gap is the bins' gaps with their signs, the ECE the same without: alike, 95 % of that mass has one sign
        one = not self.enough and abs(gap) >= ONE_SIDED * self.ece.value and gap != 0
        return ("high" if gap > 0 else "low") if one else ""

    def fact(self, name: str, rows: str) -> str:
        """Return how often the event called ``name`` happens in ``rows``, and is expected, as a sentence."""
        happened = f"{self.rate * self.ece.n:,.0f} ({100 * self.rate:.1f} %) of {rows}".removesuffix(",")
        return f"The event, {name}, happened in {happened}. Its mean probability is {100 * self.mean:.1f} %."

    @property
    def plain(self) -> dict[str, Any]:
        """The figures as JSON data."""
        slope, intercept = self.line or (None, None)
        return {
            "rows": self.ece.n, "events": self.rate * self.ece.n, "mean": self.mean, "rate": self.rate,
            "gap": _value_and_ends(self.gap, self.enough),
            "slope": _value_and_ends(slope, self.enough), "intercept": _value_and_ends(intercept, self.enough),
            "ece": self.ece.plain(), "brier": self.brier, "auroc": self.auroc,
        }  # fmt: skip


def event_table(name: str, states: Sequence[EventFigures], *, margin: float) -> Table:
    """Return every statistic, before and after calibration, with what it is if calibrated and what to do.

    Args:
        name: Name of the event.
        states: Its figures, one or two.
        margin: ECE above which an error is large.
    """
    last = states[-1]
    rows = [
        (label, [shown(state) for state in states], calibrated(last), todo(last, margin))
        for label, calibrated, shown, todo in _STATISTICS
    ]
    note = "What to do refers to the last column of figures."
    if not last.enough:
        note += f" Gap and slope have no interval here: they need independent rows, {FEWEST} events and {FEWEST} rows without one."
    return table_of_states(f"The probability of {name}", "statistic", rows, states=len(states), note=note)


def _value_and_ends(found: Interval | None, shown: bool) -> dict[str, float | None] | None:
    return (
        None
        if found is None
        else {"value": found.estimate, "low": found.low if shown else None, "high": found.high if shown else None}
    )


def _figure_and_interval(found: Interval | None, enough: bool, *, percent: bool = False) -> tuple[str, str]:
    if found is None:
        return "–", ""
    scale, form = (100, "+.2f") if percent else (1, ".3f")
    value, low, high = (signed(scale * x, form) for x in (found.estimate, found.low, found.high))
    return value, f"{low} to {high}" if enough else ""


def _significant(row: Row) -> bool:
    return row.null_high is not None and row.value > row.null_high


def _gap_advice(state: EventFigures, _: float) -> str:
    if not state.enough:
        if state.one_side and _significant(state.ece):
            return (
                f"Probabilities are too {state.one_side}: do what the ECE says (below); the gap has no interval here."
            )
        return (
            f"Check the labels: there are no {state.lacking}."
            if state.lacking
            else "Label more rows to tell the average."
        )
    if state.gap.low <= 0 <= state.gap.high:
        return "Nothing: the average is right, as far as these rows can tell."
    side = "rarer" if state.gap.estimate > 0 else "more frequent"
    if not _significant(state.ece):
        return f"Look again on other rows: the event may be {side} than the model expects, or that is chance (one in twenty)."
    return f"Refit on recent rows, or correct for a new rate (PriorShift): the event is {side} than the model expects."


def _slope_advice(state: EventFigures, _: float) -> str:
    if state.all_equal:
        return "None: all probabilities are equal, so that nothing is ranked."
    if state.lacking:
        return f"Label {state.lacking}: there are none."
    if state.line is None or not state.enough:
        return "Label more rows to tell the slope."
    slope = state.line[0]
    if slope.low <= 1 <= slope.high:
        return "Nothing: high and low probabilities are spread as they should be."
    word = (
        "Shrink the log-odds: probabilities are too near 0 and 1"
        if slope.estimate < 1
        else "Stretch the log-odds: probabilities are too close together"
    )
    return f"{word}. A temperature of about {1 / max(slope.estimate, 1e-3):.2f} does it."


def _ece_advice(state: EventFigures, margin: float) -> str:
    row = state.ece
    if row.null_high is not None and not _significant(row):
        return "Nothing to correct: a calibrated model scores as much by chance."
    return "Calibrate." if row.value >= margin else "Below your margin: calibrate only if it costs nothing."


_STATISTICS: Sequence[
    tuple[str, Callable[[EventFigures], str], Callable[[EventFigures], tuple[str, str]], Callable[[EventFigures, float], str]]
] = (
    (
        "calibration in the large: mean probability − rate, in points", lambda _: "0",
        lambda s: _figure_and_interval(s.gap, s.enough, percent=True), _gap_advice,
    ),
    ("slope of the log-odds", lambda _: "1", lambda s: _figure_and_interval(s.line and s.line[0], s.enough), _slope_advice),
    (
        "intercept, given the slope", lambda _: "0", lambda s: _figure_and_interval(s.line and s.line[1], s.enough),
        lambda s, _: "Read it with the slope; together they are Platt scaling." if s.line else "As for the slope.",
    ),
    (
        "ECE of the event, 15 bins", lambda s: s.ece.limits,
        lambda s: s.ece.value_and_interval, _ece_advice,
    ),
    (
        "Brier score (p − y)²", lambda _: "", lambda s: (f"{s.brier:.4f}", ""),
        lambda *_: "Compare models by it: lower is better, calibration and ranking together.",
    ),
    (
        "AUROC (ranking)", lambda _: "", lambda s: ("–" if s.auroc is None else f"{s.auroc:.4f}", ""),
        lambda s, _: (
            "As for the slope."
            if s.auroc is None
            else "For more of it train a better model: one correction for all hardly changes the ranking."
        ),
    ),
)  # fmt: skip
