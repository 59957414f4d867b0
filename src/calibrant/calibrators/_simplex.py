"""Weights of a mixture: the convex problem min over the simplex of −Σ_i s_i log(Σ_m w_m p_im), with its certificate."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import FitError

Array = npt.NDArray[np.float64]

_GAP = 1e-8  # nats of mean log-loss


def fit_mixture_weights(p: Tensor, share: Tensor, *, pseudo: Tensor | None = None) -> Tensor:
    """Return the weights (M,) ≥ 0, Σ = 1, of the mixture of ``p`` (N, M) with the least mean log-loss.

    On the host, since it is small. An interior-point Newton method: −μ Σ log w_m is added and μ let down to where the gap
    that it leaves, M·μ, is below 1e-8 nats. At the end max_m Σ_i s_i p_im / (Σ w p)_i − 1, which bounds the distance from
    the optimum, is checked.

    Args:
        p: Probability of the true class of each row under each component; each row has a positive one.
        share: (N,) weight of each row; they sum to 1.
        pseudo: (M,) ≥ 0: −Σ pseudo_m log w_m is added, a Dirichlet prior; None for none.

    Raises:
        FitError: If the gap is not reached.
    """
    table = (p / p.amax(dim=1, keepdim=True)).double().cpu().numpy()
    rows = share.double().cpu().numpy()
    members = table.shape[1]
    prior = np.zeros(members) if pseudo is None else pseudo.double().cpu().numpy()
    w = np.full(members, 1 / members)
    barrier = 1.0
    while barrier * members > _GAP / 2:
        barrier /= 50
        w = _newton(table, rows, prior + barrier, w, enough=1e-3 * barrier)
    w = _newton(table, rows, prior + barrier, w, enough=1e-20)
    slope = table.T @ (rows / (table @ w)) + prior / w
    gap = float(slope.max() - 1 - prior.sum())
    if not gap <= _GAP * 10:
        raise FitError(f"expected mixture weights within {_GAP:g} nats of the best, got {gap:.3g}; check the data")
    return torch.as_tensor(w, dtype=torch.float64, device=p.device)


def _newton(p: Array, share: Array, strength: Array, w: Array, *, enough: float) -> Array:
    """Return the minimum of −Σ s log(p w) − Σ strength log w on Σ w = 1, from ``w``, to a Newton decrement of ``enough``."""
    members = len(w)
    system = np.zeros((members + 1, members + 1))
    value = _value(p, share, strength, w)
    for _ in range(50):
        ratio = p * (w / (p @ w)[:, None])
        # in units of w, so that entries of 1e-9 do not spoil the condition
        gradient = -(share @ ratio) - strength
        system[:-1, :-1] = (ratio * share[:, None]).T @ ratio + np.diag(strength)
        system[-1, :-1] = system[:-1, -1] = w
        step = np.linalg.solve(system, np.append(-gradient, 0.0))[:-1]
        decrement = -float(gradient @ step)
        if decrement < enough:
            break
        length = min(1.0, 0.95 / max(1e-300, float(-step.min())))
        while True:
            there = w + length * step * w
            there /= there.sum()
            new = _value(p, share, strength, there)
            if new <= value - 1e-4 * length * decrement or length < 1e-10:
                break
            length /= 2
        if new > value:
            break
        w, value = there, new
    return w


def _value(p: Array, share: Array, strength: Array, w: Array) -> float:
    return -float(share @ np.log(p @ w)) - float(strength @ np.log(w))
