"""The verdict on a model, the recommendation that follows from it and from the calibrator's gain, and the commands for it."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote
from typing import Literal

import torch
from torch import Tensor

from calibrant import calibrators
from calibrant.calibrators import Calibrator
from calibrant.calibrators.groups import feature_names
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.evaluate.tables import Row
from calibrant.metrics import NLL, Metric
from calibrant.plot.diagrams import Diagram
from calibrant.report.model import Model
from calibrant.report.wording import listed, lower_first, points, signed
from calibrant.statistics.enough import scarce_errors
from calibrant.statistics.paired import paired_test

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


def row_of(rows: Sequence[Row], metric: Metric) -> Row:
    """Return the row of a metric that every panel has."""
    return next(row for row in rows if row.metric == repr(metric))


def verdict_of(row: Row, side: str, *, margin: float = MARGIN, hint: bool = False) -> Verdict:
    """Return the verdict on predictions from their ECE, its interval and its limit if calibrated.

    Args:
        row: The ECE.
        side: How the probabilities are off, in words.
        margin: ECE above which an error is large in practice, in (0, 1).
        hint: Whether ``side`` is a figure beside the ECE whose own interval excludes what a calibrated model has.
    """
    state = _state(row, margin)
    limit = f"{100 * margin:g} point{'' if margin == 0.01 else 's'}"
    small = f"It is below the margin of {limit}: for most uses this needs no action."
    if row.high is not None and row.high >= margin:
        small = f"The estimate is below the margin of {limit}; the interval reaches above it."
    headline, tail = {
        "calibrated": (
            f"No miscalibration found; an ECE above {limit} is excluded",
            f" The whole interval lies below the margin of {limit}.",
        ),
        "small": (f"{side}: significant but small", f" {small}"),
        "large": (f"{side}: significant and large", f" It is above the margin of {limit}."),
        "perhaps large": (
            f"{side}: significant, and possibly large",
            f" The interval contains the margin of {limit}: more rows would tell whether the error exceeds it.",
        ),
        "unclear": (
            "No significant miscalibration, but too few rows to exclude a large one",
            f" The interval reaches above the margin of {limit}{_rows_that_exclude(row, margin)}.",
        ),
        "not tested": (f"{side}; not tested", ""),
    }[state]
    detail = f"ECE {row.shown(row.value)}; intervals and limits were not computed."
    if row.null_high is not None:
        ends = f"95 % interval {row.interval} %" if row.interval else "no interval is known to cover here"
        mean = "" if row.null_mean is None else f"mean {row.shown(row.null_mean)}, "
        limits = f"if calibrated: {mean}97.5 % limit {row.shown(row.null_high)}"
        detail = f"ECE {row.shown(row.value)} ({ends}); {limits}."
    if hint and state in ("calibrated", "unclear"):
        # gap and slope are two more looks: 1 − .95² of calibrated models show one outside its interval
        headline = f"No significant miscalibration by the ECE, but a hint: {lower_first(side)}"
        tail += " One in ten calibrated models shows such a hint by chance: look again on other rows."
    return Verdict(state, headline, detail + tail)


def _state(row: Row, margin: float) -> State:
    if row.null_high is None:
        return "not tested"
    # significance is by the limit if calibrated, size by the interval: a small error can be significant
    above = row.low is not None and row.low >= margin
    below = row.high is not None and row.high < margin
    if not row.significant:
        return "calibrated" if below else "unclear"
    if above or (row.low is None and row.value >= margin):
        return "large"
    return "small" if below or row.value < margin else "perhaps large"


def side_of_confidence(diagram: Diagram, ece: float) -> str:
    """Return whether confidences are too high or too low, in words."""
    gap = diagram.confidence - diagram.accuracy
    # an average gap well below the ECE: bins are off in both directions; below .05 points no side is worth a name
    if abs(gap) < 0.5 * ece or abs(gap) < 0.0005:
        return f"Over-confident in some bins and under-confident in others, by {points(ece)} on average"
    return f"{'Over' if gap > 0 else 'Under'}-confident by {points(abs(gap))}"


def _rows_that_exclude(row: Row, margin: float) -> str:
    if row.high is None:
        return ""
    # the upper end for a calibrated model falls as 1 / √n; rounded up to two digits
    rows = math.ceil(row.n * (row.high / margin) ** 2)
    unit = 10 ** max(len(str(rows)) - 2, 0)
    return f": if the model is calibrated, about {math.ceil(rows / unit) * unit:,} rows would exclude a larger error"


NOTHING, TEMPERATURE = "doing nothing", "plain temperature scaling"
CHANCE = "That may be chance"  # opens the reason that names a simpler calibrator


@dataclass(frozen=True)
class Gain:
    """The reduction of the log-loss by calibration, paired row by row.

    Args:
        against: Name of the alternative it is compared with.
        difference: Log-loss of the alternative minus log-loss after calibration, in nats; positive is better.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    against: str
    difference: float
    low: float
    high: float

    @property
    def state(self) -> int:
        """1 if calibration is significantly better, −1 if significantly worse, 0 if the interval contains 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def sentence(self) -> str:
        """The gain as a sentence."""
        lower = self.difference >= 0
        low, high = (self.low, self.high) if lower else (-self.high, -self.low)
        than = (
            f"{'lower' if lower else 'higher'} than {'with' if self.against == TEMPERATURE else 'when'} {self.against}"
        )
        ends = f"{signed(low, '.4f')} to {signed(high, '.4f')}"
        return f"Its log-loss is {abs(self.difference):.4f} {than} (95 % interval of the difference: {ends})."


def gains_of(model: Model, *, draws: int) -> list[Gain]:
    """Return the gains of a model's calibrator over doing nothing and, if available, over plain temperature scaling.

    A gain that is infinite, or in which too few decisions are wrong to test it (``scarce_errors``), is left out.

    Args:
        model: A model with ``after``, and with ``reference`` for the second gain.
        draws: As in ``write_report``: without draws nothing is tested.
    """
    if model.after is None or type(model.before) is not type(model.after) or draws < 2:
        return []
    after, found = model.after.counted, []
    for name, data in ((NOTHING, model.before), (TEMPERATURE, model.reference)):
        if data is None:
            continue
        before = data.counted
        # paired, so that what makes a row hard cancels
        difference, groups = _log_losses(before) - _log_losses(after), before.groups
        if not bool(torch.isfinite(difference).all()) or scarce_errors(before, after, loss=NLL().of_labels) is not None:
            continue
        weight = None if before.weights is None else before.weights.cpu()
        test = paired_test(difference, groups=groups, weight=weight)
        found.append(Gain(name, test.difference, test.low, test.high))
    return found


def _log_losses(data: Data) -> Tensor:
    """Return the log-loss (N,) of each row: of the label, or of what happened for pairs."""
    if isinstance(data, Predictions):
        return data.nll.double().cpu()
    p, y = data.p.double().cpu(), data.y.double().cpu()
    return -torch.xlogy(y, p) - torch.xlogy(1 - y, 1 - p)


@dataclass(frozen=True)
class Advice:
    """A recommendation.

    Args:
        headline: The recommendation in one sentence.
        reasons: The figures it rests on.
        commands: (purpose, command line or Python) pairs that carry it out; empty if there is nothing to do.
    """

    headline: str
    reasons: list[str]
    commands: list[tuple[str, str]]


def advice_of(
    model: Model, verdicts: Sequence[Verdict], gains: Sequence[Gain], *, margin: float, event: bool = False
) -> Advice:
    """Return the recommendation for a model.

    Args:
        model: The model.
        verdicts: The verdict before calibration, and after it if there is a calibrator.
        gains: From ``gains_of``.
        margin: ECE above which an error is large; the check command contains it.
        event: Whether that is the ECE of an event's probability.
    """
    commands = commands_of(model, margin=margin, event=event)
    before, after = verdicts[0], verdicts[-1]
    if len(verdicts) == 1:
        if before.state in ("calibrated", "small"):
            return Advice("Its calibration needs no action.", [], [])
        if before.state == "unclear":
            return Advice("Collect more labelled rows before deciding.", [], [])
        return Advice("Calibrate it on labelled rows other than these.", [], commands)
    name, by = model.calibrated_in_short, {gain.against: gain for gain in gains}
    reasons = [f"After {name}: {lower_first(after.headline)}. {after.detail}", *(gain.sentence for gain in gains)]
    nothing, temperature = by.get(NOTHING), by.get(TEMPERATURE)
    if nothing is None:
        # an infinite loss before (a label of probability 0) or too few errors: the two verdicts are what is known
        why = "it is infinite, or too few decisions are wrong"
        if bool(model.before.correct.all()):
            headline, why = (
                "Collect labelled rows on which the model errs: how sure it should be cannot be learned from right ones.",
                "no decision is wrong",
            )
        elif before.state == "large" and after.state != "large":
            headline = f"Calibrate with {name}: the error is large before it and not after."
        else:  # what it learned is no reason to wait for rows, nor would it be learned again
            headline = f"Collect more labelled rows before deciding on {name.split('(')[0].rstrip()}."
        return Advice(headline, [*reasons, f"The gain in log-loss could not be tested: {why}."], commands)
    # the log-loss decides, as a proper score: an ECE can fall while probabilities get worse
    if nothing.state <= 0:
        what = "makes its log-loss worse" if nothing.state < 0 else "has no significant gain in log-loss"
        if before.state == "large" and after.state == "large" and own_name(model) not in ("auto", "AutoCalibrator"):
            others = commands_of(model, margin=margin, method="auto", event=event)
            return Advice(f"Calibrate by another method: {name} {what}, and the error stays large.", reasons, others)
        return Advice(f"Leave the model as it is: {name} {what}.", reasons, [])
    if temperature is not None and temperature.state < 0:
        simpler = commands_of(model, margin=margin, method="TemperatureScaling", event=event)
        return Advice(f"Use plain temperature scaling: {name} is significantly worse.", reasons, simpler)
    if temperature is not None and temperature.state == 0:
        plain = "--method TemperatureScaling" if model.source else "TemperatureScaling()"
        reasons.append(f"{CHANCE}: if you prefer a single number, use plain temperature scaling ({plain}).")
    columns = feature_names(model.calibrator) if isinstance(model.calibrator, Calibrator) else []
    return Advice(f"Calibrate {f'by {listed(columns)} ' if columns else ''}with {name}.", reasons, commands)


def own_name(model: Model) -> str | None:
    """Return the class of a model's calibrator, or the name that was passed instead of it."""
    return type(model.calibrator).__name__ if isinstance(model.calibrator, Calibrator) else model.calibrator


