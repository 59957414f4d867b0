"""``calibrant check``, ``decide``, ``estimate`` and ``watch``: a gate, a rule, estimates without labels, an alarm over time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

import calibrant
from calibrant._core.paths import atomic_write, shown
from calibrant.cli._application import declare_argument, option, with_groups
from calibrant.cli._io import CODES, console, print_json, print_table, say, working
from calibrant.cli._options import (
    AsJson,
    Before,
    Execution,
    Inputs,
    OneSplit,
    Source,
    SplitRows,
    Through,
    cost_table,
    costs_in,
    feature_names,
    of_costs,
    refuse_typed,
    typed_columns,
)
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.operate import Monitor
    from calibrant.operate.check import Check, Policy


NONE_QUALIFIES = 3


@dataclass(frozen=True)
class Limits:
    """What is to be kept: limits by name, those of a policy file, and no worse than a baseline."""

    maximum: list[str] | None = option(
        None, "Largest value: ece, event-ece, brier, error, worst-group-ece …", "--max", metavar="METRIC=NUMBER"
    )
    minimum: list[str] | None = option(
        None, "Smallest value: accuracy, worst-group-accuracy.", "--min", metavar="METRIC=NUMBER"
    )
    no_worse: list[str] | None = option(
        None, "By how much it may be worse than --baseline: nll, brier …", metavar="METRIC=NUMBER"
    )
    baseline: str | None = option(None, "Predictions of the model before.", metavar="FILE")
    policy: str | None = option(None, "Limits in TOML: [maximum], [minimum], [no_worse], by.", metavar="FILE")
    by: list[str] | None = option(None, "Groups for the worst-group metrics.", metavar="COLUMN,…")
    costs: str | None = of_costs()

    def read(self) -> Policy:
        """Return the limits of the options over those of the policy file; a baseline that none of them needs is refused."""
        if not any((self.maximum, self.minimum, self.no_worse, self.policy)):
            raise InputError("at least one limit", "none", "add --max ece=.03, --min accuracy=.9 or --policy FILE")

        from calibrant.operate.check import Policy, read_limits

        limits = Policy(
            read_limits(self.maximum or [], option="--max"),
            read_limits(self.minimum or [], option="--min"),
            read_limits(self.no_worse or [], option="--no-worse"),
            tuple(typed_columns(self.by) or []),
        )
        limits = limits if self.policy is None else Policy.from_file(self.policy).updated(limits)
        if not limits.no_worse:
            refuse_typed(["baseline"], where="limits without one of --no-worse")
        return limits


@dataclass(frozen=True)
class Gate:
    """How the verdict is reported: exit code, files and JSON."""

    inconclusive: Literal["pass", "fail"] | None = option(
        None, "Exit code for too little evidence: as a pass (0) or a failure (1); 3 if left out."
    )
    junit: Path | None = option(None, "Also write JUnit XML here.")
    markdown: Path | None = option(None, "Also write Markdown here, for a pull request.")
    as_json: AsJson = False

    def report(self, found: Check) -> NoReturn:
        """Print the verdict, write the files and what GitHub Actions shows, and leave with the verdict's exit code."""
        from calibrant.operate.formats import annotations, to_junit, to_markdown

        if self.as_json:
            print_json(found.plain())
        else:
            _say_lines(found)
        junit = to_junit(found, strict=self.inconclusive == "fail")
        _write_documents({self.junit: junit, self.markdown: to_markdown(found)})
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            # added to what other steps of the job have written
            with open(summary, "a", encoding="utf-8") as out:
                out.write(to_markdown(found))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in annotations(found):
                typer.echo(line, err=True)
        undecided = found.verdict == "not enough evidence" and self.inconclusive is not None
        raise typer.Exit(CODES[str(self.inconclusive) if undecided else found.verdict])


def _write_documents(texts: Mapping[Path | None, str]) -> None:
    """Write each text to its file, but for those of no file."""
    for path, text in texts.items():
        if path is not None:
            with atomic_write(path) as out:
                out.write(text.encode())


def _say_lines(found: Check) -> None:
    screen = console()
    rows = [
        (line.name, line.verdict, f"{line.value:.4f}", f"{line.low:.4f} … {line.high:.4f}", f"{line.n:,}")
        for line in found.lines
    ]
    print_table(screen, ("limit", "verdict", "value", "between", "n"), rows, left=2)
    for line in found.lines:
        if line.verdict == "not enough evidence" or line.note:
            screen.print(str(line), style="dim")
    screen.print(found.verdict, style="bold")


