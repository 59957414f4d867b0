"""What every loss shares: shapes, ignored places, class weights and reduction, as ``torch.nn.CrossEntropyLoss`` has them.

A loss's forward checks shape and dtype only, never values, so that it compiles without graph breaks.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant._check import check_choice, refuse
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
        if weight is not None and (weight.dim() != 1 or not weight.is_floating_point()):
            raise refuse(
                "weight of shape (K,) and a floating dtype",
                f"{weight.dtype} {tuple(weight.shape)}",
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


class RowLoss(Loss):
    """A loss that is a mean of one term a sample; subclasses give the terms."""

    @abstractmethod
    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the terms (N,) of ``logits`` (N, K) and ``labels`` (N,), without class weights."""

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the terms (N,) for target distributions (N, K); losses that have no such form refuse."""
        raise InputError(
            f"expected integer labels for {type(self).__name__}, got target probabilities; "
            "pass class indices, or use a loss with a soft form (CrossEntropyLoss, BrierLoss, FocalLoss)"
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: (N, K), (N, K, d1, …) or (K,), floating.
            labels: Class indices (N,), (N, d1, …) or (); or target probabilities of the shape of ``logits``.

        Returns:
            A scalar, or with ``reduction="none"`` a tensor of the labels' shape (0 at ignored places).
        """
        matrix, flat, shape = flatten(logits, labels)
        if flat.is_floating_point():
            terms = self.soft_rows(matrix, flat)
            if self.weight is not None:
                raise InputError("expected class weights with integer labels only, got target probabilities; drop one")
            return reduce_rows(terms, torch.ones_like(terms), self.reduction, shape)
        kept = flat != self.ignore_index
        safe = torch.where(kept, flat, 0)
        counts = kept.to(torch.promote_types(matrix.dtype, torch.float32))
        if self.weight is not None:
            if self.weight.shape[0] != matrix.shape[1]:
                raise InputError(
                    f"expected weight of shape ({matrix.shape[1]},), got ({self.weight.shape[0]},); pass one a class"
                )
            counts = counts * self.weight.to(counts.dtype)[safe]
        terms = torch.where(kept, self.rows(matrix, safe), 0)
        return reduce_rows(terms, counts, self.reduction, shape)


def flatten(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return logits as (N, K), labels as (N,) or targets as (N, K), and the shape per-sample results take."""
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


def reduce_rows(terms: Tensor, counts: Tensor, reduction: Reduction, shape: torch.Size) -> Tensor:
    """Return the weighted terms, their sum, or their sum over the sum of the weights (NaN if that is 0, as in torch)."""
    weighted = terms * counts
    if reduction == "none":
        return weighted.reshape(shape)
    if reduction == "sum":
        return weighted.sum()
    return weighted.sum() / counts.sum()
