"""Make the page of results from the committed records of studies: the index of claims, the regime figure, every table.

python -m benchmarks.results docs/results            # writes docs/results/index.md and two of its figures
python -m benchmarks.results docs/results --check    # says whether the page is what the records give
"""

import html
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.study import Study, load_study
from calibrant.study.claims import (
    ClaimLine,
    Gain,
    Threshold,
    claim_index,
    focal_gains,
    focal_threshold,
    places,
    read_records,
)
from calibrant.study.measures import MEASURES
from calibrant.study.tables import verdict_of

Record = Mapping[str, Any]
GAMMA = 3.0  # whose gain the sentences are about
BOUNDED = 20.0  # a temperature beyond which an interval is said to have no end
FIGURE = "figures/when-focal-helps.svg"
CLAIMS_FIGURE = "figures/claims.svg"
MARKS = {
    "shows": ("o", "#009E73"),
    "shows in part": ("D", "#56B4E9"),
    "shows the opposite": ("X", "#D55E00"),
    "no effect above the margin": ("s", "#0072B2"),
    "not told apart": ("_", "#888888"),
    "not comparable": ("|", "#BBBBBB"),
}
COLUMNS = ("error", "ece", "ece_at_t", "temperature", "ece_by_ece", "temperature_by_ece")
INTRO = """# Results of the studies

`python -m benchmarks.results docs/results` makes every table, verdict and figure of this page from the records in the same folder
(`docs/results/*.json`: figures of every seed, recipe, provenance). Nothing was tuned on test data.

**Verdicts.** Each claim is tested by the paper's own measure: after temperature scaling, T is chosen by ECE as Mukhoti et al.
and Wang et al. chose it, and Komisarenko & Kull's errors have bins of equal mass. The first objective of a claim is compared
with the last: over seeds by a paired t-test, over sets of logits by exact sign changes of the means of eight clusters (models
of one data set share its test rows), so that such a verdict holds beyond one test set. p-values are adjusted after Benjamini
and Hochberg over the distinct comparisons; an adjusted p below .05 gives *shows* or *shows the opposite* (*in part*: the order
between first and last is another). *No effect above the margin*: two one-sided tests place the effect within a margin that is
committed with the claim (half of the middle effect of the paper's own rows, at most one point of a fraction; stated where
nothing is printed), adjusted in the same way among themselves. *Not told apart* carries the effect that as many units would
have shown with probability .8. *Not comparable*: a test error above 65 %, or test errors further apart than the claim allows (5
points; 15 for Wang et al., whose own differ by 13.7). On 20 Newsgroups the coefficients are those that Wang et al. chose (focal
γ = 5, smoothing .09).
`calibrant study claims --json` prints the index.

The papers used larger data sets and networks, so compare orderings, not values. Nothing was run at paper scale.
`calibrant study describe NAME` lists the differences between the papers and their authors' code, and its defects;
[Studies](../studies.md) explains them.

**Set after these runs.** Margins were derived anew on 2026-11-23, before any run on frozen features; guards were left as they
were. Both were written when the other records below were known, for which they are not preregistered. The limit on the test
error was first 60 % and was raised to 65 % after it had split the objectives of the interpolated CIFAR-10 (57 to 61 %); with 60
% six fewer lines are compared, three of which read *shows*.
"""


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    folder = Path(arguments[0])
    page = page_of(folder)
    if "--check" in arguments:
        same = (folder / "index.md").read_text(encoding="utf-8") == page
        print("the page is what the records give" if same else "the page is not what the records give: make it again")
        return 0 if same else 1
    (folder / "index.md").write_text(page, encoding="utf-8")
    draw(focal_gains(records_of(folder)), folder / FIGURE)
    draw_claims(claim_index(read_records(folder)), folder / CLAIMS_FIGURE)
    return 0


