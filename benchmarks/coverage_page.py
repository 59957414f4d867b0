"""The tables of docs/uncertainty.md from the records of ``benchmarks.coverage`` and ``benchmarks.populations``.

    python -m benchmarks.coverage_page [--record docs/results/coverage.json] [--page docs/uncertainty.md]

Replaces what stands between the page's two comments: a row per promise with its worst cell. ``--check`` changes nothing and fails
where the page would change; ``--cells`` prints the tables of every cell instead.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.coverage import RECORD
from benchmarks.lengths import LONGEST
from benchmarks.pairs import METRICS
from benchmarks.populations import ALLOWED as REGISTRY_ALLOWED
from benchmarks.populations import POPULATIONS, PROMISES, pooled

PAGE = Path("docs/uncertainty.md")
REGISTRY = Path("benchmarks/records/populations.jsonl")
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
ALLOWED = {
    "intervals": 0.07,
    "groups": 0.07,
    "tests": 0.05,
    "levels": 0.025,
}  # of samples, promised; two simulation standard errors are added
Cell = dict[str, Any]
EVERYDAY = ("Accuracy", "NLL", "Brier", "ECE")
FEWEST = 30  # samples of a cell behind a ratio of lengths
ERRORS = 10  # wrong decisions, below which 0.1.0 took the absence of errors for certainty

MEANS = "Student's t with Hall's correction; few errors: bounds"
FOLDED = "folded-normal inversion"


@dataclass(frozen=True)
class Promise:
    """A promise of the page, and where its cells stand: promises of the registry, and a part and metrics of the older record."""

    name: str
    method: str
    assumption: str
    registry: tuple[str, ...] = ()
    part: str = ""
    metrics: tuple[str, ...] = ()  # empty: all of the part

    def cells(self, record: list[Cell], registry: list[Cell]) -> tuple[list["Shown"], list["Shown"]]:
        """Return the cells of the registry, and those of the older record."""
        return list(self._of_registry(registry)), list(self._of_record(record))

    def _of_registry(self, cells: list[Cell]) -> Iterator["Shown"]:
        grouped = GROUPED_PART.get(self.part)
        for cell in cells:
            if cell["promise"] in self.registry and grouped in (None, cell["population"] in GROUPED):
                allowed = REGISTRY_ALLOWED.get(cell["promise"].split("-")[0], 0.05)
                broken = max(cell["broken"], cell.get("passed", 0.0))  # of a gate, either decision is wrong
                place = f"{cell['population']}, n = {cell['n']:,}"
                yield Shown(broken, place, cell["replicates"], allowed, cell["shown"])

    def _of_record(self, cells: list[Cell]) -> Iterator["Shown"]:
        allowed = ALLOWED.get(self.part.removesuffix(" of groups"), 0.0)
        for cell in named(cells, self.part):
            for name, figures in cell["metrics"].items():
                if (
                    self.part == "tests"
                ):  # a share for each metric; of pairs that are equal in one, that one and the family count
                    equal = cell["equal_in"]
                    found = {"above": figures} if name in equal or (equal and name.startswith("any equal")) else {}
                else:
                    found = figures if not self.metrics or name in self.metrics else {}
                if "above" in found or "refused" in found:
                    broken = found["above"] if "above" in found else misses(found)
                    offered = 1 - found.get("refused", 0.0)
                    place = place_of(cell).replace(" | ", ", ") + ("" if self.metrics else f" ({short(name)})")
                    yield Shown(
                        broken, place, int(found.get("replicates", cell.get("replicates", 0))), allowed, offered
                    )


@dataclass(frozen=True)
class Shown:
    """How often a promise broke in a cell of so many samples, how often it may, and how often something was shown at all."""

    broken: float
    place: str
    samples: int
    allowed: float
    offered: float

    def above(self, errors: int = 2) -> bool:
        """Return whether it broke more often than allowed, by more than so many standard errors."""
        return self.broken > limit(self.allowed, self.samples, errors)


# Rows in groups have a row of their own where intervals and limits are promised; elsewhere they stand among all.
GROUPED_PART = {"intervals": False, "groups": True, "levels": False, "levels of groups": True}
GROUPED = {one.name for one in POPULATIONS if one.group_size is not None}


def named_promises(start: str) -> tuple[str, ...]:
    """Return the registry's promises whose names begin so."""
    return tuple(name for name in PROMISES if name.startswith(start))


