"""``calibrant study`` lists, runs and shows the papers' experiments; ``calibrant demo`` is a small first experiment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrant.cli import options
from calibrant.cli.terminal import print_json, print_table, print_text, say, working
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Block, Table
    from calibrant.study import Store, Study
    from calibrant.study.load import StudyFile

THEORY = "theory"  # name of the theory's figures in `study show`
MADE_HERE = {"digits": "with scikit-learn", "module": "your module"}  # data from neither folder nor hub
LOG_EVERY = 60  # seconds between log lines during a training run

FOLDER = click.Path(path_type=Path)
scales = options.choice("--scale", ["cpu", "gpu", "paper"], "Size of the study.", default="cpu")
stores = click.option(
    "--store", type=FOLDER, default="calibrant-runs", show_default=True, help="Folder for training runs and the report."
)
seed_count = options.count("--seeds", 1, None, "Number of seeds; the study's own by default.")


@click.group(no_args_is_help=True)
def study() -> None:
    """List, run and show the papers' experiments."""


@study.command("list")
def list_studies() -> None:
    """List the studies that come with the package."""
    from calibrant.study import load_study, presets

    for name in presets():
        found = load_study(name)
        print_text(f"{name}: {found.title}")
        print_text(f"    {len(list(found.cells()))} training runs on {_data_sets(found)}", dim=True)


@study.command()
@click.argument("name", required=False, metavar="STUDY")
@click.option("--all", "everything", is_flag=True, help="Run all studies that `study list` shows, one after another.")
@scales
@click.option(
    "--data",
    type=FOLDER,
    help="Folder with one subfolder per data set; by default, data come from the Hugging Face hub.",
)
@seed_count
@options.repeated("--only", "Run only this objective")
@options.repeated("--setting", "Run only this setting")
@stores
@options.choice(
    "--executor", ["local", "ray"], "Local processes, or a Ray cluster (at RAY_ADDRESS, if set).", default="local"
)
@options.count("--workers", 1, 1, "Number of training runs at the same time.")
@options.choice("--accelerator", ["auto", "cpu", "cuda"], "Device to train on.", default="auto")
@click.option("--dry-run", is_flag=True, help="Print the plan without running anything.")
def run(
    name: str | None,
    everything: bool,
    scale: str,
    data: Path | None,
    seeds: int | None,
    only: Sequence[str],
    setting: Sequence[str],
    store: Path,
    executor: str,
    workers: int,
    accelerator: str,
    dry_run: bool,
) -> int:
    """Run all training runs that are not finished; an interrupted study resumes where it stopped.

    STUDY is a name listed by `study list`, or a TOML file.

    Examples:

        calibrant study run digits

        calibrant study run cifar10 --scale paper --workers 2

        calibrant study run digits --executor ray --workers 2

        calibrant study run --all --scale gpu --data /folder/of/data --workers 4
    """
    from calibrant.study import Store, collect, presets
    from calibrant.study.build import check_file
    from calibrant.study.record import naming
    from calibrant.study.run import reports_progress

    if (name is None) != everything or (everything and (only or setting)):
        raise InputError(
            "name one study (with --only and --setting for parts of it), or pass --all; see calibrant study list"
        )
    kept, failed = Store(store), False
    for file in [_read_study(name)] if name is not None else map(_read_study, presets()):
        if everything and file.scales and scale not in file.scales:
            say("note", f"{file.name} has no scale {scale!r} and is left out")
            continue
        chosen = _chosen_study(file, scale, seeds, data, objectives=only, settings=setting)
        if dry_run:
            if not everything:
                check_file(file, chosen)
            _print_plan(chosen, kept, scale, f"{workers} at a time, {executor}, accelerator {accelerator}")
            continue
        try:
            with naming(file.name) if file.name.endswith(".toml") else nullcontext():
                _run(chosen, kept, workers=workers, accelerator=accelerator, ray=executor == "ray")
        except CalibrantError as error:
            if not everything:
                raise
            say("error", f"{file.name} was not run: {error}")
            failed = True
            continue
        if reports_progress() and everything:
            print_text(f"{chosen.name} is finished: calibrant study show {chosen.name}")
        elif reports_progress():
            _print(*_study_tables(chosen, collect(chosen, kept)))
    return 2 if failed else 0


