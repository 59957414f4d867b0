"""The appendix docs/evidence.md from the records in docs/results: for each a picture and what it shows in a few sentences.

python -m benchmarks.evidence      # writes docs/evidence.md and docs/images/evidence
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import beside_probmetrics
from benchmarks.records import below_zero, beyond_chance
from benchmarks.wild.measure import AUTO, TOP

ROOT = Path(__file__).parents[1]
RECORDS, PAGE, PICTURES = (
    ROOT / "docs" / "results",
    ROOT / "docs" / "evidence.md",
    ROOT / "docs" / "images" / "evidence",
)
INK, FAINT, GRID = "#1b1f24", "#767f89", "#d9dee3"
SERIES = (("#1f6fb5", "o"), ("#c2410c", "D"), ("#3f7d3a", "s"), ("#7b4fa0", "^"))
HEAD = """# How well it works

What the help pages promise, measured. Every picture and number is generated from a record in `docs/results` (`python -m
benchmarks.evidence`); the command named makes the record again. Intervals and tests: [Uncertainty](uncertainty.md). Speed:
[Benchmarks](benchmarks.md). Trainings: [What was run](results/index.md).
"""


@dataclass(frozen=True)
class Picture:
    """Dots by line and series, each (value, low, high), with a line to compare with; values in percent if "
    "``percent``."""

    label: str
    lines: dict[str, dict[str, tuple[float, float, float]]]
    reference: float | None = None
    percent: bool = False

    def figure(self) -> Figure:
        names = list(dict.fromkeys(name for line in self.lines.values() for name in line))
        figure = Figure(figsize=(7.0, 0.9 + 0.3 * len(self.lines)), layout="constrained")
        ax = figure.add_subplot()
        for at, name in enumerate(names):
            colour, marker = SERIES[at % len(SERIES)]
            shift = 0.16 * (at - (len(names) - 1) / 2)
            shown = [(row + shift, line[name]) for row, line in enumerate(self.lines.values()) if name in line]
            y, values = zip(*shown, strict=True)
            x, low, high = zip(*values, strict=True)
            ax.hlines(y, low, high, color=colour, linewidth=1.4)
            ax.plot(x, y, marker, color=colour, markersize=5, linestyle="none", label=name)
        if self.reference is not None:
            ax.axvline(self.reference, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        ax.set_yticks(range(len(self.lines)), list(self.lines), fontsize=8, color=INK)
        ax.invert_yaxis()
        ax.set_xlabel(self.label, fontsize=9, color=INK)
        ax.tick_params(axis="x", labelsize=8)
        if self.percent:
            ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        ax.grid(True, axis="x", color=GRID, linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right", "left"]].set_visible(False)
        if len(names) > 1:
            figure.legend(loc="outside upper right", ncols=len(names), frameon=False, fontsize=8)
        return figure


@dataclass(frozen=True)
class Section:
    """One finding: what is shown in a few sentences, how it is made, and its picture."""

    title: str
    text: str
    command: str
    picture: Picture
    alt: str


def dot(value: float, low: float | None = None, high: float | None = None) -> tuple[float, float, float]:
    return value, value if low is None else low, value if high is None else high


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def gate(record: Any) -> Section:
    at_limit = [row for row in record["rates"] if row["true"] == row["limit"]]
    lines: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in at_limit:
        line = lines.setdefault(row["model"], {})
        for name, key in (("wrong fail", "fails"), ("wrong pass", "passes")):
            line[name] = dot(max(row[key], line.get(name, (0.0,))[0]))
    good = min(row["passes"] for row in record["rates"] if row["true"] == 0 and row["limit"] == 0.03)
    bad = min(row["fails"] for row in record["rates"] if row["true"] > 0.07)
    most = max(value[0] for line in lines.values() for value in line.values())
    text = (
        f"A model whose ECE lies exactly at the limit gets a wrong verdict in at most {percent(most)} of "
        f"{at_limit[0]['replicates']:,} checks, at any number of rows; 2.5 % are promised. A calibrated model passes "
        f"`ece=.03` with 10,000 rows in at least {percent(good)}, and one whose ECE is .08 fails with 2,000 in "
        f"at least {percent(bad)}."
    )
    picture = Picture("checks that end in a wrong verdict, at the worst number of rows", lines, 0.025, True)
    return Section("The gate", text, "gate", picture, "Wrong verdicts of four models, all below the promised 2.5 %")


def monitor(record: Any) -> Section:
    false = [row for row in record["results"] if row["part"] == "false alarms"]
    seen = [row for row in record["results"] if row["part"] == "detection"]
    lines = {
        f"{'equal' if row['shape'] == 'one' else 'spread'} confidences, {row['reference']:,} reference, {row['good']:,} good before": {
            "labels": dot(row["labels"][1], row["labels"][0], row["labels"][2])
        }
        for row in seen
    }
    fresh, late = (max(row["labels"][1] for row in seen if bool(row["good"]) is after) for after in (False, True))
    text = (
        f"Of {sum(row['runs'] for row in false):,} monitors that each saw {false[0]['rows']:,} good rows, "
        f"{percent(sum(row['alarms'] for row in false) / sum(row['runs'] for row in false))} ever raised an "
        f"alarm; 5 % are promised. When "
        f"the accuracy falls by 5 points, the median alarm comes after {fresh:,.0f} labels at most, and after "
        f"{late:,.0f} where "
        "10,000 good rows came before."
    )
    picture = Picture("labels until the alarm: quartiles", lines)
    return Section("The alarm", text, "monitor", picture, "Labels until the alarm in eight settings")


def acs(record: Any) -> Section:
    lines = {
        f"{row['window']:,} rows, reference of {row['reference_rows']:,}": {
            "accuracy": dot(row["accuracy_covered"]),
            "log-loss": dot(row["loss_covered"]),
        }
        for row in record["windows"]
    }
    inside = sum(row["low"] <= row["accuracy"] <= row["high"] for row in record["years"] if row["calibrator"] != "none")
    total = sum(row["calibrator"] != "none" for row in record["years"])
    text = (
        "Census data of one state: a model and a reference of 2015, then windows of later years without labels. "
        "The accuracy that "
        f"the labels show lies in the 95 % interval in "
        f"{percent(min(row['accuracy_covered'] for row in record['windows']))} of the windows or more. Of the "
        f"intervals of "
        f"whole years {inside} of {total} hold it. No method without labels sees rows with the same scores that "
        f"are labelled otherwise."
    )
    picture = Picture("windows whose realised figure lies in the interval", lines, 0.95, True)
    return Section("Estimates without labels", text, "acs", picture, "Coverage of windows near 95 %")


def abstain(record: Any) -> Section:
    kept = [row for row in record["promise"] if row["rows"] in (200, 1000, 5000)]
    lines: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in kept:
        lines.setdefault(row["model"], {})[f"{row['rows']:,} rows"] = dot(row["broken"] / row["replicates"])
    most = max(row["broken"] / row["replicates"] for row in record["promise"])
    ours = {row["rows"]: row for row in record["promise"] if row["model"] == "calibrated"}
    text = (
        f"The promise: with 95 % confidence at most {percent(record['error'], 0)} of the answers are wrong. It "
        f"was broken in at most "
        f"{percent(most)} of {kept[0]['replicates']:,} simulations, for models of every kind. A calibrated model "
        f"answers "
        f"{percent(ours[1000]['answered'], 0)} of the rows after 1,000 labelled ones and "
        f"{percent(ours[5000]['answered'], 0)} after 5,000; with 200, "
        f"{percent(ours[200]['none'] / ours[200]['replicates'], 0)} of the rules do not answer at all."
    )
    picture = Picture("rules whose error exceeds the promised one", lines, 0.05, True)
    return Section("Abstention", text, "abstain", picture, "Broken promises of six models, all at or below 5 %")


def groups(record: Any) -> Section:
    fit = next(one for one in record["fits"] if one["period"] == 2016)
    methods = {"as it is": "as it is", "vector": "VectorScaling", "groups": "GroupScaling", "boosted": "BoostedScaling"}
    lines = {
        f"{period}, {name}": {"groups": dot(found[key]["flagged"])}
        for period, found in fit["figures"].items()
        if period != "2015"
        for key, name in methods.items()
        if key in found
    }
    first = fit["figures"]["2016, other half"]
    text = (
        f"Employment scores of {fit['fitted_on']:,} people, fitted on a half of 2016: of "
        f"{first['as it is']['groups']} groups of the other half "
        f"{first['as it is']['flagged']} are miscalibrated beyond chance, {first['vector']['flagged']} after "
        f"`VectorScaling`, {first['groups']['flagged']} after `GroupScaling` and "
        f"{first['boosted']['flagged']} after `BoostedScaling`. The ECE falls from "
        f"{percent(first['as it is']['ECE'], 2)} to {percent(first['groups']['ECE'], 2)}. In later years "
        "some groups drift again, which no earlier fit corrects: an audit has a date."
    )
    picture = Picture("groups flagged, of about fifty", lines)
    return Section("Groups and weights", text, "acs_groups WHEEL", picture, "Groups flagged by year and method")


def multicalibration(record: Any) -> Section:
    names = {"groups": "GroupScaling", "boosted": "BoostedScaling"}
    lines = {
        name: {names[key]: dot(*found["less MCGrad"][key]["NLL"]) for key in names}
        for name, found in record["sets"].items()
    }
    all_of = [value for line in lines.values() for value in line.values()]
    text = (
        "Log-loss less that of MCGrad 0.1.5 on the same rows: below 0 is better here. "
        f"Of {len(all_of)} comparisons {sum(high < 0 for _, _, high in all_of)} are significantly better, "
        f"{sum(low > 0 for _, low, _ in all_of)} significantly worse, and the "
        "others cannot be told apart."
    )
    picture = Picture("log-loss less MCGrad's, with 95 % interval", lines, 0.0)
    return Section(
        "Beside MCGrad", text, "multicalibration", picture, "Differences in log-loss with intervals on six sets"
    )


def coverage_lines(
    cells: list[Any], size: str, key: str, value: str
) -> dict[str, dict[str, tuple[float, float, float]]]:
    lines: dict[str, dict[str, tuple[float, float, float]]] = {}
    for count in sorted({cell[size] for cell in cells}):
        for name in cells[0][key]:
            found = [cell[key][name][value] for cell in cells if cell[size] == count and name in cell[key]]
            shown = [one for one in found if one is not None]
            line = lines.setdefault(name, {})
            line[f"{count:,} rows"] = dot(statistics.mean(shown), min(shown), max(shown))
    return lines


def weights(record: Any) -> Section:
    lines = coverage_lines(record, "effective", "metrics", "coverage")
    worst = min(low for line in lines.values() for _, low, _ in line.values())
    text = (
        f"95 % intervals of weighted rows over {len(record)} populations (effective sizes 100 to 10,000, weights "
        f"that depend on the "
        f"error or not): means of the coverage, and the least and most of any population. The worst population "
        f"has {percent(worst)}."
    )
    picture = Picture("coverage of 95 % intervals: mean, least, most", lines, 0.95, True)
    return Section("Intervals of weighted rows", text, "weights", picture, "Coverage of five metrics near 95 %")


def several(record: Any) -> Section:
    lines = coverage_lines(record, "n", "figures", "share")
    flagged = lines.pop("a label is flagged")
    worst = min(low for line in lines.values() for _, low, _ in line.values())
    text = (
        f"{len(record)} populations of several labels: frequencies .3 to .005, dependent or not, a third "
        f"missing, weights, groups of four. "
        f"Every interval covers in {percent(worst, 0)} of the samples or more (100 a population). Of calibrated "
        f"models "
        f"{percent(max(value for value, _, _ in flagged.values()))} have any label flagged; 5 % are meant."
    )
    picture = Picture("coverage of 95 % intervals: mean, least, most", lines, 0.95, True)
    return Section("Several labels", text, "label_coverage", picture, "Coverage of nine figures near 95 %")


def language(record: Any) -> Section:
    lines = {
        f"{what}, {row['method']}": {"ECE": dot(row["ece"]), "97.5 % limit if calibrated": dot(row["ece_limit"])}
        for what, part in (("reviews", "sentiment"), ("next word", "words"))
        for row in record[part]["results"]
    }
    asked = record["sentiment"]
    none, temperature, *_ = asked["results"]
    text = (
        f"SmolLM2-135M rates {asked['asked']} reviews by one of two words; {percent(asked['other_mass'][0])} of "
        f"the probability lies on other tokens, and in "
        f"{asked['asked'] - sum(asked['rows'])} answers a word is missing. One temperature brings the log-loss "
        f"from {none['nll']:.3f} to "
        f"{temperature['nll']:.3f} and the ECE from {percent(none['ece'])} to {percent(temperature['ece'])}. "
        f"With {asked['rows'][0]} rows to fit on, the simplest map does best: isotonic "
        "regression of next words ends above its limit."
    )
    picture = Picture("ECE", lines, None, True)
    return Section("A small language model", text, "language", picture, "ECE and limits of seven methods")


def tokens(record: Any) -> Section:
    rows = {row["method"]: row for row in record["results"]}
    lines = {
        name: {"over all": dot(row["ece"]), "by class and position": dot(row["group_error"])}
        for name, row in rows.items()
    }
    one, best = rows["one temperature"], rows["temperature and top bias by all four"]
    text = (
        f"The same model at {sum(record['rows']):,} places, {record['classes']:,} classes: of "
        f"{record['logits_mib']:,} MiB of logits none was in memory, the process "
        f"took {record['peak_mib']} MiB. One temperature suffices on average. Within classes of tokens "
        f"`AdaptiveTemperatureScaling` brings the gap from "
        f"{percent(one['group_error'])} to {percent(best['group_error'])}, and the log-loss down by "
        f"{-best['versus'][0]:.4f}."
    )
    picture = Picture("calibration error", lines, None, True)
    return Section(
        "Every token",
        text,
        "language.tokens",
        picture,
        "Calibration error over all and within groups, of eight methods",
    )


def held_out(record: Any, use: Any) -> Section:
    again = use["gain"]["all"]
    low, high = again["interval"]
    sizes = record["parts"]["judged"]["all"]
    names = ("TemperatureScaling", "StructuredMatrixScaling", "AutoCalibrator", "AutoCalibrator, decision kept")
    lines = {
        f"n = {size}": {
            name: dot(found[name]["loss"]) for name in names if name in found and found[name]["loss"] < 0.95
        }
        for size, found in sizes.items()
    }
    below = [1 - found["AutoCalibrator"]["loss"] / found["StructuredMatrixScaling"]["loss"] for found in sizes.values()]
    harmed = max(found["AutoCalibrator"]["harmed"] for found in sizes.values())
    text = (
        f"Its constants were fixed on half of 44 real sets; on the {len(record['parts']['judged']['sets'])} others the mean log-loss is "
        f"{percent(min(below))} to {percent(max(below))} below that of `StructuredMatrixScaling`, the best single method (aims: 2.2, 2.4 "
        f"and 1.7 % at 100, 300 and 1,000 rows); at most {percent(harmed)} of the draws are harmed. So version 0.1.0: today's saves "
        f"{again['times']:.3f} ({low:.3f} to {high:.3f}) times as much on all 44, at 100 rows "
        f"{use['gain']['by_size']['100']['times']:.3f} times, since absent classes keep their odds."
    )
    picture = Picture("mean test log-loss (none: 0.879; a temperature on 100 rows is out of the picture)", lines)
    return Section(
        "AutoCalibrator on sets that it was not chosen on",
        text,
        "auto",
        picture,
        "Mean log-loss of four methods by rows",
    )


def harm(record: Any, single: Any) -> Section:
    found, kinds = record["harm"]["settings"], ("two classes", "four classes", "ten classes")
    lines = {
        name: {
            kind: dot(
                statistics.mean(one["beyond_1"] for cell, one in setting["cells"].items() if cell.startswith(kind))
            )
            for kind in kinds
        }
        for name, setting in found.items()
    }
    mean, beyond, far, most = (
        max(one[key] for one in found.values()) for key in ("mean", "beyond_1", "quantile_99", "most")
    )
    cell, worst = max(
        (
            (f"{name}, {cell}", one["beyond_1"])
            for name, setting in found.items()
            for cell, one in setting["cells"].items()
        ),
        key=lambda one: one[1],
    )
    matrix = max(
        sizes[size]["StructuredMatrixScaling"]["harmed"]
        for sizes in single["parts"]["calibrated"]["sets"].values()
        for size in sizes
    )
    text = (
        "Models that are calibrated already, with groups that are fair, can only be harmed. "
        f"{record['harm']['draws']} draws of 50, 100, 300 and 1,000 rows with two, four and ten classes: by setting, the log-loss of "
        f"fresh rows rises by {percent(mean, 2)} on average at most, by more than 1 % in {percent(beyond)} of the draws at most "
        f"(worst cell {percent(worst)}: {cell}), and in 99 of 100 draws by less than {percent(far)}; once by {percent(most, 0)}. "
        f"`StructuredMatrixScaling` alone harms up to {percent(matrix, 0)}."
    )
    return Section(
        "Do no harm",
        text,
        "use harm",
        Picture("draws more than 1 % worse", lines, 0.05, True),
        "Harm of eight settings on three populations",
    )


def peers(record: Any) -> Section:
    rows = [row for row in beside_probmetrics.summary(record["sets"]) if row["relative"] is not None]
    rows = sorted(rows, key=lambda row: row["rank"])[:14]
    lines = {row["method"]: {"log-loss": dot(row["relative"])} for row in rows}
    first = min(row["relative"] for row in rows if row["method"] != "AutoCalibrator")
    # an interval of 95 % is 3.92 standard errors long
    cases = [
        case for found in record["sets"].values() for case in found["methods"].values() if case.get("high") is not None
    ]
    errors = [(case["difference"], (case["high"] - case["low"]) / 3.92) for case in cases]
    ahead = beyond_chance([below_zero(gap / error) for gap, error in errors if error > 0])
    text = (
        f"The calibrators of probmetrics 1.3.0 and ours, each with its defaults, on {len(record['sets'])} of the "
        f"44 sets. `AutoCalibrator` has the best mean "
        f"rank, {rows[0]['rank']:.1f}; the next lowest mean log-loss is {percent(first)} higher. What both "
        f"libraries have agrees within .1 %. Of {len(cases):,} comparisons on single sets, a rival is ahead beyond chance (Holm) "
        f"in {ahead}. Half of these sets fixed its constants. Shown are the fourteen best ranks."
    )
    picture = Picture("mean log-loss relative to AutoCalibrator", lines, 0.0, True)
    return Section("Beside probmetrics", text, "beside_probmetrics", picture, "Relative log-loss of fourteen methods")


def top_label(record: Any) -> Section:
    halves = record["halves"]["judged"]
    lines = {
        f"n = {size}, {name}": {"ECE": dot(found["ece"])}
        for size, part in halves.items()
        for name, found in part.items()
    }
    large, small = halves["1000"], halves["300"]
    name = "AutoCalibrator, top label"
    text = (
        f"`AutoCalibrator(top_label=True)` corrects the decision's confidence after the pool: its ECE is "
        f"{percent(large[name]['ece'], 2)} with 1,000 rows and "
        f"{percent(small[name]['ece'], 2)} with 300, beside {percent(large['AutoCalibrator']['ece'], 2)} and "
        f"{percent(small['AutoCalibrator']['ece'], 2)} of the pool and "
        f"{percent(large['HistogramBinning']['ece'], 2)} and {percent(small['HistogramBinning']['ece'], 2)} of "
        f"histogram binning. Over sets only the last difference at 300 rows is "
        f"beyond chance. The log-loss is {large[name]['log_loss']:.4f} beside "
        f"{large['AutoCalibrator']['log_loss']:.4f} of the pool."
    )
    picture = Picture("ECE of the decision's confidence, mean over 22 sets", lines, None, True)
    return Section("The decision's confidence", text, "top_label", picture, "ECE of four methods at two sizes")


def criterion(record: Any) -> Section:
    sets = record["sets"]
    names = {
        "ece_mass": "none",
        "ece_mass_at_t": "temperature, by log-loss",
        "ece_mass_by_mass": "temperature, by ECE",
        "ece_mass_focal_by_mass": "focal temperature, by ECE",
    }
    mean = {key: statistics.mean(one[key] for one in sets) for key in (*names, "nll_at_t", "nll_focal")}
    lower = sum(one["nll_focal"] < one["nll_at_t"] for one in sets)
    text = (
        f"Equal-mass ECE, mean over {len(sets)} sets: {percent(mean['ece_mass_at_t'], 2)} after a temperature chosen by log-loss, "
        f"{percent(mean['ece_mass_by_mass'], 2)} chosen by ECE, {percent(mean['ece_mass_focal_by_mass'], 2)} with focal temperature "
        f"scaling. By log-loss focal temperature scaling gives {mean['nll_focal']:.4f} beside {mean['nll_at_t']:.4f}, lower on {lower} "
        "sets."
    )
    picture = Picture("mean equal-mass ECE", {name: {"ECE": dot(mean[key])} for key, name in names.items()}, None, True)
    return Section(
        "By log-loss or by calibration error", text, "posthoc", picture, "Mean ECE by the criterion of the choice"
    )


def decisions(record: Any) -> Section:
    loss, kept, absent = record["keep"]["mean_loss"], record["keep"], record["absent"]
    lines = {f"{name}": {"log-loss": dot(value)} for name, value in loss.items()}
    text = (
        f"Mean log-loss, 42 real sets of at most 20 classes: {loss['free']:.3f} free, "
        f"{loss['argmax']:.3f} with the decision kept, {loss['order']:.3f} with the ranking kept, and "
        f"{loss['members that keep it']:.3f} where only methods that keep it are tried. Where fewer than 5 % of "
        f"decisions change ({kept['sets_where_few_change']} sets) the ECE is "
        f"{percent(kept['ece_where_few_change']['argmax'], 2)} kept and "
        f"{percent(kept['ece_where_few_change']['free'], 2)} free. Without rows of 3 in 10 classes: at most 1 % above "
        f"a temperature in {absent['within']} of {absent['draws']} draws."
    )
    return Section(
        "Keeping the decision",
        text,
        "use",
        Picture("mean test log-loss", lines),
        "Mean log-loss of four ways to keep the decision",
    )


def given_costs(record: Any) -> Section:
    cells, vector, paid = record["costs"]["cells"], record["canonical"]["cells"], record["realised"]
    fair = [cell for cell in cells if cell["sharpness"] == 1]
    off = [cell for cell in cells if cell["sharpness"] > 1]
    names = {"rejected": "t test", "rejected_kuiper": "Kuiper test", "rejected_knowing_the_variance": "variance known"}
    lines = {
        f"{classes} classes, costs {percent(statistics.mean(cell['gap'] for cell in group), 0)} off": {
            name: dot(statistics.mean(cell[key] for cell in group)) for key, name in names.items()
        }
        for classes in (3, 10)
        for sharpness in sorted({cell["sharpness"] for cell in cells})
        if (group := [cell for cell in cells if (cell["classes"], cell["sharpness"]) == (classes, sharpness)])
    }
    apart = max(abs(cell["rejected_knowing_the_variance"] - cell["rejected"]) for cell in off)
    low, high = paid["interval"]
    text = (
        f"2,000 rows: of calibrated models {percent(statistics.mean(cell['rejected'] for cell in fair))} have their costs rejected "
        f"(5 % meant); where costs are off, the power is within {percent(apart)} of a test that knows the variance. The "
        f"lower end of `CanonicalError` is below the truth in {percent(min(cell['covered'] for cell in vector), 0)} of the samples or "
        f"more. `AutoCalibrator(costs=…)`, on 1,000 rows, changes the realised cost by {100 * paid['mean_change']:+.4f} % "
        f"({100 * low:+.3f} to {100 * high:+.3f}; {paid['pairs']:,} cases, half with a person to ask), "
        f"beyond chance dearer in {paid['dearer_after_holm']}: the free answer serves all costs."
    )
    picture = Picture("samples in which costs are said to be off", lines, 0.05, True)
    return Section("Given costs", text, "use", picture, "How often three tests see costs that are off, at four sizes")


def forests(record: Any) -> Section:
    lines = {
        f"{found['data']}, {found['rows']} rows": {
            name: dot(statistics.mean(values)) for name, values in found["log_loss"].items()
        }
        for found in record["data_sets"]
    }
    pairs = [
        pair
        for found in record["data_sets"]
        for pair in zip(found["log_loss"]["default"], found["log_loss"]["sigmoid"], strict=True)
    ]
    text = (
        f"Forests of {record['trees']} trees on five data sets of scikit-learn, 20 splits each. The default of "
        f"`CalibratedClassifier` has a lower mean log-loss than the forest and than "
        f"scikit-learn's sigmoid on all five, and than the sigmoid in "
        f"{sum(ours < theirs for ours, theirs in pairs)} of {len(pairs)} splits. Its prior was chosen on other "
        f"splits."
    )
    return Section(
        "Forests", text, "forests", Picture("mean test log-loss", lines), "Log-loss of three ways on five data sets"
    )


def wild(record: Any) -> Section:
    sets = record["sets"]
    keys = {"none": "as it is", AUTO: "AutoCalibrator", TOP: "with top_label=True"}
    lines = {
        f"{name}: {found['what']}": {
            label: dot(found["methods"][key]["ece"]) for key, label in keys.items() if key in found["methods"]
        }
        for name, found in sets.items()
    }
    below = sum(found["methods"][TOP]["ece"] < found["methods"][TOP]["null_high"] for found in sets.values())
    text = (
        f"{len(sets)} classifiers that package registries carry, on data that they were not made from, with "
        f"{min(one['val'] for one in sets.values())} to "
        f"{max(one['val'] for one in sets.values()):,} labelled rows to fit on. `AutoCalibrator(top_label=True)` "
        f"ends below the limit of a calibrated model on {below} of {len(sets)}; the pool alone is too sure where "
        "classes are many. Exact zeros at the true label make some log-losses infinite, and both repair them."
    )
    return Section(
        "Deployed classifiers",
        text,
        "wild",
        Picture("ECE", lines, None, True),
        "ECE of eight packages before and after",
    )


def streams(one: Any, two: Any) -> Section:
    runs = {"one process": one, f"Ray, {two['workers']} workers, one killed": two}
    lines = {name: {"seconds": dot(run["seconds_evaluate"])} for name, run in runs.items()}
    same = "the same figures to the last bit" if one["figures"] == two["figures"] else "different figures"
    text = (
        f"{one['rows']:,} rows × {one['classes']} classes, {one['bytes'] / 2**30:.1f} GiB of Parquet on two "
        f"shared cores: {one['seconds_evaluate']:.0f} s and "
        f"{one['peak_mib_after_import']} MiB beyond the imports in one process. With a worker killed half way, "
        f"Ray took {two['seconds_evaluate']:.0f} s. Both give {same}."
    )
    return Section(
        "Streams", text, "streaming --rows 100000000", Picture("seconds to evaluate", lines, 0.0), "Seconds of two runs"
    )


BUILDERS: tuple[tuple[str, Callable[..., Section], tuple[str, ...]], ...] = (
    ("held-out", held_out, ("auto", "use")),
    ("harm", harm, ("use", "auto")),
    ("probmetrics", peers, ("probmetrics",)),
    ("wild", wild, ("wild",)),
    ("top-label", top_label, ("top-label",)),
    ("keep", decisions, ("use",)),
    ("costs", given_costs, ("use",)),
    ("criterion", criterion, ("posthoc",)),
    ("forests", forests, ("forests",)),
    ("groups", groups, ("acs-groups",)),
    ("mcgrad", multicalibration, ("multicalibration",)),
    ("gate", gate, ("gate",)),
    ("alarm", monitor, ("monitor",)),
    ("estimate", acs, ("acs",)),
    ("abstain", abstain, ("abstain",)),
    ("weights", weights, ("weights",)),
    ("several-labels", several, ("multilabel-coverage",)),
    ("language", language, ("language",)),
    ("tokens", tokens, ("tokens",)),
    ("streams", streams, ("streaming-1e8", "streaming-1e8-ray")),
)


def sections() -> dict[str, Section]:
    """Return each section, built from its records."""
    return {
        name: build(*(json.loads((RECORDS / f"{record}.json").read_text()) for record in records))
        for name, build, records in BUILDERS
    }


def page(found: dict[str, Section]) -> str:
    """Return the appendix."""
    parts = [HEAD]
    for (name, section), (_, _, records) in zip(found.items(), BUILDERS, strict=True):
        source = ", ".join(f"`{record}.json`" for record in records)
        parts.append(
            f"\n## {section.title}\n\n![{section.alt}](images/evidence/{name}.svg)\n\n{section.text}\n"
            f"\n*`python -m benchmarks.{section.command}`, {source}*\n"
        )
    return "".join(parts)


def main() -> None:
    """Write the page and its pictures, whose bytes are the same at each run."""
    PICTURES.mkdir(exist_ok=True)
    found = sections()
    with mpl.rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "none"}):
        for name, section in found.items():
            section.picture.figure().savefig(PICTURES / f"{name}.svg", metadata={"Date": None, "Creator": None})
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
