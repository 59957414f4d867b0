"""Margin-based label smoothing (MbLS): only differences of logits beyond a margin cost."""

from torch import Tensor

from calibrant._check import check_number
from calibrant._objective.batch import Reduction
from calibrant._objective.statistics import Margin
from calibrant.losses.loss import Loss
from calibrant.losses.penalty import RowPenalty

__all__ = ["MarginLabelSmoothingLoss"]


class MarginLabelSmoothingLoss(RowPenalty):
    """base + λ · mean_k max(0, max_j z_j − z_k − m), averaged over samples.

    Label smoothing pulls all logits together at all times; this does so only beyond the margin, so that the network
    may still tell its classes apart.

    Args:
        strength: λ ≥ 0.
        margin: m ≥ 0, of the order of 6 to 10.
        base: The loss that is penalised; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; given to the base instead if there is one, as are the next two.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Labels that count nothing.

    Examples:
        >>> import torch
        >>> MarginLabelSmoothingLoss(0.1, margin=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1769)

    References:
        Liu et al. 2022, The Devil is in the Margin: Margin-based Label Smoothing for Network Calibration, Eq. 9.
    """

    def __init__(
        self,
        strength: float = 0.1,
        margin: float = 10.0,
        *,
        base: Loss | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(strength, base, reduction, weight, ignore_index)
        self.margin = check_number(margin, name="margin", low=0)

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits passed on and mean_k max(0, max_j z_j − z_k − m) (N,)."""
        passed, lag = Margin(self.margin, power=1, attached=True).beside(logits, labels)
        return passed, lag / logits.shape[1]
