"""The verdict on one model: over- or under-confident, by how much, whether significantly, and whether the error is large."""

from dataclasses import dataclass
from typing import Literal

from calibrant._core.check import check_number
from calibrant.metrics import ECE
from calibrant.plot.diagrams import Diagram
from calibrant.report.tables import Row

__all__ = ["MARGIN", "State", "Verdict", "check_margin", "find_row", "verdict_of"]

MARGIN = 0.02  # default ECE below which a miscalibration is called small
State = Literal["calibrated", "small", "large", "perhaps large", "unclear", "not tested"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a model's calibration.

    Args:
        state: "calibrated" (no significant error, a large one excluded), "small" (significant, below the margin), "large"
            (significant, whole interval above the margin), "perhaps large" (significant, the interval contains the
            margin), "unclear" (not significant, a large error not excluded), or "not tested".
        headline: The verdict in one line.
        detail: The figures behind it.
    """

    state: State
    headline: str
    detail: str


def check_margin(margin: float) -> float:
    """Return ``margin`` if it is an ECE in (0, 1).

    Args:
        margin: The ECE above which an error is large in practice.
    """
    return check_number(margin, name="margin", low=0, high=1, open_low=True, open_high=True)


def find_row(rows: list[Row], metric: object) -> Row | None:
    """Return the row of ``metric``, or None.

    Args:
        rows: Rows of one model.
        metric: A metric.
    """
    return next((row for row in rows if row.metric == repr(metric)), None)


def verdict_of(rows: list[Row], diagram: Diagram, *, margin: float = MARGIN, side: str | None = None) -> Verdict:
    """Return the verdict on predictions from their ECE, its interval and its limit if calibrated.

    Args:
        rows: Figures of the predictions, with the ECE among them.
        diagram: Their diagram, for mean confidence and accuracy.
        margin: ECE above which an error is large in practice, in (0, 1).
        side: How the probabilities are off, in words; None is over- or under-confident, by the diagram.
    """
    row = find_row(rows, ECE())
    assert row is not None
    state = _state(row, margin)
    side = _side(diagram.confidence - diagram.accuracy, row.value) if side is None else side
    points = f"{100 * margin:g} point{'' if margin == 0.01 else 's'}"
    headline = {
        "calibrated": f"No miscalibration found; an ECE above {points} is excluded",
        "small": f"{side}: significant but small",
        "large": f"{side}: significant and large",
        "perhaps large": f"{side}: significant, and possibly large",
        "unclear": "No significant miscalibration, but too few rows to exclude a large one",
        "not tested": f"{side}; not tested",
    }[state]
    return Verdict(state, headline, _detail(row, state, margin, points))


def _state(row: Row, margin: float) -> State:
    if row.null_high is None:
        return "not tested"
    above = row.low is not None and row.low >= margin
    below = row.high is not None and row.high < margin
    if row.value <= row.null_high:
        return "calibrated" if below else "unclear"
    if above or (row.low is None and row.value >= margin):
        return "large"
    return "small" if below or row.value < margin else "perhaps large"


def _side(gap: float, ece: float) -> str:
    if abs(gap) < 0.5 * ece or abs(gap) < 0.0005:
        return f"Over-confident in some bins and under-confident in others, by {points(ece)} on average"
    return f"{'Over' if gap > 0 else 'Under'}-confident by {points(abs(gap))}"


def points(value: float) -> str:
    """Return a fraction as percentage points."""
    shown = f"{100 * value:.1f}" if value >= 0.001 else f"{100 * value:.2f}"
    return f"{shown} point{'' if shown == '1.0' else 's'}"


def _detail(row: Row, state: State, margin: float, points: str) -> str:
    ends = f" (95 % interval {row.interval} %)" if row.interval else " (no interval is known to cover here)"
    if row.null_high is None:
        return f"ECE {row.shown(row.value)}; intervals and limits were not computed."
    expected = "" if row.null_mean is None else f"mean {row.shown(row.null_mean)}, "
    calibrated = f"if calibrated: {expected}97.5 % limit {row.shown(row.null_high)}"
    tail = {
        "calibrated": f"The whole interval lies below the margin of {points}.",
        "small": f"It is below the margin of {points}: for most uses this needs no action.",
        "large": f"It is above the margin of {points}.",
        "perhaps large": f"The interval contains the margin of {points}: evaluate on more rows to decide.",
        "unclear": f"The interval reaches above the margin of {points}: evaluate on more rows to decide.",
    }.get(state, "")
    if state == "small" and row.high is not None and row.high >= margin:
        tail = f"The estimate is below the margin of {points}; the interval reaches above it."
    return f"ECE {row.shown(row.value)}{ends}; {calibrated}. {tail}"
