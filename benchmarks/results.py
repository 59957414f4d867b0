"""Make from the committed records the page of results, the table of all claims, and the figures that the package's index rests on.

python -m benchmarks.results docs/results            # writes index.md, claims.html and three figures there, and the figures
python -m benchmarks.results docs/results --check    # says whether they are what the records give
"""

import html
import json
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from calibrant.study.claims import (
    DECIDED,
    ROWS,
    UNFAITHFUL,
    ClaimLine,
    Faithful,
    Gain,
    Place,
    Threshold,
    claim_index,
    faithfulness,
    focal_gains,
    focal_threshold,
    paper_claims,
    places,
    read_records,
)  # fmt: skip
from calibrant.study.measures import DERIVED, MEASURES

Record = Mapping[str, Any]
Numbered = Sequence[tuple[int, Sequence[ClaimLine]]]  # each claim's lines, with its number
TARGET = Path(__file__).parents[1] / "src" / "calibrant" / "study" / "claims" / "records.json"
ALWAYS = (
    "setting",
    "objective",
    "set",
    "cluster",
    "seed",
    "seconds",
    "error",
)  # what every comparison and its guard need
GAMMA = 3.0  # whose gain the sentences are about
BOUNDED = 20.0  # a temperature beyond which an interval is said to have no end
FIGURE, CLAIMS_FIGURE, LEADING_FIGURE = (f"figures/{name}.svg" for name in ("when-focal-helps", "claims", "leading"))
MARKS = {
    "shows": ("o", "#00845E"),
    "shows in part": ("D", "#7B5EA7"),
    "shows the opposite": ("X", "#D55E00"),
    "no effect above the margin": ("s", "#0072B2"),
    "not told apart": ("_", "#767676"),
    "not comparable": ("|", "#767676"),
    "not run": (".", "#949494"),
}
GAMMAS = {
    1.0: ("o", "#0072B2"),
    2.0: ("s", "#9A6A00"),
    3.0: ("D", "#D55E00"),
    5.0: ("^", "#00845E"),
    7.0: ("v", "#AA4480"),
}
CROSS = ("error", "ece", "temperature")  # of cross-entropy, shown of every record
LEADING = 10
FOLD, FOLD_END = (
    '<details markdown="1"><summary>{}</summary>',
    "</details>",
)  # around Markdown; the tables fold themselves
CLAIMS = "claims.html"
CLAIM_HEAD = ["data", "verdict", "effect", "95 %", "would be seen", "adjusted p", "units", "note"]
SMALL = "smaller than the margin"
THESE = "of these test rows"
VERBS = {
    "shows": "It shows",
    "shows in part": "It shows in part",
    "shows the opposite": "The opposite shows",
    "no effect above the margin": "There is no effect above the margin",
    "not told apart": "It is not told apart",
    "not comparable": "It is not comparable",
    "not run": "It was not run",
}
# A row is shown if it, its claim and its paper have every part between commas; what is after "#" in the address is sought at once.
CLAIMS_TOP = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Claims of the papers</title><style>
body{font:15px/1.4 system-ui,sans-serif;margin:1rem auto;max-width:75rem;padding:0 1rem}
input{font:inherit;width:100%;padding:.4rem;box-sizing:border-box}
table{border-collapse:collapse;display:block;overflow-x:auto}td:not(:first-child,:last-child){white-space:nowrap}
td:last-child{min-width:15rem}td{padding:.1rem .6rem;border-top:1px solid #8883;vertical-align:top}
tbody th{text-align:left;font-weight:400;padding:.8rem .6rem .2rem}summary{font-weight:700}
details{max-width:min(70rem,calc(100vw - 4rem))}[hidden]{display:none}
thead th{text-align:left;padding:0 .6rem;position:sticky;top:0;background:Canvas}
</style><h1>Claims of the papers</h1><p><a href="index.html">Results of the studies</a>: how verdicts are reached. Effects are
first minus last, with 95 % intervals: percentage points of errors, temperatures and log-losses as they are. "Would be seen": found with
probability .8. ± is the margin; * a margin set before the first runs there; † a verdict on the rows tested: others are not counted.</p>
<input placeholder="Filter: shows the opposite, digits, Table 2, Wang …" aria-label="filter the rows"><script>
addEventListener("DOMContentLoaded",()=>{const i=document.querySelector("input"),f=()=>{
const parts=i.value.toLowerCase().split(",").map(part=>part.trim()),has=text=>parts.every(part=>text.toLowerCase().includes(part));
for(const t of document.querySelectorAll("table")){const paper=t.previousElementSibling;for(const b of t.tBodies){const [h,...r]=b.rows;
r.forEach(e=>e.hidden=!has([paper,h.querySelector("summary"),e].map(x=>x.textContent).join(" ")));b.hidden=r.every(e=>e.hidden)}
paper.hidden=t.hidden=[...t.tBodies].every(b=>b.hidden)}};
i.oninput=f;i.value=decodeURIComponent(location.hash.slice(1));f()})</script>
"""


def main(arguments: Sequence[str]) -> int:
    """Write the texts and figures, or compare the texts."""
    folder = Path(arguments[0])
    records = read_records(folder)
    made = {folder / "index.md": page_of(folder), folder / CLAIMS: claims_page(folder), TARGET: copied(folder)}
    if "--check" in arguments:
        stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
        print(
            f"not what the records give, make it again: {', '.join(stale)}" if stale else "all is what the records give"
        )
        return int(bool(stale))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    numbered = _numbered(claim_index(records))
    short = tomllib.loads((folder / "notes.toml").read_text(encoding="utf-8"))["short"]
    draw(focal_gains(records), folder / FIGURE)
    draw_claims(numbered, short, folder / CLAIMS_FIGURE)
    draw_claims(_leading(numbered), short, folder / LEADING_FIGURE, lead=True)
    return 0


def copied(folder: Path) -> str:
    """Return the text of the package's file: rows with the measures that claims name, and whole records of sets."""
    named = {measure for claim in paper_claims() for measure in claim.measures}
    measures = sorted({part for one in named for part in (DERIVED[one][1] if one in DERIVED else (one,))})
    keys = dict.fromkeys([*ALWAYS, *measures])
    found: dict[str, Any] = {}
    for place in places():
        file = folder / f"{place.record}.json"
        if not file.is_file():  # not run: the index says so
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        rows = "sets" if place.exact else "figures"
        found[place.record] = {rows: [{k: row[k] for k in keys if k in row} for row in record[rows]]}
    file = folder / f"{ROWS}.json"
    if file.is_file():
        shared = json.loads(file.read_text(encoding="utf-8"))["sets"]
        found[ROWS] = {"sets": [{k: row[k] for k in ("place", "first", "last", "deviation")} for row in shared]}
    parts = []
    for name, record in found.items():
        ((kind, rows),) = record.items()
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f'{json.dumps(name)}: {{"{kind}": [\n{lines}\n]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def losses_table(records: Mapping[str, Record]) -> str:
    """Return the table of every objective on frozen features of CIFAR-10 and on digits.

    Over the seeds that all objectives have, so that a difference between two rows is not one between their seeds.
    """
    header, rows = ["objective", "loss"], []
    seeds = {name: _shared_seeds(records[name]) for name in ("features-cifar10", "digits-all")}
    for place in ("CIFAR-10", "digits"):
        header += [f"{place}: error", "ECE", "T", "ECE at T"]
    for objective in records["features-cifar10"]["objectives"]:
        cells = []
        for name in seeds:
            figures = records[name]["figures"]
            found = [row for row in figures if row["objective"] == objective["label"] and row["seed"] in seeds[name]]
            for measure in ("error", "ece", "temperature", "ece_at_t"):
                values = [(100 if MEASURES[measure].percent else 1) * row[measure] for row in found]
                spread = f"±{np.std(values, ddof=1):.2f}" if measure.startswith("ece") and values else ""
                cells.append(f"{np.mean(values):.2f}{spread}" if values else "–")
        arguments = ", ".join(f"{key}={value!r}" for key, value in objective["loss"].items() if key != "type")
        rows.append([[objective["label"], f"{objective['loss']['type']}({arguments})", *cells]])
    return table(header, rows, summary="Error, ECE, T and ECE at T of every objective")


def _shared_seeds(record: Record) -> set[int]:
    by_objective: dict[str, set[int]] = {}
    for row in record["figures"]:
        by_objective.setdefault(row["objective"], set()).add(row["seed"])
    return set.intersection(*by_objective.values())


def page_of(folder: Path) -> str:
    """Return the page as Markdown, its tables as HTML: ten claims and their picture, and below each heading what is folded."""
    records = read_records(folder)
    said = tomllib.loads((folder / "notes.toml").read_text(encoding="utf-8"))
    numbered = _numbered(claim_index(records))
    picture = f"![verdict and effect on the leading claims by data set]({LEADING_FIGURE})"
    parts = [
        f"# Results of the studies\n\n{said['intro']}\n## Claims decided on most data sets\n\n{picture}\n\n{_said(_leading(numbered))}",
        _claims(numbered, said["short"]),
        f"{said['losses']}\n{losses_table(records)}",
        _regime(focal_gains(records), said["regime"], said["short"]),
        _faithful(faithfulness(records), said["faithful"], said["short"]),
        said["verdicts"].replace("\n\n", f"\n\n{FOLD.format('Tests, margins, guards')}\n\n", 1) + FOLD_END,
        _shared(records, [line for _, mine in numbered for line in mine]),
        said["runs"],
        *_runs([note for note in said["sections"] if note["record"] in records], records),
    ]
    return "\n".join([*parts, ""])


def claims_page(folder: Path) -> str:
    """Return the page of all claims, which words filter: a line per claim, and a row per data set."""
    parts = [CLAIMS_TOP]
    for paper, mine in groupby(_numbered(claim_index(read_records(folder))), key=lambda each: each[1][0].paper):
        head = "".join(f"<th>{cell}" for cell in CLAIM_HEAD)
        parts.append(
            f"<h2>{html.escape(paper[0].upper() + paper[1:])}</h2><table class=scroll><thead><tr>{head}</thead>"
        )
        parts += [_body(number, lines) for number, lines in mine] + ["</table>"]
    return "\n".join([*parts, ""])


def table(header: Sequence[str], rows: Sequence[Sequence[Sequence[str]]], *, summary: str = "") -> str:
    """Return an HTML table, folded under its summary, of groups of rows, a line per group; cells end where the next begins."""
    head = "".join(f"<th>{html.escape(cell)}" for cell in header)
    lines = ["".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in group) for group in rows]
    fold = f"<details><summary>{html.escape(summary)}</summary>"
    return "\n".join(
        [f"{fold}<table><thead><tr>{head}</thead><tbody>", *filter(None, lines), "</tbody></table></details>\n"]
    )