@with_groups
def check(inputs: Inputs, given: Limits, gate: Gate, chosen: OneSplit) -> None:
    """Check limits on metrics: each is met, violated, or undecided because there are too few rows.

    Exit code 0: all limits pass. 1: one fails. 3: not enough evidence. 2: an error. In GitHub Actions the command also
    annotates the run and extends the step summary.

    A folder of Parquet files, or one large one, is streamed: any number of rows, in bounded memory.

    Examples:

        calibrant check predictions.npz --max ece=.03 --min accuracy=.9

        calibrant check predictions.npz --costs costs.csv --max cost-gap=.05

        calibrant check new.npz --baseline old.npz --no-worse nll=.005 --policy policy.toml --junit gate.xml
    """
    limits = given.read()

    from calibrant.operate import check as check_limits

    before, names = None, None
    if given.baseline is not None:
        before = inputs.read(Source(given.baseline, shown(given.baseline)), chosen.split).data
    source = chosen.source(inputs, purpose="check")
    execution = Execution(refused=("class_dim", "ignore_index", "baseline", "no_worse"))
    data: Any
    features: Any = limits.by
    if execution.streams(source.path):
        data = execution.rows(source.path, chosen)
    else:
        with working(f"reading {source.shown}"):
            rows = inputs.read(source, chosen.split, names_used=given.costs is not None)
            data = rows.through(chosen.calibrator)
        names = rows.named.sides
        features = {name: rows.column(name) for name in limits.by} or None
    costs = cost_table(given.costs, names)
    with working(f"checking {source.shown}"):
        found = check_limits(
            data, maximum=limits.maximum, minimum=limits.minimum, no_worse=limits.no_worse, baseline=before,
            features=features, costs=costs,
        )  # fmt: skip
    gate.report(found)


@dataclass(frozen=True)
class Promise:
    """The guarantee for the rows that are answered."""

    error: float | None = option(None, "Largest error among the answers, such as .05.", without="costs")
    coverage: float | None = option(None, "Instead: least share of rows to answer, such as .8.", without="costs")
    confidence: float = option(0.95, "Probability that the promise is kept.", without="costs")
    by: Literal["class"] | None = option(None, "A threshold for each predicted class.", without="costs")


@dataclass(frozen=True)
class Actions:
    """What actions cost."""

    costs: str | None = of_costs()
    reject: float | None = option(None, "With --costs: the cost of abstaining.", needs="costs")


@dataclass(frozen=True)
class Rule:
    """What is written of the rule."""

    output: Path | None = option(None, "Save calibrator and rule as one module (.safetensors).", "-o", "--output")
    as_json: AsJson = False


@with_groups
def decide(inputs: Inputs, promise: Promise, action: Actions, outputs: Rule, chosen: OneSplit) -> None:
    """Find the confidence above which answers on new rows of the same kind have at most the given error.

    With --costs: choose the action of least expected cost, and print its cost on the labelled rows.

    Exit code 0: a threshold qualifies. 3: none does, and nothing is written. 2: an error.

    Examples:

        calibrant decide predictions.npz --error .05 -c calibrator.safetensors -o deployed.safetensors

        calibrant decide predictions.npz --coverage .8
    """
    source = chosen.source(inputs, purpose="decide on")
    if action.costs is None and (promise.error is None) == (promise.coverage is None):
        got = "neither" if promise.error is None else "both"
        raise InputError("--error, --coverage or --costs", got, "add one of them" if got == "neither" else "keep one")

    from calibrant.calibrators import Identity
    from calibrant.operate import Deployed, abstain, thresholds
    from calibrant.operate.decide import weigh

    rows = inputs.read(source, chosen.split, names_used=action.costs is not None)
    data, costs = rows.scores, costs_in(action.costs, rows.named.sides)
    fitted = calibrant.load(chosen.calibrator) if chosen.calibrator else Identity().fit(data.logits, data.need_labels())
    calibrated = rows.through(fitted) if chosen.calibrator else data
    rule: Any
    found: Any
    if costs is not None:
        rule = thresholds(costs.table, reject=action.reject)
        event = next(iter(rows.named.sides[1:2] or costs.classes[1:2]), "class 1")
        found, qualifies = weigh(rule, costs.actions, calibrated, event=event), True
    else:
        with working("testing thresholds"):
            rule = found = abstain(calibrated, **asdict(promise))
        qualifies = rule.qualifies
    if outputs.output is not None and qualifies:
        Deployed(fitted, rule).save(outputs.output)
    say(found, as_json=outputs.as_json)
    raise typer.Exit(0 if qualifies else NONE_QUALIFIES)


