"""A penalty on the difference between the mean probability and the frequency of each class in a batch."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant.losses._blocks import promoted
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions


class MDCALoss(BatchPenalty):
    """base + λ (1/K) Σ_k |mean p_k − frequency of label k|, which penalises mean probabilities that differ from class frequencies.

    The penalty is noisy if a batch has few samples per class; prefer batches with several times K samples.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        base: The loss to which the penalty is added; None is cross-entropy. The authors report focal loss with γ = 1 to 3.
        reduction: ``"mean"`` or ``"sum"``. If you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,) for the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> MDCALoss(1.0)(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(1.1452)

    References:
        Hebbalaguppe et al. 2022, A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved Neural
        Network Calibration, Eq. 3.
    """

    def __init__(self, strength: float = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        """Return (1/K) Σ_k |mean p_k − frequency of label k| ()."""
        count = kept.sum().clamp_min(1)
        totals = kept.new_zeros(logits.shape[1]).index_add(0, labels, kept)
        sums = (torch.softmax(promoted(logits), dim=1) * kept[:, None]).sum(dim=0)
        return (sums - totals).abs().mean() / count
