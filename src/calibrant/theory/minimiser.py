"""The minimiser of a score's expected loss, which is found even if the score has no calibration map, and its uniqueness.

If φ is not convex everywhere, a search in one variable finds all stationary points for a row, and the lowest one is returned.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.log_pairs import check_log_probs, log_normalise, log_pairs
from calibrant.errors import RangeError
from calibrant.scores import TrueClassScore
from calibrant.theory.calibration_map import inverse_calibration_map
from calibrant.theory.validity import validity

_LOWEST = -690.0  # e^−690 stands for 0, because its inverse is still a float64 number
_FINE = torch.arange(_LOWEST, 40.0, 1 / 64, dtype=torch.float64)  # logits in the table of φ′ on the convex branch
_SCAN = torch.arange(-40.0, 40.0, 1 / 32, dtype=torch.float64)  # logits of the special class
_TOP_CHECKED = 14.0  # logit up to which an increase of φ′ is more than rounding error
_ROUNDING = 1e-13  # a smaller relative change of φ′ between neighbouring logits is rounding error
_SAME_RISK = 1e-10  # risks that differ by less, relative to 1 + |risk|, count as equal
_DISTINCT = 1e-6  # candidates whose probabilities differ by more are distinct minima
_MAX_STEPS = 50  # largest number of Newton steps


class Minimum(NamedTuple):
    """A global minimiser for each row, and whether it is unique.

    Attributes:
        log_probs: Natural logarithms of q (N, K).
        unique: Whether no other point has the same risk (N,), bool.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> minimiser(FocalScore(1.0), torch.tensor([[0.8, 0.2]]).log()).unique
        tensor([True])
    """

    log_probs: Tensor
    unique: Tensor


def minimiser(score: TrueClassScore, log_probs: Tensor) -> Minimum:
    """Return the q that minimises Σ_j η_j φ(q_j) over the simplex, the optimum of training with the loss φ.

    Here η = exp(log_probs). If φ satisfies the conditions of ``validity``, q is the inverse calibration map and unique.
    Otherwise, at most one class can lie where φ is concave (with two such classes, moving probability between them would
    decrease the risk). A search over the logit of this class finds all such stationary points, Newton steps refine them, and
    the point with the lowest risk is returned.

    Args:
        score: The score φ. If it is not convex everywhere, it must be convex up to some p and concave from there on.
        log_probs: Natural logarithms of η (N, K).

    Returns:
        The minimisers and whether each is unique. Minima whose risks differ by less than 1e-10 · (1 + |risk|) count as equal.

    Raises:
        InputError: If the exponentials in a row do not sum to 1.
        RangeError: If φ becomes convex again after a concave part, or if φ increases somewhere and some η_j is 0.

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
    check_log_probs(log_probs)
    found = validity(score)
    if found.bijective:
        unique = torch.ones(len(log_probs), dtype=torch.bool, device=log_probs.device)
        return Minimum(inverse_calibration_map(score, log_probs).detach(), unique)
    search = _RowSearch.of(score, decreasing=found.decreasing)
    log_q, alone = zip(*(search.minimum(row) for row in log_probs.detach().double().cpu()), strict=True)
    return Minimum(torch.stack(log_q).to(log_probs), torch.tensor(alone, device=log_probs.device))


