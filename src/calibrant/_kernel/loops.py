"""Compiled loops for the CPU. Only ``calibrant._kernel`` imports this file, and only if Numba is available.

Rows with few classes are slow in array libraries, because a sum over ten classes runs entry by entry. Here, ``LANES`` rows are laid
out class by class, so that every inner loop runs over rows and becomes vector code; a row with many classes is one inner loop.
Sums over bins are added to ``COPIES`` tables in turn, because neighbouring rows often share a bin and would wait for each other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

LANES = 64
WIDE = 24  # from this number of classes on, a row is an inner loop of its own
WIDE_TABLES = 64  # likewise, if the bins of all classes are filled
COPIES = 4
EDGE = 2.0**-24  # a probability that exceeds an edge by no more than this counts as on it: in float32, .6 is .60000002

# unsigned indices, because signed ones are tested for < 0
f64, i32, i64, u64 = np.float64, np.int32, np.int64, np.uintp


def _compiled(*fastmath: str) -> Callable[[Callable[..., Any]], Any]:
    def compile_on_first_call(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath), "error_model": "numpy"}
        try:
            return njit(function, cache=True, **options)
        except RuntimeError:  # there is no writable folder for the cache
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
    """Return eˣ = 2ⁿ 2^f for x ≤ 0, with |f| ≤ ½. Below −708, where eˣ is not a normal number, return e⁻⁷⁰⁸ = 3e-308."""
    x = x if x > -708.0 else -708.0
    t = f64(x * _LOG2E + _ROUND)
    f = x * _LOG2E - f64(t - _ROUND)
    s = f * f
    even = ((((_A10 * s + _A8) * s + _A6) * s + _A4) * s + _A2) * s + 1.0
    odd = (((_A9 * s + _A7) * s + _A5) * s + _A3) * s + _A1
    p = f64(odd * f + even)
    return i64(p.view(i64) + i64(t.view(i64) << i64(52))).view(f64)


@_exact
def log1p(x):  # type: ignore[no-untyped-def]
    """Return log(1 + x) = n log 2 + 2 atanh((m − 1) / (m + 1)) for x ≥ 0, where 1 + x = 2ⁿ m with m in [√½, √2)."""
    y = f64(1.0 + x)
    n = i64(i64(y.view(i64)) - _ROOT_HALF) >> i64(52)
    m = i64(y.view(i64) - i64(n << i64(52))).view(f64)
    s = x / (2.0 + x) if n == 0 else (m - 1.0) / (m + 1.0)  # the first keeps the digits of a small x
    t = s * s
    series = ((((((_B7 * t + _B6) * t + _B5) * t + _B4) * t + _B3) * t + _B2) * t + _B1) * t
    return s * (2.0 + series) + f64(n) * _LOG2


@_loop
def bin_of(p, bins):  # type: ignore[no-untyped-def]
    """Return the equal-width bin (lo, hi] of ``p``."""
    return i32(min(max(np.ceil((p - EDGE) * bins) - 1.0, 0.0), f64(bins - 1)))


@_loop
def _lay_out(flat, first, here, classes, work, top, index):  # type: ignore[no-untyped-def]
    """Copy ``here`` rows, starting at row ``first``, into ``work`` (K, LANES), and write their largest logits and decisions.

    The remaining lanes are filled with the last row.
    """
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
        top[j], index[j] = work[0, j], i32(0)
    for k in range(1, classes):
        line = work[k]
        for j in range(LANES):
            index[j] = i32(k) if line[j] > top[j] else index[j]
            top[j] = max(top[j], line[j])


@_loop
def _largest_of(row, lanes):  # type: ignore[no-untyped-def]
    """Return the largest entry of a row, via ``LANES`` running maxima, because a loop with one maximum is not vectorised."""
    classes = len(row)
    for j in range(LANES):
        lanes[j] = row[min(j, classes - 1)]
    for start in range(LANES, classes, LANES):
        part = row[min(start, classes - LANES) :]
        for j in range(LANES):
            lanes[j] = max(lanes[j], part[j])
    half = LANES // 2
    while half >= 8:
        for j in range(half):
            lanes[j] = max(lanes[j], lanes[half + j])
        half //= 2
    largest = lanes[0]
    for j in range(1, 8):
        largest = max(largest, lanes[j])
    return largest


@_loop
def _first_class(row, largest):  # type: ignore[no-untyped-def]
    index = i32(len(row))
    for k in range(len(row)):
        index = min(index, i32(k) if row[k] == largest else i32(len(row)))
    return index


@_loop
def row_statistics(logits, labels, confidence, decision, nll, brier):  # type: ignore[no-untyped-def]
    """Write each row's largest probability, its first class, −log p of the label and the Brier score, for ``logits`` (N, K)."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top, index = np.empty((classes, LANES), logits.dtype), np.empty(LANES, logits.dtype), np.empty(LANES, i32)
    others, square, gap, hit = np.empty(LANES), np.empty(LANES), np.zeros(LANES), np.zeros(LANES)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        # Σ e and Σ e² without the largest entry, because small terms would be lost in a sum with 1
        if wide:
            for j in range(here):
                row, total, squares = flat[(first + j) * classes : (first + j + 1) * classes], 0.0, 0.0
                largest = _largest_of(row, work[0])
                at = _first_class(row, largest)
                for k in range(classes):
                    e = exponential(f64(row[k]) - f64(largest)) if i32(k) != at else 0.0
                    total += e
                    squares += e * e
                top[j], index[j], others[j], square[j] = largest, at, total, squares
        else:
            _lay_out(flat, first, here, classes, work, top, index)
            others[:], square[:] = 0.0, 0.0
            for k in range(classes):
                line = work[k]
                for j in range(LANES):
                    e = exponential(f64(line[j]) - f64(top[j])) if index[j] != i32(k) else 0.0
                    others[j] += e
                    square[j] += e * e
        for j in range(here):
            label = labels[first + j]
            gap[j] = f64(top[j]) - f64(flat[u64((first + j) * classes) + u64(label)])
            hit[j] = 1.0 if i64(index[j]) == label else 0.0
        for j in range(LANES):
            # Σ (p_k − y_k)² = ((Σ e − e_y)² − e_y² + Σ e²) / (Σ e)², where e_y is 1 if the label is the largest
            total = 1.0 + others[j]
            missed = total * total - 2.0 * exponential(-gap[j]) * total + 1.0
            square[j] = ((others[j] * others[j] if hit[j] == 1.0 else missed) + square[j]) / (total * total)
            gap[j] += log1p(others[j])
            others[j] = 1.0 / total
        for j in range(here):
            i = first + j
            confidence[i], decision[i], nll[i], brier[i] = others[j], i64(index[j]), gap[j], square[j]


