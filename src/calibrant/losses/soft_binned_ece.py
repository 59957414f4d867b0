"""The calibration error of a batch in bins with soft membership as a penalty."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.losses._blocks import confidence_of
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions


class SoftBinnedECELoss(BatchPenalty):
    """base + λ (Σ_b (S_b/N) |A_b − C_b|^p)^(1/p), where each sample belongs to every bin with a membership weight.

    The weight of sample i in bin b is softmax_b(−(c_i − centre_b)²/T), where c_i is the confidence. S_b, A_b and C_b are the size,
    the accuracy and the mean confidence of the bin under these weights. Correctness is a constant in the gradient.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        bins: Number B ≥ 1 of equal-width bins.
        temperature: The temperature T > 0 of the membership weights; as T → 0, each sample belongs to only one bin.
        norm: The order p ≥ 1 of the norm.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``. If you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,) for the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> SoftBinnedECELoss(1.0, bins=1)(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
        tensor(0.7697)

    References:
        Karandikar et al. 2021, Soft Calibration Objectives for Neural Networks, §4.1.
    """

    in_float64 = True

    def __init__(
        self,
        strength: float = 1.0,
        bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2.0,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.bins = bins
        self.temperature = check_number(temperature, name="temperature", low=0, open_low=True)
        self.norm = check_number(norm, name="norm", low=1)

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        """Return the soft-binned calibration error () of the batch."""
        confidence, predicted = confidence_of(logits)
        confidence = confidence.to(torch.float64)
        centres = (torch.arange(self.bins, dtype=torch.float64, device=logits.device) + 0.5) / self.bins
        distance = (confidence[:, None] - centres).square() / self.temperature
        # the memberships of a row sum to 1, so Σ_b S_b = N as for hard bins
        membership = torch.softmax(-distance, dim=1) * kept[:, None].to(torch.float64)
        size = membership.sum(dim=0)
        gap = (membership * ((predicted == labels).to(torch.float64) - confidence)[:, None]).sum(dim=0)
        filled = size > 0
        mean = torch.where(filled, gap, 0) / torch.where(filled, size, 1)
        total = (size / kept.sum().clamp_min(1) * mean.abs() ** self.norm).sum()
        zero = total == 0  # the derivative of the root is infinite at 0
        return torch.where(zero, 0, torch.where(zero, 1, total) ** (1 / self.norm))
