"""How often intervals of weighted rows miss: the record of docs/weights.md.

    python -m benchmarks.weights [--replicates 300] [--record docs/results/weights.json]

A population of rows x with confidences and outcomes; a survey keeps row x with a probability proportional to 1/w(x). The weights
w have the coefficient of variation and, after sampling, the effective sample size that a cell names. They either say nothing
about the rows ("independent") or are larger where the model is wrong ("informative"), so that the unweighted figure is biased.
Truths are those of the population: sums over two million rows with their probabilities in place of outcomes. One thread.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import Predictions
from calibrant.binning import BinTable, EqualWidth
from calibrant.errors import NoIntervalError
from calibrant.metrics import ECE, NLL, Accuracy, Brier, DebiasedECE, Metric
from calibrant.statistics import interval

RECORD = Path("docs/results/weights.json")
POPULATION, SEED, DRAWS = 2_000_000, 20261122, 300
METRICS: dict[str, Metric] = {
    "Accuracy": Accuracy(),
    "NLL": NLL(),
    "Brier": Brier(),
    "ECE": ECE(),
    "DebiasedECE": DebiasedECE(),
}


class World:
    """A population of binary rows: logits of the model, and of the truth.

    Args:
        slope: The true log-odds are this times the model's: 1 is calibrated, below 1 over-confident.
        variation: Coefficient of variation of the weights.
        informative: Whether weights are larger where the model is less often right.
    """

    def __init__(self, slope: float, variation: float, *, informative: bool) -> None:
        rng = np.random.default_rng([SEED, int(10 * slope), int(10 * variation), informative])
        self.z = rng.normal(0.8, 2.0, POPULATION)
        self.p = 1 / (1 + np.exp(-slope * self.z))
        sigma = np.sqrt(np.log1p(variation**2))
        noise = rng.normal(size=POPULATION)
        if informative:
            doubt = -np.abs(self.z)
            noise = 0.7 * (doubt - doubt.mean()) / doubt.std() + np.sqrt(1 - 0.49) * noise
        # of the sample, in which a row comes with probability 1/w, the weights have this variation
        self.w = np.exp(sigma * noise)
        self.chance = np.cumsum(1 / self.w)
        self.variation = float(np.sqrt(self.w.mean() * (1 / self.w).mean() - 1))
        self.rng = rng

    def truths(self) -> dict[str, float]:
        """Return the figures of the population."""
        q = 1 / (1 + np.exp(-self.z))
        right = np.where(self.z > 0, self.p, 1 - self.p)
        top = torch.from_numpy(np.maximum(q, 1 - q))
        table: BinTable = EqualWidth(15).table(top, torch.from_numpy(right))
        loss = -(self.p * np.log(q) + (1 - self.p) * np.log1p(-q))
        brier = 2 * (self.p * (1 - q) ** 2 + (1 - self.p) * q**2)
        return {
            "Accuracy": float(right.mean()),
            "NLL": float(loss.mean()),
            "Brier": float(brier.mean()),
            "ECE": table.error(),
            "DebiasedECE": table.error(norm=2),
        }

    def sample(self, effective: int) -> Predictions:
        """Return a survey of so many rows of equal weight."""
        rows = round(effective * (1 + self.variation**2))
        chosen = np.searchsorted(self.chance, self.rng.random(rows) * self.chance[-1])
        y = (self.rng.random(rows) < self.p[chosen]).astype(np.int64)
        return Predictions.from_binary_logits(self.z[chosen], y, weights=self.w[chosen], weight_kind="sampling")


def cell(world: World, effective: int, replicates: int) -> dict[str, Any]:
    """Return how often each interval holds the truth, and how often it is offered."""
    truths = world.truths()
    offered, held, width = (dict.fromkeys(METRICS, 0.0) for _ in range(3))
    for seed in range(replicates):
        data = world.sample(effective)
        for name, metric in METRICS.items():
            try:
                found = interval(metric, data, draws=DRAWS, seed=seed)
            except NoIntervalError:
                continue
            offered[name] += 1
            held[name] += found.low <= truths[name] <= found.high
            width[name] += found.high - found.low
    return {
        name: {
            "truth": round(truths[name], 5),
            "offered": round(offered[name] / replicates, 3),
            "coverage": round(held[name] / offered[name], 3) if offered[name] else None,
            "width": round(width[name] / offered[name], 4) if offered[name] else None,
        }
        for name in METRICS
    }


def main() -> None:
    """Run every cell and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--variations", type=float, nargs="*", default=[0.5, 2.0])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    for effective in chosen.sizes:
        for slope in (1.0, 0.6):
            for informative in (False, True):
                for variation in chosen.variations:
                    started = time.process_time()
                    world = World(slope, variation, informative=informative)
                    figures = cell(world, effective, chosen.replicates)
                    name = f"slope {slope}, CV {world.variation:.2f}, {'informative' if informative else 'independent'}"
                    cells.append({"cell": name, "effective": effective, "replicates": chosen.replicates, "metrics": figures,
                                  "cpu_s": round(time.process_time() - started, 1)})  # fmt: skip
                    print(
                        f"n_eff {effective}, {name}:",
                        {k: (v["coverage"], v["offered"]) for k, v in figures.items()},
                        flush=True,
                    )
                    chosen.record.write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
