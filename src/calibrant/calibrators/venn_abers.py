"""Venn–Abers calibration: two isotonic regressions, one for each label that a new row can have."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import rank_in
from calibrant.calibrators.binned import padded
from calibrant.calibrators.one_vs_rest import OneVsRest, PooledScores, log_odds, pool_ties
from calibrant.rows import RowSource


class VennAbers(OneVsRest):
    """Inductive Venn–Abers calibration: p = p₁ / (1 − p₀ + p₁), where p_y is the isotonic fit with the new row added as label y.

    If rows are exchangeable, one of p₀ and p₁ is perfectly calibrated; their distance shows how uncertain the data leave the
    probability. Both are exact: they are step functions with steps at the fitting rows, computed in one pass each. Two classes
    have one pair of maps; with more classes, each class has a pair against the rest, and the results are normalised. p is never
    0 or 1.

    Attributes:
        places: (C, M) the distinct log-odds of the fit; shorter rows repeat their last entry.
        lower: (C, M + 1) values of p₀ at and between these log-odds.
        upper: (C, M + 1) values of p₁ at and between these log-odds.

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> p0, p1 = VennAbers().fit(z, y).interval(torch.tensor([[0.0, 1.5]]))
        >>> round(float(p0[0, 1]), 4), round(float(p1[0, 1]), 4)
        (0.5, 1.0)

    References:
        Vovk, Petej, Fedorova 2015, Large-Scale Probabilistic Predictors with and without Guarantees of Validity.
    """

    places: Tensor
    lower: Tensor
    upper: Tensor

    def interval(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (p₀, p₁), each (N, K): the two probabilities of each class against the rest.

        Raises:
            InputError: If the shape is not that of ``fit``.
        """
        self.check_input(logits)
        low, high = (bound.T for bound in self._bounds(log_odds(logits).T.contiguous()))
        if logits.shape[1] == 2:  # the other class's answers are the complements, in the other order
            low, high = torch.cat([1 - high, low], dim=1), torch.cat([1 - low, high], dim=1)
        return low, high

    def _fit(self, rows: RowSource) -> None:
        self.places, self.lower, self.upper = padded(map(_maps, pool_ties(*self._scores(rows))), rows.device)

    def _bounds(self, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        # a row between two places has the p₀ of the lower and the p₁ of the upper one; a row of the fit is at its place whatever
        # library computes its log-odds in float64
        near = 1e-10 * (1 + log_odds.abs().clamp(max=1e6))
        low = self.lower.gather(1, rank_in(self.places, log_odds + near, right=True))
        high = self.upper.gather(1, rank_in(self.places, log_odds - near))
        return low, high

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        low, high = self._bounds(log_odds)
        return high.log() - (1 - low).log()


def _maps(scores: PooledScores) -> tuple[np.ndarray, ...]:
    """Return places, p₀ and p₁ of one class."""
    upper = _with_one_more(scores.mean, scores.mass)
    # label 0 is label 1 seen from the other side
    lower = 1 - _with_one_more(1 - scores.mean[::-1], scores.mass[::-1])[::-1]
    return scores.places, np.r_[0.0, lower], np.r_[upper, 1.0]


def _with_one_more(mean: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return, for each place, the isotonic value there once a row of weight 1 and label 1 is added to it.

    What the added row pools lies next to it among the blocks of the places before and of those after, so each place costs a few steps.
    """
    before, after = _blocks(mean, mass), _blocks(1 - mean[::-1], mass[::-1])[::-1]  # the latter from the other end
    answer = np.empty_like(mean)
    for i, (value, weight) in enumerate(zip(mean.tolist(), mass.tolist(), strict=True)):
        left, right = before[i], after[i + 1]
        total, weight = value * weight + 1, weight + 1
        while True:
            if right and 1 - right[0] <= total / weight:
                other, more, right = right
                total, weight = total + (1 - other) * more, weight + more
            elif left and left[0] >= total / weight:
                other, more, left = left
                total, weight = total + other * more, weight + more
            else:
                break
        answer[i] = total / weight
    return answer


def _blocks(mean: np.ndarray, mass: np.ndarray) -> list[Any]:
    """Return the pooled blocks of the first 0, 1, 2 … places, as linked lists.

    A list is (value, weight, list of the earlier blocks), beginning with the last block, or None if there is no block.
    """
    blocks: Any = None
    found = [blocks]
    for value, weight in zip(mean.tolist(), mass.tolist(), strict=True):
        total = value * weight
        while blocks and blocks[0] >= total / weight:
            other, more, blocks = blocks
            total, weight = total + other * more, weight + more
        blocks = (total / weight, weight, blocks)
        found.append(blocks)
    return found
