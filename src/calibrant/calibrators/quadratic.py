"""Quadratic scaling of the log-odds."""

from torch import Tensor

from calibrant.calibrators._bases import parabola
from calibrant.calibrators._one_vs_rest import LogisticFit, LogOddsChunk, RidgeOneVsRest
from calibrant.rows import RowSource

__all__ = ["QuadraticScaling"]


class QuadraticScaling(RidgeOneVsRest):
    """σ(a s + b + c s²) of the log-odds s, one triple for two classes, one a class against the rest for more.

    c lets the two ends need different corrections. It is not monotone everywhere, so classes may change their order.
    Platt's targets and ridge / N · ((a − 1)² + b² + 10 c²) keep the fit finite; it is convex and ends with a gradient
    certificate.

    Args:
        ridge: Strength in rows, ≥ 0.

    Attributes:
        coefficients: (C, 3) a, b and c; C = 1 for two classes (class 1 against class 0), else K.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> QuadraticScaling().fit(z, y).coefficients.shape
        torch.Size([1, 3])

    References:
        Berta, Holzmüller, Jordan, Bach 2025, Structured Matrix Scaling for Multi-Class Calibration (binary case).
    """

    preserves_argmax = False

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge)

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.prepared(LogOddsChunk.of), rows.mass
        ridge = (self.ridge, self.ridge, 10 * self.ridge)
        self.coefficients = LogisticFit(parabola, (), ridge, centre=(1.0, 0.0, 0.0)).fit(log_odds, mass)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        a, b, c = self.coefficients.unbind(1)
        return log_odds * a + b + log_odds**2 * c
