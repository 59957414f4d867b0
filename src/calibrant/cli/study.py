"""``calibrant study`` and ``demo``: the papers' experiments: list them, run them, show what has been run; and a first one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid

from calibrant._files import check_folder
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import check_output, console, print_json, print_table, working
from calibrant.cli._options import AsJson, among, refuse_typed
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Block, Table
    from calibrant.study import Store, Study
    from calibrant.study.load import StudyFile
    from calibrant.study.tables import Measured, Verdict

THEORY = "theory"  # the name under which `study show` has the theory's figures
study = typer.Typer(help="The papers' experiments: list, run, show.", no_args_is_help=True)


def _preset_names() -> list[str]:
    """Return the names of ``study list``, for the shell's completion."""
    from calibrant.study import presets

    return presets()


NAMED = typer.Argument(
    metavar="STUDY", autocompletion=among(_preset_names), help="A name of `study list`, or the path of a TOML file."
)
Scale = Annotated[Literal["cpu", "gpu", "paper"], typer.Option(help="How large the study is.")]
Folder = Annotated[Path, typer.Option(help="Folder that keeps the runs.")]
Seeds = Annotated[int | None, typer.Option(min=1, max=10_000, help="So many: its first, then the numbers that follow.")]
Data = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder that holds the data sets, one folder each; else the hub."),
]


@dataclass(frozen=True)
class Requested:
    """Which trainings are to be run."""

    name: Annotated[str | None, NAMED] = None
    everything: Annotated[bool, typer.Option("--all", help="Every study of `study list`, one after the other.")] = False
    scale: Scale = "cpu"
    data: Data = None
    seeds: Seeds = None
    only: Annotated[list[str] | None, typer.Option(help="Only this objective; may be repeated.")] = None
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; may be repeated.")] = None


@dataclass(frozen=True)
class Manner:
    """How trainings are run."""

    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="local: processes on this machine; ray: a Ray cluster.")
    ] = "local"
    address: str | None = option(None, "Of the Ray cluster; else one is started here.", needs="executor ray")
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1
    accelerator: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What they run on.")] = "auto"


@dataclass(frozen=True)
class Outputs:
    """What is written of a study, besides the tables on the screen."""

    report: Annotated[Path | None, typer.Option("--report", "-o", help="Write a report here (.html).")] = None
    record: Annotated[Path | None, typer.Option(help="Write the small record (JSON) with its provenance here.")] = None
    figures: Annotated[Path | None, typer.Option(help="Draw the study's figures into this folder (SVG, PNG).")] = None
    width: Literal["column", "page"] | None = option(
        None, "Figures for a paper: 3.5 or 7.16 inches wide, without heading (SVG, PDF).", needs="figures"
    )
    as_json: AsJson = False


@study.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """List the studies that come with the package."""
    from calibrant.study import load_study, presets

    found = {name: load_study(name, scale=None if as_json else "cpu") for name in presets()}
    if as_json:
        print_json({name: one.title for name, one in found.items()})
        return
    lines = Grid.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True)
    for name, one in found.items():
        lines.add_row(name, one.title)
        lines.add_row("", f"{len(list(one.cells()))} trainings on {_data_sets(one)}", style="dim")
    console().print(lines)


