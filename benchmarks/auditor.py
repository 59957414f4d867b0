"""What labels chosen by ``operate.sample`` are worth against simple random rows, how often the intervals cover, and looks err.

    python -m benchmarks.auditor --data DIR [--replicates 50] [--pools 200] [--record benchmarks/records/auditor.json]

DIR holds prediction files with a val and a test split. The test split is the pool, calibrated by a temperature fitted to 300 rows
of val; costs are drawn once for each number of classes. The squared error of the estimate is divided by the variance of the mean of
as many simple random rows, which is known since all labels are. One thread.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import versions
from calibrant import Predictions, load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import audit, sample

RECORD = Path("benchmarks/records/auditor.json")
FIGURES, BUDGETS = ("accuracy", "cost", "nll", "ece"), (300, 1000)
CALIBRATION, SEED = 300, 20261123


def pool_of(path: Path) -> tuple[Predictions, torch.Tensor, torch.Tensor]:
    """Return the calibrated pool, its labels, and costs."""
    val, test = load_predictions(path, "val"), load_predictions(path, "test")
    assert isinstance(val, Predictions)
    assert isinstance(test, Predictions)
    rng = np.random.default_rng(SEED)
    rows = torch.from_numpy(rng.choice(len(val), CALIBRATION, replace=False))
    fitted = TemperatureScaling().fit(val.logits[rows], val.need_labels()[rows])
    costs = torch.from_numpy(rng.uniform(0.2, 2, (test.classes, test.classes)) * (1 - np.eye(test.classes)))
    return Predictions.from_logits(fitted(test.logits)), test.need_labels(), costs


def cells(path: Path, *, replicates: int) -> Iterator[dict[str, Any]]:
    """Yield the error and coverage of each figure and budget on one set."""
    pool, labels, costs = pool_of(path)
    whole = sample(pool, len(pool), costs=costs)
    known = audit(pool, whole, labels[whole.rows], figures=FIGURES, costs=costs).figures
    for figure in FIGURES:
        if figure == "ece":
            from calibrant.metrics import ECE

            truth, variance = float(ECE()(Predictions(pool.logits, labels=labels))), None
        else:
            values = whole.pool.values(figure, np.arange(len(pool)), labels.numpy())  # type: ignore[union-attr]
            truth, variance = known[figure].estimate, float(values.var(ddof=1))
        for budget in (one for one in BUDGETS if one <= 0.7 * len(pool)):
            errors, hits, widths = [], 0, []
            for seed in range(replicates):
                drawn = sample(pool, budget, aim=figure, seed=seed, costs=costs)
                found = audit(pool, drawn, labels[drawn.rows], figures=[figure], costs=costs).figures[figure]
                errors.append((found.estimate - truth) ** 2)
                hits += found.low <= truth <= found.high
                widths.append((found.high - found.low) / 2)
            even = None if variance is None else variance * (1 / budget - 1 / len(pool))
            yield {
                "set": path.stem, "figure": figure, "labels": budget, "pool": len(pool), "replicates": replicates,
                "error_ratio": None if even is None else float(np.mean(errors)) / even,
                "ratio_error": None if even is None else float(np.std(errors)) / replicates**0.5 / even,
                "coverage": hits / replicates, "half_width": float(np.mean(widths)),
            }  # fmt: skip


def sequential(pools: int, *, looks: int = 6, batch: int = 100) -> dict[str, Any]:
    """Return how often a limit at the truth is decided wrongly at any look, and how many labels a clear limit takes."""
    wrong, used, rows = 0, [], 4000
    for seed in range(pools):
        rng = np.random.default_rng([SEED, seed])
        z = rng.normal(size=(rows, 3)) * 2
        labels = torch.from_numpy((z + rng.gumbel(size=z.shape)).argmax(1))
        pool = Predictions.from_logits(z)
        truth = float((pool.predicted == labels).double().mean())
        drawn, clear = sample(pool, batch, seed=seed), None
        decided = False
        for look in range(1, looks + 1):
            at = labels[drawn.rows]
            decided |= audit(pool, drawn, at, minimum={"accuracy": truth + 1e-9}).verdict == "pass"
            decided |= audit(pool, drawn, at, maximum={"accuracy": truth - 1e-9}).verdict == "pass"
            if clear is None and audit(pool, drawn, at, minimum={"accuracy": truth - 0.1}).verdict == "pass":
                clear = look * batch
            if look < looks:
                drawn = drawn.extend(batch, labels=at)
        wrong += decided
        used.append(clear or looks * batch)
    return {
        "pools": pools,
        "looks": looks,
        "batch": batch,
        "wrong": wrong / pools,
        "labels_clear_mean": float(np.mean(used)),
    }


def main() -> None:
    """Run all cells and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--replicates", type=int, default=50)
    parser.add_argument("--pools", type=int, default=200)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    record: dict[str, Any] = {"versions": versions(), "sequential": sequential(options.pools), "cells": []}
    for path in sorted(options.data.glob("*.npz")):
        record["cells"] += cells(path, replicates=options.replicates)
        record["cpu_s"] = round(time.process_time() - started, 1)
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    for figure in FIGURES:
        for budget in BUDGETS:
            found = [one for one in record["cells"] if (one["figure"], one["labels"]) == (figure, budget)]
            ratios = [one["error_ratio"] for one in found if one["error_ratio"] is not None]
            covered = [one["coverage"] for one in found]
            print(
                figure,
                budget,
                len(found),
                "ratio",
                np.median(ratios) if ratios else None,
                "coverage",
                np.mean(covered),
                min(covered),
            )


if __name__ == "__main__":
    main()
