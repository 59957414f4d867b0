"""Terms of rows of logits in blocks that stay in the cache, which save nothing of size N × K for the backward pass.

Autograd would keep the softmax of all rows and allocate several temporary N × K matrices. Here the backward pass repeats the
forward pass of a block and writes the block's gradient into the result: the gradient is the only N × K matrix.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant import _kernel
from calibrant._core.numerics import LOG_OF_UNDERFLOW, row_chunks, softmax_into

SMALL = 1 << 16  # below this many logits, dispatch dominates the cost, and fewer operations are faster
_BLOCK = 16
_LARGEST_LOG_ODDS = math.log(1e300)  # its exponential is still finite in float64
_LOG_OF_ZERO = -1e4  # its exponential is 0, and 0 times it is 0, where 0 times −inf is NaN
_LEAST_P = 1e-30  # below it a float32 probability is subnormal or 0, so −log p is computed from the logits

Terms = Callable[[Tensor, Tensor], Tensor]  # (n, K) logits and (n,) labels → (n,) terms, differentiable
Slope = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def by_rows(terms: Terms, logits: Tensor, labels: Tensor, *, slope: Slope | None = None) -> Tensor:
    """Return ``terms`` (N,) of ``logits`` (N, K) in float32 or, for float64 logits, float64.

    Args:
        terms: Of rows, each from its own row alone.
        logits: (N, K).
        labels: (N,) int64, or what else ``terms`` takes of each row.
        slope: Writes scale (n, 1) times the gradient of the terms into (n, K), ``slope(logits, labels, scale, out)``, where that
            is faster than autograd.
    """
    if not in_blocks(logits):
        return terms(promoted(logits), labels)
    found: Tensor = _Blocks.apply(logits, labels, terms, slope)
    return found


def in_blocks(logits: Tensor) -> bool:
    """Return whether blocks are faster: many logits on the CPU, in eager mode, in float32 or below."""
    eager = logits.device.type == "cpu" and not torch.compiler.is_compiling()
    return eager and logits.numel() >= SMALL and logits.dtype != torch.float64


def promoted(logits: Tensor) -> Tensor:
    """Return ``logits`` in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, labels: Tensor, terms: Terms, slope: Slope | None) -> Tensor:
        blocks = row_chunks(*logits.shape, itemsize=4, device=logits.device)
        return torch.cat([terms(logits[rows].float(), labels[rows]) for rows in blocks])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.terms, ctx.slope = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: repeat the forward pass with differentiable operations
            value = ctx.terms(promoted(logits), labels)
            return torch.autograd.grad(value, logits, grad, create_graph=True)[0], None, None, None
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        work = None
        for rows in row_chunks(*logits.shape, itemsize=4, device=logits.device):
            block, upstream = logits[rows].float(), grad[rows]
            if ctx.slope is None:
                leaf = block.detach().requires_grad_()
                with torch.enable_grad():
                    (gradient[rows],) = torch.autograd.grad(ctx.terms(leaf, labels[rows]), leaf, upstream)
                continue
            out = gradient[rows]
            if logits.dtype != torch.float32:
                work = torch.empty_like(block) if work is None else work
                out = work[: len(block)]
            ctx.slope(block, labels[rows], upstream[:, None], out)
            if work is not None:
                gradient[rows] = out
        return gradient, None, None, None


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y (N,), in float32 or, for float64 logits, float64; gradient (p − e_y)."""
    return smoothed_nll(logits, labels, 0.0) if in_blocks(logits) else _kernel.row_nll(logits, labels)


def smoothed_nll(logits: Tensor, labels: Tensor, uniform: float) -> Tensor:
    """Return −Σ_k t_k log p_k (N,) for the target t = (1 − u) e_y + u/K with u = ``uniform``."""
    return by_rows(partial(_block_nll, uniform=uniform), logits, labels, slope=partial(_nll_slope, uniform=uniform))


def _block_nll(logits: Tensor, labels: Tensor, *, uniform: float) -> Tensor:
    index = labels[:, None]
    if torch.is_grad_enabled() and logits.requires_grad:
        nll = F.cross_entropy(logits, labels, reduction="none")
    else:
        p = softmax_into(torch.empty_like(logits), logits).gather(1, index)[:, 0]
        nll, low = -torch.log(p), p < _LEAST_P
        if bool(low.any()):
            nll[low] = F.cross_entropy(logits[low], labels[low], reduction="none")
    # linear in u, with the slope z_y − mean_k z_k
    return nll + uniform * (logits.gather(1, index)[:, 0] - logits.mean(dim=1)) if uniform else nll


def _nll_slope(logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor, *, uniform: float) -> None:
    """Write p − t."""
    softmax_into(out, logits).mul_(scale)
    if uniform:
        out.sub_(scale * (uniform / logits.shape[1]))
    out.scatter_add_(1, labels[:, None], scale * (uniform - 1))


def squared_distance(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the Brier score Σ_k (p_k − [k = y])² (N,)."""
    return by_rows(_squared, logits, labels, slope=_squared_slope)