KEPT = (
    Promise(
        "`Accuracy`, `Error`: interval",
        "Wilson's score, modified at 0 and 1",
        "independent rows",
        ("interval-accuracy",),
        "intervals",
        ("Accuracy",),
    ),
    Promise("`NLL`: interval", MEANS, "plausible losses", ("interval-nll",), "intervals", ("NLL",)),
    Promise("`Brier`: interval", "as `NLL`", "as `NLL`", ("interval-brier",), "intervals", ("Brier",)),
    Promise("`ECE`: interval", FOLDED, "gaps of bins nearly normal", ("interval-ece",), "intervals", ("ECE",)),
    Promise(
        "`ECE`, equal mass: interval",
        FOLDED,
        "this sample's bins",
        ("interval-mass",),
        "intervals",
        ("ECE, equal mass",),
    ),
    Promise(
        "`DebiasedECE`: interval",
        "root of the square's normal interval",
        "ten wrong decisions",
        ("interval-debiased",),
        "intervals",
        ("DebiasedECE",),
    ),
    Promise(
        "`TopLabelECE`: interval",
        f"{FOLDED}; many bins: plug-in less noise",
        "as `ECE`",
        ("interval-toplabel",),
        "intervals",
        ("TopLabelECE",),
    ),
    Promise(
        "`ClasswiseECE`: interval",
        "as `TopLabelECE`",
        "as `ECE`",
        ("interval-classwise",),
        "intervals",
        ("ClasswiseECE",),
    ),
    Promise(
        "rows in groups: interval",
        "t, bias-reduced variance",
        "ten independent groups",
        named_promises("interval-"),
        "groups",
    ),
    Promise(
        "97.5 % limit if calibrated",
        "outcomes redrawn from the confidences",
        "independent rows",
        named_promises("limit-"),
        "levels",
    ),
    Promise(
        "rows in groups: limit if calibrated",
        "gaps drawn jointly, normal over groups",
        "independent groups",
        named_promises("limit-"),
        "levels of groups",
    ),
    Promise(
        "`compare` at 5 %",
        "paired t; sign test; `SquaredGaps`; Holm",
        "5 errors that tell them apart",
        named_promises("compare-"),
        "tests",
    ),
    Promise("`subgroups` at 5 %", "simulated null, family-wise", "independent rows", ("subgroups",)),
    Promise(
        "gate: wrong fail or pass, 2.5 %",
        "bounds of finite samples, by betting",
        "independent rows; ECE: its 15 bins",
        named_promises("gate-"),
    ),
    Promise(
        "`no_worse`, 2.5 %",
        "paired t, and bounds by betting",
        "rows not seen change no more",
        named_promises("no-worse-"),
    ),
    Promise(
        "`Monitor` alarms without drift, 5 %",
        "a martingale (Ville 1939)",
        "labels given scores as in the reference",
        named_promises("monitor"),
    ),
    Promise(
        "`estimate`, 95 %",
        "reference errors, weighted to the window's scores",
        "labels given scores change by at most δ",
        named_promises("estimate-"),
    ),
)


def misses(figures: dict[str, float]) -> float:
    """Return the share of all samples whose interval misses the truth."""
    return figures["too_high"] + figures["too_low"]


def limit(share: float, replicates: int, errors: int = 2) -> float:
    """Return ``share`` plus so many standard errors of a simulation that has exactly this share."""
    return share + errors * (share * (1 - share) / replicates) ** 0.5


def interval_rows(cells: list[Cell], part: str) -> Iterable[list[str]]:
    """Yield a row for each metric: cells, highest share of misses and where, cells beyond the limit, refusals."""
    names = dict.fromkeys(name for cell in cells for name, found in cell["metrics"].items() if "refused" in found)
    for name in names:
        held = [(cell, cell["metrics"][name]) for cell in cells if name in cell["metrics"]]
        worst, figures = max(held, key=lambda pair: misses(pair[1]))
        beyond = sum(misses(found) > limit(ALLOWED[part], cell["replicates"]) for cell, found in held)
        covered = sum(1 - misses(found) - found["refused"] for _, found in held) / len(held)
        refused = sum(found["refused"] for _, found in held) / len(held)
        place = worst["cell"].split(" | ", 1)[1].replace(" | ", ", ")
        yield [
            f"`{name}`" if " " not in name else name,
            str(len(held)),
            percent(covered / max(1 - refused, 1e-9)),
            percent(misses(figures)),
            place,
            str(beyond),
            percent(refused),
        ]


