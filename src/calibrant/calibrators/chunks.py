"""Operations on the logits of a batch that several calibrators share."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant._core.check import LABEL_EXCLUDED
from calibrant.errors import InputError
from calibrant.rows import Batch


def check_label_logits(batch: Batch) -> None:
    """Check that no true class is excluded by a logit of −inf.

    Raises:
        InputError: If one is; the error shows its label and row.
    """
    excluded = torch.isinf(batch.logits.gather(1, batch.labels[:, None])[:, 0])
    if bool(excluded.any()):
        row = int(excluded.nonzero()[0])
        got = f"−inf for a label {int(batch.labels[row])} in row {row} of its batch"
        raise InputError("a finite logit for every label", got, LABEL_EXCLUDED)


def wrong_mass(batch: Batch) -> Tensor:
    """Return the weight of the rows whose largest logit is not that of the label."""
    return batch.row_weights[batch.logits.argmax(dim=1) != batch.labels].sum()


def with_logits(batch: Batch, change: Callable[..., Tensor], *parameters: float) -> Batch:
    """Return the rows with logits ``change(logits, *parameters)``, which are not rounded to 16 bits."""
    z = batch.logits
    wide = z.float() if z.dtype.itemsize < torch.float32.itemsize else z
    return replace(batch, logits=change(wide, *parameters))


LOWEST = -100.0  # lower log-probabilities (4e-44) carry no information, and products with them would lose digits


def lift_excluded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with −inf replaced by the row's smallest finite entry, so that matrix products stay finite."""
    excluded = torch.isneginf(logits)
    return torch.where(excluded, logits.masked_fill(excluded, torch.inf).amin(dim=1, keepdim=True), logits)


def keep_excluded(answer: Tensor, logits: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with −inf for every class that ``logits`` exclude."""
    return torch.where(torch.isneginf(logits), -torch.inf, answer).to(logits.dtype)


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) (N, K) for p = exp(log_p), which is finite if share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(torch.log1p(-share) + log_p, (share / log_p.shape[1]).log().expand_as(log_p))
