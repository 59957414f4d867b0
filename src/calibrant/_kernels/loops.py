"""The CPU's compiled loops, in Numba: statistics of rows, moments of a temperature, bins, scores, logistic regressions.

Rows of few classes are slow in array libraries because sums over 10 classes run number by number. Here ``LANES`` rows are
laid out by classes, so that every inner loop is over rows; a row of many classes is walked ``LANES`` columns at a time.
Either way an inner loop has a fixed length and no dependence between its turns, and the compiler makes vector code of it.
Every loop writes results of rows, or sums of fixed segments of rows, so that the same rows give the same bits whatever
the number of threads.

A bin is (lo, hi] of the edges. A product with the number of bins finds it, for many probabilities in one vector
instruction; the edges decide where rounding could.

All loops stand in this one file because Numba's cache of compiled code looks at a loop's own file only: a change of what
loops share must be seen by all. Only ``calibrant._kernels.cpu`` imports it, after it has seen that Numba is installed.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

LANES = 64  # rows, or columns of one row, that an inner loop handles
WIDE_FROM = 160  # number of classes from which one row fills the lanes
TOP, SPARE, AT, RUN = range(4)  # lanes of the logits' dtype: the rows' maxima, two for searches, the label's logit
FLUSH = 4  # float32 terms a lane adds before they go to float64, so that a sum keeps 2e-7
OTHERS, SQUARE, GAP, HIT, TIED = range(5)  # lanes of float64: what ``sum_rows`` writes
_FAST = {"contract"}  # permits a fused multiply-add; no sum is reordered

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64


def owned(folder: Path) -> bool:
    """Return whether ``folder`` is of this user, who may then keep compiled code there, or one that they cannot write into."""
    parts = [part for part in (folder, folder / "__pycache__") if part.exists()]
    others = hasattr(os, "geteuid") and any(part.stat().st_uid != os.geteuid() for part in parts)
    return not others or not any(
        os.access(part, os.W_OK) for part in parts
    )  # then Numba takes the user's own cache folder


def compiled(function: Callable[..., Any]) -> Any:
    """Return ``function`` compiled on its first call without the interpreter's lock, from the cache folder where one is writable."""
    try:  # the cache holds code, which is run when it is read: not from a folder of somebody else, unless the user names it
        cache = "NUMBA_CACHE_DIR" in os.environ or owned(Path(__file__).parent)
        return njit(function, nogil=True, cache=cache, fastmath=_FAST, error_model="numpy")
    except RuntimeError:  # "no locator available": neither this folder nor the user's cache folder can be written
        return njit(function, nogil=True, fastmath=_FAST, error_model="numpy")


def exponential(x: float) -> float:
    """Return eˣ for x ≤ 0 in the precision of ``x``; NaN stays NaN, and below the range of normal numbers it is 0."""
    raise NotImplementedError("compiled code has its own")


@overload(exponential, jit_options={"fastmath": _FAST, "error_model": "numpy"})
def _exponential(x):  # type: ignore[no-untyped-def]
    return _exp32 if x == types.float32 else _exp64


# eˣ = 2ⁿ eʳ, n = round(x / log 2), |r| ≤ log(2)/2. Adding 1.5·2^23 (2^52) rounds to an integer and leaves n in the low bits, so
# that a shift makes it an exponent. log 2 is split in two so that n·log 2 is exact. The polynomials interpolate eʳ at
# Chebyshev points: relative error 5e-9 and 2e-17, below the rounding of the last steps. In float64 the even and the odd powers
# are summed apart: a chain of eleven products that wait for each other takes half as long again.
_LOG2E32, _MAGIC32, _HIGH32, _LOW32 = (
    f32(1.4426950408889634),
    f32(12582912.0),
    f32(0.693359375),
    f32(-2.1219444005469058e-4),
)
_A1, _A2, _A3 = f32(1.0000000377162138425), f32(0.50000000471177576744), f32(0.16666415514653275427)
_A4, _A5, _A6 = f32(0.041666352896775156786), f32(0.008375126398153335682), f32(0.0013941108433972674608)


