"""``calibrant study`` and ``demo``: the papers' experiments: list them, run them, show what has been run; and a first one."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._core.paths import check_suffix
from calibrant.cli._application import guarded, with_groups
from calibrant.cli._io import check_outputs, console, print_json, working
from calibrant.cli._options import AsJson, among, refuse_typed
from calibrant.cli._study import (
    Manner,
    choices_tables,
    claim_sentences,
    load_study,
    paper_tables,
    run_all,
    run_with_bars,
    say_study,
    say_study_json,
    sentences_of,
    study_in_short,
    tables_of,
    validation_note,
)
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.study import Store, Study
    from calibrant.study.recipe import Cell
    from calibrant.study.tables import Measured, Verdict


study = typer.Typer(help="The papers' experiments: list, run, show.", no_args_is_help=True)


def _preset_names() -> list[str]:
    """Return the names of ``study list``, for the shell's completion."""
    from calibrant.study import presets

    return presets()


def _objectives(context: typer.Context, incomplete: str) -> list[str]:
    """Return the objectives of the study that is named, for the shell's completion."""
    named = [context.params.get("name"), *context.args]  # while a line is completed, its arguments are still unread
    name = next((one for one in named if one), "")
    try:
        chosen = load_study(name, scale=context.params.get("scale") or "cpu")
    except CalibrantError:
        return []
    return [one.label for one in chosen.objectives if one.label.startswith(incomplete)]


NAMED = typer.Argument(
    metavar="STUDY", autocompletion=among(_preset_names), help="A name of `study list`, or the path of a TOML file."
)
Name = Annotated[str, NAMED]
Scale = Annotated[str, typer.Option(autocompletion=among(lambda: ["cpu", "gpu", "paper"]), help="cpu, gpu or paper.")]
Folder = Annotated[Path, typer.Option(help="Folder that keeps the runs.")]
Data = Annotated[Path | None, typer.Option(help="Folder that holds the data sets, one folder each; else the hub.")]


@study.command("list")
@guarded
def list_(as_json: AsJson = False) -> None:
    """List the studies that come with the package."""
    from calibrant.study import presets

    if as_json:
        print_json({name: load_study(name, scale=None).title for name in presets()})
        return
    for name in presets():
        found = load_study(name)
        cells = list(found.cells())
        console().print(f"{name:20} {found.title}")
        console().print(f"{'':20} {len(cells)} trainings on {_data_of(cells)}", style="dim")
    console().print("minutes on this machine: calibrant study run NAME --dry-run", style="dim")


@dataclass(frozen=True)
class Requested:
    """Which trainings are to be run."""

    name: Annotated[str | None, NAMED] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Every study of `study list`: the first seed of each, then the second …")
    ] = False
    scale: Scale = "cpu"
    data: Data = None
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds.")] = None
    only: Annotated[
        list[str] | None, typer.Option(autocompletion=_objectives, help="Only this objective; may be repeated.")
    ] = None


@study.command()
@guarded
@with_groups
def run(
    context: typer.Context,
    requested: Requested,
    how: Manner,
    store: Folder = Path("calibrant-runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and run nothing.")] = False,
) -> None:
    """Run the trainings that are not finished; an interrupted study resumes where it stopped.

    Examples:

        calibrant study run digits

        calibrant study run cifar10 --scale paper --workers 2

        calibrant study run digits --executor ray --workers 2

        calibrant study run --all --scale gpu --data /folder/of/data --workers 4
    """
    from calibrant.study import Store
    from calibrant.study.run import reports_progress

    how.check()
    kept, scale = Store(store), requested.scale
    if requested.everything:
        refuse_typed(context, ["name", "only"], where="a run of --all studies")
        chosen_studies = _all(scale, requested.data, seeds=requested.seeds)
        if dry_run:
            for one in chosen_studies:
                _say_what_would_run(one, kept, scale, how, timed=False)
            _say_total(chosen_studies, kept)
            return
        run_all(chosen_studies, kept, how)
        return
    if requested.name is None:
        raise InputError("the name of a study, or --all", "neither", "see calibrant study list")
    _refuse_scale(context, requested.name)
    chosen = _load(requested.name, scale, requested.data, seeds=requested.seeds, only=requested.only)
    _check(chosen, requested.name)
    if dry_run:
        _say_what_would_run(chosen, kept, scale, how)
        return
    run_with_bars(chosen, kept, how)
    if reports_progress():
        _show(chosen, kept, Outputs())


