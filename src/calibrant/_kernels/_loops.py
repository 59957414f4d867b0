"""Compiled loops for the CPU, in Numba: what a row of logits holds: maximum, sums, and moments at a temperature.

Rows of few classes are slow in array libraries because sums over 10 classes run number by number. Here ``LANES`` rows are
laid out by classes, so that every inner loop is over rows; a row of many classes is walked ``LANES`` columns at a time.
Either way an inner loop has a fixed length and no dependence between its turns, and the compiler makes vector code of it.
Every loop writes results of rows, or sums of fixed segments of rows, so that the same rows give the same bits whatever
the number of threads.

Only ``calibrant._kernels`` imports this file, after it has seen that Numba is installed.
"""

import numpy as np

from calibrant._kernels._loop_math import AT, FLUSH, LANES, TOP, compiled, exponential, i32, lay_out, pad, row_top, tops

SHARED = "3a9ab7a49947"  # digest of _loop_math.py, whose changes the cache of compiled code does not see


@compiled
def narrow_statistics(logits, labels, zero, top, best, others, square, at_label):  # type: ignore[no-untyped-def]
    """Write the statistics of rows (N, K) of few classes.

    ``others`` is Σ exp(z − top) over all classes but the largest, so that 1 minus the confidence keeps its digits.
    ``zero`` (1,) has the dtype of the exponentials. ``square`` and ``labels`` may be empty, and are left out then.
    A row that holds NaN or +inf, or −inf alone, gets no finite ``top``.
    """
    rows, classes = logits.shape
    work = np.empty((classes, LANES), dtype=logits.dtype)
    lanes, largest = np.empty((4, LANES), dtype=logits.dtype), np.empty(LANES, dtype=logits.dtype)
    index, other = np.empty(LANES, dtype=np.int32), np.empty(LANES, dtype=np.int32)
    mass, squares = np.empty(LANES, dtype=np.float64), np.empty(LANES, dtype=np.float64)
    squared, labelled = square.shape[0] > 0, labels.shape[0] > 0
    flat = logits.reshape(-1)
    for first in range(0, rows, LANES):
        here = min(LANES, rows - first)
        lay_out(flat, first, here, classes, work)
        tops(work, lanes)
        for j in range(LANES):
            largest[j] = lanes[TOP, j]
        _first_tops(work, largest, other, index)
        if squared:
            _masses_and_squares(work, largest, index, zero, mass, squares)
        else:
            _masses(work, largest, index, zero, mass)
        for j in range(here):
            i = first + j
            top[i] = largest[j] if mass[j] == mass[j] else np.nan
            best[i] = index[j]
            others[i] = mass[j]
        if squared:
            for j in range(here):
                square[first + j] = squares[j]
        if labelled:
            for j in range(here):
                at_label[first + j] = work[labels[first + j], j]


@compiled
def _first_tops(work, largest, spare, index):  # type: ignore[no-untyped-def]
    """Write the first class at the maximum of each row into ``index`` (LANES,); ``spare`` is overwritten."""
    old, new = (spare, index) if work.shape[0] % 2 == 1 else (index, spare)
    for j in range(LANES):
        old[j] = i32(0)
    for k in range(work.shape[0] - 1, -1, -1):
        line = work[k]
        for j in range(LANES):
            new[j] = i32(k) if line[j] == largest[j] else old[j]
        old, new = new, old


@compiled
def _masses(work, largest, index, zero, mass):  # type: ignore[no-untyped-def]
    kind = zero.dtype.type
    part = np.empty(LANES, dtype=zero.dtype)
    for j in range(LANES):
        mass[j] = 0.0
    for start in range(0, work.shape[0], FLUSH):
        for j in range(LANES):
            part[j] = kind(0)
        for k in range(start, min(work.shape[0], start + FLUSH)):
            line = work[k]
            for j in range(LANES):
                e = exponential(kind(line[j]) - kind(largest[j]))
                part[j] += kind(0) if index[j] == k else e
        for j in range(LANES):
            mass[j] += part[j]


