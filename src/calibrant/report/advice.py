"""Forms the verdict on a model, the recommendation that follows, and the commands that carry it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from shlex import quote
from typing import Literal

import torch
from torch import Tensor

from calibrant import calibrators
from calibrant.calibrators import Calibrator, FeatureScaling, GroupScaling
from calibrant.calibrators.groups import feature_names
from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.evaluate.multilabel import label_terms
from calibrant.evaluate.panel import Row
from calibrant.evaluate.subgroups import Subgroups
from calibrant.metrics import NLL, ClasswiseECE
from calibrant.plot.diagrams import Diagram
from calibrant.report.groups import Audit, correction_by, off_in
from calibrant.report.model import Model
from calibrant.report.state import State
from calibrant.report.wording import listed, lower_first, points, signed, too_high_or_low
from calibrant.statistics.paired import paired_test, scarce_errors

BY_GROUP = (GroupScaling, FeatureScaling)
MARGIN = 0.02  # default ECE below which a miscalibration is called small
Significance = Literal["calibrated", "small", "large", "perhaps large", "unclear", "not tested"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a model's calibration.

    Args:
        state: "calibrated" (no significant error, and a large one is excluded), "small" (significant, but below the
            margin), "large" (significant, and the whole interval is above the margin), "perhaps large" (significant,
            and the interval contains the margin), "unclear" (not significant, but a large error is not excluded), or
            "not tested".
        headline: The verdict in one line.
        detail: The figures on which the verdict is based.
    """

    state: Significance
    headline: str
    detail: str


def verdicts_of(
    model: Model, states: Sequence[State], audit: Audit | None, label: str | None, *, margin: float
) -> list[Verdict]:
    """Return a verdict on each state: on all rows, on the group with the clearest error, or on all labels together.

    Args:
        model: The model.
        states: The figures before and after calibration.
        audit: The groups or labels, or None.
        label: The label that the page shows, if there are several.
        margin: The ECE, or the gap of a label or group, above which an error is large in practice, in (0, 1).
    """
    if audit is not None and label is not None:
        tables = [table for table in (audit.before, audit.after) if table is not None]
        return [_verdict_on_labels(table, label, margin=margin) for table in tables]
    verdicts = []
    for state in states:
        side, event = side_of_confidence(state.diagram, state.ece.value), state.event
        if event is not None:
            side = f"Probabilities of {model.class_name(1)} are {event.side}"
        verdict = verdict_of(state.ece, side, margin=margin, hint=event is not None and bool(event.off))
        if event is None and isinstance(state.data, Predictions):
            verdict = _verdict_with_classes(verdict, state.ece, state.row(ClasswiseECE()), margin=margin)
        verdicts.append(verdict)
    if audit is not None:
        verdicts[0] = _verdict_with_groups(verdicts[0], model, audit, margin=margin)
    return verdicts


def verdict_of(row: Row, side: str, *, margin: float = MARGIN, hint: bool = False) -> Verdict:
    """Return the verdict on predictions from their ECE, its interval and its limit if calibrated.

    Args:
        row: The ECE.
        side: The direction of the error, in words.
        margin: ECE above which an error is large in practice, in (0, 1).
        hint: Whether ``side`` describes another figure than the ECE whose interval excludes the value of a calibrated
            model.
    """
    state = _state(row, margin)
    limit = f"{100 * margin:g} point{'' if margin == 0.01 else 's'}"
    headline = {
        "calibrated": f"No miscalibration found; an ECE above {limit} is excluded",
        "small": f"{side}: significant but small",
        "large": f"{side}: significant and large",
        "perhaps large": f"{side}: significant, and possibly large",
        "unclear": "No significant miscalibration, but too few rows to exclude a large one",
        "not tested": f"{side}; not tested",
    }[state]
    if row.null_high is None:
        return Verdict(state, headline, f"The ECE is {row.shown(row.value)}; intervals and limits were not computed.")
    ends = f"95 % interval {row.interval} %" if row.interval else "no valid interval is known here"
    mean = "" if row.null_mean is None else f"of {row.shown(row.null_mean)} on average, and "
    detail = f"The ECE is {row.shown(row.value)} ({ends})."
    detail += (
        f" A calibrated model has an ECE {mean}below {row.shown(row.null_high)} in 97.5 % of samples of this size."
    )
    detail += f" An error is called large if it exceeds the margin of {limit}, the largest error that you accept."
    if state == "unclear" and row.high is not None:
        # the upper end for a calibrated model decreases as 1 / √n; the number is rounded to two digits
        rows = float(f"{row.n * (row.high / margin) ** 2:.2g}")
        detail += f" If the model is calibrated, about {rows:,.0f} rows would exclude a larger one."
    if hint and state in ("calibrated", "unclear"):
        # gap and slope are two further tests, and for 1 − .95² of calibrated models one of them is significant
        headline = f"No significant miscalibration by the ECE, but a hint: {lower_first(side)}"
        detail += " One in ten calibrated models shows such a hint by chance, so check it on other rows."
    return Verdict(state, headline, detail)