def _exp32(x):  # type: ignore[no-untyped-def]
    t = f32(x * _LOG2E32 + _MAGIC32)
    n = f32(t - _MAGIC32)
    r = x - n * _HIGH32 - n * _LOW32
    p = f32((((((_A6 * r + _A5) * r + _A4) * r + _A3) * r + _A2) * r + _A1) * r + f32(1.0))
    e = i32(p.view(i32) + i32(t.view(i32) << i32(23))).view(f32)
    e = e if x >= f32(-87.0) else f32(0.0)
    return e if x == x else x


_LOG2E64, _MAGIC64, _HIGH64, _LOW64 = (
    1.44269504088896340736,
    6755399441055744.0,
    0.693147180369123816490,
    1.908214929270587816e-10,
)
_LOWEST64, _FLOOR64 = -1000.0, 6755399441055744.0 - 1022.0  # e^-1000 is 0; above the floor results are normal numbers
_B2, _B3, _B4, _B5 = 0.50000000000000010211, 0.16666666666666667452, 0.041666666666624161903, 0.0083333333333300644495
_B6, _B7, _B8 = 0.0013888888917196719077, 0.00019841269863040545271, 0.000024801521322368693266
_B9, _B10, _B11 = 2.7557268480310025526e-6, 2.7620075879983366586e-7, 2.5100375832561233664e-8


def _exp64(x):  # type: ignore[no-untyped-def]
    x = _LOWEST64 if x < _LOWEST64 else x
    t = f64(x * _LOG2E64 + _MAGIC64)
    n = f64(t - _MAGIC64)
    r = x - n * _HIGH64 - n * _LOW64
    square = r * r
    even = (((_B10 * square + _B8) * square + _B6) * square + _B4) * square + _B2
    odd = (((_B11 * square + _B9) * square + _B7) * square + _B5) * square + _B3
    p = f64((square * (even + odd * r) + r) + 1.0)
    e = i64(p.view(i64) + i64(t.view(i64) << i64(52))).view(f64)
    return e if t > _FLOOR64 else p - p  # 0, or NaN for NaN


@compiled
def lay_out(flat, first, here, classes, work):  # type: ignore[no-untyped-def]
    """Copy ``here`` rows from row ``first`` on into ``work`` (K, LANES), class by class; the last row fills lanes left over."""
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


@compiled
def pad(row, start, padding, tail):  # type: ignore[no-untyped-def]
    """Copy what ``row`` holds from ``start`` on into ``tail`` (LANES,), and ``padding`` behind it."""
    for j in range(LANES):
        tail[j] = row[start + j] if start + j < row.shape[0] else padding


@compiled
def tops(work, lanes):  # type: ignore[no-untyped-def]
    """Write the largest number of each row laid out in ``work`` (K, LANES) into ``lanes[TOP]``; ``lanes[SPARE]`` is overwritten.

    In place, the compiler would store by masks where a number is larger, which some processors do twenty times slower.
    """
    for j in range(LANES):
        lanes[TOP, j] = work[0, j]
    _take_larger(work, 1, TOP, lanes)


