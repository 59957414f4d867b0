"""The text of a report: how to read it, its limits, and its findings as sentences with their numbers."""

from collections.abc import Sequence

from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, NLL, Accuracy
from calibrant.plot.diagrams import Bin, Diagram
from calibrant.report.advice import row_of
from calibrant.report.model import Model
from calibrant.report.tables import Row

UNSEEN = "which the calibrator was not fitted on"
BY_CHANCE = "of a calibrated model about one in twenty does by chance."
HOW_TO_READ = (
    (
        "Each dot is a bin of equally many predictions: accuracy (vertical) against mean confidence (horizontal). On the "
        "dashed line 80 % confidence means 80 % accuracy; below it the model is over-confident."
    ),
    (
        "A grey bar covers the accuracy of a calibrated model in 95 % of samples of this size. A dot outside its bar is a "
        "diamond; " + BY_CHANCE
    ),
)

HOW_TO_READ_AN_EVENT = (
    (
        "The line is how often the event happened (vertical) at each predicted probability (horizontal), by isotonic "
        "regression. Below the dashed line the probabilities are too high, above it too low."
    ),
    (
        "The grey band holds the line of a calibrated model in 95 % of samples of this size. Dots are fifteenths of the rows, a "
        f"diamond where one lies outside; {BY_CHANCE} Below: rows without and with the event."
    ),
)

HOW_TO_READ_LABELS = (
    (
        "Each dot is a fifteenth of the rows, or of all pairs of a row and a label: how often the label is 1 (vertical) at its mean "
        f"probability (horizontal). Grey bars: what 95 % of samples of a calibrated model show. A diamond lies outside; {BY_CHANCE}"
    ),
)

# What to do beside each metric, by its class; those that grow with miscalibration say so only above their limit.
TO_DO = {
    "Accuracy": "For more of it train a better model: one correction for all hardly changes it.",
    "NLL": "Compare models and calibrators by it: lower is better, and every class and row counts.",
    "Brier": "Compare as by NLL; it forgives confident errors more.",
    "ECE": "If that is too much, calibrate: the confidence is off by it on average.",
    "MCE": "Look up the worst bins below; with few rows it is mostly chance.",
    "ClasswiseECE": "See class by class; a slope and bias per class (auto tries them) corrects it.",
    "DebiasedECE": "Read it as the ECE without what chance adds.",
    "SmoothECE": "Read it as an ECE that depends on no bins.",
    "AURC": "Lower is better if you answer only the most confident rows.",
}
TO_DO_LABELS = {  # beside each figure over several labels
    ("NLL", "pooled"): "Compare models and calibrators by it: lower is better.",
    ("NLL", "macro"): "The same with every label counting alike.",
    ("Brier", "pooled"): "Compare as by NLL; it forgives confident errors more.",
    ("Brier", "macro"): "The same with every label counting alike.",
    (
        "Bias",
        "pooled",
    ): (
        "Away from 0: recalibrate on recent rows, since events have become rarer (+) or more frequent (−). Opposite labels cancel: "
        "read the table of labels."
    ),
    ("Bias", "macro"): "The same with every label counting alike.",
    ("ECE", "pooled"): "If that is too much, calibrate: a probability is off by it on average.",
    ("ECE", "macro"): "Compare it with calibrated models (below): label by label, chance makes most of it.",
}
WITHIN_CHANCE = "Nothing: a calibrated model scores as much by chance."

GLOSSARY = (
    ("95 % interval", "contains the true value in 95 % of samples; left out where no interval is known to cover."),
    (
        "calibrated mean",
        "the mean figure of perfectly calibrated models on samples of this size, which is above 0 in a finite sample.",
    ),
    (
        "calibrated 97.5 %",
        "the 97.5 % limit if calibrated: such a model stays below it in 97.5 % of samples; an error above it is significant.",
    ),
)

_HOLD = (
    "These figures hold for data distributed like the rows evaluated here. After a distribution shift (other users, "
    "cameras, seasons) evaluate again on the new data."
)
_TOP_ALONE = (
    "ECE and the reliability diagram use the predicted class only and average within bins: opposite errors inside a bin "
    "cancel. The class-by-class table and the proper scores (NLL, Brier) detect those errors."
)
_WITHIN_BINS = "The ECE averages within bins: opposite errors inside a bin cancel. The Brier score is proper and detects those errors."
_UNITS = "Intervals treat rows (or groups, where there are groups) as independent."
_CHECK = (
    " `calibrant check` decides by wider ones, whose promise needs no assumption on the scores: it may ask for more rows where "
    "the interval here is clear."
)
_LEARNED = "One correction for all rows changes probabilities, not what the model has learned: accuracy and ranking hardly change."


