"""Label smoothing in its two forms, whose smoothing parameters differ by the factor K/(K − 1)."""

from typing import Annotated, Literal, Unpack

from torch import Tensor

from calibrant._core.constraints import Number
from calibrant._core.warn import warn_user
from calibrant._objective.rows import smoothed_rows, smoothed_soft_rows
from calibrant.errors import UsageWarning
from calibrant.losses.loss import LossOptions, RowLoss

__all__ = ["LabelSmoothingLoss"]


class LabelSmoothingLoss(RowLoss):
    """Cross-entropy against a smoothed target, minimised where the prediction equals that target.

    Args:
        smoothing: α in (−1, 1). A negative α makes the target sharper than the label (tried and rejected by Wang et al.
            2021 §5.2) and issues a ``UsageWarning``.
        spread: ``"all"`` gives the target (1 − α) e_y + α/K, torch's form (Wang et al. 2021 Eq. 1); ``"others"`` gives
            1 − α for the true class and α/(K − 1) for each other (Müller et al. 2019 as in Mukhoti et al. 2020).
            ``"others"`` with α equals ``"all"`` with αK/(K − 1).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weights of the true class, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> LabelSmoothingLoss(0.1, spread="others")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    def __init__(
        self,
        smoothing: Annotated[float, Number(-1, 1, open_low=True, open_high=True)],
        spread: Literal["all", "others"] = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.smoothing = smoothing
        if self.smoothing < 0:
            warn_user(
                f"expected smoothing ≥ 0, got {self.smoothing:g}: the loss is unbounded below, so training may diverge; "
                "choose 0 or more",
                UsageWarning,
            )
        self.spread = spread

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for the smoothed target t."""
        return smoothed_rows(logits, labels, smoothing=self.smoothing, spread=self.spread)

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for t = (1 − u) q + u/K."""
        return smoothed_soft_rows(logits, targets, smoothing=self.smoothing, spread=self.spread)