def _numbered(lines: Sequence[ClaimLine]) -> Numbered:
    """Return each claim's lines with its number on the page and in its pictures, each paper's claims together."""
    papers = list(dict.fromkeys(line.paper for line in lines))
    found: dict[tuple[str, str, str], list[ClaimLine]] = {}
    for line in sorted(lines, key=lambda line: papers.index(line.paper)):
        found.setdefault((line.claim, line.paper, line.place), []).append(line)
    return list(enumerate(found.values(), start=1))


def _claims(numbered: Numbered, short: Mapping[str, str]) -> str:
    """Return what was counted, and the data with what is decided and what was not run there."""
    lines = [line for _, mine in numbered for line in mine]
    found = Counter(line.verdict for line in lines)
    counts = ", ".join(f"{name} {found[name]}" for name in MARKS if found[name])
    decided, decidable = _decided([line for line in lines if line.decidable])
    by_place = {place: [line for line in lines if line.data == place.name] for place in places()}
    run = [place for place, mine in by_place.items() if any(line.verdict != "not run" for line in mine)]
    data = [
        [_data(place, by_place[place], short) for place in same]
        for _, same in groupby(run, key=lambda place: place.command)
    ]
    total = (
        f"{len(numbered)} claims, {len(lines)} pairs of claim and data: {counts}. {decided} of {decidable} decidable are decided. "
        f"{limits_of(lines)}"
    )
    every = (
        f"[Each with effect, interval, power and p, to be filtered]({CLAIMS}), with command and cost of what was not run, "
        f"{len(by_place) - len(run)} data sets and networks among it; [all in one picture]({CLAIMS_FIGURE})."
    )
    header = ["data", "short", "decided/decidable", "not run", "of"]
    return f"\n## All claims\n\n{total} {every}\n\n{table(header, data, summary='By data set')}"


