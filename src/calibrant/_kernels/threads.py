"""One size rule for threads, and the pool that runs the CPU's compiled loops.

A loop releases the interpreter's lock, so plain threads run it at once. Its results do not depend on how rows are split.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

import torch

SMALL = 1 << 18  # numbers of a whole task; below, PyTorch's own operations lose more to threads than they gain
GAIN = 1 << 18  # numbers a thread must have to work on: to start and to wait for one costs about 30 µs


def worker_count(entries: int) -> int:
    """Return how many threads gain on work over so many numbers: at most PyTorch's setting, 1 for small work.

    Examples:
        >>> worker_count(1000)
        1
    """
    return max(1, min(torch.get_num_threads(), entries // GAIN))


@contextmanager
def one_thread_if_small(entries: int) -> Iterator[None]:
    """Run the block on one thread of PyTorch's where the task is over few numbers, and restore the setting after it.

    Examples:
        >>> with one_thread_if_small(1422 * 6):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if before == 1 or entries >= SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(task: Callable[[int, int], None], rows: int, *, entries: int, unit: int = 1) -> None:
    """Call ``task(start, stop)`` for parts of ``rows`` that together are all of them, in threads where that gains.

    Args:
        task: Writes its own rows' results; runs without the interpreter's lock to gain.
        rows: Number of rows.
        entries: Numbers that the work reads.
        unit: A part begins at a multiple of it.
    """
    units = -(-rows // unit)
    workers = min(worker_count(entries), units)
    bounds = [min(rows, unit * (units * i // workers)) for i in range(workers)] + [rows]
    if workers == 1:
        task(0, rows)
        return
    first, *rest = pairwise(bounds)
    others = [_pool(os.getpid(), workers - 1).submit(task, *part) for part in rest]
    task(*first)
    for other in others:
        other.result()


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    """Return this process's pool: threads do not survive a fork, so that a child makes its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="calibrant")
