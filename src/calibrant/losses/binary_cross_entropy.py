"""Multi-label binary cross-entropy, with missing labels."""

from torch import Tensor

from calibrant.losses.binary import BinaryLoss

__all__ = ["BinaryCrossEntropyLoss"]


class BinaryCrossEntropyLoss(BinaryLoss):
    """−log of the probability of each label's outcome: ``torch.nn.BCEWithLogitsLoss`` with support for missing labels (-1).

    Args:
        pos_weight: (L,) or () weight of the positive terms, or None.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> import torch
        >>> BinaryCrossEntropyLoss()(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, -1]]))
        tensor(0.1269)
    """

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −log p."""
        return -log_p
