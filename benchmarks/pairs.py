"""Pairs of models that are equal in a metric, and pairs that are not: how often ``compare`` tells them apart."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from calibrant import Predictions
from calibrant.evaluate import compare
from calibrant.metrics import NLL, Accuracy, Brier, SquaredECE

ROWS, ATOMS, BINS, SEED, LEVEL = (300, 1000, 10_000), 600, 15, 20261124, 0.05
METRICS = (Accuracy(), NLL(), Brier(), SquaredECE())
Model = tuple[Any, Any]  # confidences (ATOMS,) and how often the decision is right (ATOMS,)


def pair_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the share of samples in which each metric, and any after Holm's correction, is told apart."""
    for name, (a, b, shared, sizes) in _pairs().items():
        for rows in sizes:
            cell = f"tests | {name} | n = {rows}"
            if cell in done:
                continue
            started, count = time.process_time(), replicates
            found = _rejected(a, b, shared, rows=rows, replicates=count)
            spent = round(time.process_time() - started, 1)
            yield {"cell": cell, "replicates": count, "equal_in": _equal(a, b), "metrics": found, "cpu_s": spent}


def _pairs() -> dict[str, tuple[Model, Model, float, tuple[int, ...]]]:
    """Return name → both models, how much of a row's luck they share, and the numbers of rows."""
    low, middle, high = (_confidences(mean) for mean in (0.62, 0.75, 0.93))
    found: dict[str, tuple[Model, Model, float, tuple[int, ...]]] = {
        "calibrated, accuracy .62 and .93": ((low, low), (high, high), 0.3, ROWS),
        "calibrated, exchangeable, accuracy .75": (
            (middle, middle),
            (middle[::-1].copy(), middle[::-1].copy()),
            0.5,
            ROWS,
        ),
    }
    for size in (0.0016, 0.0064):
        every = (middle, _truth(middle, "over", size))
        for kind, words in (("one", "one bin off"), ("osc", "every other bin below"), ("under", "under-confident")):
            name = f"over-confident in all bins and {words}, squared error {size:g}"
            found[name] = (every, (middle, _truth(middle, kind, size)), 0.6, ROWS)
    for mean, of in ((".75", middle), (".93", high)):
        for kind, words in (("over", "over-confident"), ("osc", "oscillating")):
            name = f"power: accuracy {mean}, ECE .04 {words} and 0"
            found[name] = ((of, _moved(of, kind, 0.04)), (of, of), 0.6, (1000,))
    return found


def _confidences(mean: float) -> Any:
    noise, low, high = np.random.default_rng(SEED).normal(size=ATOMS) * 1.5, -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        p = (1 / (1 + np.exp(-noise - middle))).clip(0.5, 0.999)
        low, high = (middle, high) if p.mean() < mean else (low, middle)
    return p


def _moved(p: Any, kind: str, size: float) -> Any:
    index = _bins(p)
    sign = {
        "over": np.ones(ATOMS), "under": -np.ones(ATOMS), "osc": np.where(index % 2 == 0, 1.0, -1.0),
        "one": (index == np.bincount(index).argmax()) * 1.0,
    }[kind]  # fmt: skip
    return (p - size * sign).clip(0, 1)


def _truth(p: Any, kind: str, squared: float) -> Any:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _squared(p, _moved(p, kind, middle)) < squared else (low, middle)
    return _moved(p, kind, high)


def _squared(p: Any, truth: Any) -> float:
    index = _bins(p)
    mass, gap = (
        np.bincount(index, minlength=BINS) / ATOMS,
        np.bincount(index, weights=p - truth, minlength=BINS) / ATOMS,
    )
    return float((gap**2 / np.maximum(mass, 1e-12)).sum())


def _bins(p: Any) -> Any:
    return SquaredECE().binning.assign(torch.from_numpy(p)).numpy()


def _figures(model: Model) -> dict[str, float]:
    p, truth = model
    nll = float(-(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean())
    brier = float(2 * (truth * (1 - p) ** 2 + (1 - truth) * p**2).mean())
    return {"Accuracy": float(truth.mean()), "NLL": nll, "Brier": brier, "SquaredECE": _squared(p, truth)}


def _equal(a: Model, b: Model) -> list[str]:
    one, other = _figures(a), _figures(b)
    return [name for name in one if abs(one[name] - other[name]) < 1e-9]


def _rejected(a: Model, b: Model, shared: float, *, rows: int, replicates: int) -> dict[str, float]:
    rng, hits, equal = np.random.default_rng([SEED, rows]), np.zeros(5), _equal(a, b)
    alike = [at for at, metric in enumerate(METRICS) if type(metric).__name__ in equal]
    for _ in range(replicates):
        atom, luck = rng.integers(ATOMS, size=rows), rng.random(rows)
        own = np.where(rng.random(rows) < shared, luck, rng.random(rows))
        data = []
        labels = rng.integers(2, size=rows)
        for (p, truth), draw in ((a, luck), (b, own)):
            right = draw < truth[atom]
            decided = np.where(right, labels, 1 - labels)
            probs = np.where(np.arange(2) == decided[:, None], p[atom, None], 1 - p[atom, None])
            data.append(
                Predictions(
                    torch.from_numpy(np.log(probs)), torch.from_numpy(labels), decision=torch.from_numpy(decided)
                )
            )
        tests = compare(*data, metrics=METRICS).rows
        raw = [float(row.p_value or 1.0) for row in tests]
        single = [compare(*data, metrics=[METRICS[3]]).rows[0].p_value or 1.0] if 3 in alike or not alike else [1.0]
        hits[0] += single[0] < LEVEL
        hits[1] += any(raw[at] < LEVEL for at in alike)
    return {"SquaredECE": round(hits[0] / replicates, 4), "any equal metric, Holm": round(hits[1] / replicates, 4)}
