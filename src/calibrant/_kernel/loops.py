"""The CPU's compiled loops, in Numba. All sums are float64; only ``calibrant._kernel`` imports this file, where Numba runs.

Rows of few classes are slow in array libraries, because a sum over ten classes runs number by number. Here ``LANES`` rows are
laid out class by class, so that every inner loop runs over rows and becomes vector code; a row of many classes is one inner
loop. Sums in bins are added in ``COPIES`` tables by turns: neighbouring rows mostly share a bin, and would wait for each other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

LANES = 64
WIDE = 24  # classes from which a row is an inner loop of its own
WIDE_TABLES = 64  # the same where the rows are taken one by one
COPIES = 4
COLUMNS = 5  # sums of a bin: rows, Σp, Σy, Σp², Σpy
TIE = 1e-12  # a probability this little above an edge lies on it

f64, i32, i64, u64 = np.float64, np.int32, np.int64, np.uintp  # unsigned indices are not checked for being negative


def _compiled(*fastmath: str) -> Callable[[Callable[..., Any]], Any]:
    def compile_on_first_call(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath), "error_model": "numpy"}
        try:
            return njit(function, cache=True, **options)
        except RuntimeError:  # no folder for the cache can be written
            return njit(function, **options)

    return compile_on_first_call


_exact = _compiled("contract")
_loop = _compiled("contract", "nnan", "nsz", "reassoc")

_LOG2E, _LOG2 = 1.44269504088896340736, 0.693147180559945309417
_ROUND = 6755399441055744.0  # adding 1.5 · 2⁵² rounds to an integer, and leaves it in the low bits
# 2^f on [−½, ½] with 1 at f = 0, relative error 6e-16; 2 atanh(s) / s − 2 by s² for |s| ≤ (√2 − 1) / (√2 + 1), 5e-18
_A1, _A2, _A3, _A4 = 0.6931471805599462, 0.24022650695910075, 0.05550410866465167, 0.009618129107618665
_A5, _A6, _A7 = 0.0013333558200794592, 0.00015403530424776529, 1.5252672924850737e-05
_A8, _A9, _A10 = 1.3215451633221434e-06, 1.0205905413765595e-07, 7.070977866508138e-09
_B1, _B2, _B3, _B4 = 0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508
_B5, _B6, _B7 = 0.18182889125261723, 0.15331721600556042, 0.14616449685043406
_ROOT_HALF = f64(0.7071067811865476).view(i64)


@_exact
def exponential(x):  # type: ignore[no-untyped-def]
    """Return eˣ = 2ⁿ 2^f for x ≤ 0, with |f| ≤ ½; 0 below the range of normal numbers."""
    t = f64(x * _LOG2E + _ROUND)
    f = x * _LOG2E - f64(t - _ROUND)
    s = f * f
    even = ((((_A10 * s + _A8) * s + _A6) * s + _A4) * s + _A2) * s + 1.0
    odd = (((_A9 * s + _A7) * s + _A5) * s + _A3) * s + _A1
    p = f64(odd * f + even)
    return i64(p.view(i64) + i64(t.view(i64) << i64(52))).view(f64) if x > -708.0 else 0.0


@_exact
def log1p(x):  # type: ignore[no-untyped-def]
    """Return log(1 + x) = n log 2 + 2 atanh((m − 1) / (m + 1)) for x ≥ 0, 1 + x = 2ⁿ m and m in [√½, √2)."""
    y = f64(1.0 + x)
    n = i64(i64(y.view(i64)) - _ROOT_HALF) >> i64(52)
    m = i64(y.view(i64) - i64(n << i64(52))).view(f64)
    s = x / (2.0 + x) if n == 0 else (m - 1.0) / (m + 1.0)  # the first keeps the digits of a small x
    t = s * s
    series = ((((((_B7 * t + _B6) * t + _B5) * t + _B4) * t + _B3) * t + _B2) * t + _B1) * t
    return s * (2.0 + series) + f64(n) * _LOG2


@_loop
def _exponentials(flat, first, here, classes, wide, beta, work, e, top, others, tied):  # type: ignore[no-untyped-def]
    """Write e = exp(β (z − max z)) of ``here`` rows from row ``first`` on, max z, Σ e − 1, and how many classes are largest.

    Args:
        flat: (N · K,) logits.
        first: A row.
        here: At most ``LANES``.
        classes: K.
        wide: Whether these are many classes.
        beta: β > 0.
        work: (K, LANES) of the logits' dtype for few classes, whose logits are left in it.
        e: (K, LANES) for few classes, (LANES, K) for many.
        top: (LANES,) of the logits' dtype.
        others: (LANES,): terms equal to 1 are counted apart, so that a small sum of the others keeps its digits.
        tied: (LANES,).
    """
    if wide:
        for j in range(here):
            row, out = flat[(first + j) * classes : (first + j + 1) * classes], e[j]
            largest, total, ones = row[0], 0.0, 0.0
            for k in range(1, classes):
                largest = max(largest, row[k])
            for k in range(classes):
                d = f64(row[k]) - f64(largest)
                out[k] = exponential(beta * d)
                one = 1.0 if d == 0.0 else 0.0
                total += out[k] - one
                ones += one
            top[j], others[j], tied[j] = largest, total + (ones - 1.0 if ones > 1.0 else 0.0), ones
        return
    block = flat[first * classes : (first + here) * classes]
    if here == LANES:
        for k in range(classes):
            line = work[k]
            for j in range(LANES):
                line[j] = block[j * classes + k]
    else:
        for k in range(classes):
            for j in range(LANES):
                work[k, j] = block[min(j, here - 1) * classes + k]
    for j in range(LANES):
        top[j], others[j], tied[j] = work[0, j], 0.0, 0.0
    for k in range(1, classes):
        line = work[k]
        for j in range(LANES):
            top[j] = max(top[j], line[j])
    for k in range(classes):
        line, out = work[k], e[k]
        for j in range(LANES):
            d = f64(line[j]) - f64(top[j])
            out[j] = exponential(beta * d)
            one = 1.0 if d == 0.0 else 0.0
            others[j] += out[j] - one
            tied[j] += one
    for j in range(LANES):
        others[j] += (
            tied[j] - 1.0 if tied[j] > 1.0 else 0.0
        )  # never through a sum with 1, which has no room for small digits


@_loop
def row_statistics(logits, labels, confidence, decision, nll, square):  # type: ignore[no-untyped-def]
    """Write the largest probability, its first class, −log p of the label and Σ p² of each row of ``logits`` (N, K)."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top = np.empty((1 if wide else classes, LANES), logits.dtype), np.empty(LANES, logits.dtype)
    e = np.empty((LANES, classes) if wide else (classes, LANES))
    others, tied, squares, index, gap = np.ones(LANES), np.ones(LANES), np.ones(LANES), np.ones(LANES), np.ones(LANES)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        _exponentials(flat, first, here, classes, wide, 1.0, work, e, top, others, tied)
        squares[:], index[:] = 0.0, 0.0
        if wide:
            for j in range(here):
                row, line, total, at = flat[(first + j) * classes : (first + j + 1) * classes], e[j], 0.0, classes
                for k in range(classes):
                    total += line[k] * line[k]
                for k in range(classes):
                    at = min(at, k if row[k] == top[j] else classes)
                squares[j], index[j] = total, at
        else:
            several = 0
            for k in range(classes):
                row, line = work[k], e[k]
                for j in range(LANES):
                    squares[j] += line[j] * line[j]
                    index[j] += f64(k) if row[j] == top[j] else 0.0
            for j in range(LANES):
                several += 1 if tied[j] > 1.0 else 0
            for j in range(here if several else 0):
                k = 0
                while work[k, j] != top[j]:
                    k += 1
                index[j] = k
        place = u64(first * classes)
        for j in range(here):
            gap[j] = f64(top[j]) - f64(flat[place + u64(labels[first + j])])
            place += u64(classes)
        for j in range(LANES):
            gap[j] += log1p(others[j])
            others[j] = 1.0 / (1.0 + others[j])
            squares[j] *= others[j] * others[j]
        for j in range(here):
            i = first + j
            confidence[i], decision[i], nll[i], square[i] = others[j], i64(index[j]), gap[j], squares[j]


