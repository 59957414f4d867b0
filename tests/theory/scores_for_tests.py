"""Scores the tests share: every built-in one inside its range, and users' own in two lines."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.scores import FocalScore, InverseFocalScore, LogScore, TrueClassScore


@dataclass(frozen=True)
class InverseScore(TrueClassScore):
    """φ(p) = 1/p: two lines, in range."""

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        return torch.exp(-log_p)


@dataclass(frozen=True)
class OwnFocalScore(TrueClassScore):
    """Focal γ = 2 as a user writes it: derivatives by autograd."""

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        return -torch.exp(2 * log_not_p) * log_p


@dataclass(frozen=True)
class QuadraticScore(TrueClassScore):
    """φ(p) = (1 − p)²: decreasing and convex, but −φ′(0) = 2."""

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        return torch.exp(2 * log_not_p)


@dataclass(frozen=True)
class LinearScore(TrueClassScore):
    """φ(p) = 1 − p: nowhere strictly convex; its minimiser is a vertex."""

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        return torch.exp(log_not_p)


class ConvexAgain(TrueClassScore):
    """Convex, concave, convex."""

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        return -log_p + 0.5 * torch.sin(12 * torch.exp(log_p))


IN_RANGE: list[TrueClassScore] = [
    LogScore(),
    FocalScore(3.0),
    FocalScore(-0.75),
    InverseFocalScore(1.0),
    InverseScore(),
    OwnFocalScore(),
]
