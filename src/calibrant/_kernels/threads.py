"""The number of threads by size of the task, and the pool that runs the CPU's compiled loops.

A loop releases the interpreter's lock, so plain threads run it in parallel. Its results do not depend on how rows are split.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

import torch

SMALL = 1 << 18  # array elements of a task below which PyTorch's own operations are slower with several threads
GAIN = 1 << 18  # least array elements per thread: starting and joining one costs about 30 µs


def worker_count(entries: int) -> int:
    """Return the number of threads for a task over ``entries`` array elements: at most PyTorch's setting, 1 for small tasks.

    Examples:
        >>> worker_count(1000)
        1
    """
    return max(1, min(torch.get_num_threads(), entries // GAIN))


@contextmanager
def one_thread_if_small(entries: int) -> Iterator[None]:
    """Run the block with one PyTorch thread if the task has few array elements, and restore the setting afterwards.

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
    """Call ``task(start, stop)`` for consecutive parts that cover ``rows``, in threads where that is faster.

    Args:
        task: Writes the results of its own rows; must release the interpreter's lock to run in parallel.
        rows: Number of rows.
        entries: Array elements that the task reads.
        unit: Every part begins at a multiple of it.
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
    """Return this process's pool: threads do not survive a fork, so a child process creates its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="calibrant")
