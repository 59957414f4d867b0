"""Inequalities from the papers: the entropy bound on focal loss, its curvature, and the effect of scaling logits."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import as_tensor, check_labels, check_number, check_probs, refuse
from calibrant._core.log_pairs import check_log_probs, log_pairs
from calibrant.scores import FocalScore


@dataclass(frozen=True)
class EntropyBound:
    """Expected focal loss and its lower bound.

    Args:
        loss: Σ_k q_k φ(p_k) (N,).
        bound: KL(q‖p) + H(q) − γ H(p) (N,).

    Examples:
        >>> EntropyBound(torch.tensor([0.5]), torch.tensor([0.2])).gap
        tensor([0.3000])
    """

    loss: Tensor
    bound: Tensor

    @property
    def gap(self) -> Tensor:
        """The difference loss − bound (N,), which is never negative."""
        return self.loss - self.bound


def entropy_bound(log_probs: Tensor, targets: Tensor, gamma: float) -> EntropyBound:
    """Return the focal loss and its lower bound KL(q‖p) + H(q) − γ H(p), the cross-entropy with an entropy bonus.

    The bound explains why focal loss keeps predictions uncertain. The published proofs use Bernoulli's inequality and therefore
    need γ ≥ 1. For 0 < γ < 1, the bound still holds, although an intermediate inequality in these proofs does not.

    Args:
        log_probs: Natural logarithms of the predicted probabilities p (N, K).
        targets: Class indices (N,), or target distributions q (N, K).
        gamma: γ ≥ 0.

    Returns:
        The loss and its bound, each (N,).

    Raises:
        InputError: If the exponentials in a row of ``log_probs`` do not sum to 1, if γ < 0, or if the shapes do not match.

    Examples:
        >>> found = entropy_bound(torch.tensor([[0.7, 0.3]]).log(), torch.tensor([0]), 2.0)
        >>> found.loss, found.bound
        (tensor([0.0321]), tensor([-0.8651]))

    References:
        Mukhoti et al. 2020, §3 and Appendix A; Wang et al. 2021, Eq. 2.
    """
    rows, classes = check_log_probs(log_probs).shape
    check_number(gamma, name="gamma", low=0)
    q = as_tensor(targets, name="targets")
    if not q.is_floating_point():
        q = F.one_hot(check_labels(q, rows=rows, classes=classes), classes)
    elif check_probs(q).shape != (rows, classes):
        raise refuse(
            f"targets of shape ({rows},) or ({rows}, {classes})", f"shape {tuple(q.shape)}", "pass one per row"
        )
    log_p, log_not_p = log_pairs(log_probs)
    loss = torch.where(q == 0, 0.0, q * FocalScore(gamma).value(log_p, log_not_p)).sum(dim=1)
    cross_entropy = -torch.where(q == 0, 0.0, q * log_p).sum(dim=1)  # KL(q‖p) + H(q)
    entropy = -(torch.exp(log_p) * log_p).sum(dim=1)
    return EntropyBound(loss, cross_entropy - gamma * entropy)


def focal_curvature(probs: Tensor, gamma: float) -> Tensor:
    """Return the curvature of the focal score, φ″(p) = (1 − p)^(γ−2) [γ (1 − γ) log p + 2γ (1 − p)/p + (1 − p)²/p²].

    It is positive on (0, 1) for every γ ≥ 0. Only the first term can be negative, for 0 < γ < 1, and the second term exceeds its
    absolute value, because −log p ≤ (1 − p)/p.

    Args:
        probs: Probabilities p in (0, 1), of any shape.
        gamma: γ ≥ 0.

    Returns:
        φ″ in float64, with the shape of ``probs``.

    Raises:
        InputError: If γ < 0 or a probability lies outside (0, 1).

    Examples:
        >>> focal_curvature(torch.tensor([0.5]), 2.0)
        tensor([6.3863], dtype=torch.float64)

    References:
        Komisarenko & Kull 2024, Proposition 1.
    """
    check_number(gamma, name="gamma", low=0)
    p = probs.double()
    if not bool(((p > 0) & (p < 1)).all()):
        raise refuse("probs inside (0, 1)", "a value outside it", "leave out 0, where φ″ is infinite, and 1")
    odds = (1 - p) / p
    return (1 - p) ** (gamma - 2) * (gamma * (1 - gamma) * torch.log(p) + 2 * gamma * odds + odds**2)


def scaling_change(logits: Tensor, factor: float) -> Tensor:
    """Return the increase in confidence if logits f are multiplied by t ≥ 1: max softmax(t f) − max softmax(f).

    The increase is 0 only if t = 1 or all finite logits of a row are equal.

    Args:
        logits: Logits f (N, K).
        factor: t ≥ 1.

    Returns:
        The increase (N,) in the dtype of ``logits``, which is never negative up to rounding.

    Raises:
        InputError: If t < 1.

    Examples:
        >>> scaling_change(torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), 2.0)
        tensor([0.2016, 0.0000])

    References:
        Theorem 1 of a project report on calibration losses on CIFAR-10. The report assumes ordered logits, but this
        assumption is not needed; tied logits give equality.
    """
    check_number(factor, name="factor", low=1)
    # max softmax(t f) = 1 / Σ_k exp(t (f_k − f_top)), and each term of the sum decreases in t
    below = logits - logits.amax(dim=1, keepdim=True)
    before, after = (torch.exp(t * below).sum(dim=1) for t in (1, factor))
    return (before - after) / (before * after)
