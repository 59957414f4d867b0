"""Assertions in a test: the gate, and the clauses of the contracts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import CalibrantError


@dataclass(frozen=True)
class Contract:
    """What a family of methods is held to, clause by clause; ``place`` says where it is written."""

    place: str

    def require(self, holds: bool, clause: str, remedy: str = "") -> None:
        """Fail unless a clause holds."""
        if not holds:
            raise AssertionError(f"expected that {clause}, got otherwise; {remedy or f'see {self.place}'}")


def normal_sample(*shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return float32 logits of ``shape`` (N, K, …) and labels (N, …) that do not depend on them."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(shape, generator=generator)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


def require_refusal(error: type[CalibrantError], what: str, call: Callable[..., object], *arguments: Any) -> None:
    """Fail unless ``call(*arguments)``, which is ``what``, ends in ``error``."""
    try:
        call(*arguments)
    except error:
        return
    except Exception as other:
        got = type(other).__name__
        raise AssertionError(f"expected that it refuses {what} by {error.__name__}, got {got}; see its text") from other
    name = error.__name__
    raise AssertionError(f"expected that it refuses {what} by {name}, got an answer; call the base's checks")
