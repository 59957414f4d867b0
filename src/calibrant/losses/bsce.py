"""Cross-entropy weighted by the distance between the probabilities and the label."""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.losses._blocks import by_rows, positive_power, row_nll, softmax
from calibrant.losses.loss import LossOptions, RowLoss


class BSCELoss(RowLoss):
    """‖p − e_y‖_β^γ · (−log p_y), where larger errors have a larger weight, which is a constant in the gradient.

    Args:
        gamma: γ ≥ 0. With γ = 2 and ``norm=2``, the weight is the Brier score, which is the authors' choice and was not tuned.
        norm: The order β ≥ 1 of the norm.
        detach_weight: True is BSCE-GRA; False also differentiates the weight (BSCE).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> BSCELoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.0499)

    References:
        Lin et al. 2025, Uncertainty Weighted Gradients for Model Calibration, Eq. 11.
    """

    def __init__(
        self,
        gamma: float = 2.0,
        norm: float = 2.0,
        detach_weight: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma = check_number(gamma, name="gamma", low=0)
        self.norm = check_number(norm, name="norm", low=1)
        self.detach_weight = detach_weight

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ‖p − e_y‖_β^γ · (−log p_y) (N,)."""
        # the distance is ‖p − e_y‖_β^β, so its power γ/β is the norm to the power γ
        seen = logits.detach() if self.detach_weight else logits
        distance = by_rows(partial(_distance, norm=self.norm), seen, labels)
        return positive_power(distance, self.gamma / self.norm) * row_nll(logits, labels)


def _distance(logits: Tensor, labels: Tensor, *, norm: float) -> Tensor:
    p = softmax(logits)
    error = p.scatter_add(1, labels[:, None], -torch.ones_like(p[:, :1])).abs()
    return (error.square() if norm == 2 else positive_power(error, norm)).sum(dim=1)