def records_of(folder: Path) -> dict[str, Record]:
    """Return the records of studies in a folder, by the name of their file."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {name: record for name, record in found.items() if isinstance(record, dict) and "objectives" in record}


def page_of(folder: Path) -> str:
    """Return the page as Markdown with HTML tables."""
    records = records_of(folder)
    notes = tomllib.loads((folder / "notes.toml").read_text(encoding="utf-8"))["sections"]
    parts = [INTRO, _claims(claim_index(read_records(folder))), _regime(focal_gains(records))]
    parts += [_section(note, records[note["record"]]) for note in notes if note["record"] in records]
    return "\n".join(parts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; cells are escaped."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"


def shown(measure: str, value: float) -> str:
    """Return a value as people read it, with its unit."""
    return MEASURES[measure].shown(value) + (" %" if MEASURES[measure].percent else "")


def _claims(lines: Sequence[ClaimLine]) -> str:
    rows = []
    for claim, paper, place in dict.fromkeys((line.claim, line.paper, line.place) for line in lines):
        mine = [line for line in lines if (line.claim, line.paper, line.place) == (claim, paper, place)]
        first = (claim, f"{paper}, {place}")
        for line in mine:
            if line.verdict == "not run":
                continue
            p = "" if line.p_adjusted is None else f"{line.p_adjusted:.2g} ({line.seeds})"
            verdict = f"{line.verdict} ({line.note})" if line.note else line.verdict
            rows.append(
                [
                    *first,
                    line.data,
                    verdict,
                    p,
                    _effect(line, line.effect),
                    _effect(line, line.detectable),
                    _means(line),
                ]
            )
            first = ("", "")
        missing = [line for line in mine if line.verdict == "not run"]
        if missing:
            commands = "; ".join(dict.fromkeys(line.command for line in missing))
            rows.append([*first, "; ".join(line.data for line in missing), "not run", "", "", "", commands])
    counts = {name: sum(line.verdict == name for line in lines) for name in sorted({line.verdict for line in lines})}
    total = ", ".join(f"{name}: {count}" for name, count in counts.items())
    header = [
        "claim", "paper", "data", "verdict", "adjusted p (seeds or sets)", "effect", "detectable", "means, or the command"
    ]  # fmt: skip
    picture = f"![verdict on each claim by data set]({CLAIMS_FIGURE})"
    return f"## Index of claims\n\n{len(lines)} lines. {total}.\n\n{picture}\n\n{table(header, rows)}"


def _effect(line: ClaimLine, value: float | None) -> str:
    if value is None:
        return ""
    percent = MEASURES[line.measure.split(" → ")[0]].percent
    return f"{100 * value:.2f} points" if percent else f"{value:.3f}"


def _means(line: ClaimLine) -> str:
    measures = line.measure.split(" → ")
    if len(measures) == 1:
        return ", ".join(f"{name} {shown(measures[0], value)}" for name, value in line.values)
    return ", ".join(
        f"{MEASURES[name].label} {shown(name, value)}" for name, (_, value) in zip(measures, line.values, strict=False)
    )


def _regime(gains: Sequence[Gain]) -> str:
    raw, after = focal_threshold(gains, gamma=GAMMA), focal_threshold(gains, gamma=GAMMA, after=True)
    rows = [
        [g.data, f"{g.gamma:g}", str(g.seeds), f"{g.temperature:.2f}", _points(g.raw), _points(g.after)]
        for g in sorted(gains, key=lambda g: (g.gamma, g.temperature))
    ]
    header = ["data", "γ", "seeds", "T of cross-entropy", "gain in raw ECE, points", "gain in ECE at T, points"]
    return (
        "## When does focal loss help?\n\n"
        "The gain of focal loss is the ECE of cross-entropy minus that of focal loss with the same seed, in percentage points.\n"
        "The best temperature T of cross-entropy measures its overconfidence. Brackets: 95 % t-interval over seeds.\n\n"
        f"{_sentence(raw, gains, 'before calibration')} {_sentence(after, gains, 'after temperature scaling of both')}\n\n"
        f"![gain of focal loss against cross-entropy's best temperature]({FIGURE})\n\n{table(header, rows)}"
    )


def _sentence(found: Threshold, gains: Sequence[Gain], when: str) -> str:
    seen = sorted(gain.temperature for gain in gains if gain.gamma == GAMMA)
    if not seen:
        return f"For γ = {GAMMA:g}, {when}, nothing was run."
    line = f"For γ = {GAMMA:g}, {when}, the least-squares line over {found.sets} data sets (T from {seen[0]:.2f} to {seen[-1]:.2f})"
    if not seen[0] <= found.temperature <= seen[-1]:
        return f"{line} does not cross zero within these temperatures: there is no T above which focal loss helps."
    high = f"to {found.high:.2f}" if found.high < BOUNDED else "without an upper end"
    return (
        f"{line} crosses zero at T = {found.temperature:.2f} (95 % interval over resampled data sets: from {found.low:.2f} "
        f"{high}). This is a tendency over few data sets, not a rule{_against(found, gains, when)}."
    )


def _against(found: Threshold, gains: Sequence[Gain], when: str) -> str:
    """Return the data sets whose gain has another sign than the line says."""
    name = "raw" if when == "before calibration" else "after"
    against = [
        f"{gain.data} (T {gain.temperature:.2f}, gain {100 * getattr(gain, name)[0]:+.2f})"
        for gain in gains
        if gain.gamma == GAMMA and (gain.temperature > found.temperature) != (getattr(gain, name)[0] > 0)
    ]
    return f"; against it: {', '.join(against)}" if against else ""


def _points(value: tuple[float, float, float]) -> str:
    mean, low, high = (100 * number for number in value)
    return f"{mean:+.2f}" if math.isnan(low) else f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _section(note: Mapping[str, Any], record: Record) -> str:
    made = record["provenance"]
    versions = made.get("versions", {})
    where = ", ".join(filter(None, [f"torch {versions.get('torch', '?')}", *made.get("devices", [])]))
    parts = [f"## {note['title']}\n"]
    if note["note"]:
        parts.append(f"{note['note']}\n")
    commit = f", commit {made['commit']}" if made.get("commit") else ""
    parts.append(
        f"`{note['command']}`; {where}, {made['seconds']:,.0f} s of training in all{commit}; record `{note['record']}.json`.\n"
    )
    study = _study_of(record)
    parts.append(_figures(record, study))
    parts += _verdicts(record, study)
    parts += [f"![{name}](figures/{name}.svg)\n" for name in note.get("figures", ())]
    return "\n".join(parts)


def _study_of(record: Record) -> Study | None:
    name = str(record["study"]).removesuffix("-30-epochs")
    return load_study(name, scale=None)


def _figures(record: Record, study: Study | None) -> str:
    """Return our figures, each with its interval over seeds, and the papers' beside them."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in record["figures"]:
        groups.setdefault((row["setting"], row["objective"]), []).append(row)
    several = len({setting for setting, _ in groups}) > 1
    like = {s["label"]: s.get("like") or s["label"] for s in record["recipe"]["settings"]}
    printed: dict[tuple[str, str, str], float] = {}
    for figure in study.published if study is not None else ():
        printed[figure.setting, figure.objective, figure.measure] = figure.value
    columns = [m for m in COLUMNS if any(m in row for row in record["figures"])]
    rows = []
    for (setting, objective), items in groups.items():
        cells = [*([setting] if several else []), objective, str(len(items)), f"{items[0]['n']:,}"]
        for measure in columns:
            ours = _ours(measure, [row[measure] for row in items if measure in row])
            places = (setting, like.get(setting, setting), "")
            paper = next((printed[p, objective, measure] for p in places if (p, objective, measure) in printed), None)
            cells.append(ours if paper is None else f"{ours} (paper {shown(measure, paper)})")
        rows.append(cells)
    header = [*(["setting"] if several else []), "objective", "seeds", "n", *(MEASURES[m].label for m in columns)]
    return table(header, rows)


