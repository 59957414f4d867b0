"""Weights of a mixture: the convex problem min over the simplex of −Σ_i s_i log(Σ_m w_m p_im), with its certificate."""

import torch
from torch import Tensor

from calibrant.errors import FitError

_GAP = 1e-8  # nats of mean log-loss


def fit_mixture_weights(p: Tensor, share: Tensor, *, pseudo: Tensor | None = None) -> Tensor:
    """Return the weights (M,) ≥ 0, Σ = 1, of the mixture of ``p`` (N, M) with the least mean log-loss.

    An interior-point Newton method: −μ Σ log w_m is added and μ let down to where the gap that it leaves, M·μ, is below
    1e-8 nats. At the end max_m Σ_i s_i p_im / (Σ w p)_i − 1, which bounds the distance from the optimum, is checked.

    Args:
        p: Probability of the true class of each row under each component; each row has a positive one.
        share: (N,) weight of each row; they sum to 1.
        pseudo: (M,) ≥ 0: −Σ pseudo_m log w_m is added, a Dirichlet prior; None for none.

    Raises:
        FitError: If the gap is not reached.
    """
    members = p.shape[1]
    p = p / p.amax(dim=1, keepdim=True)
    prior = p.new_zeros(members) if pseudo is None else pseudo
    w = p.new_full((members,), 1 / members)
    barrier = 1.0
    while barrier * members > _GAP / 2:
        barrier /= 10
        w = _newton(p, share, prior + barrier, w)
    slope = p.T @ (share / (p @ w)) + prior / w
    gap = float(slope.max() - 1 - prior.sum())
    if not gap <= _GAP * 10:
        raise FitError(f"expected mixture weights within {_GAP:g} nats of the best, got {gap:.3g}; check the data")
    return w


def _newton(p: Tensor, share: Tensor, strength: Tensor, w: Tensor) -> Tensor:
    """Return the minimum of −Σ s log(p w) − Σ strength log w on Σ w = 1, from the interior point ``w``."""
    members = len(w)
    system = torch.zeros(members + 1, members + 1, dtype=w.dtype, device=w.device)
    system[-1, :-1] = system[:-1, -1] = 1
    for _ in range(50):
        ratio = p / (p @ w)[:, None]
        gradient = -(ratio.T @ share) - strength / w
        # in units of w, so that entries of 1e-9 do not spoil the condition
        system[:-1, :-1] = (ratio * share[:, None]).T @ ratio * w[:, None] * w + torch.diag(strength)
        system[-1, :-1] = system[:-1, -1] = w
        right = torch.cat([-gradient * w, w.new_zeros(1)])
        step = torch.linalg.solve(system, right)[:-1] * w
        decrement = -float(gradient @ step)
        if decrement < 1e-20:
            break
        length = min(1.0, 0.95 / max(1e-300, float((-step / w).max())))
        value = _value(p, share, strength, w)
        while length > 1e-10 and _value(p, share, strength, w + length * step) > value - 1e-4 * length * decrement:
            length /= 2
        w = w + length * step
        w = w / w.sum()
    return w


def _value(p: Tensor, share: Tensor, strength: Tensor, w: Tensor) -> float:
    return -float(share @ (p @ w).log()) - float(strength @ w.log())