def _state(row: Row, margin: float) -> Significance:
    if row.null_high is None:
        return "not tested"
    # the limit if calibrated decides whether an error is significant, and the interval decides whether it is large
    above = row.low is not None and row.low >= margin
    below = row.high is not None and row.high < margin
    if not row.significant:
        return "calibrated" if below else "unclear"
    if above or (row.low is None and row.value >= margin):
        return "large"
    return "small" if below or row.value < margin else "perhaps large"


def side_of_confidence(diagram: Diagram, ece: float) -> str:
    """Return a phrase that says whether confidences are too high or too low, and by how much."""
    gap = diagram.confidence - diagram.accuracy
    # a mean gap well below the ECE means errors in both directions; a gap below .05 points has no meaningful direction
    if abs(gap) < 0.5 * ece or abs(gap) < 0.0005:
        return f"Over-confident in some bins and under-confident in others, by {points(ece)} on average"
    return f"{'Over' if gap > 0 else 'Under'}-confident by {points(abs(gap))}"


def _verdict_with_classes(predicted: Verdict, ece: Row, classwise: Row, *, margin: float) -> Verdict:
    """Return the verdict on the probabilities of all classes if they alone show a significant error that is not small.

    The ECE sees only the probability of the predicted class, so it misses errors in the other classes.
    """
    state = _state(classwise, margin)
    if predicted.state not in ("calibrated", "unclear") or state not in ("large", "perhaps large"):
        return predicted
    size = "and large" if state == "large" else "and possibly large"
    headline = f"Class probabilities are off by {points(classwise.value)} on average (ClasswiseECE): significant {size}"
    ends = f" (95 % interval {classwise.interval} %)" if classwise.interval else ""
    detail = (
        f"The ClasswiseECE, over the probabilities of all classes, is {classwise.shown(classwise.value)}{ends}. A calibrated "
        f"model has one below {classwise.shown(classwise.null_high)} in 97.5 % of samples of this size. The probability of "
        f"the predicted class alone shows no significant error: its ECE is {ece.shown(ece.value)}, below its limit of "
        f"{ece.shown(ece.null_high)}."
    )
    return Verdict(state, headline, detail)


def _verdict_with_groups(average: Verdict, model: Model, audit: Audit, *, margin: float) -> Verdict:
    """Return the verdict on the clearest group if its error exceeds the margin, otherwise the verdict on all rows.

    The errors of groups can cancel in the average. A group is not mentioned if a common correction removes its error.
    """
    worst = audit.worst
    put_right = audit.after is not None and not audit.off_by and not isinstance(model.calibrator, BY_GROUP)
    if worst is None or abs(worst.gap) < margin or put_right:
        return average
    clear = f"Probabilities are {too_high_or_low(worst.gap)} for {worst.name}"
    if average.state in ("calibrated", "unclear", "small"):
        return Verdict(
            "large", f"{clear}, although the error is small on average", f"Overall, {lower_first(average.detail)}"
        )
    return Verdict(average.state, f"{clear}; overall {lower_first(average.headline)}", average.detail)


def _verdict_on_labels(table: Subgroups, worst: str, *, margin: float) -> Verdict:
    """Return the verdict on several labels from their joint test; ``worst`` is the label that the page shows."""
    off, tested = off_in(table), len(table.tested)
    if not off:
        headline = (
            f"None of {tested} labels is significantly miscalibrated"
            if tested
            else "Too few rows or events to test any label"
        )
        return Verdict("unclear", headline, table.verdict)
    gap = next(row.gap for row in off if row.name == worst)
    headline = f"Probabilities are {too_high_or_low(gap)} for {worst!r}: significant"
    if len(off) > 1:  # other labels may be off in another direction, or in some ranges only
        largest = f"the largest mean gap is that of {worst!r}, {too_high_or_low(gap)}"
        headline = f"{len(off)} of {tested} labels are significantly miscalibrated; {largest}"
    return Verdict("large" if abs(gap) >= margin else "small", headline, table.verdict)


