"""The proper part of focal loss as a training loss, which is focal loss composed with its inverse calibration map."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number
from calibrant._core.log_pairs import log_pairs
from calibrant.errors import InputError
from calibrant.losses._blocks import exact_log_probs
from calibrant.losses.loss import LossOptions, RowLoss
from calibrant.scores import FocalScore
from calibrant.theory import inverse_calibration_map


class ProperFocalLoss(RowLoss):
    """L*(p, y) = φ(q_y), where φ is the focal score and q minimises the expected focal loss under class probabilities p.

    Focal loss equals this loss applied to the probabilities that the focal calibration map returns. Training with this loss
    therefore has the same minimiser as training with focal loss and applying the map afterwards, namely the true
    probabilities. Unlike focal loss, this loss is proper. It is computed in float64, with one root search per row for q.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> ProperFocalLoss(3.0)(torch.tensor([[0.95, 0.05]]).log(), torch.tensor([0]))
        tensor(0.0107)

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4.
    """

    in_float64 = True

    def __init__(self, gamma: float, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = check_number(gamma, name="gamma", low=0)

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return φ(q_y) (N,)."""
        if torch._C._functorch.is_gradtrackingtensor(logits):
            raise InputError("torch.func cannot differentiate ProperFocalLoss; use backward() or torch.autograd.grad")
        log_p = F.log_softmax(logits.double(), dim=1)
        log_q = log_p if self.gamma == 0 else inverse_map(log_p, self.gamma)
        terms = FocalScore(self.gamma).value(*exact_log_probs(log_q, labels))
        return terms.to(torch.promote_types(logits.dtype, torch.float32))


@torch.library.custom_op("calibrant::inverse_focal_map", mutates_args=())
def inverse_map(log_p: Tensor, gamma: float) -> Tensor:
    """Return log q (N, K) with p_j ∝ h(q_j) for ``log_p`` (N, K), differentiable any number of times.

    This is a custom operator, because ``torch.compile`` cannot trace the iterations inside.
    """
    # a row with NaN (from an overflow in training) gives NaN, as with any other loss, instead of raising an error
    has_nan = torch.isnan(log_p).any(dim=1, keepdim=True)
    log_q = inverse_calibration_map(FocalScore(gamma), torch.where(has_nan, -math.log(log_p.shape[1]), log_p))
    return torch.where(has_nan, torch.nan, log_q)


@inverse_map.register_fake
def _(log_p: Tensor, gamma: float) -> Tensor:
    return torch.empty_like(log_p)


def _keep_output(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.gamma = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    """Return the gradient with respect to log p, given the gradient for log q, by implicit differentiation.

    The constraints are log h(q_j) = t + log p_j and Σ_j q_j = 1. With e_j = d log h / d log q at q_j, they give
    d log q_j = (d log p_j − m)/e_j, where m is the mean of d log p with weights q_j/e_j, so that Σ_j q_j stays 1.
    The gradient is computed from the output q, so that autograd can differentiate it again, and in logarithms, because every
    weight is as small as 1 − q_top in a saturated row.
    """
    (log_q,) = ctx.saved_tensors
    log_q, log_not_q = log_pairs(log_q)
    log_inverse_e = log_not_q - torch.log(FocalScore(ctx.gamma).map_rate(log_q, log_not_q))  # −log e_j
    scaled = grad * torch.exp(log_inverse_e)
    return scaled - scaled.sum(dim=1, keepdim=True) * torch.softmax(log_q + log_inverse_e, dim=1), None


inverse_map.register_autograd(_backward, setup_context=_keep_output)
