"""``calibrant study`` lists, runs and shows the papers' experiments; ``calibrant demo`` is a small first experiment."""

from __future__ import annotations

import json
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
from calibrant.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Block, Table
    from calibrant.study import Store, Study
    from calibrant.study.recipe import Cell

THEORY = "theory"  # name of the theory's figures in `study show`
MADE_HERE = {"digits": "part of scikit-learn", "module": "your module"}  # data that need neither a folder nor the hub
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
@click.argument("names", nargs=-1, required=True, metavar="STUDY...")
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
@click.option("--dry-run", is_flag=True, help="Print what would run, one line per training run, without running it.")
def run(
    names: Sequence[str],
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
) -> None:
    """Run all training runs that are not finished; an interrupted study resumes where it stopped.

    STUDY is a name listed by `study list`, or a TOML file.

    Examples:

        calibrant study run digits

        calibrant study run cifar10 --scale paper --workers 2

        calibrant study run digits --executor ray --workers 2

        calibrant study run wang-table1 wang-sweep --scale gpu --data /folder/of/data --workers 4
    """
    from calibrant.study import Store, collect
    from calibrant.study.build import check_study
    from calibrant.study.record import naming
    from calibrant.study.run import reports_progress

    kept = Store(store)
    for name in names:
        chosen = _chosen_study(name, scale, seeds, objectives=only, settings=setting)
        if data is not None:
            chosen = _study_with_data(chosen, data)
        with naming(name):
            if dry_run:
                check_study(chosen)
                _print_plan(chosen, kept, scale, f"{workers} at a time, {executor}, accelerator {accelerator}")
                continue
            _run(chosen, kept, workers=workers, accelerator=accelerator, ray=executor == "ray")
        if reports_progress():
            _print(*_study_tables(chosen, collect(chosen, kept)))


@study.command()
@click.argument("name", metavar="STUDY")
@scales
@stores
@seed_count
@click.option(
    "--columns",
    type=click.Choice(["main", "calibrators", "errors", "all"]),
    multiple=True,
    help="Tables to print; may be repeated.",
)
@click.option("--report", "-o", type=FOLDER, help="Write a report to this file (.html).")
@click.option("--figures", type=FOLDER, help="Draw the study's figures into this folder (SVG, PNG).")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of every seed with their provenance as JSON.")
def show(
    name: str,
    scale: str,
    store: Path,
    seeds: int | None,
    columns: Sequence[Any],
    report: Path | None,
    figures: Path | None,
    as_json: bool,
) -> None:
    """Print tables of the finished training runs, and draw figures.

    STUDY is a name listed by `study list`, a TOML file, or "theory", whose figures need no training.

    Examples:

        calibrant study show digits

        calibrant study show wang-table1 --columns all --figures figures

        calibrant study show digits --columns all --json > digits.json

        calibrant study show theory --figures figures
    """
    from calibrant._files import check_folder
    from calibrant.report.render import format_of
    from calibrant.study import Store, collect
    from calibrant.study.draw import pictures_of, write_figures
    from calibrant.study.figures import drawings
    from calibrant.study.measures import COLUMNS
    from calibrant.study.page import write_page
    from calibrant.study.tables import record_of

    if report is not None:
        options.check_output(report, inputs=[name])
        format_of(report)
    if figures is not None:
        check_folder(figures)
    if name == THEORY:
        drawn, table = _theory()
        tables, sentences = [table], list[str]()
    else:
        chosen = _chosen_study(name, scale, seeds)
        if columns:
            tables_shown: Any = COLUMNS if "all" in columns else columns
            chosen = replace(chosen, columns=tuple(tables_shown))
        measured = collect(chosen, Store(store))
        if not measured:
            raise InputError(f"{store} has no finished runs of {chosen.name!r}; run the study first")
        tables, sentences = _study_tables(chosen, measured)
        drawn = drawings(chosen, measured) if report is not None or figures is not None else []
        if report is not None:
            blocks: list[Block] = [*tables, *pictures_of(drawn)]
            write_page(chosen, measured, report, shown=blocks, sentences=sentences)
    if figures is not None:
        written = write_figures(drawn, figures)
        print_text(f"{len(written) or 'no'} figures of {name} are written to {figures}", err=True)
    if not as_json:
        _print(tables, sentences)
    elif name == THEORY:
        keys = ("name", "title", "caption", "facts")
        print_json({"figures": [{key: getattr(one, key) for key in keys} for one in drawn]})
    else:
        print_json(record_of(chosen, measured))


