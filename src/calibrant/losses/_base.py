"""What every loss shares: shapes, ignored places, class weights and reduction, as ``torch.nn.CrossEntropyLoss`` has them.

A loss's forward checks shape and dtype only, never values, so that it compiles without graph breaks.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant._check import check_choice, check_number, refuse
from calibrant.errors import InputError

Reduction = Literal["mean", "sum", "none"]


class Loss(nn.Module, ABC):
    """An objective called on (logits, labels).

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weight of each class, or None.
        ignore_index: Labels equal to it count nothing.
    """

    weight: Tensor | None

    def __init__(
        self, *, reduction: Reduction = "mean", weight: Tensor | None = None, ignore_index: int = -100
    ) -> None:
        super().__init__()
        check_choice(reduction, name="reduction", choices=("mean", "sum", "none"))
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        fits = isinstance(weight, Tensor) and weight.dim() == 1 and weight.is_floating_point()
        if weight is not None and not fits:
            raise refuse(
                "weight as a tensor of shape (K,) and a floating dtype",
                f"{weight.dtype} {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__,
                "pass one weight a class",
            )
        self.register_buffer("weight", weight)

    def extra_repr(self) -> str:
        """Show the configuration, leaving defaults out."""
        parts = [self.describe()]
        if self.reduction != "mean":
            parts.append(f"reduction={self.reduction!r}")
        if self.weight is not None:
            parts.append(f"weight=({self.weight.shape[0]} classes)")
        if self.ignore_index != -100:
            parts.append(f"ignore_index={self.ignore_index}")
        return ", ".join(part for part in parts if part)

    def describe(self) -> str:
        """Return the loss's own arguments as they would be typed."""
        return ""

    @abstractmethod
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: (N, K), (N, K, d1, …) or (K,), floating.
            labels: Class indices (N,), (N, d1, …) or (); some losses also take target probabilities of the shape
                of ``logits``.

        Returns:
            A scalar, or with ``reduction="none"`` a tensor of the labels' shape (0 at ignored places).
        """


class RowLoss(Loss):
    """A loss that is a mean of one term a sample; subclasses give the terms."""

    @abstractmethod
    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the terms (N,) of ``logits`` (N, K) and ``labels`` (N,), without class weights."""

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the terms (N,) for target distributions (N, K); losses that have no such form refuse."""
        raise no_soft_form(self)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        if isinstance(labels, Tensor) and labels.is_floating_point():
            return self._soft(logits, labels)
        batch = Batch.of(logits, labels, self)
        terms = batch.mask(self.rows(batch.logits, batch.labels)) * batch.weights
        return reduce_rows(terms, batch.weights, self.reduction, batch.shape)

    def _soft(self, logits: Tensor, targets: Tensor) -> Tensor:
        matrix, flat, shape = flatten(logits, targets)
        if self.weight is not None:
            raise InputError("expected class weights with integer labels only, got target probabilities; drop one")
        terms = self.soft_rows(matrix, flat)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, shape)


class Penalty(Loss):
    """A base loss plus ``strength`` times a penalty; the base carries the class weights.

    Args:
        strength: λ ≥ ``lowest``.
        base: The loss that is penalised; None is cross-entropy. It has the reduction, class weights and ignored
            label, so with a base these are not given again.
        reduction: Of the cross-entropy, if there is no base.
        weight: Of the cross-entropy.
        ignore_index: Of the cross-entropy.
    """

    lowest: ClassVar[float] = 0.0  # of strength

    def __init__(
        self, strength: float, base: Loss | None, reduction: Reduction, weight: Tensor | None, ignore_index: int
    ) -> None:
        super().__init__(reduction=reduction, weight=weight, ignore_index=ignore_index)
        self.strength = check_number(strength, name="strength", low=self.lowest)
        if base is None:
            from calibrant.losses.cross_entropy import CrossEntropyLoss

            base = CrossEntropyLoss(reduction=reduction, weight=weight, ignore_index=ignore_index)
        elif not isinstance(base, Loss):
            raise refuse("base as a loss of calibrant.losses", type(base).__name__, "pass one, or None")
        elif (reduction, weight, ignore_index) != ("mean", None, -100):
            raise InputError(
                "expected reduction, weight and ignore_index on the base, got them beside it; give them to the base"
            )
        self.base = base
        self.reduction = base.reduction
        self.weight = base.weight
        self.ignore_index = base.ignore_index

    def of_base(self, logits: Tensor, batch: "Batch") -> Tensor:
        """Return the base's loss of the flattened ``logits`` (N, K), in the shape its reduction gives."""
        value: Tensor = self.base(logits, batch.given)
        return value.reshape(batch.shape) if self.reduction == "none" else value


class RowPenalty(Penalty):
    """A base loss plus a penalty that is a mean of one term a sample; subclasses give the terms."""

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) as the base shall see them and the penalty terms (N,): see ``RowStatistic.beside``."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``. Class weights multiply the base's terms, a mean divides by their sum."""
        batch = Batch.of_integers(logits, labels, self)
        passed, terms = self.penalty(batch.logits, batch.labels)
        value = self.of_base(passed, batch)
        penalty = reduce_rows(batch.mask(terms), batch.weights, self.reduction, batch.shape)
        return value + self.strength * penalty