@study.command()
@guarded
def claims(
    records: Annotated[
        Path | None,
        typer.Option(help="Folder of records that `study show --record` wrote; else the package's own figures."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the verdict on every claim of the papers, by the paper's own measure, corrected for the number of tests.

    Examples:

        calibrant study claims

        calibrant study claims --json
    """
    from calibrant.study.claims import claim_index, read_records

    if records is not None and not records.is_dir():
        raise InputError("a folder of records for --records", f"{str(records)!r}", "correct it or leave it out")
    lines = claim_index(None if records is None else read_records(records))
    if as_json:
        found = {"claims": [line.plain() for line in lines], "verdicts": dict(Counter(line.verdict for line in lines))}
        print_json(found)
    else:
        say_study([], claim_sentences(lines))


@study.command("describe")
@guarded
def describe_(
    context: typer.Context,
    name: Name,
    scale: Annotated[
        str | None,
        typer.Option(
            autocompletion=among(lambda: ["cpu", "gpu", "paper"]),
            help="cpu, gpu or paper; if left out, the largest that the study has.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every choice of a study with the paper and with its authors' code.

    Examples:

        calibrant study describe mukhoti-table1

        calibrant study describe sst --scale cpu --json
    """
    from calibrant.study import describe

    _refuse_scale(context, name)
    chosen = load_study(name, scale=scale or _largest_scale(name))
    choices = describe(chosen)
    if as_json:
        print_json({"study": chosen.name, "choices": [asdict(c) for c in choices]})
        return
    say_study(choices_tables(chosen, choices), [])


@study.command()
@guarded
def init(
    file: Annotated[Path, typer.Argument(help="The TOML file to write; it must not exist.")] = Path("study.toml"),
) -> None:
    """Write a study's TOML file with comments, to be edited and run.

    Examples:

        calibrant study init mine.toml
    """
    from calibrant.study.load import write_template

    if file.suffix != ".toml":
        raise InputError("a file that ends in .toml", f"{str(file)!r}", "rename it")
    write_template(file)
    typer.echo(f"{file} is written; edit it, then: calibrant study run {file}")


@dataclass(frozen=True)
class Outputs:
    """What is written of a study, besides the tables on the screen."""

    report: Annotated[Path | None, typer.Option("--report", "-o", help="Write a report here (.html, .md).")] = None
    record: Annotated[Path | None, typer.Option(help="Write the small record (JSON) with its provenance here.")] = None
    figures: Annotated[Path | None, typer.Option(help="Draw the study's figures into this folder (SVG, PNG).")] = None
    as_json: AsJson = False

    def check(self, *, inputs: list[str]) -> None:
        """Refuse places that cannot be written, before any work is done."""
        from calibrant.report.render import check_format

        check_outputs(self.report, self.record, folder=self.figures, inputs=inputs)
        if self.record is not None:
            check_suffix(self.record, (".json",), what="a record")
        if self.report is not None:
            check_format(self.report, None)


@study.command()
@guarded
@with_groups
def show(
    context: typer.Context,
    name: Name,
    outputs: Outputs,
    scale: Scale = "cpu",
    store: Folder = Path("calibrant-runs"),
    data: Data = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Which tables: main, calibrators, errors or all; may be repeated.")
    ] = None,
) -> None:
    """Print the tables of finished trainings from the store, and draw the figures.

    Examples:

        calibrant study show digits

        calibrant study show wang-table1 --columns all --figures figures
    """
    from calibrant._core.check import check_choice
    from calibrant.study import Store
    from calibrant.study.measures import COLUMNS

    outputs.check(inputs=[name])
    _refuse_scale(context, name)
    chosen = _load(name, scale, data)
    for column in columns or ():
        check_choice(column, name="columns", choices=(*COLUMNS, "all"))
    if columns:
        chosen = replace(chosen, columns=tuple(COLUMNS) if "all" in columns else tuple(columns))
    _show(chosen, Store(store), outputs)


def _all(scale: str, data: Path | None, *, seeds: int | None) -> list[Study]:
    """Return every study that has the scale, with its data from a folder where they are in it."""
    from calibrant.study import presets
    from calibrant.study.load import scales_of

    found = []
    for name in presets():
        scales = scales_of(name)
        if scales and scale not in scales:
            typer.echo(f"{name} has no scale {scale!r}: left out", err=True)
            continue
        one = load_study(name, scale=scale)
        one = one.restricted(seeds=None if seeds is None else one.seeds[:seeds])
        found.append(one if data is None else one.with_data_from(data))
    return found


def _say_what_would_run(chosen: Study, kept: Store, scale: str, how: Manner, *, timed: bool = True) -> None:
    """Print the trainings of a study, its data and, ``timed`` on a few batches, its minutes on this machine."""
    from calibrant.study.preflight import missing_folders
    from calibrant.study.train import outlook

    cells = list(chosen.cells())
    finished = sum(kept.finished(cell.recipe) for cell in cells)
    where = f"on a Ray cluster at {how.address or 'this machine'}" if how.executor == "ray" else "on this machine"
    typer.echo(
        f"{chosen.name} at scale {scale}: {len(cells)} trainings, {finished} of them finished, {how.workers} at a time "
        f"{where} (accelerator: {how.accelerator})"
    )
    missing = missing_folders(cell for cell in cells if not kept.finished(cell.recipe))
    for folder, setting in missing:
        typer.echo(f"data missing: {folder} (of setting {setting!r}); put them there or give --data", err=True)
    typer.echo(f"data: {_data_of(cells)}")
    if not timed:
        return
    away = {setting for _, setting in missing} | {cell.setting for cell in cells if _of_hub(cell.recipe.data)}
    left = [cell for cell in cells if cell.setting not in away and not kept.finished(cell.recipe)]
    minutes = 0.0
    for setting, part in itertools.groupby(sorted(left, key=lambda cell: cell.setting), key=lambda cell: cell.setting):
        trainings = list(part)
        with working(f"timing a few batches of {setting}"):
            found = outlook(trainings[0].recipe, accelerator=how.accelerator)
        train, validation, test = found.rows
        minutes += len(trainings) * found.seconds / 60
        typer.echo(
            f"{setting}: {train:,} rows to train on, {validation:,} to validate, {test:,} to test; {len(trainings)} trainings of "
            f"about {found.seconds / 60:.1f} minutes"
        )
    if left:
        typer.echo(f"about {minutes / how.workers:.0f} minutes on this machine, timed on a few batches")


def _data_of(cells: Sequence[Cell]) -> str:
    """Return the data sets of a study, each with its size where it lies, or where it comes from."""
    named = {(str(cell.recipe.data["name"]), _place_of(cell.recipe.data)) for cell in cells}
    return "; ".join(f"{name} ({place})" for name, place in sorted(named))


_AT_HAND = {"digits": "with scikit-learn", "own": "your files", "module": "your module"}


def _of_hub(data: Mapping[str, Any]) -> bool:
    """Return whether the data would be downloaded, which a dry run does not do."""
    return data.get("folder") is None and data["name"] not in _AT_HAND


def _place_of(data: Mapping[str, Any]) -> str:
    folder = data.get("folder")
    if folder is None:
        return (
            "Hugging Face hub; --data names a folder, whose batches are timed"
            if _of_hub(data)
            else _AT_HAND[data["name"]]
        )
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return f"{size / 1e6:,.0f} MB in {folder}" if size else f"missing: {folder}"


def _say_total(studies: list[Study], kept: Store) -> None:
    """Print how many trainings all studies need, each counted once."""
    counted = sum(1 for one in studies for _ in one.cells())
    distinct = {cell.recipe.fingerprint: cell.recipe for one in studies for cell in one.cells()}
    finished = sum(kept.finished(recipe) for recipe in distinct.values())
    shared = counted - len(distinct)
    typer.echo(
        f"all studies: {len(distinct)} different trainings ({shared} shared ones counted once), {finished} finished"
    )


def _largest_scale(name: str) -> str:
    """Return the scale that is described unless one is named: paper, or the largest of a study without it."""
    from calibrant.study.load import SCALES, scales_of

    scales = scales_of(name)
    return next((scale for scale in reversed(SCALES) if scale in scales), SCALES[-1])


def _load(
    name: str, scale: str, data: Path | None, *, seeds: int | None = None, only: list[str] | None = None
) -> Study:
    if data is not None and not data.is_dir():
        raise InputError("a folder of data sets for --data", f"{str(data)!r}", "correct it or leave it out")
    found = load_study(name, scale=scale)
    known = [objective.label for objective in found.objectives]
    for label in only or ():
        if label not in known:
            raise InputError(f"objectives of {name} ({', '.join(known)})", f"{label!r}", "correct the name")
    found = found.restricted(objectives=only or None, seeds=None if seeds is None else found.seeds[:seeds])
    if data is None:
        return found
    placed = found.with_data_from(data)
    if placed == found:
        wanted_sets = ", ".join(sorted({str(setting.data.get("name")) for setting in found.settings}))
        wanted = f"--data to hold a folder of a data set of {name} ({wanted_sets})"
        raise InputError(wanted, f"none of them in {str(data)!r}", "put one there, or leave --data out")
    return placed


def _check(chosen: Study, name: str) -> None:
    """Check a study and, where it is a file of the user's own, the file's other scales too; messages name the file."""
    from calibrant.study.load import scales_of
    from calibrant.study.preflight import check_study

    own = name.endswith(".toml")
    try:
        check_study(chosen)
        for scale in scales_of(name) if own else ():
            check_study(load_study(name, scale=scale))
    except InputError as error:
        raise (InputError(f"{error} (in {name})") if own and name not in str(error) else error) from error


def _refuse_scale(context: typer.Context, name: str) -> None:
    from calibrant.study.load import scales_of

    if not scales_of(name):
        refuse_typed(context, ["scale"], where=f"{name}, which has one scale only")


def _show(chosen: Study, kept: Store, outputs: Outputs) -> None:
    from calibrant.report import Claims, Model, write_report
    from calibrant.report.model import Block
    from calibrant.report.study_figures import study_pictures, write_study_figures
    from calibrant.study import collect
    from calibrant.study.figures import drawings
    from calibrant.study.tables import measures_needed, record_of, summarise, verdicts_on

    report, figures = outputs.report, outputs.figures
    measured = collect(chosen, kept)
    if not measured:
        raise InputError(f"finished runs of {chosen.name!r} in {kept.root}", "none", "run the study first")
    verdicts = verdicts_on(chosen, measured)
    lines = summarise(measured, names=measures_needed(chosen, chosen.columns))
    tables = [*tables_of(lines, title=chosen.title, columns=chosen.columns), *paper_tables(chosen, lines)]
    sentences = sentences_of(chosen, lines, verdicts)
    drawn = drawings(chosen, measured, kept) if report is not None or figures is not None else []
    if figures is not None:
        write_study_figures(drawn, figures)
    if report is not None:
        first = [
            Model(f"{m.setting} · {m.objective}", m.before, m.after, "TemperatureScaling")
            for m in measured
            if m.seed == chosen.seeds[0]
        ]
        claims = [Claims("What the papers claim, and what shows here", sentences)] if sentences else []
        blocks: list[Block] = [Claims("In short", study_in_short(lines)), *tables, *study_pictures(drawn), *claims]
        made = Claims("How it was made", [validation_note(measured)])
        write_report(first, report, title=chosen.title, tables=[*blocks, made], notes=[" ".join(chosen.about.split())])
    if outputs.record is not None:
        record_of(chosen, measured, path=outputs.record, columns=chosen.columns)
    if outputs.as_json:
        say_study_json(measured, verdicts, report=None if report is None else str(report))
    else:
        say_study(tables, sentences)


def demo(
    everything: Annotated[bool, typer.Option("--all", help="All the papers' objectives, not three.")] = False,
    store: Annotated[Path, typer.Option(help="Folder that keeps trainings and report.")] = Path("calibrant-runs"),
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = min(2, os.cpu_count() or 1),
    as_json: AsJson = False,
) -> None:
    """Train, calibrate, measure and report on handwritten digits; an interrupted demo resumes.

    Examples:

        calibrant demo

        calibrant demo --all --store runs
    """
    from calibrant.report import Claims, Model, write_report
    from calibrant.report.figures import before_after_panels
    from calibrant.study import Store, collect
    from calibrant.study.tables import summarise, verdicts_on

    digits, kept = load_study("digits-all" if everything else "digits"), Store(store)
    train_aloud(digits, kept, workers=workers)
    measured = collect(digits, kept)
    verdicts = verdicts_on(digits, measured)
    claims = claim_lines(verdicts)
    heading = "Before and after one temperature, mean ± sd over seeds"
    (table,) = tables_of(summarise(measured), title=heading, columns=["narrow"])
    report = kept.root / "report.html"
    first = [m for m in measured if m.seed == digits.seeds[0]]
    pictures = before_after_panels([(m.objective, m.before, m.after) for m in first])
    made = Claims("How it was made", [" ".join(digits.about.split()), validation_note(measured)])
    write_report(
        [Model(f"{m.objective}, seed {m.seed}", m.before, m.after, "TemperatureScaling") for m in first],
        report,
        title=digits.title,
        notes=[in_one_sentence(measured)],
        tables=[*pictures, table, Claims("What the papers claim, and what shows here", claims), made],
    )
    if as_json:
        say_study_json(measured, verdicts, report=str(report))
        return
    say_study([table], claims)
    console().print(f"\n{in_one_sentence(measured)}")
    console().print(f"The report is in {report.resolve()}: open it in a browser.", style="bold")


def train_aloud(study: Study, store: Store, *, workers: int) -> None:
    """Run what is not finished; each finished training is one line on stderr: its error, ECE and temperature."""
    from calibrant.study.measures import Fits
    from calibrant.study.run import run_study

    cells = list(study.cells())
    done = sum(store.finished(cell.recipe) for cell in cells)
    screen = console(err=True)
    losses = list(dict.fromkeys(cell.objective for cell in cells))
    screen.print(
        f"{len(cells)} small networks learn handwritten digits: {len(losses)} losses, {len(study.seeds)} seeds, "
        f"{len(cells) // (len(losses) * len(study.seeds))} folds.\nEach sees 400 images and learns them by heart. Is its "
        "confidence still right on images it has not seen?\nECE is how far off the confidence is; T, fitted on other "
        "images, is one number that corrects it: ECE before → after."
    )
    if done:
        screen.print(f"{done} of {len(cells)} trainings are finished already and kept in {store.root}", style="dim")
    for step in run_study(study, store, workers=workers, accelerator="cpu"):
        if step.done == done:  # an epoch of the present training
            continue
        done, recipe = step.done, step.cell.recipe
        run = store.load(recipe)
        fits = Fits([run.validation], [run.test], [store.trajectory(recipe)])
        error, ece, at_t = (100 * fits.value(name) for name in ("error", "ece", "ece_at_t"))
        screen.print(
            f"{done:3}/{step.total} {step.cell.objective:<19} seed {recipe.seed} fold {recipe.fold}  error {error:4.1f} %  ECE "
            f"{ece:4.1f} →{at_t:4.1f} %  T {fits.value('temperature'):4.2f}"
        )


def claim_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one short line a claim: whether it shows here, its figures, and how sure that is."""
    from calibrant.study.measures import MEASURES

    found = []
    for verdict in verdicts:
        if verdict.seen is not None:
            measure = MEASURES[verdict.claim.measure]
            values = " → ".join(measure.shown(value) for value in verdict.values)
            sure = "" if verdict.p is None else f" (p = {verdict.p:.2g})"
            unit = " %" if measure.percent else ""
            found.append(f"{verdict.outcome.capitalize()}: {verdict.claim.text}: {measure.label} {values}{unit}{sure}.")
    return found


def in_one_sentence(measured: list[Measured]) -> str:
    """Return what the first objective shows: its ECE before and after one temperature, averaged over seeds."""
    from calibrant.study.tables import summarise

    if not measured:
        return ""
    line = summarise([m for m in measured if m.objective == measured[0].objective])[0]
    side = "over-confident" if line.mean["temperature"] > 1 else "under-confident"
    return (
        f"{line.objective} leaves the network {side}: its confidence is off by {100 * line.mean['ece']:.1f} points (ECE), and "
        f"by {100 * line.mean['ece_at_t']:.1f} after one temperature, T = {line.mean['temperature']:.2f}, at the same accuracy; a "
        f"calibrated network of this size has {100 * line.calibrated_mean:.1f}."
    )
