"""The focal family: −log p_y times a weight that depends on p_y, with the weight's gradient or without it."""

from abc import abstractmethod

import torch
from torch import Tensor

from calibrant.losses._base import Reduction, RowLoss, reduce_rows
from calibrant.losses._true_class import log_probs_from_nll, true_class_log_probs


class WeightedNLL(RowLoss):
    """w(p_y) · (−log p_y); subclasses give the weight.

    Args:
        detach_weight: Treat the weight as a constant in the gradient: the same value, another minimiser.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Labels that count nothing.
    """

    def __init__(
        self,
        detach_weight: bool,
        *,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.detach_weight = bool(detach_weight)

    @abstractmethod
    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p), elementwise, from log p and log(1 − p)."""

    @abstractmethod
    def arguments(self) -> str:
        """Return the loss's own arguments as they would be typed, without ``detach_weight``."""

    def describe(self) -> str:
        """Return the arguments."""
        own = self.arguments()
        return ", ".join(part for part in (own, "detach_weight=True" if self.detach_weight else "") if part)

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return w(p_y) · (−log p_y) (N,)."""
        return self.of(*true_class_log_probs(logits, labels))

    def from_nll(self, nll: Tensor, log_not_p: Tensor | None = None) -> Tensor:
        """Return the reduced loss from per-row cross-entropies, as a fused linear cross-entropy gives them.

        Class weights and ignored labels are left to whoever made the rows: pass those that count.

        Args:
            nll: (N,) −log p_y ≥ 0, with its gradient.
            log_not_p: (N,) log(1 − p_y) if it is known better than from ``nll``.
        """
        log_p, rest = log_probs_from_nll(nll)
        terms = self.of(log_p, rest if log_not_p is None else log_not_p)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, terms.shape)

    def of(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p) · (−log p), elementwise."""
        weight = self.sample_weight(log_p, log_not_p)
        return (weight.detach() if self.detach_weight else weight) * -log_p
