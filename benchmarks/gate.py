"""How often the gate decides wrongly, and how often it decides: simulations behind docs/evidence.md.

    python -m benchmarks.gate [--simulations 4000] [--json docs/results/gate.json]

Every model below has an ECE that is known exactly: confidences of four shapes, too high everywhere ("over"), too high and
too low in turn from bin to bin ("alternating"), or too high in as few bins as can be ("few bins"). The decisions are those of
`calibrant.operate.check`.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.operate.plan import decisions, simulated

Floats = NDArray[np.float64]
BINS = 15
SEED = 20261122
ROWS = (50, 200, 1000, 5000, 20_000)


def models() -> dict[str, tuple[Floats, Floats]]:
    """Return name → confidences and their probabilities."""
    wide, middle = (np.arange(60) + 0.5) / 60, np.linspace(0.3, 0.999, 60)
    sharp, sure = np.linspace(0.3, 0.9995, 120), np.linspace(0.99, 0.9999, 30)
    peaked = np.exp((sharp - 1) / 0.1)
    return {
        "confidences 0 to 1": (wide, np.full(60, 1 / 60)),
        "confidences 0.3 to 1": (middle, np.full(60, 1 / 60)),
        "mean confidence 0.90": (sharp, peaked / peaked.sum()),
        "one error in 200": (sure, np.full(30, 1 / 30)),
    }


def broken(p: Floats, mass: Floats, ece: float, shape: str) -> Floats:
    """Return the probabilities of being right at which the ECE in 15 bins is exactly ``ece``."""
    index = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    sign = np.where(index % 2 == 0, 1.0, -1.0) if shape == "alternating" else np.ones_like(p)
    if shape == "few bins":
        room = np.bincount(index, mass * p, minlength=BINS)
        order = np.argsort(-room)
        filled = int(np.searchsorted(np.cumsum(room[order]), ece))
        before = np.isin(index, order[:filled])  # wrong throughout; the next bin takes the rest of the gap
        rest = _shifted(np.where(index == order[filled], p, 0.0), mass, index, sign, ece - room[order[:filled]].sum())
        return np.where(before, 0.0, np.where(index == order[filled], rest, p))
    return _shifted(p, mass, index, sign, ece)


def _shifted(p: Floats, mass: Floats, index: NDArray[np.int64], sign: Floats, ece: float) -> Floats:
    """Return ``p`` moved against ``sign`` by the one amount at which the ECE is ``ece``."""
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        gaps = np.bincount(index, mass * (p - np.clip(p - sign * middle, 0, 1)))
        low, high = (middle, high) if np.abs(gaps).sum() < ece else (low, middle)
    return np.clip(p - sign * high, 0, 1)


def promises(simulations: int) -> Iterator[dict[str, Any]]:
    """Yield a record for each promise and model: the rate, its standard error, rows, limit and true ECE."""
    rng = np.random.default_rng(SEED)

    def rates(model: str, shape: str, true: float, limit: float, rows: int) -> dict[str, Any]:
        p, mass = models()[model]
        truth = p if true == 0 else broken(p, mass, true, shape)
        moments, confidences = simulated(p, mass, truth, rows, draws=simulations, rng=rng)
        passes, fails = (float(hits.mean()) for hits in decisions(moments, confidences, limit))
        where = {"model": model, "shape": shape, "true": true, "limit": limit, "rows": rows}
        return {**where, "passes": passes, "fails": fails, "replicates": simulations}

    for model in models():
        for rows, limit in ((6000, 0.05), (10_000, 0.03)):
            yield rates(model, "calibrated", 0.0, limit, rows)
        for shape in ("over", "alternating", "few bins"):
            yield rates(model, shape, 0.08, 0.03, 2000)
            for rows in ROWS:
                yield rates(model, shape, 0.03, 0.03, rows)


def error(share: float, count: int) -> float:
    """Return the Monte-Carlo standard error of a rate."""
    return math.sqrt(share * (1 - share) / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = list(promises(chosen.simulations))
    print("| model | shape | ECE | limit | rows | pass % | fail % |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for one in found:
        shown = [
            f"{100 * one[key]:.2f} ± {100 * error(one[key], one['replicates']):.2f}" for key in ("passes", "fails")
        ]
        print(
            f"| {one['model']} | {one['shape']} | {one['true']} | {one['limit']} | {one['rows']:,} | {' | '.join(shown)} |"
        )
    if chosen.json:
        chosen.json.write_text(json.dumps({"seed": SEED, "rates": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
