"""The per-sample terms of a loss from a block of logits, so that a batch can be summed over chunks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant.losses import Loss, RowLoss, RowPenalty, Weighted


@dataclass(frozen=True)
class Part:
    """A summand of a loss with its factor; its mean is divided by the sum of its own class weights."""

    scale: float
    loss: Loss


def parts_of(loss: Loss) -> list[Part]:
    """Return the summands of ``loss``, each a sum over samples.

    Raises:
        InputError: If ``loss`` is not a ``Loss``, or depends on the whole batch at once.
    """
    if not isinstance(loss, Loss):
        raise refuse("a loss of calibrant.losses", called(loss), "pass one such as losses.FocalLoss(3.0)")
    if isinstance(loss, Weighted):
        return [Part(scale * part.scale, part.loss) for scale, term in loss.pairs for part in parts_of(term)]
    if isinstance(loss, RowPenalty):
        if len(parts_of(loss.base)) > 1:
            raise refuse("a penalty on one loss", "a penalty on a sum", "put the penalty into Weighted as a term")
        return [Part(1.0, loss)]
    if isinstance(loss, RowLoss):
        return [Part(1.0, loss)]
    raise refuse(
        "a loss that is a sum over samples",
        f"{type(loss).__name__}, which depends on the whole batch at once",
        "call it on logits, or choose a loss such as FocalLoss",
    )


def called(value: object) -> str:
    """Return the type of ``value`` for a message, distinguishing classes from objects and torch's losses from ours."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value)
    return kind.__name__ if isinstance(value, Loss) else f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")


def terms_of(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the terms (n,) of a part's ``loss``, as with ``reduction="none"``, for ``logits`` (n, K) and ``labels`` (n,)."""
    if not isinstance(loss, RowLoss | RowPenalty):
        raise refuse("a loss that is a sum over samples", type(loss).__name__, "choose one such as FocalLoss")
    return loss.terms(logits, labels)


def class_weights(loss: Loss, labels: Tensor, *, classes: int, dtype: torch.dtype) -> Tensor:
    """Return the class weight (N,) of each of ``labels`` (N,), 0 where ignored; a mean divides by their sum."""
    return loss.places(labels, classes=classes, dtype=dtype).weights


@contextmanager
def one_step(loss: Loss) -> Iterator[None]:
    """Put ``loss`` in evaluation mode in a ``with`` block, so that AdaFocal counts training steps per batch, not per chunk."""
    training = [module for module in loss.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
