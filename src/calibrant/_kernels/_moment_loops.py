"""Compiled loops for the CPU, in Numba: mean and variance of a row's logits at a temperature, summed over segments of rows.

Laid out as ``_loops`` says. Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import LANES, compiled, exponential, lay_out, pad

_LOWEST = -1e30  # stands for −∞: its exponential is 0, and 0 times it is not NaN
SHARED = "cc3fb097a5a8"  # digest of _loop_math.py, whose changes the cache of compiled code does not see


@compiled
def narrow_moments(logits, top, weight, beta, zero, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ w·mean and Σ w·variance of z − max z under softmax(βz) into ``out`` (segments, 2), ``segment`` rows each.

    ``logits`` (N, K) of few classes, ``top`` (N,), ``weight`` (N,) or empty; ``zero`` (1,) has the dtype of the exponentials.
    """
    rows, classes = logits.shape
    kind = zero.dtype.type
    scale = kind(beta)
    work, largest = np.empty((classes, LANES), dtype=logits.dtype), np.empty(LANES, dtype=zero.dtype)
    norm, mean, square = (
        np.empty(LANES, dtype=zero.dtype),
        np.empty(LANES, dtype=zero.dtype),
        np.empty(LANES, dtype=zero.dtype),
    )
    flat = logits.reshape(-1)
    for part in range(out.shape[0]):
        first_sum, second_sum = 0.0, 0.0
        for first in range(part * segment, min(rows, (part + 1) * segment), LANES):
            here = min(LANES, rows - first)
            lay_out(flat, first, here, classes, work)
            for j in range(LANES):
                largest[j] = kind(top[first + min(j, here - 1)])
                norm[j], mean[j], square[j] = kind(0), kind(0), kind(0)
            for k in range(classes):
                line = work[k]
                for j in range(LANES):
                    d = kind(line[j]) - largest[j]
                    d = kind(_LOWEST) if d < kind(_LOWEST) else d
                    e = exponential(scale * d)
                    moved = e * d
                    norm[j] += e
                    mean[j] += moved
                    square[j] += moved * d
            for j in range(here):
                total = np.float64(norm[j])
                average = np.float64(mean[j]) / total
                by = weight[first + j] if weight.shape[0] else 1.0
                first_sum += by * average
                second_sum += by * (np.float64(square[j]) / total - average * average)
        out[part, 0], out[part, 1] = first_sum, second_sum


@compiled
def wide_moments(logits, top, weight, beta, zero, segment, out):  # type: ignore[no-untyped-def]
    """Write the same of rows of many classes."""
    rows, classes = logits.shape
    full = classes - classes % LANES
    kind = zero.dtype.type
    scale = kind(beta)
    tail = np.empty(LANES, dtype=logits.dtype)
    norm, mean, square = (
        np.empty(LANES, dtype=zero.dtype),
        np.empty(LANES, dtype=zero.dtype),
        np.empty(LANES, dtype=zero.dtype),
    )
    for part in range(out.shape[0]):
        first_sum, second_sum = 0.0, 0.0
        for i in range(part * segment, min(rows, (part + 1) * segment)):
            row, largest = logits[i], kind(top[i])
            pad(row, full, -np.inf, tail)
            for j in range(LANES):
                norm[j], mean[j], square[j] = kind(0), kind(0), kind(0)
            for k in range(0, full + LANES, LANES):
                columns = row[k : k + LANES] if k < full else tail
                _add_columns(columns, largest, scale, norm, mean, square)
            total, average, spread = 0.0, 0.0, 0.0
            for j in range(LANES):
                total += norm[j]
                average += mean[j]
                spread += square[j]
            average /= total
            by = weight[i] if weight.shape[0] else 1.0
            first_sum += by * average
            second_sum += by * (spread / total - average * average)
        out[part, 0], out[part, 1] = first_sum, second_sum


@compiled
def _add_columns(columns, largest, scale, norm, mean, square):  # type: ignore[no-untyped-def]
    kind = norm.dtype.type
    for j in range(LANES):
        d = kind(columns[j]) - largest
        d = kind(_LOWEST) if d < kind(_LOWEST) else d
        e = exponential(scale * d)
        moved = e * d
        norm[j] += e
        mean[j] += moved
        square[j] += moved * d
