"""Compiled loops for the CPU, in Numba: log-loss, gradient and Hessian of logistic regressions, summed over segments of rows.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import LANES, compiled, exponential

SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see
_TERMS = 17  # of log(1 + e) = 2 Σ t^(2i + 1) / (2i + 1), t = e / (2 + e) ≤ 1/3: the rest is below 1e-17, relative
_SERIES = np.array([2.0 / (2 * i + 1) for i in range(_TERMS)])


@compiled
def logistic_sums(features, hit, weight, theta, high, low, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ w·loss, Σ w·gradient (P,) and the upper half of Σ w·Hessian of every class, ``segment`` rows into a row of ``out``.

    ``features`` (N, C, P), ``hit`` (N, C) 0 or 1, ``weight`` (N,), ``theta`` (C, P), targets ``high`` of hits and ``low`` of
    others (C,), ``out`` (segments, C · (1 + P + P (P + 1) / 2)).
    """
    rows, classes, size = features.shape
    width = 1 + size + size * (size + 1) // 2
    x, sums = np.empty((size, LANES)), np.empty((width, LANES))
    by, target = np.empty(LANES), np.empty(LANES)
    for part in range(out.shape[0]):
        for c in range(classes):
            sums[:] = 0.0
            for first in range(part * segment, min(rows, (part + 1) * segment), LANES):
                here = min(LANES, rows - first)
                for j in range(LANES):
                    i = first + min(j, here - 1)
                    by[j] = weight[i] if j < here else 0.0
                    target[j] = low[c] + hit[i, c] * (high[c] - low[c])
                    for p in range(size):
                        x[p, j] = features[i, c, p]
                _add_lanes(x, theta[c], by, target, sums)
            for k in range(width):
                total = 0.0
                for j in range(LANES):
                    total += sums[k, j]
                out[part, c * width + k] = total


@compiled
def _add_lanes(x, theta, by, target, sums):  # type: ignore[no-untyped-def]
    """Add the terms of ``LANES`` rows to ``sums`` (1 + P + P (P + 1) / 2, LANES); those of weight 0 add nothing."""
    s, e = np.zeros(LANES), np.empty(LANES)
    t, square, series = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for p in range(x.shape[0]):
        line, slope = x[p], theta[p]
        for j in range(LANES):
            s[j] += slope * line[j]
    for j in range(LANES):
        e[j] = exponential(-abs(s[j]))
        t[j] = e[j] / (2.0 + e[j])
        square[j], series[j] = t[j] * t[j], _SERIES[_TERMS - 1]
    for i in range(_TERMS - 2, -1, -1):
        term = _SERIES[i]
        for j in range(LANES):
            series[j] = series[j] * square[j] + term
    total = sums[0]
    for j in range(LANES):
        q = 1.0 / (1.0 + e[j])  # the larger of σ(s) and σ(−s)
        total[j] += by[j] * (series[j] * t[j] + max(s[j], 0.0) - target[j] * s[j])
        t[j] = by[j] * ((q if s[j] >= 0.0 else e[j] * q) - target[j])
        square[j] = by[j] * e[j] * q * q
    _add_products(x, t, square, sums)


@compiled
def _add_products(x, gap, curvature, sums):  # type: ignore[no-untyped-def]
    at = 1 + x.shape[0]
    for p in range(x.shape[0]):
        line, total = x[p], sums[1 + p]
        for j in range(LANES):
            total[j] += gap[j] * line[j]
        for r in range(p, x.shape[0]):
            other, total = x[r], sums[at]
            for j in range(LANES):
                total[j] += curvature[j] * line[j] * other[j]
            at += 1
