"""What several fits ask of a chunk of rows."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant._core.check import LABEL_EXCLUDED
from calibrant._core.numerics import in_row_chunks
from calibrant.errors import InputError
from calibrant.rows import Batch

CERTAIN = 1e20  # log-odds that are certainty in every precision, and leave room in 32 bits for temperatures, matrices and sums


def check_label_logits(chunk: Batch) -> None:
    """Refuse rows in which a true class is excluded by −inf.

    Raises:
        InputError: With the label of the first such row.
    """
    excluded = torch.isinf(chunk.logits.gather(1, chunk.labels[:, None])[:, 0])
    if bool(excluded.any()):
        got = f"−inf for a label {int(chunk.labels[excluded][0])}"
        raise InputError("a finite logit for every label", got, LABEL_EXCLUDED)


def wrong_mass(chunk: Batch) -> Tensor:
    """Return the weight of the rows whose largest logit is another class's."""
    return chunk.row_weights[chunk.logits.argmax(dim=1) != chunk.labels].sum()


def through(chunk: Batch, calibrator: Callable[..., Tensor]) -> Batch:
    """Return the rows with the logits that ``calibrator`` answers, in 32 bits at least."""
    with torch.no_grad():
        return replace(chunk, logits=calibrator(not_narrow(chunk.logits)))


def with_logits(chunk: Batch, change: Callable[..., Tensor], *parameters: Tensor) -> Batch:
    """Return the rows with ``change(logits, *parameters)`` for their logits."""
    return replace(chunk, logits=change(chunk.logits, *parameters))


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
    """Return ``answer`` (N, K) in which class ``decided`` (N, 1) is the largest by itself, in the answer's own precision.

    The margin is twice what float32, or a narrower dtype of the answer, rounds by: an argmax of the logits finds it, and so does
    one after softmax or after float64 answers were written as float32.
    """
    top = answer.gather(1, decided)
    others = torch.minimum(answer, top - tie_margin(top))
    return torch.where(torch.arange(answer.shape[1], device=answer.device) == decided, answer, others)


def tie_margin(values: Tensor) -> Tensor:
    """Return twice what float32, or a narrower dtype of ``values``, rounds each by."""
    eps = max(torch.finfo(values.dtype).eps, torch.finfo(torch.float32).eps)
    return 2 * eps * torch.nan_to_num(values, neginf=0.0).abs().clamp_min(1.0)


def bounded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K), in 32 bits or more, as rows within ±``CERTAIN``: what is to be multiplied must not overflow.

    Rows whose largest logit lies beyond are moved, so that their decision stays; classes further below it have no probability
    anyway. All others are returned as they are, since their constants count for maps of raw logits.
    """
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        # the root of the sum of squares is no smaller than the largest, and one pass; where it overflows each row is looked at
        within = float(torch.linalg.vector_norm(logits.detach())) <= CERTAIN
        return logits if within else in_row_chunks(_bounded, logits)
    return _bounded(logits)  # a look at the values would wait for the device, or be no part of a traced graph


def _bounded(logits: Tensor) -> Tensor:
    top = logits.amax(dim=1, keepdim=True)
    # to 0 from below, since at −CERTAIN, where the others end, it would be one of them
    home = torch.where(top <= -CERTAIN, 0.0, top.clamp_max(CERTAIN))
    moved = (logits - (top - home)).clamp_min(-CERTAIN)
    return torch.where(torch.isneginf(logits), logits, moved)


def not_narrow(logits: Tensor) -> Tensor:
    """Return logits in 32 bits at least, so that what one calibrator hands to the next is not rounded to 16."""
    return logits.float() if logits.dtype.itemsize < torch.float32.itemsize else logits