@dataclass(frozen=True)
class Gain:
    """The reduction of the log-loss by calibration, from differences within each row.

    Args:
        difference: Log-loss before calibration minus log-loss after it, in nats; a positive value is an improvement.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end of the interval.
    """

    difference: float
    low: float
    high: float

    @property
    def sentence(self) -> str:
        """The gain as a sentence."""
        lower = self.difference >= 0
        low, high = (self.low, self.high) if lower else (-self.high, -self.low)
        ends = f"{signed(low, '.4f')} to {signed(high, '.4f')}"
        change = f"{'lowers' if lower else 'raises'} the log-loss by {abs(self.difference):.4f}"
        return f"Calibration {change} (95 % interval {ends})."


def gain_of(model: Model, *, draws: int) -> Gain | None:
    """Return the gain of a model's calibrator.

    It is None if there is no calibrator, the gain is infinite, or too few decisions are wrong for a test
    (``scarce_errors``).

    Args:
        model: The model.
        draws: As in ``write_report``; 0 omits the test.
    """
    if model.after is None or type(model.before) is not type(model.after) or draws < 2:
        return None
    before, after = model.before.counted, model.after.counted
    # paired differences, in which the difficulty of a row cancels
    difference = _log_losses(before) - _log_losses(after)
    several = isinstance(before, MultiLabel) or isinstance(after, MultiLabel)
    scarce = None if several else scarce_errors(before, after, loss=NLL().of_labels)  # type: ignore[arg-type]
    if not bool(torch.isfinite(difference).all()) or scarce is not None:
        return None
    weight = None if before.weights is None else before.weights.cpu()
    try:
        test = paired_test(difference, groups=before.groups, weight=weight)
    except NoIntervalError:
        return None
    return Gain(test.difference, test.low, test.high)


def _log_losses(data: Data | MultiLabel) -> Tensor:
    """Return the log-loss (N,) of each row; for several labels, it is the mean over the row's labels."""
    if isinstance(data, MultiLabel):
        return label_terms(data)["NLL"].mean(dim=1).cpu()
    if not isinstance(data, Pairs):
        return data.nll.double().cpu()
    p, y = data.p.double().cpu(), data.y.double().cpu()
    return -torch.xlogy(y, p) - torch.xlogy(1 - y, 1 - p)


@dataclass(frozen=True)
class Advice:
    """A recommendation.

    Args:
        headline: The recommendation in one sentence.
        reasons: The figures on which it is based.
        commands: Pairs (purpose, command line or Python) that carry it out; empty if there is nothing to do.
    """

    headline: str
    reasons: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()


