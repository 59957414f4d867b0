"""The findings in words: each sentence carries its number, its uncertainty and what it is compared with."""

from calibrant.metrics import ECE, NLL, Accuracy
from calibrant.report.diagnosis import Bin, Diagram
from calibrant.report.model import Model, Subject
from calibrant.report.tables import Row

HOW_TO_READ = (
    (
        "Each dot is a bin of predictions: how sure the model was (across) against how often it was right (up); on the "
        "dashed line, 80 % sure means right 80 % of the time, and below it the model is over-confident."
    ),
    (
        "Grey bars show where the dots of a perfectly calibrated model of this size would lie in 95 % of samples: a round "
        "dot inside its bar is no evidence of a fault, an orange diamond outside is."
    ),
)

LIMITS = (
    (
        "These figures hold for data drawn like the rows judged here. After a shift (other users, cameras, seasons) "
        "confidence can be wrong while every figure here was right: measure again there."
    ),
    (
        "ECE and the reliability diagram look at the decided class alone and average within bins: opposite errors inside a "
        "bin cancel. The class-by-class table and the proper scores (NLL, Brier) see what they miss."
    ),
    (
        "Plug-in calibration errors of a finite sample are never 0, so each stands beside its null level: what a perfectly "
        "calibrated model with these confidences stays below in 97.5 % of samples."
    ),
    (
        "Intervals are 95 % and treat rows (or groups, where groups are given) as independent draws; where none is shown, "
        "none is known to cover."
    ),
    "A calibrator changes how sure a model is, not what it knows: accuracy and ranking stay nearly as they were.",
)


def summary(model: Model | Subject, before: list[Row], after: list[Row], diagram: Diagram) -> list[str]:
    """Return the findings on one model, the most important first.

    Args:
        model: The model.
        before: Its panel before calibration.
        after: Its panel after, or nothing.
        diagram: Its reliability diagram before.
    """
    accuracy, ece = _find(before, Accuracy()), _find(before, ECE())
    sentences = [
        (
            f"On {diagram.n:,} rows the model is right in {_with_interval(accuracy)} of cases and on average "
            f"{100 * diagram.confidence:.1f} % sure: {_direction(diagram.confidence - diagram.accuracy)}."
        ),
        f"Its calibration error (ECE) is {_with_interval(ece)}; {_against_null(ece)}.",
    ]
    if after:
        sentences += _change(model, before, after)
    return sentences


def _change(model: Model | Subject, before: list[Row], after: list[Row]) -> list[str]:
    ece, old, accuracy = _find(after, ECE()), _find(before, ECE()), _find(after, Accuracy())
    name = model.calibrated_in_short
    if old.value > 0 and ece.value < old.value:
        verb = f"lowers it to {ece.shown(ece.value)}"
    else:
        verb = f"does not lower it: it is now {ece.shown(ece.value)}"
    sentences = [f"{name} {verb}; {_against_null(ece)}."]
    nll = [row for row in after if row.metric == repr(NLL())]
    if nll:
        was = _find(before, NLL())
        trend = "falls" if nll[0].value < was.value else "does not fall"
        sentences.append(
            f"The log-loss, which is lowest for honest probabilities, {trend} from {was.shown(was.value)} to "
            f"{nll[0].shown(nll[0].value)}."
        )
    same = accuracy.value == _find(before, Accuracy()).value
    sentences.append(
        "No decision changed." if same else f"Decisions changed: accuracy is now {accuracy.shown(accuracy.value)}."
    )
    return sentences


def bin_sentence(found: Bin) -> str:
    """Return what is wrong in one bin."""
    side = "over" if found.gap > 0 else "under"
    return (
        f"Of the {found.count:,} rows between {found.low:.2f} and {found.high:.2f}, the model is {100 * found.confidence:.1f} % "
        f"sure and right in {100 * found.accuracy:.1f} %: {side}-confident by {100 * abs(found.gap):.1f} points, where "
        f"{100 * found.expect_low:.1f} – {100 * found.expect_high:.1f} % would pass as calibrated."
    )


def _direction(gap: float) -> str:
    if abs(gap) < 0.005:
        return "neither too sure nor too modest overall"
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"


def _against_null(row: Row) -> str:
    if row.null_high is None:
        return "its null level was not computed"
    level = f"a perfectly calibrated model of this size would stay below {row.shown(row.null_high)}"
    return f"{level}, so the error is real" if row.value > row.null_high else f"{level}, so no error is shown"


def _with_interval(row: Row) -> str:
    shown = row.shown(row.value)
    return shown if not row.interval else f"{shown} (95 % interval {row.interval} %)"


def _find(rows: list[Row], metric: object) -> Row:
    return next(row for row in rows if row.metric == repr(metric))
