"""Multi-label focal loss."""

from torch import Tensor

from calibrant._core.constraints import NonNegative
from calibrant._objective.batch import Reduction
from calibrant.losses.binary import BinaryLoss, PosWeight
from calibrant.scores import FocalScore, weighted_nll

__all__ = ["BinaryFocalLoss"]


class BinaryFocalLoss(BinaryLoss):
    """(1 − p)^γ · (−log p) of the probability p of each label's outcome; per label equal to ``FocalLoss`` of two classes.

    Lin et al. (2017) trained object detectors with it, where nearly all labels are negative.

    Args:
        gamma: γ ≥ 0; 0 is binary cross-entropy.
        pos_weight: (L,) or () weight of the positive terms, or None. The loss of Lin et al. with α is 1 − α times this one
            with ``pos_weight`` = α / (1 − α).
        detach_weight: Treat (1 − p)^γ as a constant in the gradient.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> import torch
        >>> BinaryFocalLoss(2.0)(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, 1]]))
        tensor(0.3518)

    References:
        Lin et al. 2017, Focal Loss for Dense Object Detection, Eq. 4 and 5.
    """

    def __init__(
        self,
        gamma: NonNegative,
        pos_weight: PosWeight | None = None,
        *,
        detach_weight: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(pos_weight=pos_weight, reduction=reduction)
        self.gamma = gamma
        self.detach_weight = detach_weight

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ · (−log p)."""
        return weighted_nll(FocalScore(self.gamma).weight, log_p, log_not_p, detach_weight=self.detach_weight)
