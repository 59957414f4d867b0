"""Maps given by knots: a straight line between neighbours, constant outside."""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant._numerics import rank_in
from calibrant.calibrators._one_vs_rest import OneVsRest


def pool_ties(odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct log-odds in order, the mean hit and the weight of each; rows of weight 0 are left out."""
    # numpy sorts float64 more than ten times faster than torch on a CPU
    x, y, w = (values[weight > 0].cpu().numpy() for values in (odds, hit, weight))
    order = np.argsort(x)
    x, y, w = x[order], y[order], w[order]
    first = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    mass = np.add.reduceat(w, first)
    return x[first], np.add.reduceat(w * y, first) / mass, mass


def pad(rows: list[Tensor]) -> Tensor:
    """Return the rows as one matrix (C, longest), the short ones continued by their last entry."""
    longest = max(len(row) for row in rows)
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])


class PiecewiseOneVsRest(OneVsRest):
    """One vs rest by isotonic regression: subclasses say which knots stand for a pooled block."""

    preserves_argmax: ClassVar[bool] = False

    places: Tensor
    values: Tensor
    share: Tensor

    def __init__(self, *, floor: float | None = None) -> None:
        super().__init__()
        self.floor = None if floor is None else check_number(floor, name="floor", low=0, high=1, open_high=True)
        self._declare("places", "values", "share")

    def config(self) -> dict[str, Any]:
        """Return the floor."""
        return {"floor": self.floor}

    @abstractmethod
    def _knots(
        self, places: np.ndarray, mass: np.ndarray, blocks: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return knots and their values from the distinct places, their mass, where blocks begin (and the end), and values."""

    def _fit_one(self, odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        from scipy.optimize import isotonic_regression

        places, mean, mass = pool_ties(odds, hit, weight)
        found = isotonic_regression(mean, weights=mass)
        knots, values = self._knots(places, mass, found.blocks, found.x)
        share = 1 / (float(weight.sum()) + 1) if self.floor is None else self.floor
        tensors = (torch.as_tensor(array, dtype=odds.dtype, device=odds.device) for array in (knots, values))
        return *tensors, odds.new_tensor(share)

    def _keep(self, learned: list[tuple[Tensor, ...]]) -> None:
        self.places = pad([places for places, _, _ in learned])
        self.values = pad([values for _, values, _ in learned])
        self.share = learned[0][2]

    def _probabilities(self, odds: Tensor) -> Tensor:
        s = odds.T.contiguous()  # (C, N)
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
