"""What vector and matrix scaling share: an affine map of the logits, shrunk towards temperature scaling by a ridge."""

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.calibrators._affine import (
    AffineChunk,
    Ridge,
    apply_affine,
    fit_affine,
    keep_excluded,
    lift_excluded,
)
from calibrant.calibrators._base import Certified
from calibrant.calibrators._tempering import check_prior, fit_temperature
from calibrant.rows import Chunk, RowSource


class RidgeAffine(Certified):
    """softmax(W z + b), W diagonal or full, with ridge / N · (‖W T − I‖² + ‖b‖²) added, T being the best temperature."""

    preserves_argmax = False
    diagonal: bool

    scale: Tensor
    bias: Tensor

    def __init__(self, *, ridge: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.ridge = check_number(ridge, name="ridge", low=0)
        self.prior = check_prior(prior)
        self._declare("scale", "bias", "certificate")

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return W, of shape (K,) if diagonal, else (K, K), and b (K,)."""
        return self.scale, self.bias

    def _fit(self, rows: RowSource) -> None:
        mass, temperature = rows.mass, fit_temperature(rows, self.prior)
        strength = self.ridge / mass
        ridge = Ridge(diagonal=strength, off=strength, bias=strength)  # off: of no diagonal map
        start = (self.scale * temperature, self.bias) if self.fitted else None
        inputs = rows.prepared(_input_of, temperature)
        found = fit_affine(inputs, mass, ridge, diagonal=self.diagonal, start=start)
        self.scale, self.bias = found.scale / temperature, found.bias
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64, device=rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return keep_excluded(apply_affine(lift_excluded(wide), self.scale, self.bias), logits)


def _input_of(chunk: Chunk, temperature: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) / temperature, chunk.labels, chunk.weights)
