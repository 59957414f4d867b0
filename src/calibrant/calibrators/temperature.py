"""Temperature scaling: one number that softens or sharpens all logits."""

import math
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._numerics import Root, increasing_root, row_chunks
from calibrant.calibrators._base import Calibrator
from calibrant.errors import BoundWarning, FitError, InputError

__all__ = ["TemperatureScaling"]

T_LOW, T_HIGH = 1e-3, 1e3
_TOLERANCE = 1e-9  # of log T; far inside the 1e-4 promised, at the price of one more evaluation


class TemperatureScaling(Calibrator):
    """softmax(z / T) with the T in [1e-3, 1e3] that minimises the validation log-loss (Guo et al. 2017).

    The log-loss is convex in 1/T. The fit is Newton's method in log T inside a bracket, in float64, and ends with a
    certificate: the derivative changes sign at the answer. The decision never changes.

    Attributes:
        temperature: The fitted T.
        gradient: d log-loss / d log T at the fitted T, in nats: the certificate.

    Example:
        >>> z = torch.tensor([[2 * math.log(4), 0.0]] * 10)
        >>> y = torch.tensor([0] * 8 + [1] * 2)
        >>> round(TemperatureScaling().fit(z, y).temperature, 6)
        2.0

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """

    preserves_argmax: ClassVar[bool] = True

    log_temperature: Tensor
    certificate: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._declare("log_temperature", "certificate")

    @property
    def temperature(self) -> float:
        """The fitted T; NaN before ``fit``."""
        return math.exp(float(self.log_temperature)) if self.fitted else math.nan

    @property
    def gradient(self) -> float:
        """d log-loss / d log T at the fitted T; NaN before ``fit``."""
        return float(self.certificate) if self.fitted else math.nan

    def config(self) -> dict[str, Any]:
        """Return no arguments."""
        return {}

    def learned(self) -> str:
        """Return the temperature."""
        return f"temperature={self.temperature:.4g}"

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        root = fit_log_temperature(logits, labels, weight)
        self.log_temperature = torch.tensor(root.x, dtype=torch.float64, device=logits.device)
        self.certificate = torch.tensor(root.value, dtype=torch.float64, device=logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits * torch.exp(-self.log_temperature).to(logits.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return 1/T for every class, and zeros."""
        ones = torch.ones(int(self.classes), dtype=torch.float64, device=self.log_temperature.device)
        return ones * torch.exp(-self.log_temperature), torch.zeros_like(ones)


def fit_log_temperature(logits: Tensor, labels: Tensor, weight: Tensor | None) -> Root:
    """Return the log T on [log 1e-3, log 1e3] at which the log-loss is least, with its derivative there.

    Raises:
        InputError: If a label's logit is −inf, which makes the log-loss infinite at every T.
        FitError: If the search did not end.
    """
    at_label = logits.gather(1, labels[:, None])[:, 0]
    if bool(torch.isinf(at_label).any()):
        row = int(torch.nonzero(torch.isinf(at_label))[0])
        raise InputError(f"expected a finite logit for every label, got −inf in row {row}; unmask or drop the row")
    try:
        root = increasing_root(
            lambda t: _derivatives(logits, labels, weight, math.exp(-t)),
            low=math.log(T_LOW),
            high=math.log(T_HIGH),
            start=0.0,
            tolerance=_TOLERANCE,
        )
    except ArithmeticError as error:
        raise FitError(f"expected the temperature search to end, got: {error}; check the logits' range") from error
    if root.bound is not None:
        why = "every row is right" if root.bound == "low" else "the logits say no more than chance"
        warnings.warn(
            f"expected a finite best temperature, got none ({why}), so the bound {math.exp(root.x):g} was returned; "
            "use more validation data",
            BoundWarning,
            stacklevel=5,
        )
    return root


def _derivatives(logits: Tensor, labels: Tensor, weight: Tensor | None, beta: float) -> tuple[float, float]:
    """Return first and second derivative of the mean log-loss by log T, at T = 1/β."""
    first = second = 0.0
    for rows in row_chunks(*logits.shape):
        z = logits[rows].double()
        d = z - z.amax(dim=1, keepdim=True)  # ≤ 0
        p = torch.softmax(d * beta, dim=1)
        d = torch.where(p > 0, d, 0)  # −inf · 0 otherwise
        mean = (p * d).sum(dim=1)
        spread = (p * d * d).sum(dim=1) - mean**2
        gap = mean - (logits[rows].gather(1, labels[rows, None])[:, 0].double() - z.amax(dim=1))
        if weight is not None:
            gap, spread = gap * weight[rows], spread * weight[rows]
        first += float(gap.sum())
        second += float(spread.sum())
    total = float(weight.sum()) if weight is not None else logits.shape[0]
    by_beta, by_beta_2 = first / total, second / total
    return -beta * by_beta, beta * by_beta + beta**2 * by_beta_2
