"""Cross-entropy, the negative log-likelihood of the true class."""

from torch import Tensor

from calibrant._objective.rows import soft_cross_entropy
from calibrant._objective.true_class import row_nll
from calibrant.losses.loss import RowLoss

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(RowLoss):
    """−log p_y: ``torch.nn.CrossEntropyLoss`` with the interface of ``calibrant.losses``.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> CrossEntropyLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1269)
    """

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log p_y (N,)."""
        return row_nll(logits, labels)

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k q_k log p_k (N,)."""
        return soft_cross_entropy(logits, targets)
