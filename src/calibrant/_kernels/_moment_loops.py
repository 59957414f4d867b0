"""Compiled loops for the CPU, in Numba: what fits a temperature: margins, means and variances of logits, summed over segments of rows.

Laid out as ``_loops`` says. Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import LANES, TOP, compiled, exponential, lay_out, pad, tops, total_of

_LOWEST = -1e30  # stands for −∞: its exponential is 0, and 0 times it is not NaN
SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see


@compiled
def narrow_moments(logits, weight, beta, zero, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ w·mean and Σ w·variance of z − max z under softmax(βz) into ``out`` (segments, 2), ``segment`` rows each.

    ``logits`` (N, K) of few classes, ``weight`` (N,) or empty; ``zero`` (1,) has the dtype of the exponentials.
    """
    rows, classes = logits.shape
    kind = zero.dtype.type
    scale = kind(beta)
    work, lanes = np.empty((classes, LANES), dtype=logits.dtype), np.empty((4, LANES), dtype=logits.dtype)
    norm, mean, square = np.empty(LANES, zero.dtype), np.empty(LANES, zero.dtype), np.empty(LANES, zero.dtype)
    largest = np.empty(LANES, zero.dtype)
    by, means, spreads = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    flat = logits.reshape(-1)
    for part in range(out.shape[0]):
        means[:], spreads[:] = 0.0, 0.0
        for first in range(part * segment, min(rows, (part + 1) * segment), LANES):
            here = min(LANES, rows - first, (part + 1) * segment - first)
            lay_out(flat, first, here, classes, work)
            tops(work, lanes)
            for j in range(LANES):
                largest[j] = kind(lanes[TOP, j])
                norm[j], mean[j], square[j] = kind(0), kind(0), kind(0)
            for k in range(classes):
                for j in range(LANES):
                    d = kind(work[k, j]) - largest[j]
                    d = kind(_LOWEST) if d < kind(_LOWEST) else d
                    e = exponential(scale * d)
                    moved = e * d
                    norm[j] += e
                    mean[j] += moved
                    square[j] += moved * d
            for j in range(LANES):
                by[j] = 1.0 if j < here else 0.0
            if weight.shape[0]:
                for j in range(here):
                    by[j] = weight[first + j]
            _add_moments(norm, mean, square, by, means, spreads)
        out[part, 0], out[part, 1] = total_of(means), total_of(spreads)


@compiled
def _add_moments(norm, mean, square, by, means, spreads):  # type: ignore[no-untyped-def]
    for j in range(LANES):
        norm[j] = norm.dtype.type(1) / norm[j]
    for j in range(LANES):
        share = np.float64(norm[j])
        average = np.float64(mean[j]) * share
        means[j] += by[j] * average
        spreads[j] += by[j] * (np.float64(square[j]) * share - average * average)


@compiled
def wide_moments(logits, top, weight, beta, zero, segment, out):  # type: ignore[no-untyped-def]
    """Write the same of rows of many classes, whose largest logits are ``top`` (N,): to look for them first would wait for memory."""
    rows, classes = logits.shape
    full = classes - classes % LANES
    kind = zero.dtype.type
    scale = kind(beta)
    tail = np.empty(LANES, dtype=logits.dtype)
    norm, mean, square = np.empty(LANES, zero.dtype), np.empty(LANES, zero.dtype), np.empty(LANES, zero.dtype)
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
def narrow_margins(logits, labels, weight, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ w·(z of the label − max z) of rows (N, K) of few classes into ``out`` (segments, 1), ``segment`` rows each."""
    rows, classes = logits.shape
    work, lanes = np.empty((classes, LANES), dtype=logits.dtype), np.empty((4, LANES), dtype=logits.dtype)
    flat = logits.reshape(-1)
    for part in range(out.shape[0]):
        total = 0.0
        for first in range(part * segment, min(rows, (part + 1) * segment), LANES):
            here = min(LANES, rows - first, (part + 1) * segment - first)
            lay_out(flat, first, here, classes, work)
            tops(work, lanes)
            for j in range(here):
                by = weight[first + j] if weight.shape[0] else 1.0
                total += by * (np.float64(work[labels[first + j], j]) - np.float64(lanes[TOP, j]))
        out[part, 0] = total


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