def _ours(measure: str, values: Sequence[float]) -> str:
    from scipy.stats import t

    if not values:
        return "–"
    mean = float(np.mean(values))
    if len(values) < 2:
        return shown(measure, mean)
    half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    low = mean - half if MEASURES[measure].percent is False else max(0.0, mean - half)
    return f"{shown(measure, mean)} [{MEASURES[measure].shown(low)}, {MEASURES[measure].shown(mean + half)}]"


def _verdicts(record: Record, study: Study | None) -> list[str]:
    """Return a paragraph for each claim of the study that the record can answer."""
    said = []
    settings = list(dict.fromkeys(row["setting"] for row in record["figures"]))
    for claim in study.claims if study is not None else ():
        for setting in (s for s in settings if s not in claim.but):
            by_seed = [
                {
                    row["seed"]: row[claim.measure]
                    for row in record["figures"]
                    if (row["setting"], row["objective"]) == (setting, name) and claim.measure in row
                }
                for name in claim.falls
            ]
            found = verdict_of(claim, setting, by_seed)
            if found.seen is None:
                continue
            means = ", ".join(
                f"{name} {shown(claim.measure, v)}" for name, v in zip(claim.falls, found.values, strict=True)
            )
            sure = f"p = {found.p:.2g} over {found.seeds} seeds" if found.p is not None else "one seed"
            place = f" [{setting}]" if len(settings) > 1 else ""
            said.append(
                f"**{found.outcome.capitalize()}**{place}: {claim.text} ({claim.source}). "
                f"{MEASURES[claim.measure].label}: {means}; {sure}.\n"
            )
    return said


