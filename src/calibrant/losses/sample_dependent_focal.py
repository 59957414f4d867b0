"""Sample-dependent focal loss (FLSD): a larger γ where the true class's probability is small."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.constraints import Level, NonNegative
from calibrant.losses.loss import LossOptions, WeightedNLL, steps
from calibrant.scores import power_of_rest

__all__ = ["SampleDependentFocalLoss"]


class SampleDependentFocalLoss(WeightedNLL):
    """Focal loss with a γ for each sample, chosen at each step by its p_y.

    The defaults are FLSD-53: γ = 5 where p_y < 0.2, else 3. FLSD-52 of the authors' code has three intervals:
    ``gammas=(5, 3, 2), thresholds=(0.2, 0.5)``. The authors choose γ so that the gradient equals that of cross-entropy
    at p₀: ``calibrant.theory.gamma_from_threshold`` returns 4.85 at .2 and 3.07 at .25.

    Args:
        gammas: γ ≥ 0 of each interval of p_y, one more than thresholds, from the lowest p_y up.
        thresholds: Increasing, in (0, 1); p_y equal to one belongs to the interval above it.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient. γ itself is always a constant there.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> SampleDependentFocalLoss().gamma_of(torch.tensor([0.1, 0.2, 0.9]))
        tensor([5., 3., 3.])

    References:
        Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, §5 (FLSD).
    """

    def __init__(
        self,
        gammas: Sequence[NonNegative] = (5.0, 3.0),
        thresholds: Sequence[Level] = (0.2,),
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(detach_weight, **options)
        self.gammas, self.thresholds = steps(gammas, thresholds, between="thresholds")

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return the γ of each true-class probability ``p``, elementwise and without gradient."""
        with torch.no_grad():
            gamma = torch.full_like(p, self.gammas[0])
            for threshold, above in zip(self.thresholds, self.gammas[1:], strict=True):
                gamma.masked_fill_(p >= threshold, above)
            return gamma

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ(p)."""
        return power_of_rest(log_not_p, self.gamma_of(torch.exp(log_p)))
