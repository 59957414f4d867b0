"""The tables of docs/calibrators.md from the records of ``benchmarks.auto`` and ``benchmarks.calarena``.

    python -m benchmarks.auto_page [--check]

Replaces what stands between the page's comments. ``--check`` changes nothing and fails where the page would change.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.auto import CALIBRATED, HARM, harm, table
from benchmarks.calarena import RECORD as ARENA
from benchmarks.calarena import table as arena

PAGE = Path("docs/calibrators.md")
RECORD = Path("docs/results/auto.json")
RIVAL, OURS = "StructuredMatrixScaling", "AutoCalibrator"
HELD_OUT, MODELS = "judged", "calibrated"


def held_out(part: dict[str, Any]) -> str:
    """Return the table of the held-out half, and how far below its rival AutoCalibrator is."""
    sizes = part["all"]
    below = [
        f"{100 * (1 - one[OURS]['loss'] / one[RIVAL]['loss']):.1f} % at n = {size}"
        for size, one in sizes.items()
        if OURS in one and RIVAL in one
    ]
    return f"{table(sizes)}\n\nThe log-loss of `{OURS}` is below that of `{RIVAL}` by {', '.join(below)}."


def harms(parts: dict[str, Any]) -> str:
    """Return a line for each population and method: the share of cases harmed, and the change that 1 % of them exceed."""
    populations = {name: parts[MODELS]["sets"][name] for name in CALIBRATED} if MODELS in parts else {}
    populations |= {name.split(" ", 1)[1]: part["all"] for name, part in parts.items() if name.startswith("chosen ")}
    sizes = list(dict.fromkeys(size for one in populations.values() for size in one if size != "full"))
    lines = [
        "| population | method | " + " | ".join(f"n = {size}" for size in sizes) + " | cases a size |",
        "| --- | --- |" + " --- |" * (len(sizes) + 1),
    ]
    for name, found in populations.items():
        count = max(one["none"]["cases"] for one in found.values())
        for method in (OURS, f"{OURS}, decision kept", RIVAL):
            cells = [harm(found[size][method]) if size in found else "–" for size in sizes]
            lines.append(f"| {name} | {method} | " + " | ".join(cells) + f" | {count:.0f} |")
    note = (
        f"Harmed: log-loss up by more than {HARM:.0%}, and by more than its paired 95 % interval over the test rows. After it the "
        "change that 1 % of cases exceed."
    )
    return f"{note}\n\n" + "\n".join(lines)


def rendered(page: str, parts: dict[str, str]) -> str:
    """Return ``page`` with what stands between the comments of each part made anew."""
    for name, text in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"
    return page


def parts_of(record: dict[str, Any], arena_record: dict[str, Any]) -> dict[str, str]:
    """Return the page's generated parts by name."""
    found = record["parts"]
    return {"held-out": held_out(found[HELD_OUT]), "harm": harms(found), "calarena": arena(arena_record)}


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--arena", type=Path, default=ARENA)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    old = chosen.page.read_text()
    new = rendered(old, parts_of(json.loads(chosen.record.read_text()), json.loads(chosen.arena.read_text())))
    if chosen.check and new != old:
        raise SystemExit(f"{chosen.page} is not what its records give; run python -m benchmarks.auto_page")
    chosen.page.write_text(new)


if __name__ == "__main__":
    main()
