"""The tables of docs/uncertainty.md from the record of ``benchmarks.coverage``.

    python -m benchmarks.coverage_page [--record docs/results/coverage.json] [--page docs/uncertainty.md]

Replaces what stands between the page's two comments. ``--check`` changes nothing and fails where the page would change.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.coverage import RECORD

PAGE = Path("docs/uncertainty.md")
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
ALLOWED = {"intervals": 0.07, "groups": 0.07, "tests": 0.05}  # promised; two simulation standard errors are added
Cell = dict[str, Any]


def misses(figures: dict[str, float]) -> float:
    """Return the share of all samples whose interval misses the truth."""
    return figures["too_high"] + figures["too_low"]


def limit(share: float, replicates: int) -> float:
    """Return ``share`` plus two standard errors of a simulation that has exactly this share."""
    return share + 2 * (share * (1 - share) / replicates) ** 0.5


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
    """Yield a row for each pair of models: how often the square of the ECE, and any equal metric, was told apart."""
    for cell in cells:
        found = cell["metrics"]
        _, pair, rows = cell["cell"].split(" | ")
        yield [pair, rows.removeprefix("n = "), *(percent(found[name]) for name in found), f"{cell['replicates']:,}"]


def percent(share: float) -> str:
    """Return ``share`` in per cent with one digit."""
    return f"{100 * share:.1f} %"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(cells: list[Cell]) -> str:
    """Return the page's generated part."""
    parts = {part: [cell for cell in cells if cell["cell"].startswith(part)] for part in ALLOWED}
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
    if parts["tests"]:
        header = ["models", "rows", "SquaredECE told apart", "any equal metric, Holm", "samples"]
        shown += [
            "**Pairs of models**, equal in the metric except in the rows named power: how often a test at 5 % tells them apart.",
            table(header, test_rows(parts["tests"])),
        ]
    return "\n\n".join(shown)


def rendered(page: str, cells: list[Cell]) -> str:
    """Return ``page`` with its generated part made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(cells)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    old = chosen.page.read_text()
    new = rendered(old, json.loads(chosen.record.read_text())["cells"])
    if chosen.check and new != old:
        raise SystemExit(f"{chosen.page} is not what {chosen.record} gives; run python -m benchmarks.coverage_page")
    chosen.page.write_text(new)


if __name__ == "__main__":
    main()