@study.command()
@with_groups
def run(
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
    from calibrant.study.preflight import check_file
    from calibrant.study.run import reports_progress

    kept = Store(store)
    if requested.everything:
        refuse_typed(["name", "only", "setting"], where="a run of --all studies")
        _run_all(_every_study(requested), kept, how, requested.scale, dry_run=dry_run)
        return
    if requested.name is None:
        raise InputError("the name of a study, or --all", "neither", "see calibrant study list")
    file = _read(requested.name)
    chosen = _chosen(file, requested.scale, requested.data, seeds=requested.seeds)
    for family, labels in (("objectives", requested.only), ("settings", requested.setting)):
        known = [part.label for part in getattr(chosen, family)]
        if wrong := [label for label in labels or () if label not in known]:
            raise InputError(f"{family} of {chosen.name} ({', '.join(known)})", f"{wrong[0]!r}", "correct the name")
    chosen = chosen.restricted(objectives=requested.only or None, settings=requested.setting or None)
    check_file(file, chosen)
    if dry_run:
        _say_what_would_run(chosen, kept, requested.scale, how)
        return
    run_with_bars(chosen, kept, how)
    if reports_progress():
        _show(chosen, kept, Outputs())


@study.command()
@with_groups
def show(
    name: Annotated[str, NAMED],
    outputs: Outputs,
    scale: Scale = "cpu",
    store: Folder = Path("calibrant-runs"),
    data: Data = None,
    seeds: Seeds = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Which tables: main, calibrators, errors or all; may be repeated.")
    ] = None,
) -> None:
    """Print the tables of finished trainings from the store, and draw the figures; "theory" has figures that need none.

    Examples:

        calibrant study show digits

        calibrant study show wang-table1 --columns all --figures figures

        calibrant study show sst --figures figures --width column

        calibrant study show theory --figures figures
    """
    from calibrant._core.check import check_choice
    from calibrant.report.render import check_format
    from calibrant.study import Store
    from calibrant.study.measures import COLUMNS

    for place, suffixes in ((outputs.report, []), (outputs.record, [".json"])):
        if place is not None:
            check_output(place, inputs=[name], suffixes=suffixes, what="a record")
    if outputs.figures is not None:
        check_folder(outputs.figures)
    if name == THEORY:
        refuse_typed(["scale", "store", "data", "seeds", "columns", "report", "record"], where="the theory's figures")
        _show_theory(outputs)
        return
    if outputs.report is not None:
        check_format(outputs.report, None)
    chosen = _chosen(_read(name), scale, data, seeds=seeds)
    if columns:
        named: Any = [check_choice(column, name="columns", choices=(*COLUMNS, "all")) for column in columns]
        every: Any = COLUMNS
        chosen = replace(chosen, columns=tuple(every if "all" in named else named))
    _show(chosen, Store(store), outputs)