@dataclass(frozen=True)
class _RowSearch:
    """The search for the global minimum of one row.

    Args:
        score: The score φ.
        decreasing: Whether φ decreases. If so, the special class (the one that may lie where φ is concave) is the most
            probable one.
        logits: The logits of probabilities at which φ is convex (S,).
        table: asinh(−φ′) at these logits (S,), decreasing. asinh keeps the sign and stays finite over 600 decades of φ′.
    """

    score: TrueClassScore
    decreasing: bool
    logits: np.ndarray
    table: np.ndarray

    @classmethod
    def of(cls, score: TrueClassScore, *, decreasing: bool) -> "_RowSearch":
        table = _with_sign(*_slope(score, _FINE))
        threshold = _ROUNDING * table[:-1].abs()
        falls, rises = table.diff() < -threshold, (table.diff() > threshold).nonzero()
        end = int(rises[0, 0]) if len(rises) else len(table) - 1
        if bool(falls[end:][_FINE[end:-1] < _TOP_CHECKED].any()):
            raise RangeError(
                "φ convex up to some p and concave from there on",
                f"{score}, convex again above p = {torch.sigmoid(_FINE[end]):.3g}",
                "minimise its expected loss directly",
            )
        size = end + 1 if bool(falls[:end].any()) else 1  # the slope of a linear φ has only one value
        return cls(score, decreasing, _FINE[:size].numpy(), table[:size].numpy())

    def minimum(self, log_eta: Tensor) -> tuple[Tensor, bool]:
        """Return the log q (K,) with the lowest risk for ``log_eta`` (K,), and whether it is unique."""
        kept = torch.isfinite(log_eta)
        if not self.decreasing and not bool(kept.all()):
            raise RangeError(
                f"η_j > 0 for every class, because {self.score} increases somewhere",
                "η_j = 0",
                "leave this class out, because a class that never occurs would take probability at no cost",
            )
        result = torch.full_like(log_eta, -math.inf)
        log_eta = log_normalise(log_eta[kept])
        special = [int(log_eta.argmax())] if self.decreasing else range(len(log_eta))
        candidates = [log_q for k in special for log_q in self._candidates(log_eta, k)]
        risks = torch.tensor([self._risk(log_eta, log_q) for log_q in candidates])
        lowest = float(risks[~risks.isnan()].min())
        best = candidates[int(risks.nan_to_num(math.inf).argmin())]
        q = best.exp()
        tied = (risks <= lowest + _SAME_RISK * (1 + abs(lowest))).nonzero()[:, 0].tolist()
        others = any(float((candidates[i].exp() - q).abs().max()) > _DISTINCT for i in tied)
        # if η_i = η_j but q_i ≠ q_j, exchanging the two classes gives another minimum with the same risk
        same_eta = (log_eta[:, None] - log_eta).abs() < 1e-12
        swapped = bool((same_eta & ((q[:, None] - q).abs() > _DISTINCT)).any())
        result[kept] = torch.where(best > _LOWEST + 1, best, -math.inf)
        return result, not (others or swapped)

    def _candidates(self, log_eta: Tensor, special: int) -> list[Tensor]:
        """Return the vertex of ``special`` and the stationary points whose other classes all lie on the convex branch."""
        vertex = torch.full_like(log_eta, -math.inf)
        vertex[special] = 0.0
        # at each logit of the special class, the others follow from η_j φ′(q_j) = η_special φ′(q_special)
        sign, log_size = _slope(self.score, _SCAN)
        target = _with_sign(sign[:, None], log_size[:, None] + log_eta[special] - log_eta).numpy()
        s = np.interp(-target, -self.table, self.logits)  # the table decreases; outside it, the nearest end is used
        log_q = F.logsigmoid(torch.from_numpy(s))
        log_q[:, special] = -math.inf
        # log(1 − q_special) − log Σ_others q_j is 0 where q lies on the simplex
        gap = F.logsigmoid(-_SCAN) - torch.logsumexp(log_q, dim=1)
        log_q[:, special] = F.logsigmoid(_SCAN)
        changes = (torch.sign(gap[:-1]) * torch.sign(gap[1:]) <= 0).nonzero()[:, 0]
        return [vertex, *(self._refine(log_eta, start) for start in log_q[changes])]

    def _refine(self, log_eta: Tensor, log_q: Tensor) -> Tensor:
        """Return ``log_q`` after Newton steps for log|φ′(q_j)| + log η_j = const with Σ q_j = 1; classes with q = 0 stay at 0."""
        log_q = log_normalise(log_q)
        free = log_q > _LOWEST + 1
        # Newton's method for log h(q_j) = t + log η_j with h = 1/|φ′|. With e_j = d log h / d log q and r_j = log η_j − log h(q_j),
        # the step is d log q_j = (r_j − m)/e_j, where m is the mean of r with weights q_j/e_j, which keeps Σ q_j = 1
        for _ in range(_MAX_STEPS):
            log_p, log_not_p = log_pairs(log_q)
            s = (log_p - log_not_p).requires_grad_(True)
            log_h = -_slope(self.score, s)[1]
            e = torch.autograd.grad(log_h.sum(), s)[0] / torch.exp(log_not_p)
            r = log_eta - log_h.detach()
            weight = torch.where(free, torch.exp(log_q) / e, 0.0)
            step = torch.where(free, (r - (weight * r).sum() / weight.sum()) / e, 0.0)
            step = step / step.abs().max().clamp_min(1.0)  # so that log q changes by at most 1
            log_q = log_normalise(log_q + step)
            if float(step.abs().max()) < 1e-14:
                break
        return log_q

    def _risk(self, log_eta: Tensor, log_q: Tensor) -> float:
        """Return Σ_j η_j φ(q_j); for q_j = 0, φ(0) is taken as φ(e^−690)."""
        if not bool(torch.isneginf(log_q).any()):
            log_p, log_not_p = log_pairs(log_q)
            return float((torch.exp(log_eta) * self.score.value(log_p.clamp_min(-1e12), log_not_p)).sum())
        at_one, at_zero = self.score.value(*log_pairs(torch.tensor([-_LOWEST, 0.0], dtype=torch.float64)))
        eta = torch.exp(log_eta[log_q.argmax()])
        return float(eta * at_one + (1 - eta) * at_zero)


def _slope(score: TrueClassScore, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sign of −φ′ at p = σ(s), and log|φ′|."""
    log_p, log_not_p = F.logsigmoid(s), F.logsigmoid(-s)
    slope = score.slope(log_p, log_not_p)
    tiny = torch.finfo(torch.float64).tiny
    return torch.sign(slope).detach(), torch.log(slope.abs().clamp_min(tiny)) - log_p


def _with_sign(sign: Tensor, log_size: Tensor) -> Tensor:
    """Return asinh(sign·exp(log_size))."""
    small = torch.asinh(torch.exp(log_size.clamp_max(20.0)))
    return sign * torch.where(log_size > 20, log_size + math.log(2), small)
