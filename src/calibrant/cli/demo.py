"""``calibrant demo``: training, calibration and report on real data, in two minutes."""

import os
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli._io import console
from calibrant.cli._study import (
    Manner,
    run_with_bars,
    say_study,
    say_study_json,
    table_of,
    validation_note,
    verdict_sentences,
)


def demo(
    everything: Annotated[bool, typer.Option("--all", help="All the papers' objectives, not three.")] = False,
    store: Annotated[Path, typer.Option(help="Folder that keeps trainings and report.")] = Path("calibrant-runs"),
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = min(2, os.cpu_count() or 1),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Train, calibrate, measure and report on handwritten digits; an interrupted demo resumes.

    Examples:

        calibrant demo

        calibrant demo --all --store runs
    """
    from calibrant.report import Model, write_report
    from calibrant.study import Store, collect, load_study
    from calibrant.study.tables import summarise, verdicts_on

    study = load_study("digits-all" if everything else "digits")
    kept = Store(store)
    run_with_bars(study, kept, Manner(workers=workers, accelerator="cpu"))
    measured = collect(study, kept)
    verdicts = verdicts_on(study, measured)
    table = table_of(summarise(measured), title=study.title)
    first = [Model(m.objective, m.before, m.after, "TemperatureScaling") for m in measured if m.seed == study.seeds[0]]
    report = kept.root / "report.html"
    notes = [" ".join(study.about.split()), validation_note(measured), *verdict_sentences(verdicts)]
    write_report(first, report, title=study.title, tables=[table], notes=notes)
    if as_json:
        say_study_json(measured, verdicts, report=str(report))
        return
    say_study([table], verdict_sentences(verdicts))
    console().print(f"The report is in {report.resolve()}: open it in a browser.", style="bold")
