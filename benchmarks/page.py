"""The page docs/benchmarks.md and its figures, from the records of ``python -m benchmarks --json DIR``.

python -m benchmarks.page docs/results                    # writes docs/benchmarks.md and docs/images/bench-*.svg
python -m benchmarks.page docs/results --check            # says whether the page is what the records give
"""

import argparse
import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.growth import BOUND
from benchmarks.page_figures import LABELS, growth_figures
from benchmarks.race import significant

DOCS = Path(__file__).parent.parent / "docs"
FAMILIES = {"metrics": "Metrics", "fits": "Calibrators", "objectives": "Losses", "reports": "Report"}
CLOSE = 1.05  # within 5 % of the first
TEXT = Path(__file__).parent / "page.md"  # the page with a place for each table

NO_THREADS = "**All threads.** `make bench` prints the same tables with all threads, by wall-clock time. These records hold one thread."

# Rows in which another library is ahead by more than that: (name, N, K, threads) → why.
REASONS: dict[tuple[str, int, int, int], str] = {}


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of every file of records by its family."""
    return {
        path.stem.removeprefix("bench-"): json.loads(path.read_text()) for path in sorted(folder.glob("bench-*.json"))
    }


def rivals(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the contenders that do the same, quickest first."""
    peers = [one for one in record["contenders"] if one["role"] == "peer"]
    return sorted(peers, key=lambda one: one["ratio"][0])


def behind(record: dict[str, Any]) -> bool:
    """Return whether a rival is ahead by more than 5 %."""
    found = rivals(record)
    return bool(found) and found[0]["ratio"][0] * CLOSE < 1


def clearly_behind(record: dict[str, Any]) -> bool:
    """Return whether a rival is ahead by more than 5 %, and by an interval that does not contain 1."""
    return behind(record) and max(rivals(record)[0]["ratio"]) < 1


def key_of(record: dict[str, Any]) -> tuple[str, int, int, int]:
    """Return what names a row."""
    return record["name"], record["rows"], record["classes"], record["threads"]


def verdict(record: dict[str, Any]) -> str:
    """Return what a row shows, in a few words."""
    ratio = rivals(record)[0]["ratio"][0]
    if clearly_behind(record):
        return f"behind: {REASONS.get(key_of(record), 'not explained yet')}"
    if behind(record):
        return "not told apart"
    return "first" if ratio >= 1 else "within 5 % of first"


def overview(records: list[dict[str, Any]]) -> list[str]:
    """Return the table with a line for every race that another library runs too."""
    lines = ["| task | N | K | ours, ms | next | times ours | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for record in filter(rivals, records):
        ours = significant(1000 * statistics.median(record["contenders"][0]["seconds"]))
        first = rivals(record)[0]
        parts = [significant(part) for part in first["ratio"]]
        ratio = f"{parts[0]} ({parts[1]} – {parts[2]})" if len(parts) == 3 else parts[0]
        cells = (f"{record['rows']:,}", f"{record['classes']:,}", ours, first["name"], ratio, verdict(record))
        lines.append(f"| {record['title']} | {' | '.join(cells)} |")
    return lines


def _overview(family: str, records: list[dict[str, Any]], title: str, threads: int) -> str:
    chosen = [record for record in records if record["threads"] == threads]
    known = {key_of(record) for record in chosen}
    races = importlib.import_module(f"benchmarks.{family}").RACES
    missing = [one for one in races if (one.name, one.rows, one.classes, threads) not in known]
    named = "; ".join(f"{one.title} at {one.rows:,} × {one.classes:,}" for one in missing)
    note = ["", f"Not in these records: {named}."] if missing else []
    return "\n".join([f"**{title}**", "", *overview(chosen), *note])


def sentence(records: dict[str, dict[str, Any]]) -> str:
    """Return the machine of each part, and the versions, in words."""
    parts: dict[str, list[str]] = {}
    for family, title in {**FAMILIES, "growth": "Growth"}.items():
        machine = records[family]["machine"]
        parts.setdefault(f"{machine['processor']}, {machine['cores']} cores", []).append(title.lower())
    where = "; ".join(f"{', '.join(titles)} on {machine}" for machine, titles in parts.items())
    known = [f"{name} {number}" for name, number in records["metrics"]["versions"].items() if number != "absent"]
    return f"Measured: {where}. {', '.join(known).capitalize()}."


def _with_threads(records: dict[str, dict[str, Any]], count: int) -> str:
    chosen = [
        one for family in FAMILIES for one in records[family]["records"] if one["threads"] == count and rivals(one)
    ]
    ahead = sum(not behind(one) for one in chosen)
    return f"With {count} threads, by wall-clock time: first or within 5 % of the first in {ahead} of {len(chosen)} comparisons."


def render(records: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    parts: dict[str, str] = {"machine": sentence(records)}
    more = sorted({record["threads"] for family in FAMILIES for record in records[family]["records"]} - {1})
    for family, title in FAMILIES.items():
        parts[f"{family}-one"] = _overview(family, records[family]["records"], f"{title}, one thread", 1)
    parts["threads"] = "\n".join(_with_threads(records, count) for count in more) or NO_THREADS
    parts["bound"] = f"{BOUND:g}"
    axes = [axis for axis in LABELS if any(one["axis"] == axis for one in records["growth"]["records"])]
    parts["growth"] = "\n\n".join(f"![Time and memory against {axis}](images/bench-{axis}.svg)" for axis in axes)
    text = TEXT.read_text()
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part.rstrip("\n"))
    return text


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the records lie")
    parser.add_argument("--out", type=Path, default=DOCS, help="the documentation")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    options = parser.parse_args()
    records = load(options.folder)
    text = render(records)
    page = options.out / "benchmarks.md"
    if options.check:
        same = page.exists() and page.read_text() == text
        print("the page is what the records give" if same else "expected the page that the records give, got another")
        return 0 if same else 1
    page.write_text(text)
    growth_figures(records["growth"]["records"], options.out / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
