"""Mixtures of probabilities with weights by maximum likelihood, and ensemble temperature scaling, a mixture of three."""

import math

import torch
from torch import Tensor

from calibrant._core.newton import newton
from calibrant.calibrators.base import Tempered, narrowed
from calibrant.calibrators.temperature import check_prior, fit_log_temperature
from calibrant.rows import Batch, RowSource

_LEAST = 1e-9  # smallest weight; it costs far less than sampling error, and keeps the order of the classes


def fit_mixture_weights(p: Tensor, weights: Tensor) -> Tensor:
    """Return the weights w (M,) ≥ 0, Σ w = 1, of the mixture Σ_m w_m p_im with the lowest mean log-loss: a convex problem.

    The constraint Σ w = 1 is replaced by adding Σ w to the mean log-loss. Multiplying w by c lowers the log-loss by log c, so the
    minimum is on the simplex anyway, and only the bound w ≥ 1e-9 remains. The smallest entry of the gradient
    1 − mean(p_im / (Σ w p)_i) bounds the distance from the optimum in nats.

    Args:
        p: (N, M) float64, the probability of each row's label under each component, up to a factor for each row.
        weights: (N,) float64 weights > 0 of the rows.

    Raises:
        FitError: If the gradient does not end below 1e-7.
    """
    p, share = p / p.amax(dim=1, keepdim=True), weights / weights.sum()

    def derivatives(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = p @ w
        ratio = p / mixed[:, None]
        return w.sum() - share @ mixed.log(), 1 - share @ ratio, (ratio * share[:, None]).T @ ratio

    w = newton(derivatives, p.new_full(p.shape[1:], 1 / p.shape[1]), low=_LEAST).theta
    return w / w.sum()


class EnsembleTemperatureScaling(Tempered):
    """A mixture of tempered, raw and uniform probabilities, w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K: ETS (Zhang et al. 2020).

    As published, T is fitted first and the weights second, both by log-loss; each problem is convex and ends with a
    certificate. All three parts keep the order of the classes, so the decision never changes.

    Args:
        prior: Standard deviation > 0 of a normal prior on log T with mean 0, or None for none, as published.

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

    def __init__(self, *, prior: float | None = None) -> None:
        super().__init__()
        self.prior = check_prior(prior)

    def learned(self) -> str:
        """Return T and the weights."""
        return f"{super().learned()}, weights={[round(w, 4) for w in self.weights.tolist()]}"

    def _fit(self, rows: RowSource) -> None:
        start = float(self.log_temperature) if self.fitted else 0.0
        log_temperature, _ = fit_log_temperature(rows, start=start, prior=self.prior)
        self.log_temperature = torch.tensor(log_temperature, dtype=torch.float64)
        p, weights = zip(*rows.collected(_label_probabilities, math.exp(log_temperature)), strict=True)
        self.weights = fit_mixture_weights(torch.cat(p), torch.cat(weights))

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.double()  # where nearly all weight is on the uniform part, float32 would lose the decision
        log_w = self.weights.log()
        tempered = torch.log_softmax(self._tempered(wide), dim=1)
        mixed = torch.logaddexp(tempered + log_w[0], torch.log_softmax(wide, dim=1) + log_w[1])
        mixed = torch.logaddexp(mixed, (log_w[2] - math.log(logits.shape[1])).expand_as(mixed))
        return narrowed(mixed, logits.dtype)


def _label_probabilities(batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the probability (n, 3) of each label as tempered, raw and uniform, and the weights (n,)."""
    z, label = batch.logits.double(), batch.labels[:, None]
    parts = [torch.log_softmax(z * beta, dim=1).gather(1, label)[:, 0].exp() for beta in (1 / temperature, 1.0)]
    return torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], dim=1), batch.row_weights
