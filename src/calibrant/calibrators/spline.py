"""Spline calibration: a smooth curve in the log-odds."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_count, check_number
from calibrant.calibrators._one_vs_rest import OneVsRest, fit_logistic, platt_targets

__all__ = ["SplineCalibration"]


class SplineCalibration(OneVsRest):
    """σ(g(s)), g a natural cubic spline in the log-odds s: smooth inside, straight outside (Lucena 2018).

    One curve for two classes, one a class against the rest for more. Knots lie at weighted quantiles of s; ridge / N ·
    (the distance of g's coefficients from g(s) = s, squared) is added to the mean log-loss, with Platt's targets. The fit
    is convex and ends with a gradient certificate. The curve may fall, so classes may change their order.

    Args:
        knots: How many, ≥ 3.
        ridge: Strength in rows, > 0.

    Attributes:
        places: (C, knots) where the knots are, in log-odds.
        coefficients: (C, knots): constant, slope and the curved parts; C = 1 for two classes, else K.

    Example:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> SplineCalibration().fit(z, y).coefficients.shape
        torch.Size([1, 5])

    References:
        Lucena 2018, Spline-Based Probability Calibration, §3. Basis: Hastie, Tibshirani, Friedman 2009, §5.2.1.
    """

    preserves_argmax: ClassVar[bool] = False

    places: Tensor
    coefficients: Tensor

    def __init__(self, knots: int = 5, *, ridge: float = 1.0) -> None:
        super().__init__()
        self.knots = check_count(knots, name="knots", low=3)
        self.ridge = check_number(ridge, name="ridge", low=0, open_low=True)
        self._declare("places", "coefficients")

    def config(self) -> dict[str, Any]:
        """Return the number of knots and the ridge."""
        return {"knots": self.knots, "ridge": self.ridge}

    def _fit_one(self, odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        places = _quantiles(odds, weight, self.knots)
        features = _basis(odds[:, None], places[None])[:, 0]
        centre = torch.zeros_like(places)
        centre[1] = 1
        return places, fit_logistic(features, platt_targets(hit, weight), weight, ridge=self.ridge, centre=centre)

    def _keep(self, learned: list[tuple[Tensor, ...]]) -> None:
        self.places = torch.stack([places for places, _ in learned])
        self.coefficients = torch.stack([theta for _, theta in learned])

    def _probabilities(self, odds: Tensor) -> Tensor:
        return (_basis(odds, self.places) * self.coefficients).sum(dim=2)


def _quantiles(odds: Tensor, weight: Tensor, knots: int) -> Tensor:
    """Return ``knots`` increasing places at the weighted 5 % … 95 % quantiles, at least 0.01 apart."""
    order = odds.argsort()
    below = weight[order].cumsum(0) / weight.sum()
    levels = torch.linspace(0.05, 0.95, knots, dtype=odds.dtype, device=odds.device)
    places = odds[order][torch.searchsorted(below, levels - 1e-12).clamp_max(len(odds) - 1)]
    steps = torch.arange(knots, dtype=odds.dtype, device=odds.device) * 0.01
    return (places - steps).cummax(dim=0).values + steps


def _basis(odds: Tensor, places: Tensor) -> Tensor:
    """Return the natural cubic basis (N, C, knots) at ``odds`` (N, C) for knots ``places`` (C, knots)."""
    last = places[:, -1:]
    cubes = (odds[:, :, None] - places).clamp_min(0) ** 3
    d = (cubes - cubes[:, :, -1:])[:, :, :-1] / (last - places[:, :-1])  # (N, C, knots − 1)
    # divided by the knots' range, the curved parts have the scale of s
    curved = (d[:, :, :-1] - d[:, :, -1:]) / (last - places[:, :1])
    return torch.cat([torch.ones_like(odds)[:, :, None], odds[:, :, None], curved], dim=2)
