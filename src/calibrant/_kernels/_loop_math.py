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
def tops(work, spare, largest):  # type: ignore[no-untyped-def]
    """Write the largest number of each row laid out in ``work`` (K, LANES) into ``largest`` (LANES,); ``spare`` is overwritten.

    In place, the compiler would store by masks where a number is larger, which some processors do twenty times slower.
    """
    classes = work.shape[0]
    for j in range(LANES):
        largest[j] = work[0, j]
    for k in range(1, classes - 1, 2):
        for j in range(LANES):
            x, y = largest[j], work[k, j]
            spare[j] = y if y > x else x
        for j in range(LANES):
            x, y = spare[j], work[k + 1, j]
            largest[j] = y if y > x else x
    if classes % 2 == 0:
        for j in range(LANES):
            spare[j] = largest[j]
        for j in range(LANES):
            x, y = spare[j], work[classes - 1, j]
            largest[j] = y if y > x else x


@compiled
def row_top(row, tail, spare, largest):  # type: ignore[no-untyped-def]
    """Return the largest number of a row of many classes, whose last columns ``pad`` has put into ``tail``."""
    full = row.shape[0] - row.shape[0] % LANES
    lines = row[:full].reshape(-1, LANES)
    for j in range(LANES):
        largest[j] = tail[j]
    for k in range(0, lines.shape[0] - 1, 2):
        for j in range(LANES):
            x, y = largest[j], lines[k, j]
            spare[j] = y if y > x else x
        for j in range(LANES):
            x, y = spare[j], lines[k + 1, j]
            largest[j] = y if y > x else x
    if lines.shape[0] % 2 == 1:
        for j in range(LANES):
            spare[j] = largest[j]
        for j in range(LANES):
            x, y = spare[j], lines[lines.shape[0] - 1, j]
            largest[j] = y if y > x else x
    half = LANES // 2
    for j in range(half):
        x, y = largest[j], largest[half + j]
        spare[j] = y if y > x else x
    for j in range(half // 2):
        x, y = spare[j], spare[half // 2 + j]
        largest[j] = y if y > x else x
    most = largest[0]
    for j in range(1, half // 2):
        most = largest[j] if largest[j] > most else most
    return most


@compiled
def add_exponentials(lines, shift, part, left, others, tied):  # type: ignore[no-untyped-def]
    """Add Σ exp(z − shift) over ``lines`` (n, LANES) without the terms of z = shift to ``others``, and how many these are to ``tied``.

    ``shift``, ``part`` and ``left`` (LANES,) have the dtype of the exponentials, ``others`` and ``tied`` are float64. NaN stays NaN.
    """
    kind, zero, one = part.dtype.type, part.dtype.type(0), part.dtype.type(1)
    for start in range(0, lines.shape[0], FLUSH):
        for j in range(LANES):
            part[j], left[j] = zero, zero
        for k in range(start, min(lines.shape[0], start + FLUSH)):
            for j in range(LANES):
                d = kind(lines[k, j]) - shift[j]
                e = exponential(d)
                part[j] += zero if d == zero else e
                left[j] += one if d == zero else zero
        for j in range(LANES):
            others[j] += part[j]
            tied[j] += left[j]


@compiled
def add_squares(lines, shift, others, square, tied):  # type: ignore[no-untyped-def]
    """Add what ``add_exponentials`` does, in float64, and the sum of the squares to ``square``."""
    for k in range(lines.shape[0]):
        for j in range(LANES):
            d = np.float64(lines[k, j]) - shift[j]
            e = exponential(d)
            e = 0.0 if d == 0.0 else e
            others[j] += e
            square[j] += e * e
            tied[j] += 1.0 if d == 0.0 else 0.0


@compiled
def lanes_like(one):  # type: ignore[no-untyped-def]
    """Return an array (LANES,) of the dtype of ``one``."""
    return np.zeros(LANES, dtype=one.dtype)


@compiled
def scratch(logits, zero):  # type: ignore[no-untyped-def]
    """Return what ``sum_rows`` writes: first its results, then arrays of the logits' dtype, and of the dtype of the exponentials.

    ``zero`` (1,) has the latter.
    """
    classes = logits.shape[1]
    work = np.empty((classes if classes < WIDE_FROM else 1, LANES), dtype=logits.dtype)
    results = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    own = work, lanes_like(logits), lanes_like(logits), lanes_like(logits), lanes_like(logits)
    return *results, *own, lanes_like(zero), lanes_like(zero), lanes_like(zero), np.empty(LANES)


@compiled
def sum_rows(logits, labels, first, here, squared, own):  # type: ignore[no-untyped-def]
    """Write what the scores need of ``here`` rows of ``logits`` (N, K), from row ``first`` on, into the first four of ``own``.

    These are arrays (LANES,) of float64, and ``own`` is ``scratch``'s. ``others`` is Σ exp(z − max z) over all classes but one at
    the maximum, ``square`` the sum of its squares if ``squared`` (then exponentials are float64), ``gap`` is max z − z of the
    label, and ``hit`` 1 where the label is the first class at the maximum, else 0. A row with NaN or +inf, or of −inf alone,
    gets NaN in ``others``. Lanes without a row get 0, and 1 in ``hit``.
    """
    others, square, gap, hit, work, spare, _, top, at, shift, part, left, tied = own
    classes = logits.shape[1]
    flat = logits.reshape(-1)
    if classes < WIDE_FROM:
        lay_out(flat, first, here, classes, work)
        tops(work, spare, top)
        for j in range(LANES):
            shift[j] = part.dtype.type(top[j])
        for j in range(LANES):
            others[j], square[j], tied[j] = 0.0, 0.0, 0.0
        if squared:
            add_squares(work, shift, others, square, tied)
        else:
            add_exponentials(work, shift, part, left, others, tied)
    else:
        _sum_wide(flat, first, here, classes, squared, own)
    _take_labels(flat, labels, first, here, classes, at)
    for j in range(LANES):
        gap[j] = np.float64(top[j]) - np.float64(at[j])
        hit[j] = 1.0 if top[j] == at[j] else 0.0
    several = 0.0
    for j in range(LANES):
        several += tied[j]
    for j in range(LANES):
        others[j] += tied[j] - 1.0
        square[j] += tied[j] - 1.0
    if several > LANES:
        for j in range(here):
            if hit[j] == 1.0 and tied[j] > 1.0:
                hit[j] = 1.0 if _is_first(logits, first + j, labels[first + j]) else 0.0
    for j in range(here, LANES):
        others[j], square[j], gap[j], hit[j] = 0.0, 0.0, 0.0, 1.0


@compiled
def _take_labels(flat, labels, first, here, classes, at):  # type: ignore[no-untyped-def]
    place = np.uintp(first * classes)  # unsigned: compiled code then does not look for negative indices
    for j in range(here):
        at[j] = flat[place + np.uintp(labels[first + j])]
        place += np.uintp(classes)


@compiled
def _is_first(logits, row, label):  # type: ignore[no-untyped-def]
    for k in range(label):
        if logits[row, k] == logits[row, label]:
            return False
    return True


@compiled
def _sum_wide(flat, first, here, classes, squared, own):  # type: ignore[no-untyped-def]
    others, square, _, _, _, spare, run, top, tail, shift, part, left, tied = own
    full = classes - classes % LANES
    o, s, t = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for i in range(LANES):
        others[i], square[i], tied[i] = 0.0, 0.0, 1.0
    for i in range(here):
        row = flat[(first + i) * classes : (first + i + 1) * classes]
        pad(row, full, -np.inf, tail)
        top[i] = row_top(row, tail, spare, run)
        for j in range(LANES):
            shift[j] = part.dtype.type(top[i])
            o[j], s[j], t[j] = 0.0, 0.0, 0.0
        lines, last = row[:full].reshape(-1, LANES), tail.reshape(1, LANES)
        if squared:
            add_squares(lines, shift, o, s, t)
            add_squares(last, shift, o, s, t)
            square[i] = total_of(s)
        else:
            add_exponentials(lines, shift, part, left, o, t)
            add_exponentials(last, shift, part, left, o, t)
        others[i], tied[i] = total_of(o), total_of(t)


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
