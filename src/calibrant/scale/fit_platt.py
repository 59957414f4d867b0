"""Platt scaling of two classes on tables larger than memory: Newton's method on merged sums."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.calibrators._one_vs_rest import log_odds, platt_levels
from calibrant.calibrators._solver import minimise
from calibrant.scale.passes import StreamedPasses, labelled
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["fit_platt"]


def fit_platt(passes: StreamedPasses, *, ridge: float) -> Tensor:
    """Return (1, 2): slope and bias of the log-odds, with the in-memory fit's targets, ridge, scaling and certificate.

    Args:
        passes: The data, of two classes.
        ridge: In rows, ≥ 0.

    Raises:
        FitError: If there is no finite optimum, which a positive ridge excludes.
    """
    rows = passes.rows.rows
    largest = float(passes.largest(largest_of))
    hits = float(passes.total(hits_of))
    scale = torch.tensor([max(largest, 1e-12), 1.0], dtype=torch.float64)
    strength = torch.full_like(scale, ridge / rows) / scale**2
    centre = torch.tensor([1.0, 0.0], dtype=torch.float64) * scale
    problem = _Problem(passes, scale, platt_levels(hits, rows - hits), strength, centre)
    return (minimise(problem, centre).x / scale)[None]


@dataclass(frozen=True)
class _Problem:
    """``LogisticProblem`` of which each value is a pass; value, gradient and Hessian come by the same one."""

    passes: StreamedPasses
    scale: Tensor
    levels: tuple[float, float]
    ridge: Tensor
    centre: Tensor

    @property
    def rows(self) -> int:
        """One: a step costs a pass however many rows there are, so the steps are Newton's."""
        return 1

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalised mean log-loss and its gradient."""
        sums, off = self._sums(theta), theta - self.centre
        value = float(sums[0] + self.ridge @ off**2)
        return value, sums[1:3] + 2 * self.ridge * off

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian (2, 2)."""
        _, _, _, aa, ab, bb = self._sums(theta)
        return torch.stack([torch.stack([aa, ab]), torch.stack([ab, bb])]) + torch.diag(2 * self.ridge)

    def narrowed(self) -> None:
        """Return None: sums are float64."""

    def blocks(self) -> Tensor:
        """Return the Hessian's diagonal at the centre, as blocks (2, 1, 1)."""
        return self.hessian(self.centre).diagonal().clamp_min(1e-12)[:, None, None]

    def _sums(self, theta: Tensor) -> Tensor:
        a, b = (theta / self.scale).tolist()
        total = self.passes.total(logistic_of, slope=a, bias=b, levels=self.levels) / self.passes.rows.rows
        first = float(self.scale[0])  # the derivatives by the scaled slope
        return total / torch.tensor([1.0, first, 1.0, first**2, first, 1.0], dtype=torch.float64)


def largest_of(rows: ParquetRows, shard: Shard) -> Tensor:
    """Return the largest |log-odds| of a shard (1,)."""
    return torch.stack([log_odds(logits).abs().amax() for logits, _ in labelled(rows, shard)]).amax()[None]


def hits_of(rows: ParquetRows, shard: Shard) -> Tensor:
    """Return how many rows of a shard are of class 1 (1,)."""
    return torch.stack([labels.sum() for _, labels in labelled(rows, shard)]).sum()[None].double()


def logistic_of(rows: ParquetRows, shard: Shard, *, slope: float, bias: float, levels: tuple[float, float]) -> Tensor:
    """Return Σ loss, its two first derivatives by (slope, bias), and its three second ones (6,), of a shard."""
    total = torch.zeros(6, dtype=torch.float64)
    for logits, labels in labelled(rows, shard):
        odds = log_odds(logits)[:, 0]
        s = odds * slope + bias
        target = torch.where(labels > 0, levels[0], levels[1]).double()
        gap = torch.sigmoid(s) - target
        curvature = torch.sigmoid(s) * torch.sigmoid(-s)
        loss = F.softplus(s) - target * s
        parts = [loss, gap * odds, gap, curvature * odds * odds, curvature * odds, curvature]
        total += torch.stack([part.sum() for part in parts])
    return total