def test_rows(cells: list[Cell]) -> Iterable[list[str]]:
    """Yield a row for each pair of models that are equal in a metric: how often each equal metric was told apart."""
    for cell in cells:
        if cell["equal_in"]:
            _, pair, rows = cell["cell"].split(" | ")
            found, names = cell["metrics"], METRICS
            each = [percent(found[name]) if name in cell["equal_in"] else "–" for name in names]
            family = percent(found["any equal metric, Holm"])
            yield [pair, rows.removeprefix("n = "), *each, family, f"{cell['replicates']:,}"]


def beyond_tests(cells: list[Cell]) -> tuple[int, int]:
    """Return how many shares of equal metrics and families there are, and how many exceed 5 % and two simulation errors."""
    shares = [
        (cell["metrics"][name], cell["replicates"])
        for cell in cells
        if cell["equal_in"]
        for name in (*cell["equal_in"], "any equal metric, Holm")
    ]
    return len(shares), sum(share > limit(ALLOWED["tests"], replicates) for share, replicates in shares)


def power_rows(cells: list[Cell], former: list[Cell]) -> Iterable[list[str]]:
    """Yield a row for each pair that differs: how often this test finds it, and that of 0.1.0 at its size and as it was."""
    before = {cell["cell"].split(" | ")[1]: cell["metrics"] for cell in former}
    for cell in cells:
        if not cell["equal_in"]:
            name = cell["cell"].split(" | ")[1]
            then = before.get(name, {})
            figures = (cell["metrics"]["SquaredGaps"], then.get("same size"), then.get("nominal"))
            yield [name.removeprefix("power: "), *("–" if share is None else percent(share) for share in figures)]


def length_rows(cells: list[Cell], again: list[Cell], errors: dict[str, float]) -> Iterable[list[str]]:
    """Yield a row for each metric: ratios of lengths to 0.1.0's, and what the longer ones are on more samples."""
    for name in dict.fromkeys(name for cell in [*cells, *again] for name in cell["metrics"]):
        ratios = [found["ratio"] for _, found in measured(cells, name) if found.get("offered", 0) >= FEWEST]
        second = measured(again, name)
        ratios = ratios or [found["ratio"] for _, found in second]
        long = [(cell, found) for cell, found in second if found["ratio"] > LONGEST]
        covered = [
            (found["ratio"], place_of(cell))
            for cell, found in long
            if found["former_missed_of_all"] <= ALLOWED["intervals"]
        ]
        largest, where = max(covered, default=(0.0, "–"))
        over = [ratio for ratio, place in covered if errors.get(place, 0.0) >= ERRORS]
        if ratios:
            yield [
                f"`{name}`" if " " not in name else name,
                str(len(ratios)),
                f"{sum(ratios) / len(ratios):.2f}",
                str(len(long)),
                str(len(covered)),
                f"{largest:.2f}" if covered else "–",
                where.replace(" | ", ", "),
                f"{len(over)}, up to {max(over):.2f}" if over else "0",
            ]


def measured(cells: list[Cell], name: str) -> list[tuple[Cell, dict[str, float]]]:
    """Return the cells with a ratio of lengths of the metric ``name``, and its figures there."""
    held = [(cell, cell["metrics"].get(name, {})) for cell in cells]
    return [(cell, found) for cell, found in held if found.get("ratio")]


def place_of(cell: Cell) -> str:
    """Return where a cell is: population and number of rows."""
    return str(cell["cell"].split(" | ", 1)[1])


