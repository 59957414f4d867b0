"""The calibrator that does nothing."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.calibrators._base import Calibrator

__all__ = ["Identity"]


class Identity(Calibrator):
    """Return the logits unchanged: the baseline, and the right choice when no gain can be shown.

    Example:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> Identity().fit(z, torch.tensor([0, 1]))(z)
        tensor([[2., 0.],
                [0., 1.]])
    """

    preserves_argmax: ClassVar[bool] = True

    def config(self) -> dict[str, Any]:
        """Return no arguments."""
        return {}

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return logits

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return ones and zeros."""
        ones = torch.ones(int(self.classes), dtype=torch.float64)
        return ones, torch.zeros_like(ones)
