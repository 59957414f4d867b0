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
from calibrant.calibrators.base import feature_names
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.metrics import NLL, Metric
from calibrant.plot.diagrams import Diagram
from calibrant.report.model import Model
from calibrant.report.tables import Row
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
    points = f"{100 * margin:g} point{'' if margin == 0.01 else 's'}"
    small = f"It is below the margin of {points}: for most uses this needs no action."
    if row.high is not None and row.high >= margin:
        small = f"The estimate is below the margin of {points}; the interval reaches above it."
    headline, tail = {
        "calibrated": (
            f"No miscalibration found; an ECE above {points} is excluded",
            f"The whole interval lies below the margin of {points}.",
        ),
        "small": (f"{side}: significant but small", small),
        "large": (f"{side}: significant and large", f"It is above the margin of {points}."),
        "perhaps large": (
            f"{side}: significant, and possibly large",
            f"The interval contains the margin of {points}: more rows would tell whether the error exceeds it.",
        ),
        "unclear": (
            "No significant miscalibration, but too few rows to exclude a large one",
            f"The interval reaches above the margin of {points}{_rows_that_exclude(row, margin)}.",
        ),
        "not tested": (f"{side}; not tested", ""),
    }[state]
    detail = f"{_measured_in_words(row)} {tail}".rstrip()
    if hint and state in ("calibrated", "unclear"):
        # gap and slope are two more looks: 1 − .95² of calibrated models show one outside its interval
        headline = f"No significant miscalibration by the ECE, but a hint: {side[:1].lower()}{side[1:]}"
        detail += " One in ten calibrated models shows such a hint by chance: look again on other rows."
    return Verdict(state, headline, detail)


def _state(row: Row, margin: float) -> State:
    if row.null_high is None:
        return "not tested"
    # significance is by the limit if calibrated, size by the interval: a small error can be significant
    above = row.low is not None and row.low >= margin
    below = row.high is not None and row.high < margin
    if row.value <= row.null_high:
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


def points(value: float) -> str:
    """Return a fraction as percentage points."""
    # tenths of a point, but for what would then read 0.0
    shown = f"{100 * value:.1f}" if value >= 0.001 else f"{100 * value:.2f}"
    return f"{shown} point{'' if shown == '1.0' else 's'}"


def too_high_or_low(gap: float) -> str:
    """Return the side and the size of a mean gap of probabilities in words."""
    return f"too {'high' if gap > 0 else 'low'} by {points(abs(gap))}"


def signed(value: float, form: str = "+.2f") -> str:
    """Return a number with the sign that a reader expects, which is wider than a hyphen."""
    return f"{value:{form}}".replace("-", "−")


def _measured_in_words(row: Row) -> str:
    if row.null_high is None:
        return f"ECE {row.shown(row.value)}; intervals and limits were not computed."
    ends = f" (95 % interval {row.interval} %)" if row.interval else " (no interval is known to cover here)"
    expected = "" if row.null_mean is None else f"mean {row.shown(row.null_mean)}, "
    return f"ECE {row.shown(row.value)}{ends}; if calibrated: {expected}97.5 % limit {row.shown(row.null_high)}."


def _rows_that_exclude(row: Row, margin: float) -> str:
    if row.high is None:
        return ""
    # the upper end for a calibrated model falls as 1 / √n; rounded up to two digits
    rows = math.ceil(row.n * (row.high / margin) ** 2)
    unit = 10 ** max(len(str(rows)) - 2, 0)
    return f": if the model is calibrated, about {math.ceil(rows / unit) * unit:,} rows would exclude a larger error"


_VALUE = r"(?:'(?:[^']|'\"'\"')*'|\S+)"  # as ``quote`` gives it
LABELS = re.compile(rf" --(?:labels?|on|weights|groups) {_VALUE}")  # the options on labels
_LABELS_FILE = re.compile(rf"(?<= --labels ){_VALUE}")
CHANCE = "That may be chance"  # opens the reason that names a simpler calibrator
NOTHING, TEMPERATURE = "doing nothing", "plain temperature scaling"


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
        verb = "lower" if self.difference >= 0 else "higher"
        low, high = sorted((self.low, self.high)) if self.difference >= 0 else sorted((-self.low, -self.high))
        shown = (
            f"{abs(self.difference):.4f} {verb} than {'with' if self.against == TEMPERATURE else 'when'} {self.against}"
        )
        ends = " to ".join(signed(end, ".4f") for end in (low, high))
        return f"Its log-loss is {shown} (95 % interval of the difference: {ends})."


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


