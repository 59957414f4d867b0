"""Tables and sentences about a study for the terminal and for its page, and the index of the papers' claims."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.binning import EqualMass
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.errors import FileFormatError
from calibrant.metrics import ECE
from calibrant.report import Model, write_report
from calibrant.report.model import Block, Claims, Table
from calibrant.statistics.paired import shown_p
from calibrant.study.measures import MEASURES, Measured, calibrate_folds, fit_each, geometric_mean
from calibrant.study.recipe import Published, Study
from calibrant.study.tables import Summary, Verdict, deviation, grouped, printed_beside

SIDE_BY_SIDE = 4  # number of a paper's measures in one table, so that the table fits a terminal
T_MEAN = "{mean[temperature]:.2f}"
SIDES = {True: "over-confident", False: "under-confident"}  # the key is whether the temperature is above 1
# For each table: heading of the first column, title, note, and the other columns. The first table has the study's title.
TABLES: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "main": (
        "objective",
        "",
        ("{mean_of_seeds}, on test data (n = {rows} test samples per seed). ECE: 15 equal-width bins of the top "
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
        ("On {rows} test images per seed, over all folds. "
        "ECE: the mean distance between confidence and accuracy. T: one number that divides the logits, "
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
        "T that minimises the ECE of the test data themselves. It uses test labels, so no T chosen without them can do better."),
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
PAPER_NOTE = (
    "The paper's figure / ours. Papers contradict each other on the same cell, so expect orderings and signs to agree, but "
    "not the figures."
)


def tables_of(lines: Sequence[Summary], *, title: str, columns: Sequence[str]) -> list[Table]:
    """Return the tables of a study.

    Args:
        lines: The result of ``summarise``, with the measures of ``columns``.
        title: Heading of the first table.
        columns: The tables to return: keys of ``study.measures.COLUMNS``, or ``"narrow"`` for a table with only the most
            important columns of ``"main"``.
    """
    rows = " or ".join(f"{count:,}" for count in sorted({line.rows for line in lines}))
    several = any(line.seeds > 1 for line in lines)
    mean_of_seeds = "Mean ± standard deviation over seeds" if several else "Of one seed"
    made = []
    for name in dict.fromkeys(columns if "narrow" in columns else ("main", *columns)):
        first, heading, note, cells = TABLES[name]
        body = [
            [label, *(_filled_cell(line, cell) for cell in cells.values())]
            for label, line in _names_of_summaries(lines)
        ]
        note = note.format(rows=rows, mean_of_seeds=mean_of_seeds)
        made.append(Table(heading or title, [first, *cells], body, note))
    return made


def _filled_cell(line: Summary, text: str) -> str:
    """Return the text of a cell, with ``{measure}`` replaced by the mean and its spread, and ``{mean[measure]}`` by the mean."""
    chance = {"calibrated_mean": line.calibrated_mean, "calibrated_high": line.calibrated_high}
    shown = {name: spread(line, name) for name in line.mean} | {name: f"{100 * x:.1f}" for name, x in chance.items()}
    return text.format(mean=line.mean, **shown)


def _names_of_summaries(lines: Sequence[Summary]) -> list[tuple[str, Summary]]:
    """Return each line with its name, which includes the setting if there are several."""
    several = len({line.setting for line in lines}) > 1
    return [(f"{line.setting} · {line.objective}" if several else line.objective, line) for line in lines]


def paper_tables(study: Study, lines: Sequence[Summary]) -> list[Table]:
    """Return tables with the papers' figures beside ours; empty if the study has no such figures or has not run them."""
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
        title = "Compared with the paper" if not start else "Compared with the paper, further measures"
        last = start + SIDE_BY_SIDE >= len(measures)
        header = ["objective", *(MEASURES[measure].heading for measure in shown)]
        tables.append(Table(title, header, rows, PAPER_NOTE if last else ""))
    return tables


