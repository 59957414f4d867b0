"""Loss terms for rows of logits, computed in blocks that stay in the cache, without saving an N × K matrix for the backward pass.

Autograd would keep the softmax of all rows and allocate several temporary N × K matrices. Here, the backward pass writes the gradient
of each block into one matrix, which all terms of the same logits share. This is the only N × K matrix.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant import _kernel
from calibrant._core.log_pairs import finite_floor
from calibrant._core.numerics import is_transformed, row_chunks, softmax_into

SMALL = 1 << 16  # with fewer logits, dispatching operations takes most of the time, and fewer operations are faster
_LEAST_P = 1e-30  # smaller float32 probabilities are subnormal or 0, so −log p is computed from the logits
_LOG_OF_ZERO = -1e4  # its exponential is 0, and its product with 0 is 0, whereas 0 times −inf is NaN

Terms = Callable[[Tensor, Tensor], Tensor]  # (n, K) logits and (n,) labels → (n,) terms, differentiable
Slope = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def by_rows(terms: Terms, logits: Tensor, labels: Tensor, *, slope: Slope | None = None) -> Tensor:
    """Return ``terms`` (N,) for ``logits`` (N, K), in float32 or, for float64 logits, in float64.

    Args:
        terms: A function that returns one term per row, each of which depends on its own row only.
        logits: Logits (N, K).
        labels: Labels (N,), int64, or another value per row that ``terms`` takes.
        slope: A function ``slope(logits, labels, scale, out)`` that writes scale (n, 1) times the gradient of the terms into
            out (n, K). None uses autograd, which is slower.
    """
    if not in_blocks(logits):
        return terms(promoted(logits), labels)
    found: Tensor = _Blocks.apply(logits, labels, terms, slope or partial(_autograd_slope, terms))
    return found


def in_blocks(logits: Tensor) -> bool:
    """Return whether blocks are faster, that is, for many logits on the CPU, in eager mode, in float32 or below."""
    eager = logits.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed(logits)
    return eager and logits.numel() >= SMALL and logits.dtype != torch.float64


def promoted(logits: Tensor) -> Tensor:
    """Return ``logits`` in float32, or unchanged if they are float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class SharedLogits(torch.autograd.Function):
    """An identity function whose node holds one gradient matrix, to which all ``_Blocks`` of the same logits add.

    The matrix belongs to this node. Nothing is added in place to a gradient from autograd, which other code may hold.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.matrix = None
        ctx.set_materialize_grads(False)
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, rest: Tensor | None) -> Tensor | None:
        # ``rest`` comes from terms that were not computed in blocks
        matrix, ctx.matrix = ctx.matrix, None
        if matrix is None or rest is None:
            return rest if matrix is None else matrix
        return matrix.add_(rest)  # type: ignore[no-any-return]


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, terms: Terms, slope: Slope) -> Tensor:
        ctx.save_for_backward(logits, labels)
        ctx.terms, ctx.slope = terms, slope
        ctx.shared = logits.grad_fn if isinstance(logits.grad_fn, SharedLogits._backward_cls) else None
        found = torch.empty(
            len(logits), dtype=torch.float32
        )  # allocated first: results kept between blocks would spread them
        for rows in row_chunks(*logits.shape, itemsize=4, device=logits.device):
            found[rows] = terms(logits[rows].float(), labels[rows])
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph=True, repeat the forward pass with differentiable operations
            value = ctx.terms(promoted(logits), labels)
            return torch.autograd.grad(value, logits, grad, create_graph=True)[0], None, None, None
        earlier = None if ctx.shared is None else ctx.shared.matrix
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format) if earlier is None else earlier
        direct, work = earlier is None and logits.dtype == torch.float32, None
        for rows in row_chunks(*logits.shape, itemsize=4, device=logits.device):
            block = logits[rows].float()
            if not direct and work is None:
                work = torch.empty_like(block)
            out = gradient[rows] if work is None else work[: len(block)]
            ctx.slope(block, labels[rows], grad[rows, None], out)
            if earlier is not None:
                gradient[rows] += out
            elif not direct:
                gradient[rows] = out
        if ctx.shared is None:
            return gradient, None, None, None
        ctx.shared.matrix = gradient
        return None, None, None, None


def _autograd_slope(terms: Terms, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        out.copy_(torch.autograd.grad(terms(leaf, labels), leaf, scale[:, 0])[0])


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y (N,), in float32 or, for float64 logits, in float64, with the gradient p − e_y."""
    return smoothed_nll(logits, labels, 0.0) if in_blocks(logits) else _kernel.row_nll(logits, labels)


