"""Inverse focal loss (1 + p_y)^γ · (−log p_y): more weight on what is already easy."""

import warnings

from torch import Tensor

from calibrant._check import check_number
from calibrant.errors import UsageWarning
from calibrant.losses._base import Reduction
from calibrant.losses._weighted_nll import WeightedNLL
from calibrant.scores import INVERSE_FOCAL_LIMIT, InverseFocalScore

__all__ = ["InverseFocalLoss"]


class InverseFocalLoss(WeightedNLL):
    """Inverse focal loss: its minimiser is more confident than the truth, and easier to calibrate afterwards.

    Wang et al. (2021) found that what makes raw confidences look calibrated hides how hard a sample is, and that a
    loss which does the opposite leaves more for temperature scaling to work with.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy, the paper plots 1, 2 and 3. Above 3.5911 the loss increases with p_y on an
            interval, so that training unlearns there: a ``UsageWarning`` says so.
        detach_weight: Treat (1 + p_y)^γ as a constant in the gradient; only then does an easy sample pull harder.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Labels that count nothing.

    Example:
        >>> import torch
        >>> InverseFocalLoss(gamma=1.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.9343)

    References:
        Wang, Feng, Zhang 2021, Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence, Eq. 4.
    """

    def __init__(
        self,
        gamma: float,
        detach_weight: bool = False,
        *,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(detach_weight, reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.gamma = check_number(gamma, name="gamma", low=0)
        if self.gamma > INVERSE_FOCAL_LIMIT and not self.detach_weight:
            warnings.warn(
                f"expected gamma ≤ {INVERSE_FOCAL_LIMIT:.4f}, got {self.gamma:g}: the loss increases with p_y on an "
                "interval, so training unlearns there; choose a smaller gamma or detach_weight=True",
                UsageWarning,
                stacklevel=2,
            )

    def arguments(self) -> str:
        """Return γ."""
        return f"{self.gamma:g}"

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 + p)^γ."""
        return InverseFocalScore(self.gamma).weight(log_p, log_not_p)
