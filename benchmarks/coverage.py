"""How often the intervals miss, the levels if calibrated are exceeded, and the tests reject: the record of docs/uncertainty.md.

    python -m benchmarks.coverage [--replicates 1000] [--only PART] [--record docs/results/coverage.json]

Every cell draws from a population with a known truth (``benchmarks.mechanisms``), many samples at once, and goes through the
same functions as ``interval``, ``null_band`` and ``compare``. Cells that the record holds already with as many replicates are
not run again, so that a run that was stopped goes on. One thread.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.former import former_cells
from benchmarks.groups import group_cells
from benchmarks.lengths import length_cells, longer_cells
from benchmarks.levels import group_level_cells, level_cells
from benchmarks.mechanisms import MECHANISMS, Population, constant, population
from benchmarks.pairs import pair_cells
from benchmarks.samples import Samples, binned_hits, mean_hits

RECORD = Path("docs/results/coverage.json")
CLASSES, ROWS, ACCURACIES = (2, 3, 10, 100), (100, 300, 1000, 10_000), (0.7, 0.95, 0.997)
CONSTANT = ((0.999, 0.995), (0.995, 0.999))  # confidence and accuracy of the audit's models of one confidence
SEED = 20261122


def populations() -> list[Callable[[], Population]]:
    """Return makers of the populations of single rows."""
    made = [lambda c=c, a=a: constant(c, a) for c, a in CONSTANT]
    return made + [lambda k=k, a=a, m=m: population(k, a, m) for k in CLASSES for a in ACCURACIES for m in MECHANISMS]


def interval_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of every metric for each population and number of rows."""
    for make in populations():
        drawn = make()
        for rows in ROWS:
            count = min(replicates, 300) if rows == 10_000 and drawn.classes == 100 else replicates
            name = f"intervals | {drawn.name} | n = {rows}"
            if name in done:
                continue
            started = time.process_time()
            samples = Samples.draw(drawn, np.random.default_rng([SEED, rows]), replicates=count, rows=rows)
            figures = {**mean_hits(samples), **binned_hits(samples)}
            yield {
                "cell": name,
                "classes": drawn.classes,
                "rows": rows,
                "accuracy": round(float(drawn.accuracy.mean()), 4),
                "replicates": count,
                "metrics": figures,
                "cpu_s": round(time.process_time() - started, 1),
            }


def longer_of(record: list[dict[str, Any]], replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the lengths of intervals that the record's first look found too long, on more samples."""
    first = {cell["cell"]: cell["metrics"] for cell in record if cell["cell"].startswith("lengths")}
    for make in populations():
        source = make()
        for rows in ROWS:
            count = min(replicates, 300) if rows == 10_000 and source.classes == 100 else replicates
            yield from longer_cells(source, (rows,), count, SEED, first, done)


def all_level_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield how often calibrated models exceed their limits: rows in groups, then single rows."""
    yield from group_level_cells(replicates, done)
    drawn = [population(k, a, "calibrated") for a in ACCURACIES for k in CLASSES]
    for rows in sorted(ROWS, key=lambda rows: rows not in (300, 1000)):
        for source in drawn:
            large = rows == 10_000 and source.classes == 100
            yield from level_cells(source, rows, min(replicates, 300) if large else replicates, SEED, done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--only", choices=["intervals", "groups", "tests", "former", "lengths", "longer", "levels"])
    parser.add_argument("--record", type=Path, default=RECORD)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    record: list[dict[str, Any]] = json.loads(chosen.record.read_text())["cells"] if chosen.record.exists() else []
    parts = {
        "tests": lambda done: pair_cells(4 * chosen.replicates, done),
        "former": lambda done: former_cells(4 * chosen.replicates, done),
        "groups": lambda done: group_cells(chosen.replicates, done),
        "lengths": lambda done: (
            cell for make in populations() for cell in length_cells(make(), ROWS, chosen.replicates // 10, SEED, done)
        ),
        "longer": lambda done: longer_of(record, chosen.replicates, done),
        "levels": lambda done: all_level_cells(chosen.replicates, done),
        "intervals": lambda done: interval_cells(chosen.replicates, done),
    }
    for name, part in parts.items():
        if chosen.only not in (None, name):
            continue
        for cell in part({cell["cell"] for cell in record}):
            record.append(cell)
            lines = ",\n".join(json.dumps(one) for one in record)
            chosen.record.write_text(f'{{"cells": [\n{lines}\n]}}\n')
            print(cell["cell"], cell["cpu_s"], flush=True)


if __name__ == "__main__":
    main()
