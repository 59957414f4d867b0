"""What the compiled loops share: how they are compiled, their own exponential, and how rows are laid out by classes.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

LANES = 64  # rows, or columns of one row, that an inner loop handles
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
# Chebyshev points: relative error 2.5e-9 and 4e-18, below the rounding of the last steps.
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
_B2, _B3, _B4, _B5 = 0.50000000000000183855, 0.16666666666666680806, 0.041666666666488095495, 0.0083333333333196006109
_B6, _B7, _B8 = 0.0013888888952314774652, 0.00019841269890047113707, 0.000024801485482328492419
_B9, _B10, _B11 = 2.7557240918578969823e-6, 2.7632639639041029749e-7, 2.5110037605963777712e-8


def _exp64(x):  # type: ignore[no-untyped-def]
    t = f64(x * _LOG2E64 + _MAGIC64)
    n = f64(t - _MAGIC64)
    r = x - n * _HIGH64 - n * _LOW64
    p = ((((((_B11 * r + _B10) * r + _B9) * r + _B8) * r + _B7) * r + _B6) * r + _B5) * r + _B4
    p = f64((((p * r + _B3) * r + _B2) * r + 1.0) * r + 1.0)
    e = i64(p.view(i64) + i64(t.view(i64) << i64(52))).view(f64)
    e = e if x >= -708.0 else f64(0.0)
    return e if x == x else x


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
