"""What several calibrators do with the logits of a batch: refuse, widen, bound, narrow, mix."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant._core.check import LABEL_EXCLUDED
from calibrant.errors import InputError
from calibrant.rows import Batch

CERTAIN = 1e20  # log-odds that are certainty in every precision, and leave room in 32 bits for temperatures, matrices and sums


def check_label_logits(batch: Batch) -> None:
    """Refuse rows in which a true class is excluded by −inf.

    Raises:
        InputError: With the label of the first such row.
    """
    excluded = torch.isinf(batch.logits.gather(1, batch.labels[:, None])[:, 0])
    if bool(excluded.any()):
        got = f"−inf for a label {int(batch.labels[excluded][0])}"
        raise InputError("a finite logit for every label", got, LABEL_EXCLUDED)


def wrong_mass(batch: Batch) -> Tensor:
    """Return the weight of the rows whose largest logit is another class's."""
    return batch.row_weights[batch.logits.argmax(dim=1) != batch.labels].sum()


def with_logits(batch: Batch, change: Callable[..., Tensor], *parameters: float) -> Batch:
    """Return the rows with ``change(logits, *parameters)`` for their logits, which are not rounded to 16 bits in between."""
    z = batch.logits
    wide = z.float() if z.dtype.itemsize < torch.float32.itemsize else z
    return replace(batch, logits=change(wide, *parameters))


def bounded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in 32 bits or more, as rows within ±``CERTAIN``, so that products with them do not overflow.

    Rows whose largest logit lies beyond are moved, which keeps their decision; classes further below it have no probability
    anyway. All others are returned as they are, since a constant of a row counts for maps of raw logits.
    """
    # The root of the sum of squares is at least the largest entry, and takes one pass. Elsewhere reading a value would synchronise
    # with the device, or could not be traced.
    if logits.dtype.itemsize < torch.float32.itemsize:
        logits = logits.float()
    readable = logits.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and float(torch.linalg.vector_norm(logits.detach())) <= CERTAIN:
        return logits
    top = logits.amax(dim=1, keepdim=True)
    # from below to 0, since at −CERTAIN the largest would be level with the others
    home = torch.where(top <= -CERTAIN, 0.0, top.clamp_max(CERTAIN))
    moved = (logits - (top - home)).clamp_min(-CERTAIN)
    return torch.where(torch.isneginf(logits), logits, moved)


def narrowed(answer: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``answer`` (N, K) in ``dtype``; where digits are lost, less each row's largest, which so stays alone at 0.

    Rounding log-probabilities of thousands of classes would make ties, and with them other decisions. What lies below all numbers
    of ``dtype`` becomes the least of them, since −inf would say that the class is excluded.
    """
    if answer.dtype == dtype:
        return answer
    centred = (answer - answer.amax(dim=1, keepdim=True)).clamp_min(torch.finfo(dtype).min)
    return torch.where(torch.isneginf(answer), answer, centred).to(dtype)


def break_ties(answer: Tensor, decided: Tensor) -> Tensor:
    """Return ``answer`` (N, K) in which class ``decided`` (N, 1) is the largest by itself.

    The margin is twice what float32, or a narrower dtype of the answer, rounds by: an argmax of the logits finds it, and so does
    one after softmax or after float64 answers were written as float32.
    """
    top = answer.gather(1, decided)
    eps = max(torch.finfo(answer.dtype).eps, torch.finfo(torch.float32).eps)
    margin = 2 * eps * torch.nan_to_num(top, neginf=0.0).abs().clamp_min(1.0)
    return torch.minimum(answer, top - margin).scatter(1, decided, top)


LOWEST = -100.0  # log-probabilities below this (4e-44) carry nothing, and products with them would lose digits


def lift_excluded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with −inf replaced by the row's least other entry: times a matrix, it must not move the others."""
    excluded = torch.isneginf(logits)
    return torch.where(excluded, logits.masked_fill(excluded, torch.inf).amin(dim=1, keepdim=True), logits)


def keep_excluded(answer: Tensor, logits: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with −inf where they have it: an excluded class stays excluded."""
    return torch.where(torch.isneginf(logits), -torch.inf, answer).to(logits.dtype)


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) of ``log_p`` (N, K), finite wherever share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(torch.log1p(-share) + log_p, (share / log_p.shape[1]).log().expand_as(log_p))
