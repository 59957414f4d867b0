"""The CPU's compiled loops: when they are used, and the functions that call them.

Results agree with PyTorch's: equal predictions and maxima, sums of exponentials within 1e-14, in ``top_bins`` of float32 logits
within 2e-7. A loop is compiled at its first use and cached on disk where a cache folder is writable.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 1 << 17  # array elements below which PyTorch takes under a millisecond, so that Numba need not be imported
_WIDE_FROM = 160  # number of classes from which one row fills the lanes, as in loops.py
_SEGMENT = 4096  # rows per partial sum of moments
_PAIR_SEGMENT = 1 << 16  # rows per partial table of bins
_BLOCK = 1 << 20  # elements copied at a time where logits are in half precision or not contiguous
_TABLE_BYTES = 5 << 20  # most memory of all partial tables of class bins
_COLUMNS = 5  # sums of a bin, as in loops.py

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@cache
def _loops() -> ModuleType | None:
    """Return the module of loops, or None without a Numba that runs here."""
    try:
        from calibrant._kernels import loops
    except ImportError:  # not installed, or not for this NumPy
        return None
    return loops


def serves(values: Tensor, *, work: int = 1) -> bool:
    """Return whether the compiled loops accept ``values``: a large floating CPU tensor, eager, with Numba installed.

    Args:
        values: What a loop would read.
        work: How much longer than an exponential PyTorch takes per array element.
    """
    return (
        values.numel() * work >= LEAST
        and values.device.type == "cpu"
        and type(values) is Tensor
        and values.dtype in _DTYPES
        and not values.requires_grad
        and not torch.compiler.is_compiling()
        and _loops() is not None
    )


@dataclass(frozen=True)
class RowStatistics:
    """Per-row results of one pass over logits (N, K).

    Args:
        top: (N,) largest logit, in the logits' dtype.
        best: (N,) int64 first index of the largest.
        others: (N,) float64 Σ exp(z_k − top) over all k but ``best``.
        square: (N,) float64 Σ exp(2 (z_k − top)) over the same.
        at_label: (N,) logit of the label, in the logits' dtype, or None.
    """

    top: Tensor
    best: Tensor
    others: Tensor
    square: Tensor
    at_label: Tensor | None


def row_statistics(logits: Tensor, labels: Tensor | None = None) -> RowStatistics:
    """Return the statistics of each row of ``logits`` (N, K), which ``serves`` has accepted; exponentials are float64.

    Args:
        logits: (N, K) floating.
        labels: (N,) int64 in [0, K), or None.
    """
    rows = logits.shape[0]
    top = torch.empty(rows, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    best = torch.empty(rows, dtype=torch.int64)
    others, square = torch.empty(rows, dtype=torch.float64), torch.empty(rows, dtype=torch.float64)
    at_label = torch.empty(rows if labels is not None else 0, dtype=top.dtype)
    y = torch.empty(0, dtype=torch.int64) if labels is None else labels
    for some, block in _blocks(logits):
        outputs = [one[some] for one in (top, best, others, square, at_label)]
        _run_loop(_loop("write_statistics"), [block, y[some]], [_laid_out(logits)], outputs, unit=64)
    top, at_label = top.to(logits.dtype), at_label.to(logits.dtype)  # exact: they are logits
    return RowStatistics(top, best, others, square, at_label if labels is not None else None)


def walks_columns(logits: Tensor) -> bool:
    """Return whether the loops walk the columns of each row of ``logits`` (N, K), instead of many rows side by side."""
    return logits.shape[1] >= _WIDE_FROM


def temperature_moments(
    logits: Tensor, top: Tensor | None, weight: Tensor | None, beta: float, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the sums over rows of the mean and of the variance of z − max z under softmax(βz).

    Args:
        logits: (N, K) which ``serves`` has accepted; −inf excludes a class.
        top: (N,) largest logit of each row, needed where ``walks_columns``.
        weight: (N,) float64, or None.
        beta: β ≥ 0.
        dtype: Of the exponentials: float32 or float64.
    """
    loop = _loop("narrow_moments" if top is None else "wide_moments")
    zero, segment = torch.zeros(1, dtype=dtype).numpy(), _few_rows(logits)
    tops = None if top is None else top.to(torch.promote_types(top.dtype, torch.float32))  # as the loops read logits
    first, second = _summed(loop, logits, [tops, _weights(weight)], [float(beta), zero, segment], 2, segment).tolist()
    return first, second


def margin_sum(logits: Tensor, labels: Tensor, weight: Tensor | None) -> float:
    """Return the (weighted) sum over rows of z − max z at the label.

    Args:
        logits: (N, K) which ``serves`` has accepted, not those of ``walks_columns``.
        labels: (N,) int64 in [0, K).
        weight: (N,) float64, or None.
    """
    segment = _few_rows(logits)
    return float(_summed(_loop("narrow_margins"), logits, [labels, _weights(weight)], [segment], 1, segment))


