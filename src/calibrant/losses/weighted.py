"""A weighted sum of losses."""

from torch import Tensor, nn

from calibrant._core.check import check_number, refuse, shown
from calibrant.errors import InputError
from calibrant.losses.loss import Loss

__all__ = ["Weighted"]


class Weighted(Loss):
    """Σ_i w_i · loss_i(logits, labels).

    Args:
        pairs: (w, loss) pairs with w ≥ 0; all losses share one reduction and one ignored label.

    Examples:
        >>> import torch
        >>> from calibrant.losses import BrierLoss, FocalLoss
        >>> loss = Weighted((1.0, FocalLoss(1.0)), (0.5, BrierLoss()))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1770)
    """

    def __init__(self, *pairs: tuple[float, Loss]) -> None:
        if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise refuse("pairs (w, loss)", shown(pairs), "write Weighted((1.0, FocalLoss(3.0)), (0.5, BrierLoss()))")
        if not all(isinstance(loss, Loss) for _, loss in pairs):
            raise refuse(
                "losses of calibrant.losses", ", ".join(type(loss).__name__ for _, loss in pairs), "pass those"
            )
        first = pairs[0][1]
        if any((loss.reduction, loss.ignore_index) != (first.reduction, first.ignore_index) for _, loss in pairs):
            raise InputError("terms of one reduction and one ignore_index", "several", "give all losses the same")
        super().__init__(reduction=first.reduction, weight=first.weight, ignore_index=first.ignore_index)
        self.scales = tuple(check_number(scale, name="each weight", low=0) for scale, _ in pairs)
        self.terms = nn.ModuleList(loss for _, loss in pairs)

    @property
    def pairs(self) -> tuple[tuple[float, Loss], ...]:
        """Each (w, loss)."""
        return tuple(
            (scale, loss) for scale, loss in zip(self.scales, self.terms, strict=True) if isinstance(loss, Loss)
        )

    def extra_repr(self) -> str:
        """Show the weights; the losses show themselves."""
        return f"scales={self.scales}"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        values: list[Tensor] = [loss(logits, labels) for loss in self.terms]
        total = self.scales[0] * values[0]
        for scale, value in zip(self.scales[1:], values[1:], strict=True):
            total = total + scale * value
        return total
