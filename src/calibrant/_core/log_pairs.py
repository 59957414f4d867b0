"""Log-probabilities, log(1 − q) and normalisation, all of them accurate at every margin of the logits."""

import math
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import check_floating, check_scores, refuse

_SUM_TOLERANCE = 1e-3  # log-probabilities that went through float16 still sum to 1 within this


def check_log_probs(values: Any, *, name: str = "log_probs") -> Tensor:
    """Return ``values`` (N, K) if its rows are the natural logarithms of probability distributions."""
    log_probs = check_scores(check_floating(values, name=name), name=name)
    total = torch.logsumexp(log_probs.detach(), dim=1)
    off = ~(total.abs() <= _SUM_TOLERANCE)
    if off.any():
        row = int(torch.nonzero(off)[0])
        raise refuse(
            f"{name} whose exponentials sum to 1 in each row",
            f"{math.exp(min(total[row].item(), 700.0)):.6g} in row {row}",
            "pass torch.log_softmax(logits, dim=1) or the log of probabilities",
        )
    return log_probs


def check_class_axis(values: Any, *, name: str = "logits") -> Tensor:
    """Return ``values`` (…, K) if it is a floating tensor with K ≥ 2; its entries are not read."""
    logits = check_floating(values, name=name)
    if logits.dim() == 0 or logits.shape[-1] < 2:
        got = f"shape {tuple(logits.shape)}"
        raise refuse(f"{name} of shape (…, K) with K ≥ 2", got, "pass one row per sample and one column per class")
    return logits


def log_pairs(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return log q and log(1 − q), each (…, K), for q = softmax(logits). For −inf logits, log q is a large negative number.

    Only one class of a row can have q > 1/2. For this class, 1 − q is computed as the sum of the others, and not as
    1 − exp(log q), which loses all digits at a margin of 37 in float64 and 17 in float32. For the others, log1p(−q) is exact.
    """
    top, below = _below_top(logits)
    below = finite_floor(below)
    log_top, log_rest, total = _split(below, top)
    others = (below - total).scatter(-1, top, -1.0)  # −1 at the entry to be replaced keeps its unused gradient finite
    log_not = torch.log1p(-torch.exp(others)).scatter(-1, top, log_rest)
    return others.scatter(-1, top, log_top), log_not


def log_pair_of_top(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log q (…, K), log(1 − q_top) (…, 1) and the index of the top class (…, 1)."""
    top, below = _below_top(logits)
    below = finite_floor(below)
    log_top, log_rest, total = _split(below, top)
    return (below - total).scatter(-1, top, log_top), log_rest, top


def log_normalise(logits: Tensor) -> Tensor:
    """Return log softmax(logits) (…, K), whose top entry keeps its relative precision when it is close to 0."""
    top, below = _below_top(logits)
    # z_top − logsumexp would be a difference of nearly equal numbers if all classes but the top one together have 1e-16
    log_top, _, total = _split(below, top)
    return (below - total).scatter(-1, top, log_top)


def _below_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of the top class (…, 1), and the logits minus the top logit, which removes any large common constant."""
    top = logits.detach().argmax(dim=-1, keepdim=True)
    largest = logits.detach().gather(-1, top)
    return top, logits - largest.masked_fill(torch.isneginf(largest), 0.0)  # −inf, not NaN, if all logits are −inf


def finite_floor(logits: Tensor) -> Tensor:
    """Return ``logits`` with −inf replaced by a number whose exponential is 0 and whose multiples stay finite."""
    # the number fits into float32 even for float64 logits: an ONNX file stores it in 32 bits, in which −1.8e304 is −inf
    return logits.clamp_min(max(torch.finfo(logits.dtype).min, torch.finfo(torch.float32).min) / 1e4)


def working_dtype(values: Tensor) -> torch.dtype:
    """Return the dtype to compute in: at least float32."""
    return torch.promote_types(values.dtype, torch.float32)


def _split(logits: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log q_top, log(1 − q_top) and the logsumexp, each (…, 1)."""
    z_top = logits.gather(-1, top)
    rest = torch.logsumexp(finite_floor(logits.scatter(-1, top, -math.inf)), dim=-1, keepdim=True)
    # logaddexp, in a form whose ONNX export cannot overflow
    gap = rest - z_top
    total = z_top + torch.maximum(gap, torch.zeros_like(gap)) + torch.log1p(torch.exp(-gap.abs()))
    log_rest = rest - total
    confident = log_rest < -math.log(2)
    log_top = torch.where(confident, torch.log1p(-torch.exp(torch.where(confident, log_rest, -1.0))), z_top - total)
    return log_top, log_rest, total
