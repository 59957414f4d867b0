"""Focal loss is bounded below by cross-entropy minus γ times the entropy of the prediction."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import as_tensor, check_labels, check_probs, refuse
from calibrant._core.constraints import NonNegative, checked
from calibrant._objective.log_pairs import LogProbs, log_pairs
from calibrant.scores import FocalScore


@dataclass(frozen=True)
class EntropyBound:
    """Expected focal loss (N,) and its lower bound (N,).

    Args:
        loss: Σ_k q_k φ(p_k).
        bound: KL(q‖p) + H(q) − γ H(p).

    Examples:
        >>> EntropyBound(torch.tensor([0.5]), torch.tensor([0.2])).gap
        tensor([0.3000])
    """

    loss: Tensor
    bound: Tensor

    @property
    def gap(self) -> Tensor:
        """loss − bound (N,), never negative."""
        return self.loss - self.bound


@checked
def entropy_bound(log_probs: LogProbs, targets: Tensor, gamma: NonNegative) -> EntropyBound:
    """Return the focal loss and its lower bound KL(q‖p) + H(q) − γ H(p), cross-entropy with an entropy bonus.

    The bound explains why focal loss keeps predictions uncertain. The published proofs need γ ≥ 1 (Bernoulli's inequality).
    The bound also holds for 0 < γ < 1, where their intermediate inequality, with the true class's entropy term only, does not.

    Args:
        log_probs: (N, K) natural logarithms of the prediction p.
        targets: (N,) class indices, or (N, K) target distributions q.
        gamma: γ ≥ 0.

    Returns:
        ``EntropyBound(loss, bound)``, each (N,).

    Raises:
        InputError: If rows of ``log_probs`` do not exponentiate to a sum of 1, or shapes disagree.

    Examples:
        >>> found = entropy_bound(torch.tensor([[0.7, 0.3]]).log(), torch.tensor([0]), 2.0)
        >>> found.loss, found.bound
        (tensor([0.0321]), tensor([-0.8651]))

    References:
        Mukhoti et al. 2020, §3 and Appendix A; Wang et al. 2021, Eq. 2.
    """
    q = _distributions(targets, *log_probs.shape)
    log_p, log_not_p = log_pairs(log_probs)
    score = FocalScore(gamma).value(log_p, log_not_p)
    loss = torch.where(q == 0, 0.0, q * score).sum(dim=1)
    cross_entropy = -torch.where(q == 0, 0.0, q * log_p).sum(dim=1)  # KL(q‖p) + H(q)
    entropy = -(torch.exp(log_p) * log_p).sum(dim=1)
    return EntropyBound(loss, cross_entropy - gamma * entropy)


def _distributions(targets: Tensor, rows: int, classes: int) -> Tensor:
    """Return ``targets`` as distributions (N, K): class indices become one-hot rows."""
    values = as_tensor(targets, name="targets")
    if not values.is_floating_point():
        return F.one_hot(check_labels(values, rows=rows, classes=classes), classes)
    if values.shape != (rows, classes):
        got = f"shape {tuple(values.shape)}"
        raise refuse(f"targets of shape ({rows},) or ({rows}, {classes})", got, "pass class indices or distributions")
    return check_probs(values)