def _weights(weight: Tensor | None) -> Tensor:
    return torch.empty(0, dtype=torch.float64) if weight is None else weight


def _laid_out(logits: Tensor) -> NDArray[Any]:
    """Return an array like that in which the loops lay out ``logits`` (N, K) of few classes, or an empty one of one axis."""
    dtype = np.float64 if logits.dtype == torch.float64 else np.float32
    return np.empty(0, dtype) if walks_columns(logits) else np.empty((logits.shape[1], 64), dtype)


def _few_rows(logits: Tensor) -> int:
    """Return the rows of a partial sum: of many classes fewer, which may have to be copied."""
    return max(1, min(_SEGMENT, _BLOCK // logits.shape[1]))


def logistic_sums(
    features: Tensor, hit: Tensor, weight: Tensor, theta: Tensor, high: Tensor, low: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ log-loss (C,) of σ(features θ) against the targets, its gradient (C, P) and its Hessian (C, P, P), all weighted.

    Args:
        features: (N, C, P) float64 which ``serves`` has accepted.
        hit: (N, C) bool.
        weight: (N,) float64.
        theta: (C, P) float64.
        high: (C,) target of hits.
        low: (C,) target of the other rows.
    """
    rows, classes, size = features.shape
    upper = torch.triu_indices(size, size)
    width = 1 + size + upper.shape[1]
    parts = torch.empty(-(-rows // _SEGMENT), classes * width, dtype=torch.float64)
    constants = [one.contiguous().numpy() for one in (theta, high, low)] + [_SEGMENT]
    inputs = [features, hit.view(torch.uint8), weight]
    _run_loop(_loop("write_logistic_sums"), inputs, constants, [parts], unit=_SEGMENT, segment=_SEGMENT)
    sums = parts.sum(dim=0).view(classes, width)
    hessian = sums.new_empty(classes, size, size)
    hessian[:, upper[0], upper[1]] = sums[:, 1 + size :]
    hessian[:, upper[1], upper[0]] = sums[:, 1 + size :]
    return sums[:, 0].contiguous(), sums[:, 1 : 1 + size].contiguous(), hessian


def pair_bins(p: Tensor, y: Tensor, edges: Tensor) -> Tensor:
    """Return rows, Σp, Σy, Σp² and Σpy (5, B) float64 of pairs ``p``, ``y`` (N,) in bins (lo, hi] of evenly spaced ``edges`` (B + 1,).

    ``p`` (N,) in [0, 1] which ``serves`` has accepted; values outside the edges go into the first or the last bin.
    """
    rows, width = p.shape[0], _COLUMNS * (edges.shape[0] - 1)
    parts = torch.empty(-(-rows // _PAIR_SEGMENT), width, dtype=torch.float64)
    hits = y.contiguous().view(torch.uint8) if y.dtype == torch.bool else y.double()
    constants = [edges.double().numpy(), _PAIR_SEGMENT]
    _run_loop(
        _loop("write_pair_bins"), [p.double(), hits], constants, [parts], unit=_PAIR_SEGMENT, segment=_PAIR_SEGMENT
    )
    return _bins_of(parts.sum(dim=0))


def top_bins(logits: Tensor, labels: Tensor, bins: int, *, margin: float) -> tuple[Tensor, Tensor]:
    """Return what ``pair_bins`` does, of each row's confidence and whether the decision is the label, in one pass over the logits.

    Rows whose confidence lies within ``margin`` · p of an edge inside (0, 1) are left out and returned last, as indices (M,).
    Exponentials are float32, for float64 logits float64.

    Args:
        logits: (N, K) which ``serves`` has accepted.
        labels: (N,) int64 in [0, K).
        bins: B, of equal width on [0, 1].
        margin: Relative.
    """
    rows, classes = logits.shape
    segment = max(1, min(_PAIR_SEGMENT, _BLOCK // classes))  # of many classes fewer, which may have to be copied
    near, constants = torch.zeros(rows, dtype=torch.uint8), [_laid_out(logits), bins, margin, segment]
    sums = _summed(_loop("write_top_bins"), logits, [labels], constants, _COLUMNS * bins, segment, near)
    # NumPy finds few ones faster than PyTorch
    return _bins_of(sums), torch.from_numpy(np.flatnonzero(near.numpy().view(np.bool_)))


def score_sums(logits: Tensor, labels: Tensor) -> tuple[float, float, int]:
    """Return Σ −log p of the label, Σ Brier score and the number of right decisions, in one pass; exponentials are float64.

    Args:
        logits: (N, K) which ``serves`` has accepted.
        labels: (N,) int64 in [0, K).
    """
    segment = _few_rows(logits)
    constants = [_laid_out(logits), segment]
    nll, brier, hits = _summed(_loop("write_score_sums"), logits, [labels], constants, 3, segment).tolist()
    return nll, brier, round(hits)


def class_bins(logits: Tensor, labels: Tensor, edges: Tensor) -> Tensor:
    """Return what ``pair_bins`` does (5, K · B) of every class's probability and event, class by class; exponentials are float64.

    Args:
        logits: (N, K) which ``serves`` has accepted.
        labels: (N,) int64 in [0, K).
        edges: (B + 1,) float64, evenly spaced on [0, 1].
    """
    rows, classes = logits.shape
    size = _COLUMNS * classes * (edges.shape[0] - 1)
    tables = max(1, min(64, _TABLE_BYTES // (8 * size)))  # most partial tables at a time
    segment = max(_SEGMENT, -(-rows // tables))
    return _bins_of(_summed(_loop("write_class_bins"), logits, [labels], [edges.numpy(), segment], size, segment))


def _bins_of(sums: Tensor) -> Tensor:
    """Return sums (5, B) of those (5 B,) in which the five of a bin are neighbours: one line of the cache."""
    return sums.view(-1, _COLUMNS).T.contiguous()


def _summed(
    loop: Callable[..., Any],
    logits: Tensor,
    by_row: list[Tensor | None],
    constants: list[Any],
    width: int,
    segment: int,
    near: Tensor | None = None,
) -> Tensor:
    """Return the sum (``width``,) float64 of what ``loop`` writes for every ``segment`` rows, added in their order.

    Args:
        loop: Called as ``loop(block, *by_row, *constants, parts)``, and with the marks of its rows if there are ``near``.
        logits: (N, K).
        by_row: (N,) numbers of each row; (0,) for none of a kind, None for an argument that the loop does not have.
        constants: What is the same for all rows.
        width: Numbers that the loop writes for a segment.
        segment: Rows of a partial sum; they do not depend on the threads, so that neither do the results.
        near: (N,) marks that the loop writes, or None.
    """
    sums = torch.zeros(width, dtype=torch.float64)
    for some, block in _blocks(logits, unit=segment):
        parts = torch.empty(-(-block.shape[0] // segment), width, dtype=torch.float64)
        inputs = [block, *(one[some] for one in by_row if one is not None)]
        marks = () if near is None else (near[some],)
        _run_loop(loop, inputs, constants, [parts], marks, unit=segment, segment=segment)
        sums += parts.sum(dim=0)
    return sums


def _run_loop(
    loop: Callable[..., Any],
    inputs: list[Tensor],
    constants: list[Any],
    outputs: list[Tensor],
    marks: Sequence[Tensor] = (),
    *,
    unit: int,
    segment: int = 1,
) -> None:
    """Call ``loop(*inputs, *constants, *outputs, *marks)`` for parts of the rows of ``inputs``, in threads where faster.

    ``outputs`` and ``marks`` are written in place: one row of ``outputs`` per ``segment`` rows of ``inputs``, one row of
    ``marks`` per row of ``inputs``.
    """
    read, written = [one.contiguous().numpy() for one in inputs], [one.numpy() for one in outputs]
    marked = [one.numpy() for one in marks]

    def part(start: int, stop: int) -> None:
        rows, results = slice(start, stop), slice(start // segment, -(-stop // segment))
        by_row = [one[rows] for one in marked]
        loop(*(one[rows] for one in read), *constants, *(one[results] for one in written), *by_row)

    in_threads(part, inputs[0].shape[0], entries=inputs[0].numel(), unit=unit)


def _blocks(logits: Tensor, *, unit: int = 1) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows with their logits as the loops read them: all at once, or copied in blocks if they need conversion."""
    ready = logits.dtype in (torch.float32, torch.float64) and logits.is_contiguous()
    rows, classes = logits.shape
    step = rows if ready else unit * max(1, _BLOCK // (classes * unit))
    dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
    for first in range(0, rows, step):
        some = slice(first, min(rows, first + step))
        yield some, logits[some].to(dtype).contiguous()


_COMPILING = threading.Lock()
os.register_at_fork(
    before=_COMPILING.acquire, after_in_parent=_COMPILING.release, after_in_child=_COMPILING.release
)  # a forked child must not inherit the lock while another thread holds it


def _loop(name: str) -> Callable[..., Any]:
    return _compiled_once(getattr(_loops(), name))


@cache
def _compiled_once(loop: Any) -> Callable[..., Any]:
    """Return ``loop`` with a lock around the first call of each signature, which compiles it."""
    ready: set[tuple[str, ...]] = set()

    def call(*arguments: Any) -> Any:
        kinds = tuple(str(getattr(one, "dtype", type(one))) for one in arguments)
        if kinds in ready:
            return loop(*arguments)
        with _COMPILING:
            answer = loop(*arguments)
        ready.add(kinds)
        return answer

    return call


# The number of threads by size of the task, and the pool that runs the loops. A loop releases the interpreter's lock, so plain
# threads run it in parallel. Its results do not depend on how rows are split.

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
    with threads(1 if entries < SMALL else torch.get_num_threads()):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with so many PyTorch threads, and restore the setting afterwards."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
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
