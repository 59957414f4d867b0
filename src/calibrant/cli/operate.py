"""``calibrant check`` and ``watch``: a gate, and an alarm over time."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import calibrant
from calibrant._files import shown
from calibrant.cli._application import declare_argument, option, with_groups
from calibrant.cli._io import CODES, check_output, console, print_json, print_table, working
from calibrant.cli._options import (
    AsJson,
    Inputs,
    OneSplit,
    SplitRows,
    Through,
    check_calibrator,
    feature_names,
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
    source, baseline = chosen.source(inputs), inputs.sources(given.baseline) if given.baseline else []
    check_calibrator(chosen.calibrator)

    from calibrant.operate import check as check_limits

    by = typed_columns(given.by) or []
    fitted = None if chosen.calibrator is None else calibrant.load(chosen.calibrator)
    before = next((inputs.read(one, chosen.split).data for one in baseline), None)
    rows = inputs.read(source, chosen.split, features=[*by, *feature_names(fitted)])
    data = rows.through(fitted)
    features = {name: rows.column(name) for name in by}
    with working(f"checking {source.shown}"):
        found = check_limits(data, **limits, baseline=before, features=features)
    with _verdict(CODES[found.verdict]):
        if as_json:
            print_json(found.plain())
        else:
            _print_lines(found)


@contextmanager
def _verdict(code: int) -> Iterator[None]:
    """Leave with ``code`` after what is printed, also where the reader of the output has left, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would be an error on the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(code)


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
class Before:
    """Labelled predictions from before, which a monitor starts from."""

    reference: str | None = option(
        None, "Labelled predictions from before, with which the new ones are compared.", metavar="FILE"
    )
    reference_split: str = option("val", "The split of the reference.", needs="reference")


@dataclass(frozen=True)
class NewRows(Through):
    """New labelled predictions."""

    files: list[str] | None = declare_argument("New labelled predictions, in order of time.", metavar="[FILE]...")


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
    from calibrant._files import one_writer

    if not new.files:
        refuse_typed(
            ["split", *([] if before.reference else ["calibrator"])], where="a call without FILE, which adds no rows"
        )
        if before.reference is None and inputs != Inputs():
            raise InputError("options say how to read a FILE, and there is none; name one, or leave them out")
    sources = inputs.sources(new.files) if new.files else []
    check_calibrator(new.calibrator)
    check_output(state, inputs=[*(new.files or []), *filter(None, [before.reference])])
    # loaded, updated and saved under one lock: of two writers each would undo the other's batches
    with one_writer(state):
        fitted = None if new.calibrator is None else calibrant.load(new.calibrator)
        monitor = _monitor(state, before, fitted, inputs)
        names: tuple[str, ...] = ()
        for source in sources:
            rows = inputs.read(source, new.split, features=feature_names(fitted))
            monitor.update(rows.through(fitted))
            names = rows.data.class_names or names
        monitor.save(state)
    status = monitor.status
    with _verdict(int(monitor.alarm)):
        if as_json:
            print_json(status.plain())
        else:
            console().print(status.sentence(names))


def _monitor(state: Path, before: Before, fitted: Any, inputs: Inputs) -> Monitor:
    """Return the monitor of a state, or a new one; a reference given with a state must be the one it was started from."""
    from calibrant.operate import Monitor

    monitor = Monitor.load(state) if state.exists() else None
    if before.reference is None:
        if monitor is None:
            raise InputError(f"{shown(state)} does not exist; start it with --reference FILE")
        return monitor
    [source] = inputs.sources(before.reference)
    made = _started(inputs.read(source, before.reference_split, features=feature_names(fitted)), fitted)
    if monitor is not None and not monitor.watches(made):
        raise InputError(
            f"{shown(state)} was started from another reference; leave --reference out, or start a new state"
        )
    return monitor or made


def _started(rows: SplitRows, fitted: Any) -> Monitor:
    """Return a monitor of a reference before calibration; of rows that the calibrator was fitted on, out of fold."""
    from calibrant.operate import Monitor

    try:
        return Monitor(rows.through(fitted))
    except LeakError:
        return Monitor.from_fit(fitted, rows.data)
