"""``calibrant study`` and ``demo``: the papers' experiments: list them, run them, show what has been run; and a first one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from calibrant.cli import options
from calibrant.cli.show import console, print_json, print_line, print_table, say, working
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Block, Table
    from calibrant.study import Store, Study
    from calibrant.study.load import StudyFile
    from calibrant.study.tables import Measured, Verdict

THEORY = "theory"  # the name under which `study show` has the theory's figures
study = typer.Typer(help="The papers' experiments: list, run, show.", no_args_is_help=True, rich_markup_mode=None)


def _preset_names() -> list[str]:
    from calibrant.study import presets

    return presets()


Named = typer.Argument(
    metavar="STUDY",
    autocompletion=options.complete(_preset_names),
    help="A name of `study list`, or the path of a TOML file.",
)
Scale: TypeAlias = Annotated[Literal["cpu", "gpu", "paper"], typer.Option(help="How large the study is.")]
Folder: TypeAlias = Annotated[Path, typer.Option(help="Folder that keeps the runs.")]
Seeds: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Number of seeds; by default the study's own.")
]
Data: TypeAlias = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder that holds the data sets, one folder each; else the hub."),
]
Workers: TypeAlias = Annotated[int, typer.Option(min=1, help="Trainings at a time.")]
RUNS = Path("calibrant-runs")
LOG_EVERY = 60  # seconds between lines of a log


@study.command("list")
def list_studies() -> None:
    """List the studies that come with the package."""
    from calibrant.study import load_study, presets

    for name in presets():
        one = load_study(name)
        print_line(f"{name}: {one.title}")
        print_line(f"    {len(list(one.cells()))} trainings on {_data_sets(one)}", style="dim")


@study.command()
def run(
    name: Annotated[str | None, Named] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every study of `study list`, one after the other.")
    ] = False,
    scale: Scale = "cpu",
    data: Data = None,
    seeds: Seeds = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this objective; may be repeated.")] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; may be repeated.")] = None,
    store: Folder = RUNS,
    executor: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="local: processes on this machine; ray: the Ray cluster at RAY_ADDRESS, or one started here."
        ),
    ] = "local",
    workers: Workers = 1,
    accelerator: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What trainings run on.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and run nothing.")] = False,
) -> None:
    """Run the trainings that are not finished; an interrupted study resumes where it stopped.

    Examples:

        calibrant study run digits

        calibrant study run cifar10 --scale paper --workers 2

        calibrant study run digits --executor ray --workers 2

        calibrant study run --all --scale gpu --data /folder/of/data --workers 4
    """
    from calibrant.study import Store, presets
    from calibrant.study.preflight import check_file
    from calibrant.study.record import naming
    from calibrant.study.run import reports_progress

    if (name is None) != everything or (everything and (only or setting)):
        raise InputError(
            "name one study, of which --only and --setting choose parts, or say --all; see calibrant study list"
        )
    kept, failed, fingerprints = Store(store), list[str](), set[str]()
    for one in [name] if name is not None else presets():
        file = _read(one)
        if everything and file.scales and scale not in file.scales:
            say("note", f"{one} has no scale {scale!r}: left out")
            continue
        chosen = _chosen(file, scale, data, seeds, everything=everything).restricted(
            objectives=_known(only, "objectives", file, scale), settings=_known(setting, "settings", file, scale)
        )
        if dry_run:
            if not everything:
                check_file(file, chosen)
            _say_what_would_run(chosen, kept, scale, workers=workers, executor=executor, accelerator=accelerator)
            fingerprints |= {cell.recipe.fingerprint for cell in chosen.cells()}
            continue
        try:
            with naming(file.name) if file.name.endswith(".toml") else nullcontext():
                _run_with_bars(chosen, kept, workers=workers, accelerator=accelerator, ray=executor == "ray")
        except CalibrantError as error:
            if not everything:
                raise
            say("error", f"{one} was not run: {error}")
            failed.append(one)
        else:
            if reports_progress() and everything:
                print_line(f"{chosen.name} is finished: calibrant study show {chosen.name}")
            elif reports_progress():
                _show(chosen, kept)
    if dry_run and everything:
        print_line(f"all studies: {len(fingerprints)} different trainings; shared ones are counted once")
    raise typer.Exit(2 if failed else 0)


@study.command()
def show(
    name: Annotated[str, Named],
    scale: Scale = "cpu",
    store: Folder = RUNS,
    data: Data = None,
    seeds: Seeds = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Which tables: main, calibrators, errors or all; may be repeated.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", "-o", help="Write a report here (.html).")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the small record (JSON) with its provenance here.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw the study's figures into this folder (SVG, PNG).")] = None,
    width: Annotated[
        Literal["column", "page"] | None,
        typer.Option(help="Figures for a paper: 3.5 or 7.16 inches wide, without heading (SVG, PDF)."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the tables of finished trainings from the store, and draw the figures; "theory" has figures that need none.

    Examples:

        calibrant study show digits

        calibrant study show wang-table1 --columns all --figures figures

        calibrant study show sst --figures figures --width column

        calibrant study show theory --figures figures
    """
    from calibrant._files import check_folder
    from calibrant.report.render import check_format
    from calibrant.study import Store
    from calibrant.study.measures import COLUMNS

    if report is not None:
        options.check_output(report, inputs=[name])
        check_format(report, None)
    if record is not None:
        options.check_output(record, inputs=[name], suffixes=[".json"], what="a record")
    if figures is not None:
        check_folder(figures)
    if name == THEORY:
        _show_theory(figures, width, as_json=as_json)
        return
    chosen = _chosen(_read(name), scale, data, seeds)
    if columns:
        named = [options.choose(column, [*COLUMNS, "all"], option="--columns") for column in columns]
        every: Any = COLUMNS if "all" in named else named
        chosen = replace(chosen, columns=tuple(every))
    _show(chosen, Store(store), report=report, record=record, figures=figures, width=width, as_json=as_json)


