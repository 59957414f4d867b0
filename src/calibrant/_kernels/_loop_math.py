"""What the compiled loops share: how they are compiled, their own exponential, and how rows are laid out by classes.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

LANES = 64  # rows, or columns of one row, that an inner loop handles
WIDE_FROM = 160  # number of classes from which one row fills the lanes
TOP, SPARE, AT, RUN = range(4)  # lanes of the logits' dtype: the rows' maxima, two for searches, the label's logit
SHIFT, PART, LEFT = range(3)  # lanes of the exponentials' dtype: what they subtract, sums so far, terms left out
OTHERS, SQUARE, GAP, HIT, TIED = range(5)  # lanes of float64: what ``sum_rows`` writes
FLUSH = 4  # float32 terms a lane adds before they go to float64, so that a sum keeps 2e-7
_FAST = {"contract"}  # permits a fused multiply-add; no sum is reordered

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64


def compiled(function: Callable[..., Any]) -> Any:
    """Return ``function`` compiled on its first call without the interpreter's lock, from the cache folder where one is writable."""
    try:
        return njit(function, nogil=True, cache=True, fastmath=_FAST)
    except RuntimeError:  # "no locator available": neither this folder nor the user's cache folder can be written
        return njit(function, nogil=True, fastmath=_FAST)


def exponential(x: float) -> float:
    """Return eˣ for x ≤ 0 in the precision of ``x``; NaN stays NaN, and below the range of normal numbers it is 0."""
    raise NotImplementedError("compiled code has its own")


@overload(exponential, jit_options={"fastmath": _FAST})
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


def _add_exponentials(lines, part, out):  # type: ignore[no-untyped-def]
    """Add Σ exp(z − shift) over ``lines`` (n, LANES) without the terms of z = shift to ``out[OTHERS]``, and these terms' number
    to ``out[TIED]``; where the exponentials are float64, also Σ exp² to ``out[SQUARE]``. NaN stays NaN.
    """
    raise NotImplementedError("compiled code has its own")


@overload(_add_exponentials, jit_options={"fastmath": _FAST})
def _choose_exponentials(lines, part, out):  # type: ignore[no-untyped-def]
    return _add_exponentials32 if part.dtype == types.float32 else _add_exponentials64


def _add_exponentials32(lines, part, out):  # type: ignore[no-untyped-def]
    zero, one = f32(0.0), f32(1.0)
    for start in range(0, lines.shape[0], FLUSH):
        for j in range(LANES):
            part[PART, j], part[LEFT, j] = zero, zero
        for k in range(start, min(lines.shape[0], start + FLUSH)):
            for j in range(LANES):
                d = f32(lines[k, j]) - part[SHIFT, j]
                e = exponential(d)
                part[PART, j] += zero if d == zero else e
                part[LEFT, j] += one if d == zero else zero
        for j in range(LANES):
            out[OTHERS, j] += part[PART, j]
            out[TIED, j] += part[LEFT, j]


def _add_exponentials64(lines, part, out):  # type: ignore[no-untyped-def]
    for k in range(lines.shape[0]):
        for j in range(LANES):
            d = f64(lines[k, j]) - part[SHIFT, j]
            e = exponential(d)
            e = 0.0 if d == 0.0 else e
            out[OTHERS, j] += e
            out[SQUARE, j] += e * e
            out[TIED, j] += 1.0 if d == 0.0 else 0.0


@compiled
def sum_rows(logits, labels, first, here, work, lanes, part, out):  # type: ignore[no-untyped-def]
    """Write what the scores need of ``here`` rows of ``logits`` (N, K), from row ``first`` on, into ``out`` (5, LANES) float64.

    ``out[OTHERS]`` is Σ exp(z − max z) over all classes but one at the maximum, ``out[SQUARE]`` the sum of its squares if the
    exponentials are float64, ``out[GAP]`` is max z − z of the label, and ``out[HIT]`` 1 where the label is the first class at the
    maximum, else 0. A row with NaN or +inf, or of −inf alone, gets NaN in ``out[OTHERS]``. Lanes without a row get 0, and 1 in
    ``out[HIT]``.

    Overwritten: ``lanes`` (4, LANES) of the logits' dtype, ``part`` (3, LANES) of the exponentials', and ``work`` of the logits',
    (K, LANES) to lay rows of few classes out, (0,) for many classes.
    """
    classes = logits.shape[1]
    flat = logits.reshape(-1)
    _sum_block(flat, first, here, classes, work, lanes, part, out)
    place = np.uintp(first * classes)  # unsigned: compiled code then does not look for negative indices
    for j in range(here):
        lanes[AT, j] = flat[place + np.uintp(labels[first + j])]
        place += np.uintp(classes)
    several = 0.0
    for j in range(LANES):
        out[GAP, j] = f64(lanes[TOP, j]) - f64(lanes[AT, j])
        out[HIT, j] = 1.0 if lanes[TOP, j] == lanes[AT, j] else 0.0
    for j in range(LANES):
        several += out[TIED, j]
    for j in range(LANES):
        out[OTHERS, j] += out[TIED, j] - 1.0
        out[SQUARE, j] += out[TIED, j] - 1.0
    if several > LANES:
        for j in range(here):
            if out[HIT, j] == 1.0 and out[TIED, j] > 1.0:
                for k in range(labels[first + j]):
                    if logits[first + j, k] == lanes[TOP, j]:
                        out[HIT, j] = 0.0
    for j in range(here, LANES):
        out[OTHERS, j], out[SQUARE, j], out[GAP, j], out[HIT, j] = 0.0, 0.0, 0.0, 1.0


def _sum_block(flat, first, here, classes, work, lanes, part, out):  # type: ignore[no-untyped-def]
    """Write the maxima of rows into ``lanes[TOP]``, and what ``_add_exponentials`` adds into ``out``."""
    raise NotImplementedError("compiled code has its own")


@overload(_sum_block, jit_options={"fastmath": _FAST})
def _choose_block(flat, first, here, classes, work, lanes, part, out):  # type: ignore[no-untyped-def]
    return _sum_narrow if work.ndim == 2 else _sum_wide


def _sum_narrow(flat, first, here, classes, work, lanes, part, out):  # type: ignore[no-untyped-def]
    lay_out(flat, first, here, classes, work)
    tops(work, lanes)
    for j in range(LANES):
        part[SHIFT, j] = lanes[TOP, j]
    for j in range(LANES):
        out[OTHERS, j], out[SQUARE, j], out[TIED, j] = 0.0, 0.0, 0.0
    _add_exponentials(work, part, out)


def _sum_wide(flat, first, here, classes, work, lanes, part, out):  # type: ignore[no-untyped-def]
    full = classes - classes % LANES
    sums = np.zeros((5, LANES))
    for i in range(here, LANES):
        lanes[TOP, i], out[TIED, i] = 0.0, 1.0
    for i in range(here):
        row = flat[(first + i) * classes : (first + i + 1) * classes]
        pad(row, full, -np.inf, lanes[AT])
        lanes[TOP, i] = row_top(row, lanes)
        for j in range(LANES):
            part[SHIFT, j] = lanes[TOP, i]
        for j in range(LANES):
            sums[OTHERS, j], sums[SQUARE, j], sums[TIED, j] = 0.0, 0.0, 0.0
        _add_exponentials(row[:full].reshape(-1, LANES), part, sums)
        _add_exponentials(lanes[AT : AT + 1], part, sums)
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
    total = 0.0
    for j in range(8):
        total += lanes[j]
    return total
