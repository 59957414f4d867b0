"""``calibrant study`` and ``demo``: the papers' experiments: list them, run them, show what has been run; and a first one."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid

from calibrant._files import check_folder
from calibrant.cli._application import for_command_line, option, with_groups
from calibrant.cli._io import check_output, console, print_json, print_table, working
from calibrant.cli._options import AsJson, among, refuse_typed
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Block, Table
    from calibrant.study import Store, Study
    from calibrant.study.recipe import Cell
    from calibrant.study.run import Step
    from calibrant.study.tables import Measured, Summary, Verdict
SIDE_BY_SIDE = 4  # measures of a paper in one table, so that it fits a terminal
T_MEAN = "{mean[temperature]:.2f}"
SIDES = {True: "over-confident", False: "under-confident"}  # by whether the temperature is above 1
# Of each table: heading of the first column, title, note, and the other columns; a study's title heads its first table.
TABLES: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "main": (
        "objective",
        "",
        ("Mean ± standard deviation over seeds, on test data (n = {rows} test samples a seed). ECE: 15 equal-width bins of the top "
        "label. T: the temperature that minimises the log-loss of the validation data. Calibrated mean, 97.5 %: the ECE that "
        "a perfectly calibrated model with the probabilities at T would have on as many samples, on average and at most in "
        "97.5 % of cases; an ECE at T below the second is no evidence of miscalibration."),
        {
            "error %": "{error}", "NLL": "{nll}", "ECE %": "{ece}", "NLL at T": "{nll_at_t}", "ECE % at T": "{ece_at_t}", "T": T_MEAN,
            "calibrated mean %": "{calibrated_mean}", "calibrated 97.5 %": "{calibrated_high}",
        },
    ),
    "narrow": (
        "trained with",
        "",
        ("On {rows} test images a seed, of all folds; each training's live line was of one fold, where chance adds more. "
        "ECE: how far confidence and accuracy are apart. T: one number that divides the logits, "
        "fitted on validation images by log-loss. By chance: a calibrated network stays below this ECE in 97.5 % of samples."),
        {
            "error %": "{error}", "ECE %": "{ece}", "T": T_MEAN, "ECE % at T": "{ece_at_t}", "by chance": "{calibrated_high}"
        },
    ),
    "calibrators": (
        "objective",
        "After each calibrator",
        ("ECE in % after each calibrator, all fitted on validation data: T by its log-loss, T by its ECE on .01 … 10 "
        "(in brackets), histogram binning with 15 equal bins, focal temperature scaling by log-loss (γ; T). Optimal: at the "
        "one T that minimises the ECE of the test data themselves, an oracle that sees test labels: a bound on any one T."),
        {
            "ECE %": "{ece}", "at T": "{ece_at_t}", "at T by ECE": "{ece_by_ece} ({mean[temperature_by_ece]:.2f})",
            "binned": "{ece_binned}", "focal T (γ; T)": "{ece_focal} ({mean[gamma_focal]:.2g}; {mean[temperature_focal]:.2f})",
            "optimal": "{ece_optimal}",
        },
    ),
    "errors": (
        "objective",
        "Other calibration errors",
        "Calibration errors in %: AdaECE over 15 bins of equal mass, classwise ECE averaged over all classes.",
        {
            "AdaECE": "{ece_mass}", "AdaECE at T": "{ece_mass_at_t}", "AdaECE at T by ECE": "{ece_mass_by_ece}",
            "classwise": "{ece_class}", "classwise at T": "{ece_class_at_t}", "classwise at T by ECE": "{ece_class_by_ece}",
        },
    ),
}  # fmt: skip
THEORY = "theory"  # the name under which `study show` has the theory's figures
PAPER_NOTE = (
    "The paper's figure / ours. Papers contradict each other on the same cell: orderings and signs can be expected to "
    "agree, figures cannot."
)


@dataclass(frozen=True)
class Manner:
    """How trainings are run."""

    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="local: processes on this machine; ray: a Ray cluster.")
    ] = "local"
    address: str | None = option(None, "Of the Ray cluster; else one is started here.", needs="executor ray")
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1
    accelerator: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What they run on.")] = "auto"


def study_by_name(name: str, *, scale: str | None = "cpu") -> Study:
    """Return a study; for a file, ``"mylib:MyLoss"`` in it is then also looked for in its folder, as ``python`` does.

    Args:
        name: As in ``calibrant.study.load_study``.
        scale: As there.
    """
    from calibrant.study import load_study as load_from

    folder = str(Path(name).resolve().parent)
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    return load_from(name, scale=scale)


def counted(study: Study, store: Store) -> tuple[int, int]:
    """Return how many trainings of a study are finished, and how many there are."""
    done = [store.finished(cell.recipe) for cell in study.cells()]
    return sum(done), len(done)


def run_with_bars(study: Study, store: Store, how: Manner) -> None:
    """Run what is not finished, with a bar of the trainings and one of the epochs of the present one."""
    from calibrant.study.run import reports_progress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = console(err=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=screen, disable=not reports_progress()) as bars:
        finished, total = counted(study, store)
        if finished and reports_progress():
            screen.print(f"{finished} of {total} trainings are finished already and kept in {store.root}", style="dim")
        whole = bars.add_task("trainings", total=total, completed=finished)
        for step in _steps(study, store, how):
            where = f"{step.cell.objective}, seed {step.cell.recipe.seed}"
            epochs = step.cell.recipe.training.epochs
            detail = f" · epoch {step.epoch}/{epochs}" if how.workers == 1 and epochs > 1 else ""
            bars.update(whole, completed=step.done, description=f"trainings · {where}{detail}")
        bars.update(whole, description="trainings")


def run_all(studies: Sequence[Study], store: Store, how: Manner) -> None:
    """Run the first seed of every study, then the second, and so on; one that cannot be run is named, the others go on.

    Raises:
        Exit: With code 2 at the end if a study could not be run.
    """
    from calibrant.study.run import reports_progress

    failed: dict[str, str] = {}
    for seeds in range(1, 1 + max((len(study.seeds) for study in studies), default=0)):
        for study in studies:
            part = study.restricted(seeds=study.seeds[:seeds])
            finished, total = counted(part, store)
            if study.name in failed or finished == total:
                continue
            console(err=True).print(f"{study.name}, {len(part.seeds)} of {len(study.seeds)} seeds")
            try:
                run_with_bars(part, store, how)
            except CalibrantError as error:
                failed[study.name] = for_command_line(error)
    for study in studies:
        finished, total = counted(study, store)
        if finished and reports_progress():
            typer.echo(f"{study.name}: {finished} of {total} trainings; calibrant study show {study.name}")
    for name, reason in failed.items():
        typer.echo(f"{name} was not run: {reason}", err=True)
    if failed:
        raise typer.Exit(2)


def _steps(study: Study, store: Store, how: Manner) -> Iterator[Step]:
    from calibrant.study.ray import run_study_on_ray
    from calibrant.study.run import run_study

    if how.executor == "ray":
        return run_study_on_ray(study, store, address=how.address, workers=how.workers, accelerator=how.accelerator)
    return run_study(study, store, workers=how.workers, accelerator=how.accelerator)


def say_study(tables: Sequence[Table], verdicts: Sequence[str]) -> None:
    """Print the tables and the verdicts."""
    screen = console()
    for table in tables:
        print_table(screen, table.header, table.rows, title=table.title)
        if table.note:
            screen.print(table.note, style="dim")
    for sentence in verdicts:
        screen.print(sentence)


def say_study_json(measured: Sequence[Measured], verdicts: Sequence[Verdict], *, report: str | None) -> None:
    """Print the figures of every seed as one JSON object."""
    from calibrant.study import rows

    claims = [{"claim": v.claim.text, **v.plain()} for v in verdicts]
    temperatures = [
        {"setting": m.setting, "objective": m.objective, "seed": m.seed, "temperatures": list(m.temperatures)}
        for m in measured
    ]
    shown = {"rows": rows(measured), "fitted": temperatures, "claims": claims, "report": report}
    print_json(shown)


def validation_note(measured: Sequence[Measured]) -> str:
    """Return how often validation data were used, the most for any training."""
    uses: dict[str, int] = {}
    for purpose, count in itertools.chain.from_iterable(m.validation_uses.items() for m in measured):
        uses[purpose] = max(uses.get(purpose, 0), count)
    return "Validation data were used to " + ", ".join(f"{p} ({c}×)" for p, c in uses.items()) + " in a training."


def tables_of(lines: Sequence[Summary], *, title: str, columns: Sequence[str]) -> list[Table]:
    """Return the tables of a study.

    Args:
        lines: What ``summarise`` returned, with the measures of ``columns``.
        title: Heading of the first.
        columns: Which: keys of ``study.measures.COLUMNS``, or ``"narrow"``, what a first look needs of ``"main"``.
    """
    from calibrant.report.model import Table

    rows = " or ".join(f"{count:,}" for count in sorted({line.rows for line in lines}))
    made = []
    for name in dict.fromkeys(columns if "narrow" in columns else ("main", *columns)):
        first, heading, note, cells = TABLES[name]
        body = [
            [label, *(_filled_cell(line, cell) for cell in cells.values())]
            for label, line in _names_of_summaries(lines)
        ]
        # the models of a report are those of one seed: a table of them beside these means would disagree
        made.append(Table(heading or title, [first, *cells], body, note.format(rows=rows), lists_models=not heading))
    return made


def _filled_cell(line: Summary, text: str) -> str:
    """Return a cell: each ``{measure}`` as its mean with its spread, ``{mean[measure]}`` as the mean alone."""
    chance = {"calibrated_mean": line.calibrated_mean, "calibrated_high": line.calibrated_high}
    shown = {name: spread(line, name) for name in line.mean} | {name: f"{100 * x:.1f}" for name, x in chance.items()}
    return text.format(mean=line.mean, **shown)


def _names_of_summaries(lines: Sequence[Summary]) -> list[tuple[str, Summary]]:
    several = len({line.setting for line in lines}) > 1
    return [(f"{line.setting} · {line.objective}" if several else line.objective, line) for line in lines]


def paper_tables(study: Study, lines: Sequence[Summary]) -> list[Table]:
    """Return the papers' figures beside ours, or nothing if the study knows none or they were not run."""
    from calibrant.report.model import Table
    from calibrant.study.measures import MEASURES
    from calibrant.study.tables import printed_beside

    beside = [(name, line, printed_beside(study, line)) for name, line in _names_of_summaries(lines)]
    measures = [measure for measure in MEASURES if any(measure in printed for _, _, printed in beside)]
    tables = []
    for start in range(0, len(measures), SIDE_BY_SIDE):
        shown = measures[start : start + SIDE_BY_SIDE]
        rows = [
            [name, *(_printed_and_measured(line, printed, measure) for measure in shown)]
            for name, line, printed in beside
            if any(measure in printed for measure in shown)
        ]
        title = "Beside the paper" if not start else "Beside the paper, further measures"
        last = start + SIDE_BY_SIDE >= len(measures)
        header = ["objective", *(MEASURES[measure].heading for measure in shown)]
        tables.append(Table(title, header, rows, PAPER_NOTE if last else ""))
    return tables