@with_groups
def estimate(
    inputs: Inputs,
    before: Before,
    chosen: OneSplit,
    sensitivity: float = option(
        0.0, "Also show intervals for equal scores that are right up to this much more or less often."
    ),
    as_json: AsJson = False,
) -> None:
    """Estimate accuracy, log-loss and confusion matrix of rows without labels, with 95 % intervals.

    Valid if rows with equal scores have labels as before; a change of that cannot be detected without labels. Labels in FILE are
    not read; the calibrator may be fitted on the reference.

    Examples:

        calibrant estimate today.parquet --reference validation.npz -c calibrator.safetensors

        calibrant estimate predictions.npz --reference predictions.npz --json
    """
    from calibrant.operate import estimate as estimate_figures

    source, known = chosen.source(inputs, purpose="estimate"), None
    fitted = None if chosen.calibrator is None else calibrant.load(chosen.calibrator)
    names = [] if fitted is None else feature_names(fitted)
    # rows of today may lack the column of labels that the reference has
    scored = replace(inputs, label=None, positive=None)
    # names of classes may be those of the reference's labels alone, which are text
    new = scored.read(source, chosen.split, names_used=before.reference is not None)
    window = new.with_features(names).scores
    if before.reference is not None:
        place = Source(before.reference, before.reference)
        reference = inputs.read(place, before.reference_split, names_used=new.named.matched)
        known = reference.with_features(names).scores
    with working("estimating"):
        found = estimate_figures(window, fitted, reference=known, sensitivity=sensitivity)
    say(found, as_json=as_json)


@dataclass(frozen=True)
class NewRows(Through):
    """New labelled predictions."""

    files: list[str] | None = declare_argument(None, "New labelled predictions, in order of time.", metavar="[FILE]...")
    ids: str | None = option(None, "A column that names each row; none counts twice.", metavar="COLUMN")
    time: str | None = option(None, "Time of the rows: seconds since 1970, or as 2026-01-31T12:00:00+00:00.")

    def added(self, monitor: Monitor, inputs: Inputs) -> Iterator[tuple[Predictions | BinaryPairs, tuple[str, ...]]]:
        """Add the rows of every new file to the monitor and yield them, with the names of their classes."""
        when = None if self.time is None else _moment(self.time)
        for file in self.files or []:
            rows = inputs.read(Source(file, file), self.split).with_features(monitor.by)
            ids = None if self.ids is None else rows.beside([self.ids])[self.ids]
            data = rows.through(self.calibrator)
            before = monitor.status.rows
            kept = monitor.update(data, ids=ids, time=when).rows - before
            if data.weights is not None:
                told = f"{kept:,} of {len(data):,} rows are watched, as many as have equal weight"
                typer.echo(f"note: {file}: {told}", err=True)
            yield data, rows.named.sides


@dataclass(frozen=True)
class Start(Before):
    """What a monitor is started from."""

    by: list[str] | None = option(
        None,
        "With --reference: watch each of these columns' groups by itself, too.",
        metavar="COLUMN,…",
        needs="reference",
    )
    costs: str | None = of_costs(needs="reference")

    def monitor(self, state: Path, calibrator: str | None, inputs: Inputs) -> Monitor:
        """Return the monitor of a state, or a new one; a reference beside a state must be the one it was started from."""
        from calibrant.operate import Monitor

        monitor = Monitor.load(state) if state.exists() else None
        if self.reference is None:
            if monitor is None:
                raise InputError("a state", f"none at {state}", "start it with --reference FILE")
            return monitor
        by = typed_columns(self.by)
        columns = monitor.by if monitor is not None and by is None else tuple(by or ())
        rows = inputs.read(Source(self.reference, self.reference), self.reference_split).with_features(columns)
        if monitor is not None and set(columns) != set(monitor.by):
            expected = f"--by as {state} was started ({', '.join(monitor.by) or 'no column'})"
            raise InputError(expected, f"{', '.join(columns)}", "leave it out, or start a new state")
        made = _monitor(rows, calibrator, by=columns, costs=cost_table(self.costs, rows.named.sides))
        if monitor is not None and not monitor.watches(made):
            expected = f"the reference that {state} was started from"
            raise InputError(expected, "another", "leave --reference out, or start a new state")
        return monitor or made


def _monitor(rows: SplitRows, calibrator: str | None, *, by: Sequence[str], costs: Any) -> Monitor:
    """Return a monitor of a reference before calibration; of rows that the calibrator was fitted on, out of fold."""
    from calibrant.operate import Monitor

    if calibrator is None:
        return Monitor(rows.data, by=by, costs=costs)
    fitted = calibrant.load(calibrator)
    try:
        return Monitor(rows.through(fitted), by=by, costs=costs)
    except LeakError:
        return Monitor.from_fit(fitted, rows.scores, by=by, costs=costs)


