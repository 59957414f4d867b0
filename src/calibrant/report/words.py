"""How to read a report, what it cannot say, and its findings in words, each with its number."""

from calibrant.metrics import NLL, Accuracy
from calibrant.plot.diagrams import Bin, Diagram
from calibrant.report.model import Model, Subject
from calibrant.report.tables import Row
from calibrant.report.verdict import find_row

HOW_TO_READ = (
    (
        "Each dot is a bin of predictions of equal mass, its area the rows in it: mean confidence (across) against accuracy "
        "(up). On the dashed line 80 % confidence means 80 % accuracy; below it the model is over-confident."
    ),
    (
        "Grey bars are where 95 % of samples of a calibrated model of this size would have the dot: a circle inside its bar "
        "is no evidence of miscalibration, a diamond outside is."
    ),
)

GLOSSARY = (
    ("95 % interval", "holds the true value in 95 % of samples; none is shown where none is known to cover."),
    (
        "expected if calibrated",
        "the mean over perfectly calibrated models of this size; a calibration error of a finite sample is never 0.",
    ),
    (
        "97.5 % limit if calibrated",
        "such a model stays below this in 97.5 % of samples; an error above it is significant.",
    ),
)

LIMITS = (
    (
        "These figures hold for data like the rows evaluated here. After a shift (other users, cameras, seasons) measure "
        "again there."
    ),
    (
        "ECE and the reliability diagram look at the decided class alone and average within bins: opposite errors inside a "
        "bin cancel. The class-by-class table and the proper scores (NLL, Brier) see what they miss."
    ),
    "Intervals treat rows (or groups, where groups are given) as independent.",
    "A calibrator changes confidence, not knowledge: accuracy and ranking stay nearly as they were.",
)


def summary(model: Model | Subject, before: list[Row], after: list[Row], diagram: Diagram) -> list[str]:
    """Return the facts behind the verdict on one model.

    Args:
        model: The model.
        before: Its figures before calibration.
        after: Its figures after, or none.
        diagram: Its reliability diagram before.
    """
    accuracy = find_row(before, Accuracy())
    assert accuracy is not None
    sentences = [
        f"On {diagram.n:,} rows accuracy is {_with_interval(accuracy)} and mean confidence {100 * diagram.confidence:.1f} %."
    ]
    return sentences + (_change(model, before, after, accuracy) if after else [])


def _change(model: Model | Subject, before: list[Row], after: list[Row], accuracy: Row) -> list[str]:
    sentences = []
    old, new = find_row(before, NLL()), find_row(after, NLL())
    if old is not None and new is not None:
        trend = "falls" if new.value < old.value else "does not fall"
        sentences.append(
            f"With {model.calibrated_in_short} the log-loss {trend}: {old.shown(old.value)} before, "
            f"{new.shown(new.value)} after."
        )
    now = find_row(after, Accuracy())
    if now is not None:
        same = now.value == accuracy.value
        sentences.append(
            "No decision changed." if same else f"Decisions changed: accuracy is now {now.shown(now.value)}."
        )
    return sentences


def bin_sentence(found: Bin) -> str:
    """Return what is wrong in one bin.

    Args:
        found: The bin.
    """
    side = "over" if found.gap > 0 else "under"
    return (
        f"{found.count:,} rows with confidence {100 * found.low:.4g} – {100 * found.high:.4g} %: mean confidence "
        f"{100 * found.confidence:.1f} %, accuracy {100 * found.accuracy:.1f} %, {side}-confident by "
        f"{100 * abs(found.gap):.1f} points ({100 * found.expect_low:.1f} – {100 * found.expect_high:.1f} % expected if "
        "calibrated)."
    )


def _with_interval(row: Row) -> str:
    shown = row.shown(row.value)
    return shown if not row.interval else f"{shown} (95 % interval {row.interval} %)"