def limits_of(lines: Sequence[ClaimLine]) -> str:
    """Return what the count of decided pairs hides, in sentences."""
    decided = [line for line in lines if line.decidable and line.verdict in DECIDED and line.data != "theory"]
    whole = [line for line in lines if line.decidable and line.data != "theory" and "frozen features" not in line.data]
    some, of = _decided(whole)
    unfaithful = sum(line.note.startswith(UNFAITHFUL) for line in decided)
    small = sum(bool(line.inside_margin) for line in decided if line.verdict.startswith("shows"))
    before = sum(line.margin_set == "before" for line in decided)
    beyond = sum(bool(line.beyond) for line in decided)
    return (
        f"Without theory and frozen features {some} of {of} ({some / of:.0%}) are. {unfaithful} of the {len(decided)} decided by runs "
        f"rest on features that are no faithful regime; {small} that show are smaller than the margin; {before} have a margin set "
        f"before the first runs there, the others after; {beyond} count other test rows, the others speak of the rows tested."
    )


def _decided(lines: Sequence[ClaimLine]) -> tuple[int, int]:
    return sum(line.verdict in DECIDED for line in lines), len(lines)


def _data(place: Place, mine: Sequence[ClaimLine], short: Mapping[str, str]) -> list[str]:
    """Return the cells of a data set: how many of its decidable claims are decided, and how many of all were not run."""
    shares = "/".join(str(count) for count in _decided([line for line in mine if line.decidable]))
    return [place.name, short[place.name], shares, str(sum(line.verdict == "not run" for line in mine)), str(len(mine))]


