"""Measures how often each of the library's promises is broken on samples from populations whose true values are known.

    python -m benchmarks.populations --list
    python -m benchmarks.populations interval-ece gate-ece --n 300,5000 --replicates 300
    python -m benchmarks.populations interval-nll --only "rare events" --record cells.csv     # continues the record
    python -m benchmarks.populations --table benchmarks/records/populations.csv              # the table of docs/uncertainty.md

A cell is a promise, a population and a number of rows n. With 300 samples, a cell takes seconds (metrics) to minutes (monitor,
compare); all cells with two values of n take about a night on one core.
"""

import argparse
import csv
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.populations.population import Population
from benchmarks.populations.promises import PROMISES, allowed
from benchmarks.populations.registry import POPULATIONS
from calibrant.errors import CalibrantError

FIELDS = ("promise", "population", "n", "replicates", "seed", "shown", "broken")


def cell(promise: str, source: Population, n: int, *, replicates: int, seed: int) -> dict[str, Any] | None:
    """Return the rates of one cell, or None if the promise does not apply; a refusal does not break a promise."""
    found: list[dict[str, float]] = []
    for at in range(replicates):
        try:
            found.append(PROMISES[promise](source, n, seed + at))
        except CalibrantError:
            found.append({"shown": 0.0})
    if not (found := [one for one in found if one]):
        return None
    shown, broken, other = (
        float(np.mean([one.get(key, 0.0) for one in found])) for key in ("shown", "broken", "other")
    )
    where = {"promise": promise, "population": source.name, "n": n, "replicates": replicates, "seed": seed}
    return {**where, "shown": round(shown, 4), "broken": round(max(broken, other), 4)}


def run(
    promises: Sequence[str], ns: Sequence[int], *, replicates: int, only: str, record: Path | None, seed: int
) -> None:
    """Simulate each cell that is not yet in ``record``, print it, and append it to ``record``."""
    known = {_key(one) for one in read(record)} if record is not None and record.exists() else set()
    warnings.simplefilter("ignore")
    printer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    chosen = [source for source in POPULATIONS if any(part in source.name for part in only.split("|"))]
    for n, source, promise in itertools.product(ns, chosen, promises):
        if (promise, source.name, n, replicates, seed) in known:
            continue
        found = cell(promise, source, n, replicates=replicates, seed=seed)
        if found is None:
            continue
        printer.writerow(found)
        sys.stdout.flush()
        if record is not None:
            new = not record.exists()
            with record.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(found)


def read(record: Path) -> Iterator[dict[str, Any]]:
    """Yield the cells in a record."""
    with record.open(newline="") as file:
        for row in csv.DictReader(file):
            whole = {name: int(row[name]) for name in ("n", "replicates", "seed")}
            yield {**row, **whole, "shown": float(row["shown"]), "broken": float(row["broken"])}


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(one[name] for name in FIELDS[:5])


def pooled(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells, after combining the samples of each cell over seeds."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in cells:
        kept = found.setdefault(_key(one)[:3], {**one, "replicates": 0, "shown": 0.0, "broken": 0.0})
        before, more = kept["replicates"], one["replicates"]
        for name in ("shown", "broken"):
            kept[name] = (before * kept[name] + more * one[name]) / (before + more)
        kept["replicates"] = before + more
    return list(found.values())


def table(cells: Iterable[dict[str, Any]]) -> str:
    """Return a table of the promises: the number of cells, how often there is an answer, and where it is broken most often.

    The column "above" counts the cells whose rate is more than two standard errors of the simulation above the allowed rate; by
    chance alone, this happens in one cell in 40.
    """
    all_cells = pooled(cells)
    rows = ["| promise | allowed | cells | answered | broken: mean | broken: worst cell | above |", "|" + " --- |" * 7]
    for promise in dict.fromkeys(one["promise"] for one in all_cells):
        mine, limit = [one for one in all_cells if one["promise"] == promise], allowed(promise)
        above = sum(one["broken"] > limit + 2 * (limit * (1 - limit) / one["replicates"]) ** 0.5 for one in mine)
        worst = max(mine, key=lambda one: one["broken"])
        shown, broken = (float(np.mean([one[key] for one in mine])) for key in ("shown", "broken"))
        where = f"{worst['broken']:.1%}: {worst['population']}, n = {worst['n']:,}"
        rows.append(f"| {promise} | {limit:.1%} | {len(mine)} | {shown:.0%} | {broken:.1%} | {where} | {above} |")
    return "\n".join(rows)


def main() -> None:
    """Simulate the named promises, or print the table of a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("promises", nargs="*", metavar="PROMISE", help="all by default; --list prints their names")
    parser.add_argument("--n", default="300,5000", help="numbers of rows, separated by commas")
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of the first sample; samples with other seeds are added to the same cell",
    )
    parser.add_argument("--only", default="", help="parts of the populations' names, separated by |")
    parser.add_argument(
        "--record", type=Path, help="CSV file to which results are appended, and from which a later run resumes"
    )
    parser.add_argument(
        "--table", type=Path, metavar="RECORD", help="print the table of a record instead of simulating"
    )
    parser.add_argument("--list", action="store_true", help="print the promises and the populations")
    options = parser.parse_args()
    if unknown := sorted(set(options.promises) - set(PROMISES)):
        parser.error(f"expected promises among {', '.join(PROMISES)}, got {', '.join(unknown)}")
    if options.table:
        print(table(read(options.table)))
    elif options.list:
        print("\n".join([*PROMISES, "", *(source.name for source in POPULATIONS)]))
    else:
        sizes = [int(n) for n in options.n.split(",")]
        run(
            options.promises or tuple(PROMISES),
            sizes,
            replicates=options.replicates,
            only=options.only,
            record=options.record,
            seed=options.seed,
        )


if __name__ == "__main__":
    main()
