"""The Brier score as a training objective."""

from torch import Tensor

from calibrant._objective.rows import brier_rows, brier_soft_rows
from calibrant.losses.loss import RowLoss

__all__ = ["BrierLoss"]


class BrierLoss(RowLoss):
    """Σ_k (p_k − [k = y])², in [0, 2]: summed over classes, K times ``torch.nn.MSELoss`` of the probabilities.

    A proper loss. Its gradient is bounded and vanishes for confidently misclassified samples, so it needs a larger learning
    rate than cross-entropy.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> BrierLoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1400)

    References:
        Brier 1950, Verification of Forecasts Expressed in Terms of Probability. Mukhoti et al. 2020 §4.
    """

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return Σ_k (p_k − [k = y])² (N,)."""
        return brier_rows(logits, labels)

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_k (p_k − q_k)² (N,), which differs from the expectation over labels by a constant."""
        return brier_soft_rows(logits, targets)
