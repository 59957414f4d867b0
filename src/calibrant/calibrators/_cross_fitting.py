"""Log-losses of a calibrator on rows it was not fitted on."""

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._folds import inside, outside
from calibrant.calibrators.identity import Identity
from calibrant.errors import CalibrantError, CalibrantWarning, InputError
from calibrant.rows import Chunk, RowSource


def cross_fitted(member: Calibrator, rows: RowSource, folds: int) -> Tensor | None:
    """Return Σ w loss, Σ w gain and Σ w gain² (3,) over rows scored by ``member`` fitted without their fold.

    The gain is how much lower the log-loss of a row is than that of doing nothing.

    Args:
        member: Is fitted, and left so.
        rows: The data.
        folds: How many parts.

    Returns:
        The sums; None if a fold could not be fitted.
    """
    if isinstance(member, Identity):  # has a score also where no row can be left out: of one row, or one group
        return rows.total(gain_sums, None)  # type: ignore[no-any-return]
    total = torch.zeros(3, dtype=torch.float64)
    for fold in range(folds):
        try:
            held = rows.where(inside, fold, folds)
        except InputError:  # no row belongs to this fold
            continue
        try:
            rest = rows.where(outside, fold, folds)
        except InputError:
            return None
        if not quietly(member, rest):
            return None
        total = total + held.total(gain_sums, member)
    return total


def quietly(member: Calibrator, rows: RowSource) -> bool:
    """Fit ``member`` and return whether that worked; bounds and the like show in its score, not in warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            member._learn(rows)
        except CalibrantError:
            return False
    return True


def gain_sums(chunk: Chunk, member: Calibrator | None) -> Tensor:
    """Return Σ w loss, Σ w gain and Σ w gain² (3,) of a chunk's rows under ``member``, or under doing nothing."""
    z = chunk.logits.double()
    raw = F.cross_entropy(z, chunk.labels, reduction="none")
    loss = raw if member is None else F.cross_entropy(member(z), chunk.labels, reduction="none")
    gain = raw - loss
    w = chunk.weights
    return torch.stack([w @ loss, w @ gain, w @ gain**2]).cpu()
