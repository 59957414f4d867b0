"""Compiled loops for the CPU, in Numba: sums of the log-loss, of the Brier score and of right decisions.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import GAP, HIT, LANES, OTHERS, SQUARE, compiled, exponential, sum_rows, total_of

SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see
_GAPS, _HITS, _PRODUCT, _BRIER = range(4)  # lanes of sums
_BLOCKS = 16  # of rows whose factors are multiplied before their logarithm is taken: K to this power is a float64


@compiled
def score_sums(logits, labels, like, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ −log p of the label, Σ Brier score and the number of right decisions into ``out`` (segments, 3), ``segment`` rows each.

    ``like`` is ``sum_rows``'s ``work``; exponentials are float64. Σ log(1 + o) is taken as the logarithm of a product, less 1 so
    that small o keep their digits: (1 + a)(1 + b) − 1 = a + b + ab.
    """
    rows = logits.shape[0]
    work, lanes = np.empty_like(like), np.zeros((4, LANES), dtype=logits.dtype)
    part, found, sums = np.zeros((3, LANES)), np.zeros((5, LANES)), np.zeros((4, LANES))
    for p in range(out.shape[0]):
        sums[:] = 0.0
        nll, empty = 0.0, 0
        for first in range(p * segment, min(rows, (p + 1) * segment), LANES):
            here = min(LANES, rows - first, (p + 1) * segment - first)
            sum_rows(logits, labels, first, here, work, lanes, part, found)
            for j in range(LANES):
                sums[_GAPS, j] += found[GAP, j]
                sums[_HITS, j] += found[HIT, j]
                sums[_PRODUCT, j] += found[OTHERS, j] + sums[_PRODUCT, j] * found[OTHERS, j]
            _add_brier(found, sums)
            empty += LANES - here
            if (first // LANES) % _BLOCKS == 0:
                nll += _logarithms(sums[_PRODUCT])
        nll += _logarithms(sums[_PRODUCT]) + total_of(sums[_GAPS])
        out[p, 0], out[p, 1], out[p, 2] = nll, total_of(sums[_BRIER]), total_of(sums[_HITS]) - empty


@compiled
def _add_brier(found, sums):  # type: ignore[no-untyped-def]
    for j in range(LANES):
        found[GAP, j] = exponential(-found[GAP, j])
    for j in range(LANES):
        others = found[OTHERS, j]
        total = 1.0 + others
        decided = others * others  # (1 − p_y)², without the difference of near numbers
        missed = total * total - 2.0 * found[GAP, j] * total + 1.0
        error = (decided if found[HIT, j] == 1.0 else missed) + found[SQUARE, j]
        sums[_BRIER, j] += error / (total * total)


@compiled
def _logarithms(product):  # type: ignore[no-untyped-def]
    """Return Σ log(1 + product) and set ``product`` (LANES,) to 0."""
    total = 0.0
    for j in range(LANES):
        total += np.log1p(product[j])
        product[j] = 0.0
    return total
