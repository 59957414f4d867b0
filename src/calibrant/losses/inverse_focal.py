"""Inverse focal loss (1 + p_y)^γ · (−log p_y): more weight on what is already easy."""

from torch import Tensor

from calibrant._objective.batch import Reduction
from calibrant._warn import warn_user
from calibrant.errors import UsageWarning
from calibrant.losses.loss import ScoreLoss
from calibrant.scores import INVERSE_FOCAL_LIMIT, InverseFocalScore

__all__ = ["InverseFocalLoss"]


class InverseFocalLoss(ScoreLoss):
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

    Examples:
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
        score = InverseFocalScore(gamma)
        super().__init__(score, detach_weight, reduction=reduction, weight=weight, ignore_index=ignore_index)
        if self.gamma > INVERSE_FOCAL_LIMIT and not self.detach_weight:
            warn_user(
                f"expected gamma ≤ {INVERSE_FOCAL_LIMIT:.4f}, got {self.gamma:g}: the loss increases with p_y on an "
                "interval, so training unlearns there; choose a smaller gamma or detach_weight=True",
                UsageWarning,
            )
