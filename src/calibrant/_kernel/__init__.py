"""Sums over rows of logits and in bins, always float64: the numbers that metrics, temperatures and losses are made of.

Each function runs in compiled loops where that is faster: Numba on the CPU (``loops``), Triton on CUDA (``cuda``). PyTorch is the
reference for both, and what runs without them. Results do not depend on the number of threads.
"""

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.numerics import row_chunks

LEAST = 1 << 17  # array elements below which PyTorch takes under a millisecond, and no loop is compiled
SEGMENT = 1 << 19  # array elements of a partial sum
TIE = 1e-12  # probabilities this close count as equal: the log and exp in a calibrator change them by less


class RowStatistics(NamedTuple):
    """Statistics of each row's probabilities: (N,) tensors, of float64 but for the decision.

    Args:
        confidence: The largest probability.
        decision: int64, the first class that has it.
        nll: −log p of the label.
        square: Σ p².
    """

    confidence: Tensor
    decision: Tensor
    nll: Tensor
    square: Tensor


def row_statistics(logits: Tensor, labels: Tensor) -> RowStatistics:
    """Return the statistics of rows of ``logits`` (N, K) and ``labels`` (N,) int64 in [0, K)."""
    rows = logits.shape[0]
    if (loops := _loops_for(logits)) is not None:
        kinds = (np.float64, np.int64, np.float64, np.float64)
        out = [np.empty(rows, kind) for kind in kinds]  # NumPy's large arrays are cheaper to touch than PyTorch's
        y = labels.contiguous().numpy()

        def run(part: slice) -> None:
            loops.row_statistics(_array(logits[part]), y[part], *(one[part] for one in out))

        _in_segments(run, rows, logits.shape[1])
        return RowStatistics(*map(torch.from_numpy, out))
    found = []
    for part in row_chunks(*logits.shape, itemsize=16, device=logits.device):
        z = logits[part].double()
        top, decision = z.max(dim=1)
        gap = top - z.gather(1, labels[part, None])[:, 0]
        e = (z - top[:, None]).exp_()
        total = e.sum(dim=1)
        others = e.scatter(1, decision[:, None], 0.0).sum(
            dim=1
        )  # without the largest term, so that its digits are kept
        found.append((1 / total, decision, gap + others.log1p(), e.square_().sum(dim=1) / total.square()))
    return RowStatistics(*map(torch.cat, zip(*found, strict=True)))


def temperature_moments(logits: Tensor, labels: Tensor, weights: Tensor | None, beta: float) -> Tensor:
    """Return Σ w E[d], Σ w Var[d] and Σ w d_label (3,) float64 on the CPU, d = z − max z, moments under softmax(βz).

    Args:
        logits: (N, K); −inf excludes a class, but not a label's.
        labels: (N,) int64 in [0, K).
        weights: (N,) float64, or None for 1 each.
        beta: β > 0.
    """
    rows, classes = logits.shape
    if (loops := _loops_for(logits)) is not None:
        y, w = labels.contiguous().numpy(), np.empty(0) if weights is None else weights.contiguous().numpy()

        def run(part: slice) -> Any:
            out = np.empty(3)
            loops.temperature_moments(_array(logits[part]), y[part], w[part], float(beta), out)
            return out

        return torch.from_numpy(np.sum(_in_segments(run, rows, classes), axis=0))
    sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
    for part in row_chunks(rows, classes, device=logits.device):
        z = logits[part]
        top = z.amax(dim=1, keepdim=True)
        if z.is_cuda and has_triton():
            from calibrant._kernel import cuda

            mean, variance = cuda.row_moments(z, top, beta)
        else:
            d = (z.double() - top.double()).clamp_min(-1e30)  # e is 0 there, and 0 · ∞ is not
            p = torch.softmax(beta * d, dim=1)
            mean = (p * d).sum(dim=1)
            variance = (p * d.square()).sum(dim=1) - mean.square()
        own = z.gather(1, labels[part, None])[:, 0].double() - top[:, 0].double()
        each = torch.stack([mean, variance, own])
        sums += each.sum(dim=1) if weights is None else each @ weights[part]
    return sums.cpu()


