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


def drawn_events(rows: int = 300, *, seed: int = 0, ties: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (N, 2), labels (N,) and the log-odds s (N,) of class 1; labels follow σ(0.6 s − 0.5)."""
    generator = torch.Generator().manual_seed(seed)
    s = 2 * torch.randn(rows, generator=generator, dtype=torch.float64)
    s = (s * 2).round() / 2 if ties else s
    return of_log_odds(s), torch.bernoulli(torch.sigmoid(0.6 * s - 0.5), generator=generator).long(), s


def of_log_odds(s: Tensor) -> Tensor:
    """Return logits (N, 2) whose log-odds of class 1 are ``s`` (N,)."""
    return torch.stack([torch.zeros_like(s), s], dim=1)