def _leading(numbered: Numbered) -> Numbered:
    """Return the claims that are decided on most data sets, each comparison once."""
    tested = [(number, mine) for number, mine in numbered if mine[0].data != "theory"]
    chosen: dict[Any, tuple[int, Sequence[ClaimLine]]] = {}
    for number, mine in sorted(tested, key=lambda each: -sum(line.verdict in DECIDED for line in each[1])):
        same = frozenset(line.comparison for line in mine if line.verdict in DECIDED)
        if len(chosen) < LEADING and not any(same <= other or other <= same for other in chosen):
            chosen[same] = number, mine
    return list(chosen.values())


def _said(leading: Numbered) -> str:
    """Return claims by how their data decide them, a line for claims of the same counts."""
    groups: dict[str, list[str]] = {}
    for number, mine in leading:
        counts = [(verdict, sum(line.verdict == verdict for line in mine)) for verdict in (*DECIDED, "not told apart")]
        said = ", ".join(f"{verdict} on {count}" for verdict, count in counts if count)
        groups.setdefault(said, []).append(f"{mine[0].claim} [{number}]")
    return "\n".join(f"- **{said[0].upper()}{said[1:]}**: {'; '.join(claims)}." for said, claims in groups.items())


def _body(number: int, lines: Sequence[ClaimLine]) -> str:
    """Return a claim with its paragraph folded below it, and a row per data set."""
    first = lines[0]
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in _row(line)) for line in lines)
    head = f"<summary>{number}. {html.escape(f'{first.claim} ({first.place})')}</summary><p>{html.escape(paragraph(lines))}"
    return f"<tbody><tr><th colspan={len(CLAIM_HEAD)}><details>{head}</details>{cells}</tbody>"


def paragraph(lines: Sequence[ClaimLine]) -> str:
    """Return a claim with all that its verdicts rest on, in sentences."""
    first = lines[0]
    where = f"{first.paper[0].upper()}{first.paper[1:]}, {first.place}: {first.claim}."
    if first.data == "theory":
        return f"{where} {VERBS[first.verdict]}: {first.note}."
    measure = " against ".join(MEASURES[name].label for name in first.measure.split(" → "))
    sentences = [where, f"Measure: {measure}, the first less the last; ±{_effect(first, first.margin)} counts as none."]
    for verdict, verb in VERBS.items():
        mine = [_with_numbers(line) for line in lines if line.verdict == verdict]
        sentences += [f"{verb} on {'; on '.join(mine)}."] if mine else []
    pools: dict[str, list[str]] = {}
    for line in lines:
        for pool in line.test if line.verdict != "not run" else ():
            pools.setdefault(pool, []).append(line.data)
    shared = [f"{' and '.join(names)} share {pool}" for pool, names in pools.items() if len(names) > 1]
    sentences += [f"{'; '.join(shared)}."] if shared else []
    run = dict.fromkeys(line.command for line in lines if line.verdict != "not run")
    return " ".join([*sentences, f"Made by {'; '.join(run)}."] if run else sentences)


