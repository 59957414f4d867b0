"""Beta calibration."""

import torch
from torch import Tensor

from calibrant.calibrators._bases import two_logs
from calibrant.calibrators._one_vs_rest import LogisticFit, LogOddsChunk, RidgeOneVsRest
from calibrant.rows import RowSource

__all__ = ["BetaCalibration"]


class BetaCalibration(RidgeOneVsRest):
    """σ(a log p − b log(1 − p) + c) with a, b ≥ 0: exact if p is beta distributed given each class (Kull et al. 2017).

    One triple for two classes, one a class against the rest for more. The map never falls, so the rank of the rows within
    a class is kept. The fit is convex, under bounds that hold exactly. ridge / N
    · ((a − 1)² + (b − 1)² + c²) is added to the mean log-loss and keeps separable data finite.

    Args:
        ridge: Strength in rows, ≥ 0.

    Attributes:
        coefficients: (C, 3) a, b and c; C = 1 for two classes (class 1 against class 0), else K.

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> BetaCalibration().fit(z, y).coefficients.shape
        torch.Size([1, 3])

    References:
        Kull, Silva Filho, Flach 2017, Beta calibration, Theorem 1 and §3.2.
    """

    preserves_argmax = False

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge)

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.prepared(LogOddsChunk.of), rows.mass
        ridge = (self.ridge, self.ridge, self.ridge)
        fit = LogisticFit(two_logs, (), ridge, centre=(1.0, 1.0, 0.0), platt=False, lowest=(0.0, 0.0, -torch.inf))
        self.coefficients = fit.fit(log_odds, mass)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        a, b, c = self.coefficients.unbind(1)
        sigmoid = torch.nn.functional.logsigmoid
        return a * sigmoid(log_odds) - b * sigmoid(-log_odds) + c