def _printed_and_measured(line: Summary, printed: dict[str, float], measure: str) -> str:
    from calibrant.study.measures import MEASURES

    return f"{MEASURES[measure].shown(printed[measure])} / {spread(line, measure)}" if measure in printed else ""


def study_in_short(lines: Sequence[Summary]) -> list[str]:
    """Return what is wrong, how sure that is and what to do: three sentences for each setting."""
    said = []
    for setting in dict.fromkeys(line.setting for line in lines):
        mine = [line for line in lines if line.setting == setting]
        worst = max(mine, key=lambda line: line.mean["ece"])
        best = min(mine, key=lambda line: line.mean["nll_at_t"])
        side, after, limit = SIDES[worst.mean["temperature"] > 1], worst.mean["ece_at_t"], worst.calibrated_high
        near = best.mean["nll_at_t"] + best.spread["nll_at_t"]  # NaN for one seed
        others = sum(line.mean["nll_at_t"] <= near for line in mine) - 1
        spread = f" ± {100 * worst.spread['ece']:.1f}" if worst.seeds > 1 else ""
        where = f" on {setting}" if setting != lines[0].setting or len(mine) < len(lines) else ""
        said += [
            (
                f"What is wrong{where}: {worst.objective} is {side}, ECE {100 * worst.mean['ece']:.1f}{spread} %, best "
                f"temperature {worst.mean['temperature']:.2f} (1 needs no correction)."
            ),
            (
                f"How sure: {worst.seeds} seed{'s' * (worst.seeds > 1)} of {worst.rows:,} test rows; at its temperature the ECE is "
                f"{100 * after:.1f} %, {'below' if after <= limit else 'above'} the {100 * limit:.1f} % that calibrated models stay below."
                + ("" if worst.seeds > 1 else " One seed tells no objectives apart.")
            ),
            (
                f"What to do: calibrate after training, whatever the objective; then {best.objective} has the lowest log-loss "
                f"({best.mean['nll_at_t']:.3f}{f'; {others} more within its spread over seeds' if others > 0 else ''}). The table has all."
            ),
        ]
    return said


