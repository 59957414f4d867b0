"""The report on the probability of an event: two classes, or pairs of a probability and an outcome.

Every figure comes from one sum, the table of ``Cells``, so that rows in memory and rows on disk give the same page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.binning import BinTable
from calibrant.data.checks import Data
from calibrant.data.predictions import Events
from calibrant.errors import FitError
from calibrant.evaluate import calibration_line
from calibrant.operate.bounds import Moments, mean_ends
from calibrant.operate.decide import NetBenefit
from calibrant.plot.diagrams import Diagram, IsotonicDiagram, diagram_from, event_pairs, isotonic_of_cells
from calibrant.report.advice import points, signed, too_high_or_low
from calibrant.report.model import Table, table_of_states
from calibrant.report.tables import Row
from calibrant.statistics.interval import normal_quantile, wilson
from calibrant.statistics.means import Interval
from calibrant.statistics.null import CELLS

BINS = 15
PERCENT = 100  # cells of equal width, at whose edges rates and histograms are exact
_PER_UNIT, _FARTHEST = 32, 37  # cells per unit of log-odds; at ±37 a float64 probability is 0 or 1
_BAND = 400  # cells in which the band is drawn: more would enlarge the page and not change it by a line's width
FEWEST = 20  # events, and rows without one, below which gap and slope have no interval: fewer were not simulated
ONE_SIDED = 0.9  # of the ECE: a mean gap of as much leaves 5 % of it to the other side
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEVEL = 0.95
Floats = NDArray[np.float64]


@cache
def _starts() -> tuple[Tensor, Tensor]:
    """Return where the cells of ``Cells`` start, and the percent of each cell; bins of equal width are unions of cells.

    A bin of equal width is (lo, hi], so that its cells start at the next number above lo; a percent is [lo, hi), since a
    threshold t takes the rows with p ≥ t. Log-odds are cut every 1/32: within a cell the rows' log-odds then differ from
    their mean by at most 1/32, and a slope by about (1/32)² / 12 of itself. Cuts at every 1/1024 leave bins of equal mass and the
    risk at a coverage narrow where most rows lie; towards 1 the log-odds cut more finely.
    """
    percents = torch.arange(1, PERCENT + 1, dtype=torch.float64) / PERCENT
    bins = torch.arange(1, BINS, dtype=torch.float64) / BINS
    above = torch.nextafter(bins, torch.ones_like(bins))
    log_odds = torch.arange(-_FARTHEST * _PER_UNIT, _FARTHEST * _PER_UNIT + 1, dtype=torch.float64) / _PER_UNIT
    fine = torch.arange(CELLS, dtype=torch.float64) / CELLS
    starts = torch.unique(torch.cat([fine, percents, above, torch.sigmoid(log_odds)]))
    return starts, torch.searchsorted(percents, starts, right=True)


@dataclass(frozen=True)
class Cells:
    """Counts and sums of a probability in about 3,400 cells.

    Args:
        decision: Whether of the decision's confidence in every case; else of the event's probability where there is an event.
    """

    decision: bool = False

    def state(self, data: Data) -> BinTable:
        """Return the table of the cells."""
        pairs = data.top_label() if self.decision else event_pairs(data)
        starts = _starts()[0]
        p = pairs.p.detach().cpu().double().contiguous()
        index = torch.searchsorted(starts, p, right=True) - 1
        weight = None if pairs.weights is None else pairs.weights.cpu()
        return BinTable.from_pairs(index, p, pairs.y.cpu(), bins=len(starts), weight=weight)


def merged(cells: BinTable, home: Tensor, *, bins: int) -> BinTable:
    """Return the table of larger bins.

    Args:
        cells: C cells.
        home: (C,) bin of each.
        bins: Number of bins.
    """

    def gathered(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=values.dtype).index_add_(0, home, values)

    squares = None if cells.squares is None else gathered(cells.squares)
    return BinTable(gathered(cells.count), gathered(cells.sum_p), gathered(cells.sum_y), cells.total, squares)


def percents(cells: BinTable) -> list[list[float]]:
    """Return the rows, Σp and Σy with p in [i, i + 1) % for i from 0 to 100, of the cells of ``Cells``."""
    table = merged(cells, _starts()[1], bins=PERCENT + 1)
    return [table.count.tolist(), table.sum_p.tolist(), table.sum_y.tolist()]


def mass_table(cells: BinTable, *, bins: int = BINS) -> tuple[BinTable, list[float]]:
    """Return bins of nearly equal mass, unions of cells, and their edges.

    A cell belongs to the bin of its middle rank, so a bin's mass is off by at most half a cell at either end.

    Args:
        cells: Cells in ascending order of p, with at least one row.
        bins: How many.
    """
    kept = torch.nonzero(cells.count)[:, 0]
    count = cells.count[kept].double()
    # the rank of a cell's middle row says in which bin of equal mass it lies
    middle = count.cumsum(0) - count / 2
    names, code = torch.unique((middle * bins / count.sum()).long().clamp_max(bins - 1), return_inverse=True)
    squares = None if cells.squares is None else cells.squares[kept]
    filled = BinTable(cells.count[kept], cells.sum_p[kept], cells.sum_y[kept], cells.total, squares)
    # an edge lies midway between the mean probabilities of the cells on its sides
    mean, ends = filled.sum_p / count, torch.nonzero(code.diff())[:, 0]
    between = ((mean[ends] + mean[ends + 1]) / 2).tolist()
    return merged(filled, code, bins=len(names)), [0.0, *between, 1.0]


@dataclass(frozen=True)
class Rate:
    """What acting from a probability on does.

    Args:
        threshold: Acted on where p ≥ it.
        flagged: Fraction of rows acted on.
        caught: Fraction of the events among them: sensitivity.
        false_alarms: Fraction of the rows without the event that are acted on: 1 − specificity.
        right: Fraction of the rows acted on that have the event: precision; None if there are none.
        benefit: Net benefit, in true positives per row.
        always: That of acting on every row.
    """

    threshold: float
    flagged: float
    caught: float
    false_alarms: float
    right: float | None
    benefit: float
    always: float


@dataclass(frozen=True, eq=False)
class EventFigures:
    """The figures of an event's probability before calibration, or after it.

    Args:
        cells: The state of ``Cells``.
        ece: The calibration error of the event's probability in 15 bins of equal width, with its interval and limits.
        independent: Whether rows are independent and count once or as often as they occurred.
    """

    cells: BinTable
    ece: Row
    independent: bool

    @property
    def rows(self) -> float:
        """Rows, by their counts or weights."""
        return float(self.cells.total)

    @property
    def events(self) -> float:
        """Rows with the event."""
        return float(self.cells.sum_y.sum())

    @property
    def mean(self) -> float:
        """Mean probability."""
        return float(self.cells.sum_p.sum()) / self.rows

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

    @cached_property
    def filled(self) -> tuple[Floats, Floats, Floats]:
        """The mean p, the rows and the events of each cell that has rows."""
        kept = self.cells.count > 0
        count, sum_p, sum_y = (
            part[kept].double().numpy() for part in (self.cells.count, self.cells.sum_p, self.cells.sum_y)
        )
        # rounding of the sums must not leave [0, 1] and [0, count]
        return np.clip(sum_p / count, 0.0, 1.0), count, np.clip(sum_y, 0.0, count)

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
        p, count, hits = self.filled
        # a cell of n rows and k events is k rows with and n − k without the event at its mean probability
        kinds = [(np.ones(len(p)), hits), (np.zeros(len(p)), count - hits)]
        y, weight = (np.concatenate([kind[at] for kind in kinds]) for at in (0, 1))
        whole = not self.cells.count.is_floating_point()
        pairs = Events(
            p=torch.from_numpy(np.concatenate([p, p])),
            y=torch.from_numpy(y).to(torch.int64),
            weights=torch.from_numpy(np.rint(weight).astype(np.int64) if whole else weight),
            weight_kind="frequency" if whole else "sampling",
        )
        try:
            fitted = calibration_line(pairs)
        except FitError:
            return None
        return fitted.slope, fitted.intercept

    @cached_property
    def brier(self) -> float:
        """Mean (p − y)² of the event."""
        p, count, hits = self.filled
        return float((count * p**2 - 2 * p * hits + hits).sum()) / self.rows

    @cached_property
    def auroc(self) -> float | None:
        """The chance that a row with the event has the higher probability; rows of one cell count one half."""
        _, count, hits = self.filled
        misses = count - hits
        # Mann–Whitney: rows without the event below each cell, and half of those in it
        below = np.cumsum(misses) - misses / 2
        pairs = hits.sum() * misses.sum()
        return float((hits * below).sum() / pairs) if pairs else None

    @cached_property
    def diagram(self) -> Diagram:
        """The reliability diagram of the event in bins of equal mass."""
        table, edges = mass_table(self.cells)
        return diagram_from(table, edges=edges)

    @cached_property
    def isotonic(self) -> IsotonicDiagram:
        """The isotonic curve and its band."""
        p, count, hits = self.filled
        band, _ = mass_table(self.cells, bins=_BAND)
        return isotonic_of_cells(p, count, hits, self.brier, band=(band.count.double().numpy(), band.sum_p.numpy()))

    @cached_property
    def percents(self) -> tuple[list[float], list[float]]:
        """The events, and the rows without one, with p in [i, i + 1) % for i from 0 to 100."""
        count, _, hits = percents(self.cells)
        return hits, [rows - events for rows, events in zip(count, hits, strict=True)]

    def rate_at(self, threshold: float) -> Rate:
        """Return what acting from ``threshold``, a whole percent, on does."""
        # percents start at their lower end, so that rows with p ≥ t are whole cells
        events, misses = (np.array(part)[round(PERCENT * threshold) :].sum() for part in self.percents)
        none, odds = self.rows - self.events, threshold / (1 - threshold)
        return Rate(
            threshold,
            float(events + misses) / self.rows,
            float(events) / self.events if self.events else 0.0,
            float(misses) / none if none else 0.0,
            float(events) / float(events + misses) if events + misses else None,
            float(events - odds * misses) / self.rows,
            (self.events - odds * none) / self.rows,
        )

    @cached_property
    def benefits(self) -> list[NetBenefit]:
        """The net benefit at 2 % … 50 %, with bounds that hold at each threshold and number of independent rows."""
        found = []
        for percent in range(2, 51, 2):
            at, odds = self.rate_at(percent / PERCENT), percent / (PERCENT - percent)
            low = high = at.benefit
            if self.independent:
                hits, misses = at.caught * self.events, at.false_alarms * (self.rows - self.events)
                # of benefit b_i = y − odds (1 − y) on flagged rows: N, Σ b and Σ b²
                sums = [np.array([x]) for x in (self.rows, hits - odds * misses, hits + odds**2 * misses)]
                low, high = mean_ends(Moments(*sums), low=-odds, high=1.0, alpha=(1 - LEVEL) / 2)
            found.append(NetBenefit(at.threshold, at.benefit, low, high, at.always))
        return found

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


@dataclass(frozen=True, eq=False)
class EventSection:
    """The event's probability before calibration, and after it if there is a calibrator.

    Args:
        name: Name of the event.
        states: Its figures, one or two.
        margin: ECE above which an error is large.
    """

    name: str
    states: Sequence[EventFigures]
    margin: float

    @property
    def last(self) -> EventFigures:
        """The figures after calibration, or before it without a calibrator."""
        return self.states[-1]

    def fact(self, rows: str) -> str:
        """Return how often the event happens in ``rows``, and is expected, as a sentence."""
        first = self.states[0]
        happened = f"{first.rate * first.ece.n:,.0f} ({100 * first.rate:.1f} %) of {rows}".removesuffix(",")
        return f"The event, {self.name}, happened in {happened}. Its mean probability is {100 * first.mean:.1f} %."

    def side_of(self, state: EventFigures) -> str:
        """Return how the probabilities are off, in words."""
        return f"Probabilities of {self.name} are {state.side}"

    @property
    def statistics(self) -> Table:
        """Every statistic, before and after, with what it is if calibrated and what to do."""
        rows = [
            (label, [shown(state) for state in self.states], calibrated(self.last), todo(self.last, self.margin))
            for label, calibrated, shown, todo in _STATISTICS
        ]
        note = "What to do refers to the last column of figures."
        if not self.last.enough:
            note += f" Gap and slope have no interval here: they need independent rows, {FEWEST} events and {FEWEST} rows without one."
        title = f"The probability of {self.name}"
        return table_of_states(title, "statistic", rows, states=len(self.states), note=note)

    @property
    def rates(self) -> Table:
        """Rates at thresholds of the last probabilities."""
        rows = []
        for t in THRESHOLDS:
            at = self.last.rate_at(t)
            right = "" if at.right is None else _share(at.right, at.flagged * self.last.rows, self.last.independent)
            caught = _share(at.caught, self.last.events, self.last.independent)
            shown = [f"{100 * t:.0f} %", f"{100 * at.flagged:.1f} %", caught, f"{100 * at.false_alarms:.1f} %", right]
            rows.append([*shown, signed(at.benefit, "+.4f"), signed(at.always, "+.4f")])
        header = [
            "act from",
            "rows acted on",
            "events caught",
            "false alarms",
            "right when acting",
            "net benefit",
            "of always acting",
        ]
        note = (
            "Act from t if a missed event costs (1 − t) / t times a false alarm: from 20 % if it costs four times as much. Events "
            "caught: sensitivity. False alarms: of the rows without the event. Right when acting: precision. Net benefit: true "
            "positives per row, less false alarms at that price; take the threshold only where it exceeds 0 and always acting. "
            "In brackets: 95 %."
        )
        return Table(f"Acting on {self.name}{' after calibration' if len(self.states) > 1 else ''}", header, rows, note)

    @property
    def plain(self) -> list[dict[str, Any]]:
        """The figures as JSON data."""
        found = []
        for state in self.states:
            line = state.line
            found.append(
                {
                    "rows": state.ece.n, "events": state.rate * state.ece.n, "mean": state.mean, "rate": state.rate,
                    "gap": _value_and_ends(state.gap, state.enough),
                    "slope": None if line is None else _value_and_ends(line[0], state.enough),
                    "intercept": None if line is None else _value_and_ends(line[1], state.enough),
                    "ece": state.ece.plain(), "brier": state.brier, "auroc": state.auroc,
                    "rates": [vars(state.rate_at(t)) for t in THRESHOLDS],
                }
            )  # fmt: skip
        return found


def _value_and_ends(found: Interval, shown: bool) -> dict[str, float | None]:
    return {"value": found.estimate, "low": found.low if shown else None, "high": found.high if shown else None}


def _share(value: float, of: float, independent: bool) -> str:
    if not independent or of < 1:
        return f"{100 * value:.1f} %"
    ends = wilson(round(value * of), round(of), level=LEVEL)
    return f"{100 * value:.1f} % ({100 * ends.low:.1f}–{100 * ends.high:.1f})"


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
    if len(state.filled[0]) == 1:
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
