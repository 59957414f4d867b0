"""Maps given by knots: a straight line between neighbours, constant outside."""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.numerics import rank_in
from calibrant.calibrators._one_vs_rest import LogOddsChunk, OneVsRest
from calibrant.calibrators._scores import summarised
from calibrant.rows import RowSource


def pad(rows: list[Tensor]) -> Tensor:
    """Return the rows as one matrix (C, longest), the short ones continued by their last entry."""
    longest = max(len(row) for row in rows)
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])


class PiecewiseOneVsRest(OneVsRest):
    """One vs rest by isotonic regression: subclasses define the knots that represent a pooled block."""

    preserves_argmax = False
    learned_bounds = (("places", -1e4, 1e4), ("values", 0.0, 1.0), ("share", 0.0, 1.0))

    places: Tensor
    values: Tensor
    share: Tensor

    def __init__(self, *, floor: float | None = None) -> None:
        super().__init__()
        self.floor = None if floor is None else check_number(floor, name="floor", low=0, high=1, open_high=True)
        self._declare("places", "values", "share")

    @abstractmethod
    def _knots(
        self, places: np.ndarray, mass: np.ndarray, blocks: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return knots and their values from the distinct places, their mass, where blocks begin (and the end), and values."""

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.prepared(LogOddsChunk.of), rows.mass
        from scipy.optimize import isotonic_regression

        learned = []
        for scores in summarised(log_odds):
            found = isotonic_regression(scores.mean, weights=scores.mass)
            learned.append(self._knots(scores.places, scores.mass, found.blocks, found.x))
        self.places, self.values = (
            pad([torch.as_tensor(one[part]) for one in learned]).to(log_odds.device) for part in (0, 1)
        )
        share = 1 / (mass + 1) if self.floor is None else self.floor
        self.share = torch.tensor(share, dtype=torch.float64, device=log_odds.device)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        s = log_odds.T.contiguous()  # (C, N)
        right = rank_in(self.places, s).clamp(1, max(1, self.places.shape[1] - 1))
        if self.places.shape[1] == 1:
            right = torch.zeros_like(right)
        left = (right - 1).clamp_min(0)
        x0, x1 = self.places.gather(1, left), self.places.gather(1, right)
        v0, v1 = self.values.gather(1, left), self.values.gather(1, right)
        part = ((s - x0) / (x1 - x0).clamp_min(1e-300)).clamp(0, 1)
        p = torch.lerp(v0, v1, part).clamp(0, 1)
        share = self.share / max(2, self.places.shape[0])
        hit, miss = (1 - self.share) * p + share, (1 - self.share) * (1 - p) + self.share - share
        return (hit.log() - miss.log()).T