def level_rows(cells: list[Cell]) -> Iterable[list[str]]:
    """Yield a row for each metric: how often a calibrated model exceeds its 97.5 % limit."""
    for name in dict.fromkeys(name for cell in cells for name in cell["metrics"]):
        held = [(cell["metrics"][name], place_of(cell)) for cell in cells if name in cell["metrics"]]
        shares = [found["above"] for found, _ in held]
        most, where = max((found["above"], place) for found, place in held)
        beyond = sum(found["above"] > limit(ALLOWED["levels"], found["replicates"]) for found, _ in held)
        samples = sorted({int(found["replicates"]) for found, _ in held})
        yield [
            f"`{short(name)}`",
            str(len(held)),
            f"{samples[0]:,}" if len(samples) == 1 else f"{samples[0]:,} to {samples[-1]:,}",
            percent(sum(shares) / len(shares)),
            percent(most),
            where.replace(" | ", ", "),
            str(beyond),
        ]


def refusals(cells: list[Cell]) -> str:
    """Return the sentence on where the everyday metrics are refused."""
    many = [cell for cell in cells if cell["rows"] >= 1000 and cell["rows"] * (1 - cell["accuracy"]) >= 20]
    worst = max((cell["metrics"][name]["refused"] for cell in many for name in EVERYDAY), default=0.0)
    return (
        f"In the {len(many)} cells with at least 1,000 rows and 20 expected wrong decisions the intervals of accuracy, NLL, Brier "
        f"score and ECE are refused in at most {percent(worst)} of the samples."
    )


def percent(share: float) -> str:
    """Return ``share`` in per cent with one digit."""
    return f"{100 * share:.1f} %"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(cells: list[Cell]) -> str:
    """Return the tables of every cell of the older record."""
    parts = {part: named(cells, part) for part in ALLOWED}
    head = [
        "metric",
        "cells",
        "mean coverage where offered",
        "most misses in a cell",
        "where",
        "cells beyond",
        "refused",
    ]
    shown = []
    for part, words in (("intervals", "Single rows"), ("groups", "Rows in groups")):
        if parts[part]:
            counts = sorted({cell["replicates"] for cell in parts[part]})
            said = " or ".join(f"{count:,}" for count in counts)
            shown += [
                (
                    f"**{words}**, {said} samples a cell. Misses count over all samples, refused ones included; “beyond” are "
                    "cells with more than 7 % and two simulation standard errors of misses."
                ),
                table(head, interval_rows(parts[part], part)),
            ]
    if parts["intervals"]:
        shown.insert(2, refusals(parts["intervals"]))
    shown += length_part(cells, parts["intervals"])
    shown += level_part(cells)
    if parts["tests"]:
        shares, beyond = beyond_tests(parts["tests"])
        header = ["models", "rows", *METRICS, "any equal, Holm", "samples"]
        words = (
            "**Pairs of models**: how often a test at 5 % tells those apart that are equal in its metric; with Holm's correction "
            f"of all four metrics, how often any equal one. Of {shares} shares {beyond} exceed 5 % and two simulation "
            "standard errors."
        )
        shown += [words, table(header, test_rows(parts["tests"]))]
        former = [cell for cell in cells if cell["cell"].startswith("former")]
        equal = [cell["metrics"]["nominal"] for cell in former if "equal ECE" in cell["cell"]]
        words = (
            "**Power** at 5 % with 1,000 rows, one model of ECE .04 and one of 0. Version 0.1.0 tested the ECE, and told up to "
            f"{percent(max(equal, default=0.0))} of the pairs of equal ECE apart; the third column is its power at the limit that "
            "none of these pairs exceeds more often than in 5 % of samples, the last as it was."
        )
        header = ["models", "SquaredGaps", "ECE in 0.1.0, same size", "ECE in 0.1.0, as it was"]
        shown += [words, table(header, power_rows(parts["tests"], former))]
    return "\n\n".join(shown)


