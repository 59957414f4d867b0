"""What ``demo`` and ``study`` share: progress bars while trainings run, a study's tables and sentences, and the papers' beside them."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calibrant.cli._application import for_command_line
from calibrant.cli._io import console, print_json, print_table
from calibrant.errors import CalibrantError, InputError

if TYPE_CHECKING:
    from calibrant.report.model import Table
    from calibrant.study import Store, Study
    from calibrant.study.claims import ClaimLine
    from calibrant.study.describe import Choice
    from calibrant.study.run import Step
    from calibrant.study.tables import Measured, Summary, Verdict


SIDE_BY_SIDE = 4  # measures of a paper in one table, so that it fits a terminal
T_MEAN = "{mean[temperature]:.2f}"
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
            "error %": "{error}", "NLL": "{nll}", "ECE %": "{ece}", "NLL at T": "{nll_at_t}", "ECE at T %": "{ece_at_t}", "T": T_MEAN,
            "calibrated mean %": "{calibrated_mean}", "calibrated 97.5 %": "{calibrated_high}",
        },
    ),
    "narrow": (
        "trained with",
        "",
        ("On {rows} test images a seed. ECE: how far confidence and accuracy are apart. T: one number that divides the logits, "
        "fitted on validation images by log-loss. By chance: a calibrated network stays below this ECE in 97.5 % of samples."),
        {
            "error %": "{error}", "ECE %": "{ece}", "T": T_MEAN, "ECE at T %": "{ece_at_t}", "by chance": "{calibrated_high}"
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
CLAIMS_NOTE = (
    "Effect: mean of the first objective minus that of the last, a fraction; p adjusted after Benjamini and Hochberg over the "
    "distinct comparisons. Detectable: the effect that as many seeds or clusters would show with probability .8."
)
PAPER_NOTE = (
    "The paper's figure / ours. Papers contradict each other on the same cell: orderings and signs can be expected to "
    "agree, figures cannot."
)


@dataclass(frozen=True)
class Manner:
    """How trainings are run."""

    executor: Annotated[str, typer.Option(help="local: processes on this machine; ray: a Ray cluster.")] = "local"
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; else one is started here.")] = None
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: For an unknown executor or accelerator, or an address without a cluster.
        """
        from calibrant._core.check import check_choice

        check_choice(self.executor, name="executor", choices=("local", "ray"))
        check_choice(self.accelerator, name="accelerator", choices=("auto", "cpu", "cuda"))
        if self.address is not None and self.executor != "ray":
            raise InputError("--executor ray beside --address", f"{self.executor!r}", "add it or leave the address out")


def load_study(name: str, *, scale: str | None = "cpu") -> Study:
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


def run_with_bars(study: Study, store: Store, how: Manner) -> None:
    """Run what is not finished, with a bar of the trainings and one of the epochs of the present one."""
    from calibrant.study.run import reports_progress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = console(err=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=screen, disable=not reports_progress()) as bars:
        total = sum(1 for _ in study.cells())
        finished = sum(store.finished(cell.recipe) for cell in study.cells())
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
            if study.name in failed or all(store.finished(cell.recipe) for cell in part.cells()):
                continue
            console(err=True).print(f"{study.name}, {len(part.seeds)} of {len(study.seeds)} seeds")
            try:
                run_with_bars(part, store, how)
            except CalibrantError as error:
                failed[study.name] = for_command_line(error)
    for study in studies:
        finished = sum(store.finished(cell.recipe) for cell in study.cells())
        if finished and reports_progress():
            total = sum(1 for _ in study.cells())
            typer.echo(f"{study.name}: {finished} of {total} trainings; calibrant study show {study.name}")
    for name, reason in failed.items():
        typer.echo(f"{name} was not run: {reason}", err=True)
    if failed:
        raise typer.Exit(2)


def _steps(study: Study, store: Store, how: Manner) -> Iterator[Step]:
    from calibrant.scale.studies import run_study_on_ray
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
        body = [[label, *(_cell(line, cell) for cell in cells.values())] for label, line in _named(lines)]
        # the models of a report are those of one seed: a table of them beside these means would disagree
        made.append(Table(heading or title, [first, *cells], body, note.format(rows=rows), lists_models=not heading))
    return made


def _cell(line: Summary, text: str) -> str:
    """Return a cell: each ``{measure}`` as its mean with its spread, ``{mean[measure]}`` as the mean alone."""
    chance = {"calibrated_mean": line.calibrated_mean, "calibrated_high": line.calibrated_high}
    shown = {name: spread(line, name) for name in line.mean} | {name: f"{100 * x:.1f}" for name, x in chance.items()}
    return text.format(mean=line.mean, **shown)


def _named(lines: Sequence[Summary]) -> list[tuple[str, Summary]]:
    several = len({line.setting for line in lines}) > 1
    return [(f"{line.setting} · {line.objective}" if several else line.objective, line) for line in lines]