@_loop
def temperature_moments(logits, labels, weights, beta, out):  # type: ignore[no-untyped-def]
    """Write Σ w E, Σ w Var and Σ w (z_label − max z) into ``out`` (3,): moments of z − max z under softmax(βz); w is 1 if empty."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top = np.empty((1 if wide else classes, LANES), logits.dtype), np.empty(LANES, logits.dtype)
    e = np.empty((LANES, classes) if wide else (classes, LANES))
    others, tied, mean, square = np.ones(LANES), np.ones(LANES), np.ones(LANES), np.ones(LANES)
    out[:] = 0.0
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        _exponentials(flat, first, here, classes, wide, beta, work, e, top, others, tied)
        mean[:], square[:] = 0.0, 0.0
        if wide:
            for j in range(here):
                row, line, one, two = flat[(first + j) * classes : (first + j + 1) * classes], e[j], 0.0, 0.0
                for k in range(classes):
                    d = max(f64(row[k]) - f64(top[j]), -1e30)  # e is 0 there, and 0 · ∞ is not
                    one += line[k] * d
                    two += line[k] * d * d
                mean[j], square[j] = one, two
        else:
            for k in range(classes):
                row, line = work[k], e[k]
                for j in range(LANES):
                    d = max(f64(row[j]) - f64(top[j]), -1e30)
                    mean[j] += line[j] * d
                    square[j] += line[j] * d * d
        for j in range(LANES):
            others[j] = 1.0 / (1.0 + others[j])
            mean[j] *= others[j]
            square[j] = square[j] * others[j] - mean[j] * mean[j]
        for j in range(here):
            w = weights[first + j] if len(weights) else 1.0
            own = f64(flat[u64((first + j) * classes) + u64(labels[first + j])])
            out[0] += w * mean[j]
            out[1] += w * square[j]
            out[2] += w * (own - f64(top[j]))


@_loop
def top_bins(logits, labels, bins, out):  # type: ignore[no-untyped-def]
    """Write what ``pair_bins`` does of each row's largest probability and of whether the label is its first class."""
    rows, classes = logits.shape
    flat, wide, size = logits.reshape(-1), classes >= WIDE, COLUMNS * bins
    work, top = np.empty((1 if wide else classes, LANES), logits.dtype), np.empty(LANES, logits.dtype)
    e = np.empty((1 if wide else classes, LANES))
    p, tied, hit, cell = np.ones(LANES), np.ones(LANES), np.zeros(LANES), np.empty(LANES, i32)
    sums, last = np.zeros(COPIES * size), f64(bins - 1)
    for first in range(0, rows, LANES):
        here, several = min(LANES, rows - first), 0
        if wide:  # nothing is kept but the sum, with the largest's own term
            for j in range(here):
                row, total = flat[(first + j) * classes : (first + j + 1) * classes], 0.0
                largest = row[0]
                for k in range(1, classes):
                    largest = max(largest, row[k])
                for k in range(classes):
                    total += exponential(f64(row[k]) - f64(largest))
                top[j] = largest
                p[j], tied[j] = total - 1.0, total  # ties make it 2 or more
        else:
            _exponentials(flat, first, here, classes, wide, 1.0, work, e, top, p, tied)
        place = u64(first * classes)
        for j in range(here):
            hit[j] = 1.0 if flat[place + u64(labels[first + j])] == top[j] else 0.0
            place += u64(classes)
        for j in range(LANES):
            several += 1 if tied[j] * hit[j] >= 2.0 else 0
            p[j] = 1.0 / (1.0 + p[j])
            cell[j] = i32(min(max(np.ceil((p[j] - TIE) * bins) - 1.0, 0.0), last))
        for j in range(here if several else 0):
            for k in range(labels[first + j] if tied[j] * hit[j] >= 2.0 else 0):
                if flat[(first + j) * classes + k] == top[j]:
                    hit[j] = 0.0
        for j in range(here):
            at = u64(COLUMNS) * (u64(j % COPIES) * u64(bins) + u64(cell[j]))
            sums[at] += 1.0
            sums[at + u64(1)] += p[j]
            sums[at + u64(2)] += hit[j]
            sums[at + u64(3)] += p[j] * p[j]
            sums[at + u64(4)] += p[j] * hit[j]
    for i in range(size):
        out[i] = sums[i] + sums[size + i] + sums[2 * size + i] + sums[3 * size + i]