@study.command()
@click.argument("paper", default="")
@options.as_json
def claims(paper: str, as_json: bool) -> None:
    """Print a table of the verdicts on the papers' claims, which are recorded in the papers/ folder of the repository.

    PAPER is part of a paper's name, or the number of a claim. If it is given, the matching claims are printed as well.

    Examples:

        calibrant study claims

        calibrant study claims mukhoti

        calibrant study claims 25

        calibrant study claims --json
    """
    path = Path(__file__).resolve().parents[3] / "papers" / "index.json"
    if not path.is_file():
        raise FileFormatError(
            "the papers' claims are in the papers/ folder of Calibrant's repository, which has no copy here"
        )
    index = json.loads(path.read_text(encoding="utf-8"))
    part = paper.lower()
    found = [one for one in index["claims"] if part == str(one["number"]) or part in one["paper"].lower()]
    if not found:
        raise InputError(
            f"{paper!r} is neither part of a paper's name nor the number of a claim; see calibrant study claims"
        )
    if as_json:
        print_json({"claims": found})
        return
    header, *rows = index["counts"]
    if shown := [row for row in rows if part in row[0].lower()]:
        print_table(header, shown)
    for claim in found if paper else []:
        print_text(
            f"\n{claim['number']}. {claim['claim']} ({claim['paper']}, {claim['place']})\npaper: {claim['quote']}"
        )
        for line in claim["lines"]:
            parts = [f"- {line['verdict']} on {line['data']} ({line['regime']})"]
            if "effect" in line:
                parts.append(f"difference {line['effect']:+.4f}")
            if "p" in line:
                parts.append(f"p = {line['p']:.3g} over {line['units']} units (seeds or clusters of sets)")
            print_text("; ".join([*parts, *([line["note"]] if "note" in line else [])]))


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
    from calibrant.study.page import in_short, table_of, verdict_sentences, write_page
    from calibrant.study.tables import summarise, verdicts_on

    digits, kept = load_study("digits"), Store(store)
    count, objectives, seeds = len(list(digits.cells())), len(digits.objectives), len(digits.seeds)
    print_text(
        f"{count} small networks learn handwritten digits: {objectives} losses, {seeds} seeds, {count // (objectives * seeds)} folds."
        "\nEach network is trained on 400 images until it fits them perfectly. Is its confidence still right on images that it has not "
        "seen?\nThe ECE measures how far the confidence is from the accuracy. The temperature T, fitted on other images, corrects it.",
        err=True,
    )
    _run(digits, kept, workers=workers, accelerator="cpu")
    measured = collect(digits, kept)
    lines, report = summarise(measured), kept.root / "report.html"
    sentences = verdict_sentences(verdicts_on(digits, measured))
    table = table_of(
        lines,
        ["error", "ece", "temperature", "ece_at_t", "ece_by_chance"],
        title="Before and after temperature scaling",
        note="{seeds}, on {rows} test images per seed, over all folds. ECE: the mean distance between confidence and "
        "accuracy. T: the temperature, a number that divides the logits and is fitted on validation images by log-loss. "
        "Limit if calibrated: the ECE that 97.5 % of perfectly calibrated networks stay below. The papers' claims below use "
        "the T with the lowest ECE of the validation images instead (T by ECE).",
    )
    pictures = [
        panel_picture(f"{m.objective}, seed {m.seed}, {when}", diagram_of(data))
        for m in measured
        if m.seed == digits.seeds[0]
        for when, data in (("before", m.before), ("after", m.after("at_t")))
    ]
    write_page(digits, measured, report, shown=[*pictures, table], sentences=sentences)
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
            epoch = f"epoch {step.epoch}/{step.cell.recipe.training.epochs}"
            line = f"{step.done} of {total} training runs · {_shown_cell(step.cell, study)} · {epoch}"
            report_progress(line)
            if log and (step.done > done or time.monotonic() - printed > LOG_EVERY):
                print_text(line, err=True)
                done, printed = step.done, time.monotonic()