def _agreements_of(study: Study, lines: Sequence[Summary]) -> list[str]:
    from calibrant.study.measures import MEASURES
    from calibrant.study.tables import agreements

    said = []
    for found in agreements(study, lines):
        total = len(found.agree) + len(found.disagree)
        against = ", ".join(f"{a} above {b}" for a, b in found.disagree)
        where = f"{MEASURES[found.measure].label} [{found.setting}]"
        no = f"; not here: {against}" if against else ""
        said.append(f"Orderings of the paper that agree in {where}: {len(found.agree)} of {total}{no}")
    return said


def verdict_sentences(verdicts: Sequence[Verdict], lines: Sequence[Summary] = ()) -> list[str]:
    """Return one sentence a claim: whether the papers' ordering shows here, how sure that is, and if an error changed its side."""
    from calibrant.study.measures import MEASURES

    said, settings = [], {verdict.setting for verdict in verdicts}
    for verdict in verdicts:
        if verdict.seen is None:
            continue
        seen = verdict.outcome.capitalize()
        if verdict.p is None:
            sure = (
                "; one seed tells nothing apart" if verdict.seeds < 2 else "; equal differences in all seeds, no test"
            )
        else:
            sure = f"; paired t-test over {verdict.seeds} seeds, first against last: p = {verdict.p:.2g}"
        if verdict.p_unpaired is not None:
            sure += f", unpaired (two samples, equal variance): p = {verdict.p_unpaired:.2g}"
        measure = MEASURES[verdict.claim.measure]
        scale, unit = (100, " %") if measure.percent else (1, "")
        values = ", ".join(
            f"{objective} {scale * value:.3g}{unit}"
            for objective, value in zip(verdict.claim.falls, verdict.values, strict=True)
        )
        where = f" [{verdict.setting}]" if len(settings) > 1 else ""
        said.append(f"{seen}{where}: {verdict.claim.text} ({verdict.claim.source}): {measure.label} {values}{sure}")
        mine = {line.objective: line for line in lines if line.setting == verdict.setting}
        first, last = (mine.get(verdict.claim.falls[end]) for end in (0, -1))
        if verdict.claim.measure == "ece" and first and last and last.mean["ece"] > last.calibrated_high:
            over, was_over = last.mean["temperature"] > 1, first.mean["temperature"] > 1
            said[-1] += f"; {last.objective} errs the other way, {SIDES[over]}" if over is not was_over else ""
    return said


