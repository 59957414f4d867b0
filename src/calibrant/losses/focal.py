"""Focal loss (1 − p_y)^γ · (−log p_y), finite in value and gradient at every margin."""

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._check import check_number
from calibrant._numerics import log1mexp
from calibrant.losses._base import Reduction, RowLoss, reduce_rows
from calibrant.losses._true_class import log_probs_from_nll, true_class_log_probs
from calibrant.scores import FocalScore, power_of_rest

__all__ = ["FocalLoss"]


class FocalLoss(RowLoss):
    """Focal loss: cross-entropy that pays less for samples already right.

    Its minimiser is less confident than the truth (Mukhoti et al. 2020 §3), so networks trained with it come out
    less over-confident, or under-confident: calibrate them afterwards all the same.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy, 3 a good start for calibration.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient, as the code of Wang et al. (2021) does. The
            value is the same, the minimiser is not: it is the truth tempered by T = γ + 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Labels that count nothing.

    Example:
        >>> FocalLoss(gamma=3.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.0563)

    References:
        Lin et al. 2017, Focal Loss for Dense Object Detection, Eq. 4. Mukhoti et al. 2020, Calibrating Deep Neural
        Networks using Focal Loss, §3.
    """

    def __init__(
        self,
        gamma: float,
        detach_weight: bool = False,
        *,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.gamma = check_number(gamma, name="gamma", low=0)
        self.detach_weight = bool(detach_weight)

    def describe(self) -> str:
        """Return the arguments."""
        return f"{self.gamma:g}" + (", detach_weight=True" if self.detach_weight else "")

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (1 − p_y)^γ · (−log p_y) (N,)."""
        return self._of(*true_class_log_probs(logits, labels))

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k q_k (1 − p_k)^γ log p_k (N,) (Mukhoti et al. 2020, Appendix A)."""
        log_p = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=1)
        return (targets * self._of(log_p, log1mexp(log_p.clamp_max(-torch.finfo(log_p.dtype).tiny)))).sum(dim=1)

    def from_nll(self, nll: Tensor, log_not_p: Tensor | None = None) -> Tensor:
        """Return the reduced loss from per-row cross-entropies, as a fused linear cross-entropy gives them.

        Args:
            nll: (N,) −log p_y ≥ 0, with its gradient.
            log_not_p: (N,) log(1 − p_y) if it is known better than from ``nll``.
        """
        log_p, rest = log_probs_from_nll(nll)
        terms = self._of(log_p, rest if log_not_p is None else log_not_p)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, terms.shape)

    def _of(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        if self.detach_weight and self.gamma:
            return power_of_rest(log_not_p, self.gamma).detach() * -log_p
        return FocalScore(self.gamma).value(log_p, log_not_p)
