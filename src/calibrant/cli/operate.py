"""``calibrant check`` decides limits on metrics; ``watch`` raises an alarm if calibration changes over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli import options
from calibrant.cli.show import print_json, print_line, print_table, working
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    pass

CODES = {"pass": 0, "fail": 1, "not enough evidence": 3}  # 2 is a user's error in every command


def check(
    file: options.File = None,
    example: options.Example = None,
    max: Annotated[
        list[str] | None,
        typer.Option(
            "--max",
            metavar="METRIC=NUMBER",
            help="Largest allowed value of ece, event-ece, brier, error, worst-group-ece …",
        ),
    ] = None,
    min: Annotated[
        list[str] | None,
        typer.Option(
            "--min", metavar="METRIC=NUMBER", help="Smallest allowed value of accuracy or worst-group-accuracy."
        ),
    ] = None,
    no_worse: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=AMOUNT", help="How much worse than the baseline nll, brier, ece … may be."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Predictions of the previous model for the same rows.")
    ] = None,
    by: options.By = None,
    columns: options.Columns = None,
    label: options.Label = None,
    kind: options.Kind = None,
    split: options.Split = "test",
    weights: options.Weights = None,
    groups: options.Groups = None,
    labels: options.LabelsFile = None,
    on: options.On = None,
    calibrator: options.Saved = None,
    as_json: options.AsJson = False,
) -> None:
    """Check limits on metrics: each is met, violated, or undecided because there are too few rows.

    Exit codes: 0 if all limits pass, 1 if one fails, 3 if there is not enough evidence, 2 for an error.

    Examples:

        calibrant check predictions.npz --max ece=.03 --min accuracy=.9

        calibrant check predictions.npz --max worst-group-ece=.1 --by region

        calibrant check new.npz --baseline old.npz --no-worse nll=.005
    """
    texts = {"maximum": ("--max", max), "minimum": ("--min", min), "no_worse": ("--no-worse", no_worse)}
    limits = {name: _limits(given, option=option) for name, (option, given) in texts.items()}
    reading = options.Reading(columns, label, kind, weights, groups, labels, on)
    source = reading.source(file, example)

    from calibrant.operate import check as check_limits

    fitted = options.read_calibrator(calibrator)
    before = None if baseline is None else reading.rows(reading.source(baseline), split)
    rows = reading.rows(source, split, features=[*options.names_in(by), *options.features_of(fitted)])
    data = rows if fitted is None else rows.calibrated_by(fitted)
    with working(f"checking {source.shown}"):
        found = check_limits(data, **limits, baseline=before, features=options.names_in(by))
    if as_json:
        print_json(found.plain())
    else:
        cells = [(x.name, x.verdict, f"{x.value:.4f}", f"{x.low:.4f} … {x.high:.4f}", f"{x.n:,}") for x in found.lines]
        print_table(("limit", "verdict", "value", "between", "n"), cells, left=2)
        for line in found.lines:
            if line.more or line.note:
                print_line(str(line), style="dim")
        print_line(found.verdict, style="bold")
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
        limits[name] = limit
    return limits


def watch(
    state: Annotated[
        Path, typer.Argument(help="The state (.safetensors); --reference creates it if it does not exist.")
    ],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="New labelled predictions, in order of time.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Earlier labelled predictions to compare with; of its splits, val is used."),
    ] = None,
    columns: options.Columns = None,
    label: options.Label = None,
    kind: options.Kind = None,
    split: options.Split = "test",
    calibrator: options.Saved = None,
    as_json: options.AsJson = False,
) -> None:
    """Update a monitor with labelled rows and report whether calibration has changed since the reference.

    You may look at any time: at most 5 % of monitors ever raise a false alarm. Exit codes: 0 for no alarm, 1 for an alarm, 2 for an
    error.

    Examples:

        calibrant watch state.safetensors --reference predictions.npz

        calibrant watch state.safetensors monday.parquet tuesday.parquet
    """
    reading = options.Reading(columns, label, kind)
    sources = reading.sources(files) if files else []
    options.check_output(state, inputs=[*(files or []), reference])

    from calibrant._files import one_writer, shown
    from calibrant.operate import Monitor

    fitted = options.read_calibrator(calibrator)
    # load, update and save under one lock, because two writers would undo each other's batches
    with one_writer(state):
        monitor = Monitor.load(state) if state.exists() else None
        if reference is not None:
            rows = reading.rows(reading.source(reference), "val", features=options.features_of(fitted))
            try:
                made = Monitor(rows if fitted is None else rows.calibrated_by(fitted))
            except LeakError:  # the calibrator was fitted on these rows, so use them out of fold
                made = Monitor.from_fit(fitted, rows)
            if monitor is not None and not monitor.watches(made):
                raise InputError(
                    f"{shown(state)} was started from another reference; leave --reference out, or start a new state"
                )
            monitor = monitor or made
        if monitor is None:
            raise InputError(f"{shown(state)} does not exist; start it with --reference FILE")
        names: tuple[str, ...] = ()
        for source in sources:
            rows = reading.rows(source, split, features=options.features_of(fitted))
            monitor.update(rows if fitted is None else rows.calibrated_by(fitted))
            names = rows.class_names or names
        monitor.save(state)
    if as_json:
        print_json(monitor.status.plain())
    else:
        print_line(monitor.status.sentence(names))
    raise typer.Exit(int(monitor.alarm))