def spread(line: Summary, name: str) -> str:
    """Return the mean of a measure as people read it, with its standard deviation where there are several seeds."""
    from calibrant.study.measures import MEASURES

    scale, digits = 100 if MEASURES[name].percent else 1, 1 if name == "error" else 2
    mean = f"{scale * line.mean[name]:.{digits}f}"
    return mean if line.seeds == 1 else f"{mean}±{scale * line.spread[name]:.{digits}f}".replace("±0.", "±.")


study = typer.Typer(help="The papers' experiments: list, run, show.", no_args_is_help=True)


def _preset_names() -> list[str]:
    """Return the names of ``study list``, for the shell's completion."""
    from calibrant.study import presets

    return presets()


def _complete_objectives(context: typer.Context, incomplete: str) -> list[str]:
    """Return the objectives of the study that is named, for the shell's completion."""
    named = [context.params.get("name"), *context.args]  # while a line is completed, its arguments are still unread
    name = next((one for one in named if one), "")
    try:
        chosen = study_by_name(name, scale=context.params.get("scale") or "cpu")
    except CalibrantError:
        return []
    return [one.label for one in chosen.objectives if one.label.startswith(incomplete)]


NAMED = typer.Argument(
    metavar="STUDY", autocompletion=among(_preset_names), help="A name of `study list`, or the path of a TOML file."
)
Name = Annotated[str, NAMED]
Scales = Literal["cpu", "gpu", "paper"]
Scale = Annotated[Scales, typer.Option(help="How large the study is.")]
Folder = Annotated[Path, typer.Option(help="Folder that keeps the runs.")]
Seeds = Annotated[int | None, typer.Option(min=1, max=10_000, help="So many: its first, then the numbers that follow.")]
Data = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder that holds the data sets, one folder each; else the hub."),
]


