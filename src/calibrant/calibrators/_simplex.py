"""Weights of a mixture: the convex problem min over the simplex of −Σ_i s_i log(Σ_m w_m p_im), with its certificate."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import FitError

Array = npt.NDArray[np.float64]

_GAP = 1e-8  # nats of mean log-loss
_SURE = 1e-13  # a Newton decrement below which the value, in float64, no longer changes


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
    prior = np.zeros(table.shape[1]) if pseudo is None else pseudo.double().cpu().numpy()
    w = solve_weights(_Rows(table, share.double().cpu().numpy()), pseudo=prior)
    return torch.as_tensor(w, dtype=torch.float64, device=p.device)


class MixtureSums(Protocol):
    """What the search asks of the rows; r_m = w_m p_m / Σ w p."""

    def value(self, w: Array) -> float:
        """Return Σ s log(Σ w p)."""

    def derivatives(self, w: Array) -> tuple[Array, Array]:
        """Return Σ s r (M,) and Σ s r rᵀ (M, M)."""


@dataclass(frozen=True)
class _Rows:
    """Rows in memory: a table (N, M) and their shares (N,)."""

    table: Array
    share: Array

    def value(self, w: Array) -> float:
        return float(self.share @ np.log(self.table @ w))

    def derivatives(self, w: Array) -> tuple[Array, Array]:
        ratio = self.table * (w / (self.table @ w)[:, None])
        return self.share @ ratio, (ratio * self.share[:, None]).T @ ratio


def solve_weights(sums: MixtureSums, *, pseudo: Array, start: Array | None = None) -> Array:
    """Return the weights (M,) of least mean log-loss, as ``fit_mixture_weights``, of rows known by their sums.

    Args:
        sums: The rows.
        pseudo: (M,) ≥ 0: −Σ pseudo_m log w_m is added.
        start: Weights near the answer, from which the last step of the path is taken at once.

    Raises:
        FitError: If the gap is not reached.
    """
    members = len(pseudo)
    barriers = [1 / 50]
    while barriers[-1] * members > _GAP / 2:
        barriers.append(barriers[-1] / 50)
    w = np.full(members, 1 / members) if start is None else start
    for barrier in barriers if start is None else ():
        w = _newton(sums, pseudo + barrier, w, enough=1e-3 * barrier)
    w = _newton(sums, pseudo + barriers[-1], w, enough=1e-20)
    slope = (sums.derivatives(w)[0] + pseudo) / w
    gap = float(slope.max() - 1 - pseudo.sum())
    if not gap <= _GAP * 10:
        if start is not None:  # it was too far away
            return solve_weights(sums, pseudo=pseudo)
        raise FitError(f"expected mixture weights within {_GAP:g} nats of the best, got {gap:.3g}; check the data")
    return w


def _newton(sums: MixtureSums, strength: Array, w: Array, *, enough: float) -> Array:
    """Return the minimum of −Σ s log(p w) − Σ strength log w on Σ w = 1, from ``w``, to a Newton decrement of ``enough``."""
    members = len(w)
    system = np.zeros((members + 1, members + 1))
    value = _value(sums, strength, w)
    for _ in range(50):
        first, second = sums.derivatives(w)
        # in units of w, so that entries of 1e-9 do not spoil the condition
        gradient = -first - strength
        system[:-1, :-1] = second + np.diag(strength)
        system[-1, :-1] = system[:-1, -1] = w
        step = np.linalg.solve(system, np.append(-gradient, 0.0))[:-1]
        decrement = -float(gradient @ step)
        if decrement < enough:
            break
        length = min(1.0, 0.95 / max(1e-300, float(-step.min())))
        while True:
            there = w + length * step * w
            there /= there.sum()
            new = _value(sums, strength, there)
            sure = decrement < _SURE and length == 1.0  # the value no longer tells, and Newton's step is right
            if sure or new <= value - 1e-4 * length * decrement or length < 1e-10:
                break
            length /= 2
        if new > value and not sure:
            break
        w, value = there, new
    return w


def _value(sums: MixtureSums, strength: Array, w: Array) -> float:
    return -sums.value(w) - float(strength @ np.log(w))
