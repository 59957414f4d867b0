"""Adaptive and conditional label smoothing (ACLS)."""

from typing import Unpack

from torch import Tensor
from torch.nn import functional as F

from calibrant._core.constraints import NonNegative
from calibrant._objective.statistics import Largest, Margin
from calibrant.losses.penalty import PenaltyOptions, RowPenalty

__all__ = ["ACLSLoss"]


class ACLSLoss(RowPenalty):
    """base + λ (λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)²), the mean over the K − 1 other classes.

    This follows the authors' code: z_top is a constant in the gradient of the second term, and the first term depends on
    the absolute size of z_top, so adding a constant to all logits of a row changes the loss.

    Args:
        strength: λ ≥ 0.
        margin: m ≥ 0.
        top: λ₁ ≥ 0.
        others: λ₂ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> ACLSLoss(0.1, margin=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.2369)

    References:
        Park, Noh, Ham 2023, ACLS: Adaptive and Conditional Label Smoothing for Network Calibration, Eq. 16.
    """

    def __init__(
        self,
        strength: NonNegative = 0.1,
        margin: NonNegative = 10.0,
        top: NonNegative = 1.0,
        others: NonNegative = 0.1,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.margin = margin
        self.top = top
        self.others = others

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)² (N,)."""
        logits, excess = Margin(self.margin, power=2, attached=False).with_logits(logits, labels)
        logits, largest = Largest().with_logits(logits, labels)
        others = excess * (self.others / (logits.shape[1] - 1))
        return logits, self.top * F.relu(largest - self.margin).square() + others
