"""The true class's log p and log(1 − p) from logits, accurate at every margin in the precision the dtype allows."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant import _kernel
from calibrant._core.numerics import row_chunks
from calibrant._objective.statistics import CrossEntropy, promoted

_BLOCK = 16
_LARGEST_LOG_ODDS = math.log(1e300)  # its exponential is still finite in float64


def exact_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), of float64 ``logits`` (N, K), accurate to rounding at every margin."""
    pair: tuple[Tensor, Tensor] = _Float64.apply(logits, labels)
    return pair


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y (N,), in float32 or, for float64 logits, float64; gradient (p − e_y)."""
    return nll_with_logits(logits, labels)[1]


def nll_with_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``logits`` for further use (see ``RowStatistic.with_logits``), and −log p_y (N,)."""
    if logits.device.type == "cuda" and _kernel.is_large(logits):
        return logits, _kernel.row_nll(logits, labels)
    return CrossEntropy().with_logits(logits, labels)


def soft_pair(logits: Tensor, targets: Tensor, *, excluded: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return q and log p, each (N, K), of target probabilities q; log p is ``excluded`` for a class of logit −inf and target 0."""
    log_p = F.log_softmax(promoted(logits), dim=1)
    q = targets.to(log_p.dtype)
    # 0 · −∞ is NaN, which torch's own cross-entropy returns there
    return q, log_p.masked_fill((log_p == -math.inf) & (q == 0), excluded)


def confidence_with_logits(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``logits`` for further use, the largest probability (N,), and its class (N,) (the first of equal ones)."""
    predicted = argmax(logits.detach())
    logits, nll = nll_with_logits(logits, predicted)
    return logits, torch.exp(-nll), predicted


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


class _Float64(torch.autograd.Function):
    """(log p_y, log(1 − p_y)) with gradients (e_y − p) and −p_y/(1 − p_y)·(e_y − p), in row chunks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_not_p = logits.new_empty(labels.shape), logits.new_empty(labels.shape)
        for rows in row_chunks(*logits.shape, device=logits.device):
            log_p[rows], log_not_p[rows] = _chunk(logits[rows], labels[rows])
        ctx.save_for_backward(logits, labels, log_p, log_not_p)
        return log_p, log_not_p

    @staticmethod
    def backward(ctx: Any, grad_log_p: Tensor, grad_log_not_p: Tensor) -> tuple[Tensor, None]:
        logits, labels, log_p, log_not_p = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the same formulas by differentiable operations
            log_p, log_not_p = _chunk(logits, labels)
        odds = torch.exp((log_p - log_not_p).clamp_max(_LARGEST_LOG_ODDS))
        scale = grad_log_p - grad_log_not_p * odds
        direction = F.one_hot(labels, logits.shape[1]) - torch.softmax(logits, dim=1)
        # e_y − p has 1 − p_y at the true class, which subtraction would round away
        at_label = torch.exp(log_not_p)[:, None]
        direction = direction.scatter(1, labels[:, None], at_label)
        return scale[:, None] * direction, None


def _chunk(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
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