def one_gamma_table(study: Study, measured: Sequence[Measured]) -> list[Table]:
    """Return focal temperature scaling with one γ for all seeds, as in Komisarenko & Kull (2024, Table 1).

    Args:
        study: The study. If it does not reproduce this paper or has a single seed, there is no table.
        measured: The result of ``collect``.
    """
    metric, cells = ECE(EqualMass(15)), []
    for (setting, objective), items in grouped(measured, lambda item: (item.setting, item.objective)).items():
        if "komisarenko" not in study.papers or len(items) < 2:
            continue
        tried = []
        for gamma in FocalTemperatureScaling.published:
            make = partial(FocalTemperatureScaling, "ece", gammas=(gamma,), grid="komisarenko")
            pairs = [(item, fit_each(make, item.validation)) for item in items]
            seen = [metric(calibrate_folds(item.validation, made, allow_fit_rows=True)) for item, made in pairs]
            tried.append((float(np.mean(seen)), gamma, pairs))
        _, gamma, pairs = min(tried, key=lambda entry: entry[:2])
        errors = [100 * metric(calibrate_folds([run.test for run in item.runs], made)) for item, made in pairs]
        temperature = geometric_mean([geometric_mean([one.temperature for one in made]) for _, made in pairs])
        shown = f"{np.mean(errors):.2f}±{deviation(errors):.2f}"
        cells.append([f"{setting} · {objective}", f"{gamma:g}", f"{temperature:.2f}", shown])
    note = "γ has the lowest mean AdaECE of the validation data over seeds, as in the paper; each seed has its own T."
    header = ["objective", "γ", "T by AdaECE", "AdaECE % at focal T"]
    return [Table("Focal temperature scaling with one γ for all seeds", header, cells, note)] if cells else []


def _printed_and_measured(line: Summary, printed: Mapping[str, Published], measure: str) -> str:
    """Return the text "paper's figure / our figure", each with its standard deviation over seeds if there is one."""
    if measure not in printed:
        return ""
    one, words = printed[measure], MEASURES[measure]
    around = "" if one.spread is None else f"±{words.shown(one.spread)}".replace("±0.", "±.")
    return f"{words.shown(one.value)}{around} / {spread(line, measure)}"


def in_short(lines: Sequence[Summary]) -> list[str]:
    """Return three sentences for each setting: what is wrong, how certain it is, and what to do."""
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
                + ("" if worst.seeds > 1 else " One seed cannot show differences between objectives.")
            ),
            (
                f"What to do: calibrate after training, whatever the objective; then {best.objective} has the lowest log-loss "
                f"({best.mean['nll_at_t']:.3f}{f'; {others} more within its spread over seeds' if others > 0 else ''}). "
                "The table shows all of them."
            ),
        ]
    return said


def verdict_sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one sentence per claim: whether the runs show the paper's ordering, and how certain it is."""
    said, settings = [], {verdict.setting for verdict in verdicts}
    for verdict in verdicts:
        if verdict.seen is None:
            continue
        seen = verdict.outcome.capitalize()
        if verdict.p is None:
            sure = "; one seed, no test" if verdict.seeds < 2 else "; equal differences in all seeds, no test"
        else:
            sure = f"; paired t-test over {verdict.seeds} seeds, first against last: {shown_p(verdict.p)}"
        if verdict.p_unpaired is not None:
            sure += f", unpaired (two samples, equal variance): {shown_p(verdict.p_unpaired)}"
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
    """Return the mean of a measure as text, with its standard deviation if there are several seeds."""
    scale, digits = 100 if MEASURES[name].percent else 1, 1 if name == "error" else 2
    mean = f"{scale * line.mean[name]:.{digits}f}"
    return mean if line.seeds == 1 else f"{mean}±{scale * line.spread[name]:.{digits}f}".replace("±0.", "±.")


