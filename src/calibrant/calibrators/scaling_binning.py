"""Scaling-binning: a parametric curve, answered in bins."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_count
from calibrant._numerics import rank_in
from calibrant.calibrators._one_vs_rest import OneVsRest, fit_logistic, platt_targets
from calibrant.calibrators._piecewise import pad

__all__ = ["ScalingBinning"]


class ScalingBinning(OneVsRest):
    """Platt scaling, then in each of ``bins`` bins of equal mass the mean of the scaled probabilities (Kumar et al. 2019).

    Few answers, each of which can be checked by counting, at less variance than histogram binning, since a bin's answer
    is a mean of scaled probabilities and not of labels. One map for two classes, one a class against the rest for more.

    Args:
        bins: How many, ≥ 1.

    Attributes:
        coefficients: (C, 2) slope and bias of the scaling.
        edges: (C, bins − 1) in scaled log-odds, a place on an edge belongs to the bin below.
        values: (C, bins) the log-odds answered.

    Example:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> ScalingBinning(2).fit(z, y).values.shape
        torch.Size([1, 2])

    References:
        Kumar, Liang, Ma 2019, Verified Uncertainty Calibration, §4, Algorithm 1 (all three steps on the same rows).
    """

    preserves_argmax: ClassVar[bool] = False

    coefficients: Tensor
    edges: Tensor
    values: Tensor

    def __init__(self, bins: int = 10) -> None:
        super().__init__()
        self.bins = check_count(bins, name="bins")
        self._declare("coefficients", "edges", "values")

    def config(self) -> dict[str, Any]:
        """Return the number of bins."""
        return {"bins": self.bins}

    def _fit_one(self, odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        features = torch.stack([odds, torch.ones_like(odds)], dim=1)
        centre = features.new_tensor([1.0, 0.0])
        theta = fit_logistic(features, platt_targets(hit, weight), weight, ridge=1e-3, centre=centre)
        scaled = features @ theta
        places, inverse = torch.unique(scaled, return_inverse=True)
        mass = torch.zeros_like(places).index_add_(0, inverse, weight)
        middle = (mass.cumsum(0) - mass / 2) / mass.sum()  # equal values stay together, where their middle falls
        bins = (middle * self.bins).long().clamp_max(self.bins - 1)
        used, index = torch.unique(bins, return_inverse=True)
        total = torch.zeros(len(used), dtype=mass.dtype, device=mass.device).index_add_(0, index, mass)
        means = torch.zeros_like(total).index_add_(0, index, mass * torch.sigmoid(places)) / total
        first = torch.nonzero(index[1:] > index[:-1])[:, 0]
        edges = (places[first] + places[first + 1]) / 2
        return theta, torch.cat([edges, edges.new_tensor([torch.inf])]), torch.logit(means)

    def _keep(self, learned: list[tuple[Tensor, ...]]) -> None:
        self.coefficients = torch.stack([theta for theta, _, _ in learned])
        self.edges = pad([edges for _, edges, _ in learned])[:, :-1]
        self.values = pad([values for _, _, values in learned])

    def _probabilities(self, odds: Tensor) -> Tensor:
        scaled = (odds * self.coefficients[:, 0] + self.coefficients[:, 1]).T.contiguous()
        return self.values.gather(1, rank_in(self.edges, scaled)).T