@study.command()
def claims(
    paper: Annotated[str | None, typer.Argument(help="A part of a paper's name: its claims one by one.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Count the verdicts on the papers' claims, from the folder papers/ of Calibrant's repository.

    Examples:

        calibrant study claims

        calibrant study claims mukhoti

        calibrant study claims --json
    """
    from calibrant.study.page import claim_sentences, claim_table, read_claims

    found = [one for one in read_claims() if (paper or "").lower() in one["paper"].lower()]
    if not found:
        raise InputError(f"no paper's name has {paper!r} in it; calibrant study claims lists them")
    if as_json:
        print_json({"claims": found})
    else:
        _print([claim_table(found)], claim_sentences(found) if paper else [])


def demo(
    store: Annotated[Path, typer.Option(help="Folder that keeps trainings and report.")] = RUNS,
    workers: Workers = min(2, os.cpu_count() or 1),
) -> None:
    """Train, calibrate, measure and report on handwritten digits; an interrupted demo resumes.

    Examples:

        calibrant demo

        calibrant demo --store runs
    """
    from calibrant.plot.diagrams import diagram_of
    from calibrant.report.figures import panel_pictures
    from calibrant.study import Store, collect, load_study
    from calibrant.study.page import in_short, tables_of, verdict_sentences, write_page
    from calibrant.study.tables import summarise, verdicts_on

    digits, kept = load_study("digits"), Store(store)
    count, objectives, seeds = len(list(digits.cells())), len(digits.objectives), len(digits.seeds)
    print_line(
        f"{count} small networks learn handwritten digits: {objectives} losses, {seeds} seeds, {count // (objectives * seeds)} folds."
        "\nEach sees 400 images and learns them by heart. Is its confidence still right on images it has not seen?\nECE is how far off "
        "the confidence is; T, fitted on other images, is one number that corrects it.",
        err=True,
    )
    _run_with_bars(digits, kept, workers=workers, accelerator="cpu")
    measured = collect(digits, kept)
    lines = summarise(measured)
    sentences = verdict_sentences(verdicts_on(digits, measured), lines)
    (table,) = tables_of(
        lines, title=f"Before and after one temperature, mean ± sd over {seeds} seeds", columns=["narrow"]
    )
    states = [
        (f"{m.objective}, seed {m.seed}, {when}", diagram_of(data))
        for m in measured
        if m.seed == digits.seeds[0]
        for when, data in (("before", m.before), ("after", m.after))
    ]
    report = kept.root / "report.html"
    write_page(digits, measured, lines, report, shown=[*panel_pictures(states, prefix="m"), table], sentences=sentences)
    _print([table], sentences)
    print_line("\n".join(["", *in_short(lines)]))
    print_line(f"The report is in {report.resolve()}: open it in a browser.", style="bold")


def _run_with_bars(study: Study, store: Store, *, workers: int, accelerator: str, ray: bool = False) -> None:
    """Run what is not finished, with a bar of the trainings and of the epochs of the present one."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from calibrant.study.ray import run_study_on_ray
    from calibrant.study.run import reports_progress, run_study

    if ray:
        steps = run_study_on_ray(
            study, store, address=os.environ.get("RAY_ADDRESS"), workers=workers, accelerator=accelerator
        )
    else:
        steps = run_study(study, store, workers=workers, accelerator=accelerator)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    finished, total = _finished(study, store), len(list(study.cells()))
    if finished and reports_progress():
        print_line(
            f"{finished} of {total} trainings are finished already and kept in {store.root}", style="dim", err=True
        )
    screen = console(err=True)
    lines = reports_progress() and not screen.is_terminal  # a log gets a line for each training, and one a minute
    done, said = finished, time.monotonic()
    with Progress(*columns, console=screen, disable=not reports_progress() or lines) as bars:
        whole = bars.add_task("trainings", total=total, completed=finished)
        for step in steps:
            epochs = step.cell.recipe.training.epochs
            detail = f" · epoch {step.epoch}/{epochs}" if workers == 1 and epochs > 1 else ""
            where = f"{step.cell.objective}, seed {step.cell.recipe.seed}{detail}"
            bars.update(whole, completed=step.done, description=f"trainings · {where}")
            if lines and (step.done > done or time.monotonic() - said > LOG_EVERY):
                print_line(f"{step.done} of {total} trainings · {where}", err=True)
                done, said = step.done, time.monotonic()
        bars.update(whole, description="trainings")


def _read(name: str) -> StudyFile:
    """Return a study's file; ``"mylib:MyLoss"`` in one of the user's own is also looked for in its folder, as ``python`` does."""
    from calibrant.study.load import StudyFile

    folder = os.path.dirname(os.path.realpath(name))
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    return StudyFile.read(name)


def _chosen(file: StudyFile, scale: str, data: Path | None, seeds: int | None, *, everything: bool = False) -> Study:
    """Return the study at a scale, with its data from a folder, and with so many seeds: its first ones, then the numbers that follow."""
    found = file.study(scale)
    if seeds is not None:
        further = range(max(found.seeds) + 1, max(found.seeds) + 1 + seeds)
        found = replace(found, seeds=(*found.seeds, *further)[:seeds])
    placed = found if data is None else found.with_data_from(data)
    if data is not None and placed == found and not everything:
        names = ", ".join(sorted({str(setting.data.get("name")) for setting in found.settings}))
        raise InputError(
            f"--data {str(data)!r} holds no folder of a data set of {file.name} ({names}); put one there, or leave it out"
        )
    return placed


def _known(labels: list[str] | None, family: str, file: StudyFile, scale: str) -> list[str] | None:
    """Return labels of objectives or settings, if the study has them all."""
    known = [part.label for part in getattr(file.study(scale), family)] if labels else []
    for label in labels or ():
        if label not in known:
            raise InputError(f"{label!r} is none of the {family} of {file.name}: {', '.join(known)}")
    return labels or None


def _finished(study: Study, store: Store) -> int:
    return sum(store.finished(cell.recipe) for cell in study.cells())


def _say_what_would_run(
    chosen: Study, kept: Store, scale: str, *, workers: int, executor: str, accelerator: str
) -> None:
    """Print the trainings of a study and its data, and name the folders that are missing."""
    from calibrant.study.preflight import missing_folders

    cells = list(chosen.cells())
    where = "on this machine" if executor == "local" else "on a Ray cluster"
    counts = f"{len(cells)} trainings, {_finished(chosen, kept)} of them finished, {workers} at a time"
    typer.echo(f"{chosen.name} at scale {scale}: {counts} {where} (accelerator: {accelerator})")
    for folder, setting in missing_folders(cell for cell in cells if not kept.finished(cell.recipe)):
        say("note", f"data missing: {folder} (of setting {setting!r}); put them there or give --data")
    typer.echo(f"data: {_data_sets(chosen)}")


def _data_sets(study: Study) -> str:
    """Return the data sets of a study, each with its folder, or where it comes from."""
    known = {"digits": "with scikit-learn", "module": "your module"}
    sets = [dict(one.data) for one in study.settings]
    places = [str(data.get("folder") or known.get(data["name"], "Hugging Face hub, or --data")) for data in sets]
    return "; ".join(sorted({f"{data['name']} ({place})" for data, place in zip(sets, places, strict=True)}))


def _show(
    chosen: Study,
    kept: Store,
    *,
    report: Path | None = None,
    record: Path | None = None,
    figures: Path | None = None,
    width: Literal["column", "page"] | None = None,
    as_json: bool = False,
) -> None:
    """Print a study's tables, and write what else was asked for."""
    from calibrant.study import collect
    from calibrant.study.draw import pictures_of, write_figures
    from calibrant.study.figures import drawings
    from calibrant.study.page import (
        agreement_sentences,
        one_gamma_table,
        paper_tables,
        tables_of,
        verdict_sentences,
        write_page,
    )
    from calibrant.study.tables import measures_needed, record_of, summarise, verdicts_on

    measured = collect(chosen, kept)
    if not measured:
        raise InputError(f"{kept.root} has no finished runs of {chosen.name!r}; run the study first")
    verdicts = verdicts_on(chosen, measured)
    lines = summarise(measured, names=measures_needed(chosen, chosen.columns))
    tables = [*tables_of(lines, title=chosen.title, columns=chosen.columns), *paper_tables(chosen, lines)]
    tables += one_gamma_table(chosen, measured)
    # which orderings of the papers' tables are seen here and which are not, then each claim
    sentences = [*agreement_sentences(chosen, lines), *verdict_sentences(verdicts, lines)]
    drawn = drawings(chosen, measured) if report is not None or figures is not None else []
    if figures is not None:
        written = write_figures(drawn, figures, width=width)
        print_line(f"{len(written) or 'no'} figures of {chosen.name} are written to {figures}", err=True)
    if report is not None:
        shown: list[Block] = [*tables, *pictures_of(drawn)]
        write_page(chosen, measured, lines, report, shown=shown, sentences=sentences)
    if record is not None:
        record_of(chosen, measured, path=record, columns=chosen.columns)
    if as_json:
        _print_json(measured, verdicts, report)
    else:
        _print(tables, sentences)


def _show_theory(figures: Path | None, width: Literal["column", "page"] | None, *, as_json: bool) -> None:
    """Print the numbers of Komisarenko & Kull's figures and Mukhoti et al.'s Figure A.1, and draw them."""
    from calibrant.report.model import Table
    from calibrant.study.draw import write_figures
    from calibrant.study.theory import FIGURES

    drawn = []
    for figure, compute in FIGURES.items():
        with working(f"computing {figure}"):
            drawn.append(compute())
    if figures is not None:
        written = write_figures(drawn, figures, width=width)
        print_line(f"{len(written)} files are written to {figures}", err=True)
    if as_json:
        keys = ("name", "title", "caption", "facts")
        print_json({"figures": [{key: getattr(one, key) for key in keys} for one in drawn]})
        return
    rows = [[one.name, name.replace("_", " "), f"{value:.6g}"] for one in drawn for name, value in one.facts.items()]
    _print([Table("The theory's figures", ["figure", "number", "value"], rows, "")], [])


def _print(tables: Sequence[Table], sentences: Sequence[str]) -> None:
    for table in tables:
        print_table(table.header, table.rows, title=table.title)
        if table.note:
            print_line(table.note, style="dim")
    for sentence in sentences:
        print_line(sentence)


def _print_json(measured: Sequence[Measured], verdicts: Sequence[Verdict], report: Path | None) -> None:
    """Print the figures of every seed as one JSON object."""
    from calibrant.study import rows

    kept = ("setting", "objective", "seed")
    fitted = [{key: getattr(m, key) for key in kept} | {"temperatures": list(m.temperatures)} for m in measured]
    said: list[dict[str, Any]] = [{"claim": v.claim.text, **v.plain()} for v in verdicts]
    print_json({"rows": rows(measured), "fitted": fitted, "claims": said, "report": report and str(report)})