def advice_of(
    model: Model, verdicts: Sequence[Verdict], gain: Gain | None, state: State, audit: Audit | None, *, margin: float
) -> Advice:
    """Return the recommendation for a model.

    Args:
        model: The model.
        verdicts: The verdict before calibration, and after it if there is a calibrator.
        gain: The result of ``gain_of``.
        state: The figures after calibration, or before it if there is no calibrator.
        audit: The groups or labels, or None.
        margin: ECE above which an error is large; it is the limit in the check command.
    """
    commands = partial(commands_of, model, margin=margin, event=state.event is not None)
    before, after, name = verdicts[0], verdicts[-1], model.method or "calibration"
    if state.lacking:
        return Advice(f"Check the labels: there are no {state.lacking}.")
    if model.after is None:
        if before.state in ("calibrated", "small"):
            return Advice("Its calibration needs no action.")
        if before.state == "unclear":
            return Advice("Collect more labelled rows before deciding.")
        return Advice("Calibrate it on labelled rows other than these.", commands=commands())
    reasons = [f"After {name}: {lower_first(after.headline)}. {after.detail}", *([gain.sentence] if gain else [])]
    if audit is not None and audit.off_by and not isinstance(model.calibrator, BY_GROUP):
        method, columns = correction_by(audit.off_by, model.before.features or {})
        headline = f"Calibrate by {listed(columns)}: one correction for all leaves some groups wrong."
        return Advice(headline, reasons, commands(method=method, features=columns))
    if gain is None:  # only the two verdicts are known
        headline = f"Collect more labelled rows before deciding on {name}."
        if not isinstance(model.before, MultiLabel) and bool(model.before.correct.all()):
            headline = "Collect labelled rows on which the model is wrong: correct ones do not show how confident it should be."
        elif before.state == "large" and after.state != "large":
            headline = f"Calibrate with {name}: the error is large before calibration and not large after it."
        why = "The gain in log-loss could not be tested: it is infinite, or too few decisions are wrong."
        return Advice(headline, [*reasons, why], commands())
    # the log-loss decides, because it is a proper score; an ECE can fall although the probabilities get worse
    if gain.low <= 0:
        what = "makes its log-loss worse" if gain.high < 0 else "has no significant gain in log-loss"
        if before.state == "large" and after.state == "large" and name not in ("auto", "AutoCalibrator"):
            headline = f"Calibrate with another method: {name} {what}, and the error stays large."
            return Advice(headline, reasons, commands(method="auto"))
        return Advice(f"Leave the model uncalibrated: {name} {what}.", reasons)
    columns = feature_names(model.calibrator)
    return Advice(f"Calibrate {f'by {listed(columns)} ' if columns else ''}with {name}.", reasons, commands())


def commands_of(
    model: Model, *, margin: float, event: bool = False, method: str | None = None, features: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return the three commands that fit, apply and check a calibrator, on the command line or in Python.

    Args:
        model: The model of the report.
        margin: Largest ECE that the check accepts.
        event: Whether to check the ECE of an event's probability.
        method: Calibrator to fit; None for the model's calibrator.
        features: Columns that the calibrator uses.
    """
    name, figure = method or model.method, "event-ece" if event else "ece"
    if name not in calibrators.__all__ or name == "AutoCalibrator":
        name = "auto"
    if method is None and isinstance(model.calibrator, Calibrator):
        features = feature_names(model.calibrator)
    several = isinstance(model.before, MultiLabel)
    # a check needs independent rows with one class each
    checked = not several and model.before.groups is None
    if not model.source:
        made = "AutoCalibrator" if name == "auto" else name
        check = f'calibrant.operate.check(test, maximum={{"{figure}": {margin:g}}}).verdict'
        return [
            ("fit", f'calibrant.calibrators.{made}({list(features) or ""}).fit(val).save("calibrator.safetensors")'),
            ("ship", 'probs = new.calibrated_by(calibrant.load("calibrator.safetensors")).probs'),
            ("check", check if checked else "calibrant.evaluate.panel(test)"),
        ]
    given, source = {key: value for key, value in model.options.items() if key != "example"}, PurePath(model.source)

    def reading(file: str, options: Mapping[str, str]) -> str:
        return " ".join([quote(file), *(f"--{key} {quote(value)}" for key, value in options.items())])

    data = f"--example {model.options['example']}" if "example" in model.options else reading(model.source, given)
    saved = quote(f"{source.stem.strip('-.') or 'model'}-calibrator.safetensors")
    fit, new, ending = data, {key: value for key, value in given.items() if key in ("columns", "kind")}, source.suffix
    if model.whole:  # all rows of the file are evaluated here, so the fit needs another file
        labels = {"labels": f"other-labels{PurePath(given['labels']).suffix}"} if "labels" in given else {}
        fit = reading(f"other{ending}", given | labels)
    how = "--multilabel" if several else f"--method {name}"
    how += f" --features {quote(','.join(features))}" if features else ""
    flag = " --multilabel" if several else ""
    # new rows have no labels, so the check uses the rows of the report, which the calibrator was not fitted on
    split = "" if model.whole or (checked and model.split == "test") else f" --split {quote(model.split)}"
    limit = f" --max {figure}={margin:g}" if checked else flag
    return [
        ("fit", f"calibrant fit {fit} {how} -o {saved}"),
        ("ship", f"calibrant apply {saved} {reading(f'new{ending}', new)}{flag} -o new-calibrated{ending}"),
        ("check", f"calibrant {'check' if checked else 'evaluate'} {data}{split} --calibrator {saved}{limit}"),
    ]