def loss_rows(data: Data) -> Tensor:
    """Return the log-loss (N,) of each row: of the label, or of the top label's correctness for pairs.

    Args:
        data: Labelled.
    """
    if isinstance(data, Predictions):
        return data.nll.double().cpu()
    p, y = data.p.double().cpu(), data.y.double().cpu()
    return -torch.xlogy(y, p) - torch.xlogy(1 - y, 1 - p)


def gain_of(before: Data, after: Data, *, against: str, draws: int) -> Gain | None:
    """Return the paired gain in log-loss, or None where it is infinite, or too few decisions are wrong to test it (``scarce_errors``).

    Args:
        before: The predictions to compare with.
        after: The same rows calibrated.
        against: Name of ``before`` in sentences.
        draws: Bootstrap resamples; whole groups are resampled where rows have groups. Weighted rows have the t-test's interval.
    """
    counted, calibrated = before.counted, after.counted
    # paired, so that what makes a row hard cancels
    difference, groups = loss_rows(counted) - loss_rows(calibrated), counted.groups
    if (
        draws < 2
        or not bool(torch.isfinite(difference).all())
        or scarce_errors(counted, calibrated, loss=NLL().of_labels) is not None
    ):
        return None
    weight = None if counted.weights is None else counted.weights.cpu()
    test = paired_test(difference, groups=groups, weight=weight)
    return Gain(against, test.difference, test.low, test.high)


def gains_of(model: Model, *, draws: int) -> list[Gain]:
    """Return the gains of a model's calibrator over doing nothing and, if available, over plain temperature scaling.

    Args:
        model: A model with ``after``, and with ``reference`` for the second gain.
        draws: Bootstrap resamples.
    """
    if model.after is None or isinstance(model.before, Pairs) is not isinstance(model.after, Pairs):
        return []
    found = [gain_of(model.before, model.after, against=NOTHING, draws=draws)]
    if model.reference is not None:
        found.append(gain_of(model.reference, model.after, against=TEMPERATURE, draws=draws))
    return [gain for gain in found if gain is not None]


