"""Mixtures of probabilities: their weights by maximum likelihood, and ensemble temperature scaling, which mixes three."""

import math

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.calibrators.base import Tempered
from calibrant.calibrators.chunks import narrowed
from calibrant.calibrators.temperature import fit_temperature
from calibrant.errors import FitError
from calibrant.rows import Batch, RowSource

_GAP, _RESTARTS = 1e-6, 10  # nats of mean log-loss; searches at most
_LEAST = 1e-9  # of a weight: it costs less than the gap, and the order of the classes outlives a useless component


def fit_mixture_weights(p: Tensor, weights: Tensor) -> Tensor:
    """Return the weights w (M,) ≥ 0, Σ w = 1, of the mixture Σ_m w_m p_im with the least mean log-loss: a convex problem.

    The constraint Σ w = 1 is dropped and Σ w added to the mean log-loss: since that falls by log c where w grows by a factor c, the
    minimum lies on the simplex by itself, and only w ≥ 1e-9 remains. At the end max_m mean(p_im / (Σ w p)_i) − 1, which bounds
    the distance from the optimum in nats, is checked.

    Args:
        p: (N, M) float64, the probability of each row's label under each component, up to a factor of the row.
        weights: (N,) float64 > 0, of the rows.

    Raises:
        FitError: If the gap is not reached.
    """
    from scipy.optimize import minimize

    p, share = p / p.amax(dim=1, keepdim=True), weights / weights.sum()

    def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = p @ torch.from_numpy(w).to(p)
        gradient = 1 - (share / mixed) @ p
        return w.sum() - float(share @ mixed.log()), gradient.cpu().numpy()

    members, gap = p.shape[1], math.inf
    options = {"gtol": 1e-10, "ftol": 0.0, "maxiter": 5000, "maxfun": 10_000, "maxls": 40}
    w, bounds = np.full(members, 1 / members), [(_LEAST, 2.0)] * members
    for _ in range(_RESTARTS):  # a line search that rounding stopped begins anew
        w = minimize(value_and_gradient, w, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
        w /= w.sum()
        gradient = value_and_gradient(w)[1]
        gap = -float(gradient.min())
        if gap <= _GAP / 100:
            break
        w = w * (1 - gradient)  # a step of expectation maximisation, which always descends
    if not gap <= _GAP:
        raise FitError(f"mixing weights within {_GAP:g} nats of the best", f"{gap:.3g}", "use fewer components")
    return torch.from_numpy(w).to(p.device)


class EnsembleTemperatureScaling(Tempered):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K, weights on the simplex: ETS (Zhang et al. 2020).

    As published, T minimises the log-loss first and the weights then; each is convex, and the weights end within 1e-6
    nats of the best, checked. All three parts keep the order of the classes, so the decision never changes.

    Args:
        prior: Standard deviation > 0 of a normal prior on log T about 0, or None for none, as published.

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
        self.prior = None if prior is None else check_number(prior, name="prior", low=0, open_low=True)

    def learned(self) -> str:
        """Return T and the weights."""
        return f"{super().learned()}, weights={[round(w, 4) for w in self.weights.tolist()]}"

    def _fit(self, rows: RowSource) -> None:
        start = float(self.log_temperature) if self.fitted else 0.0
        temperature = fit_temperature(rows, self.prior, start=start)
        self._temper(math.log(temperature), rows)
        p, weights = zip(*rows.collected(_label_probabilities, temperature), strict=True)
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
