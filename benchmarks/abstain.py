"""How often an abstention threshold breaks its promise, and how much it answers beside MAPIE: behind docs/evidence.md.

    python -m benchmarks.abstain [--simulations 10000] [--json docs/results/abstain.json]

Models have known errors at every confidence. The promise: with probability 95 % over the labelled rows the error among the
answers to come is at most 5 %. MAPIE's `BinaryClassificationController` controls the precision of "right" on the same rows.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calibrant import BinaryPairs
from calibrant.operate import abstain

Floats = NDArray[np.float64]
SEED, ERROR, CONFIDENCE = 20261122, 0.05, 0.95
ROWS = (200, 1000, 5000)
LARGE = 400_000
Model = tuple[Callable[[np.random.Generator, int], Floats], Callable[[Floats], Floats]]


def models() -> dict[str, Model]:
    """Return name → (draws of the confidence, error at a confidence)."""

    def spread(rng: np.random.Generator, n: int) -> Floats:
        return expit(rng.normal(2, 2, n))

    def saturated(rng: np.random.Generator, n: int) -> Floats:
        return np.where(rng.random(n) < 0.6, 1.0, expit(rng.normal(1, 1, n)))

    return {
        "calibrated": (spread, lambda p: 1 - p),
        "overconfident, 2.5 times the errors": (spread, lambda p: np.minimum(1, 2.5 * (1 - p))),
        "error 5.05 % at every confidence": (spread, lambda p: np.full_like(p, 0.0505)),
        "60 % of confidences are 1, 4 % of them wrong": (saturated, lambda p: np.where(p == 1, 0.04, 0.2)),
        "four confidences": (lambda rng, n: rng.choice([0.6, 0.8, 0.9, 0.99], n), lambda p: 1 - p),
        "not monotone: the surest 10 % are wrong in 5.2 %": (
            lambda rng, n: rng.random(n), lambda p: np.where(p > 0.9, 0.052, np.where(p > 0.85, 0.0, 0.2)),
        ),
    }  # fmt: skip


class Truth:
    """Error and coverage at every threshold, from many rows without sampled labels."""

    def __init__(self, model: Model) -> None:
        draw, error = model
        self.p = np.sort(draw(np.random.default_rng(SEED), LARGE))
        self.sums = np.append(np.cumsum(error(self.p)[::-1])[::-1], 0.0)

    def at(self, threshold: float) -> tuple[float, float]:
        first = int(np.searchsorted(self.p, threshold))
        taken = LARGE - first
        return (float(self.sums[first]) / taken if taken else 0.0), taken / LARGE


def simulated(model: Model, rows: int, simulations: int) -> dict[str, Any]:
    """Return how often the promise was broken, how often no threshold qualified, and the mean share answered."""
    rng, truth = np.random.default_rng(SEED + rows), Truth(model)
    broken = none = 0
    answered = 0.0
    for _ in range(simulations):
        p = model[0](rng, rows)
        right = (rng.random(rows) >= model[1](p)).astype(int)
        rule = abstain(BinaryPairs.from_probs(p, right), error=ERROR, confidence=CONFIDENCE)
        error, share = truth.at(rule.threshold)
        broken, none, answered = broken + (error > ERROR), none + (not rule.qualifies), answered + share / simulations
    return {"rows": rows, "broken": broken, "none": none, "answered": answered, "replicates": simulations}


def beside_mapie(model: Model, rows: int, simulations: int) -> dict[str, Any]:
    """Return the mean share answered by MAPIE's threshold of precision ≥ 95 % and by ours, on the same rows."""
    from mapie.risk_control import BinaryClassificationController

    rng, truth = np.random.default_rng(SEED + rows), Truth(model)
    shares, broken = np.zeros(2), np.zeros(2)
    for _ in range(simulations):
        p = model[0](rng, rows)
        right = (rng.random(rows) >= model[1](p)).astype(int)
        ours = abstain(BinaryPairs.from_probs(p, right), error=ERROR, confidence=CONFIDENCE).threshold
        controller = BinaryClassificationController(
            lambda x: np.column_stack([1 - x[:, 0], x[:, 0]]), "precision", target_level=1 - ERROR,
            confidence_level=CONFIDENCE, best_predict_param_choice="recall", list_predict_params=np.linspace(0, 0.999, 1000),
        )  # fmt: skip
        controller.calibrate(p[:, None], right)
        found = controller.best_predict_param
        for at, threshold in enumerate((ours, np.inf if found is None else float(found))):
            error, share = truth.at(threshold)
            shares[at] += share / simulations
            broken[at] += (error > ERROR) / simulations
    return {
        "rows": rows, "replicates": simulations, "ours": shares[0], "mapie": shares[1], "ours_broken": broken[0],
        "mapie_broken": broken[1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=10_000)
    parser.add_argument("--mapie", type=int, default=100, help="simulations beside MAPIE; 0 leaves it out")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found, beside = [], []
    print("| model | rows | broken % | no threshold % | answered % |\n| --- | ---: | ---: | ---: | ---: |")
    for name, model in models().items():
        for rows in ROWS:
            one = {"model": name, **simulated(model, rows, chosen.simulations)}
            found.append(one)
            shown = [
                100 * one["broken"] / one["replicates"],
                100 * one["none"] / one["replicates"],
                100 * one["answered"],
            ]
            print(f"| {name} | {rows:,} | " + " | ".join(f"{value:.2f}" for value in shown) + " |", flush=True)
    for name in list(models())[:2] if chosen.mapie else []:
        for rows in ROWS:
            beside.append({"model": name, **beside_mapie(models()[name], rows, chosen.mapie)})
            print(beside[-1], flush=True)
    if chosen.json:
        record = {"seed": SEED, "error": ERROR, "confidence": CONFIDENCE, "promise": found, "mapie": beside}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