@_loop
def label_excess(logits, squared, least, mean, square, most):  # type: ignore[no-untyped-def]
    """Write each row's smallest loss over its labels, and the mean, mean square and maximum of the labels' excess over it.

    The loss of a label is −log p or, if ``squared``, the Brier score.
    """
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top, index = np.empty((classes, LANES), logits.dtype), np.empty(LANES, logits.dtype), np.empty(LANES, i32)
    others, squares, low = np.ones(LANES), np.ones(LANES), np.zeros(LANES)
    one, two, negative = np.ones(LANES), np.ones(LANES), np.empty(classes, logits.dtype)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        # With e = p_k / max p, the excess of label k is −log e, or (2 max p) · (1 − e) for the Brier score
        if wide:
            for j in range(here):
                row = flat[(first + j) * classes : (first + j + 1) * classes]
                largest = _largest_of(row, work[0])
                at = _first_class(row, largest)
                total, square_sum, moment, second = 0.0, 0.0, 0.0, 0.0
                for k in range(classes):
                    d = max(f64(row[k]) - f64(largest), -1e30)  # e · ∞ would be infinite
                    e = exponential(d) if i32(k) != at else 0.0
                    u = 1.0 - e if squared else -d
                    total += e
                    square_sum += e * e
                    moment += e * u
                    second += e * u * u
                    negative[k] = -row[k]
                others[j], squares[j], one[j], two[j] = total, square_sum, moment, second
                low[j] = -f64(_largest_of(negative, work[0])) - f64(largest)
        else:
            _lay_out(flat, first, here, classes, work, top, index)
            others[:], squares[:], one[:], two[:], low[:] = 0.0, 0.0, 0.0, 0.0, 0.0
            for k in range(classes):
                line = work[k]
                for j in range(LANES):
                    exact = f64(line[j]) - f64(top[j])
                    d = max(exact, -1e30)
                    e = exponential(d) if index[j] != i32(k) else 0.0
                    u = 1.0 - e if squared else -d
                    others[j] += e
                    squares[j] += e * e
                    one[j] += e * u
                    two[j] += e * u * u
                    low[j] = min(low[j], exact)
        for j in range(LANES):
            p = 1.0 / (1.0 + others[j])
            unit = 2.0 * p if squared else 1.0
            squares[j] = (squares[j] + others[j] * others[j]) * p * p if squared else log1p(others[j])
            one[j] *= unit * p
            two[j] *= unit * unit * p
            low[j] = unit * (1.0 - exponential(low[j])) if squared else -low[j]
        for j in range(here):
            i = first + j
            least[i], mean[i], square[i], most[i] = squares[j], one[j], two[j], low[j]