@study.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """List the studies that come with the package."""
    from calibrant.study import presets

    if as_json:
        print_json({name: study_by_name(name, scale=None).title for name in presets()})
        return
    lines = Grid.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True)
    for name in presets():
        found = study_by_name(name)
        cells = list(found.cells())
        lines.add_row(name, found.title)
        lines.add_row("", f"{len(cells)} trainings on {_data_sets(cells)}", style="dim")
    console().print(lines)


@dataclass(frozen=True)
class Requested:
    """Which trainings are to be run."""

    name: Annotated[str | None, NAMED] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Every study of `study list`: the first seed of each, then the second …")
    ] = False
    scale: Scale = "cpu"
    data: Data = None
    seeds: Seeds = None
    only: Annotated[
        list[str] | None,
        typer.Option(autocompletion=_complete_objectives, help="Only this objective; may be repeated."),
    ] = None
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; may be repeated.")] = None


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
    from calibrant.study.run import reports_progress

    kept, scale = Store(store), requested.scale
    if requested.everything:
        refuse_typed(["name", "only", "setting"], where="a run of --all studies")
        chosen_studies = _all(scale, requested.data, seeds=requested.seeds)
        if dry_run:
            for one in chosen_studies:
                _say_what_would_run(one, kept, scale, how)
            _say_total(chosen_studies, kept)
            return
        run_all(chosen_studies, kept, how)
        return
    if requested.name is None:
        raise InputError("the name of a study, or --all", "neither", "see calibrant study list")
    chosen = _load_study_and_store(requested.name, scale, requested.data, seeds=requested.seeds)
    chosen = _restricted(chosen, requested)
    _check_every_scale(chosen, requested.name)
    if dry_run:
        _say_what_would_run(chosen, kept, scale, how)
        return
    run_with_bars(chosen, kept, how)
    if reports_progress():
        _show(chosen, kept, Outputs())


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
    from calibrant.study.tables import claim_sentences, claim_table, read_claims

    found = [one for one in read_claims() if (paper or "").lower() in one["paper"].lower()]
    if not found:
        raise InputError("a part of a paper's name", f"{paper!r}", "see calibrant study claims")
    if as_json:
        print_json({"claims": found})
    else:
        say_study([claim_table(found)], claim_sentences(found) if paper else [])


@dataclass(frozen=True)
class Outputs:
    """What is written of a study, besides the tables on the screen."""

    report: Annotated[Path | None, typer.Option("--report", "-o", help="Write a report here (.html, .md).")] = None
    record: Annotated[Path | None, typer.Option(help="Write the small record (JSON) with its provenance here.")] = None
    figures: Annotated[Path | None, typer.Option(help="Draw the study's figures into this folder (SVG, PNG).")] = None
    width: Literal["column", "page"] | None = option(
        None, "Figures for a paper: 3.5 or 7.16 inches wide, without heading (SVG, PDF).", needs="figures"
    )
    as_json: AsJson = False