@dataclass(frozen=True)
class Alarm:
    """What is written besides the state."""

    refit: Path | None = option(None, "After an alarm: save a calibrator fitted on the new rows here, if it helps.")
    prometheus: Path | None = option(None, "Also write Prometheus's text format here.")
    html: Path | None = option(None, "Also write a page with the timeline here.")
    as_json: AsJson = False


@with_groups
def watch(
    inputs: Inputs,
    state: Annotated[Path, typer.Argument(help="The state (.safetensors); made with --reference where it is missing.")],
    new: NewRows,
    start: Start,
    outputs: Alarm,
    merge: list[Path] | None = option(
        None, "States to add: of other workers, or of labels that came late.", metavar="STATE"
    ),
) -> None:
    """Update a monitor with labelled rows and report whether calibration has changed since the reference.

    You may look at any time: at most 5 % of monitors ever raise a false alarm. Exit code 0: no alarm. 1: alarm. 2: an
    error, which leaves the state unchanged.

    Examples:

        calibrant watch state.safetensors --reference predictions.npz

        calibrant watch state.safetensors --reference predictions.parquet --by region

        calibrant watch state.safetensors monday.parquet tuesday.parquet --ids request_id --html watch.html
    """
    from calibrant._core.files import one_writer
    from calibrant.operate import Monitor
    from calibrant.operate.formats import to_html, to_prometheus

    _refuse_unread(inputs, files=bool(new.files), reference=start.reference is not None)
    if inputs.logits is not None:
        raise InputError("new predictions as FILE", "--logits", f"write {inputs.logits} --kind logits")
    # loaded, updated and saved under one lock: of two writers each would undo the other's batches.
    # And saved before anything is made of it, so that no failed page loses rows that were counted.
    with one_writer(state):
        monitor = start.monitor(state, new.calibrator, inputs)
        added = list(new.added(monitor, inputs))
        for other in merge or []:
            monitor.merge(Monitor.load(other))
        monitor.save(state)
    rows, names = [data for data, _ in added], next((sides for _, sides in added if sides), ())
    note = None if outputs.refit is None else _refit(monitor, rows, outputs.refit, after=new.calibrator)
    prometheus, page = to_prometheus(monitor, model=state.stem), to_html(monitor, title=state.stem, names=names)
    _write_documents({outputs.prometheus: prometheus, outputs.html: page})
    if outputs.as_json:
        print_json({**monitor.status.plain(), "refit": note})
    else:
        console().print("\n".join(filter(None, (monitor.status.sentence(names), note))))
    raise typer.Exit(int(monitor.alarm))


def _refuse_unread(inputs: Inputs, *, files: bool, reference: bool) -> None:
    """Refuse options on data that this call does not read."""
    if not files:
        unread = ["split", "ids", "time", *([] if reference else ["calibrator"])]
        refuse_typed(unread, where="a call without FILE, which adds no rows")
        if not reference and inputs != Inputs():
            raise InputError("a FILE beside options on what it holds", "none", "name one, or leave them out")


def _moment(text: str) -> float | datetime:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip()):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            "--time as seconds or as 2026-01-31T12:00:00+00:00", f"{text!r} ({error})", "correct it"
        ) from error
    # without a zone it is UTC, not this machine's: a state travels between machines
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _refit(monitor: Monitor, new: list[Predictions | BinaryPairs], path: Path, *, after: str | None) -> str:
    """Fit an automatic calibrator on the new rows and save it, if there was an alarm and it helps; return what was done."""
    import torch

    from calibrant.calibrators import AutoCalibrator
    from calibrant.data.predictions import Predictions

    if not monitor.alarm:
        return "no alarm, so nothing was fitted"
    rows = [data for data in new if isinstance(data, Predictions)]
    if not rows:
        return "no new rows with the probabilities of all classes, so nothing was fitted"
    together = replace(Predictions.cat(rows), features=None)
    fitted = AutoCalibrator().fit(together)
    # as log-probabilities: a constant that is added to a row of logits changes nothing
    if torch.allclose(fitted(together.logits).log_softmax(dim=1), together.logits.log_softmax(dim=1)):
        return f"nothing was saved: on {len(together):,} new rows no calibrator is reliably better than none"
    fitted.save(path)
    where = f"apply it after {after}" if after else "apply it to the same logits"
    return f"saved {path}, fitted on {len(together):,} new rows; {where}"
