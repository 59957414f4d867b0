"""Beta calibration."""

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.calibrators._one_vs_rest import RidgeOneVsRest, fit_logistic

__all__ = ["BetaCalibration"]


class BetaCalibration(RidgeOneVsRest):
    """σ(a log p − b log(1 − p) + c) with a, b ≥ 0: what is right if p is beta distributed given each class (Kull et al. 2017).

    One triple for two classes, one a class against the rest for more. The map never falls, so the rank of the rows within
    a class is kept. The fit is convex; the constraints are met exactly, by the best of the faces that meet them. ridge / N
    · ((a − 1)² + (b − 1)² + c²) is added to the mean log-loss and keeps separable data finite.

    Args:
        ridge: Strength in rows, ≥ 0.

    Attributes:
        coefficients: (C, 3) a, b and c; C = 1 for two classes (class 1 against class 0), else K.

    Example:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> BetaCalibration().fit(z, y).coefficients.shape
        torch.Size([1, 3])

    References:
        Kull, Silva Filho, Flach 2017, Beta calibration, Theorem 1 and §3.2.
    """

    preserves_argmax: ClassVar[bool] = False

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge)

    def _fit_one(self, odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        features = _features(odds)
        best, least = features.new_tensor([0.0, 0.0, 0.0]), float("inf")
        # the unconstrained optimum if it is feasible; else the optimum lies on a face, a = 0 or b = 0 or both
        for kept in ([0, 1, 2], [0, 2], [1, 2], [2]):
            theta = features.new_zeros(3)
            theta[kept] = fit_logistic(
                features[:, kept], hit, weight, ridge=self.ridge, centre=features.new_tensor([1.0, 1.0, 0.0])[kept]
            )
            if bool((theta[:2] < 0).any()):
                continue
            value = _value(features, hit, weight, theta, self.ridge)
            if value < least:
                best, least = theta, value
            if len(kept) == 3:
                break
        return (best,)

    def _probabilities(self, odds: Tensor) -> Tensor:
        a, b, c = self.coefficients.unbind(1)
        sigmoid = torch.nn.functional.logsigmoid
        return a * sigmoid(odds) - b * sigmoid(-odds) + c


def _features(odds: Tensor) -> Tensor:
    """Return log p, −log(1 − p) and 1, (N, 3)."""
    sigmoid = torch.nn.functional.logsigmoid
    return torch.stack([sigmoid(odds), -sigmoid(-odds), torch.ones_like(odds)], dim=1)


def _value(features: Tensor, hit: Tensor, weight: Tensor, theta: Tensor, ridge: float) -> float:
    s = features @ theta
    penalty = ridge * ((theta - theta.new_tensor([1.0, 1.0, 0.0])) ** 2).sum()
    return float(weight @ (torch.nn.functional.softplus(s) - hit * s) + penalty)
