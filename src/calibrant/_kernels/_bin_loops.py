"""Compiled loops for the CPU, in Numba: counts and sums of probabilities in bins of equal width.

A bin is (lo, hi] of the edges. A product with the number of bins finds it, for many probabilities in one vector
instruction; the edges decide where rounding could. Sums are of fixed segments of rows: they do not depend on threads.
Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import LANES, compiled, exponential, i32

_COPIES = 4  # neighbouring pairs mostly fall into one bin: sums that take turns do not wait for each other
_CLOSE = 1e-9  # of a product to an integer, where the edges decide
SHARED = "dde1aba5b3dd"  # digest of _loop_math.py, whose changes the cache of compiled code does not see


@compiled
def find_bins(p, edges, bins, index):  # type: ignore[no-untyped-def]
    """Write the bin (lo, hi] of ``edges`` (B + 1,), evenly spaced on [0, 1], of each of ``p``; the ends take what lies outside.

    Returns how many lie so close to an edge that the edges had to decide.
    """
    last = np.float64(bins - 1)
    close = 0
    for j in range(p.shape[0]):
        scaled = p[j] * bins
        up = np.ceil(scaled)
        near = min(up - scaled, scaled - up + 1.0)
        close += 1 if near < _CLOSE else 0
        index[j] = i32(min(max(up - 1.0, 0.0), last))
    if close:
        for j in range(p.shape[0]):
            b = index[j]
            while b > 0 and p[j] <= edges[b]:
                b -= 1
            while b < bins - 1 and p[j] > edges[b + 1]:
                b += 1
            index[j] = b
    return close


@compiled
def near_edges(p, bins, margin, found):  # type: ignore[no-untyped-def]
    """Write which of ``p`` (N,) lie within ``margin`` · p of an edge i / ``bins`` inside (0, 1) into ``found`` (N,) uint8."""
    for j in range(p.shape[0]):
        scaled = p[j] * bins
        edge = np.floor(scaled + 0.5)
        near = (abs(scaled - edge) <= margin * scaled) & (edge > 0.0) & (edge < bins)
        found[j] = np.uint8(1) if near else np.uint8(0)


@compiled
def pair_bins(p, y, edges, segment, out):  # type: ignore[no-untyped-def]
    """Write counts, Σp and Σy of pairs ``p`` (N,) float64, ``y`` (N,) in bins into ``out`` (segments, 3 · B)."""
    bins = edges.shape[0] - 1
    sums, index = np.empty(_COPIES * 3 * bins), np.empty(LANES, dtype=np.int32)
    for part in range(out.shape[0]):
        sums[:] = 0.0
        for first in range(part * segment, min(p.shape[0], (part + 1) * segment), LANES):
            stop = min(p.shape[0], (part + 1) * segment, first + LANES)
            find_bins(p[first:stop], edges, bins, index)
            for i in range(first, stop):
                # unsigned: compiled code then does not look for negative indices
                cell = np.uintp(3) * (np.uintp(i % _COPIES) * np.uintp(bins) + np.uintp(index[i - first]))
                sums[cell] += 1.0
                sums[cell + np.uintp(1)] += p[i]
                sums[cell + np.uintp(2)] += y[i]
        for place in range(3 * bins):
            total = 0.0
            for copy in range(_COPIES):
                total += sums[copy * 3 * bins + place]
            out[part, place] = total


@compiled
def top_bins(others, best, labels, edges, margin, segment, out, near):  # type: ignore[no-untyped-def]
    """Write what ``pair_bins`` does, of p = 1 / (1 + others) and whether ``best`` is the label, into ``out`` (segments, 3 · B).

    Rows with a p within ``margin`` · p of an edge inside (0, 1) are left out, and marked in ``near`` (N,) uint8.
    """
    bins, rows = edges.shape[0] - 1, others.shape[0]
    sums, index, p = np.empty(_COPIES * 3 * bins), np.empty(LANES, dtype=np.int32), np.empty(LANES)
    for part in range(out.shape[0]):
        sums[:] = 0.0
        end = min(rows, (part + 1) * segment)
        for first in range(part * segment, end, LANES):
            here = min(LANES, end - first)
            for j in range(here):
                p[j] = 1.0 / (1.0 + others[first + j])
                scaled = p[j] * bins
                edge = np.floor(scaled + 0.5)
                close = (abs(scaled - edge) <= margin * scaled) & (edge > 0.0) & (edge < bins)
                near[first + j] = np.uint8(1) if close else np.uint8(0)
            find_bins(p[:here], edges, bins, index)
            for j in range(here):
                i = first + j
                kept = 0.0 if near[i] else 1.0
                cell = np.uintp(3) * (np.uintp(j % _COPIES) * np.uintp(bins) + np.uintp(index[j]))
                sums[cell] += kept
                sums[cell + np.uintp(1)] += kept * p[j]
                sums[cell + np.uintp(2)] += kept if best[i] == labels[i] else 0.0
        for place in range(3 * bins):
            total = 0.0
            for copy in range(_COPIES):
                total += sums[copy * 3 * bins + place]
            out[part, place] = total


@compiled
def class_bins(logits, labels, top, others, edges, segment, out, near):  # type: ignore[no-untyped-def]
    """Write counts, Σp and Σy of every class's probability into ``out`` (segments, 3 · K · B); p = exp(z − top) / (1 + others), float64.

    Rows of a probability so close to an edge that rounding decides are left out, and marked in ``near`` (N,) uint8.
    """
    rows, classes = logits.shape
    bins = edges.shape[0] - 1
    step = max(1, 16 * LANES // classes)  # rows that are taken together
    p, index = np.empty(step * classes), np.empty(step * classes, dtype=np.int32)
    flat = logits.reshape(-1)
    for part in range(out.shape[0]):
        table = out[part]
        table[:] = 0.0
        for first in range(part * segment, min(rows, (part + 1) * segment), step):
            stop = min(rows, (part + 1) * segment, first + step)
            count = (stop - first) * classes
            _probabilities(flat, first, stop, classes, top, others, p)
            if find_bins(p[:count], edges, bins, index):
                _mark_rows(p, first, stop, classes, bins, near)
            place = np.uintp(0)
            for i in range(first, stop):
                start = (i - first) * classes
                if near[i]:
                    place += np.uintp(classes)
                    continue
                for k in range(classes):
                    cell = np.uintp(3) * (np.uintp(k) * np.uintp(bins) + np.uintp(index[place]))
                    table[cell] += 1.0
                    table[cell + np.uintp(1)] += p[place]
                    place += np.uintp(1)
                table[3 * (labels[i] * bins + index[start + labels[i]]) + 2] += 1.0


@compiled
def _mark_rows(p, first, stop, classes, bins, near):  # type: ignore[no-untyped-def]
    for i in range(first, stop):
        for k in range(classes):
            scaled = p[(i - first) * classes + k] * bins
            edge = np.floor(scaled + 0.5)
            if abs(scaled - edge) < _CLOSE and 0.0 < edge < bins:
                near[i] = 1


@compiled
def _probabilities(flat, first, stop, classes, top, others, p):  # type: ignore[no-untyped-def]
    place = 0
    for i in range(first, stop):
        shift = np.float64(top[i])
        for k in range(classes):
            p[place + k] = np.float64(flat[i * classes + k]) - shift
        place += classes
    for at in range(place):
        p[at] = exponential(p[at])
    for i in range(first, stop):
        by = 1.0 / (1.0 + others[i])
        start = (i - first) * classes
        for k in range(classes):
            p[start + k] *= by