def _squared(logits: Tensor, labels: Tensor) -> Tensor:
    p = torch.softmax(logits, dim=1)
    return p.scatter_add(1, labels[:, None], -torch.ones_like(p[:, :1])).square().sum(dim=1)


def _squared_slope(logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write 2 p_k (d_k − Σ_j p_j d_j), d = p − e_y."""
    p = softmax_into(torch.empty_like(out), logits)
    out.copy_(p).scatter_add_(1, labels[:, None], out.new_full((len(out), 1), -1.0))
    out.sub_((out * p).sum(dim=1, keepdim=True)).mul_(p).mul_(2 * scale)


def entropy(logits: Tensor) -> Tensor:
    """Return −Σ_k p_k log p_k (N,); a class with p = 0 adds 0."""
    return by_rows(_entropy, logits, logits.new_empty(len(logits)), slope=_entropy_slope)


def _entropy(logits: Tensor, _: Tensor) -> Tensor:
    if not (torch.is_grad_enabled() and logits.requires_grad):
        p, mean = _relative_entropy(logits, torch.empty_like(logits))
        return -mean[:, 0] - torch.log(p.amax(dim=1))
    log_p = F.log_softmax(logits, dim=1)
    # p = 0 times −∞, or times an upstream gradient that overflows, is NaN: such classes are masked in both factors
    excluded = log_p < LOG_OF_UNDERFLOW[log_p.dtype]
    finite = torch.where(excluded, 0, log_p)
    return -(torch.where(excluded, 0, torch.exp(finite)) * finite).sum(dim=1)


def _entropy_slope(logits: Tensor, _: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write −p_k (log p_k + H)."""
    p, mean = _relative_entropy(logits, out)
    out.sub_(mean).mul_(p).mul_(-scale)


def _relative_entropy(logits: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write log(p_k / p_top) into ``out``; return p and Σ_k p_k log(p_k / p_top) (n, 1). One exponential a logit."""
    torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out)
    p = softmax_into(torch.empty_like(out), out)
    mean = (p * out).sum(dim=1, keepdim=True)
    if bool(mean.isnan().any()):  # 0 · −∞: a class is excluded
        mean = (p * out.clamp_min_(_LOG_OF_ZERO)).sum(dim=1, keepdim=True)
    return p, mean


def confidence_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest probability (N,), with its gradient, and its class (N,), the first of equal ones."""
    predicted = argmax(logits.detach())
    return torch.exp(-row_nll(logits, predicted)), predicted


def argmax(logits: Tensor) -> Tensor:
    """Return the first index (N,) of the maximum of each row; block maxima first, which vectorise better than argmax."""
    classes = logits.shape[1]
    blocks = classes // _BLOCK
    if blocks < _BLOCK or logits.device.type != "cpu":
        return logits.argmax(dim=1)
    tops = logits[:, : blocks * _BLOCK].reshape(-1, blocks, _BLOCK).amax(dim=2)
    if classes % _BLOCK:
        tops = torch.cat([tops, logits[:, blocks * _BLOCK :].amax(dim=1, keepdim=True)], dim=1)
    start = tops.argmax(dim=1, keepdim=True) * _BLOCK
    index = (start + torch.arange(_BLOCK, device=logits.device)).clamp_max(classes - 1)
    return index.gather(1, logits.gather(1, index).argmax(dim=1, keepdim=True))[:, 0]


def exact_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), of float64 ``logits`` (N, K), accurate to rounding at every margin."""
    pair: tuple[Tensor, Tensor] = _Float64.apply(logits, labels)
    return pair


class _Float64(torch.autograd.Function):
    """(log p_y, log(1 − p_y)) with gradients (e_y − p) and −p_y/(1 − p_y)·(e_y − p), in row chunks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_not_p = logits.new_empty(labels.shape), logits.new_empty(labels.shape)
        for rows in row_chunks(*logits.shape, device=logits.device):
            log_p[rows], log_not_p[rows] = _log_probs(logits[rows], labels[rows])
        ctx.save_for_backward(logits, labels, log_p, log_not_p)
        return log_p, log_not_p

    @staticmethod
    def backward(ctx: Any, grad_log_p: Tensor, grad_log_not_p: Tensor) -> tuple[Tensor, None]:
        logits, labels, log_p, log_not_p = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the same formulas by differentiable operations
            log_p, log_not_p = _log_probs(logits, labels)
        odds = torch.exp((log_p - log_not_p).clamp_max(_LARGEST_LOG_ODDS))
        scale = grad_log_p - grad_log_not_p * odds
        direction = F.one_hot(labels, logits.shape[1]) - torch.softmax(logits, dim=1)
        # e_y − p has 1 − p_y at the true class, which subtraction would round away
        at_label = torch.exp(log_not_p)[:, None]
        direction = direction.scatter(1, labels[:, None], at_label)
        return scale[:, None] * direction, None


def _log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    index = labels[:, None]
    # relative to the largest: beside logits of 1e16 the logarithm of a sum of 2 would be rounded away
    logits = logits - logits.detach().amax(dim=1, keepdim=True)
    total = torch.logsumexp(logits, dim=1)
    others = logits.scatter(1, index, -math.inf)
    rest = torch.logsumexp(others, dim=1)
    if torch.is_grad_enabled():  # where the true class alone is left, log 0 has no slope that autograd could follow
        alone = torch.isneginf(rest.detach())
        rest = torch.logsumexp(others.masked_fill(alone[:, None], 0.0), dim=1).masked_fill(alone, -math.inf)
    log_not_p = rest - total
    direct = logits.gather(1, index)[:, 0] - total
    confident = log_not_p < -math.log(2)  # p > 1/2: log p is near 0, and log1p(−(1 − p)) keeps its relative precision
    return torch.where(confident, torch.log1p(-torch.exp(torch.where(confident, log_not_p, -1.0))), direct), log_not_p


def soft_pair(logits: Tensor, targets: Tensor, *, excluded: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return q and log p, each (N, K), of target probabilities q; log p is ``excluded`` for a class of logit −inf and target 0."""
    log_p = F.log_softmax(promoted(logits), dim=1)
    q = targets.to(log_p.dtype)
    # 0 · −∞ is NaN, which torch's own cross-entropy returns there
    return q, log_p.masked_fill((log_p == -math.inf) & (q == 0), excluded)


def positive_power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent for base ≥ 0, with gradient 0 instead of infinity or NaN at 0."""
    zero = base == 0
    return torch.where(zero, 0, torch.where(zero, 1, base).pow(exponent))