@study.command()
@with_groups
def show(
    name: Name,
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
    chosen = _load_study_and_store(name, scale, data, seeds=seeds)
    for column in columns or ():
        check_choice(column, name="columns", choices=(*COLUMNS, "all"))
    if columns:
        chosen = replace(chosen, columns=tuple(COLUMNS) if "all" in columns else tuple(columns))
    _show(chosen, Store(store), outputs)


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
    say_study([Table("The theory's figures", ["figure", "number", "value"], rows, "")], [])


def _with_seeds(found: Study, count: int | None) -> Study:
    """Return the study with so many seeds: its first ones and, beyond its own, the numbers that follow; None leaves it."""
    if count is None:
        return found
    further = range(max(found.seeds) + 1, max(found.seeds) + 1 + count)
    return replace(found, seeds=(*found.seeds, *further)[:count])


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
        one = _with_seeds(study_by_name(name, scale=scale), seeds)
        found.append(one if data is None else one.with_data_from(data))
    return found


def _say_what_would_run(chosen: Study, kept: Store, scale: str, how: Manner) -> None:
    """Print the trainings of a study and its data, and name the folders that are missing."""
    from calibrant.study.preflight import missing_folders

    cells, (finished, _) = list(chosen.cells()), counted(chosen, kept)
    where = f"on a Ray cluster at {how.address or 'this machine'}" if how.executor == "ray" else "on this machine"
    typer.echo(
        f"{chosen.name} at scale {scale}: {len(cells)} trainings, {finished} of them finished, {how.workers} at a time "
        f"{where} (accelerator: {how.accelerator})"
    )
    for folder, setting in missing_folders(cell for cell in cells if not kept.finished(cell.recipe)):
        typer.echo(f"data missing: {folder} (of setting {setting!r}); put them there or give --data", err=True)
    typer.echo(f"data: {_data_sets(cells)}")


def _data_sets(cells: Sequence[Cell]) -> str:
    """Return the data sets of a study, each with its size where it lies, or where it comes from."""
    named = {(str(cell.recipe.data["name"]), _place_of(cell.recipe.data)) for cell in cells}
    return "; ".join(f"{name} ({place})" for name, place in sorted(named))


def _place_of(data: Mapping[str, Any]) -> str:
    folder = data.get("folder")
    if folder is None:
        return {"digits": "with scikit-learn", "module": "your module"}.get(data["name"], "Hugging Face hub, or --data")
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return f"{size / 1e6:,.0f} MB in {folder}" if size else f"missing: {folder}"


def _say_total(studies: list[Study], kept: Store) -> None:
    """Print how many trainings all studies need, each counted once."""
    distinct = {cell.recipe.fingerprint: cell.recipe for one in studies for cell in one.cells()}
    finished = sum(kept.finished(recipe) for recipe in distinct.values())
    shared = sum(counted(one, kept)[1] for one in studies) - len(distinct)
    typer.echo(
        f"all studies: {len(distinct)} different trainings ({shared} shared ones counted once), {finished} finished"
    )


def _restricted(chosen: Study, requested: Requested) -> Study:
    """Return the study with the objectives and settings that are requested."""
    for family, labels in (("objectives", requested.only), ("settings", requested.setting)):
        known = [part.label for part in getattr(chosen, family)]
        for label in labels or ():
            if label not in known:
                raise InputError(f"{family} of {chosen.name} ({', '.join(known)})", f"{label!r}", "correct the name")
    return chosen.restricted(objectives=requested.only or None, settings=requested.setting or None)


def _load_study_and_store(name: str, scale: str, data: Path | None, *, seeds: int | None = None) -> Study:
    _refuse_scale(name)
    found = _with_seeds(study_by_name(name, scale=scale), seeds)
    if data is None:
        return found
    placed = found.with_data_from(data)
    if placed == found:
        wanted_sets = ", ".join(sorted({str(setting.data.get("name")) for setting in found.settings}))
        wanted = f"--data to hold a folder of a data set of {name} ({wanted_sets})"
        raise InputError(wanted, f"none of them in {str(data)!r}", "put one there, or leave --data out")
    return placed


def _check_every_scale(chosen: Study, name: str) -> None:
    """Check a study and, where it is a file of the user's own, the file's other scales too; messages name the file."""
    from calibrant.study.load import scales_of
    from calibrant.study.preflight import check_study

    own = name.endswith(".toml")
    try:
        check_study(chosen)
        for scale in scales_of(name) if own else ():
            check_study(study_by_name(name, scale=scale))
    except InputError as error:
        raise (error.at(name) if own and name not in str(error) else error) from error


def _refuse_scale(name: str) -> None:
    from calibrant.study.load import scales_of

    if not scales_of(name):
        refuse_typed(["scale"], where=f"{name}, which has one scale only")


def _show(chosen: Study, kept: Store, outputs: Outputs) -> None:
    from calibrant.study import collect
    from calibrant.study.draw import pictures_of, write_figures
    from calibrant.study.figures import drawings
    from calibrant.study.tables import measures_needed, record_of, summarise, verdicts_on

    report, figures = outputs.report, outputs.figures
    measured = collect(chosen, kept)
    if not measured:
        raise InputError(f"finished runs of {chosen.name!r} in {kept.root}", "none", "run the study first")
    verdicts = verdicts_on(chosen, measured)
    lines = summarise(measured, names=measures_needed(chosen, chosen.columns))
    tables = [*tables_of(lines, title=chosen.title, columns=chosen.columns), *paper_tables(chosen, lines)]
    # which orderings of the papers' tables are seen here and which are not, then each claim
    sentences = [*_agreements_of(chosen, lines), *verdict_sentences(verdicts, lines)]
    drawn = drawings(chosen, measured) if report is not None or figures is not None else []
    if figures is not None:
        written = write_figures(drawn, figures, width=outputs.width)
        typer.echo(f"{len(written) or 'no'} figures of {chosen.name} are written to {figures}", err=True)
    if report is not None:
        _write_study_report(chosen, measured, report, [*tables, *pictures_of(drawn)], lines, sentences)
    if outputs.record is not None:
        record_of(chosen, measured, path=outputs.record, columns=chosen.columns)
    if outputs.as_json:
        say_study_json(measured, verdicts, report=None if report is None else str(report))
    else:
        say_study(tables, sentences)


def _write_study_report(
    study: Study,
    measured: Sequence[Measured],
    path: Path,
    shown: Sequence[Block],
    lines: Sequence[Summary],
    sentences: Sequence[str],
) -> None:
    """Write the page of a study: in short, what is shown, what the papers claim, how it was made, and the models of its first seed."""
    from calibrant.report import Claims, Model, write_report

    first = [m for m in measured if m.seed == study.seeds[0]]
    models = [Model(f"{m.setting} · {m.objective}", m.before, m.after, "TemperatureScaling") for m in first]
    claims = [Claims("What the papers claim, and what shows here", sentences)] if sentences else []
    made = Claims("How it was made", [validation_note(measured)])
    blocks: list[Block] = [Claims("In short", study_in_short(lines)), *shown, *claims, made]
    write_report(models, path, title=study.title, tables=blocks, notes=[" ".join(study.about.split())])


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
    from calibrant._core.check import check_count
    from calibrant.plot.diagrams import diagram_of
    from calibrant.report.figures import panel_pictures
    from calibrant.study import Store, collect, load_study  # study's own: a preset needs no sys.path
    from calibrant.study.tables import summarise, verdicts_on

    check_count(workers, name="workers")  # before anything is printed
    digits, kept = load_study("digits-all" if everything else "digits"), Store(store)
    train_aloud(digits, kept, workers=workers)
    measured = collect(digits, kept)
    verdicts = verdicts_on(digits, measured)
    lines = summarise(measured)
    claims = verdict_sentences(verdicts, lines)
    heading = f"Before and after one temperature, mean ± sd over {len(digits.seeds)} seeds"
    (table,) = tables_of(lines, title=heading, columns=["narrow"])
    report = kept.root / "report.html"
    states = [
        (f"{m.objective}, seed {m.seed}, {when}", diagram_of(data))
        for m in measured
        if m.seed == digits.seeds[0]
        for when, data in (("before", m.before), ("after", m.after))
    ]
    _write_study_report(digits, measured, report, [*panel_pictures(states, prefix="m"), table], lines, claims)
    if as_json:
        say_study_json(measured, verdicts, report=str(report))
        return
    say_study([table], claims)
    console().print("\n".join(["", *study_in_short(lines)]))
    console().print(f"The report is in {report.resolve()}: open it in a browser.", style="bold")


def train_aloud(study: Study, store: Store, *, workers: int) -> None:
    """Run what is not finished; each finished training is one line on stderr: its error, ECE and temperature."""
    from calibrant.study.measures import FoldFits
    from calibrant.study.run import run_study

    cells, (done, _) = list(study.cells()), counted(study, store)
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
        fits = FoldFits([run.validation], [run.test], [store.trajectory(recipe)])
        error, ece, at_t = (100 * fits.value(name) for name in ("error", "ece", "ece_at_t"))
        screen.print(
            f"{done:3}/{step.total} {step.cell.objective:<19} seed {recipe.seed} fold {recipe.fold}  error {error:4.1f} %  ECE "
            f"{ece:4.1f} →{at_t:4.1f} %  T {fits.value('temperature'):4.2f}"
        )
