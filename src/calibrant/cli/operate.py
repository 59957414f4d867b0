"""``calibrant check`` tests limits on metrics; ``watch`` raises an alarm if calibration changes over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from calibrant.cli import options
from calibrant.cli.terminal import print_json, print_table, print_text, working
from calibrant.errors import InputError, LeakError

CODES = {"pass": 0, "fail": 1, "not enough evidence": 3}  # 2 means a user error in every command


def _limits(_: object, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    """Return {metric: number} from texts such as "metric=number"; the callback of the options for limits."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        option = parameter.opts[0]
        if not name or not math.isfinite(limit):
            raise InputError(f"{option} {text!r} is not METRIC=NUMBER; write for example {option} ece=0.03")
        if name in limits:
            raise InputError(f"{option} gives {name} two limits, {limits[name]:g} and {limit:g}; leave one out")
        limits[name] = limit
    return limits


def _limit_option(*names: str, help: str) -> Callable[[Any], Any]:
    return click.option(*names, multiple=True, callback=_limits, metavar="METRIC=NUMBER", help=help)


@options.command()
@options.reading("file", "example", *options.MAPPING, "labels", "on")
@_limit_option("--max", "maximum", help="Largest allowed value of ece, event-ece, brier, error, worst-group-ece …")
@_limit_option("--min", "minimum", help="Smallest allowed value of accuracy or worst-group-accuracy.")
@_limit_option("--no-worse", help="How much worse nll, brier, ece … may be than in the baseline.")
@click.option("--baseline", metavar="FILE", help="Predictions of the previous model for the same rows.")
@options.by
@options.split
@options.saved
@options.as_json
def check(
    reading: options.Reading,
    baseline: str | None,
    by: list[str],
    split: str,
    calibrator: str | None,
    as_json: bool,
    **limits: dict[str, float],
) -> int:
    """Check limits on metrics: each is met, violated, or undecided because there are too few rows.

    Exit codes: 0 if all limits pass, 1 if one fails, 3 if there is not enough evidence, 2 for an error.

    Examples:

        calibrant check predictions.npz --max ece=.03 --min accuracy=.9

        calibrant check predictions.npz --max worst-group-ece=.1 --by region

        calibrant check new.npz --baseline old.npz --no-worse nll=.005
    """
    source = reading.source()

    from calibrant.operate import check as check_limits

    fitted = options.read_calibrator(calibrator)
    before = None if baseline is None else reading.rows(reading.source(baseline), split)
    rows = reading.rows(source, split, *by, fitted=[fitted])
    data = rows if fitted is None else rows.calibrated_by(fitted)
    with working(f"checking {source.shown}"):
        found = check_limits(data, **limits, baseline=before, features=by)
    if as_json:
        print_json(found.plain())
    else:
        cells = [(x.name, x.verdict, f"{x.value:.4f}", f"{x.low:.4f} … {x.high:.4f}", f"{x.n:,}") for x in found.lines]
        print_table(("limit", "verdict", "value", "between", "n"), cells, left=2)
        for line in found.lines:
            if line.more or line.note:
                print_text(str(line), dim=True)
        print_text(found.verdict, bold=True)
    return CODES[found.verdict]


@options.command()
@click.argument("state", type=click.Path(path_type=Path))
@options.reading("files", *options.MAPPING)
@click.option(
    "--reference", metavar="FILE", help="Earlier labelled predictions to compare with (the val split, if any)."
)
@options.split
@options.saved
@options.as_json
def watch(
    reading: options.Reading, state: Path, reference: str | None, split: str, calibrator: str | None, as_json: bool
) -> int:
    """Update a monitor with labelled rows and report whether calibration has changed since the reference.

    STATE is a .safetensors file, which --reference creates if it does not exist. Each FILE holds new labelled
    predictions; name the files in chronological order, and pass the same calibrator each time, if any. You may check as
    often as you like: at most 5 % of monitors ever raise a false alarm. Exit codes: 0 for no alarm, 1 for an alarm, 2
    for an error.

    Examples:

        calibrant watch state.safetensors --reference predictions.npz

        calibrant watch state.safetensors monday.parquet tuesday.parquet
    """
    sources = reading.sources() if reading.files else []
    options.check_output(state, inputs=[*reading.files, reference], suffixes=[".safetensors"], what="a monitor's state")

    from calibrant._files import one_writer, shown
    from calibrant.operate import Monitor

    fitted = options.read_calibrator(calibrator)
    # load, update and save under one lock, because two writers would overwrite each other's batches
    with one_writer(state):
        monitor = Monitor.load(state) if state.exists() else None
        if monitor is not None and (sources or reference is not None):
            monitor.require_calibrator(fitted)
        if reference is not None:
            rows = reading.rows(reading.source(reference), "val", fitted=[fitted])
            try:
                made = Monitor(rows if fitted is None else rows.calibrated_by(fitted))
            except LeakError:  # the calibrator was fitted on these rows, so use them out of fold
                made = Monitor.from_fit(fitted, rows)
            made.record_calibrator(fitted)
            if monitor is not None and not monitor.watches(made):
                raise InputError(
                    f"{shown(state)} was started from another reference; leave --reference out, or start a new state"
                )
            monitor = monitor or made
        if monitor is None:
            raise InputError(f"{shown(state)} does not exist; start it with --reference FILE")
        names: tuple[str, ...] = ()
        for source in sources:
            rows = reading.rows(source, split, fitted=[fitted])
            monitor.update(rows if fitted is None else rows.calibrated_by(fitted))
            names = rows.class_names or names
        monitor.save(state)
    if as_json:
        print_json(monitor.status.plain())
    else:
        print_text(monitor.status.sentence(names))
    return int(monitor.alarm)