def _with_numbers(line: ClaimLine) -> str:
    """Return the data of a line with effect, interval, power, p and units."""
    if line.verdict == "not run":
        return f"{line.data}: {line.command} ({line.cost})"
    parts = [f"effect {_effect(line, line.effect)}{_interval(line)}"] if line.effect is not None else []
    parts += [f"adjusted p {line.p_adjusted:.2g}"] if line.p_adjusted is not None else []
    unit = "sets in 8 clusters" if line.data.endswith("logits") else "seed" if line.seeds == 1 else "seeds"
    parts += [f"{line.seeds} {unit}"] if line.seeds else []
    parts += [f"{_effect(line, line.detectable)} would be seen"] if line.detectable is not None else []
    parts += [f"margin set {line.margin_set} the first runs"]
    parts += [SMALL] if _is_small(line) else []
    parts += [THESE] if line.beyond is False else []
    parts += [line.note] if line.note else []
    return f"{line.data} ({', '.join(parts)})"


def _is_small(line: ClaimLine) -> bool:
    return bool(line.inside_margin) and line.verdict.startswith("shows")


def _interval(line: ClaimLine) -> str:
    return "" if line.low is None else f" [{_effect(line, line.low)}, {_effect(line, line.high)}]"


def _row(line: ClaimLine) -> list[str]:
    """Return the cells of a claim on one data set."""
    p = "" if line.p_adjusted is None else f"{line.p_adjusted:.2g}"
    effect, power = _effect(line, line.effect), _effect(line, line.detectable)
    note = f"{line.command}: {line.cost}" if line.verdict == "not run" else line.note
    notes = "; ".join(filter(None, [f"{SMALL}, {_effect(line, line.margin)}" if _is_small(line) else "", note]))
    verdict = line.verdict + ("*" if line.margin_set == "before" else "") + ("†" if line.beyond is False else "")
    units = str(line.seeds) if line.seeds else ""
    return [line.data, verdict, effect, _interval(line).strip(), power, p, units, notes]


def _effect(line: ClaimLine, value: float | None) -> str:
    """Return an effect in percentage points, or as it is for temperatures and log-losses."""
    if value is None:
        return ""
    return f"{100 * value:.2f}" if MEASURES[line.measure.split(" → ")[0]].percent else f"{value:.3f}"


def _regime(gains: Sequence[Gain], text: str, short: Mapping[str, str]) -> str:
    raw, after = focal_threshold(gains, gamma=GAMMA), focal_threshold(gains, gamma=GAMMA, after=True)
    rows = [
        [
            [short[g.data], f"{g.gamma:g}", str(g.seeds), f"{g.temperature:.2f}", _points(g.raw), _points(g.after)]
            for g in sorted(gains, key=lambda g: g.temperature)
            if g.gamma == gamma
        ]
        for gamma in [GAMMA]  # the picture has the others
    ]
    header = ["data", "γ", "seeds", "T of cross-entropy", "gain in raw ECE, points", "gain in ECE at T, points"]
    of_raw, of_after = (
        [(g, (g.after if after else g.raw)[0]) for g in gains if g.gamma == GAMMA] for after in (False, True)
    )
    said = (
        f"For γ = {GAMMA:g}, before calibration, {_sentence(raw, of_raw, short)} "
        f"After temperature scaling of both, {_sentence(after, of_after, short)} A tendency over few data sets, not a rule."
    )
    picture = f"[Every γ in a picture]({FIGURE})."
    return f"{text}\n{said} {picture}\n\n{table(header, rows, summary='By data set')}"


def _sentence(found: Threshold, gains: Sequence[tuple[Gain, float]], short: Mapping[str, str]) -> str:
    """Return what the line says, and the data sets whose gain has another sign than it says; a gain of NaN is not known."""
    known = [(one, gain) for one, gain in gains if not math.isnan(gain)]
    if not known:
        return "nothing was run."
    least, most = (end(one.temperature for one, _ in known) for end in (min, max))
    line = f"the least-squares line over {found.sets} data sets (T from {least:.2f} to {most:.2f})"
    if not least <= found.temperature <= most:
        return f"{line} does not cross zero within these temperatures: there is no T above which focal loss helps."
    high = f"to {found.high:.2f}" if found.high < BOUNDED else "without an upper end"
    against = ", ".join(
        f"{short[one.data]} (T {one.temperature:.2f}, gain {100 * gain:+.2f})"
        for one, gain in known
        if (one.temperature > found.temperature) != (gain > 0)
    )
    return (
        f"{line} crosses zero at T = {found.temperature:.2f} (95 % interval over data sets from {found.low:.2f} "
        f"{high}){against and f'; against it: {against}'}."
    )