@study.command()
@click.argument("name", metavar="STUDY")
@scales
@stores
@seed_count
@options.repeated("--columns", "Tables to print: main, calibrators, errors or all")
@click.option("--report", "-o", type=FOLDER, help="Write a report to this file (.html).")
@click.option("--record", type=FOLDER, help="Write all numbers with their provenance to this JSON file.")
@click.option("--figures", type=FOLDER, help="Draw the study's figures into this folder (SVG, PNG).")
@options.choice(
    "--width", ["column", "page"], "Draw figures for a paper, 3.5 or 7.16 inches wide and without headings (SVG, PDF)."
)
@options.as_json
def show(
    name: str,
    scale: str,
    store: Path,
    seeds: int | None,
    columns: Sequence[str],
    report: Path | None,
    record: Path | None,
    figures: Path | None,
    width: Any,
    as_json: bool,
) -> None:
    """Print tables of the finished training runs, and draw figures.

    STUDY is a name listed by `study list`, a TOML file, or "theory", whose figures need no training.

    Examples:

        calibrant study show digits

        calibrant study show wang-table1 --columns all --figures figures

        calibrant study show sst --figures figures --width column

        calibrant study show theory --figures figures
    """
    from calibrant._files import check_folder
    from calibrant.report.render import format_of
    from calibrant.study import Store, collect, rows
    from calibrant.study.draw import pictures_of, write_figures
    from calibrant.study.figures import drawings
    from calibrant.study.measures import COLUMNS
    from calibrant.study.page import write_page
    from calibrant.study.tables import record_of, summarise, verdicts_on

    if report is not None:
        options.check_output(report, inputs=[name])
        format_of(report)
    if record is not None:
        options.check_output(record, inputs=[name], suffixes=[".json"], what="a record")
    if figures is not None:
        check_folder(figures)
    if name == THEORY:
        drawn, table = _theory()
        tables, sentences = [table], list[str]()
        found: dict[str, Any] = {
            "figures": [{key: getattr(one, key) for key in ("name", "title", "caption", "facts")} for one in drawn]
        }
    else:
        chosen = _chosen_study(_read_study(name), scale, seeds)
        if columns:
            named: Any = [options.choose(one, [*COLUMNS, "all"], option="--columns") for one in columns]
            named = list(COLUMNS) if "all" in named else named
            chosen = replace(chosen, columns=tuple(named))
        measured = collect(chosen, Store(store))
        if not measured:
            raise InputError(f"{store} has no finished runs of {chosen.name!r}; run the study first")
        tables, sentences = _study_tables(chosen, measured)
        drawn = drawings(chosen, measured) if report is not None or figures is not None else []
        if report is not None:
            blocks: list[Block] = [*tables, *pictures_of(drawn)]
            write_page(chosen, measured, summarise(measured), report, shown=blocks, sentences=sentences)
        if record is not None:
            record_of(chosen, measured, path=record, columns=chosen.columns)
        fitted = [{key: getattr(m, key) for key in ("setting", "objective", "seed", "temperatures")} for m in measured]
        verdicts = [{"claim": one.claim.text, **one.plain()} for one in verdicts_on(chosen, measured)]
        found = {"rows": rows(measured), "fitted": fitted, "claims": verdicts, "report": report and str(report)}
    if figures is not None:
        written = write_figures(drawn, figures, width=width)
        print_text(f"{len(written) or 'no'} figures of {name} are written to {figures}", err=True)
    if as_json:
        print_json(found)
    else:
        _print(tables, sentences)


