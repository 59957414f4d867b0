"""The minimiser of a score's expected loss, also for scores without a calibration map, and whether it is unique."""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant._objective.log_pairs import check_log_probs
from calibrant.scores import TrueClassScore, check_score
from calibrant.theory._search import Search
from calibrant.theory.inverse_map import inverse_calibration_map
from calibrant.theory.validity import validity

__all__ = ["Minimum", "minimiser"]


class Minimum(NamedTuple):
    """A global minimiser for each row, and whether it is unique.

    Attributes:
        log_probs: (N, K) natural logarithms of q.
        unique: (N,) bool.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> minimiser(FocalScore(1.0), torch.tensor([[0.8, 0.2]]).log()).unique
        tensor([True])
    """

    log_probs: Tensor
    unique: Tensor


def minimiser(score: TrueClassScore, log_probs: Tensor) -> Minimum:
    """Return q that minimises Σ_j η_j φ(q_j) over the simplex, η = exp(log_probs): the optimum of training with loss φ.

    Where φ satisfies ``validity``, q is the inverse calibration map, and unique. Otherwise at most one class can lie where
    φ is concave (with two, moving probability between them would lower the risk); all such stationary points are found by
    a search over that class's logit and refined by Newton steps, and the one with the lowest risk is returned.

    Args:
        score: φ; outside its range it must be convex up to some p and not beyond.
        log_probs: (N, K) natural logarithms of η.

    Returns:
        ``Minimum(log_probs, unique)``. Minima whose risks differ by less than 1e-10 · (1 + |risk|) count as equal.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If φ becomes convex again after a concave part, or increases somewhere while some η_j is 0.

    Examples:
        >>> from calibrant.scores import InverseFocalScore
        >>> found = minimiser(InverseFocalScore(2.0), torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log())
        >>> found.log_probs.exp()
        tensor([[0.9484, 0.0516],
                [0.7917, 0.2083]])
        >>> found.unique
        tensor([ True, False])

    References:
        Komisarenko & Kull 2024, §3; for convex φ the minimiser is the inverse of their map.
    """
    check_score(score)
    check_log_probs(log_probs)
    if validity(score).bijective:
        rows = torch.ones(log_probs.shape[0], dtype=torch.bool, device=log_probs.device)
        return Minimum(inverse_calibration_map(score, log_probs).detach(), rows)
    search = Search(score, decreasing=validity(score).decreasing)
    found = [search.row(row) for row in log_probs.detach().double().cpu()]
    log_q = torch.stack([row.log_probs for row in found])
    unique = torch.tensor([row.unique for row in found])
    return Minimum(log_q.to(log_probs), unique.to(log_probs.device))