def _chosen_study(
    name: str, scale: str, seeds: int | None, *, objectives: Sequence[str] = (), settings: Sequence[str] = ()
) -> Study:
    """Return a study at a scale, with this number of seeds and only these objectives and settings; empty for all.

    If the study has fewer seeds, the next larger integers are added. Classes in a user's file, such as
    ``"mylib:MyLoss"``, are also looked up in its folder.
    """
    from calibrant.study import load_study

    folder = os.path.dirname(os.path.realpath(name))
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    found = load_study(name, scale=scale)
    if seeds is not None:
        further = range(max(found.seeds) + 1, max(found.seeds) + 1 + seeds)
        found = replace(found, seeds=(*found.seeds, *further)[:seeds])
    for label in objectives:
        options.choose(label, [one.label for one in found.objectives], option="--only")
    for label in settings:
        options.choose(label, [one.label for one in found.settings], option="--setting")
    return found.restricted(objectives=objectives, settings=settings)


def _study_with_data(study: Study, data: Path) -> Study:
    """Return a study that reads its data from subfolders of ``data``, with a note on each that is missing."""
    found = study.with_data_from(data)
    for name in sorted({one.data["name"] for one in found.settings if "folder" not in one.data} - set(MADE_HERE)):
        say("note", f"{data} has no folder {name!r}, so this data set is read from the Hugging Face hub")
    return found


def _shown_cell(cell: Cell, study: Study) -> str:
    """Return the setting (if the study has several), objective, seed and fold of a training run as text."""
    setting = [cell.setting] if len(study.settings) > 1 else []
    fold = [f"fold {cell.recipe.fold}"] if "folds" in cell.recipe.data else []
    return ", ".join([*setting, cell.objective, f"seed {cell.recipe.seed}", *fold])


def _finished(study: Study, store: Store) -> int:
    return sum(store.finished(cell.recipe) for cell in study.cells())


def _print_plan(chosen: Study, kept: Store, scale: str, how: str) -> None:
    """Print a study's number of training runs and its data sets, name missing folders, and list what would run."""
    from calibrant.study.build import missing_folders

    cells = list(chosen.cells())
    left = [cell for cell in cells if not kept.finished(cell.recipe)]
    print_text(
        f"{chosen.name} at scale {scale}: {len(cells)} training runs, {len(cells) - len(left)} of them finished, {how}"
    )
    for folder, setting in missing_folders(left):
        say("note", f"data missing: {folder} (for setting {setting!r}); put the data there or pass --data")
    print_text(f"data: {_data_sets(chosen)}")
    for cell in left:
        print_text(f"  {_shown_cell(cell, chosen)}")


def _data_sets(study: Study) -> str:
    """Return the names of a study's data sets, each with its folder or origin."""
    sets = [dict(one.data) for one in study.settings]
    places = [
        str(data.get("folder") or MADE_HERE.get(data["name"], "from the Hugging Face hub, or --data")) for data in sets
    ]
    return "; ".join(sorted({f"{data['name']} ({place})" for data, place in zip(sets, places, strict=True)}))


def _study_tables(chosen: Study, measured: Sequence[Any]) -> tuple[list[Table], list[str]]:
    """Return the tables of a study, and a sentence for each claim."""
    from calibrant.study.page import one_gamma_table, paper_tables, tables_of, verdict_sentences
    from calibrant.study.tables import measures_needed, summarise, verdicts_on

    lines = summarise(measured, names=measures_needed(chosen))
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
