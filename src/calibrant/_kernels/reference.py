"""Sums of rows by PyTorch: the reference for the compiled loops, and the fallback without them."""

import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks

_FEW = 4  # up to this many classes, adding columns is faster than PyTorch's reduction


def exp_sums(logits: Tensor, row_max: Tensor) -> Tensor:
    """Return Σ_k exp(logit_k − row_max) (N,) float64, in row chunks."""
    rows, classes = logits.shape
    sums = torch.empty(rows, dtype=torch.float64, device=logits.device)
    for chunk in row_chunks(rows, classes, itemsize=16, device=logits.device):
        sums[chunk] = _row_sums(logits[chunk].double().sub(row_max[chunk, None]).exp_())
    return sums


def log_sums(logits: Tensor, row_max: Tensor) -> Tensor:
    """Return log Σ_k exp(logit_k − row_max) (N,) float64, in row chunks of float64 exponentials."""
    rows, classes = logits.shape
    sums = torch.empty(rows, dtype=torch.float64, device=logits.device)
    # Subtracting the maximum of each row costs more than the exponentials: done only where float64 would over- or underflow.
    shift = torch.where((row_max > -500) & (row_max < 650), 0.0, row_max.double())
    for chunk in row_chunks(rows, classes, itemsize=16, device=logits.device):
        block, by = logits[chunk].double(), shift[chunk]
        if bool(by.any()):
            block = block - by[:, None]
        sums[chunk] = _row_sums(torch.exp(block))
    return sums.log_().sub_(row_max.double() - shift)


def _row_sums(values: Tensor) -> Tensor:
    """Return Σ_k values (n,), the same bits for a row at any position; a product with ones rounds depending on it."""
    if values.shape[1] > _FEW:
        return values.sum(dim=1)
    total = values[:, 0].clone()
    for k in range(1, values.shape[1]):
        total += values[:, k]
    return total