def advice_of(
    model: Model,
    verdicts: Sequence[Verdict],
    gains: list[Gain],
    *,
    margin: float,
    event: bool = False,
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
        return _advice_without(before, commands)
    name = model.calibrated_in_short
    by = {gain.against: gain for gain in gains}
    reasons = [f"After {name}: {after.headline[:1].lower()}{after.headline[1:]}. {after.detail}"]
    reasons += [gain.sentence for gain in gains]
    nothing, temperature = by.get(NOTHING), by.get(TEMPERATURE)
    if nothing is None:
        # an infinite loss before (a label of probability 0) or too few errors: the two verdicts are what is known
        if before.state == "large" and after.state != "large":
            headline = f"Calibrate with {name}: the error is large before it and not after."
        else:
            # what it learned is no reason to wait for rows, nor would it be learned again
            headline = f"Collect more labelled rows before deciding on {name.split('(')[0].rstrip()}."
        why = "The gain in log-loss could not be tested: it is infinite, or too few decisions are wrong."
        if bool(model.before.correct.all()):
            headline = "Collect labelled rows on which the model errs: how sure it should be cannot be learned from right ones."
            why = "The gain in log-loss could not be tested: no decision is wrong."
        return Advice(headline, [*reasons, why], commands)
    # the log-loss decides, as a proper score: an ECE can fall while probabilities get worse
    if nothing.state < 0:
        return Advice(f"Leave the model as it is: {name} makes its log-loss worse.", reasons, [])
    if nothing.state == 0:
        return Advice(f"Leave the model as it is: {name} has no significant gain in log-loss.", reasons, [])
    if temperature is not None and temperature.state < 0:
        return Advice(
            f"Use plain temperature scaling: {name} is significantly worse.",
            reasons,
            commands_of(model, margin=margin, method="TemperatureScaling", event=event),
        )
    if temperature is not None and temperature.state == 0:
        plain = "--method TemperatureScaling" if model.source else "TemperatureScaling()"
        reasons.append(f"{CHANCE}: if you prefer a single number, use plain temperature scaling ({plain}).")
    columns = feature_names(model.calibrator) if isinstance(model.calibrator, Calibrator) else []
    by_columns = f"by {' and '.join(columns)} " if columns else ""
    return Advice(f"Calibrate {by_columns}with {name}.", reasons, commands)


def _advice_without(before: Verdict, commands: list[tuple[str, str]]) -> Advice:
    if before.state in ("calibrated", "small"):
        return Advice("Its calibration needs no action.", [], [])
    if before.state == "unclear":
        return Advice("Collect more labelled rows before deciding.", [], [])
    return Advice("Calibrate it on labelled rows other than these.", [], commands)


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
    model: Model,
    *,
    margin: float,
    method: str | None = None,
    features: Sequence[str] = (),
    worst: float | None = None,
    event: bool = False,
) -> list[tuple[str, str]]:
    """Return the three commands that fit, apply and check a calibrator, on the command line or in Python.

    Args:
        model: The model of the report.
        margin: Largest ECE that the check accepts.
        method: Calibrator to fit; None is the model's.
        features: Columns that the method takes.
        worst: Largest ECE that the check accepts of a group of those columns; None does not look at groups.
        event: Whether that is the ECE of an event's probability.
    """
    calibrator, figure = model.calibrator, "event-ece" if event else "ece"
    limits = {figure: margin} if worst is None else {figure: margin, f"worst-group-{figure}": worst}
    # a study gives its name alone
    said = type(calibrator).__name__ if isinstance(calibrator, Calibrator) else calibrator
    name = method or ("auto" if said not in calibrators.__all__ or said == "AutoCalibrator" else str(said))
    if method is None and isinstance(calibrator, Calibrator):
        features = feature_names(calibrator)
    if not model.source:
        made = f"calibrant.calibrators.{'AutoCalibrator' if name == 'auto' else name}({list(features) or ''})"
        fit, ship = (
            "val_logits, val_labels",
            'probs = torch.softmax(calibrant.load("calibrator.safetensors")(logits), dim=1)',
        )
        if features:  # predictions carry the columns with their rows
            fit, ship = "val", 'probs = new.calibrated_by(calibrant.load("calibrator.safetensors")).probs'
        maximum = ", ".join(f'"{metric}": {limit:g}' for metric, limit in limits.items())
        columns = ", ".join(f"{name!r}: new_predictions.features[{name!r}]" for name in features)
        groups = "" if worst is None else f", features={{{columns}}}"
        return [
            ("fit", f'{made}.fit({fit}).save("calibrator.safetensors")'),
            ("ship", ship),
            ("check", "calibrant.evaluate.panel(new_predictions)")
            if model.grouped  # a check asks for independent rows
            else ("check", f"calibrant.operate.check(new_predictions, maximum={{{maximum}}}{groups}).verdict"),
        ]
    stem = stem_of(model.source, name=model.name)
    ending, file = PurePath(model.source).suffix, quote(model.source)
    data = model.argument or file
    options = data.removeprefix(file) if data.startswith(file) else ""  # an example has none
    # rows of a file without splits are all evaluated here, so the fit needs another file
    fit = f"other{ending}{_LABELS_FILE.sub(_other_labels, options)}" if model.whole else data
    saved = quote(f"{stem}-calibrator.safetensors")
    # new rows have no labels, so the check is on these ones, which the calibrator was not fitted on
    split = f" --split {quote(model.split)}" if model.split not in ("", "test") else ""
    names = quote(",".join(features))
    columns = f" --features {names}" if features else ""
    maximum = "".join(f" --max {metric}={limit:g}" for metric, limit in limits.items())
    groups = "" if worst is None else f" --by {names}"
    return [
        ("fit", f"calibrant fit {fit} --method {name}{columns} -o {saved}"),
        ("ship", f"calibrant apply {saved} new{ending}{LABELS.sub('', options)} -o new-calibrated{ending}"),
        ("check", f"calibrant evaluate {data}{split or ' --split test' * (not model.whole)} --calibrator {saved}")
        if model.grouped
        else ("check", f"calibrant check {data}{split} --calibrator {saved}{maximum}{groups}"),
    ]