@study.command()
def claims(
    paper: Annotated[str | None, typer.Option(help="A part of a paper's name: its claims one by one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count the verdicts on the papers' claims, from the folder papers/ of Calibrant's repository.

    Examples:

        calibrant study claims

        calibrant study claims --paper mukhoti

        calibrant study claims --json
    """
    from calibrant.study.page import claim_sentences, claim_table, read_claims

    found = [one for one in read_claims() if (paper or "").lower() in one["paper"].lower()]
    if not found:
        raise InputError("a part of a paper's name", f"{paper!r}", "see calibrant study claims")
    if as_json:
        print_json({"claims": found})
    else:
        _say([claim_table(found)], claim_sentences(found) if paper else [])


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
    from calibrant.plot.diagrams import diagram_of
    from calibrant.report.figures import panel_pictures
    from calibrant.study import Store, collect, load_study
    from calibrant.study.page import in_short, tables_of, verdict_sentences, write_page
    from calibrant.study.tables import summarise, verdicts_on

    digits, kept = load_study("digits-all" if everything else "digits"), Store(store)
    cells = list(digits.cells())
    console(err=True).print(
        f"{len(cells)} small networks learn handwritten digits: {len(digits.objectives)} losses, {len(digits.seeds)} seeds, "
        f"{len(cells) // (len(digits.objectives) * len(digits.seeds))} folds.\nEach sees 400 images and learns them by heart. Is its "
        "confidence still right on images it has not seen?\nECE is how far off the confidence is; T, fitted on other "
        "images, is one number that corrects it."
    )
    run_with_bars(digits, kept, Manner(workers=workers, accelerator="cpu"))
    measured = collect(digits, kept)
    verdicts, lines = verdicts_on(digits, measured), summarise(measured)
    sentences = verdict_sentences(verdicts, lines)
    heading = f"Before and after one temperature, mean ± sd over {len(digits.seeds)} seeds"
    (table,) = tables_of(lines, title=heading, columns=["narrow"])
    report = kept.root / "report.html"
    states = [
        (f"{m.objective}, seed {m.seed}, {when}", diagram_of(data))
        for m in measured
        if m.seed == digits.seeds[0]
        for when, data in (("before", m.before), ("after", m.after))
    ]
    shown: list[Block] = [*panel_pictures(states, prefix="m"), table]
    write_page(digits, measured, lines, report, shown=shown, sentences=sentences)
    if as_json:
        _say_json(measured, verdicts, report=report)
        return
    _say([table], sentences)
    console().print("\n".join(["", *in_short(lines)]))
    console().print(f"The report is in {report.resolve()}: open it in a browser.", style="bold")


def run_with_bars(study: Study, store: Store, how: Manner) -> None:
    """Run what is not finished, with a bar of the trainings and of the epochs of the present one."""
    from calibrant.study.ray import run_study_on_ray
    from calibrant.study.run import reports_progress, run_study

    options: dict[str, Any] = {"workers": how.workers, "accelerator": how.accelerator}
    ray = how.executor == "ray"
    steps = (
        run_study_on_ray(study, store, address=how.address, **options) if ray else run_study(study, store, **options)
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = console(err=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=screen, disable=not reports_progress()) as bars:
        finished, total = _finished(study, store), len(list(study.cells()))
        if finished and reports_progress():
            screen.print(f"{finished} of {total} trainings are finished already and kept in {store.root}", style="dim")
        whole = bars.add_task("trainings", total=total, completed=finished)
        for step in steps:
            where = f"{step.cell.objective}, seed {step.cell.recipe.seed}"
            epochs = step.cell.recipe.training.epochs
            detail = f" · epoch {step.epoch}/{epochs}" if how.workers == 1 and epochs > 1 else ""
            bars.update(whole, completed=step.done, description=f"trainings · {where}{detail}")
        bars.update(whole, description="trainings")


def _run_all(studies: Sequence[Study], store: Store, how: Manner, scale: str, *, dry_run: bool) -> None:
    """Run every study; one that cannot be run is named, and the others go on.

    Raises:
        Exit: With code 2 at the end if a study could not be run.
    """
    from calibrant.study.run import reports_progress

    if dry_run:
        for one in studies:
            _say_what_would_run(one, store, scale, how)
        different = {cell.recipe.fingerprint for one in studies for cell in one.cells()}
        typer.echo(f"all studies: {len(different)} different trainings; shared ones are counted once")
        return
    failed: dict[str, str] = {}
    for one in studies:
        console(err=True).print(f"{one.name}, {len(one.seeds)} seeds")
        try:
            run_with_bars(one, store, how)
        except CalibrantError as error:
            failed[one.name] = str(error)
        else:
            if reports_progress():
                typer.echo(f"{one.name} is finished: calibrant study show {one.name}")
    for name, reason in failed.items():
        typer.echo(f"{name} was not run: {reason}", err=True)
    if failed:
        raise typer.Exit(2)


def _every_study(requested: Requested) -> list[Study]:
    """Return every preset that has the scale, with its data from a folder where they are in it."""
    from calibrant.study import presets

    found = []
    for name in presets():
        file = _read(name)
        if file.scales and requested.scale not in file.scales:
            typer.echo(f"{name} has no scale {requested.scale!r}: left out", err=True)
            continue
        one = _with_seeds(file.study(requested.scale), requested.seeds)
        found.append(one if requested.data is None else one.with_data_from(requested.data))
    return found


def _read(name: str) -> StudyFile:
    """Return a study's file; ``"mylib:MyLoss"`` in one of the user's own is also looked for in its folder, as ``python`` does."""
    from calibrant.study.load import StudyFile

    folder = os.path.dirname(os.path.realpath(name))
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    return StudyFile.read(name)


def _chosen(file: StudyFile, scale: str, data: Path | None, *, seeds: int | None) -> Study:
    """Return the study at a scale, with so many seeds, and its data from a folder."""
    if not file.scales:
        refuse_typed(["scale"], where=f"{file.name}, which has one scale only")
    found = _with_seeds(file.study(scale), seeds)
    placed = found if data is None else found.with_data_from(data)
    if data is not None and placed == found:
        names = ", ".join(sorted({str(setting.data.get("name")) for setting in found.settings}))
        wanted = f"--data to hold a folder of a data set of {file.name} ({names})"
        raise InputError(wanted, f"none of them in {str(data)!r}", "put one there, or leave --data out")
    return placed


def _with_seeds(found: Study, count: int | None) -> Study:
    """Return the study with so many seeds: its first ones and, beyond its own, the numbers that follow; None leaves it."""
    if count is None:
        return found
    further = range(max(found.seeds) + 1, max(found.seeds) + 1 + count)
    return replace(found, seeds=(*found.seeds, *further)[:count])


def _finished(study: Study, store: Store) -> int:
    """Return how many trainings of a study are finished."""
    return sum(store.finished(cell.recipe) for cell in study.cells())


def _say_what_would_run(chosen: Study, kept: Store, scale: str, how: Manner) -> None:
    """Print the trainings of a study and its data, and name the folders that are missing."""
    from calibrant.study.preflight import missing_folders

    cells = list(chosen.cells())
    where = f"on a Ray cluster at {how.address or 'this machine'}" if how.executor == "ray" else "on this machine"
    typer.echo(
        f"{chosen.name} at scale {scale}: {len(cells)} trainings, {_finished(chosen, kept)} of them finished, {how.workers} "
        f"at a time {where} (accelerator: {how.accelerator})"
    )
    for folder, setting in missing_folders(cell for cell in cells if not kept.finished(cell.recipe)):
        typer.echo(f"data missing: {folder} (of setting {setting!r}); put them there or give --data", err=True)
    typer.echo(f"data: {_data_sets(chosen)}")


def _data_sets(study: Study) -> str:
    """Return the data sets of a study, each with its folder, or where it comes from."""

    def place(data: Mapping[str, Any]) -> str:
        known = {"digits": "with scikit-learn", "module": "your module"}
        return str(data.get("folder") or known.get(data["name"], "Hugging Face hub, or --data"))

    return "; ".join(sorted({f"{one.data['name']} ({place(one.data)})" for one in study.settings}))


def _show(chosen: Study, kept: Store, outputs: Outputs) -> None:
    from calibrant.study import collect
    from calibrant.study.draw import pictures_of, write_figures
    from calibrant.study.figures import drawings
    from calibrant.study.page import agreement_sentences, paper_tables, tables_of, verdict_sentences, write_page
    from calibrant.study.tables import measures_needed, record_of, summarise, verdicts_on

    measured = collect(chosen, kept)
    if not measured:
        raise InputError(f"finished runs of {chosen.name!r} in {kept.root}", "none", "run the study first")
    verdicts = verdicts_on(chosen, measured)
    lines = summarise(measured, names=measures_needed(chosen, chosen.columns))
    tables = [*tables_of(lines, title=chosen.title, columns=chosen.columns), *paper_tables(chosen, lines)]
    # which orderings of the papers' tables are seen here and which are not, then each claim
    sentences = [*agreement_sentences(chosen, lines), *verdict_sentences(verdicts, lines)]
    drawn = drawings(chosen, measured) if outputs.report is not None or outputs.figures is not None else []
    if outputs.figures is not None:
        written = write_figures(drawn, outputs.figures, width=outputs.width)
        typer.echo(f"{len(written) or 'no'} figures of {chosen.name} are written to {outputs.figures}", err=True)
    if outputs.report is not None:
        shown: list[Block] = [*tables, *pictures_of(drawn)]
        write_page(chosen, measured, lines, outputs.report, shown=shown, sentences=sentences)
    if outputs.record is not None:
        record_of(chosen, measured, path=outputs.record, columns=chosen.columns)
    if outputs.as_json:
        _say_json(measured, verdicts, report=outputs.report)
    else:
        _say(tables, sentences)


def _show_theory(outputs: Outputs) -> None:
    """Print the numbers of Komisarenko & Kull's figures and Mukhoti et al.'s Figure A.1, and draw them."""
    from calibrant._files import check_folder
    from calibrant.report.model import Table
    from calibrant.study.draw import write_figures
    from calibrant.study.theory import FIGURES

    if outputs.figures is not None:
        check_folder(outputs.figures)
    drawn = []
    for figure, compute in FIGURES.items():
        with working(f"computing {figure}"):
            drawn.append(compute())
    if outputs.figures is not None:
        written = write_figures(drawn, outputs.figures, width=outputs.width)
        typer.echo(f"{len(written)} files are written to {outputs.figures}", err=True)
    if outputs.as_json:
        keys = ("name", "title", "caption", "facts")
        print_json({"figures": [{key: getattr(one, key) for key in keys} for one in drawn]})
        return
    rows = [[one.name, name.replace("_", " "), f"{value:.6g}"] for one in drawn for name, value in one.facts.items()]
    _say([Table("The theory's figures", ["figure", "number", "value"], rows, "")], [])


def _say(tables: Sequence[Table], sentences: Sequence[str]) -> None:
    """Print tables and sentences."""
    screen = console()
    for table in tables:
        print_table(screen, table.header, table.rows, title=table.title)
        if table.note:
            screen.print(table.note, style="dim")
    for sentence in sentences:
        screen.print(sentence)


def _say_json(measured: Sequence[Measured], verdicts: Sequence[Verdict], *, report: Path | None) -> None:
    """Print the figures of every seed as one JSON object."""
    from calibrant.study import rows

    temperatures = [
        {"setting": m.setting, "objective": m.objective, "seed": m.seed, "temperatures": list(m.temperatures)}
        for m in measured
    ]
    said = [{"claim": v.claim.text, **v.plain()} for v in verdicts]
    place = None if report is None else str(report)
    print_json({"rows": rows(measured), "fitted": temperatures, "claims": said, "report": place})