def smoothed_nll(logits: Tensor, labels: Tensor, uniform: float) -> Tensor:
    """Return −Σ_k t_k log p_k (N,) for the smoothed target t = (1 − u) e_y + u/K with u = ``uniform``."""
    return by_rows(partial(_nll, uniform=uniform), logits, labels, slope=partial(_nll_slope, uniform=uniform))


def _nll(logits: Tensor, labels: Tensor, *, uniform: float) -> Tensor:
    if _is_followed(logits):
        nll = F.cross_entropy(logits, labels, reduction="none")
    else:
        p = softmax(logits).gather(1, labels[:, None])[:, 0]
        nll, low = -torch.log(p), p < _LEAST_P
        if bool(low.any()):
            nll[low] = F.cross_entropy(logits[low], labels[low], reduction="none")
    # the loss is linear in u, with the slope z_y − mean_k z_k
    return nll + uniform * (logits.gather(1, labels[:, None])[:, 0] - logits.mean(dim=1)) if uniform else nll


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
    p = softmax(logits)
    return p.scatter_add(1, labels[:, None], -torch.ones_like(p[:, :1])).square().sum(dim=1)


def _squared_slope(logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write 2 p_k (d_k − Σ_j p_j d_j), d = p − e_y."""
    p = softmax(logits)
    out.copy_(p).scatter_add_(1, labels[:, None], out.new_full((len(out), 1), -1.0))
    out.sub_((out * p).sum(dim=1, keepdim=True)).mul_(p).mul_(2 * scale)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy −Σ_k p_k log p_k (N,), to which a class with p = 0 adds 0."""
    return by_rows(_entropy, logits, logits.new_empty(len(logits)), slope=_entropy_slope)


def _entropy(logits: Tensor, _: Tensor) -> Tensor:
    relative, p = _relative(logits)
    return -(p * relative).sum(dim=1) - torch.log(p.amax(dim=1))


def _entropy_slope(logits: Tensor, _: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write −p_k (log p_k + H) = −p_k (r_k − Σ_j p_j r_j), r = log(p / p_top)."""
    relative, p = _relative(logits)
    torch.sub(relative, (p * relative).sum(dim=1, keepdim=True), out=out).mul_(p).mul_(-scale)


def _relative(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(p_k / p_top), clipped below at −10⁴, and p, each (n, K)."""
    relative = (logits - logits.amax(dim=1, keepdim=True)).clamp_min(_LOG_OF_ZERO)
    return relative, softmax(relative)


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax (n, K). If no gradient is needed, it takes a tenth of torch's time for few classes."""
    return torch.softmax(logits, dim=1) if _is_followed(logits) else softmax_into(torch.empty_like(logits), logits)


def _is_followed(logits: Tensor) -> bool:
    return (torch.is_grad_enabled() and logits.requires_grad) or is_transformed(logits)


def confidence_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest probability (N,), with its gradient, and its class (N,), the first one if several are equal."""
    predicted = logits.detach().argmax(dim=1)
    return torch.exp(-row_nll(logits, predicted)), predicted


def exact_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), for float64 ``logits`` (N, K), accurate up to rounding at every margin."""
    index = labels[:, None]
    # logits are taken relative to the largest, because next to logits of 1e16, the logarithm of a sum of 2 would be lost
    logits = logits - logits.detach().amax(dim=1, keepdim=True)
    total = torch.logsumexp(logits, dim=1)
    # if all classes but the true one are excluded, log 0 has no derivative for autograd
    rest = torch.logsumexp(finite_floor(logits.scatter(1, index, -math.inf)), dim=1)
    log_not_p = rest - total
    direct = logits.gather(1, index)[:, 0] - total
    confident = log_not_p < -math.log(2)  # p > 1/2: log p is near 0, and log1p(−(1 − p)) keeps its relative precision
    return torch.where(confident, torch.log1p(-torch.exp(torch.where(confident, log_not_p, -1.0))), direct), log_not_p


def soft_pair(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the target probabilities q and log p, each (N, K); log p is 0 for a class with logit −inf and target 0."""
    log_p = F.log_softmax(promoted(logits), dim=1)
    q = targets.to(log_p.dtype)
    # otherwise 0 · −∞ would be NaN, as in torch's own cross-entropy
    return q, log_p.masked_fill((log_p == -math.inf) & (q == 0), 0.0)


def positive_power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent for base ≥ 0; the gradient at 0 is 0 instead of infinity or NaN."""
    zero = base == 0
    return torch.where(zero, 0, torch.where(zero, 1, base).pow(exponent))