def limits_of(*, top: bool, labels: bool = False) -> list[str]:
    """Return what a report cannot say, as sentences with code in backticks.

    Args:
        top: Whether it shows the top class of more than two.
        labels: Whether rows have several labels, which ``calibrant check`` does not take.
    """
    return [_HOLD, _TOP_ALONE if top else _WITHIN_BINS, _UNITS + ("" if labels else _CHECK), _LEARNED]


def evaluated(model: Model, rows: str) -> str:
    """Return ``rows`` with their split and, where that is known, that the calibrator was not fitted on them."""
    named = f"the {rows} of split {model.split}" if model.split not in ("", "all") and not model.whole else rows
    fitted = model.calibrator.fit_rows if isinstance(model.calibrator, Calibrator) else ()
    # rows go through a calibrator only after the leakage check, unless that was put off
    checked = isinstance(model.after, Predictions) and model.after.fit_check is None
    return f"{named}, {UNSEEN}," if len(fitted) and checked else named


def summary(model: Model, states: Sequence[list[Row]], diagram: Diagram) -> list[str]:
    """Return sentences with the facts behind the verdict on one model.

    Args:
        model: The model.
        states: Its figures before calibration, and after it if there is a calibrator.
        diagram: Its reliability diagram before.
    """
    accuracy = row_of(states[0], Accuracy())
    where, mean = evaluated(model, f"{accuracy.n:,} rows"), f"{100 * diagram.confidence:.1f} %"
    first = f"On {where} accuracy is {_with_interval(accuracy)} and mean confidence {mean}."
    return [first, *(_change(model, *states) if len(states) > 1 else [])]


def _change(model: Model, before: list[Row], after: list[Row]) -> list[str]:
    found = [[row for row in (*before, *after) if row.metric == repr(metric)] for metric in (NLL(), Accuracy())]
    sentences = []
    for old, new in (pair for pair in found if len(pair) == 2):  # pairs have no log-loss, events no accuracy
        shown = f"{old.shown(old.value)} before, {new.shown(new.value)} after"
        trend = "falls" if new.value < old.value else "does not fall"
        if old.label == "NLL":
            sentences.append(f"With {model.calibrated_in_short} the log-loss {trend}: {shown}.")
        elif new.value == old.value:
            sentences.append("The accuracy did not change.")
        else:
            sentences.append(f"Predictions changed: accuracy is now {new.shown(new.value)}.")
    return sentences


def weight_remarks(data: Data) -> list[str]:
    """Return a sentence on the effect of the weights of ``data`` on its figures; nothing without weights.

    Args:
        data: Predictions or pairs.
    """
    if data.weights is None:
        return []
    effective = f"{data.effective_count:,.0f} rows of equal weight"
    said = f"Every figure weights its {data.count:,} rows by their weights."
    low, high = float(data.weights.min()), float(data.weights.max())
    if high > 1.001 * low:
        # How the rows were chosen shows in which of them stand for many others.
        drawn = f"{100 * float(data.confidence.double().mean()):.1f} % among the rows"
        whole = float(data.confidence.double() @ data.weights / data.weights.sum())
        said += (
            f" They were drawn with unequal probabilities: a row stands for {low:.3g} to {high:.3g} rows, and the mean "
            f"confidence is {drawn}, {100 * whole:.1f} % with the weights."
        )
    return [f"{said} They vary as much as {effective}, on which intervals, limits and the rows of a bin rest."]


def beside_temperature(model: Model) -> list[str]:
    """Return a sentence where plain temperature scaling has the lower ECE and the calibrator the lower log-loss, or nothing.

    Args:
        model: The model; its ``reference`` is plain temperature scaling.
    """
    after, plain = model.after, model.reference
    if not isinstance(after, Predictions) or not isinstance(plain, Predictions):
        return []
    ece, loss = ([metric(data) for data in (plain, after)] for metric in (ECE(), NLL()))
    if not (ece[0] < ece[1] and loss[1] < loss[0]):
        return []
    name = model.calibrated_in_short
    return [
        (
            f"Plain temperature scaling has the lower ECE ({100 * ece[0]:.2f} against {100 * ece[1]:.2f} %), {name} the lower log-loss "
            f"({loss[1]:.4f} against {loss[0]:.4f}). They aim at different things: {name} fits the probabilities of all classes, "
            "by log-loss; the ECE asks of the top class alone, and opposite errors within a bin cancel. Go by log-loss unless "
            "only the top confidence is used."
        )
    ]


def bin_sentence(found: Bin) -> str:
    """Return a sentence on the miscalibration of one bin.

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