@_loop
def temperature_moments(logits, labels, weights, beta):  # type: ignore[no-untyped-def]
    """Return Σ w E, Σ w Var and Σ w (z_label − max z) (3,), with moments of z − max z under softmax(βz); empty weights mean 1."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top, index = np.empty((classes, LANES), logits.dtype), np.empty(LANES, logits.dtype), np.empty(LANES, i32)
    norm, mean, square = np.ones(LANES), np.ones(LANES), np.ones(LANES)
    out = np.zeros(3)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        if wide:
            for j in range(here):
                row, total, one, two = flat[(first + j) * classes : (first + j + 1) * classes], 0.0, 0.0, 0.0
                largest = _largest_of(row, work[0])
                for k in range(classes):
                    d = max(f64(row[k]) - f64(largest), -1e30)  # there |e · d| is below 1e-277, and e · ∞ is infinite
                    e = exponential(beta * d)
                    total += e
                    one += e * d
                    two += e * d * d
                top[j], norm[j], mean[j], square[j] = largest, total, one, two
        else:
            _lay_out(flat, first, here, classes, work, top, index)
            norm[:], mean[:], square[:] = 0.0, 0.0, 0.0
            for k in range(classes):
                line = work[k]
                for j in range(LANES):
                    d = max(f64(line[j]) - f64(top[j]), -1e30)
                    e = exponential(beta * d)
                    norm[j] += e
                    mean[j] += e * d
                    square[j] += e * d * d
        for j in range(LANES):
            norm[j] = 1.0 / norm[j]
            mean[j] *= norm[j]
            square[j] = square[j] * norm[j] - mean[j] * mean[j]
        for j in range(here):
            w = weights[first + j] if len(weights) else 1.0
            own = f64(flat[u64((first + j) * classes) + u64(labels[first + j])])
            out[0] += w * mean[j]
            out[1] += w * square[j]
            out[2] += w * (own - f64(top[j]))
    return out


@_loop
def top_bins(logits, labels, bins):  # type: ignore[no-untyped-def]
    """Return the sums of ``pair_bins`` for each row's largest probability and for whether the decision is the label."""
    rows, classes = logits.shape
    flat, wide = logits.reshape(-1), classes >= WIDE
    work, top, index = np.empty((classes, LANES), logits.dtype), np.empty(LANES, logits.dtype), np.empty(LANES, i32)
    p, cell, sums = np.ones(LANES), np.empty(LANES, i32), np.zeros(COPIES * 6 * bins)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        if wide:
            for j in range(here):
                row, total = flat[(first + j) * classes : (first + j + 1) * classes], 0.0
                largest = _largest_of(row, work[0])
                index[j] = _first_class(row, largest)
                for k in range(classes):
                    total += exponential(f64(row[k]) - f64(largest))
                p[j] = total
        else:
            _lay_out(flat, first, here, classes, work, top, index)
            p[:] = 0.0
            for k in range(classes):
                line = work[k]
                for j in range(LANES):
                    p[j] += exponential(f64(line[j]) - f64(top[j]))
        for j in range(LANES):
            p[j] = 1.0 / p[j]
            cell[j] = bin_of(p[j], bins)
        for j in range(here):  # a separate loop, which becomes vector code: a branch below would often be mispredicted
            cell[j] += i32(bins) if i64(index[j]) == labels[first + j] else i32(0)
        for j in range(here):
            at = u64(3) * (u64(j % COPIES) * u64(2 * bins) + u64(cell[j]))
            sums[at] += 1.0
            sums[at + u64(1)] += p[j]
            sums[at + u64(2)] += p[j] * p[j]
    return sums


