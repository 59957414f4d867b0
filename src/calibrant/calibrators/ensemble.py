"""Ensemble temperature scaling: tempered, raw and uniform probabilities, mixed."""

import math

import torch
from torch import Tensor

from calibrant._core.constraints import Positive
from calibrant.calibrators.base import Tempered
from calibrant.calibrators.chunks import narrowed
from calibrant.calibrators.simplex import MixtureChunk, fit_mixture_weights
from calibrant.calibrators.temperature import fit_temperature
from calibrant.rows import Batch, RowSource


class EnsembleTemperatureScaling(Tempered):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K, weights on the simplex: ETS (Zhang et al. 2020).

    As published, T minimises the log-loss first and the weights then; each is convex, and the weights end within 1e-8
    nats of the best, checked. All three parts keep the order of the classes, so the decision never changes.

    Args:
        prior: Standard deviation of a normal prior on log T about 0, or None for none, as published.

    Attributes:
        temperature: The fitted T.
        weights: (3,) the weights of tempered, raw and uniform.

    Examples:
        >>> z = torch.tensor([[4.0, 0.0]] * 8 + [[1.0, 0.0]] * 4)
        >>> y = torch.tensor([0] * 7 + [1] + [0, 0, 1, 1])
        >>> round(float(EnsembleTemperatureScaling().fit(z, y).weights.sum()), 6)
        1.0

    References:
        Zhang, Kailkhura, Han 2020, Mix-n-Match, §4.1.
    """

    preserves_argmax = True

    weights: Tensor

    def __init__(self, *, prior: Positive | None = None) -> None:
        super().__init__()
        self.prior = prior

    def learned(self) -> str:
        """Return T and the weights."""
        return f"{super().learned()}, weights={[round(w, 4) for w in self.weights.tolist()]}"

    def _fit(self, rows: RowSource) -> None:
        temperature = fit_temperature(rows, self.prior)
        self._temper(math.log(temperature), rows)
        parts = rows.map(_mixture_parts, temperature)
        self.weights = fit_mixture_weights(parts, members=3, mass=rows.mass).to(rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.double()  # where nearly all weight is on the uniform part, float32 would lose the decision
        log_w = self.weights.log()
        tempered = torch.log_softmax(self._tempered(wide), dim=1)
        mixed = torch.logaddexp(tempered + log_w[0], torch.log_softmax(wide, dim=1) + log_w[1])
        mixed = torch.logaddexp(mixed, (log_w[2] - math.log(logits.shape[1])).expand_as(mixed))
        return narrowed(mixed, logits.dtype)


def _mixture_parts(chunk: Batch, temperature: float) -> MixtureChunk:
    """Return the probability (n, 3) of the label as tempered, raw and uniform."""
    z, label = chunk.logits.double(), chunk.labels[:, None]
    parts = [torch.log_softmax(z * beta, dim=1).gather(1, label)[:, 0].exp() for beta in (1 / temperature, 1.0)]
    p = torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], dim=1)
    return MixtureChunk.of(p, chunk.row_weights)
