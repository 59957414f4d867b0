"""Pairs of models that are equal in a metric, and pairs that are not: how often the tests of ``compare`` tell them apart."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from calibrant.metrics import ECE
from calibrant.statistics.means import MOST_SKEW, Spread, mean_test
from calibrant.statistics.paired import PairedGaps, holm

ROWS, ATOMS, BINS, SEED, LEVEL, DRAWS = (300, 1000, 10_000), 600, 15, 20261124, 0.05, 300
MOST_ROWS = 2_000_000  # drawn at once
METRICS = ("Accuracy", "NLL", "Brier", "SquaredGaps")
Floats = Any
Model = tuple[Floats, Floats]  # confidences (ATOMS,) and how often the decision is right (ATOMS,)


@dataclass(frozen=True)
class Pair:
    """Two models of two classes, and the share of rows in which both have the same luck."""

    name: str
    a: Model
    b: Model
    shared: float
    sizes: tuple[int, ...] = ROWS
    times: int = 1  # as many samples of up to 1000 rows, where all metrics are equal

    @cached_property
    def index(self) -> tuple[Any, Any]:
        """The bins (ATOMS,) of both models' confidences."""
        return bins_of(self.a[0]), bins_of(self.b[0])


def pair_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the share of samples in which each metric, and any that is equal after Holm's correction, is told apart."""
    for pair in pairs():
        for rows in pair.sizes:
            cell = f"tests | {pair.name} | n = {rows}"
            if cell in done:
                continue
            started = time.process_time()
            count = replicates * (pair.times if rows < 10_000 else 1)
            found = rejected(pair, rows=rows, replicates=count)
            spent = round(time.process_time() - started, 1)
            yield {"cell": cell, "replicates": count, "equal_in": equal(pair), "metrics": found, "cpu_s": spent}


def pairs() -> list[Pair]:
    """Return pairs that are equal in a metric but not in accuracy, shape or sign, and two of ECE .04 and 0."""
    low, middle, high = (confidences(mean) for mean in (0.62, 0.75, 0.93))
    swapped = middle[::-1].copy()
    found = [
        Pair("calibrated, accuracy .62 and .93", (low, low), (high, high), 0.3),
        Pair("exchangeable, accuracy .75", (middle, middle), (swapped, swapped), 0.5, times=4),
    ]
    kinds = {"one": "one bin off", "second": "the second bin off", "osc": "every other bin below", "under": "below"}
    for mean, of, size, shapes in (
        (".75", middle, 0.04, ("one", "osc", "under")),
        (".75", middle, 0.08, ("one",)),
        (".93", high, 0.04, ("second", "osc", "under")),
    ):
        over = (of, moved(of, "over", size))
        for kind in shapes:
            other = tuned(of, kind, lambda model: figures(model)["SquaredGaps"], figures(over)["SquaredGaps"])
            name = f"accuracy {mean}: all bins {size:g} above their accuracy, and {kinds[kind]}"
            found.append(Pair(name, over, other, 0.6))
    over = (low, moved(low, "over", 0.06))
    other = tuned(high, "over", lambda model: figures(model)["SquaredGaps"], figures(over)["SquaredGaps"])
    found.append(Pair("over-confident, accuracy .56 and .89", over, other, 0.3))
    for metric in ("NLL", "Brier", "Accuracy"):
        start = (low, low) if metric != "Accuracy" else (middle, middle)
        other = tuned(high, "over", lambda model, m=metric: figures(model)[m], figures(start)[metric])
        found.append(Pair(f"calibrated, and over-confident with equal {metric}", start, other, 0.6))
    for mean, of in ((".75", middle), (".93", high)):
        for kind, words in (("over", "over-confident"), ("osc", "oscillating")):
            for shared in (0.6, 1.0):
                luck = "the same decisions" if shared == 1 else "60 % of luck shared"
                name = f"power: accuracy {mean}, ECE .04 {words} and 0, {luck}"
                found.append(Pair(name, (of, moved(of, kind, 0.04)), (of, of), shared, (1000,)))
    return found


def confidences(mean: float) -> Floats:
    """Return confidences (ATOMS,) in [.5, .999] of this mean."""
    noise, low, high = np.random.default_rng(SEED).normal(size=ATOMS) * 1.5, -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        p = (1 / (1 + np.exp(-noise - middle))).clip(0.5, 0.999)
        low, high = (middle, high) if p.mean() < mean else (low, middle)
    return p


def moved(p: Floats, kind: str, size: float) -> Floats:
    """Return how often decisions are right whose confidences ``p`` are off by ``size`` in some bins."""
    index = bins_of(p)
    order = np.argsort(-np.bincount(index), kind="stable")
    sign = {
        "over": np.ones(ATOMS), "under": -np.ones(ATOMS), "osc": np.where(index % 2 == 0, 1.0, -1.0),
        "one": (index == order[0]) * 1.0, "second": (index == order[1]) * 1.0,
    }[kind]  # fmt: skip
    return (p - size * sign).clip(0, 1)


def tuned(p: Floats, kind: str, figure: Callable[[Model], float], target: float) -> Model:
    """Return the model of confidences ``p``, off in some bins, whose ``figure`` is the target's.

    Raises:
        ValueError: If no size of the shift gives it.
    """
    low, high = 0.0, 1.0
    rising = figure((p, moved(p, kind, high))) > figure((p, moved(p, kind, low)))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (figure((p, moved(p, kind, middle))) < target) == rising else (low, middle)
    model = (p, moved(p, kind, high))
    if abs(figure(model) - target) > 1e-9:
        raise ValueError(f"no {kind} shift of these confidences has the figure {target:g}")
    return model