@compiled
def _masses_and_squares(work, largest, index, zero, mass, squares):  # type: ignore[no-untyped-def]
    kind = zero.dtype.type
    part, part_square = np.empty(LANES, dtype=zero.dtype), np.empty(LANES, dtype=zero.dtype)
    for j in range(LANES):
        mass[j], squares[j] = 0.0, 0.0
    for start in range(0, work.shape[0], FLUSH):
        for j in range(LANES):
            part[j], part_square[j] = kind(0), kind(0)
        for k in range(start, min(work.shape[0], start + FLUSH)):
            line = work[k]
            for j in range(LANES):
                e = exponential(kind(line[j]) - kind(largest[j]))
                e = kind(0) if index[j] == k else e
                part[j] += e
                part_square[j] += e * e
        for j in range(LANES):
            mass[j] += part[j]
            squares[j] += part_square[j]


@compiled
def wide_statistics(logits, labels, zero, top, best, others, square, at_label):  # type: ignore[no-untyped-def]
    """Write the statistics of rows (N, K) of many classes, as ``narrow_statistics`` does."""
    rows, classes = logits.shape
    full = classes - classes % LANES
    tail, lanes = np.empty(LANES, dtype=logits.dtype), np.empty((4, LANES), dtype=logits.dtype)
    mass, squares = np.empty(LANES, dtype=np.float64), np.empty(LANES, dtype=np.float64)
    part, part_square = np.empty(LANES, dtype=zero.dtype), np.empty(LANES, dtype=zero.dtype)
    squared, labelled = square.shape[0] > 0, labels.shape[0] > 0
    for i in range(rows):
        row = logits[i]
        pad(row, full, -np.inf, tail)
        for j in range(LANES):
            lanes[AT, j] = tail[j]
        most = row_top(row, lanes)
        where = _first_at(row, most)
        if squared:
            shift = zero.dtype.type(most)
            _row_masses_and_squares(row, tail, shift, i32(where), part, part_square, mass, squares)
        else:
            _row_masses(row, tail, zero.dtype.type(most), i32(where), part, mass)
        sum_, sum_square = 0.0, 0.0
        for j in range(LANES):
            sum_ += mass[j]
            sum_square += squares[j]
        top[i] = most if sum_ == sum_ else np.nan
        best[i] = where
        others[i] = sum_
        if squared:
            square[i] = sum_square
        if labelled:
            at_label[i] = row[labels[i]]


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


@compiled
def _row_masses(row, tail, shift, where, part, mass):  # type: ignore[no-untyped-def]
    kind, full = part.dtype.type, row.shape[0] - row.shape[0] % LANES
    for j in range(LANES):
        e = exponential(kind(tail[j]) - shift)
        mass[j] = kind(0) if i32(full + j) == where else e
    for start in range(0, full, FLUSH * LANES):
        for j in range(LANES):
            part[j] = kind(0)
        for k in range(start, min(full, start + FLUSH * LANES), LANES):
            columns = row[k : k + LANES]
            for j in range(LANES):
                e = exponential(kind(columns[j]) - shift)
                part[j] += kind(0) if i32(k + j) == where else e
        for j in range(LANES):
            mass[j] += part[j]


@compiled
def _row_masses_and_squares(row, tail, shift, where, part, part_square, mass, squares):  # type: ignore[no-untyped-def]
    kind, full = part.dtype.type, row.shape[0] - row.shape[0] % LANES
    for j in range(LANES):
        e = exponential(kind(tail[j]) - shift)
        e = kind(0) if i32(full + j) == where else e
        mass[j], squares[j] = e, e * e
    for start in range(0, full, FLUSH * LANES):
        for j in range(LANES):
            part[j], part_square[j] = kind(0), kind(0)
        for k in range(start, min(full, start + FLUSH * LANES), LANES):
            columns = row[k : k + LANES]
            for j in range(LANES):
                e = exponential(kind(columns[j]) - shift)
                e = kind(0) if i32(k + j) == where else e
                part[j] += e
                part_square[j] += e * e
        for j in range(LANES):
            mass[j] += part[j]
            squares[j] += part_square[j]
