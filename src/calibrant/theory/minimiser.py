"""The minimiser of a score's expected loss, also for scores without a calibration map, and whether it is unique."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.constraints import checked
from calibrant._objective.log_pairs import LogProbs, log_normalise, log_pairs
from calibrant.errors import RangeError
from calibrant.scores import AnyScore, TrueClassScore
from calibrant.theory.calibration_map import inverse_calibration_map
from calibrant.theory.validity import validity


class Minimum(NamedTuple):
    """A global minimiser for each row, and whether it is unique.

    Attributes:
        log_probs: (N, K) natural logarithms of q.
        unique: (N,) bool.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> minimiser(FocalScore(1.0), torch.tensor([[0.8, 0.2]]).log()).unique
        tensor([True])
    """

    log_probs: Tensor
    unique: Tensor


@checked
def minimiser(score: AnyScore, log_probs: LogProbs) -> Minimum:
    """Return q that minimises Σ_j η_j φ(q_j) over the simplex, η = exp(log_probs): the optimum of training with loss φ.

    Where φ satisfies ``validity``, q is the inverse calibration map, and unique. Otherwise at most one class can lie where
    φ is concave (with two, moving probability between them would lower the risk); all such stationary points are found by
    a search over that class's logit and refined by Newton steps, and the one with the lowest risk is returned.

    Args:
        score: φ; outside its range it must be convex up to some p and not beyond.
        log_probs: (N, K) natural logarithms of η.

    Returns:
        ``Minimum(log_probs, unique)``. Minima whose risks differ by less than 1e-10 · (1 + |risk|) count as equal.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If φ becomes convex again after a concave part, or increases somewhere while some η_j is 0.

    Examples:
        >>> from calibrant.scores import InverseFocalScore
        >>> found = minimiser(InverseFocalScore(2.0), torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log())
        >>> found.log_probs.exp()
        tensor([[0.9484, 0.0516],
                [0.7917, 0.2083]])
        >>> found.unique
        tensor([ True, False])

    References:
        Komisarenko & Kull 2024, §3; for convex φ the minimiser is the inverse of their map.
    """
    found = validity(score)
    if found.bijective:
        rows = torch.ones(log_probs.shape[0], dtype=torch.bool, device=log_probs.device)
        return Minimum(inverse_calibration_map(score, log_probs).detach(), rows)
    search = RowSearch(score, decreasing=found.decreasing)
    lowest = [search.row(row) for row in log_probs.detach().double().cpu()]
    log_q = torch.stack([row.log_probs for row in lowest])
    unique = torch.tensor([row.unique for row in lowest])
    return Minimum(log_q.to(log_probs), unique.to(log_probs.device))


_LOWEST = -690.0  # e^−690 stands for 0: its inverse is still a float64
_FINE = torch.arange(_LOWEST, 40.0, 1 / 64, dtype=torch.float64)  # logits of the table of φ′ on the convex branch
_SCAN = torch.arange(-40.0, 40.0, 1 / 32, dtype=torch.float64)  # logits of the special class
_SAME_RISK = 1e-10  # risks that differ by less, relative to 1 + |risk|, count as equal
_DISTINCT = 1e-6  # in probability: candidates that differ by more are two minima
_POLISH = 50  # most Newton steps


@dataclass(frozen=True)
class StationaryPoint:
    """A stationary point or a vertex: log q (K,), its risk, and whether no other minimum is as low."""

    log_probs: Tensor
    risk: float
    unique: bool = True


class RowSearch:
    """Finds the global minimum of one row η at a time; φ′ is tabulated once.

    Args:
        score: φ.
        decreasing: Whether φ decreases: then the special class is the most probable one.
    """

    def __init__(self, score: TrueClassScore, *, decreasing: bool) -> None:
        self.score, self.decreasing = score, decreasing
        # asinh(−φ′) at p = σ(s): increasing in −φ′, signed, and finite over its 600 decades
        table = _from_log(*self._log_steepness(_FINE))
        falls = table.diff() < -1e-13 * table[:-1].abs()
        concave = (table.diff() > 1e-13 * table[:-1].abs()).nonzero()
        end = int(concave[0, 0]) if len(concave) else len(table) - 1
        if bool(falls[end:][_FINE[end:-1] < 14].any()):
            raise RangeError(
                "φ convex up to some p and not beyond",
                f"{score}, convex again above p = {torch.sigmoid(_FINE[end]):.3g}",
                "minimise its expected loss directly",
            )
        linear = not bool(falls[:end].any())
        self.logits = _FINE[: 1 if linear else end + 1].numpy()
        self.table = table[: len(self.logits)].numpy()

    def row(self, log_eta: Tensor) -> StationaryPoint:
        """Return the lowest candidate for ``log_eta`` (K,)."""
        kept = torch.isfinite(log_eta)
        if not self.decreasing and not bool(kept.all()):
            raise RangeError(
                f"η_j > 0 for every class, since {self.score} increases somewhere",
                "η_j = 0",
                "a class that never occurs would take probability at no cost, so leave it out",
            )
        eta = log_normalise(log_eta[kept])
        best = self._lowest(eta)
        log_q = torch.full_like(log_eta, -math.inf)
        log_q[kept] = torch.where(best.log_probs > _LOWEST + 1, best.log_probs, -math.inf)
        return StationaryPoint(log_q, best.risk, best.unique)

    def _lowest(self, log_eta: Tensor) -> StationaryPoint:
        count = len(log_eta)
        if count == 1:
            return StationaryPoint(torch.zeros(1, dtype=torch.float64), 0.0)
        specials = [int(log_eta.argmax())] if self.decreasing else list(range(count))
        found = [point for special in specials for point in self._points(log_eta, special)]
        found = sorted((point for point in found if not math.isnan(point.risk)), key=lambda point: point.risk)
        best = found[0]
        tied = [point for point in found if point.risk <= best.risk + _SAME_RISK * (1 + abs(best.risk))]
        q = best.log_probs.exp()
        others = any(float((point.log_probs.exp() - q).abs().max()) > _DISTINCT for point in tied)
        # where η_i = η_j but q_i ≠ q_j, exchanging the two classes gives another minimum of the same risk
        same_eta = (log_eta[:, None] - log_eta).abs() < 1e-12
        swapped = bool((same_eta & ((q[:, None] - q).abs() > _DISTINCT)).any())
        return StationaryPoint(best.log_probs, best.risk, unique=not (others or swapped))

    def _points(self, log_eta: Tensor, special: int) -> list[StationaryPoint]:
        """Return the vertex of ``special`` and the stationary points whose other classes all lie on the convex branch."""
        vertex = torch.full_like(log_eta, -math.inf)
        vertex[special] = 0.0
        points = [self._candidate(log_eta, vertex)]
        log_q, gap = self._scan(log_eta, special)
        for i in (torch.sign(gap[:-1]) * torch.sign(gap[1:]) <= 0).nonzero()[:, 0].tolist():
            weight = (gap[i] / (gap[i] - gap[i + 1])).nan_to_num(0.5)  # linear interpolation to the change of sign
            start = log_q[i] + weight * (log_q[i + 1] - log_q[i])
            points.append(self._candidate(log_eta, self._polish(log_eta, start)))
        return points

    def _scan(self, log_eta: Tensor, special: int) -> tuple[Tensor, Tensor]:
        """Return log q (S, K) along the scan, and log(1 − q_special) − log Σ_others q_j (S,), 0 where q is on the simplex."""
        scale = self._log_steepness(_SCAN)
        ratio = log_eta[special] - log_eta
        target = _from_log(scale[0][:, None], scale[1][:, None] + ratio).numpy()
        s = np.interp(-target, -self.table, self.logits)  # the table decreases; outside it, the nearest end is used
        log_q = F.logsigmoid(torch.from_numpy(s))
        log_q[:, special] = -math.inf
        gap = F.logsigmoid(-_SCAN) - torch.logsumexp(log_q, dim=1)
        log_q[:, special] = F.logsigmoid(_SCAN)
        return log_q, gap

    def _polish(self, log_eta: Tensor, log_q: Tensor) -> Tensor:
        """Return ``log_q`` after Newton steps for log|φ′(q_j)| + log η_j = const, Σ q_j = 1; classes at 0 stay there."""
        log_q = log_normalise(log_q)
        free = log_q > _LOWEST + 1
        # Newton's method for log h(q_j) = t + log η_j with h = 1/|φ′|. With e_j = d log h / d log q and r_j = log η_j − log h(q_j),
        # the step is d log q_j = (r_j − m)/e_j, where m is the mean of r with weights q_j/e_j, which keeps Σ q_j = 1
        for _ in range(_POLISH):
            log_p, log_not_p = (x.detach().requires_grad_(True) for x in log_pairs(log_q))
            s = (log_p - log_not_p).detach().requires_grad_(True)
            value = -self._log_steepness(s)[1]
            (rate,) = torch.autograd.grad(value.sum(), s)
            e = rate / torch.exp(log_not_p.detach())
            r = log_eta - value.detach()
            weight = torch.where(free, torch.exp(log_q) / e, 0.0)
            step = torch.where(free, (r - (weight * r).sum() / weight.sum()) / e, 0.0)
            step = step * min(1.0, 1.0 / max(float(step.abs().max()), 1e-300))  # at most 1 in log q
            log_q = log_normalise(log_q + step)
            if float(step.abs().max()) < 1e-14:
                break
        return log_q

    def _candidate(self, log_eta: Tensor, log_q: Tensor) -> StationaryPoint:
        log_p, log_not_p = log_pairs(log_q)
        losses = self.score.value(log_p.clamp_min(-1e12), log_not_p)
        risk = float((torch.exp(log_eta) * losses).sum())
        return StationaryPoint(log_q, risk if not torch.isneginf(log_q).any() else self._risk_of_vertex(log_eta, log_q))

    def _risk_of_vertex(self, log_eta: Tensor, log_q: Tensor) -> float:
        """Return the risk where some q_j is 0: φ(0) is evaluated at e^−690, and infinite if φ still increases there."""
        ends = torch.tensor([_LOWEST, _LOWEST / 2], dtype=torch.float64)
        at_zero = self.score.value(ends, -torch.exp(ends))
        if float(at_zero[0] - at_zero[1]) > 1e-6:
            return math.inf
        top = int(log_q.argmax())
        at_one = self.score.value(*log_pairs(torch.tensor([-_LOWEST, 0.0], dtype=torch.float64)))[0]
        eta = torch.exp(log_eta)
        return float(eta[top] * at_one + (1 - eta[top]) * at_zero[0])

    def _log_steepness(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sign of −φ′ and log|φ′|."""
        log_p, log_not_p = F.logsigmoid(s), F.logsigmoid(-s)
        slope = self.score.slope(log_p, log_not_p)
        tiny = torch.finfo(torch.float64).tiny
        return torch.sign(slope).detach(), torch.log(slope.abs().clamp_min(tiny)) - log_p


def _from_log(sign: Tensor, log_size: Tensor) -> Tensor:
    """Return asinh(sign·exp(log_size))."""
    small = torch.asinh(torch.exp(log_size.clamp_max(20.0)))
    return sign * torch.where(log_size > 20, log_size + math.log(2), small)