@study.command()
@click.argument("paper", default="")
@options.as_json
def claims(paper: str, as_json: bool) -> None:
    """Count the verdicts on the papers' claims that the papers/ folder of Calibrant's repository records.

    PAPER is a part of a paper's name, or the number of a claim. The matching claims are printed one by one.

    Examples:

        calibrant study claims

        calibrant study claims mukhoti

        calibrant study claims 25

        calibrant study claims --json
    """
    from calibrant.study.page import claim_sentences, claim_table, read_claims

    number, part = paper if paper.isdigit() else "", paper.lower()
    found = [one for one in read_claims() if (number == str(one["number"]) if number else part in one["paper"].lower())]
    if not found:
        raise InputError(
            f"no paper's name contains {paper!r}, and no claim has that number; see calibrant study claims"
        )
    if as_json:
        print_json({"claims": found})
    else:
        _print([claim_table(found)], claim_sentences(found) if paper else [])


@click.command()
@stores
@options.count("--workers", 1, min(2, os.cpu_count() or 1), "Number of training runs at the same time.")
def demo(store: Path, workers: int) -> None:
    """Train, calibrate and evaluate networks on handwritten digits; an interrupted demo resumes.

    Examples:

        calibrant demo

        calibrant demo --store runs
    """
    from calibrant.plot.diagrams import diagram_of
    from calibrant.report.figures import panel_picture
    from calibrant.study import Store, collect, load_study
    from calibrant.study.page import in_short, tables_of, verdict_sentences, write_page
    from calibrant.study.tables import summarise, verdicts_on

    digits, kept = load_study("digits"), Store(store)
    count, objectives, seeds = len(list(digits.cells())), len(digits.objectives), len(digits.seeds)
    print_text(
        f"{count} small networks learn handwritten digits: {objectives} losses, {seeds} seeds, {count // (objectives * seeds)} folds."
        "\nEach sees 400 images and learns them by heart. Is its confidence still right on images it has not seen?\nECE is how far off "
        "the confidence is; T, fitted on other images, is one number that corrects it.",
        err=True,
    )
    _run(digits, kept, workers=workers, accelerator="cpu")
    measured = collect(digits, kept)
    lines, report = summarise(measured), kept.root / "report.html"
    sentences = verdict_sentences(verdicts_on(digits, measured))
    (table,) = tables_of(
        lines, title=f"Before and after one temperature, mean ± sd over {seeds} seeds", columns=["narrow"]
    )
    pictures = [
        panel_picture(f"{m.objective}, seed {m.seed}, {when}", diagram_of(data))
        for m in measured
        if m.seed == digits.seeds[0]
        for when, data in (("before", m.before), ("after", m.after("at_t")))
    ]
    write_page(digits, measured, lines, report, shown=[*pictures, table], sentences=sentences)
    _print([table], [*sentences, "", *in_short(lines)])
    print_text(f"The report is in {report.resolve()}: open it in a browser.", bold=True)


def _run(study: Study, store: Store, *, workers: int, accelerator: str, ray: bool = False) -> None:
    """Run all unfinished training runs.

    Progress is shown in one line on a terminal; otherwise a line is printed for each training run, and one every
    minute.
    """
    from calibrant._core.warn import report_progress
    from calibrant.study.run import reports_progress, run_study, run_study_on_ray

    how: dict[str, Any] = {"workers": workers, "accelerator": accelerator}
    address = os.environ.get("RAY_ADDRESS")
    steps = run_study_on_ray(study, store, address=address, **how) if ray else run_study(study, store, **how)
    done, printed, total = _finished(study, store), time.monotonic(), len(list(study.cells()))
    log = reports_progress() and not sys.stderr.isatty()
    if log and done < total:
        print_text(f"{done} of {total} training runs are finished; {workers} at a time", err=True)
    with working("training") if reports_progress() else nullcontext():
        for step in steps:
            recipe = step.cell.recipe
            fold = f", fold {recipe.fold}" if "folds" in recipe.data else ""
            training = f"{step.cell.objective}, seed {recipe.seed}{fold}"
            line = f"{step.done} of {total} training runs · {training} · epoch {step.epoch}/{recipe.training.epochs}"
            report_progress(line)
            if log and (step.done > done or time.monotonic() - printed > LOG_EVERY):
                print_text(line, err=True)
                done, printed = step.done, time.monotonic()