def paper_tables(study: Study, lines: Sequence[Summary]) -> list[Table]:
    """Return the papers' figures beside ours, or nothing if the study knows none or they were not run."""
    from calibrant.report.model import Table
    from calibrant.study.measures import MEASURES
    from calibrant.study.tables import printed_beside

    beside = [(name, line, printed_beside(study, line)) for name, line in _named(lines)]
    measures = [measure for measure in MEASURES if any(measure in printed for _, _, printed in beside)]
    tables = []
    for start in range(0, len(measures), SIDE_BY_SIDE):
        shown = measures[start : start + SIDE_BY_SIDE]
        rows = [
            [name, *(_both(line, printed, measure) for measure in shown)]
            for name, line, printed in beside
            if any(measure in printed for measure in shown)
        ]
        title = "Beside the paper" if not start else "Beside the paper, further measures"
        last = start + SIDE_BY_SIDE >= len(measures)
        header = ["objective", *(MEASURES[measure].heading for measure in shown)]
        tables.append(Table(title, header, rows, PAPER_NOTE if last else ""))
    return tables


def _both(line: Summary, printed: dict[str, float], measure: str) -> str:
    from calibrant.study.measures import MEASURES

    return f"{MEASURES[measure].shown(printed[measure])} / {spread(line, measure)}" if measure in printed else ""


def choices_tables(study: Study, choices: Sequence[Choice]) -> list[Table]:
    """Return a table a paper of what it says, what its code does, and what the study does; then what no paper mentions."""
    from calibrant.report.model import Table

    tables = []
    for whose in dict.fromkeys(choice.whose for choice in choices):
        rows = [[c.name, c.paper or "–", c.code or "–", c.here, c.source] for c in choices if c.whose == whose]
        if whose:
            header = ["choice", "paper", "authors' code", "here", "page or file"]
        else:
            rows, header = [[row[0], row[3]] for row in rows], ["choice", "here"]
        tables.append(Table(f"{study.name} · {whose or 'choices of ours'}", header, rows, ""))
    return tables


def claim_sentences(lines: Sequence[ClaimLine]) -> list[str]:
    """Return a line per claim and data set that was tested: verdict, effect, what could have been seen; then how many of each."""
    said = []
    for line in lines:
        if line.verdict == "not run":
            continue
        parts = [f"{line.verdict}: {line.claim} ({line.paper}, {line.place}) [{line.data}]"]
        if line.effect is not None:
            parts.append(f"effect {line.effect:+.4f}")
        if line.p_adjusted is not None:
            unit = "sets" if line.data.endswith("logits") else "seed" if line.seeds == 1 else "seeds"
            parts.append(f"adjusted p = {line.p_adjusted:.2g} over {line.seeds} {unit}")
        if line.verdict == "not told apart" and line.detectable is not None:
            parts.append(f"an effect of {line.detectable:.4f} would have been seen")
        said.append("; ".join([*parts, line.note] if line.note else parts))
    counts = ", ".join(f"{name} {count}" for name, count in sorted(Counter(line.verdict for line in lines).items()))
    return [*said, f"{len(lines)} lines: {counts}. {CLAIMS_NOTE}"]


def sentences_of(study: Study, lines: Sequence[Summary], verdicts: Sequence[Verdict]) -> list[str]:
    """Return which orderings of the papers' tables are seen here and which are not, then a sentence for each claim."""
    return [*_agreements_of(study, lines), *verdict_sentences(verdicts)]


def study_in_short(lines: Sequence[Summary]) -> list[str]:
    """Return what is wrong, how sure that is and what to do: three sentences for each setting."""
    said = []
    for setting in dict.fromkeys(line.setting for line in lines):
        mine = [line for line in lines if line.setting == setting]
        worst = max(mine, key=lambda line: line.mean["ece"])
        best = min(mine, key=lambda line: line.mean["nll_at_t"])
        side = "over" if worst.mean["temperature"] > 1 else "under"
        after, limit = worst.mean["ece_at_t"], worst.calibrated_high
        spread = f" ± {100 * worst.spread['ece']:.1f}" if worst.seeds > 1 else ""
        where = f" on {setting}" if setting != lines[0].setting or len(mine) < len(lines) else ""
        said += [
            (
                f"What is wrong{where}: {worst.objective} is {side}-confident, ECE {100 * worst.mean['ece']:.1f}{spread} %, best "
                f"temperature {worst.mean['temperature']:.2f} (1 needs no correction)."
            ),
            (
                f"How sure: {worst.seeds} seed{'s' * (worst.seeds > 1)} of {worst.rows:,} test rows; at its temperature the ECE is "
                f"{100 * after:.1f} %, {'below' if after <= limit else 'above'} the {100 * limit:.1f} % that calibrated models stay below."
                + ("" if worst.seeds > 1 else " One seed tells no objectives apart.")
            ),
            (
                f"What to do: calibrate after training, whatever the objective; then {best.objective} has the lowest log-loss "
                f"({best.mean['nll_at_t']:.3f}). The table has all."
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


def verdict_sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one sentence a claim: whether the papers' ordering shows here, and how sure that is."""
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
    return said


def spread(line: Summary, name: str) -> str:
    """Return the mean of a measure as people read it, with its standard deviation where there are several seeds."""
    from calibrant.study.measures import MEASURES

    scale, digits = 100 if MEASURES[name].percent else 1, 1 if name == "error" else 2
    mean = f"{scale * line.mean[name]:.{digits}f}"
    return mean if line.seeds == 1 else f"{mean}±{scale * line.spread[name]:.{digits}f}".replace("±0.", "±.")