@_loop
def pair_bins(p, y, bins):  # type: ignore[no-untyped-def]
    """Return the number of rows, Σp and Σp² (COPIES · 2 · B · 3,) in each equal-width bin, for ``y`` (N,) = 0 and for ``y`` = 1."""
    sums = np.zeros(COPIES * 6 * bins)
    for i in range(len(p)):
        q = f64(p[i])
        at = u64(3) * (u64(i % COPIES) * u64(2 * bins) + u64(y[i]) * u64(bins) + u64(bin_of(q, bins)))
        sums[at] += 1.0
        sums[at + u64(1)] += q
        sums[at + u64(2)] += q * q
    return sums


@_loop
def _class_cells(flat, first, here, bins, work, e, cells):  # type: ignore[no-untyped-def]
    """Write the probabilities of rows ``first`` … into ``e`` (K, 1) for one row, or (K, LANES), and their bins into ``cells``."""
    p, classes = e.reshape(-1), e.shape[0]
    if e.shape[1] == 1:
        row, total = flat[first * classes : (first + 1) * classes], 0.0
        largest = _largest_of(row, work[0])
        for k in range(classes):
            p[k] = exponential(f64(row[k]) - f64(largest))
            total += p[k]
        total = 1.0 / total
        for k in range(classes):
            p[k] *= total
    else:
        top, index, norm = np.empty(LANES, work.dtype), np.empty(LANES, i32), np.zeros(LANES)
        _lay_out(flat, first, here, classes, work, top, index)
        for k in range(classes):
            line, out = work[k], e[k]
            for j in range(LANES):
                out[j] = exponential(f64(line[j]) - f64(top[j]))
                norm[j] += out[j]
        for j in range(LANES):
            norm[j] = 1.0 / norm[j]
        for k in range(classes):
            out = e[k]
            for j in range(LANES):
                out[j] *= norm[j]
    for i in range(len(p)):
        cells[i] = bin_of(p[i], bins)


@_loop
def class_bins(logits, labels, bins):  # type: ignore[no-untyped-def]
    """Return rows, Σp, Σy, Σp² and Σpy (K · B · 5,) in equal-width bins of each class's probability, y being 1 for the label."""
    rows, classes = logits.shape
    flat, step = logits.reshape(-1), 1 if classes >= WIDE_TABLES else LANES
    work, e, cells = np.empty((classes, LANES), logits.dtype), np.empty((classes, step)), np.empty(classes * step, i32)
    p, sums = e.reshape(-1), np.zeros(5 * classes * bins)
    for first in range(0, rows, step):
        here = min(step, rows - first)
        _class_cells(flat, first, here, bins, work, e, cells)
        for j in range(here):
            place, table = u64(j), u64(0)
            for _ in range(classes):
                at, q = table + u64(5) * u64(cells[place]), p[place]
                sums[at] += 1.0
                sums[at + u64(1)] += q
                sums[at + u64(3)] += q * q
                place += u64(step)
                table += u64(5 * bins)
            own = j + labels[first + j] * step
            at = 5 * (labels[first + j] * bins + cells[own])
            sums[at + 2] += 1.0
            sums[at + 4] += p[own]
    return sums


@_loop
def class_signs(logits, labels, signs, signed):  # type: ignore[no-untyped-def]
    """Write Σ_k s_k (p_k − y_k) of each row, where s_k is the entry of ``signs`` (K, B) for the bin of class k's probability."""
    rows, classes = logits.shape
    flat, bins, step = logits.reshape(-1), signs.shape[1], 1 if classes >= WIDE_TABLES else LANES
    work, e, cells = np.empty((classes, LANES), logits.dtype), np.empty((classes, step)), np.empty(classes * step, i32)
    p, sign = e.reshape(-1), signs.reshape(-1)
    for first in range(0, rows, step):
        here = min(step, rows - first)
        _class_cells(flat, first, here, bins, work, e, cells)
        for j in range(here):
            place, table, total = u64(j), u64(0), 0.0
            for _ in range(classes):
                total += sign[table + u64(cells[place])] * p[place]
                place += u64(step)
                table += u64(bins)
            label = labels[first + j]
            signed[first + j] = total - sign[label * bins + cells[j + label * step]]