@_loop
def pair_bins(p, y, bins, out):  # type: ignore[no-untyped-def]
    """Write rows, Σp, Σy, Σp² and Σpy of ``p`` (N,) and ``y`` (N,) in each bin of equal width into ``out`` (COLUMNS · B,)."""
    size, last = COLUMNS * bins, i64(bins - 1)
    sums = np.zeros(COPIES * size)
    for i in range(len(p)):
        q, hit = f64(p[i]), f64(y[i])
        cell = min(max(i64(np.ceil((q - TIE) * bins)) - i64(1), i64(0)), last)
        at = u64(COLUMNS) * (u64(i % COPIES) * u64(bins) + u64(cell))
        sums[at] += 1.0
        sums[at + u64(1)] += q
        sums[at + u64(2)] += hit
        sums[at + u64(3)] += q * q
        sums[at + u64(4)] += q * hit
    for i in range(size):
        out[i] = sums[i] + sums[size + i] + sums[2 * size + i] + sums[3 * size + i]


@_loop
def class_bins(logits, labels, bins, out):  # type: ignore[no-untyped-def]
    """Write the same of each class's probability and event into ``out`` (COLUMNS · K · B,), class by class."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE_TABLES
    step = 1 if wide else LANES
    work, top = np.empty((1 if wide else classes, LANES), logits.dtype), np.empty(LANES, logits.dtype)
    e = np.empty((1, classes) if wide else (classes, LANES))
    p, norm, tied = e.reshape(-1), np.ones(LANES), np.ones(LANES)
    cells, last = np.empty(classes * step, i32), f64(bins - 1)
    out[:] = 0.0
    for first in range(0, rows, step):
        here = min(step, rows - first)
        _exponentials(flat, first, here, classes, wide, 1.0, work, e, top, norm, tied)
        for j in range(step):
            norm[j] = 1.0 / (1.0 + norm[j])
        if wide:
            for i in range(classes):
                p[i] *= norm[0]
        else:
            for k in range(classes):
                line = e[k]
                for j in range(LANES):
                    line[j] *= norm[j]
        for i in range(classes * step):
            cells[i] = i32(min(max(np.ceil((p[i] - TIE) * bins) - 1.0, 0.0), last))
        for j in range(here):
            place, table = u64(j), u64(0)
            for _ in range(classes):
                at, q = table + u64(COLUMNS) * u64(cells[place]), p[place]
                out[at] += 1.0
                out[at + u64(1)] += q
                out[at + u64(3)] += q * q
                place += u64(step)
                table += u64(COLUMNS * bins)
            own = j + labels[first + j] * step
            at = COLUMNS * (labels[first + j] * bins + cells[own])
            out[at + 2] += 1.0
            out[at + 4] += p[own]
