"""The terms a sample of any loss that has them, from a block of logits: what chunks of a batch can be summed of."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._check import refuse
from calibrant.losses import Weighted
from calibrant.losses._base import Batch, Loss, RowLoss, RowPenalty


@dataclass(frozen=True)
class Part:
    """A summand of a loss: what it counts, and what its mean is divided by comes from its own class weights."""

    scale: float
    loss: Loss


def parts_of(loss: Loss) -> list[Part]:
    """Return the summands of ``loss``, each a loss by rows.

    Raises:
        InputError: If ``loss`` is none of ours, or looks at the whole batch at once.
    """
    if not isinstance(loss, Loss):
        raise refuse("a loss of calibrant.losses", called(loss), "pass one such as losses.FocalLoss(3.0)")
    if isinstance(loss, Weighted):
        summands = zip(loss.scales, loss.terms, strict=True)
        return [Part(s * part.scale, part.loss) for s, term in summands for part in parts_of(_loss(term))]
    if isinstance(loss, RowPenalty):
        if len(parts_of(loss.base)) > 1:
            raise refuse("a penalty on one loss", "a penalty on a sum", "put the penalty into Weighted as a term")
        return [Part(1.0, loss)]
    if isinstance(loss, RowLoss):
        return [Part(1.0, loss)]
    raise refuse(
        "a loss that is a sum over samples",
        f"{type(loss).__name__}, which looks at the whole batch at once",
        "call it on logits, or choose a loss by rows such as FocalLoss",
    )


def called(value: object) -> str:
    """Return what ``value`` is, in words that tell a class from its object and torch's losses from ours."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value)
    return kind.__name__ if isinstance(value, Loss) else f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")


def _loss(module: object) -> Loss:
    if not isinstance(module, Loss):
        raise refuse("a loss of calibrant.losses", type(module).__name__, "pass one")
    return module


def terms_of(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the terms (n,) of a part's ``loss`` as ``reduction="none"`` has them, for ``logits`` (n, K), ``labels`` (n,)."""
    batch = Batch.of_integers(logits, labels, loss)
    if isinstance(loss, RowPenalty):
        passed, penalty = loss.penalty(batch.logits, batch.labels)
        return terms_of(loss.base, passed, labels) + loss.strength * batch.mask(penalty)
    if not isinstance(loss, RowLoss):
        raise refuse("a loss by rows", type(loss).__name__, "choose such as FocalLoss")
    return batch.mask(loss.rows(batch.logits, batch.labels)) * batch.weights


def class_weights(loss: Loss, labels: Tensor, *, classes: int, dtype: torch.dtype) -> Tensor:
    """Return the class weight (N,) of each place of ``labels`` (N,), 0 where ignored: what a mean divides by the sum of."""
    shape_only = labels.new_zeros(1, 1, dtype=dtype).expand(labels.shape[0], classes)
    return Batch.of_integers(shape_only, labels, loss).weights


@contextmanager
def one_step(loss: Loss) -> Iterator[None]:
    """Let what follows the first chunk of a batch count as no further step of training (AdaFocal counts them)."""
    training = [module for module in loss.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