_VALUE = r"(?:'(?:[^']|'\"'\"')*'|\S+)"  # as ``quote`` gives it
LABELS = re.compile(rf" --(?:labels?|on|weights|groups) {_VALUE}")  # the options on labels
_LABELS_FILE = re.compile(rf"(?<= --labels ){_VALUE}")


def _other_labels(found: re.Match[str]) -> str:
    """Return how the labels of other rows are called where those of these rows lie in a file of their own."""
    return f"other-labels{PurePath(*shlex.split(found[0])).suffix}"


def stem_of(source: str, *, name: str) -> str:
    """Return how files that are made of ``source`` are called, without their ending.

    Args:
        source: A file or folder as it was given.
        name: Of the model, for a folder without a name of its own: "." or "..".
    """
    own = PurePath(source).name
    return "stdin" if own == "-" else PurePath(name if own in ("", "..") else own).stem


def commands_of(
    model: Model, *, margin: float, method: str | None = None, features: Sequence[str] = (), event: bool = False
) -> list[tuple[str, str]]:
    """Return the three commands that fit, apply and check a calibrator, on the command line or in Python.

    Args:
        model: The model of the report.
        margin: Largest ECE that the check accepts.
        method: Calibrator to fit; None is the model's.
        features: Columns that the method takes.
        event: Whether that is the ECE of an event's probability.
    """
    calibrator, own, figure = model.calibrator, own_name(model), "event-ece" if event else "ece"
    name = method or ("auto" if own not in calibrators.__all__ or own == "AutoCalibrator" else str(own))
    if method is None and isinstance(calibrator, Calibrator):
        features = feature_names(calibrator)
    dependent = model.before.groups is not None  # a check asks for independent rows
    if not model.source:
        made = f"calibrant.calibrators.{'AutoCalibrator' if name == 'auto' else name}({list(features) or ''})"
        rows, ship = "val_logits, val_labels", 'torch.softmax(calibrant.load("calibrator.safetensors")(logits), dim=1)'
        if features:  # predictions carry the columns with their rows
            rows, ship = "val", 'new.calibrated_by(calibrant.load("calibrator.safetensors")).probs'
        check = f'calibrant.operate.check(new_predictions, maximum={{"{figure}": {margin:g}}}).verdict'
        return [
            ("fit", f'{made}.fit({rows}).save("calibrator.safetensors")'),
            ("ship", f"probs = {ship}"),
            ("check", "calibrant.evaluate.panel(new_predictions)" if dependent else check),
        ]
    stem, ending, file = stem_of(model.source, name=model.name), PurePath(model.source).suffix, quote(model.source)
    data = model.argument or file
    options = data.removeprefix(file) if data.startswith(file) else ""  # an example has none
    # rows of a file without splits are all evaluated here, so the fit needs another file
    fit = f"other{ending}{_LABELS_FILE.sub(_other_labels, options)}" if model.whole else data
    saved = quote(f"{stem}-calibrator.safetensors")
    columns = f" --features {quote(','.join(features))}" if features else ""
    # new rows have no labels, so the check is on these ones, which the calibrator was not fitted on
    split = f" --split {quote(model.split)}" if model.split not in ("", "test") else ""
    check = f"check {data}{split} --calibrator {saved} --max {figure}={margin:g}"
    if dependent:
        check = f"evaluate {data}{split or ' --split test' * (not model.whole)} --calibrator {saved}"
    return [
        ("fit", f"calibrant fit {fit} --method {name}{columns} -o {saved}"),
        ("ship", f"calibrant apply {saved} new{ending}{LABELS.sub('', options)} -o new-calibrated{ending}"),
        ("check", f"calibrant {check}"),
    ]