def summary(record: list[Cell], registry: list[Cell]) -> str:
    """Return the page's generated part: a row per promise, and what was not simulated."""
    rows, worse = [], 0
    for promise in KEPT:
        parts = [(mark, found) for mark, found in zip(("", "†"), promise.cells(record, registry), strict=True) if found]
        every = [(mark, cell) for mark, found in parts for cell in found]
        mark, worst = max(every, key=lambda pair: pair[1].broken, default=("", None))
        rows.append(
            [
                promise.name,
                promise.method,
                promise.assumption,
                f"{mark}{percent(worst.broken)}: {worst.place}" if worst else "none simulated",
                "<br>".join(f"{mark}{len(found)} / {sum(cell.above() for cell in found)}" for mark, found in parts)
                or "–",
                "<br>".join(f"{mark}{100 * sum(c.offered for c in found) / len(found):.0f} %" for mark, found in parts),
            ]
        )
        worse += sum(cell.above(3) for _, found in parts for cell in found)
    done = {cell["promise"] for cell in registry}
    absent = ", ".join(f"`{name}`" for name in PROMISES if name not in done) or "nothing"
    return "\n\n".join(
        [
            table(["promise", "method", "assumption", "worst cell: broken in", "cells / above", "shown"], rows),
            (
                f"{worse or 'None'} of these cells {'lies' if worse == 1 else 'lie'} three standard errors above their limit. "
                f"**Not simulated on the registry yet:** {absent}."
            ),
        ]
    )


def short(name: str) -> str:
    """Return the repr of a metric without its defaults."""
    for default in ("binning=EqualWidth(bins=15)", ", norm=1", ", ties='together'", "cells=2048"):
        name = name.replace(default, "")
    return name.replace("(, ", "(").replace("binning=", "")


def length_part(cells: list[Cell], intervals: list[Cell]) -> list[str]:
    """Return the sentence and the table on lengths."""
    lengths, again = (named(cells, part) for part in ("lengths", "longer"))
    if not lengths:
        return []
    header = [
        "metric",
        "cells",
        "mean ratio",
        f"beyond {LONGEST:.2f}",
        "of these 0.1.0's covers in",
        "largest there",
        "where",
        f"of these with {ERRORS} expected errors",
    ]
    errors = {place_of(cell): cell["rows"] * (1 - cell["accuracy"]) for cell in intervals}
    count = max((cell["replicates"] for cell in again), default=0)
    words = (
        f"**Length** of an interval, divided by that of version 0.1.0 on the same {lengths[0]['replicates']} samples where one is "
        f"offered. Cells beyond {LONGEST:.2f} are measured again on {count:,} other samples, and those that still are stand in the "
        f"table; 0.1.0's interval covers where it misses in at most {100 * ALLOWED['intervals']:.0f} % of all these samples, also of "
        "those that are refused now."
    )
    return [words, table(header, length_rows(lengths, again, errors))]


def level_part(cells: list[Cell]) -> list[str]:
    """Return the sentences and the tables on limits if calibrated."""
    header = ["metric", "cells", "samples a cell", "mean share above", "most in a cell", "where", "cells beyond"]
    shown = []
    for part, words in (("levels", "single rows"), ("levels of groups", "rows in groups")):
        if held := named(cells, part):
            shown += [
                (
                    f"**Limits if calibrated, {words}**: how often a calibrated model lies above its 97.5 % limit; “beyond” are cells "
                    "with more than 2.5 % and two simulation standard errors, which by chance alone one cell in forty is."
                ),
                table(header, level_rows(held)),
            ]
    return shown


def named(cells: list[Cell], part: str) -> list[Cell]:
    """Return the cells of a part of the record."""
    return [cell for cell in cells if cell["cell"].split(" | ")[0] == part]


def rendered(page: str, cells: list[Cell], registry: list[Cell]) -> str:
    """Return ``page`` with its generated part made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{summary(cells, registry)}\n\n{END}{rest.split(END)[1]}"


def read_registry(path: Path) -> list[Cell]:
    """Return the cells of the registry's record, one JSON object a line."""
    return pooled(path.read_text().splitlines())


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cells", action="store_true", help="print the tables of every cell, and write nothing")
    chosen = parser.parse_args()
    cells = json.loads(chosen.record.read_text())["cells"]
    if chosen.cells:
        print(tables(cells))
        return
    old = chosen.page.read_text()
    new = rendered(old, cells, read_registry(REGISTRY))
    if chosen.check and new != old:
        raise SystemExit(f"{chosen.page} is not what {chosen.record} gives; run python -m benchmarks.coverage_page")
    chosen.page.write_text(new)


if __name__ == "__main__":
    main()
