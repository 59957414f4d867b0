"""Building blocks of the contracts: clauses that must hold, errors that must be raised, and random test data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def require(holds: bool, clause: str) -> None:
    """Raise an ``AssertionError`` unless a clause of the contract holds."""
    if not holds:
        raise AssertionError(f"it does not hold that {clause}")


def require_refusal(error: type[Exception], what: str, call: Callable[..., object], *arguments: Any) -> None:
    """Raise an ``AssertionError`` unless ``call(*arguments)``, described by ``what``, raises ``error``."""
    try:
        call(*arguments)
    except error:
        return
    except Exception as other:
        raise AssertionError(f"it must refuse {what} with {error.__name__}, not with {type(other).__name__}") from other
    raise AssertionError(f"it must refuse {what} with {error.__name__}, but does not")


def draw(*shape: int, scale: float = 2.0, sharp: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return float64 logits of ``shape`` (N, K, …), and labels (N, …) drawn from softmax(``sharp`` · logits)."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    p = torch.softmax(sharp * logits.movedim(1, -1), dim=-1)
    labels = torch.multinomial(p.reshape(-1, shape[1]), 1, generator=generator)
    return logits, labels.reshape(shape[0], *shape[2:])
