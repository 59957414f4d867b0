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
from calibrant.study import Measured, Store, Study, Verdict, rows, run_study
from calibrant.study.run import leads


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
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=screen, disable=not leads()) as bars:
        if executor == "ray":
            steps = run_study_on_ray(study, store, address=address, workers=workers, accelerator=accelerator)
        else:
            steps = run_study(study, store, workers=workers, accelerator=accelerator)
        total = sum(1 for _ in study.cells())
        finished = sum(store.finished(cell.recipe) for cell in study.cells())
        if finished and leads():
            screen.print(f"{finished} of {total} trainings are finished already and kept in {store.root}", style="dim")
        whole = bars.add_task("trainings", total=total, completed=finished)
        for step in steps:
            where = f"{step.cell.objective}, seed {step.cell.recipe.seed}"
            epochs = step.cell.recipe.training.epochs
            detail = f" · epoch {step.epoch}/{epochs}" if workers == 1 and epochs > 1 else ""
            bars.update(whole, completed=step.done, description=f"trainings · {where}{detail}")
        bars.update(whole, description="trainings")


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
        if table.note:
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
            "verdict": v.outcome,
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
