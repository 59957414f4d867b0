"""Tables and sentences about a study, for the terminal and for its page."""

from collections.abc import Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path

import numpy as np

from calibrant.binning import EqualMass
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.metrics import ECE
from calibrant.report import Model, write_report
from calibrant.report.model import Block, Claims, Table
from calibrant.statistics.paired import shown_p
from calibrant.study.measures import COLUMNS, MEASURES, Measured, calibrate_folds, fit_each, geometric_mean
from calibrant.study.recipe import Study
from calibrant.study.tables import Summary, Verdict, deviation, grouped, summarise

# For each table of ``measures.COLUMNS``: its title and note. The first table has the study's title.
TABLES: dict[str, tuple[str, str]] = {
    "main": (
        "",
        (
            "{seeds}, on {rows} test samples per seed. ECE: the calibration error of the top label in 15 bins of equal width. "
            "T: the temperature with the lowest log-loss on validation data. Limit if calibrated: the ECE that 97.5 % of "
            "perfectly calibrated models with the probabilities at T stay below on as many samples; if the ECE at T is below "
            "this limit, there is no evidence of miscalibration."
        ),
    ),
    "calibrators": (
        "After each calibrator",
        (
            "All calibrators are fitted on validation data. T: the temperature with the lowest log-loss. T by ECE: the "
            "temperature in .01 … 10 with the lowest ECE. After binning: histogram binning with 15 bins of equal width. Focal "
            "T: focal temperature scaling by log-loss. Optimal T: the temperature with the lowest ECE on the test data "
            "themselves; no temperature that is chosen without test labels can do better."
        ),
    ),
    "errors": (
        "Other calibration errors",
        "AdaECE: the calibration error in 15 bins of equal mass. Classwise ECE: the average over all classes.",
    ),
}
PAPER_NOTE = (
    "Each cell shows the paper's figure / our figure. Papers contradict each other on some figures, so expect the order of "
    "the objectives and the signs of differences to agree, but not the figures themselves."
)


def tables_of(lines: Sequence[Summary], *, title: str, columns: Sequence[str]) -> list[Table]:
    """Return the tables of a study.

    Args:
        lines: The result of ``summarise``, with the measures of ``columns``.
        title: Heading of the first table.
        columns: The tables to return: keys of ``study.measures.COLUMNS``.
    """
    parts = [(COLUMNS[name], *TABLES[name]) for name in columns]
    return [table_of(lines, measures, title=heading or title, note=note) for measures, heading, note in parts]


def table_of(lines: Sequence[Summary], measures: Sequence[str], *, title: str, note: str) -> Table:
    """Return a table with a row for each line and a column for each measure.

    Args:
        lines: The result of ``summarise``, with these measures.
        measures: Keys of ``study.measures.MEASURES``.
        title: The heading.
        note: The text below the table, in which ``{rows}`` is the number of test rows, and ``{seeds}`` says what the figures are.
    """
    rows = " or ".join(f"{count:,}" for count in sorted({line.rows for line in lines}))
    several = any(line.seeds > 1 for line in lines)
    seeds = "Mean ± standard deviation over seeds" if several else "Results for one seed"
    body = [[label, *(_mean(line, name) for name in measures)] for label, line in _named(lines)]
    header = ["objective", *(MEASURES[name].heading for name in measures)]
    return Table(title, header, body, note.format(rows=rows, seeds=seeds))


def _named(lines: Sequence[Summary]) -> list[tuple[str, Summary]]:
    """Return each line with its name, which includes the setting if there are several."""
    several = len({line.setting for line in lines}) > 1
    return [(f"{line.setting} · {line.objective}" if several else line.objective, line) for line in lines]


def paper_tables(study: Study, lines: Sequence[Summary]) -> list[Table]:
    """Return the tables that the papers print, with their figures beside ours, without the rows that were not run."""
    like, tables = {setting.label: setting.like for setting in study.settings}, []
    for table in study.printed:
        rows = []
        for name, line in _named(lines):
            places = ("", line.setting, like[line.setting] or line.setting)
            printed = {
                one.measure: f"{MEASURES[one.measure].shown(one.value, one.spread)} / {_mean(line, one.measure)}"
                for one in table.figures()
                if one.objective == line.objective and one.setting in places
            }
            if printed:
                rows.append([name, *(printed.get(measure, "") for measure in table.measures)])
        if rows:
            header = ["objective", *(MEASURES[measure].heading for measure in table.measures)]
            tables.append(Table(f"Compared with {table.source}", header, rows, PAPER_NOTE))
    return tables


def one_gamma_table(study: Study, measured: Sequence[Measured]) -> list[Table]:
    """Return focal temperature scaling with one γ for all seeds, as in Komisarenko & Kull (2024, Table 1).

    Args:
        study: The study. If it does not reproduce this paper, there is no table.
        measured: The result of ``collect``.
    """
    if "komisarenko" not in study.papers:
        return []
    metric, cells = ECE(EqualMass(15)), []
    for (setting, objective), items in grouped(measured, lambda item: (item.setting, item.objective)).items():
        fitted, errors = {}, {}  # for each γ: the calibrators of each seed, and their mean validation error
        for gamma in FocalTemperatureScaling.published:
            make = partial(FocalTemperatureScaling, "ece", gammas=(gamma,), grid="komisarenko")
            fitted[gamma] = [(item, fit_each(make, item.validation)) for item in items]
            seen = [calibrate_folds(item.validation, made, allow_fit_rows=True) for item, made in fitted[gamma]]
            errors[gamma] = float(np.mean([metric(rows) for rows in seen]))
        gamma = min(errors, key=errors.__getitem__)
        found = [metric(calibrate_folds([run.test for run in item.runs], made)) for item, made in fitted[gamma]]
        temperature = geometric_mean([one.temperature for _, made in fitted[gamma] for one in made])
        shown = MEASURES["ece_mass"].shown(float(np.mean(found)), deviation(found))
        cells.append([f"{setting} · {objective}", f"{gamma:g}", f"{temperature:.2f}", shown])
    note = "As in the paper, γ has the lowest mean AdaECE over seeds on validation data; each seed has its own T."
    header = ["objective", "γ", "T by AdaECE", "AdaECE at focal T %"]
    return [Table("Focal temperature scaling with one γ for all seeds", header, cells, note)]


