"""Focal loss whose γ follows a schedule over the epochs."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.constraints import Count, Epoch, NonNegative
from calibrant.losses.loss import LossOptions, WeightedNLL, steps
from calibrant.scores import power_of_rest

__all__ = ["ScheduledFocalLoss"]


class ScheduledFocalLoss(WeightedNLL):
    """Focal loss with γ = ``gammas[i]`` from the i-th milestone on: call ``set_epoch`` at the start of each epoch.

    FLSc-531 of the code of Mukhoti et al. (2020) is ``ScheduledFocalLoss((5, 3, 1), (100, 250))``. The epoch is in
    ``state_dict``, so training resumes with the γ of that epoch.

    Args:
        gammas: γ ≥ 0 of each stage, one more than milestones.
        milestones: Epochs (counted from 0) at which the next stage begins, increasing.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> loss = ScheduledFocalLoss(gammas=(5.0, 3.0, 1.0), milestones=(100, 250))
        >>> loss.set_epoch(100)
        >>> loss.gamma
        tensor(3., dtype=torch.float64)
    """

    gamma: Tensor
    epoch: Tensor

    def __init__(
        self,
        gammas: Sequence[NonNegative],
        milestones: Sequence[Count],
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(detach_weight, **options)
        self.gammas, self.milestones = steps(gammas, milestones, between="milestones")
        self.register_buffer("gamma", torch.tensor(self.gammas[0], dtype=torch.float64))
        self.register_buffer("epoch", torch.tensor(0))

    def set_epoch(self, epoch: Epoch) -> None:
        """Set γ to that of ``epoch`` (≥ 0)."""
        self.epoch.fill_(epoch)
        self.gamma.fill_(self.gammas[sum(milestone <= epoch for milestone in self.milestones)])

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ with the γ of the epoch."""
        return power_of_rest(log_not_p, self.gamma.to(log_p.dtype))
