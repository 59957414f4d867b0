"""Rows in groups: how often intervals miss and levels if calibrated are exceeded, through ``interval`` and ``null_band``."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from calibrant import Decisions, Predictions
from calibrant.errors import NoIntervalError
from calibrant.metrics import ECE, NLL, Accuracy, Brier
from calibrant.statistics import interval, null_band

SIZES = ((10, 50), (30, 30), (100, 10), (100, 30), (200, 50))
EFFECTS = (0.0, 0.5, 1.0)  # standard deviation of a group's effect on the log-odds
HEATS = {"calibrated": 1.0, "over-confident": 1.4, "under-confident": 0.7}  # of the log-odds
ATOMS, SEED, DRAWS = 400, 20261123, 200


def group_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each size, effect and kind of model."""
    for kind, heat in HEATS.items():
        for effect in EFFECTS:
            for groups, rows in SIZES:
                name = f"groups | {kind}, effects of sd {effect:g} | {groups} × {rows}"
                if name not in done:
                    started = time.process_time()
                    found = _figures(groups, rows, effect, heat, replicates=replicates)
                    spent = round(time.process_time() - started, 1)
                    yield {"cell": name, "replicates": replicates, "metrics": found, "cpu_s": spent}


def _figures(groups: int, rows: int, effect: float, heat: float, *, replicates: int) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng([SEED, groups, rows])
    base, truth = marginal(effect)
    p = sigmoid(heat * np.log(truth / (1 - truth)))
    right = np.stack([truth, 1 - truth], axis=1)
    seen = np.stack([p, 1 - p], axis=1)
    index = ECE().binning.assign(torch.from_numpy(p)).numpy()
    truths = {
        ECE(): float(np.abs(np.bincount(index, weights=(p - truth) / ATOMS)).sum()),
        Accuracy(): float(truth.mean()),
        NLL(): float(-(right * np.log(seen)).sum(axis=1).mean()),
        Brier(): float((right * 2 * (1 - seen) ** 2).sum(axis=1).mean()),
    }
    hits = {type(metric).__name__: np.zeros(4) for metric in truths}
    above = 0
    group = np.repeat(np.arange(groups), rows)
    for at in range(replicates):
        atom = rng.integers(ATOMS, size=groups * rows)
        lift = rng.normal(0, effect, groups)[group]
        wrong = (rng.random(groups * rows) > sigmoid(base[atom] + lift)).astype(np.int64)
        data = Predictions.from_probs(seen[atom], wrong, groups=group)
        pairs = Decisions(data.confidence, data.correct.double(), groups=data.groups)
        limit = null_band(ECE(), pairs, draws=DRAWS, seed=at).high
        above += ECE()(pairs) > limit
        for metric, true in truths.items():
            try:
                found = interval(metric, data, draws=DRAWS, seed=at)
            except NoIntervalError:
                hits[type(metric).__name__][0] += 1
                continue
            hits[type(metric).__name__][1:] += (
                found.low > true + 1e-12,
                found.high < true - 1e-12,
                found.high - found.low,
            )
    shares = {
        name: {
            "refused": round(float(h[0]) / replicates, 4),
            "too_high": round(float(h[1]) / replicates, 4),
            "too_low": round(float(h[2]) / replicates, 4),
            "length": round(float(h[3]) / max(replicates - h[0], 1), 5),
        }
        for name, h in hits.items()
    }
    return {**shares, "ECE above its 97.5 % limit if calibrated": {"share": round(above / replicates, 4)}}


def marginal(effect: float) -> tuple[Any, Any]:
    """Return the atoms' log-odds (M,) of a right decision and, with groups' effects of that standard deviation, its probability (M,)."""
    base = np.random.default_rng(0).normal(1.5, 1.0, ATOMS).clip(0.1)
    node, weight = np.polynomial.hermite_e.hermegauss(40)
    return base, (sigmoid(base[:, None] + effect * node) * weight).sum(axis=1) / weight.sum()


def sigmoid(values: Any) -> Any:
    """Return 1 / (1 + e^−v)."""
    return 1 / (1 + np.exp(-values))
