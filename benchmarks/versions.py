"""Every race's own contender in another version's tree and in this one, in turns: is any of them slower than it was?

    git worktree add ../former COMMIT
    .bench-venv/bin/python -m benchmarks.versions ../former --turns 6 --record docs/results/bench-versions.json

Each turn is a process of its own for each tree, in changing order, on one thread, with the races as that tree has them; it
notes the median CPU time of some rounds. What counts is the ratio of the medians over turns, and its bootstrap interval: a race
is slower where the whole interval lies above 1.05. Stopped, it goes on where it was; ``--only ece-mass,entropy --turns 12`` adds
turns of these races alone, where few turns on a machine that others use, too, left the interval wide.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
FAMILIES = ("metrics", "fits", "objectives", "reports")
SECONDS, LEAST, MOST = 0.4, 3, 9  # of rounds a race and turn


def timed(family: str, only: Collection[str]) -> None:
    """Print, a line each, the races of a family of the tree at hand, and the median CPU seconds of our contender."""
    import torch  # the parent process needs none

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for race in importlib.import_module(f"benchmarks.{family}").RACES:
        if only and race.name not in only:
            continue
        call = next(iter(race.make(race.rows, race.classes).calls.values()))
        call()
        seconds: list[float] = []
        while len(seconds) < LEAST or (sum(seconds) < SECONDS and len(seconds) < MOST):
            start = time.process_time()
            call()
            seconds.append(time.process_time() - start)
        row = {"race": race.name, "title": race.title, "rows": race.rows, "classes": race.classes}
        print(json.dumps([row, statistics.median(seconds)]), flush=True)


def turn(tree: Path, family: str, only: str) -> list[tuple[dict[str, Any], float]]:
    """Return what ``timed`` prints in another process, whose package and races are those of ``tree``."""
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-P",
        str(Path(__file__).resolve()),
        str(tree),
        "--timed",
        family,
        "--only",
        only,
    ]
    done = subprocess.run(command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def joined(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each race that both trees have: seconds of both, and how many times as long this one takes."""
    from benchmarks.race import ratio  # loads PyTorch

    rows = []
    for key, former in found["former"].items():
        if key in found["now"]:
            now = found["now"][key]
            rows.append({**found["races"][key], "former": former, "now": now, "times": ratio(now, former)})
    return rows


def main() -> int:
    """Time what the command line asks for; return 1 if a race is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("former", type=Path, help="checkout of the other version")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--record", type=Path, help="JSON, kept up to date after every turn")
    parser.add_argument("--only", default="", help="names of races, with commas; all")
    parser.add_argument("--timed", choices=FAMILIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.timed:
        timed(options.timed, options.only.split(",") if options.only else ())
        return 0
    from benchmarks.records import machine, versions

    trees = {"former": options.former.resolve(), "now": HERE}
    commits = {
        name: subprocess.run(["git", "-C", tree, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
        for name, tree in trees.items()
    }  # fmt: skip
    found: dict[str, Any] = {"races": {}, "former": {}, "now": {}, "turns": {}}
    found |= {
        "machine": machine(),
        "versions": versions(),
        "commits": {name: one.stdout.strip() for name, one in commits.items()},
    }
    if options.record and options.record.exists():
        found = json.loads(options.record.read_text())
    for number in range(options.turns):
        for family in FAMILIES:
            if number < found["turns"].get(family, 0):
                continue
            for name in sorted(trees, reverse=number % 2 == 1):
                for race, seconds in turn(trees[name], family, options.only):
                    key = f"{family}: {race['race']}, N = {race['rows']:,}, K = {race['classes']:,}"
                    found["races"][key] = race
                    found[name].setdefault(key, []).append(float(f"{seconds:.4g}"))
            found["turns"][family] = number + 1
            if options.record:
                options.record.write_text(json.dumps(found, indent=1) + "\n")
            print(f"turn {number + 1}, {family}", file=sys.stderr, flush=True)
    rows = joined(found)
    slower = [row for row in rows if row["times"][1:2] > [1.05]]
    print("| race | N | K | former, ms | now, ms | times as long |\n| --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda one: -one["times"][0]):
        former, now = (f"{1000 * statistics.median(row[name]):.3g}" for name in ("former", "now"))
        low_high = " – ".join(f"{one:.3g}" for one in row["times"][1:])
        print(
            f"| {row['title']} | {row['rows']:,} | {row['classes']:,} | {former} | {now} | {row['times'][0]:.3g} ({low_high}) |"
        )
    print(f"\n{len(slower)} of {len(rows)} races are slower than before by more than 5 %.")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
