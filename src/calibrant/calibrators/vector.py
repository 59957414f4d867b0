"""Vector scaling: a factor and a bias for each class."""

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

__all__ = ["VectorScaling"]


class VectorScaling(Calibrator):
    """softmax(w ∘ z + b), with w and b (K,) that minimise the validation log-loss (Guo et al. 2017).

    The fit is convex and ends with a gradient certificate. Without regularisation it is known to hurt where classes are
    many or rows few, so by default w and b are drawn to temperature scaling: ridge / N · Σ ((w_k T − 1)² + b_k²) is
    added to the mean log-loss, T being the best temperature. Biases may change the decision.

    Args:
        ridge: Strength in rows, ≥ 0. With 0 there may be no finite optimum, which is an error.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        scale: (K,) the factors w.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Example:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> VectorScaling().fit(z, y).bias.shape
        torch.Size([2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """

    preserves_argmax: ClassVar[bool] = False

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
        """Return (w, b), both (K,)."""
        return self.scale, self.bias

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        check_label_logits(logits, labels)
        temperature = fit_temperature(logits, labels, weight, self.prior)
        strength = self.ridge / total_weight(labels, weight)
        x = lift_excluded(logits.double() / temperature)
        ridge = Ridge(diagonal=strength, off=0.0, bias=strength)
        start = (self.scale * temperature, self.bias) if self.fitted else None
        scale, self.bias, found = fit_affine(x, labels, weight, ridge, diagonal=True, start=start)
        self.scale = scale / temperature
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64, device=logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return keep_excluded(apply_affine(lift_excluded(wide), self.scale, self.bias), logits)
