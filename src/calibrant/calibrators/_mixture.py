"""The log-loss of (1 − ε) softmax(z / T) + ε / K with its derivatives by log T and log ε, and Newton's method on it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant.errors import FitError

LOW, HIGH, POINTS = math.log(0.02), math.log(50.0), 41  # of log T: where the search begins
_TOLERANCE = 1e-9  # of a gradient entry of the mean log-loss by (log T, log ε)
_MOST_SHARE = 1 - 1e-9


@dataclass(frozen=True)
class Mixture:
    """A temperature and a share of the uniform distribution."""

    log_temperature: float
    share: float


def mixture_sums(logits: Tensor, labels: Tensor, weight: Tensor | None, at: Mixture) -> Tensor:
    """Return Σ loss, Σ ∂u, Σ ∂ε, Σ ∂uu, Σ ∂uε, Σ ∂εε (6,) of the rows' log-losses, u = log T.

    With a = z / T, g = E a − a_y and p the probability of the label: ∂p/∂u = p g and ∂g/∂u = −g − Var a.
    """
    total = torch.zeros(6, dtype=torch.float64, device=logits.device)
    eps, uniform = at.share, 1 / logits.shape[1]
    for rows in row_chunks(*logits.shape, device=logits.device):
        a = logits[rows].double() * math.exp(-at.log_temperature)
        log_p = torch.log_softmax(a, dim=1)
        q = log_p.exp()
        a = torch.where(q > 0, a, 0.0)  # an excluded class has no part in the means
        mean = (q * a).sum(dim=1)
        variance = (q * a * a).sum(dim=1) - mean**2
        label = labels[rows, None]
        p = log_p.gather(1, label)[:, 0].exp()
        g = torch.where(p > 0, mean - a.gather(1, label)[:, 0], 0.0)
        mixed = p + eps * (uniform - p)
        first = (1 - eps) * p * g / mixed
        second = (1 - eps) * p * (g * g - g - variance) / mixed
        off = (uniform - p) / mixed
        cross = p * g / mixed + first * off
        parts = [-mixed.log(), -first, -off, first**2 - second, cross, off**2]
        w = 1.0 if weight is None else weight[rows]
        total += torch.stack([(part * w).sum() for part in parts])
    return total


def settle(sums: Callable[[Mixture], Tensor], start: Mixture, *, total: float, prior: float | None) -> Mixture:
    """Return the minimum near ``start`` of the mean log-loss with one imagined row of uniform part, −log ε, and the prior.

    Newton's method in (log T, log ε) with halved steps; where the curvature is not positive its diagonal is raised. The
    ends of the range hold the search.

    Args:
        sums: ``mixture_sums`` over all rows.
        start: Where to begin.
        total: Rows, or the sum of their weights.
        prior: Standard deviation of a normal prior on log T, or None.

    Raises:
        FitError: If the gradient is not small at the end.
    """
    at = start
    value, gradient, hessian = _penalised(sums(at), at, total, prior)
    for _ in range(60):
        free = _free(at, gradient)
        if float((gradient * free).abs().max()) <= _TOLERANCE:
            return at
        step = _newton_step(gradient, hessian, free)
        length = min(1.0, 1.0 / max(float(step.abs().max()), 1e-300))
        for _ in range(40):
            there = _moved(at, length * step)
            new, slope, curvature = _penalised(sums(there), there, total, prior)
            flat = abs(new - value) <= 1e-13 * max(1.0, abs(value))
            calmer = float(slope.abs().max()) < float(gradient.abs().max())
            if (new < value and not flat) or (flat and calmer):
                break
            length /= 2
        else:
            break
        at, value, gradient, hessian = there, new, slope, curvature
    worst = float((gradient * _free(at, gradient)).abs().max())
    if worst > 1e3 * _TOLERANCE:
        raise FitError(
            f"expected a gradient below {1e3 * _TOLERANCE:g} at the optimum, got {worst:.3g}; check the data"
        )
    return at


def _penalised(sums: Tensor, at: Mixture, total: float, prior: float | None) -> tuple[float, Tensor, Tensor]:
    """Return mean value, gradient (2,) and Hessian (2, 2) by (log T, log ε), imagined row and prior included."""
    loss, u, e, uu, ue, ee = (sums.cpu() / total).tolist()
    eps, pull = at.share, 0.0 if prior is None else 1 / (prior**2 * total)
    value = loss - math.log(eps) / total + pull * at.log_temperature**2 / 2
    gradient = torch.tensor([u + pull * at.log_temperature, eps * e - 1 / total], dtype=torch.float64)
    hessian = torch.tensor([[uu + pull, eps * ue], [eps * ue, eps**2 * ee + eps * e]], dtype=torch.float64)
    return value, gradient, hessian


def _free(at: Mixture, gradient: Tensor) -> Tensor:
    """Return 1 for the coordinates that may move, 0 for those the gradient presses against an end."""
    u, x = gradient.tolist()
    held = (at.log_temperature <= LOW and u > 0) or (at.log_temperature >= HIGH and u < 0)
    return torch.tensor([not held, not (at.share >= _MOST_SHARE and x < 0)], dtype=torch.float64)


def _newton_step(gradient: Tensor, hessian: Tensor, free: Tensor) -> Tensor:
    masked = hessian * free[:, None] * free + torch.diag(1 - free)
    values, vectors = torch.linalg.eigh(masked)
    curved = values.abs().clamp_min(1e-12 * float(values.abs().max()) + 1e-300)
    step: Tensor = -(vectors @ ((vectors.T @ (gradient * free)) / curved))
    return step * free


def _moved(at: Mixture, step: Tensor) -> Mixture:
    u, x = step.tolist()
    log_temperature = min(max(at.log_temperature + u, LOW), HIGH)
    return Mixture(log_temperature, min(at.share * math.exp(x), _MOST_SHARE))
