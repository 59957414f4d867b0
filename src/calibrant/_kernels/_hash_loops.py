"""Compiled loops for the CPU, in Numba: hashes of rows of logits, and which stretches of them a sketch keeps.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import compiled, i64

SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see
_MINUS_ZERO = -(1 << 31)  # the bits of −0, which is 0


@compiled
def row_hashes(bits, odd, step, out):  # type: ignore[no-untyped-def]
    """Write Σ_k bits[i, k · step] · odd[k] mod 2⁶⁴, mixed with its upper bits, into ``out`` (N,) for ``bits`` (N, K) int32."""
    flat, jump = bits.reshape(-1), np.uintp(step)
    for i in range(bits.shape[0]):
        place, total = np.uintp(i * bits.shape[1]), i64(0)
        for k in range(odd.shape[0]):
            b = i64(flat[place])
            total += (i64(0) if b == _MINUS_ZERO else b) * odd[k]
            place += jump
        out[i] = total ^ (total >> 29)


@compiled
def winnowed(rows, odd, width, distinct, out):  # type: ignore[no-untyped-def]
    """Write the hashes of the chosen stretches of ``len(odd)`` consecutive ``rows`` (N,) int64 into ``out``, in order; return how many.

    Of every ``width`` stretches that one is chosen whose first row has the smallest upper half, the earlier of equal ones.
    Stretches of fewer than ``distinct`` different rows are left out.
    """
    length, found, best, near, written = odd.shape[0], 0, -1, -1, -1
    usable = np.zeros(width, dtype=np.bool_)  # of the last ``width`` stretches
    repeated = _any_repeats(rows, distinct)
    for j in range(1, length - 1):  # ``near`` is the last row so far that repeats one close before it
        near = j if repeated and _repeats(rows, j, distinct) else near
    for i in range(rows.shape[0] - length + 1):
        near = i + length - 1 if repeated and _repeats(rows, i + length - 1, distinct) else near
        usable[i % width] = near < i or _count_distinct(rows, i, length, distinct) >= distinct
        if best <= i - width:  # the chosen stretch is none of the last ``width`` any more
            best = -1
            for k in range(max(0, i - width + 1), i):
                if usable[k % width] and (best < 0 or rows[k] >> 32 < rows[best] >> 32):
                    best = k
        if usable[i % width] and (best < 0 or rows[i] >> 32 < rows[best] >> 32):
            best = i
        if i >= width - 1 and best >= 0 and best != written:
            total = i64(0)
            for p in range(length):
                total += rows[best + p] * odd[p]
            out[found] = total ^ (total >> 31)
            found += 1
            written = best
    return found


@compiled
def _any_repeats(rows, distinct):  # type: ignore[no-untyped-def]
    count = 0
    for step in range(1, distinct):
        before, after = rows[: rows.shape[0] - step], rows[step:]
        for j in range(before.shape[0]):
            count += 1 if before[j] == after[j] else 0
    return count > 0


@compiled
def _repeats(rows, j, distinct):  # type: ignore[no-untyped-def]
    """Return whether row j equals one of the ``distinct`` − 1 before it."""
    for step in range(1, min(distinct, j + 1)):
        if rows[j] == rows[j - step]:
            return True
    return False


@compiled
def _count_distinct(rows, start, length, most):  # type: ignore[no-untyped-def]
    """Return how many of ``length`` rows from ``start`` on differ, or ``most`` where there are at least so many."""
    count = 0
    for j in range(start, start + length):
        new = True
        for k in range(start, j):
            if rows[k] == rows[j]:
                new = False
                break
        count += 1 if new else 0
        if count >= most:
            return most
    return count