@compiled
def row_top(row, lanes):  # type: ignore[no-untyped-def]
    """Return the largest number of a row of many classes, whose last columns ``pad`` has put into ``lanes[AT]``."""
    for j in range(LANES):
        lanes[RUN, j] = lanes[AT, j]
    _take_larger(row[: row.shape[0] - row.shape[0] % LANES].reshape(-1, LANES), 0, RUN, lanes)
    half = LANES // 2
    for j in range(half):
        x, y = lanes[RUN, j], lanes[RUN, half + j]
        lanes[SPARE, j] = y if y > x else x
    for j in range(half // 2):
        x, y = lanes[SPARE, j], lanes[SPARE, half // 2 + j]
        lanes[RUN, j] = y if y > x else x
    most = lanes[RUN, 0]
    for j in range(1, half // 2):
        most = lanes[RUN, j] if lanes[RUN, j] > most else most
    return most


@compiled
def _take_larger(lines, first, home, lanes):  # type: ignore[no-untyped-def]
    """Raise ``lanes[home]`` to the largest of it and of the ``lines`` (n, LANES) from ``first`` on."""
    for k in range(first, lines.shape[0] - 1, 2):
        for j in range(LANES):
            x, y = lanes[home, j], lines[k, j]
            lanes[SPARE, j] = y if y > x else x
        for j in range(LANES):
            x, y = lanes[SPARE, j], lines[k + 1, j]
            lanes[home, j] = y if y > x else x
    if (lines.shape[0] - first) % 2 == 1:
        for j in range(LANES):
            lanes[SPARE, j] = lanes[home, j]
        for j in range(LANES):
            x, y = lanes[SPARE, j], lines[lines.shape[0] - 1, j]
            lanes[home, j] = y if y > x else x


@compiled
def _add_exponentials(lines, shift, out):  # type: ignore[no-untyped-def]
    """Add Σ exp(z − shift) over ``lines`` (n, LANES) without the terms of z = shift to ``out[OTHERS]``, Σ exp² to
    ``out[SQUARE]``, and the number of these terms to ``out[TIED]``.
    """
    for k in range(lines.shape[0]):
        for j in range(LANES):
            d = f64(lines[k, j]) - shift[j]
            e = exponential(d)
            e = 0.0 if d == 0.0 else e
            out[OTHERS, j] += e
            out[SQUARE, j] += e * e
            out[TIED, j] += 1.0 if d == 0.0 else 0.0


@compiled
def sum_rows(logits, labels, first, here, work, lanes, shift, out):  # type: ignore[no-untyped-def]
    """Write what the scores need of ``here`` rows of ``logits`` (N, K), from row ``first`` on, into ``out`` (5, LANES) float64.

    ``out[OTHERS]`` is Σ exp(z − max z) over all classes but one at the maximum, ``out[SQUARE]`` the sum of its squares,
    ``out[GAP]`` is max z − z of the label, and ``out[HIT]`` 1 where the label is the first class at the maximum, else 0. Lanes
    without a row get 0, and 1 in ``out[HIT]``.

    Overwritten: ``lanes`` (4, LANES) of the logits' dtype, ``shift`` (LANES,) float64, and ``work`` of the logits' dtype,
    (K, LANES) to lay rows of few classes out, (0,) for many classes.
    """
    classes = logits.shape[1]
    flat = logits.reshape(-1)
    _sum_block(flat, first, here, classes, work, lanes, shift, out)
    place = np.uintp(first * classes)  # unsigned: compiled code then does not look for negative indices
    for j in range(here):
        lanes[AT, j] = flat[place + np.uintp(labels[first + j])]
        place += np.uintp(classes)
    several = 0
    for j in range(LANES):
        out[GAP, j] = f64(lanes[TOP, j]) - f64(lanes[AT, j])
        out[HIT, j] = 1.0 if lanes[TOP, j] == lanes[AT, j] else 0.0
    for j in range(LANES):
        several += 1 if out[TIED, j] > 1.0 else 0  # whole numbers may be added in any order, hence in lanes
    for j in range(LANES):
        out[OTHERS, j] += out[TIED, j] - 1.0
        out[SQUARE, j] += out[TIED, j] - 1.0
    if several:
        for j in range(here):
            if out[HIT, j] == 1.0 and out[TIED, j] > 1.0:
                for k in range(labels[first + j]):
                    if logits[first + j, k] == lanes[TOP, j]:
                        out[HIT, j] = 0.0
    for j in range(here, LANES):
        out[OTHERS, j], out[SQUARE, j], out[GAP, j], out[HIT, j] = 0.0, 0.0, 0.0, 1.0


def _sum_block(flat, first, here, classes, work, lanes, shift, out):  # type: ignore[no-untyped-def]
    """Write the maxima of rows into ``lanes[TOP]``, and what ``_add_exponentials`` adds into ``out``."""
    raise NotImplementedError("compiled code has its own")


@overload(_sum_block, jit_options={"fastmath": _FAST, "error_model": "numpy"})
def _choose_block(flat, first, here, classes, work, lanes, shift, out):  # type: ignore[no-untyped-def]
    return _sum_narrow if work.ndim == 2 else _sum_wide


def _sum_narrow(flat, first, here, classes, work, lanes, shift, out):  # type: ignore[no-untyped-def]
    lay_out(flat, first, here, classes, work)
    tops(work, lanes)
    for j in range(LANES):
        shift[j] = lanes[TOP, j]
    for j in range(LANES):
        out[OTHERS, j], out[SQUARE, j], out[TIED, j] = 0.0, 0.0, 0.0
    _add_exponentials(work, shift, out)


def _sum_wide(flat, first, here, classes, work, lanes, shift, out):  # type: ignore[no-untyped-def]
    full = classes - classes % LANES
    sums = np.zeros((5, LANES))
    for i in range(here, LANES):
        lanes[TOP, i], out[TIED, i] = 0.0, 1.0
    for i in range(here):
        row = flat[(first + i) * classes : (first + i + 1) * classes]
        pad(row, full, -np.inf, lanes[AT])
        lanes[TOP, i] = row_top(row, lanes)
        for j in range(LANES):
            shift[j] = lanes[TOP, i]
        for j in range(LANES):
            sums[OTHERS, j], sums[SQUARE, j], sums[TIED, j] = 0.0, 0.0, 0.0
        _add_exponentials(row[:full].reshape(-1, LANES), shift, sums)
        _add_exponentials(lanes[AT : AT + 1], shift, sums)
        out[OTHERS, i], out[SQUARE, i], out[TIED, i] = (
            total_of(sums[OTHERS]),
            total_of(sums[SQUARE]),
            total_of(sums[TIED]),
        )


@compiled
def total_of(lanes):  # type: ignore[no-untyped-def]
    """Return the sum of ``lanes`` (LANES,), which is overwritten."""
    half = LANES // 2
    while half >= 8:
        for j in range(half):
            lanes[j] += lanes[half + j]
        half //= 2
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))


@compiled
def write_statistics(logits, labels, like, top, best, others, square, at_label):  # type: ignore[no-untyped-def]
    """Write the statistics of rows (N, K): the largest logit, its first class, and sums over all classes but that one.

    ``others`` is Σ exp(z − top) over all classes but the largest, so that 1 minus the confidence keeps its digits.
    ``like`` is ``sum_rows``'s ``work``. ``labels`` may be empty, and ``at_label`` is left out then.
    """
    rows, classes = logits.shape
    work, lanes = np.empty_like(like), np.empty((4, LANES), dtype=logits.dtype)
    shift, out = np.empty(LANES), np.empty((5, LANES))
    index, spare = np.empty(LANES, dtype=np.int32), np.empty(LANES, dtype=np.int32)
    flat = logits.reshape(-1)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        _sum_block(flat, first, here, classes, work, lanes, shift, out)
        _find_tops(work, logits[first : first + here], lanes[TOP], spare, index)
        for j in range(here):
            # of several largest classes all but one are others, each exp(0) = 1
            i, tied = first + j, out[TIED, j] - 1.0
            top[i], best[i] = lanes[TOP, j], index[j]
            others[i], square[i] = out[OTHERS, j] + tied, out[SQUARE, j] + tied
        for i in range(first, first + here if labels.shape[0] else first):
            at_label[i] = logits[i, labels[i]]


def _find_tops(work, block, largest, spare, index):  # type: ignore[no-untyped-def]
    """Write the first class at the maximum of each row of ``block`` into ``index`` (LANES,); ``spare`` is overwritten."""
    raise NotImplementedError("compiled code has its own")


@overload(_find_tops, jit_options={"fastmath": _FAST, "error_model": "numpy"})
def _choose_tops(work, block, largest, spare, index):  # type: ignore[no-untyped-def]
    return _tops_by_class if work.ndim == 2 else _tops_by_row


def _tops_by_class(work, block, largest, spare, index):  # type: ignore[no-untyped-def]
    old, new = (spare, index) if work.shape[0] % 2 == 1 else (index, spare)
    for j in range(LANES):
        old[j] = i32(0)
    for k in range(work.shape[0] - 1, -1, -1):
        line = work[k]
        for j in range(LANES):
            new[j] = i32(k) if line[j] == largest[j] else old[j]
        old, new = new, old


def _tops_by_row(work, block, largest, spare, index):  # type: ignore[no-untyped-def]
    for j in range(block.shape[0]):
        index[j] = i32(_first_at(block[j], largest[j]))


@compiled
def _first_at(row, value):  # type: ignore[no-untyped-def]
    """Return the first column of ``row`` that holds ``value``, or 0 if none does."""
    for start in range(0, row.shape[0], LANES):
        part, found = row[start : start + LANES], i32(0)
        for j in range(part.shape[0]):
            found += i32(1) if part[j] == value else i32(0)
        if found:
            for j in range(part.shape[0]):
                if part[j] == value:
                    return start + j
    return 0


_LOWEST = -1e30  # stands for −∞: its exponential is 0, and 0 times it is not NaN


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
                _add_columns(work[k], largest, scale, norm, mean, square)
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
    largest = np.empty(LANES, zero.dtype)
    for part in range(out.shape[0]):
        first_sum, second_sum = 0.0, 0.0
        for i in range(part * segment, min(rows, (part + 1) * segment)):
            row = logits[i]
            largest[:] = kind(top[i])
            pad(row, full, -np.inf, tail)
            for j in range(LANES):
                norm[j], mean[j], square[j] = kind(0), kind(0), kind(0)
            for k in range(0, full + LANES, LANES):
                columns = row[k : k + LANES] if k < full else tail
                _add_columns(columns, largest, scale, norm, mean, square)
            total, average, spread = f64(total_of(norm)), f64(total_of(mean)), f64(total_of(square))
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
        d = kind(columns[j]) - largest[j]
        d = kind(_LOWEST) if d < kind(_LOWEST) else d
        e = exponential(scale * d)
        moved = e * d
        norm[j] += e
        mean[j] += moved
        square[j] += moved * d


COLUMNS = 5  # of a bin: rows, Σp, Σy, Σp² and Σpy
_COPIES = 4  # neighbouring pairs mostly fall into one bin: sums that take turns do not wait for each other
_CLOSE = 1e-9  # of a product to an integer, where the edges decide


@compiled
def find_bins(p, edges, bins, index):  # type: ignore[no-untyped-def]
    """Write the bin (lo, hi] of ``edges`` (B + 1,), evenly spaced on [0, 1], of each of ``p``; the ends take what lies outside."""
    last = np.float64(bins - 1)
    close = 0
    for j in range(p.shape[0]):
        scaled = p[j] * bins
        edge = np.floor(scaled + 0.5)
        decided = (abs(scaled - edge) >= _CLOSE) | (edge == 0.0) | (edge >= bins)
        close += 0 if decided else 1
        index[j] = i32(min(max(np.ceil(scaled) - 1.0, 0.0), last))
    if close:
        for j in range(p.shape[0]):
            b = min(max(index[j], i32(0)), i32(bins - 1))  # of NaN it could be anything
            while b > 0 and p[j] <= edges[b]:
                b -= 1
            while b < bins - 1 and p[j] > edges[b + 1]:
                b += 1
            index[j] = b


@compiled
def _add_pair(sums, cell, p, y):  # type: ignore[no-untyped-def]
    """Add a pair to the bin whose sums begin at ``cell``, an unsigned number: compiled code then looks for no negative indices."""
    sums[cell] += 1.0
    sums[cell + np.uintp(1)] += p
    sums[cell + np.uintp(2)] += y
    sums[cell + np.uintp(3)] += p * p
    sums[cell + np.uintp(4)] += p * y


@compiled
def write_pair_bins(p, y, edges, segment, out):  # type: ignore[no-untyped-def]
    """Write the sums of pairs ``p`` (N,) float64, ``y`` (N,) in bins into ``out`` (segments, COLUMNS · B)."""
    bins = edges.shape[0] - 1
    sums, index = np.empty(_COPIES * COLUMNS * bins), np.empty(LANES, dtype=np.int32)
    for part in range(out.shape[0]):
        sums[:] = 0.0
        for first in range(part * segment, min(p.shape[0], (part + 1) * segment), LANES):
            stop = min(p.shape[0], (part + 1) * segment, first + LANES)
            find_bins(p[first:stop], edges, bins, index)
            for i in range(first, stop):
                place = np.uintp(i % _COPIES) * np.uintp(bins) + np.uintp(index[i - first])
                _add_pair(sums, np.uintp(COLUMNS) * place, p[i], f64(y[i]))
        _add_copies(sums, out[part])


@compiled
def write_top_bins(logits, labels, like, bins, margin, segment, out, near):  # type: ignore[no-untyped-def]
    """Write what ``write_pair_bins`` does, of each row's confidence and whether the decision is the label, in ``bins`` of equal width.

    ``like`` is ``sum_rows``'s ``work``; exponentials have the logits' dtype, as those of float64 would take half as long again.
    Rows with a confidence p within ``margin`` · p of an edge inside (0, 1) are left out, and get 1 in ``near`` (N,) uint8, which
    holds 0 before.
    """
    rows = logits.shape[0]
    work, lanes = np.empty_like(like), np.zeros((4, LANES), dtype=logits.dtype)
    sums, index = np.empty(_COPIES * COLUMNS * bins), np.empty(LANES, dtype=np.int32)
    shift, part = np.empty(LANES, dtype=logits.dtype), np.empty(LANES, dtype=logits.dtype)
    p, hit, kept = np.ones(LANES), np.empty(LANES), np.empty(LANES)
    for s in range(out.shape[0]):
        sums[:] = 0.0
        for first in range(s * segment, min(rows, (s + 1) * segment), LANES):
            here = min(LANES, rows - first, (s + 1) * segment - first)
            _norms(logits, first, here, work, lanes, shift, part, p)
            _hits(logits, labels, first, here, lanes, p, hit)
            if _place_in_bins(p, bins, margin, kept, index):
                for j in range(here):
                    near[first + j] = np.uint8(1) if kept[j] == 0.0 else np.uint8(0)
            for j in range(here):
                # unsigned: compiled code then does not look for negative indices
                cell = np.uintp(COLUMNS) * (np.uintp(j % _COPIES) * np.uintp(bins) + np.uintp(index[j]))
                c = kept[j] * p[j]
                sums[cell] += kept[j]
                sums[cell + np.uintp(1)] += c
                sums[cell + np.uintp(2)] += kept[j] * hit[j]
                sums[cell + np.uintp(3)] += c * p[j]
                sums[cell + np.uintp(4)] += c * hit[j]
        _add_copies(sums, out[s])


@compiled
def _place_in_bins(p, bins, margin, kept, index):  # type: ignore[no-untyped-def]
    """Turn the norms ``p`` into probabilities 1 / norm and write their bins into ``index``, and 0 into ``kept`` where one lies near
    an edge, else 1. Returns how many do: away from edges the product decides the bin.
    """
    left_out = 0
    last = f64(bins - 1)
    for j in range(LANES):
        p[j] = 1.0 / p[j]
        scaled = p[j] * bins
        edge = np.floor(scaled + 0.5)
        away = (abs(scaled - edge) > margin * scaled) | (edge == 0.0) | (edge >= bins)
        kept[j] = 1.0 if away else 0.0
        index[j] = i32(min(np.floor(scaled), last))
        left_out += 0 if away else 1
    return left_out


def _norms(logits, first, here, work, lanes, shift, part, norm):  # type: ignore[no-untyped-def]
    """Write the maxima of rows into ``lanes[TOP]`` and Σ exp(z − max z) into ``norm`` (LANES,)."""
    raise NotImplementedError("compiled code has its own")


@overload(_norms, jit_options={"fastmath": _FAST, "error_model": "numpy"})
def _choose_norms(logits, first, here, work, lanes, shift, part, norm):  # type: ignore[no-untyped-def]
    return _narrow_norms if work.ndim == 2 else _wide_norms


def _narrow_norms(logits, first, here, work, lanes, shift, part, norm):  # type: ignore[no-untyped-def]
    classes = logits.shape[1]
    lay_out(logits.reshape(-1), first, here, classes, work)
    tops(work, lanes)
    for j in range(LANES):
        norm[j], shift[j] = 0.0, lanes[TOP, j]
    for start in range(0, classes, FLUSH):
        _add_terms(work, start, min(classes, start + FLUSH), shift, part, norm)


def _wide_norms(logits, first, here, work, lanes, shift, part, norm):  # type: ignore[no-untyped-def]
    full, sums = logits.shape[1] - logits.shape[1] % LANES, np.empty(LANES)
    for i in range(here):
        row = logits[first + i]
        pad(row, full, -np.inf, lanes[AT])
        most = row_top(row, lanes)
        lanes[TOP, i] = most
        for j in range(LANES):
            sums[j], shift[j] = 0.0, most
        lines = row[:full].reshape(-1, LANES)
        for start in range(0, lines.shape[0], FLUSH):
            _add_terms(lines, start, min(lines.shape[0], start + FLUSH), shift, part, sums)
        _add_terms(lanes, AT, AT + 1, shift, part, sums)
        norm[i] = total_of(sums)


@compiled
def _add_terms(lines, start, stop, shift, part, norm):  # type: ignore[no-untyped-def]
    """Add Σ exp(z − shift) over ``lines`` start … stop (n, LANES), summed in their dtype in ``part``, to ``norm`` (LANES,)."""
    kind = part.dtype.type
    for j in range(LANES):
        part[j] = kind(0)
    for k in range(start, stop):
        for j in range(LANES):
            part[j] += exponential(lines[k, j] - shift[j])
    for j in range(LANES):
        norm[j] += part[j]


@compiled
def _hits(logits, labels, first, here, lanes, norm, hit):  # type: ignore[no-untyped-def]
    """Write 1 into ``hit`` (LANES,) where the label is the first class at the maximum ``lanes[TOP]``, else 0."""
    flat, classes = logits.reshape(-1), logits.shape[1]
    place = np.uintp(first * classes)
    for j in range(here):
        lanes[AT, j] = flat[place + np.uintp(labels[first + j])]
        place += np.uintp(classes)
    several = 0
    for j in range(LANES):
        hit[j] = 1.0 if lanes[TOP, j] == lanes[AT, j] else 0.0
    for j in range(LANES):
        several += 1 if hit[j] * norm[j] >= 2.0 else 0  # classes that share the maximum add 1 each
    if several:
        for j in range(here):
            if hit[j] * norm[j] >= 2.0:
                place, most, before = np.uintp((first + j) * classes), lanes[TOP, j], 0
                for k in range(labels[first + j]):
                    before += 1 if flat[place + np.uintp(k)] == most else 0
                hit[j] = 0.0 if before else 1.0


@compiled
def _add_copies(sums, out):  # type: ignore[no-untyped-def]
    for place in range(out.shape[0]):
        total = 0.0
        for copy in range(_COPIES):
            total += sums[copy * out.shape[0] + place]
        out[place] = total


@compiled
def write_class_bins(logits, labels, edges, segment, out):  # type: ignore[no-untyped-def]
    """Write the sums of every class's probability and event into ``out`` (segments, COLUMNS · K · B), class by class."""
    rows, classes = logits.shape
    bins, wide = edges.shape[0] - 1, classes >= WIDE_FROM
    step = 1 if wide else LANES  # rows that are taken together
    lines = -(-classes // LANES) if wide else classes
    work = np.empty((1 if wide else classes, LANES), dtype=logits.dtype)
    lanes = np.empty((4, LANES), dtype=logits.dtype)
    p, index, norm = np.empty((lines, LANES)), np.empty((lines, LANES), dtype=np.int32), np.empty(LANES)
    flat, places, cells = logits.reshape(-1), p.reshape(-1), index.reshape(-1)
    for s in range(out.shape[0]):
        table = out[s]
        table[:] = 0.0
        for first in range(s * segment, min(rows, (s + 1) * segment), step):
            here = min(step, rows - first, (s + 1) * segment - first)
            if wide:
                _row_probabilities(flat[first * classes : (first + 1) * classes], lanes, p, norm)
            else:
                lay_out(flat, first, here, classes, work)
                _probabilities(work, lanes, p, norm)
            for k in range(lines):
                find_bins(p[k], edges, bins, index[k])
            _add_cells(places, cells, 1 if wide else LANES, classes, bins, table, labels[first : first + here])


@compiled
def _add_cells(p, index, stride, classes, bins, table, labels):  # type: ignore[no-untyped-def]
    """Add the probabilities of row j, at ``p[j]``, ``p[j + stride]`` …, to the cells of their bins, and its event to its label's."""
    for j in range(labels.shape[0]):
        place, cell = np.uintp(j), np.uintp(0)
        for _ in range(classes):
            at, q = cell + np.uintp(COLUMNS) * np.uintp(index[place]), p[place]
            table[at] += 1.0
            table[at + np.uintp(1)] += q
            table[at + np.uintp(3)] += q * q
            place += np.uintp(stride)
            cell += np.uintp(COLUMNS * bins)
        own = j + labels[j] * stride
        at = COLUMNS * (labels[j] * bins + index[own])
        table[at + 2] += 1.0
        table[at + 4] += p[own]


@compiled
def _probabilities(work, lanes, p, norm):  # type: ignore[no-untyped-def]
    """Write the probabilities of the rows laid out in ``work`` (K, LANES) into ``p`` (K, LANES)."""
    tops(work, lanes)
    norm[:] = 0.0
    for k in range(work.shape[0]):
        line, out = work[k], p[k]
        for j in range(LANES):
            e = exponential(np.float64(line[j]) - np.float64(lanes[TOP, j]))
            out[j] = e
            norm[j] += e
    for j in range(LANES):
        norm[j] = 1.0 / norm[j]
    for k in range(work.shape[0]):
        out = p[k]
        for j in range(LANES):
            out[j] *= norm[j]


@compiled
def _row_probabilities(row, lanes, p, norm):  # type: ignore[no-untyped-def]
    """Write the probabilities of one row into the first K places of ``p`` (⌈K / LANES⌉, LANES), and 0 behind them."""
    full = row.shape[0] - row.shape[0] % LANES
    pad(row, full, -np.inf, lanes[AT])
    most = np.float64(row_top(row, lanes))
    norm[:] = 0.0
    for k in range(p.shape[0]):
        line, out = row[k * LANES : (k + 1) * LANES] if (k + 1) * LANES <= full else lanes[AT], p[k]
        for j in range(LANES):
            e = exponential(np.float64(line[j]) - most)
            out[j] = e
            norm[j] += e
    total = 0.0
    for j in range(LANES):
        total += norm[j]
    by = 1.0 / total
    flat = p.reshape(-1)
    for k in range(flat.shape[0]):
        flat[k] *= by


_GAPS, _HITS, _PRODUCT, _BRIER = range(4)  # lanes of sums
_BLOCKS = 16  # of rows whose factors are multiplied before their logarithm is taken: K to this power is a float64


@compiled
def write_score_sums(logits, labels, like, segment, out):  # type: ignore[no-untyped-def]
    """Write Σ −log p of the label, Σ Brier score and the number of right decisions into ``out`` (segments, 3), ``segment`` rows each.

    ``like`` is ``sum_rows``'s ``work``; exponentials are float64. Σ log(1 + o) is taken as the logarithm of a product, less 1 so
    that small o keep their digits: (1 + a)(1 + b) − 1 = a + b + ab.
    """
    rows = logits.shape[0]
    work, lanes = np.empty_like(like), np.zeros((4, LANES), dtype=logits.dtype)
    shift, found, sums = np.zeros(LANES), np.zeros((5, LANES)), np.zeros((4, LANES))
    for p in range(out.shape[0]):
        sums[:] = 0.0
        nll, empty = 0.0, 0
        for first in range(p * segment, min(rows, (p + 1) * segment), LANES):
            here = min(LANES, rows - first, (p + 1) * segment - first)
            sum_rows(logits, labels, first, here, work, lanes, shift, found)
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


_TERMS = 17  # of log(1 + e) = 2 Σ t^(2i + 1) / (2i + 1), t = e / (2 + e) ≤ 1/3: the rest is below 1e-17, relative
_SERIES = np.array([2.0 / (2 * i + 1) for i in range(_TERMS)])


@compiled
def write_logistic_sums(features, hit, weight, theta, high, low, segment, out):  # type: ignore[no-untyped-def]
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
