"""The paired test of ECE that 0.1.0 had, brought to its nominal size: what the test of ``SquaredGaps`` is measured by.

It divided the difference of the corrected errors by the standard error of their signed sums. Between models of equal ECE whose
errors have other shapes it rejected too often; so the largest 95 % quantile of its ratio over such pairs is taken for its limit,
and what it finds of ECE .04 beyond this limit is its power.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.pairs import (
    ATOMS,
    BINS,
    MOST_ROWS,
    SEED,
    Floats,
    Model,
    Pair,
    bins_of,
    confidences,
    moved,
    pairs,
    tuned,
)
from calibrant.binning import BinTable
from calibrant.statistics.binned import corrected_error
from calibrant.statistics.interval import normal_quantile

ROWS = 1000


def former_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield its rejections of pairs of equal ECE, and of ECE .04 and 0 at the limit that holds for all of them."""
    if "former | limit" in done:
        return
    largest, limits = ("", 0.0), normal_quantile(0.975)
    for pair in _equal_pairs():
        started = time.process_time()
        ratio = _ratios(pair, replicates)
        quantile, spent = float(np.quantile(ratio, 0.95)), round(time.process_time() - started, 1)
        largest = max(largest, (pair.name, quantile), key=lambda one: one[1])
        found = {"nominal": round(float((ratio > limits).mean()), 4), "quantile": round(quantile, 3)}
        yield {"cell": f"former | {pair.name} | n = {ROWS}", "replicates": replicates, "metrics": found, "cpu_s": spent}
    for pair in pairs():
        if not pair.name.startswith("power"):
            continue
        started = time.process_time()
        ratio = _ratios(pair, replicates)
        found = {
            "nominal": round(float((ratio > limits).mean()), 4),
            "same size": round(float((ratio > largest[1]).mean()), 4),
        }
        spent = round(time.process_time() - started, 1)
        yield {"cell": f"former | {pair.name} | n = {ROWS}", "replicates": replicates, "metrics": found, "cpu_s": spent}
    limit = {"quantile": round(largest[1], 3)}
    yield {"cell": "former | limit", "of": largest[0], "replicates": replicates, "metrics": limit, "cpu_s": 0.0}


def ece(model: Model) -> float:
    """Return the model's true ECE."""
    p, truth = model
    return float(np.abs(np.bincount(bins_of(p), weights=(p - truth) / ATOMS, minlength=BINS)).sum())


def _equal_pairs() -> Iterator[Pair]:
    for mean, of in ((".75", confidences(0.75)), (".93", confidences(0.93))):
        over = (of, moved(of, "over", 0.04))
        for kind in ("one", "second", "osc", "under"):
            try:
                other = tuned(of, kind, ece, ece(over))
            except ValueError:  # these bins cannot be off by so much
                continue
            yield Pair(f"equal ECE .04: accuracy {mean}, over-confident in all bins, and {kind}", over, other, 0.6)


def _ratios(pair: Pair, replicates: int) -> Floats:
    rng, block = np.random.default_rng([SEED, ROWS]), MOST_ROWS // ROWS
    return np.concatenate([_block(pair, rng, min(block, replicates - start)) for start in range(0, replicates, block)])


def _block(pair: Pair, rng: np.random.Generator, samples: int) -> Floats:
    """Return the sizes (samples,) of the ratio of 0.1.0's test."""
    atom, luck = rng.integers(ATOMS, size=(samples, ROWS)), rng.random((samples, ROWS))
    own = np.where(rng.random((samples, ROWS)) < pair.shared, luck, rng.random((samples, ROWS)))
    errors, signed = [], np.zeros((samples, ROWS))
    for (p, truth), draw, index, side in zip((pair.a, pair.b), (luck, own), pair.index, (-1, 1), strict=True):
        seen, right = p[atom], (draw < truth[atom]).astype(float)
        flat = (np.arange(samples)[:, None] * BINS + index[atom]).reshape(-1)
        count, sum_p, sum_y = (
            torch.from_numpy(
                np.bincount(flat, weights=of, minlength=samples * BINS).reshape(samples, BINS).astype(float)
            )
            for of in (None, seen.reshape(-1), right.reshape(-1))
        )
        table = BinTable(count, sum_p, sum_y, ROWS)
        errors.append(corrected_error(table).centre.numpy())
        sign = np.sign(table.gap.numpy())
        signed += side * np.take_along_axis(sign, index[atom], 1) * (seen - right)
    ratio: Floats = np.abs(errors[1] - errors[0]) / (signed.std(axis=1, ddof=1) / np.sqrt(ROWS))
    return ratio
