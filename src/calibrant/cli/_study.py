"""What ``demo`` and ``study`` share: progress bars while trainings run, and a study's table on the screen."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as ScreenTable

from calibrant.cli._output import console
from calibrant.report.model import Table
from calibrant.scale.studies import run_study_on_ray
from calibrant.study import Measured, Store, Study, Summary, Verdict, rows, run_study
from calibrant.study.measures import MEASURES

CHANCE = 0.05  # p above which an ordering is said to be no more than chance
NOTE = (
    "Mean ± standard deviation over seeds, on test data. ECE: 15 equal-width bins of the top label. After: at the "
    "temperature T (in brackets) that minimises the log-loss of the validation data. Null: the ECE that a perfectly "
    "calibrated model with these probabilities would show on as many samples; differences within it mean little."
)


def run_with_bars(
    study: Study,
    store: Store,
    *,
    workers: int,
    accelerator: str = "auto",
    executor: str = "local",
    address: str | None = None,
) -> None:
    """Run what is not finished, with a bar of the trainings and one of the epochs of the present one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = console(err=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=screen) as bars:
        if executor == "ray":
            steps = run_study_on_ray(study, store, address=address, workers=workers, accelerator=accelerator)
        else:
            steps = run_study(study, store, workers=workers, accelerator=accelerator)
        total = sum(1 for _ in study.cells())
        finished = sum(store.finished(cell.recipe) for cell in study.cells())
        if finished:
            screen.print(f"{finished} of {total} trainings are finished already and kept in {store.root}", style="dim")
        whole = bars.add_task("trainings", total=total, completed=finished)
        for step in steps:
            where = f"{step.cell.objective}, seed {step.cell.recipe.seed}"
            epochs = step.cell.recipe.training.epochs
            detail = f" · epoch {step.epoch}/{epochs}" if workers == 1 and epochs > 1 else ""
            bars.update(whole, completed=step.done, description=f"trainings · {where}{detail}")
        bars.update(whole, description="trainings")


def table_of(lines: Sequence[Summary], *, title: str) -> Table:
    """Return the papers' kind of table: before and after, optimal temperature in brackets, spread over seeds."""
    several = len({line.setting for line in lines}) > 1
    cells = [
        [
            f"{line.setting} · {line.objective}" if several else line.objective,
            _spread(line, "error", scale=100, digits=1),
            _spread(line, "nll", digits=2),
            _spread(line, "ece", scale=100),
            _spread(line, "nll_at_t", digits=2),
            _spread(line, "ece_at_t", scale=100),
            f"({line.mean['temperature']:.2f})",
            f"{100 * line.null_ece:.1f}",
        ]
        for line in lines
    ]
    return Table(title, ["objective", "error %", "NLL", "ECE %", "NLL after", "ECE after", "(T)", "null"], cells, NOTE)


def verdicts_of(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one sentence a claim: whether the papers' ordering shows here, and how sure that is."""
    said, settings = [], {verdict.setting for verdict in verdicts}
    for verdict in verdicts:
        if verdict.seen is None:
            continue
        chance = verdict.p is not None and verdict.p >= CHANCE
        seen = ("Shows, though no more than by chance" if chance else "Shows") if verdict.seen else "Does not show"
        sure = "" if verdict.p is None else f"; paired t-test over seeds, first against last: p = {verdict.p:.2g}"
        if verdict.p_unpaired is not None:
            sure += f", unpaired (two samples, equal variance): p = {verdict.p_unpaired:.2g}"
        scale, unit = _unit(verdict.claim.measure)
        values = ", ".join(
            f"{objective} {scale * value:.3g}{unit}"
            for objective, value in zip(verdict.claim.falls, verdict.values, strict=True)
        )
        where = f" [{verdict.setting}]" if len(settings) > 1 else ""
        said.append(
            f"{seen}{where}: {verdict.claim.text} ({verdict.claim.source}): {MEASURES[verdict.claim.measure].label} {values}{sure}"
        )
    return said


def _unit(measure: str) -> tuple[int, str]:
    """Return the factor and the unit in which people read ``measure``."""
    return (100, " %") if MEASURES[measure].percent else (1, "")


def paper_table(study: Study, lines: Sequence[Summary]) -> list[Table]:
    """Return the papers' figures beside ours, or nothing if the study knows none or they were not run."""
    cells = []
    for figure in study.published:
        for line in lines:
            if line.objective == figure.objective and figure.setting in ("", line.setting):
                scale, unit = _unit(figure.measure)
                ours = _spread(line, figure.measure, scale=scale)
                place = [line.setting, line.objective, MEASURES[figure.measure].label]
                cells.append([*place, f"{scale * figure.value:.2f}{unit}", f"{ours}{unit}"])
    header = ["setting", "objective", "measure", "paper", "here"]
    note = (
        "Papers contradict each other on the same cell: orderings and signs can be expected to agree, figures cannot."
    )
    return [Table("Beside the paper", header, cells, note)] if cells else []


def say_study(tables: Sequence[Table], verdicts: Sequence[str]) -> None:
    """Print the tables and the verdicts."""
    screen = console()
    for table in tables:
        shown = ScreenTable(title=table.title, box=SIMPLE_HEAD, padding=0, show_edge=False)
        shown.title_justify, shown.title_style = "left", "bold"
        for index, name in enumerate(table.header):
            shown.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
        for cells in table.rows:
            shown.add_row(*cells)
        screen.print(shown)
        screen.print(table.note, style="dim")
    for sentence in verdicts:
        screen.print(sentence)


def say_study_json(measured: Sequence[Measured], verdicts: Sequence[Verdict], *, report: str | None) -> None:
    """Print the figures of every seed as one JSON object."""
    said: list[dict[str, Any]] = [
        {
            "claim": v.claim.text,
            "source": v.claim.source,
            "setting": v.setting,
            "seen": v.seen,
            "p": v.p,
            "p_unpaired": v.p_unpaired,
        }
        for v in verdicts
    ]
    temperatures = [
        {"setting": m.setting, "objective": m.objective, "seed": m.seed, "temperatures": list(m.temperatures)}
        for m in measured
    ]
    shown = {"rows": rows(measured), "fitted": temperatures, "claims": said, "report": report}
    typer.echo(json.dumps(shown, indent=1, ensure_ascii=False, allow_nan=False))


def validation_note(measured: Sequence[Measured]) -> str:
    """Return how often validation data were used, the most for any training."""
    uses: dict[str, int] = {}
    for purpose, count in itertools.chain.from_iterable(m.validation_uses.items() for m in measured):
        uses[purpose] = max(uses.get(purpose, 0), count)
    return "Validation data were used to " + ", ".join(f"{p} ({c}×)" for p, c in uses.items()) + " in a training."


def _spread(line: Summary, name: str, *, scale: float = 1, digits: int = 2) -> str:
    mean = f"{scale * line.mean[name]:.{digits}f}"
    return mean if line.seeds == 1 else f"{mean}±{scale * line.spread[name]:.{digits}f}".replace("±0.", "±.")
