"""Compiled loops for the CPU, in Numba: hashes of rows of logits.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

from calibrant._kernels._loop_math import compiled, i64

SHARED = "cc3fb097a5a8"  # digest of _loop_math.py, whose changes the cache of compiled code does not see
_MINUS_ZERO = -(1 << 31)  # the bits of −0, which is 0


@compiled
def row_hashes(bits, odd, step, out):  # type: ignore[no-untyped-def]
    """Write Σ_k bits[i, k · step] · odd[k] mod 2⁶⁴, mixed with its upper bits, into ``out`` (N,) for ``bits`` (N, K) int32."""
    for i in range(bits.shape[0]):
        row, total = bits[i], i64(0)
        for k in range(odd.shape[0]):
            b = i64(row[k * step])
            total += (i64(0) if b == _MINUS_ZERO else b) * odd[k]
        out[i] = total ^ (total >> 29)
