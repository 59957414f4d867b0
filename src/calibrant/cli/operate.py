"""``calibrant check`` and ``watch``: a gate, and an alarm over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import calibrant
from calibrant._core.paths import shown
from calibrant.cli._application import declare_argument, option, with_groups
from calibrant.cli._io import CODES, console, print_json, print_table, working
from calibrant.cli._options import (
    AsJson,
    Before,
    Inputs,
    OneSplit,
    Source,
    SplitRows,
    Through,
    refuse_typed,
    typed_columns,
)
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    from calibrant.operate import Monitor
    from calibrant.operate.check import Check


@dataclass(frozen=True)
class Limits:
    """The limits to keep."""

    max: list[str] | None = option(
        None, "Largest value: ece, event-ece, brier, error, worst-group-ece …", "--max", metavar="METRIC=NUMBER"
    )
    min: list[str] | None = option(
        None, "Smallest value: accuracy, worst-group-accuracy.", "--min", metavar="METRIC=NUMBER"
    )
    no_worse: list[str] | None = option(
        None, "By how much it may be worse than the baseline: nll, brier …", metavar="METRIC=AMOUNT", needs="baseline"
    )
    baseline: str | None = option(
        None, "Predictions of the model before, for the same rows.", metavar="FILE", needs="no_worse"
    )
    by: list[str] | None = option(None, "Groups for the worst-group metrics.", metavar="COLUMN,…")


@with_groups
def check(inputs: Inputs, given: Limits, chosen: OneSplit, as_json: AsJson = False) -> None:
    """Check limits on metrics: each is met, violated, or undecided because there are too few rows.

    Exit code 0: all limits pass. 1: one fails. 3: not enough evidence. 2: an error.

    Examples:

        calibrant check predictions.npz --max ece=.03 --min accuracy=.9

        calibrant check predictions.npz --max worst-group-ece=.1 --by region

        calibrant check new.npz --baseline old.npz --no-worse nll=.005
    """
    limits = {
        "maximum": _limits(given.max, option="--max"),
        "minimum": _limits(given.min, option="--min"),
        "no_worse": _limits(given.no_worse, option="--no-worse"),
    }
    if not any(limits.values()):
        raise InputError(
            "no limit is given; add --max ece=.03, --min accuracy=.9, or --no-worse nll=.005 with --baseline FILE"
        )
    source = chosen.source(inputs, purpose="check")

    from calibrant.operate import check as check_limits

    with working(f"reading {source.shown}"):
        before = None
        if given.baseline is not None:
            before = inputs.read(Source(given.baseline, shown(given.baseline)), chosen.split).data
        rows = inputs.read(source, chosen.split)
        data = rows.through(chosen.calibrator)
        features = {name: rows.column(name) for name in typed_columns(given.by) or []}
    with working(f"checking {source.shown}"):
        found = check_limits(data, **limits, baseline=before, features=features)
    if as_json:
        print_json(found.plain())
    else:
        _print_lines(found)
    raise typer.Exit(CODES[found.verdict])


def _limits(texts: Sequence[str] | None, *, option: str) -> dict[str, float]:
    """Return {metric: number} from the texts "metric=number" passed to ``option``."""
    limits: dict[str, float] = {}
    for text in texts or ():
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not name or not math.isfinite(limit):
            raise InputError(f"{option} {text!r} is not METRIC=NUMBER; write for example {option} ece=0.03")
        if name in limits:
            raise InputError(f"{option} limits {name} twice; keep one of them")
        limits[name] = limit
    return limits


def _print_lines(found: Check) -> None:
    screen = console()
    rows = [
        (line.name, line.verdict, f"{line.value:.4f}", f"{line.low:.4f} … {line.high:.4f}", f"{line.n:,}")
        for line in found.lines
    ]
    print_table(screen, ("limit", "verdict", "value", "between", "n"), rows, left=2)
    for line in found.lines:
        if line.more or line.note:
            screen.print(str(line), style="dim")
    screen.print(found.verdict, style="bold")


@dataclass(frozen=True)
class NewRows(Through):
    """New labelled predictions."""

    files: list[str] | None = declare_argument(None, "New labelled predictions, in order of time.", metavar="[FILE]...")


@with_groups
def watch(
    inputs: Inputs,
    state: Annotated[Path, typer.Argument(help="The state (.safetensors); made with --reference where it is missing.")],
    new: NewRows,
    before: Before,
    as_json: AsJson = False,
) -> None:
    """Update a monitor with labelled rows and report whether calibration has changed since the reference.

    You may look at any time: at most 5 % of monitors ever raise a false alarm. Exit code 0: no alarm. 1: alarm. 2: an
    error.

    Examples:

        calibrant watch state.safetensors --reference predictions.npz

        calibrant watch state.safetensors monday.parquet tuesday.parquet
    """
    from calibrant._core.files import one_writer

    if not new.files:
        refuse_typed(
            ["split", *([] if before.reference else ["calibrator"])], where="a call without FILE, which adds no rows"
        )
        if before.reference is None and inputs != Inputs():
            raise InputError("options say how to read a FILE, and there is none; name one, or leave them out")
    if inputs.logits is not None:
        raise InputError(f"new predictions are arguments: write {inputs.logits} --kind logits instead of --logits")
    # loaded, updated and saved under one lock: of two writers each would undo the other's batches
    with one_writer(state):
        monitor = _monitor(state, before, new.calibrator, inputs)
        names: tuple[str, ...] = ()
        for file in new.files or []:
            rows = inputs.read(Source(file, file), new.split)
            monitor.update(rows.through(new.calibrator))
            names = rows.named.sides or names
        monitor.save(state)
    status = monitor.status
    if as_json:
        print_json(status.plain())
    else:
        console().print(status.sentence(names))
    raise typer.Exit(int(monitor.alarm))


def _monitor(state: Path, before: Before, calibrator: str | None, inputs: Inputs) -> Monitor:
    """Return the monitor of a state, or a new one; a reference given with a state must be the one it was started from."""
    from calibrant.operate import Monitor

    monitor = Monitor.load(state) if state.exists() else None
    if before.reference is None:
        if monitor is None:
            raise InputError(f"{shown(state)} does not exist; start it with --reference FILE")
        return monitor
    made = _started(inputs.read(Source(before.reference, before.reference), before.reference_split), calibrator)
    if monitor is not None and not monitor.watches(made):
        raise InputError(
            f"{shown(state)} was started from another reference; leave --reference out, or start a new state"
        )
    return monitor or made


def _started(rows: SplitRows, calibrator: str | None) -> Monitor:
    """Return a monitor of a reference before calibration; of rows that the calibrator was fitted on, out of fold."""
    from calibrant.operate import Monitor

    if calibrator is None:
        return Monitor(rows.data)
    fitted = calibrant.load(calibrator)
    try:
        return Monitor(rows.through(fitted))
    except LeakError:
        return Monitor.from_fit(fitted, rows.scores)