def _read_study(name: str) -> StudyFile:
    """Return a study file; classes in a user's file, such as ``"mylib:MyLoss"``, are also looked up in its folder."""
    from calibrant.study.load import StudyFile

    folder = os.path.dirname(os.path.realpath(name))
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    return StudyFile.read(name)


def _chosen_study(
    file: StudyFile, scale: str, seeds: int | None, data: Path | None = None, **parts: Sequence[str]
) -> Study:
    """Return a study at a scale, with data from a folder, selected parts, and this number of seeds.

    If the study has fewer seeds, the next larger integers are added.
    """
    found = file.study(scale)
    if seeds is not None:
        further = range(max(found.seeds) + 1, max(found.seeds) + 1 + seeds)
        found = replace(found, seeds=(*found.seeds, *further)[:seeds])
    for family, labels in parts.items():
        known = [part.label for part in getattr(found, family)]
        if strange := [label for label in labels or () if label not in known]:
            raise InputError(f"{strange[0]!r} is not among the {family} of {file.name}: {', '.join(known)}")
    found = found.restricted(**{family: labels or None for family, labels in parts.items()})
    if data is None:
        return found
    found = found.with_data_from(data)
    for name in sorted({one.data["name"] for one in found.settings if "folder" not in one.data} - set(MADE_HERE)):
        say("note", f"{data} has no folder {name!r}, so this data set is read from the Hugging Face hub")
    return found


def _finished(study: Study, store: Store) -> int:
    return sum(store.finished(cell.recipe) for cell in study.cells())


def _print_plan(chosen: Study, kept: Store, scale: str, how: str) -> None:
    """Print a study's number of training runs and its data sets, and name missing folders."""
    from calibrant.study.build import missing_folders

    cells = list(chosen.cells())
    print_text(
        f"{chosen.name} at scale {scale}: {len(cells)} training runs, {_finished(chosen, kept)} of them finished, {how}"
    )
    for folder, setting in missing_folders(cell for cell in cells if not kept.finished(cell.recipe)):
        say("note", f"data missing: {folder} (for setting {setting!r}); put the data there or pass --data")
    print_text(f"data: {_data_sets(chosen)}")


def _data_sets(study: Study) -> str:
    """Return the names of a study's data sets, each with its folder or origin."""
    sets = [dict(one.data) for one in study.settings]
    places = [str(data.get("folder") or MADE_HERE.get(data["name"], "Hugging Face hub, or --data")) for data in sets]
    return "; ".join(sorted({f"{data['name']} ({place})" for data, place in zip(sets, places, strict=True)}))


def _study_tables(chosen: Study, measured: Sequence[Any]) -> tuple[list[Table], list[str]]:
    """Return the tables of a study, and a sentence for each claim."""
    from calibrant.study.page import one_gamma_table, paper_tables, tables_of, verdict_sentences
    from calibrant.study.tables import measures_needed, summarise, verdicts_on

    lines = summarise(measured, names=measures_needed(chosen, chosen.columns))
    tables = [*tables_of(lines, title=chosen.title, columns=chosen.columns), *paper_tables(chosen, lines)]
    tables += one_gamma_table(chosen, measured)
    return tables, verdict_sentences(verdicts_on(chosen, measured))


def _theory() -> tuple[list[Any], Table]:
    """Return Komisarenko & Kull's figures and Mukhoti et al.'s Figure A.1, and the table of their numbers."""
    from calibrant.report.model import Table
    from calibrant.study.theory import FIGURES

    drawn = []
    for figure, compute in FIGURES.items():
        with working(f"computing {figure}"):
            drawn.append(compute())
    rows = [[one.name, name.replace("_", " "), f"{value:.6g}"] for one in drawn for name, value in one.facts.items()]
    return drawn, Table("The theory's figures", ["figure", "number", "value"], rows, "")


def _print(tables: Sequence[Table], sentences: Sequence[str]) -> None:
    for table in tables:
        print_table(table.header, table.rows, title=table.title)
        if table.note:
            print_text(table.note, dim=True)
    for sentence in sentences:
        print_text(sentence)
