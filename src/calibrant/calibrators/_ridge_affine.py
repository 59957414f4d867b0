"""What vector and matrix scaling share: an affine map of the logits, drawn to temperature scaling by a ridge."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant.calibrators._affine import (
    Ridge,
    apply_affine,
    check_label_logits,
    fit_affine,
    keep_excluded,
    lift_excluded,
    total_weight,
)
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._tempering import check_prior, fit_temperature


class RidgeAffine(Calibrator):
    """softmax(W z + b), W diagonal or full, with ridge / N · (‖W T − I‖² + ‖b‖²) added, T being the best temperature."""

    preserves_argmax: ClassVar[bool] = False
    diagonal: ClassVar[bool]

    scale: Tensor
    bias: Tensor
    certificate: Tensor

    def __init__(self, *, ridge: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.ridge = check_number(ridge, name="ridge", low=0)
        self.prior = check_prior(prior)
        self._declare("scale", "bias", "certificate")

    @property
    def gradient(self) -> float:
        """The certificate; NaN before ``fit``."""
        return float(self.certificate) if self.fitted else math.nan

    def config(self) -> dict[str, Any]:
        """Return the ridge and the prior."""
        return {"ridge": self.ridge, "prior": self.prior}

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return W, of shape (K,) if diagonal, else (K, K), and b (K,)."""
        return self.scale, self.bias

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        check_label_logits(logits, labels)
        temperature = fit_temperature(logits, labels, weight, self.prior)
        strength = self.ridge / total_weight(labels, weight)
        x = lift_excluded(logits.double()) / temperature
        ridge = Ridge(diagonal=strength, off=strength, bias=strength)  # off: of no diagonal map
        start = (self.scale * temperature, self.bias) if self.fitted else None
        scale, self.bias, found = fit_affine(x, labels, weight, ridge, diagonal=self.diagonal, start=start)
        self.scale = scale / temperature
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64, device=logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return keep_excluded(apply_affine(lift_excluded(wide), self.scale, self.bias), logits)
