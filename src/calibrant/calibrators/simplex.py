"""Weights of a mixture: the convex problem min over the simplex of −Σ_i s_i log(Σ_m w_m p_im), with its certificate.

The constraint Σ w = 1 is dropped and Σ w added: since the first part falls by log c where w grows by a factor c, the
minimum lies on the simplex by itself, and only w ≥ 1e-9 remains.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from calibrant._core.minimise import Objective, minimise
from calibrant.rows import RowSource

_GAP = 1e-8  # nats of mean log-loss
_LEAST = 1e-9  # of a weight: it costs less than the gap, and the order of the classes outlives a useless component


@dataclass(frozen=True)
class MixtureChunk:
    """Of each row the true class's probability under every component (n, M), relative to the largest, and its weight."""

    p: Tensor
    weight: Tensor

    @classmethod
    def of(cls, p: Tensor, weight: Tensor) -> Self:
        """Return the chunk of probabilities (n, M), of which each row has a positive one."""
        return cls(p / p.amax(dim=1, keepdim=True), weight)

    def sums(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ s log(Σ w p), Σ s r (M,) and Σ s r rᵀ (M, M), r = p / Σ w p."""
        mixed = self.p @ w.to(self.p.device)
        ratio = self.p / mixed[:, None]
        return self.weight @ mixed.log(), self.weight @ ratio, (ratio * self.weight[:, None]).T @ ratio


def fit_mixture_weights(parts: RowSource, *, members: int, mass: float) -> Tensor:
    """Return the weights (M,) ≥ 0, Σ = 1, of the mixture with the least mean log-loss.

    At the end max_m Σ_i s_i p_im / (Σ w p)_i − 1, which bounds the distance from the optimum in nats, is checked.

    Args:
        parts: A source of ``MixtureChunk``.
        members: M.
        mass: Σ weights.

    Raises:
        FitError: If the gap is not reached.
    """

    def sums(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, first, second = (part.cpu() for part in parts.total(MixtureChunk.sums, w))
        return mass * w.sum() - value, mass - first, second

    start = torch.full((members,), 1 / members, dtype=torch.float64)
    bounds = (torch.full((members,), _LEAST, dtype=torch.float64), torch.full((members,), 2.0, dtype=torch.float64))
    found = minimise(Objective(mass, sums, bounds=bounds), start, tolerance=_GAP / 10).theta
    return found / found.sum()
