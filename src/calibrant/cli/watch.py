"""``calibrant watch``: an alarm over time, from a small state file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import calibrant
from calibrant._core.paths import atomic_write
from calibrant.cli._application import with_groups
from calibrant.cli._io import check_outputs, console, print_json, readable
from calibrant.cli._options import Before, Inputs, Source, column_names, refuse_typed
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.formats import Named
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.operate import Monitor


@dataclass(frozen=True)
class NewRows:
    """New labelled predictions."""

    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="New labelled predictions, in order of time.")
    ] = None
    split: Annotated[str, typer.Option(help="The split of every FILE.")] = "test"
    ids: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A column that names each row; none counts twice.")
    ] = None
    time: Annotated[
        str | None, typer.Option(help="Time of the rows: seconds since 1970, or as 2026-01-31T12:00:00+00:00.")
    ] = None


@dataclass(frozen=True)
class Start(Before):
    """What a monitor is started from."""

    by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN,…", help="With --reference: watch each of these columns' groups by itself, too."),
    ] = None


@dataclass(frozen=True)
class Outputs:
    """What is written besides the state."""

    refit: Annotated[
        Path | None, typer.Option(help="After an alarm: save a calibrator fitted on the new rows here, if it helps.")
    ] = None
    prometheus: Annotated[Path | None, typer.Option(help="Also write Prometheus's text format here.")] = None
    html: Annotated[Path | None, typer.Option(help="Also write a page with the timeline here.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False


@with_groups
def watch(
    context: typer.Context,
    inputs: Inputs,
    state: Annotated[Path, typer.Argument(help="The state (.safetensors); made with --reference where it is missing.")],
    new: NewRows,
    start: Start,
    outputs: Outputs,
    calibrator: Annotated[
        str | None, typer.Option("--calibrator", "-c", help="Pass all predictions through it.")
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="STATE", help="States to add: of other workers, or of labels that came late."),
    ] = None,
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

    _refuse_unread(context, inputs, files=bool(new.files), reference=start.reference is not None)
    read = [*(new.files or []), start.reference, calibrator, *map(str, merge or []), *inputs.beside]
    places = (state, outputs.refit, outputs.prometheus, outputs.html)
    check_outputs(*places, inputs=[name for name in read if name is not None])
    if inputs.logits is not None:
        raise InputError("new predictions as FILE", "--logits", f"write {inputs.logits} --kind logits")
    with one_writer(state):
        monitor = _start(state, start, calibrator, inputs)
        added = list(_added(monitor, new, calibrator, inputs))
        for other in merge or []:
            monitor.merge(Monitor.load(other))
        monitor.save(state)
    note = None if outputs.refit is None else _refit(monitor, added, outputs.refit, after=calibrator)
    _write(monitor, prometheus=outputs.prometheus, html=outputs.html, name=state.stem)
    _say(monitor, note, as_json=outputs.as_json)
    raise typer.Exit(int(monitor.alarm))


def _added(
    monitor: Monitor, new: NewRows, calibrator: str | None, inputs: Inputs
) -> Iterator[Predictions | BinaryPairs]:
    """Add the rows of every new file to the monitor and yield them."""
    from calibrant.data.formats import read_columns

    when = None if new.time is None else _moment(new.time)
    for file in new.files or []:
        with readable(file) as path:
            data, named = _load(path, calibrator, inputs, shown=file, split=new.split, by=monitor.by)
            names = read_columns(named, [new.ids] if new.ids else [], split=new.split, file=file)
        monitor.update(data, ids=names[new.ids] if new.ids else None, time=when)
        yield data


def _refuse_unread(context: typer.Context, inputs: Inputs, *, files: bool, reference: bool) -> None:
    """Refuse options on data that this call does not read."""
    if not files:
        unread = ["split", "ids", "time", *([] if reference else ["calibrator"])]
        refuse_typed(context, unread, where="a call without FILE, which adds no rows")
        if not reference and inputs != Inputs():
            raise InputError("a FILE beside options on what it holds", "none", "name one, or leave them out")
    if not reference:
        refuse_typed(context, ["reference_split", "by"], where="a call without --reference")


def _write(monitor: Monitor, *, prometheus: Path | None, html: Path | None, name: str) -> None:
    from calibrant.operate.formats import to_html, to_prometheus

    texts = ((prometheus, to_prometheus(monitor, model=name)), (html, to_html(monitor, title=name)))
    for place, text in texts:
        if place is not None:
            with atomic_write(place) as out:
                out.write(text.encode())


def _say(monitor: Monitor, note: str | None, *, as_json: bool) -> None:
    if as_json:
        shown = {**monitor.status.plain(), "refit": note}
        print_json(shown)
        return
    for sentence in (str(monitor.status), note):
        if sentence:
            console().print(sentence)


def _start(state: Path, start: Start, calibrator: str | None, inputs: Inputs) -> Monitor:
    from calibrant.operate import Monitor

    reference, split, by = start.reference, start.reference_split, column_names(start.by)
    if reference is None:
        if not state.exists():
            raise InputError("a state", f"none at {state}", "start it with --reference FILE")
        return Monitor.load(state)
    monitor = Monitor.load(state) if state.exists() else None
    columns = monitor.by if monitor is not None and by is None else tuple(by or ())
    with readable(reference) as path:
        data, _ = _load(path, None, inputs, shown=reference, split=split, by=columns)
    if monitor is None or set(columns) == set(monitor.by):
        made = _monitor(data, calibrator, file=reference, split=split, by=columns)
    if monitor is None:
        return made
    if set(columns) != set(monitor.by):
        started = ", ".join(monitor.by) or "no column"
        raise InputError(
            f"--by as {state} was started ({started})", f"{', '.join(columns)}", "leave it out, or start a new state"
        )
    if not monitor.watches(made):
        raise InputError(
            f"the reference that {state} was started from", "another", "leave --reference out, or start a new state"
        )
    return monitor


def _monitor(
    data: Predictions | BinaryPairs, calibrator: str | None, *, file: str, split: str, by: Sequence[str]
) -> Monitor:
    """Return a monitor of a reference before calibration; of rows that the calibrator was fitted on, out of fold."""
    from calibrant.cli._calibrators import with_logits
    from calibrant.errors import LeakError
    from calibrant.operate import Monitor

    if calibrator is None:
        return Monitor(data, by=by)
    fitted, rows = calibrant.load(calibrator), with_logits(data, file=file, split=split)
    try:
        return Monitor(rows.calibrated_by(fitted), by=by)
    except LeakError:
        return Monitor.from_fit(fitted, rows, by=by)


def _load(
    path: str,
    calibrator: str | None,
    inputs: Inputs,
    *,
    shown: str,
    split: str,
    by: Sequence[str],
) -> tuple[Predictions | BinaryPairs, Named]:
    from calibrant.cli._calibrators import with_logits
    from calibrant.data.formats import read_columns
    from calibrant.data.splits import pick_split

    source = Source(path, shown)
    named = inputs.named(source)
    data = pick_split(inputs.splits_of(named, source), split, shown)
    columns = [name for name in by if name not in (data.features or {})]
    if columns:
        beside = {**(data.features or {}), **read_columns(named, columns, split=split, file=shown)}
        data = replace(data, features=beside)
    if calibrator is None:
        return data, named
    return with_logits(data, file=shown, split=split).calibrated_by(calibrant.load(calibrator)), named


def _moment(text: str) -> float | datetime:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip()):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            "--time as seconds or as 2026-01-31T12:00:00+00:00", f"{text!r} ({error})", "correct it"
        ) from error
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
    if torch.allclose(fitted(together.logits).log_softmax(dim=1), together.logits.log_softmax(dim=1)):
        return f"nothing was saved: on {len(together):,} new rows no calibrator is reliably better than none"
    fitted.save(path)
    where = f"apply it after {after}" if after else "apply it to the same logits"
    return f"saved {path}, fitted on {len(together):,} new rows; {where}"
