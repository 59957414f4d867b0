"""Temperature scaling mixed with a little of the uniform distribution."""

import math
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.constraints import Number, Positive
from calibrant._core.minimise import Objective, by_exponent, minimise
from calibrant.calibrators.base.calibrator import Tempered
from calibrant.calibrators.base.chunks import check_label_logits, narrowed
from calibrant.calibrators.base.simplex import MixtureChunk, fit_mixture_weights
from calibrant.calibrators.focal.temperature import fit_temperature, mix_with_uniform
from calibrant.rows import Chunk, RowSource


class TemperatureMixture(Tempered):
    """(1 − ε) · softmax(z / T) + ε / K: temperature scaling with probabilities bounded away from 0 and 1.

    By default ε = 1 / (N + 1), Laplace's share for the answer never seen, and T minimises the validation log-loss
    before mixing. With ``mixing="fit"`` both are fitted to the log-loss of the mixture, with one more, imagined row of
    which nothing but the uniform part is known, so that ε > 0. That problem is not convex: 41 temperatures in [0.02, 50],
    evenly in log T, with 27 ε each are tried, and Newton's method in (log T, log ε) goes on from the best three valleys.
    The decision never changes.

    Args:
        mixing: ``"laplace"``, ``"fit"``, or ε itself in [0, 1).
        prior: Standard deviation of a normal prior on log T about 0, or None for none. With 0.5 a small or all-correct
            validation set cannot drive T to its bound.

    Attributes:
        temperature: The fitted T.
        mixing_share: The ε in use.

    Examples:
        >>> import math
        >>> z = torch.tensor([[2 * math.log(4), 0.0]] * 10)
        >>> y = torch.tensor([0] * 8 + [1] * 2)
        >>> fitted = TemperatureMixture().fit(z, y)
        >>> round(fitted.temperature, 4), round(fitted.mixing_share, 4)
        (2.0, 0.0909)

    References:
        Guo et al. 2017, §4.2 (the temperature); Zhang, Kailkhura, Han 2020, Mix-n-Match (mixing with the uniform).
    """

    preserves_argmax = True

    share: Tensor

    def __init__(
        self,
        mixing: Literal["laplace", "fit"] | Annotated[float, Number(0, 1, open_high=True)] = "laplace",
        *,
        prior: Positive | None = None,
    ) -> None:
        super().__init__()
        self.mixing = mixing
        self.prior = prior

    @property
    def mixing_share(self) -> float:
        """The ε in use; NaN before ``fit``."""
        return float(self.share) if self.fitted else math.nan

    def learned(self) -> str:
        """Return T and ε."""
        return f"{super().learned()}, share={self.mixing_share:.3g}"

    def _fit(self, rows: RowSource) -> None:
        if self.mixing == "fit":
            temperature, share = mixture_minimum(rows, self.prior)
        else:
            temperature = fit_temperature(rows, self.prior)
            share = 1 / (rows.mass + 1) if isinstance(self.mixing, str) else self.mixing
        self._temper(math.log(temperature), rows)
        self.share = torch.tensor(share, dtype=torch.float64, device=rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return mix_with_uniform(torch.log_softmax(self._tempered(logits), dim=1), self.share)


# The log-loss of (1 − ε) softmax(z / T) + ε / K with its derivatives by log T and log ε, and its minimum.

_LOW, _HIGH, _POINTS = math.log(0.02), math.log(50.0), 41  # of log T: where the search begins
_ENOUGH = 1e-6  # of a gradient entry of the mean log-loss by (log T, log ε)
_MOST_SHARE = 1 - 1e-9
_SHARES = (*np.geomspace(1e-9, 0.1, 17).tolist(), *np.linspace(0.15, 0.95, 9).tolist())
_STARTS = 3  # local minima of the grid from which Newton's method sets out


def mixture_minimum(rows: RowSource, prior: float | None) -> tuple[float, float]:
    """Return the (T, ε) that minimise the mixture's log-loss with one imagined row of uniform part, −log ε, and the prior.

    The problem is not convex. 41 temperatures with 27 ε each are tried in one pass; Newton's method in (log T, log ε) goes
    on from the best three that no neighbour beats, and the best end is the answer.

    Args:
        rows: The data.
        prior: Standard deviation of a normal prior on log T, or None.

    Raises:
        InputError: If a true class is excluded by −inf.
        FitError: If a gradient is not small at the end.
    """
    mass, pull = rows.mass, 0.0 if prior is None else prior**-2
    grid = np.linspace(_LOW, _HIGH, _POINTS).tolist()
    shares = [*_SHARES, 1 / (mass + 1)]
    losses = rows.total(tried_losses, tuple(grid), tuple(shares)).cpu()
    losses = losses - torch.tensor(shares, dtype=torch.float64).log()
    losses = losses + pull / 2 * torch.tensor(grid, dtype=torch.float64)[:, None] ** 2

    def second(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, log_share = x.tolist()
        value, gradient, hessian = by_exponent(rows.total(mixed_sums, u, math.exp(log_share)), math.exp(log_share))
        return value - log_share, gradient - gradient.new_tensor([0.0, 1.0]), hessian  # the imagined row's −log ε

    bounds = (
        torch.tensor([_LOW, math.log(1e-300)], dtype=torch.float64),
        torch.tensor([_HIGH, math.log(_MOST_SHARE)], dtype=torch.float64),
    )
    loss = Objective(mass, second, ridge=torch.tensor([pull / (2 * mass), 0.0], dtype=torch.float64), bounds=bounds)
    starts = [[grid[i], math.log(shares[j])] for i, j in _valleys(losses)[:_STARTS]]
    found = [minimise(loss, torch.tensor(one, dtype=torch.float64), enough=_ENOUGH, longest=1.0) for one in starts]
    u, log_share = min(found, key=lambda minimum: round(minimum.value, 12)).theta.tolist()
    return math.exp(u), math.exp(log_share)


def _valleys(losses: Tensor) -> list[tuple[int, int]]:
    """Return the places of a matrix that no neighbour is below, the least first; columns are ordered by their minimum's share."""
    padded = torch.nn.functional.pad(losses[None, None], (0, 0, 1, 1), value=math.inf)[0, 0]
    per_row, column = losses.min(dim=1)
    rows = padded.amin(dim=1)
    inner = (per_row <= rows[:-2]) & (per_row <= rows[2:])
    places = torch.nonzero(inner)[:, 0].tolist()
    return sorted(((i, int(column[i])) for i in places), key=lambda place: float(losses[place]))


def tried_losses(chunk: Chunk, grid: tuple[float, ...], shares: tuple[float, ...]) -> Tensor:
    """Return Σ w log-loss of the mixture (G, S) for each log T and ε."""
    check_label_logits(chunk)
    z, uniform, label = chunk.logits.double(), 1 / chunk.logits.shape[1], chunk.labels[:, None]
    share = torch.tensor(shares, dtype=torch.float64, device=z.device)
    losses = []
    for u in grid:
        p = torch.log_softmax(z * math.exp(-u), dim=1).gather(1, label).exp()
        losses.append(-(chunk.weights @ (p + share * (uniform - p)).log()))
    return torch.stack(losses)


def mixed_sums(chunk: Chunk, log_temperature: float, eps: float) -> Tensor:
    """Return Σ loss, Σ ∂u, Σ ∂ε, Σ ∂uu, Σ ∂uε, Σ ∂εε (6,) of the rows' log-losses, u = log T.

    With a = z / T, g = E a − a_y and p the probability of the label: ∂p/∂u = p g and ∂g/∂u = −g − Var a.
    """
    uniform, label = 1 / chunk.logits.shape[1], chunk.labels[:, None]
    a = chunk.logits.double() * math.exp(-log_temperature)
    log_p = torch.log_softmax(a, dim=1)
    q = log_p.exp()
    a = torch.where(q > 0, a, 0.0)  # an excluded class has no part in the means
    mean = (q * a).sum(dim=1)
    variance = (q * a * a).sum(dim=1) - mean**2
    p = log_p.gather(1, label)[:, 0].exp()
    g = torch.where(p > 0, mean - a.gather(1, label)[:, 0], 0.0)
    mixed = p + eps * (uniform - p)
    first = (1 - eps) * p * g / mixed
    second = (1 - eps) * p * (g * g - g - variance) / mixed
    off = (uniform - p) / mixed
    parts = [-mixed.log(), -first, -off, first**2 - second, p * g / mixed + first * off, off**2]
    return torch.stack([(part * chunk.weights).sum() for part in parts])


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
        parts = rows.prepared(_mixture_parts, temperature)
        self.weights = fit_mixture_weights(parts, members=3, mass=rows.mass).to(rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.double()  # where nearly all weight is on the uniform part, float32 would lose the decision
        log_w = self.weights.log()
        tempered = torch.log_softmax(self._tempered(wide), dim=1)
        mixed = torch.logaddexp(tempered + log_w[0], torch.log_softmax(wide, dim=1) + log_w[1])
        mixed = torch.logaddexp(mixed, (log_w[2] - math.log(logits.shape[1])).expand_as(mixed))
        return narrowed(mixed, logits.dtype)


def _mixture_parts(chunk: Chunk, temperature: float) -> MixtureChunk:
    """Return the probability (n, 3) of the label as tempered, raw and uniform."""
    z, label = chunk.logits.double(), chunk.labels[:, None]
    parts = [torch.log_softmax(z * beta, dim=1).gather(1, label)[:, 0].exp() for beta in (1 / temperature, 1.0)]
    p = torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], dim=1)
    return MixtureChunk.of(p, chunk.weights)