def bins_of(p: Floats) -> Any:
    """Return the bin (ATOMS,) of ``ECE()``."""
    return ECE().binning.assign(torch.from_numpy(p)).numpy()


def figures(model: Model) -> dict[str, float]:
    """Return the model's true value of each metric."""
    p, truth = model
    nll = float(-(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean())
    brier = float(2 * (truth * (1 - p) ** 2 + (1 - truth) * p**2).mean())
    gaps = np.bincount(bins_of(p), weights=(p - truth) / ATOMS, minlength=BINS)
    return {"Accuracy": float(truth.mean()), "NLL": nll, "Brier": brier, "SquaredGaps": float((gaps**2).sum())}


def equal(pair: Pair) -> list[str]:
    """Return the metrics in which both models are equal."""
    one, other = figures(pair.a), figures(pair.b)
    return [name for name in one if abs(one[name] - other[name]) < 1e-8]


def rejected(pair: Pair, *, rows: int, replicates: int) -> dict[str, float]:
    """Return the share of samples in which each metric is told apart, and any equal one after correction for all four."""
    rng, hits = np.random.default_rng([SEED, rows]), np.zeros(5)
    alike = [METRICS.index(name) for name in equal(pair)]
    block = max(1, MOST_ROWS // rows)
    for start in range(0, replicates, block):
        for p_values in tested(pair, rng, rows=rows, samples=min(block, replicates - start)):
            hits[:4] += np.array(p_values) < LEVEL
            hits[4] += (np.array(holm(p_values))[alike] < LEVEL).any()
    shares = dict(
        zip((*METRICS, "any equal metric, Holm"), (round(float(h) / replicates, 4) for h in hits), strict=True)
    )
    return shares if alike else {name: share for name, share in shares.items() if name in METRICS}


def tested(pair: Pair, rng: np.random.Generator, *, rows: int, samples: int) -> Iterator[list[float]]:
    """Yield the p-values of each sample as ``compare`` finds them, from sums over its rows."""
    atom, luck = rng.integers(ATOMS, size=(samples, rows)), rng.random((samples, rows))
    own = np.where(rng.random((samples, rows)) < pair.shared, luck, rng.random((samples, rows)))
    right = [(draw < truth[atom]).astype(float) for (_, truth), draw in ((pair.a, luck), (pair.b, own))]
    means = list(_means(pair, atom, right))
    for at, gaps in enumerate(_gaps(pair, atom, right)):
        tests = [mean_test(*metric[at], level=1 - LEVEL) for metric in means]
        tests.append(gaps.test(draws=DRAWS, seed=at, level=1 - LEVEL))
        yield [test.p_value for test in tests]


def _means(pair: Pair, atom: Any, right: list[Floats]) -> Iterator[list[tuple[float, Spread, list[float]]]]:
    """Yield mean and spread in each sample of the differences in accuracy, log-loss and Brier score."""
    hit = [np.where(y > 0, p[atom], 1 - p[atom]) for (p, _), y in zip((pair.a, pair.b), right, strict=True)]
    for figure in (None, lambda p: -np.log(p), lambda p: 2 * (1 - p) ** 2):
        values = right[1] - right[0] if figure is None else figure(hit[1]) - figure(hit[0])
        mean, rows = values.mean(axis=1), values.shape[1]
        values -= mean[:, None]
        square = values * values
        cube = square * values
        powers = np.stack([part.sum(axis=1) for part in (square, cube, square * square, cube * cube)], axis=1)
        yield [_spread(*one, rows=rows) for one in zip(mean, powers, strict=True)]


def _spread(mean: float, powers: Floats, *, rows: int) -> tuple[float, Spread, list[float]]:
    second, third = float(powers[0]), float(powers[1])
    if not second:
        return float(mean), Spread(0.0, 0.0, rows), [0.0] * 4
    skew = min(max(third / second**1.5, -MOST_SKEW), MOST_SKEW)
    spread = Spread(float(np.sqrt(second / rows / (rows - 1))), skew, rows)
    return float(mean), spread, [float(power) for power in powers]


def _gaps(pair: Pair, atom: Any, right: list[Floats]) -> Iterator[PairedGaps]:
    """Yield the weighted gaps of both models in each sample, and their covariance."""
    samples, rows = atom.shape
    noise = [p[atom] - y for (p, _), y in zip((pair.a, pair.b), right, strict=True)]
    home = [np.arange(samples)[:, None] * BINS + index[atom] for index in pair.index]

    def summed(cell: Any, values: Floats | None, size: int) -> Floats:
        weights = None if values is None else values.reshape(-1)
        return np.bincount(cell.reshape(-1), weights=weights, minlength=samples * size).reshape(samples, size) / rows

    share, gap, square = (
        np.concatenate([summed(cell, values, BINS) for cell, values in zip(home, of, strict=True)], axis=1)
        for of in ((None, None), noise, [part**2 for part in noise])
    )
    mixed = summed(home[0] * BINS + pair.index[1][atom], noise[0] * noise[1], BINS**2).reshape(samples, BINS, BINS)
    column = np.concatenate([2 * np.arange(BINS), 2 * np.arange(BINS) + 1])
    for at in range(samples):
        second = np.diag(square[at])
        second[:BINS, BINS:], second[BINS:, :BINS] = mixed[at], mixed[at].T
        covariance = (second - np.outer(gap[at], gap[at])) / (rows - 1)
        filled = np.flatnonzero(share[at] > 0)
        kept, half = np.ix_(filled, filled), int((filled < BINS).sum())
        yield PairedGaps(gap[at, filled], covariance[kept], share[at, filled], column[filled], half)