def draw_claims(lines: Sequence[ClaimLine], path: Path) -> None:
    """Draw the verdict on each claim (rows) by data set (columns)."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    tested = [line for line in lines if line.verdict in MARKS and line.data != "theory"]
    claims = list(dict.fromkeys((line.claim, line.paper) for line in tested))
    columns = [place.name for place in places()]
    with mpl.rc_context({"svg.hashsalt": "calibrant", "font.size": 7}):
        figure = Figure(figsize=(9, 1.5 + 0.17 * len(claims)), layout="constrained")
        ax = figure.subplots()
        for verdict, (marker, colour) in MARKS.items():
            mine = [line for line in tested if line.verdict == verdict]
            x = [columns.index(line.data) for line in mine]
            y = [claims.index((line.claim, line.paper)) for line in mine]
            ax.scatter(x, y, marker=marker, color=colour, label=verdict, s=24)
        ax.set_xticks(range(len(columns)), columns, rotation=30, ha="left")
        ax.xaxis.tick_top()
        ax.set_yticks(range(len(claims)), [f"{text} · {paper.split()[0]}" for text, paper in claims])
        ax.set_ylim(len(claims) - 0.5, -0.5)
        ax.grid(color="#EEEEEE", linewidth=0.5)
        ax.set_axisbelow(True)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def draw(gains: Sequence[Gain], path: Path) -> None:
    """Draw the gain over cross-entropy's temperature: before calibration, and at T."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    marks = {
        1.0: ("o", "#0072B2"),
        2.0: ("s", "#E69F00"),
        3.0: ("D", "#D55E00"),
        5.0: ("^", "#009E73"),
        7.0: ("v", "#CC79A7"),
    }
    with mpl.rc_context({"svg.hashsalt": "calibrant", "font.size": 9}):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, name, title in zip(
            axes, ("raw", "after"), ("before calibration", "each at its own temperature"), strict=True
        ):
            ax.axhline(0, color="#888888", linewidth=0.8)
            for gamma in sorted({gain.gamma for gain in gains}):
                marker, colour = marks.get(gamma, ("x", "#333333"))
                for index, gain in enumerate(g for g in gains if g.gamma == gamma):
                    mean, low, high = (100 * value for value in getattr(gain, name))
                    place = gain.temperature * (1 + 0.004 * (gamma - 3))
                    if not math.isnan(low):
                        ax.plot([place, place], [low, high], color=colour, linewidth=1)
                    face = "none" if math.isnan(low) else colour
                    label = f"γ = {gamma:g}" if index == 0 else None
                    ax.plot(
                        [place],
                        [mean],
                        marker=marker,
                        color=colour,
                        markerfacecolor=face,
                        linestyle="none",
                        label=label,
                    )
            ax.set_xscale("log")
            ticks = [1.2, 1.5, 2, 2.5, 3, 4]
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
            ax.set_xlabel("best temperature of cross-entropy")
            ax.set_title(f"Gain of focal loss, {title}", fontsize=9)
        axes[0].set_ylabel("ECE of cross-entropy less focal, points")
        axes[0].legend(frameon=False, title="hollow: one seed")
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
