"""The calibrator that does nothing."""

import torch
from torch import Tensor

from calibrant.calibrators.base.calibrator import Calibrator
from calibrant.rows import RowSource

__all__ = ["Identity"]


class Identity(Calibrator):
    """Return the logits unchanged: the baseline, and the right choice when no gain can be shown.

    Examples:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> Identity().fit(z, torch.tensor([0, 1]))(z)
        tensor([[2., 0.],
                [0., 1.]])
    """

    preserves_argmax = True

    def _fit(self, rows: RowSource) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return logits

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return ones and zeros."""
        ones = torch.ones(int(self.classes), dtype=torch.float64)
        return ones, torch.zeros_like(ones)
