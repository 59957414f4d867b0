"""Proposition 1: the focal score is convex in the true class's probability for every γ ≥ 0."""

import torch
from torch import Tensor

from calibrant._core.check import check_number, refuse
from calibrant._objective.log_pairs import check_values

__all__ = ["focal_curvature"]


def focal_curvature(probs: Tensor, gamma: float) -> Tensor:
    """Return φ″(p) = (1 − p)^(γ−2) [γ (1 − γ) log p + 2γ (1 − p)/p + (1 − p)²/p²], positive on (0, 1) for every γ ≥ 0.

    Only the first term can be negative, for 0 < γ < 1; the second exceeds it, because −log p ≤ (1 − p)/p.

    Args:
        probs: p in (0, 1), any shape.
        gamma: γ ≥ 0.

    Returns:
        φ″, of the shape of ``probs``, in float64.

    Raises:
        InputError: If γ < 0 or some p lies outside (0, 1).

    Examples:
        >>> focal_curvature(torch.tensor([0.5]), 2.0)
        tensor([6.3863], dtype=torch.float64)

    References:
        Komisarenko & Kull 2024, Proposition 1.
    """
    gamma = check_number(gamma, name="gamma", low=0)
    p = check_values(probs, name="probs").double()
    if not bool(((p > 0) & (p < 1)).all()):
        raise refuse("probs inside (0, 1)", "a value outside", "leave out 0 and 1: φ″ is infinite at 0")
    odds = (1 - p) / p
    return (1 - p) ** (gamma - 2) * (gamma * (1 - gamma) * torch.log(p) + 2 * gamma * odds + odds**2)