def top_bins(logits: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return what ``pair_bins`` does, (5, B), of each row's largest probability and of whether the label is its first class."""
    if (loops := _loops_for(logits)) is None:
        found = row_statistics(logits, labels)
        return pair_bins(found.confidence, found.decision == labels, bins)
    y = labels.contiguous().numpy()

    def run(part: slice) -> Any:
        out = np.empty(5 * bins)
        loops.top_bins(_array(logits[part]), y[part], bins, out)
        return out

    return _table(_in_segments(run, *logits.shape))


def pair_bins(p: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return rows, Σp, Σy, Σp² and Σpy (5, B) float64 of ``p`` and ``y`` (N,) in each of ``bins`` bins (lo, hi] of equal width."""
    if (loops := _loops_for(p)) is None:
        p, y = p.double(), y.double()
        index, columns = bin_of(p, bins), (torch.ones_like(p), p, y, p * p, p * y)
        return torch.stack([torch.bincount(index, column, minlength=bins) for column in columns])
    hits = (y.contiguous().view(torch.uint8) if y.dtype == torch.bool else y.double().contiguous()).numpy()

    def run(part: slice) -> Any:
        out = np.empty(5 * bins)
        loops.pair_bins(p[part].double().contiguous().numpy(), hits[part], bins, out)
        return out

    return _table(_in_segments(run, p.shape[0], 1))


def class_bins(logits: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return what ``pair_bins`` does, (5, K · B), of each class's probability and event, class by class."""
    rows, classes = logits.shape
    if (loops := _loops_for(logits)) is not None:
        y = labels.contiguous().numpy()

        def run(part: slice) -> Any:
            out = np.empty(5 * classes * bins)
            loops.class_bins(_array(logits[part]), y[part], bins, out)
            return out

        tables = max(1, (1 << 20) // (classes * bins))  # partial ones that are held at a time
        return _table(_in_segments(run, rows, classes, least=-(-rows // tables)))
    sums = torch.zeros(5, classes * bins, dtype=torch.float64, device=logits.device)
    first = torch.arange(classes, device=logits.device) * bins
    for part in row_chunks(rows, classes, device=logits.device):
        p = torch.softmax(logits[part].double(), dim=1)
        cell, own = bin_of(p, bins) + first, labels[part, None]
        at, event, q, flat = cell.gather(1, own)[:, 0], p.gather(1, own)[:, 0], p.reshape(-1), cell.reshape(-1)
        columns = ((flat, torch.ones_like(q)), (flat, q), (at, torch.ones_like(event)), (flat, q * q), (at, event))
        sums += torch.stack([torch.bincount(index, column, classes * bins) for index, column in columns])
    return sums


def bin_of(p: Tensor, bins: int) -> Tensor:
    """Return the bin (lo, hi] of equal width, int64, of each probability; 0 lies in the first."""
    return ((p.double() - TIE) * bins).ceil_().sub_(1).clamp_(0, bins - 1).long()


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p (N,) of the label, differentiable, in float32 or in the logits' wider dtype.

    Args:
        logits: (N, K).
        labels: (N,) in [0, K).
    """
    if is_large(logits):
        from calibrant._kernel import cuda

        return cuda.row_nll(logits, labels)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="none")


def one_thread_if_small(entries: int) -> AbstractContextManager[None]:
    """Return ``threads`` of one for a task over few array elements, which several threads only slow down."""
    return threads(1 if entries < 1 << 18 else torch.get_num_threads())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with so many PyTorch threads, and restore the setting afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_large(logits: Tensor) -> bool:
    """Return whether Triton's cross-entropy is faster than PyTorch's on these logits, and can run."""
    many = logits.is_cuda and logits.numel() >= 1 << 22 and logits.shape[1] >= 1024
    return many and logits.dtype != torch.float64 and not torch.compiler.is_compiling() and has_triton()


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def _loops() -> ModuleType | None:
    try:
        from calibrant._kernel import loops
    except ImportError:  # Numba is not installed, or not for this NumPy
        return None
    return loops


def _loops_for(values: Tensor) -> Any:
    """Return the module of compiled loops for a large floating CPU tensor, used eagerly without gradient; else None."""
    plain = values.device.type == "cpu" and type(values) is Tensor and values.is_floating_point()
    eager = not values.requires_grad and not torch.compiler.is_compiling()
    return _loops() if values.numel() >= LEAST and plain and eager else None


def _array(logits: Tensor) -> Any:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).contiguous().numpy()


def _in_segments(run: Callable[[slice], Any], rows: int, classes: int, *, least: int = 1) -> list[Any]:
    """Return ``run(part)`` of consecutive parts of the rows, in threads; the parts do not depend on the threads' number."""
    step = max(1, SEGMENT // classes, least)
    parts = [slice(start, min(rows, start + step)) for start in range(0, rows, step)]
    workers = min(torch.get_num_threads(), len(parts))
    if workers == 1:
        return [run(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, parts))


def _table(parts: list[Any]) -> Tensor:
    """Return (5, B) of the sum of parts (5 B,), in which a bin's sums are neighbours."""
    return torch.from_numpy(np.ascontiguousarray(np.sum(parts, axis=0).reshape(-1, 5).T))
