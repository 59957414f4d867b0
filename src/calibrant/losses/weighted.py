"""A weighted sum of losses."""

from torch import Tensor, nn

from calibrant._check import check_number, refuse
from calibrant.errors import InputError
from calibrant.losses._base import Loss

__all__ = ["Weighted"]


class Weighted(Loss):
    """Σ_i w_i · loss_i(logits, labels).

    Args:
        terms: Pairs (w, loss), w ≥ 0; all of one reduction and one ignored label.

    Example:
        >>> import torch
        >>> from calibrant.losses import BrierLoss, FocalLoss
        >>> loss = Weighted((1.0, FocalLoss(1.0)), (0.5, BrierLoss()))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1770)
    """

    def __init__(self, *terms: tuple[float, Loss]) -> None:
        if not terms or not all(isinstance(term, tuple) and len(term) == 2 for term in terms):
            raise refuse("pairs (w, loss)", repr(terms), "write Weighted((1.0, FocalLoss(3.0)), (0.5, BrierLoss()))")
        if not all(isinstance(loss, Loss) for _, loss in terms):
            raise refuse("losses of calibrant.losses", repr([type(loss).__name__ for _, loss in terms]), "pass such")
        first = terms[0][1]
        if any((loss.reduction, loss.ignore_index) != (first.reduction, first.ignore_index) for _, loss in terms):
            raise InputError("expected terms of one reduction and one ignore_index, got several; make them alike")
        super().__init__(reduction=first.reduction, weight=first.weight, ignore_index=first.ignore_index)
        self.scales = tuple(check_number(scale, name="each weight", low=0) for scale, _ in terms)
        self.terms = nn.ModuleList(loss for _, loss in terms)

    def describe(self) -> str:
        """Return the weights."""
        return f"scales={self.scales}"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        values: list[Tensor] = [loss(logits, labels) for loss in self.terms]
        total = self.scales[0] * values[0]
        for scale, value in zip(self.scales[1:], values[1:], strict=True):
            total = total + scale * value
        return total
