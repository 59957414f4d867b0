"""The proper part of a true-class score: φ composed with the inverse of its calibration map, a proper loss."""

from torch import Tensor

from calibrant._objective.log_pairs import check_log_probs, log_pairs
from calibrant.scores import TrueClassScore
from calibrant.theory.inverse_map import inverse_calibration_map

__all__ = ["proper_part"]


def proper_part(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return L*(p, y) = φ(q_y), q = inverse calibration map of p, for every class y: φ = L* ∘ map, and L* is proper.

    Args:
        score: φ, inside its range (see ``validity``).
        log_probs: (N, K) natural logarithms of p.

    Returns:
        (N, K): in column y the loss if y is the true class; differentiable.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If the calibration map has no inverse.

    Examples:
        >>> import torch
        >>> from calibrant.scores import FocalScore
        >>> proper_part(FocalScore(3.0), torch.tensor([[0.95, 0.05]]).log())
        tensor([[0.0107, 0.3917]])

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4.
    """
    check_log_probs(log_probs)
    log_q, log_not_q = log_pairs(inverse_calibration_map(score, log_probs.double()))
    return score.value(log_q, log_not_q).to(log_probs.dtype)