def write_page(
    study: Study,
    measured: Sequence[Measured],
    lines: Sequence[Summary],
    path: Path,
    *,
    shown: Sequence[Block],
    sentences: Sequence[str],
) -> None:
    """Write the page of a study.

    Args:
        study: The study.
        measured: The result of ``collect``; the page shows the models of the first seed.
        lines: The result of ``summarise``.
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
    claims = [Claims("What the papers claim, and what shows here", sentences)] if sentences else []
    uses = ", ".join(f"{purpose} ({n}×)" for purpose, n in reduce(or_, (m.validation_uses for m in measured)).items())
    made = Claims(
        "How it was made",
        [
            f"Validation data were used to {uses} in a training.",
            f"Models and their comparison below are those of seed {study.seeds[0]}.",
        ],
    )
    blocks: list[Block] = [Claims("In short", in_short(lines)), *shown, *claims, made]
    write_report(models, path, title=study.title, tables=blocks, notes=[" ".join(study.about.split())])


COLUMNS_OF_VERDICTS = {  # verdicts that are counted together
    "shows": ["shows"],
    "opposite": ["shows the opposite"],
    "none": ["no effect above the margin"],
    "unclear": ["unclear", "shows in part"],
    "unfit": ["not comparable", "not decidable"],
    "not run": ["not run"],
}
REGIMES = {  # what the runs behind a verdict have in common with the paper
    "mathematics": "a mathematical statement",
    "paper": "the paper's data, network and training",
    "near": "the paper's data, a smaller network or a shorter training",
    "here": "data for which the paper does not claim it",
}
LINE_WIDTH = 78  # characters of a sentence on a terminal


def read_claims() -> list[dict[str, Any]]:
    """Return the index of the papers' claims, one record per claim with its verdict on each data set where it was tested.

    Raises:
        FileFormatError: If the package is installed without the repository, which contains the index.
    """
    path = Path(__file__).resolve().parents[3] / "papers" / "index.json"
    if not path.is_file():
        remedy = "they are in the papers/ folder of Calibrant's repository"
        raise FileFormatError("the papers' claims next to the source code", "an installed package", remedy)
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["claims"]
    return found


def claim_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with the number of comparisons for each verdict, by paper and kind of data, and in total."""
    lines = [
        (claim["paper"], line["regime"], line["verdict"], line.get("comparison", (claim["number"], line["data"])))
        for claim in claims
        for line in claim["lines"]
    ]
    papers = list(dict.fromkeys(claim["paper"] for claim in claims))
    rows = []
    for name in [*papers, *(["all papers"] if len(papers) > 1 else [])]:
        for regime in REGIMES:
            found = {line[2:] for line in lines if line[1] == regime and name in (line[0], "all papers")}
            groups = [{one for verdict, one in found if verdict in kinds} for kinds in COLUMNS_OF_VERDICTS.values()]
            if found:
                rows.append([name, regime, str(len({one for _, one in found})), *(str(len(group)) for group in groups)])
    header = ["paper", "rests on", "all", *COLUMNS_OF_VERDICTS]
    regimes = "; ".join(f"{name}: {words}" for name, words in REGIMES.items())
    note = (
        f"Each comparison counts once, even if several claims or papers rest on it. {regimes}. Shows, or shows the opposite: p < .05, "
        "adjusted over all comparisons. None: no effect above the margin. Unclear: none of these, or the first and the last "
        "objective differ as claimed but the order between them is another. Unfit: not comparable, because the test errors are too "
        "large or too far apart, or not decidable."
    )
    return Table("The papers' claims on the records of what was run", header, rows, note)


def claim_sentences(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return text lines for each claim: its number, the paper's words, and the result of each of its tests.

    A result is the verdict, the effect and the adjusted p-value.
    """
    found = []
    for claim in claims:
        head = f"{claim['number']}. {claim['claim']} ({claim['paper']}, {claim['place']})"
        parts = [head, f"   paper: {claim['quote']}"]
        percent = MEASURES[claim["measure"].partition(" ")[0]].percent if claim.get("measure") else False
        for line in claim["lines"]:
            numbers = [
                line["verdict"] + ("" if line["regime"] == "mathematics" else f" on {line['data']} ({line['regime']})")
            ]
            if "effect" in line:
                effect = line["effect"]
                numbers.append(f"difference {100 * effect:+.2f} points" if percent else f"difference {effect:+.4f}")
            if "p" in line:
                units = (
                    "clusters of sets" if line["data"].endswith("saved logits") else f"seed{'s' * (line['units'] != 1)}"
                )
                numbers.append(f"{shown_p(line['p'])} over {line['units']} {units}")
            parts.append("   " + "; ".join([*numbers, *([line["note"]] if "note" in line else [])]))
        found.append("\n".join(textwrap.fill(part, LINE_WIDTH, subsequent_indent="   ") for part in parts))
    return found
