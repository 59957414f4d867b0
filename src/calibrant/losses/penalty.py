"""The bases of losses that add a penalty to another loss.

A penalty of your own is a subclass of ``RowPenalty``, or of ``BatchPenalty`` if it looks at the whole batch at once:

    class LogitVariance(RowPenalty):
        def penalty(self, logits, labels):
            return logits, logits.var(dim=1)
"""

from abc import abstractmethod

import torch
from torch import Tensor

from calibrant._check import check_number, refuse
from calibrant._objective.batch import Batch, Reduction, reduce_rows
from calibrant.errors import InputError
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.loss import Loss, RowLoss

__all__ = ["BatchPenalty", "Penalty", "RowPenalty"]


class Penalty(Loss):
    """A base loss plus ``strength`` times a penalty; the base carries the class weights.

    Extend ``RowPenalty`` or ``BatchPenalty``, which say what the penalty is a mean of.

    Args:
        strength: λ ≥ ``lowest``.
        base: The loss that is penalised; None is cross-entropy. It has the reduction, class weights and ignored
            label, so with a base these are not given again.
        reduction: Of the cross-entropy, if there is no base.
        weight: Of the cross-entropy.
        ignore_index: Of the cross-entropy.
    """

    lowest = 0.0  # of strength

    def __init__(
        self,
        strength: float,
        base: Loss | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.strength = check_number(strength, name="strength", low=self.lowest)
        if base is None:
            base = CrossEntropyLoss(reduction=reduction, weight=weight, ignore_index=ignore_index)
        elif not isinstance(base, Loss):
            raise refuse("base as a loss of calibrant.losses", type(base).__name__, "pass one, or None")
        elif not _agree(base, reduction, weight, ignore_index):
            raise InputError(
                "expected reduction, weight and ignore_index on the base, got others next to it; give them to the base"
            )
        self.base = base
        self.reduction = base.reduction
        self.weight = base.weight
        self.ignore_index = base.ignore_index

    def of_base(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the base's loss of the flattened ``logits`` (N, K), in the shape its reduction gives."""
        value: Tensor = self.base(logits, batch.given)
        return value.reshape(batch.shape) if self.reduction == "none" else value


class RowPenalty(Penalty):
    """A base loss plus a penalty that is a mean of one term a sample; subclasses give the terms.

    Args:
        strength: λ ≥ 0.
        base: The loss that is penalised; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; given to the base instead if there is one, as are the next two.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Labels that count nothing.

    Examples:
        >>> class LogitVariance(RowPenalty):
        ...     def penalty(self, logits, labels):
        ...         return logits, logits.var(dim=1)
        >>> import torch
        >>> LogitVariance(0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) for the base, and the penalty terms (N,).

        Most return the logits they were given; a penalty with its gradient by hand returns a view through which the
        base's gradient reaches its own, so that both share one matrix.
        """

    def terms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what ``reduction="none"`` gives, for ``logits`` (N, K) and integer ``labels`` (N,), if the base is by rows."""
        batch = self.batch(logits, labels)
        passed, terms = self.penalty(batch.logits, batch.labels)
        base = self.base
        if not isinstance(base, RowLoss | RowPenalty):
            raise refuse("a base with a term for each sample", type(base).__name__, "choose one such as FocalLoss")
        return base.terms(passed, labels) + self.strength * batch.mask(terms)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``. Class weights multiply the base's terms, a mean divides by their sum."""
        batch = self.batch(logits, labels)
        passed, terms = self.penalty(batch.logits, batch.labels)
        value = self.of_base(passed, batch)
        penalty = reduce_rows(batch.mask(terms), batch.weights, self.reduction, batch.shape)
        return value + self.strength * penalty


class BatchPenalty(Penalty):
    """A base loss plus a penalty on the whole batch, which has no terms a sample; subclasses give it.

    With ``reduction="sum"`` the penalty is multiplied by the number of samples, as the papers' code does.

    Args:
        strength: λ ≥ 0.
        base: The loss that is penalised; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; given to the base instead if there is one, as are the next two.
        weight: (K,) class weights of the base, or None.
        ignore_index: Labels that count nothing.

    Examples:
        >>> class MeanConfidence(BatchPenalty):
        ...     def penalty(self, logits, labels, kept):
        ...         top = logits.softmax(dim=1).amax(dim=1)
        ...         return logits, (top * kept).sum() / kept.sum()
        >>> import torch
        >>> MeanConfidence(1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(1.0077)
    """

    def __init__(
        self,
        strength: float,
        base: Loss | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(strength, base, reduction, weight, ignore_index)
        if self.reduction == "none":
            raise InputError(
                f"expected reduction='mean' or 'sum' for {type(self).__name__}, got 'none'; "
                "a penalty on the whole batch has no terms a sample"
            )

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) for the base, and the penalty (); rows where ``kept`` (N,) is 0 do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        batch = self.batch(logits, labels)
        kept = batch.kept.to(batch.weights.dtype)
        passed, penalty = self.penalty(batch.logits, batch.labels, kept)
        scale = self.strength * (kept.sum() if self.reduction == "sum" else 1.0)
        return self.of_base(passed, batch) + scale * penalty.to(batch.weights.dtype)


def _agree(base: Loss, reduction: str, weight: Tensor | None, ignore_index: int) -> bool:
    """Return whether each argument is its default or what ``base`` has, as in a configuration that was read from a loss."""
    own = weight is None or (
        base.weight is not None and (weight is base.weight or torch.equal(weight.to(base.weight), base.weight))
    )
    return own and reduction in ("mean", base.reduction) and ignore_index in (-100, base.ignore_index)
