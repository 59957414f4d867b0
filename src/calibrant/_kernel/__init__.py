"""Sums over rows of logits and over bins, from which metrics, temperatures and losses are computed.

Each function uses compiled loops if these are faster: Numba on the CPU (``loops``), and Triton on CUDA (``cuda``). The PyTorch code
is the reference for both, and runs if they are not available. Results do not depend on the number of threads.
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

# with fewer array elements, PyTorch takes a few milliseconds, whereas importing Numba takes half a second
LEAST = 1 << 19
SEGMENT = 1 << 19  # number of array elements per partial sum
TIE = 1e-12  # probabilities that differ by less count as equal, because log and exp in a calibrator can change them by as much
# a probability that exceeds an edge of equal-width bins by no more than this counts as on the edge: in float32, .6 is .60000002
EDGE = 2.0**-24


class RowStatistics(NamedTuple):
    """Statistics of each row's probabilities, as tensors (N,), float64 except for the decision.

    Args:
        confidence: The largest probability.
        decision: The first class with the largest probability, int64.
        nll: −log p of the label.
        brier: Σ (p_k − y_k)².
    """

    confidence: Tensor
    decision: Tensor
    nll: Tensor
    brier: Tensor


def row_statistics(logits: Tensor, labels: Tensor) -> RowStatistics:
    """Return the statistics of the rows of ``logits`` (N, K) with ``labels`` (N,), int64 in [0, K)."""
    rows = logits.shape[0]
    if (loops := _loops_for(logits)) is not None:
        y = labels.contiguous().numpy()
        # large NumPy arrays take less time to allocate and fill than PyTorch's
        out = [np.empty(rows, kind) for kind in (np.float64, np.int64, np.float64, np.float64)]
        run = lambda part: loops.row_statistics(_array(logits[part]), y[part], *(one[part] for one in out))  # noqa: E731
        _in_segments(run, rows, logits.shape[1])
        return RowStatistics(*map(torch.from_numpy, out))
    found = []
    for part in row_chunks(max(1, rows), logits.shape[1], itemsize=16, device=logits.device):  # without rows, one part
        z, own = logits[part].double(), labels[part, None]
        top, decision = z.max(dim=1)
        gap = top - z.gather(1, own)[:, 0]
        e = (z - top[:, None]).exp_().scatter_(1, decision[:, None], 0.0)
        others = e.sum(dim=1)  # without the largest term, so that no digits are lost
        total = 1 + others
        missed = torch.where(decision == own[:, 0], others.square(), total.square() - 2 * (-gap).exp() * total + 1)
        found.append((1 / total, decision, gap + others.log1p(), (missed + e.square_().sum(dim=1)) / total.square()))
    return RowStatistics(*map(torch.cat, zip(*found, strict=True)))


def label_excess(logits: Tensor, *, squared: bool = False) -> Tensor:
    """Return each row's smallest loss over all labels, and the mean, mean square and maximum of the excess over it (4, N).

    The means are under the row's probabilities, to which a label of probability 0 does not contribute.

    Args:
        logits: Logits (N, K).
        squared: Whether the loss of a label is the Brier score Σ_k p_k² + 1 − 2p instead of −log p.
    """
    rows, classes = logits.shape
    if (loops := _loops_for(logits)) is not None:
        out = np.empty((4, rows))
        _in_segments(lambda part: loops.label_excess(_array(logits[part]), squared, *out[:, part]), rows, classes)
        return torch.from_numpy(out)
    found = torch.empty(4, rows, dtype=torch.float64, device=logits.device)
    for part in row_chunks(rows, classes, device=logits.device):
        z = logits[part].double()
        top, decision = z.max(dim=1, keepdim=True)
        gap = (top - z).clamp_max_(1e30)  # 0 · ∞ would be NaN
        e = gap.neg().exp_().scatter_(1, decision, 0.0)
        p, most = 1 / (1 + e.sum(dim=1)), top[:, 0] - z.amin(dim=1)
        # with e = p_k / max p, the excess of label k is −log e, or (2 max p) · (1 − e) for the Brier score
        excess, unit, least = gap, torch.ones_like(p), e.sum(dim=1).log1p()
        if squared:
            excess, unit, least = 1 - e, 2 * p, (e.square().sum(dim=1) + e.sum(dim=1).square()) * p.square()
            most = 1 - most.neg().exp()
        mean, square = (e * excess).sum(dim=1) * p, (e * excess.square()).sum(dim=1) * p
        found[:, part] = torch.stack([least, unit * mean, unit.square() * square, unit * most])
    return found


def temperature_moments(logits: Tensor, labels: Tensor, weights: Tensor | None, beta: float) -> Tensor:
    """Return Σ w E[d], Σ w Var[d] and Σ w d_label (3,), float64 on the CPU, for d = z − max z with moments under softmax(βz).

    Args:
        logits: Logits (N, K); −inf excludes a class, which must not be the label.
        labels: Labels (N,), int64 in [0, K).
        weights: Row weights (N,), float64; None for 1 each.
        beta: β > 0.
    """
    if (loops := _loops_for(logits)) is not None:
        y, w = labels.contiguous().numpy(), np.empty(0) if weights is None else weights.contiguous().numpy()
        run = lambda part: loops.temperature_moments(_array(logits[part]), y[part], w[part], float(beta))  # noqa: E731
        return torch.from_numpy(sum(_in_segments(run, *logits.shape)))
    sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
    for part in row_chunks(*logits.shape, device=logits.device):
        z = logits[part].double().T.contiguous()  # sums over few classes are fastest along the first dimension
        gap = z - z.amax(dim=0)
        d = gap.clamp_min(-1e30)  # there e is 0, and 0 · ∞ would be NaN
        e = (beta * d).exp_()
        norm = e.sum(dim=0)
        mean = e.mul_(d).sum(dim=0).div_(norm)
        variance = e.mul_(d).sum(dim=0).div_(norm) - mean.square()
        each = torch.stack([mean, variance, gap.gather(0, labels[None, part])[0]])
        sums += each.sum(dim=1) if weights is None else each @ weights[part]
    return sums.cpu()


def top_bins(logits: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return the sums of ``pair_bins`` (5, B) for each row's largest probability and for whether the decision is the label."""
    if (loops := _loops_for(logits)) is None:
        found = row_statistics(logits, labels)
        return pair_bins(found.confidence, found.decision == labels, bins)
    y = labels.contiguous().numpy()
    run = lambda part: loops.top_bins(_array(logits[part]), y[part], bins)  # noqa: E731
    return _table_of_pairs(sum(_in_segments(run, *logits.shape)), bins)


