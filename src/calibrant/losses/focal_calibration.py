"""Focal calibration loss (FCL): focal loss plus λ times the Brier score."""

from typing import Unpack

from torch import Tensor

from calibrant._core.constraints import NonNegative
from calibrant._objective.statistics import Distance
from calibrant.losses.focal import FocalLoss
from calibrant.losses.loss import LossOptions, RowLoss

__all__ = ["FocalCalibrationLoss"]


class FocalCalibrationLoss(RowLoss):
    """(1 − p_y)^γ · (−log p_y) + λ Σ_k (p_k − [k = y])²: the proper Brier score moves the minimiser towards the true probabilities.

    Args:
        gamma: γ ≥ 0.
        strength: λ ≥ 0.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> FocalCalibrationLoss(3.0)(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1496)

    References:
        Liang et al. 2024, Calibrating Deep Neural Network using Euclidean Distance, Eq. 5.
    """

    def __init__(
        self,
        gamma: float = 3.0,
        strength: NonNegative = 1.0,
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.focal = FocalLoss(gamma, detach_weight)
        self.gamma, self.detach_weight = self.focal.gamma, self.focal.detach_weight
        self.strength = strength

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (1 − p_y)^γ · (−log p_y) + λ Σ_k (p_k − [k = y])² (N,)."""
        logits, brier = Distance().with_logits(logits, labels)
        return self.focal.rows(logits, labels) + self.strength * brier
