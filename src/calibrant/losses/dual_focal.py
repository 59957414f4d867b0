"""Dual focal loss, which also depends on the next lower probability."""

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number
from calibrant._core.numerics import row_chunks
from calibrant.losses._blocks import in_blocks, row_nll
from calibrant.losses.loss import LossOptions, RowLoss, true_class_log_probs
from calibrant.scores import power_of_rest, weighted_nll


class DualFocalLoss(RowLoss):
    """(1 − p_y + p_j)^γ · (−log p_y), where p_j is the largest probability strictly below p_y, or 0 if there is none.

    Focal loss gives a small weight to every sample with p_y near 1. Dual focal loss does so only if p_y is also much larger
    than the next lower probability, which reduces the under-confidence that focal loss causes.

    Args:
        gamma: γ ≥ 0; the authors use 5 on CIFAR and 2.3 on Tiny-ImageNet.
        detach_weight: Treat the weight as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> DualFocalLoss(5.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.1800)

    References:
        Tao, Dong, Xu 2023, Dual Focal Loss for Calibration, Eq. 5.
    """

    def __init__(self, gamma: float = 5.0, detach_weight: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = check_number(gamma, name="gamma", low=0)
        self.detach_weight = detach_weight

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (1 − p_y + p_j)^γ · (−log p_y) (N,)."""
        below = class_below(logits.detach(), labels)
        exists = below != labels
        nll_below = row_nll(logits, below)

        def weight_of(_: Tensor, log_not_p: Tensor) -> Tensor:
            # log(1 − p_y + p_j) = log(1 − p_y) − log σ(log(1 − p_y) − log p_j). torch.logaddexp is not used, because its second
            # derivative is not finite if the two terms differ a lot.
            log_ratio = log_not_p + torch.where(exists, nll_below, 0.0)
            log_sum = log_not_p - F.logsigmoid(log_ratio)
            return power_of_rest(torch.where(exists, log_sum, log_not_p), self.gamma)

        return weighted_nll(weight_of, *true_class_log_probs(logits, labels), detach_weight=self.detach_weight)


def class_below(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class (N,) with the largest logit strictly below that of the label, or the label if there is none."""
    if in_blocks(logits):
        return torch.cat([_class_below(logits[i], labels[i]) for i in row_chunks(*logits.shape, device=logits.device)])
    return _class_below(logits, labels)


def _class_below(logits: Tensor, labels: Tensor) -> Tensor:
    lower = logits.masked_fill(logits >= logits.gather(1, labels[:, None]), -math.inf)
    index = lower.argmax(dim=1)
    return torch.where(lower.gather(1, index[:, None])[:, 0] > -math.inf, index, labels)
