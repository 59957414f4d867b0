"""Per-sample loss terms shared by ``calibrant.functional`` and ``calibrant.losses``: each formula is defined once, here."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.numerics import log1mexp
from calibrant._objective.batch import true_class_log_probs
from calibrant._objective.blocks import promoted
from calibrant._objective.statistics import CrossEntropy, Distance
from calibrant.scores import weighted_nll

WeightOf = Callable[[Tensor, Tensor], Tensor]


def weighted_rows(logits: Tensor, labels: Tensor, *, weight_of: WeightOf, detach_weight: bool) -> Tensor:
    """Return w(p_y) · (−log p_y) (N,)."""
    return weighted_nll(weight_of, *true_class_log_probs(logits, labels), detach_weight=detach_weight)


def weighted_soft_rows(logits: Tensor, targets: Tensor, *, weight_of: WeightOf, detach_weight: bool) -> Tensor:
    """Return −Σ_k q_k w(p_k) log p_k (N,) for target probabilities q (Mukhoti et al. 2020, Appendix A)."""
    log_p = F.log_softmax(promoted(logits), dim=1)
    q = targets.to(log_p.dtype)
    log_p = log_p.masked_fill(_adds_nothing(log_p, q), -1.0)
    log_not_p = log1mexp(log_p.clamp_max(-torch.finfo(log_p.dtype).tiny))
    terms = weighted_nll(weight_of, log_p, log_not_p, detach_weight=detach_weight)
    return (q * terms).sum(dim=1)


def brier_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Return Σ_k (p_k − [k = y])² (N,)."""
    return Distance()(logits, labels)


def brier_soft_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """Return Σ_k (p_k − q_k)² (N,), which differs from the expectation over labels by a constant."""
    p = torch.softmax(promoted(logits), dim=1)
    return (p - targets.to(p.dtype)).square().sum(dim=1)


def smoothed_rows(logits: Tensor, labels: Tensor, *, smoothing: float, spread: str) -> Tensor:
    """Return −Σ_k t_k log p_k (N,) for the smoothed target t."""
    return CrossEntropy(uniform_part(smoothing, spread, logits.shape[1]))(logits, labels)


def smoothed_soft_rows(logits: Tensor, targets: Tensor, *, smoothing: float, spread: str) -> Tensor:
    """Return −Σ_k t_k log p_k (N,) for t = (1 − u) q + u/K and target probabilities q."""
    wide = promoted(logits)
    uniform = uniform_part(smoothing, spread, logits.shape[1])
    smoothed = targets.to(wide.dtype) * (1 - uniform) + uniform / logits.shape[1]
    return soft_cross_entropy(wide, smoothed)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return −Σ_k q_k log p_k (N,) for target probabilities q; an excluded class (−inf) of target 0 adds nothing."""
    log_p = F.log_softmax(promoted(logits), dim=1)
    q = targets.to(log_p.dtype)
    return -(q * log_p.masked_fill(_adds_nothing(log_p, q), 0)).sum(dim=1)


def _adds_nothing(log_p: Tensor, q: Tensor) -> Tensor:
    """Return where an excluded class (−inf) has target 0: there 0 · ∞ is NaN, which torch's own cross-entropy returns."""
    return (log_p == -math.inf) & (q == 0)


def uniform_part(smoothing: float, spread: str, classes: int) -> float:
    """Return u, the weight of the uniform distribution in the smoothed target: α, or αK/(K − 1) if spread over the others."""
    return smoothing if spread == "all" else smoothing * classes / (classes - 1)
