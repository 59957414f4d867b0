"""The proper part of focal loss, trainable: what is left of focal loss once its calibration map is taken out."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._check import check_number
from calibrant._objective.batch import Reduction
from calibrant._objective.log_pairs import log_pairs
from calibrant.losses.loss import RowLoss
from calibrant.scores import FocalScore
from calibrant.theory import inverse_calibration_map

__all__ = ["ProperFocalLoss"]


class ProperFocalLoss(RowLoss):
    """L*(p, y) = φ(q_y), φ the focal score and q the distribution that focal loss would report where the truth is p.

    Focal loss is this loss after the focal calibration map. So training with it on p and training with focal loss
    and applying the map afterwards share their minimiser, the truth; unlike focal loss it is a proper score.
    Computed in float64: each row solves for q.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Labels that count nothing.

    Examples:
        >>> ProperFocalLoss(3.0)(torch.tensor([[0.95, 0.05]]).log(), torch.tensor([0]))
        tensor(0.0107)

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4.
    """

    def __init__(
        self,
        gamma: float,
        *,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.gamma = check_number(gamma, name="gamma", low=0)

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return φ(q_y) (N,)."""
        log_q = inverse_map(F.log_softmax(logits.double(), dim=1), self.gamma)
        index = labels[:, None]
        own = log_q.gather(1, index)[:, 0]
        log_not_q = torch.logsumexp(log_q.scatter(1, index, -torch.inf), dim=1)
        terms = FocalScore(self.gamma).value(own, log_not_q)
        return terms.to(torch.promote_types(logits.dtype, torch.float32))


@torch.library.custom_op("calibrant::inverse_focal_map", mutates_args=())
def inverse_map(log_p: Tensor, gamma: float) -> Tensor:
    """Return log q (N, K) with p_j ∝ h(q_j) for ``log_p`` (N, K), differentiable as often as wanted.

    One operation to ``torch.compile``, which cannot follow the iterations inside.
    """
    sick = torch.isnan(log_p).any(dim=1, keepdim=True)  # an overflowed step gives NaN, as with any other loss, no error
    log_q = inverse_calibration_map(FocalScore(gamma), torch.where(sick, -math.log(log_p.shape[1]), log_p))
    return torch.where(sick, torch.nan, log_q)


@inverse_map.register_fake
def _(log_p: Tensor, gamma: float) -> Tensor:
    return torch.empty_like(log_p)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.gamma = inputs[1]


def _pull_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    """Return the gradient by log p, given that by log q, through log h(q_j) = t + log p_j with Σ_j q_j = 1.

    With e = d log h / d log q: d log q_j = (d log p_j − m)/e_j, where m, the mean of d log p with weights q_j/e_j,
    keeps the sum. Written in the result q, so that it can be differentiated again, and in logarithms, because all
    weights of a saturated row are as small as 1 − q_top.
    """
    (log_q,) = ctx.saved_tensors
    log_q, log_not_q = log_pairs(log_q)
    log_share = log_not_q - torch.log(FocalScore(ctx.gamma).map_rate(log_q, log_not_q))
    pulled = grad * torch.exp(log_share)
    return pulled - pulled.sum(dim=1, keepdim=True) * torch.softmax(log_q + log_share, dim=1), None


inverse_map.register_autograd(_pull_back, setup_context=_save)