def in_short(lines: Sequence[Summary]) -> list[str]:
    """Return three sentences for each setting: what is wrong, how certain it is, and what to do."""
    said = []
    for setting in dict.fromkeys(line.setting for line in lines):
        mine = [line for line in lines if line.setting == setting]
        worst = max(mine, key=lambda line: line.mean["ece"])
        best = min(mine, key=lambda line: line.mean["nll_at_t"])
        side = "over-confident" if worst.mean["temperature"] > 1 else "under-confident"
        after, limit = worst.mean["ece_at_t"], worst.mean["ece_by_chance"]
        near = best.mean["nll_at_t"] + best.spread["nll_at_t"]  # NaN for one seed
        others = sum(line.mean["nll_at_t"] <= near for line in mine) - 1
        spread = f" ± {100 * worst.spread['ece']:.1f}" if worst.seeds > 1 else ""
        where = f" on {setting}" if setting != lines[0].setting or len(mine) < len(lines) else ""
        said += [
            (
                f"What is wrong{where}: {worst.objective} is {side}. Its ECE is {100 * worst.mean['ece']:.1f}{spread} %, and its "
                f"best temperature is {worst.mean['temperature']:.2f}, where 1 would mean no correction."
            ),
            (
                f"How certain this is: these are the results for {worst.seeds} seed{'s' * (worst.seeds > 1)} of {worst.rows:,} test "
                f"rows. At the best temperature, the ECE is {100 * after:.1f} %, {'below' if after <= limit else 'above'} the "
                f"{100 * limit:.1f} % that 97.5 % of calibrated models stay below."
                + ("" if worst.seeds > 1 else " A single seed cannot show differences between objectives.")
            ),
            (
                f"What to do: calibrate after training, whichever objective you use. After calibration, {best.objective} has the "
                f"lowest log-loss ({best.mean['nll_at_t']:.3f}"
                + (
                    f"; {others} other{'s are' if others > 1 else ' is'} within its standard deviation over seeds"
                    if others > 0
                    else ""
                )
                + "). The table shows all objectives."
            ),
        ]
    return said


def verdict_sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one sentence per claim: whether the runs show the paper's ordering, and how certain it is."""
    said, settings = [], {verdict.setting for verdict in verdicts}
    for verdict in verdicts:
        if verdict.seen is None:
            continue
        sure = "not tested, because a test needs at least two seeds with unequal differences"
        if verdict.p is not None:
            sure = f"first against last, paired t-test over {verdict.seeds} seeds: {shown_p(verdict.p)}"
        if verdict.p_unpaired is not None:
            sure += f", unpaired t-test with equal variances: {shown_p(verdict.p_unpaired)}"
        claim, measure = verdict.claim, MEASURES[verdict.claim.measure]
        pairs = zip(claim.falls, verdict.values, strict=True)
        values = ", ".join(f"{objective} {measure.shown(value)}" for objective, value in pairs)
        outcome = verdict.outcome.capitalize() + (f" [{verdict.setting}]" if len(settings) > 1 else "")
        said.append(f"{outcome}: {claim.text} ({claim.source}): {measure.heading}: {values}; {sure}")
    return said


def _mean(line: Summary, name: str) -> str:
    """Return the mean of a measure as text, with its standard deviation if there are several seeds."""
    return MEASURES[name].shown(line.mean[name], line.spread[name])


def write_page(
    study: Study,
    measured: Sequence[Measured],
    path: Path,
    *,
    shown: Sequence[Block],
    sentences: Sequence[str],
) -> None:
    """Write the page of a study.

    Args:
        study: The study.
        measured: The result of ``collect``; the page shows the models of the first seed.
        path: The file to write, with a suffix that ``report`` supports.
        shown: The tables and pictures.
        sentences: The sentences about the papers' claims.
    """
    first = [m for m in measured if m.seed == study.seeds[0]]
    several = len({m.setting for m in first}) > 1
    names = [f"{m.setting} · {m.objective}" if several else m.objective for m in first]
    models = [
        Model(name, m.before, m.after("at_t"), "TemperatureScaling") for name, m in zip(names, first, strict=True)
    ]
    claims = [Claims("What the papers claim, and what these runs show", sentences)] if sentences else []
    uses = ", ".join(f"{purpose} ({n}×)" for purpose, n in reduce(or_, (m.validation_uses for m in measured)).items())
    made = Claims(
        "How these figures were obtained",
        [
            f"In each training run, validation data were used to {uses}.",
            f"The models that are described and compared below are those of seed {study.seeds[0]}.",
        ],
    )
    blocks: list[Block] = [Claims("In short", in_short(summarise(measured))), *shown, *claims, made]
    write_report(models, path, title=study.title, tables=blocks, notes=[" ".join(study.about.split())])
