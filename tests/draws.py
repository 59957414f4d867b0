"""Logits with labels that are drawn from them, as most tests need."""

import torch
from torch import Tensor


def drawn(
    rows: int = 400,
    classes: int = 4,
    *,
    seed: int = 0,
    spread: float = 3.0,
    sharp: float = 2.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K), ``spread`` times standard normal numbers, and labels (N,) drawn from softmax(logits / ``sharp``)."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, classes, generator=generator, dtype=dtype)
    return logits, torch.multinomial((logits / sharp).softmax(dim=1), 1, generator=generator)[:, 0]
