"""Temperature scaling: one number that softens or sharpens all logits."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._log_temperature import fit_log_temperature

__all__ = ["TemperatureScaling"]


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