def _points(value: tuple[float, float, float]) -> str:
    mean, low, high = (100 * number for number in value)
    if math.isnan(mean):
        return "–"
    return f"{mean:+.2f}" if math.isnan(low) else f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _faithful(found: Sequence[Faithful], text: str, short: Mapping[str, str]) -> str:
    rows = [
        [
            [
                short[f.features],
                short[f.network],
                str(f.objectives),
                f"{f.ece:.2f}",
                f"{f.temperature:.2f}",
                "yes" if f.holds else "no",
            ]
        ]
        for f in found
    ]
    header = ["frozen features", "network", "objectives", "rank correlation of raw ECE", "of T", "faithful"]
    return f"{text}\n{table(header, rows, summary='Features and networks')}"


def _shared(records: Mapping[str, Record], lines: Sequence[ClaimLine]) -> str:
    """Return what shared test rows add to the squared standard errors, by data."""
    rows = []
    for place in places():
        mine = [row for row in records[ROWS]["sets"] if row["place"] == place.name]
        known = [line for line in lines if line.data == place.name and line.beyond is not None]
        if not mine or not known:
            continue
        counted = [line for line in known if line.beyond]
        apart = [
            (line.rows or 0.0) ** 2 / _squared_error(line) for line in counted if line.rows and line.low is not None
        ]
        seeds = sorted({row["seeds"] for row in mine})
        cells = [
            f"{seeds[0]} to {seeds[-1]}",
            f"{np.median([row['deviation'] / row['of_a_seed'] for row in mine]) ** 2:.0%}",
        ]
        rows.append([[place.name, *cells, f"{np.median(apart):.0%}", f"{len(counted)} of {len(known)}"]])
    header = [
        "data",
        "seeds kept",
        "variance over test sets common to seeds",
        "of the squared standard error",
        "verdicts that count it",
    ]
    alone = claim_index({name: record for name, record in records.items() if name != ROWS})
    verdicts = {(line.claim, line.paper, line.place, line.data): line.verdict for line in alone}
    other = sum(verdicts[line.claim, line.paper, line.place, line.data] != line.verdict for line in lines)
    said = f"{other} verdicts would be others if shared test rows were not counted."
    return f"\n{said}\n\n{table(header, rows, summary='What shared test rows add (medians over comparisons)')}"


def _squared_error(line: ClaimLine) -> float:
    """Return the squared standard error of a line's effect, from its interval."""
    from scipy.stats import t

    width = (line.high or 0.0) - (line.low or 0.0)
    return float(width / 2 / t.ppf(0.975, line.seeds - 1)) ** 2


def _runs(notes: Sequence[Mapping[str, Any]], records: Mapping[str, Record]) -> list[str]:
    """Return a table of what each record holds and of cross-entropy there, and what to know of it."""
    rows, said = [], []
    for note in notes:
        record = records[note["record"]]
        seconds = record["provenance"]["seconds"]
        each = f"{seconds / len(record['figures']):,.0f}" if seconds else ""
        plain = [row for row in record["figures"] if row["objective"] == "Cross-entropy"]
        settings = list(dict.fromkeys(row["setting"] for row in plain)) or [""]
        group = []
        for at in settings:
            run = note.get("command", note["record"])
            mine = [row for row in record["figures"] if at in ("", row["setting"])]
            seeds = sorted(Counter((row["setting"], row["objective"]) for row in mine).values())
            held = [" to ".join(dict.fromkeys(str(count) for count in (seeds[0], seeds[-1]))), str(len(mine)), each]
            means = [MEASURES[name].shown(_mean(plain, at, name)) if plain else "" for name in CROSS]
            group.append([f"{run}: {at}" if len(settings) > 1 else run, *held, *means])
        rows.append(group)
        links = [f"[{n.removeprefix(note['record'] + '-')}](figures/{n}.svg)" for n in note.get("figures", ())]
        if note["note"] or links:
            told = " ".join(f"{part.removesuffix('.')}." for part in (note["title"], note["note"]) if part)
            said.append(f"- `{note['record']}`: {' '.join(filter(None, [told, ', '.join(links)]))}")
    header = ["calibrant study run", "seeds", "rows", "seconds a row", "error, %", "ECE, %", "T"]
    return [
        table(header, rows, summary="Every record"),
        FOLD.format("What to know of each, and its pictures"),
        "",
        *said,
        FOLD_END,
    ]


