"""Label smoothing in its two forms, which differ by K/(K − 1)."""

import warnings
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from calibrant._check import check_choice, check_number
from calibrant.errors import UsageWarning
from calibrant.losses._base import Reduction, RowLoss
from calibrant.losses._rows import promoted
from calibrant.losses._statistics import CrossEntropy

__all__ = ["LabelSmoothingLoss"]


class LabelSmoothingLoss(RowLoss):
    """Cross-entropy against a smoothed target; minimised at the smoothed target.

    Args:
        smoothing: α in (−1, 1). Below 0 the target is sharper than the label, as Wang et al. 2021 §5.2 try and give up: a
            ``UsageWarning`` says so.
        spread: ``"all"`` takes target (1 − α) e_y + α/K, torch's form (Wang et al. 2021 Eq. 1); ``"others"`` takes
            1 − α for the true class and α/(K − 1) for each other (Müller et al. 2019 as in Mukhoti et al. 2020).
            α spread over the others equals αK/(K − 1) spread over all.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weights of the true class, or None.
        ignore_index: Labels that count nothing.

    Example:
        >>> import torch
        >>> LabelSmoothingLoss(0.1, spread="others")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    def __init__(
        self,
        smoothing: float,
        spread: Literal["all", "others"] = "all",
        *,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.smoothing = check_number(smoothing, name="smoothing", low=-1, high=1, open_low=True, open_high=True)
        if self.smoothing < 0:
            warnings.warn(
                f"expected smoothing ≥ 0, got {self.smoothing:g}: the loss has no least value, so training may fail; "
                "choose 0 or more",
                UsageWarning,
                stacklevel=2,
            )
        self.spread = check_choice(spread, name="spread", choices=("all", "others"))

    def describe(self) -> str:
        """Return the arguments."""
        return f"{self.smoothing:g}, spread={self.spread!r}"

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for the smoothed target t."""
        return CrossEntropy(self._uniform(logits.shape[1]))(logits, labels)

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for t = (1 − u) q + u/K."""
        wide = promoted(logits)
        uniform = self._uniform(logits.shape[1])
        smoothed = targets.to(wide.dtype) * (1 - uniform) + uniform / logits.shape[1]
        return F.cross_entropy(wide, smoothed, reduction="none")

    def _uniform(self, classes: int) -> float:
        """Return the part of the target that lies evenly on all classes: α or αK/(K − 1)."""
        return self.smoothing if self.spread == "all" else self.smoothing * classes / (classes - 1)
