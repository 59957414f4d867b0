"""Compiled loops for the CPU, in Numba: sums of the log-loss, of the Brier score and of right decisions.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import LANES, compiled, exponential, scratch, sum_rows, total_of

SHARED = "37cfcc0d2a3b"  # digest of _loop_math.py, whose changes the cache of compiled code does not see
_BLOCKS = 16  # of rows whose factors are multiplied before their logarithm is taken: K to this power is a float64


@compiled
def score_sums(logits, labels, zero, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ −log p of the label, Σ Brier score and the number of right decisions into ``out`` (segments, 3), ``segment`` rows each.

    ``zero`` (1,) is float64, the dtype of the exponentials. Σ log(1 + o) is taken as the logarithm of a product, less 1 so that
    small o keep their digits: (1 + a)(1 + b) − 1 = a + b + ab.
    """
    rows = logits.shape[0]
    own = scratch(logits, zero)
    others, square, gap, hit = own[0], own[1], own[2], own[3]
    gaps, product, brier, hits = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for p in range(out.shape[0]):
        gaps[:], product[:], brier[:], hits[:] = 0.0, 0.0, 0.0, 0.0
        nll, empty = 0.0, 0
        for first in range(p * segment, min(rows, (p + 1) * segment), LANES):
            here = min(LANES, rows - first)
            sum_rows(logits, labels, first, here, True, own)
            for j in range(LANES):
                gaps[j] += gap[j]
                hits[j] += hit[j]
            for j in range(LANES):
                product[j] += others[j] + product[j] * others[j]
            _add_brier(others, square, gap, hit, brier)
            empty += LANES - here
            if (first // LANES) % _BLOCKS == 0:
                nll += _logarithms(product)
        nll += _logarithms(product) + total_of(gaps)
        out[p, 0], out[p, 1], out[p, 2] = nll, total_of(brier), total_of(hits) - empty


@compiled
def _add_brier(others, square, gap, hit, brier):  # type: ignore[no-untyped-def]
    for j in range(LANES):
        gap[j] = exponential(-gap[j])
    for j in range(LANES):
        total = 1.0 + others[j]
        decided = others[j] * others[j]  # (1 − p_y)², without the difference of near numbers
        missed = total * total - 2.0 * gap[j] * total + 1.0
        others[j] = decided if hit[j] == 1.0 else missed
        gap[j] = 1.0 / (total * total)
    for j in range(LANES):
        brier[j] += (others[j] + square[j]) * gap[j]


@compiled
def _logarithms(product):  # type: ignore[no-untyped-def]
    """Return Σ log(1 + product) and set ``product`` (LANES,) to 0."""
    total = 0.0
    for j in range(LANES):
        total += np.log1p(product[j])
        product[j] = 0.0
    return total
