"""Platt scaling of the log-odds: a slope and a bias."""

from torch import Tensor

from calibrant.calibrators._bases import line
from calibrant.calibrators._one_vs_rest import LogisticFit, LogOddsChunk, RidgeOneVsRest
from calibrant.rows import RowSource

__all__ = ["PlattScaling"]


class PlattScaling(RidgeOneVsRest):
    """σ(a s + b) of the log-odds s, one pair (a, b) for two classes, one a class against the rest for more.

    Log-loss with Platt's targets, which stand for one imagined row of each kind and keep separable data finite; ridge / N
    · ((a − 1)² + b²) is added. The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Strength in rows, ≥ 0; the small default only settles what the data leave open, as where s is constant.

    Attributes:
        coefficients: (C, 2) a and b; C = 1 for two classes (class 1 against class 0), else K.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> PlattScaling().fit(z, y).coefficients.shape
        torch.Size([1, 2])

    References:
        Platt 1999, Probabilistic Outputs for Support Vector Machines, §2.1, §2.2.
    """

    preserves_argmax = False

    def __init__(self, *, ridge: float = 1e-3) -> None:
        super().__init__(ridge=ridge)

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.prepared(LogOddsChunk.of), rows.mass
        ridge = (self.ridge, self.ridge)
        self.coefficients = LogisticFit(line, (), ridge, centre=(1.0, 0.0)).fit(log_odds, mass)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        return log_odds * self.coefficients[:, 0] + self.coefficients[:, 1]
