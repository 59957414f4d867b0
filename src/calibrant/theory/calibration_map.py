"""The calibration map of a true-class score: from the minimiser of its expected loss back to the true probabilities."""

import torch
from torch import Tensor

from calibrant._objective.log_pairs import check_log_probs, finite_floor, log_normalise, log_pairs, working_dtype
from calibrant.scores import TrueClassScore, check_score
from calibrant.theory.validity import require_map

__all__ = ["calibration_map"]


def calibration_map(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return log p with p_j ∝ −1/φ′(q_j), q = exp(log_probs): the true probabilities if q minimises the expected loss φ.

    If q minimises Σ_j η_j φ(q_j) over the simplex, then p = η, whether or not q is the only minimiser. For the focal
    score this is the focal calibration map.

    Args:
        score: φ, decreasing and with −φ′(p) → ∞ as p → 0 (see ``validity``). If φ is not also convex, as for inverse
            focal with 1 < γ < 3.59, the map exists but has no inverse.
        log_probs: (N, K) natural logarithms of q; −inf for q = 0.

    Returns:
        (N, K) natural logarithms of p, in the dtype of ``log_probs``, differentiable.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If φ has no such map: it does not decrease everywhere, or −φ′ stays finite at 0.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> calibration_map(FocalScore(2.0), torch.tensor([[0.62, 0.38]]).log()).exp()
        tensor([[0.7876, 0.2124]])

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4; Charoenphakdee et al. 2021 for the focal score.
    """
    require_map(check_score(score))
    check_log_probs(log_probs)
    log_q, log_not_q = log_pairs(log_probs.to(working_dtype(log_probs)))
    log_p = log_normalise(finite_floor(log_q - score.log_slope(log_q, log_not_q)))
    return log_p.masked_fill(torch.isneginf(log_probs), -torch.inf).to(log_probs.dtype)