def pair_bins(p: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return the number of rows, Σp, Σy, Σp² and Σpy (5, B), float64, in ``bins`` bins (lo, hi] of equal width.

    Args:
        p: Probabilities (N,).
        y: Outcomes (N,), 0 or 1.
        bins: Number B of bins.
    """
    if (loops := _loops_for(p)) is None:
        p, y = p.double(), y.double()
        index, columns = bin_of(p, bins), (torch.ones_like(p), p, y, p * p, p * y)
        return torch.stack([torch.bincount(index, column, minlength=bins) for column in columns])
    hits = y.bool().contiguous().numpy()
    run = lambda part: loops.pair_bins(_array(p[part]), hits[part], bins)  # noqa: E731
    return _table_of_pairs(sum(_in_segments(run, len(p), 1)), bins)


def class_bins(logits: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return the sums of ``pair_bins`` (5, K · B) for each class's probability and whether it is the label, class by class."""
    rows, classes = logits.shape
    if (loops := _loops_for(logits)) is not None:
        y = labels.contiguous().numpy()
        run = lambda part: loops.class_bins(_array(logits[part]), y[part], bins)  # noqa: E731
        tables = max(1, (1 << 20) // (classes * bins))  # number of partial tables in memory at a time
        sums: Any = sum(_in_segments(run, rows, classes, rows_at_least=-(-rows // tables)))
        return torch.from_numpy(np.ascontiguousarray(sums.reshape(-1, 5).T))
    table = torch.zeros(5, classes * bins, dtype=torch.float64, device=logits.device)
    first = torch.arange(classes, device=logits.device) * bins
    for part in row_chunks(rows, classes, device=logits.device):
        p = torch.softmax(logits[part].double(), dim=1)
        cell, own = bin_of(p, bins) + first, labels[part, None]
        at, event, q, flat = cell.gather(1, own)[:, 0], p.gather(1, own)[:, 0], p.reshape(-1), cell.reshape(-1)
        columns = ((flat, torch.ones_like(q)), (flat, q), (at, torch.ones_like(event)), (flat, q * q), (at, event))
        table += torch.stack([torch.bincount(index, column, classes * bins) for index, column in columns])
    return table


def class_signs(logits: Tensor, labels: Tensor, signs: Tensor) -> Tensor:
    """Return Σ_k s_k (p_k − y_k) for each row (N,), where s_k is the entry of ``signs`` for the bin of class k's probability.

    Args:
        logits: Logits (N, K).
        labels: Labels (N,), int64 in [0, K), at which y is 1; elsewhere y is 0.
        signs: Numbers (K, B), float64, for B bins of equal width.
    """
    (rows, classes), bins = logits.shape, signs.shape[1]
    if (loops := _loops_for(logits)) is not None:
        y, table, out = labels.contiguous().numpy(), signs.contiguous().numpy(), np.empty(rows)
        _in_segments(lambda part: loops.class_signs(_array(logits[part]), y[part], table, out[part]), rows, classes)
        return torch.from_numpy(out)
    signed = torch.empty(rows, dtype=torch.float64, device=logits.device)
    for part in row_chunks(rows, classes, device=logits.device):
        p = torch.softmax(logits[part].double(), dim=1)
        sign = signs.expand(len(p), -1, -1).gather(2, bin_of(p, bins)[..., None])[..., 0]
        signed[part] = (sign * p).sum(dim=1) - sign.gather(1, labels[part, None])[:, 0]
    return signed


def bin_of(p: Tensor, bins: int) -> Tensor:
    """Return the equal-width bin (lo, hi] of each probability, int64; 0 belongs to the first bin."""
    return ((p.double() - EDGE) * bins).ceil_().sub_(1).clamp_(0, bins - 1).long()


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p of the label (N,), differentiable, in float32 or, if the logits have a wider dtype, in that dtype.

    Args:
        logits: Logits (N, K).
        labels: Labels (N,) in [0, K).
    """
    if is_large(logits):
        from calibrant._kernel import cuda

        return cuda.row_nll(logits, labels)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="none")


def one_thread_if_small(entries: int) -> AbstractContextManager[None]:
    """Return a context with one PyTorch thread if a task has few array elements, because more threads would slow it down."""
    return threads(1 if entries < 1 << 18 else torch.get_num_threads())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with ``count`` PyTorch threads, and restore the setting afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_large(logits: Tensor) -> bool:
    """Return whether the Triton cross-entropy can run on these logits and is faster than PyTorch's."""
    many = logits.is_cuda and logits.numel() >= 1 << 22 and logits.shape[1] >= 1024
    eager = logits.dtype != torch.float64 and not torch.compiler.is_compiling()
    return many and eager and importlib.util.find_spec("triton") is not None


@cache
def _loops() -> ModuleType | None:
    try:
        from calibrant._kernel import loops
    except ImportError:  # Numba is not installed, or does not support this NumPy version
        return None
    return loops


def _loops_for(values: Tensor) -> Any:
    """Return the module of compiled loops if ``values`` is a large floating CPU tensor in eager mode without gradient, else None."""
    plain = values.device.type == "cpu" and type(values) is Tensor and values.is_floating_point()
    eager = not values.requires_grad and not torch.compiler.is_compiling()
    return _loops() if values.numel() >= LEAST and plain and eager else None


def _array(logits: Tensor) -> Any:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).contiguous().numpy()


def _in_segments(run: Callable[[slice], Any], rows: int, classes: int, *, rows_at_least: int = 1) -> list[Any]:
    """Return ``run(part)`` for consecutive parts of the rows, in several threads; the parts do not depend on the thread count."""
    step = max(1, SEGMENT // classes, rows_at_least)
    parts = [slice(start, min(rows, start + step)) for start in range(0, rows, step)]
    workers = min(torch.get_num_threads(), len(parts))
    if workers == 1:
        return [run(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, parts))


def _table_of_pairs(sums: Any, bins: int) -> Tensor:
    """Return the sums of ``pair_bins``, given the number of rows, Σp and Σp² for each copy and for the outcomes 0 and 1."""
    (n0, p0, s0), (n1, p1, s1) = sums.reshape(-1, 2, bins, 3).sum(axis=0).transpose(0, 2, 1)
    return torch.from_numpy(np.stack([n0 + n1, p0 + p1, n1, s0 + s1, p1]))
