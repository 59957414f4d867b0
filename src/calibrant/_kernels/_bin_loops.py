"""Compiled loops for the CPU, in Numba: counts and sums of probabilities in bins of equal width.

A bin is (lo, hi] of the edges. A product with the number of bins finds it, for many probabilities in one vector
instruction; the edges decide where rounding could. Sums are of fixed segments of rows: they do not depend on threads.
Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import (
    AT,
    HIT,
    LANES,
    OTHERS,
    TOP,
    WIDE_FROM,
    compiled,
    exponential,
    i32,
    lay_out,
    pad,
    row_top,
    sum_rows,
    tops,
)

_COPIES = 4  # neighbouring pairs mostly fall into one bin: sums that take turns do not wait for each other
_CLOSE = 1e-9  # of a product to an integer, where the edges decide
SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see


@compiled
def find_bins(p, edges, bins, index):  # type: ignore[no-untyped-def]
    """Write the bin (lo, hi] of ``edges`` (B + 1,), evenly spaced on [0, 1], of each of ``p``; the ends take what lies outside.

    Returns how many lie so close to an edge that the edges had to decide.
    """
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
        _add_copies(sums, out[part])


@compiled
def top_bins(logits, labels, like, edges, margin, segment, out, near):  # type: ignore[no-untyped-def]
    """Write what ``pair_bins`` does, of each row's confidence and whether the decision is the label, into ``out`` (segments, 3 · B).

    ``like`` is ``sum_rows``'s ``work``; exponentials have the logits' dtype. Rows with a confidence p within ``margin`` · p of an
    edge inside (0, 1), or with none, are left out, and get 1 in ``near`` (N,) uint8, which holds 0 before.
    """
    bins, rows = edges.shape[0] - 1, logits.shape[0]
    work, lanes = np.empty_like(like), np.zeros((4, LANES), dtype=logits.dtype)
    part, found = np.zeros((3, LANES), dtype=logits.dtype), np.zeros((5, LANES))
    sums, index = np.empty(_COPIES * 3 * bins), np.empty(LANES, dtype=np.int32)
    p, kept = np.empty(LANES), np.empty(LANES)
    for s in range(out.shape[0]):
        sums[:] = 0.0
        for first in range(s * segment, min(rows, (s + 1) * segment), LANES):
            here = min(LANES, rows - first, (s + 1) * segment - first)
            sum_rows(logits, labels, first, here, work, lanes, part, found)
            if _confidences(found, bins, margin, p, kept) < LANES:
                for j in range(here):
                    near[first + j] = np.uint8(1) if kept[j] == 0.0 else np.uint8(0)
            find_bins(p, edges, bins, index)
            for j in range(here):
                # unsigned: compiled code then does not look for negative indices
                cell = np.uintp(3) * (np.uintp(j % _COPIES) * np.uintp(bins) + np.uintp(index[j]))
                sums[cell] += kept[j]
                sums[cell + np.uintp(1)] += kept[j] * p[j]
                sums[cell + np.uintp(2)] += kept[j] * found[HIT, j]
        _add_copies(sums, out[s])


@compiled
def _confidences(found, bins, margin, p, kept):  # type: ignore[no-untyped-def]
    """Write 1 / (1 + others), or 1 for NaN, into ``p``, and 0 into ``kept`` where it lies near an edge or is NaN, else 1.

    Returns how many are kept.
    """
    count = 0.0
    for j in range(LANES):
        c = 1.0 / (1.0 + found[OTHERS, j])
        scaled = c * bins
        edge = np.floor(scaled + 0.5)
        away = (abs(scaled - edge) > margin * scaled) | (edge == 0.0) | (edge >= bins)
        kept[j] = 1.0 if away else 0.0
        p[j] = c if c == c else 1.0
    for j in range(LANES):
        count += kept[j]
    return count


@compiled
def _add_copies(sums, out):  # type: ignore[no-untyped-def]
    for place in range(out.shape[0]):
        total = 0.0
        for copy in range(_COPIES):
            total += sums[copy * out.shape[0] + place]
        out[place] = total


@compiled
def class_bins(logits, labels, edges, segment, out, near):  # type: ignore[no-untyped-def]
    """Write counts, Σp and Σy of every class's probability into ``out`` (segments, 3 · K · B); exponentials are float64.

    Rows of a probability so close to an edge that rounding decides, or that is none, are left out, and marked in ``near``
    (N,) uint8.
    """
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
            marks = near[first : first + here]
            if wide:
                _row_probabilities(flat[first * classes : (first + 1) * classes], lanes, p, norm)
                _find_row_bins(places[:classes], edges, bins, cells, marks)
            else:
                lay_out(flat, first, here, classes, work)
                _probabilities(work, lanes, p, norm)
                _find_class_bins(p, edges, bins, index, marks)
            _add_cells(places, cells, 1 if wide else LANES, classes, bins, table, marks, labels[first : first + here])


@compiled
def _add_cells(p, index, stride, classes, bins, table, near, labels):  # type: ignore[no-untyped-def]
    """Add the probabilities of row j, at ``p[j]``, ``p[j + stride]`` …, to the cells of their bins, unless ``near[j]``."""
    for j in range(labels.shape[0]):
        if near[j]:
            continue
        place, cell = np.uintp(j), np.uintp(0)
        for _ in range(classes):
            at = cell + np.uintp(3) * np.uintp(index[place])
            count, total = table[at] + 1.0, table[at + np.uintp(1)] + p[place]
            table[at], table[at + np.uintp(1)] = count, total
            place += np.uintp(stride)
            cell += np.uintp(3 * bins)
        table[3 * (labels[j] * bins + index[j + labels[j] * stride]) + 2] += 1.0


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


@compiled
def _find_class_bins(p, edges, bins, index, near):  # type: ignore[no-untyped-def]
    """Write the bins of ``p`` (K, LANES) into ``index``, and which rows have none or one at an edge into ``near`` (n,)."""
    for j in range(near.shape[0]):
        near[j] = np.uint8(0)
    for k in range(p.shape[0]):
        line = p[k]
        if find_bins(line, edges, bins, index[k]):
            for j in range(near.shape[0]):
                near[j] |= _undecided(line[j], bins)


@compiled
def _find_row_bins(p, edges, bins, index, near):  # type: ignore[no-untyped-def]
    near[0] = np.uint8(0)
    if find_bins(p, edges, bins, index):
        for k in range(p.shape[0]):
            near[0] |= _undecided(p[k], bins)


@compiled
def _undecided(p, bins):  # type: ignore[no-untyped-def]
    scaled = p * bins
    edge = np.floor(scaled + 0.5)
    close = (abs(scaled - edge) < _CLOSE) & (edge > 0.0) & (edge < bins)
    return np.uint8(1) if close or p != p else np.uint8(0)