def _mean(rows: Sequence[Record], place: str, measure: str) -> float:
    return float(np.mean([row[measure] for row in rows if row["setting"] == place]))


def draw_claims(numbered: Numbered, short: Mapping[str, str], path: Path, *, lead: bool = False) -> None:
    """Draw verdict, effect and the effect that would be seen on each claim (rows) by data set (columns)."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # a place where nothing was run is in the table, not in the picture
    data = {line.data for _, mine in numbered for line in mine if line.verdict != "not run"} - {"theory"}
    shown = [(number, [line for line in mine if line.data in data]) for number, mine in numbered]
    shown = [(number, mine) for number, mine in shown if mine]
    columns = [place.name for place in places() if place.name in data]
    size, width, tall, away, below = (9, 11, 0.52, 0.0, 0.3) if lead else (7, 15, 0.17, 0.13, 0.0)
    style = {"svg.hashsalt": "calibrant", "svg.fonttype": "none", "font.size": size}  # 900 texts as paths weigh 1 MB
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, 1.5 + tall * len(shown)), layout="constrained")
        ax = figure.subplots()
        for verdict, (marker, colour) in MARKS.items():
            mine = [(row, line) for row, (_, lines) in enumerate(shown) for line in lines if line.verdict == verdict]
            if not mine:
                continue
            x = [columns.index(line.data) for _, line in mine]
            ax.scatter(x, [row for row, _ in mine], marker=marker, color=colour, label=verdict, s=24)
            for across, (row, line) in zip(x, mine, strict=True):
                if line.effect is not None:
                    scale = 100 if MEASURES[line.measure.split(" → ")[0]].percent else 1
                    power = "" if line.detectable is None else f"{scale * line.detectable:.2g}"
                    text = f"{scale * line.effect:+.2g}{(chr(10) if lead else ' | ') if power else ''}{power}"
                    place = {"va": "center", "ha": "left"} if not lead else {"va": "top", "ha": "center"}
                    at = {**place, "fontsize": size - 2, "color": "#444444"}
                    ax.text(across + away, row + below * 0.5, text, **at)
        ax.set_xticks(range(len(columns)), [short[name] for name in columns], rotation=30, ha="left")
        ax.xaxis.tick_top()
        names = [f"{mine[0].claim} · {n}" for n, mine in shown]
        ax.set_yticks(range(len(shown)), [fill(name, 46) for name in names] if lead else names)
        ax.set_ylim(len(shown) - 0.2, -0.5)
        ax.set_xlim(-0.5, len(columns) - 0.2)
        ax.grid(color="#EEEEEE", linewidth=0.5)
        ax.set_axisbelow(True)
        power = "the effect that would have been seen with probability .8"
        where = (
            f"below a mark: effect (points, or as it is), and {power}" if lead else f"beside a mark: effect | {power}"
        )
        ax.set_xlabel(where, loc="right")
        figure.legend(
            *ax.get_legend_handles_labels(), loc="outside lower center", ncols=4 if lead else 7, frameon=False
        )
        figure.savefig(path, metadata={"Date": None})


def draw(gains: Sequence[Gain], path: Path) -> None:
    """Draw the gain over cross-entropy's temperature: before calibration, and at T."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "calibrant", "font.size": 9}):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, name, title in zip(
            axes, ("raw", "after"), ("before calibration", "each at its own temperature"), strict=True
        ):
            ax.axhline(0, color="#888888", linewidth=0.8)
            for gamma in sorted({gain.gamma for gain in gains}):
                marker, colour = GAMMAS.get(gamma, ("x", "#333333"))
                label: str | None = f"γ = {gamma:g}"
                for gain in (g for g in gains if g.gamma == gamma):
                    mean, low, high = (100 * value for value in getattr(gain, name))
                    across = gain.temperature * (1 + 0.004 * (gamma - 3))  # γ beside each other
                    if not math.isnan(low):
                        ax.plot([across, across], [low, high], color=colour, linewidth=1)
                    face = "none" if math.isnan(low) else colour
                    style = {"marker": marker, "color": colour, "markerfacecolor": face, "linestyle": "none"}
                    ax.plot([across], [mean], label=label, **style)
                    label = None
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