class BatchPenalty(Penalty):
    """A base loss plus a penalty on the whole batch, which has no terms a sample; subclasses give it.

    With ``reduction="sum"`` the penalty is multiplied by the number of samples, as the papers' code does.
    """

    def __init__(
        self, strength: float, base: Loss | None, reduction: Reduction, weight: Tensor | None, ignore_index: int
    ) -> None:
        super().__init__(strength, base, reduction, weight, ignore_index)
        if self.reduction == "none":
            raise InputError(
                f"expected reduction='mean' or 'sum' for {type(self).__name__}, got 'none'; "
                "a penalty on the whole batch has no terms a sample"
            )

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) as the base shall see them and the penalty (); rows where ``kept`` (N,) is 0 do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        batch = Batch.of_integers(logits, labels, self)
        kept = batch.kept.to(batch.weights.dtype)
        passed, penalty = self.penalty(batch.logits, batch.labels, kept)
        scale = self.strength * (kept.sum() if self.reduction == "sum" else 1.0)
        return self.of_base(passed, batch) + scale * penalty.to(batch.weights.dtype)


@dataclass(frozen=True)
class Batch:
    """Logits and integer labels in the one form the losses compute in.

    Args:
        logits: (N, K).
        given: (N,) int64 labels.
        labels: (N,) int64, 0 where ignored.
        kept: (N,) bool, whether a place counts.
        weights: (N,) class weight of each place, 0 where ignored.
        shape: The labels' shape.
    """

    logits: Tensor
    given: Tensor
    labels: Tensor
    kept: Tensor
    weights: Tensor
    shape: torch.Size

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, loss: Loss) -> "Batch":
        """Bring ``logits`` and ``labels`` into form for ``loss``."""
        matrix, flat, shape = flatten(logits, labels)
        kept = flat != loss.ignore_index
        safe = torch.where(kept, flat, 0)
        weights = kept.to(torch.promote_types(matrix.dtype, torch.float32))
        if loss.weight is not None:
            if loss.weight.shape[0] != matrix.shape[1]:
                raise InputError(
                    f"expected weight of shape ({matrix.shape[1]},), got ({loss.weight.shape[0]},); pass one a class"
                )
            weights = weights * loss.weight.to(weights.dtype)[safe]
        return cls(matrix, flat, safe, kept, weights, shape)

    @classmethod
    def of_integers(cls, logits: Tensor, labels: Tensor, loss: Loss) -> "Batch":
        """Do the same for a loss that has no form for target probabilities."""
        if isinstance(labels, Tensor) and labels.is_floating_point():
            raise no_soft_form(loss)
        return cls.of(logits, labels, loss)

    def mask(self, terms: Tensor) -> Tensor:
        """Return ``terms`` (N,) with 0 at ignored places."""
        return torch.where(self.kept, terms, 0)


def no_soft_form(loss: Loss) -> InputError:
    """Return the error for target probabilities given to a loss that has no form for them."""
    return InputError(
        f"expected integer labels for {type(loss).__name__}, got target probabilities; pass class indices, "
        "or use a loss with a soft form (CrossEntropyLoss, LabelSmoothingLoss, BrierLoss, FocalLoss)"
    )


def flatten(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return logits as (N, K), labels as (N,) or targets as (N, K), and the shape per-sample results take."""
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        kinds = f"{type(logits).__name__} and {type(labels).__name__}"
        raise refuse("logits and labels as tensors", kinds, "convert with torch.as_tensor")
    if not logits.is_floating_point():
        raise refuse("logits of a floating dtype", str(logits.dtype), "convert with logits.float()")
    if logits.dim() == 0:
        raise refuse("logits of shape (N, K)", "a scalar", "pass one row a sample")
    soft = labels.is_floating_point()
    if labels.dtype == torch.bool or (not soft and labels.is_complex()):
        raise refuse("integer labels or target probabilities", f"dtype {labels.dtype}", "convert with labels.long()")
    class_dim = 0 if logits.dim() == 1 else 1
    shape = logits.shape[:class_dim] + logits.shape[class_dim + 1 :]
    if labels.shape != (logits.shape if soft else shape):
        raise refuse(
            f"labels of shape {tuple(shape)}",
            f"shape {tuple(labels.shape)}",
            "pass one class index a sample, without a class axis",
        )
    if logits.shape[class_dim] < 2:
        raise refuse("K ≥ 2 classes", f"K = {logits.shape[class_dim]}", "give a sigmoid output a second logit of 0")
    if logits.dim() == 2:
        return logits, labels if soft else labels.long(), shape
    matrix = logits.movedim(class_dim, -1).reshape(-1, logits.shape[class_dim])
    if soft:
        return matrix, labels.movedim(class_dim, -1).reshape(matrix.shape), shape
    return matrix, labels.reshape(-1).long(), shape


def reduce_rows(terms: Tensor, weights: Tensor, reduction: Reduction, shape: torch.Size) -> Tensor:
    """Return the terms, their sum, or their sum over the sum of the weights (NaN if that is 0, as in torch)."""
    if reduction == "none":
        return terms.reshape(shape)
    if reduction == "sum":
        return terms.sum()
    return terms.sum() / weights.sum()
