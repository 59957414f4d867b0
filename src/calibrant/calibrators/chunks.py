"""What several calibrators do with the logits of a batch: refuse, change, mix."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant._core.check import LABEL_EXCLUDED
from calibrant.errors import InputError
from calibrant.rows import Batch


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
