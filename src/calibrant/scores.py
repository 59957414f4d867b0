"""True-class scores: functions of the true class's probability, which define losses, calibration maps and proper parts.

A score φ is a function of the probability p of the true class. It takes two arguments, log p and log(1 − p), because 1 − p
cannot be recovered from a p that has been rounded to 1. A score φ defines

- the loss φ(p_y), whose gradient with respect to the logits is s(p_y)·(p − e_y), where s(p) = −p φ′(p);
- the calibration map p_j ∝ −1/φ′(q_j) = q_j / s(q_j).

To define a new score, write a subclass that implements ``value``. Unless it also implements ``slope``, automatic
differentiation is used:

    class InverseScore(TrueClassScore):  # φ(p) = 1/p
        def value(self, log_p, log_not_p):
            return torch.exp(-log_p)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number
from calibrant._core.numerics import LOG_OF_UNDERFLOW
from calibrant.errors import RangeError

__all__ = ["FocalScore", "InverseFocalScore", "LogScore", "TrueClassScore"]

INVERSE_FOCAL_LIMIT = 3.591121476668622  # 1 / W(1/e): above it the score increases with p on an interval
LARGEST_LOG_ODDS = math.log(torch.finfo(torch.float64).max) / 2  # half the largest, so that products do not overflow


def check_focal_gamma(gamma: Any, *, name: str = "gamma") -> float:
    """Return ``gamma`` if γ > −1, where the focal calibration map exists; otherwise raise an error that explains the limit."""
    number = check_number(gamma, name=name)
    if number <= -1:
        raise RangeError(
            f"{name} in (-1, inf)",
            f"{gamma}",
            (
                "choose a larger one: for γ ≤ −1, the factor 1 + γ u(q), with u(q) = −q log q / (1 − q) in [0, 1), "
                "is not positive everywhere and the map would give negative probabilities"
            ),
        )
    return number


class TrueClassScore(ABC):
    """A function φ of the true class's probability. Subclasses implement ``value``.

    Examples:
        >>> class InverseScore(TrueClassScore):  # φ(p) = 1/p, so that −p φ′(p) = 1/p as well
        ...     def value(self, log_p, log_not_p):
        ...         return torch.exp(-log_p)
        >>> p = torch.tensor([0.25], dtype=torch.float64)
        >>> InverseScore().slope(p.log(), (1 - p).log())
        tensor([4.], dtype=torch.float64)
    """

    @abstractmethod
    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return φ(p), elementwise, from log p and log(1 − p)."""

    def slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return s(p) = −p φ′(p), elementwise: the factor of (p − e_y) in the gradient with respect to the logits."""
        return self._slope64(log_p, log_not_p).to(log_p.dtype)

    def log_slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return log s(p), elementwise; NaN if s(p) < 0, that is, if φ increases at p.

        A slope that underflows is replaced with the smallest normal number; the probabilities of the calibration map are still
        correct up to rounding. Override this method for a score whose log s(p) must be exact beyond that point.
        """
        slope = self.slope(log_p.double(), log_not_p.double())
        tiny = torch.finfo(slope.dtype).tiny
        return torch.log(torch.where((slope >= 0) & (slope < tiny), tiny, slope)).to(log_p.dtype)

    def map_rate(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return d log h(p) / d logit(p), elementwise, where h(p) = p/s(p); it is positive exactly where φ is convex."""
        with torch.enable_grad():
            logit = (log_p - log_not_p).detach().requires_grad_(True)
            u, v = F.logsigmoid(logit), F.logsigmoid(-logit)
            (rate,) = torch.autograd.grad((u - self.log_slope(u, v)).sum(), logit)
        return rate

    def bijection_argument(self) -> str | None:
        """Return why the calibration map is a bijection although φ is not convex, or None if no argument is known."""
        return None

    def _slope64(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return s(p) by differentiating ``value`` in float64, where φ does not underflow even at a margin of 100."""
        differentiable = torch.is_grad_enabled() and (log_p.requires_grad or log_not_p.requires_grad)
        with torch.enable_grad():
            u, v = (x.double() * 1 if differentiable else x.detach().double() for x in (log_p, log_not_p))
            u, v = (x if x.requires_grad else x.requires_grad_(True) for x in (u, v))
            parts = torch.autograd.grad(self.value(u, v).sum(), (u, v), allow_unused=True, create_graph=differentiable)
        with torch.set_grad_enabled(differentiable):
            by_u, by_v = (torch.zeros_like(u) if part is None else part for part in parts)
            odds = torch.exp((u - v).clamp_max(LARGEST_LOG_ODDS))
            # the total derivative with respect to log p; that of log(1 − p) is −p/(1 − p)
            return -(by_u - torch.where(by_v == 0, torch.zeros_like(by_v), by_v * odds))


@dataclass(frozen=True)
class LogScore(TrueClassScore):
    """The logarithmic score φ(p) = −log p, which defines cross-entropy.

    Examples:
        >>> LogScore().value(torch.tensor(-0.5), torch.tensor(-0.93))
        tensor(0.5000)
    """

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −log p."""
        return -log_p

    def slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(log_p)

    def log_slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(log_p)


@dataclass(frozen=True)
class FocalScore(TrueClassScore):
    """The focal score φ(p) = −(1 − p)^γ log p (Lin et al. 2017; Mukhoti et al. 2020 §3).

    Args:
        gamma: γ > −1. For γ ≤ −1 the calibration map would give negative probabilities, because 1 + γ u(q), with
            u(q) = −q log q / (1 − q) in [0, 1), changes sign.

    Examples:
        >>> round(FocalScore(2.0).value(torch.tensor(0.5).log(), torch.tensor(0.5).log()).item(), 4)
        0.1733
    """

    gamma: float

    def __post_init__(self) -> None:
        check_focal_gamma(self.gamma)

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −(1 − p)^γ log p, which is 0 at p = 1 for γ > 0."""
        return weighted_nll(self.weight, log_p, log_not_p, detach_weight=False)

    def weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ, the factor of −log p."""
        return power_of_rest(log_not_p, self.gamma)

    def slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ (1 + γ u) with u = −p log p / (1 − p)."""
        return torch.exp(self.log_slope(log_p, log_not_p))

    def log_slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return γ log(1 − p) + log(1 + γ u)."""
        return focal_log_slope(log_p, log_not_p, self.gamma)

    def map_rate(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return 1 − p + γ (p − (u − p)/(1 + γu)) with u = −p log p / (1 − p), the closed form."""
        p, u = torch.exp(log_p), entropy_ratio(log_p, log_not_p)
        return torch.exp(log_not_p) + self.gamma * (p - (u - p) / (1 + self.gamma * u))

    def bijection_argument(self) -> str | None:
        """Return the argument if −1 < γ < 0, in which case φ is concave near p = 1; otherwise return None."""
        if not -1 < self.gamma < 0:
            return None
        return "−1/φ′ decreases only at q > 1/2, which at most one class can exceed, and there 1 − q decreases faster"


@dataclass(frozen=True)
class InverseFocalScore(TrueClassScore):
    """The inverse focal score φ(p) = −(1 + p)^γ log p (Wang et al. 2021 Eq. 4), where the weight of −log p grows with p.

    Args:
        gamma: γ ≥ 0. φ is convex only for γ ≤ 1, and decreasing only for γ < 3.5911.

    Examples:
        >>> round(InverseFocalScore(1.0).value(torch.tensor(0.5).log(), torch.tensor(0.5).log()).item(), 4)
        1.0397
    """

    gamma: float

    def __post_init__(self) -> None:
        check_number(self.gamma, name="gamma", low=0)

    def value(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −(1 + p)^γ log p."""
        return weighted_nll(self.weight, log_p, log_not_p, detach_weight=False)

    def weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 + p)^γ, the factor of −log p."""
        return torch.exp(self.gamma * torch.log1p(torch.exp(log_p)))

    def slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 + p)^γ (1 + γ p log p / (1 + p))."""
        p = torch.exp(log_p)
        return torch.exp(self.gamma * torch.log1p(p)) * (1 + self.gamma * torch.xlogy(p, p) / (1 + p))

    def log_slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return γ log(1 + p) + log(1 + γ p log p / (1 + p)); NaN where the score increases with p."""
        p = torch.exp(log_p)
        # p log p, written so that both its value and its derivative are 0 at log p = −∞
        plogp = p * log_p.clamp_min(torch.finfo(log_p.dtype).min)
        return self.gamma * torch.log1p(p) + torch.log1p(self.gamma * plogp / (1 + p))


def focal_log_slope(log_p: Tensor, log_not_p: Tensor, gamma: float | Tensor) -> Tensor:
    """Return log(−p φ′(p)) = γ log(1 − p) + log(1 + γ u(p)) for the focal score, which is very negative but finite at p = 1."""
    rest = log_not_p.clamp_min(torch.finfo(log_not_p.dtype).min / 1e4)  # so that the product with γ does not overflow
    return gamma * rest + torch.log1p(gamma * entropy_ratio(log_p, log_not_p))


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 − exp(x)) for x ≤ 0, accurate up to rounding for small and large |x| (Mächler 2012).

    −x is clipped below at the square root of the smallest normal number, so that first and second derivatives are finite.

    Examples:
        >>> log1mexp(torch.tensor([-1e-20, -50.0], dtype=torch.float64))
        tensor([-4.6052e+01, -1.9287e-22], dtype=torch.float64)
    """
    x = x.clamp_max(-math.sqrt(torch.finfo(x.dtype).tiny))
    near = x > -math.log(2)
    # a branch that is not selected gets a harmless constant, because torch.where lets its NaN gradients through
    return torch.where(
        near,
        torch.log(-torch.expm1(torch.where(near, x, -math.log(2)))),
        torch.log1p(-torch.exp(torch.where(near, -math.log(2), x))),
    )


def weighted_nll(
    weight_of: Callable[[Tensor, Tensor], Tensor], log_p: Tensor, log_not_p: Tensor, *, detach_weight: bool
) -> Tensor:
    """Return w · (−log p), elementwise, for w = ``weight_of(log_p, log_not_p)`` with w(0) = 1.

    Where p underflows to 0, w = 1 and the result is −log p itself. If the product were computed there, its gradient would be
    NaN: it would be the weight's derivative, 0, times −log p times the upstream gradient, which overflows in float32 for
    logits of 1e38.
    """
    zero = log_p < LOG_OF_UNDERFLOW[log_p.dtype]
    safe = torch.where(zero, -1.0, log_p)
    weight = weight_of(safe, torch.where(zero, -1.0, log_not_p))
    return torch.where(zero, log_p, (weight.detach() if detach_weight else weight) * safe).neg()


def power_of_rest(log_not_p: Tensor, gamma: float | Tensor) -> Tensor:
    """Return (1 − p)^γ from log(1 − p). For γ > 0, it is exactly 0 at p = 1, and its gradient there is 0 instead of NaN."""
    lowest = torch.finfo(log_not_p.dtype).min / 1e4  # its product with γ does not overflow, and has the exponential 0
    return torch.exp(gamma * log_not_p.clamp_min(lowest))


def entropy_ratio(log_p: Tensor, log_not_p: Tensor) -> Tensor:
    """Return u(p) = −p log p / (1 − p) in [0, 1], computed as the series 1 − (1 − p)/2 where 1 − p < 1e-8."""
    rest = torch.exp(log_not_p)
    near = rest < 1e-8
    safe = torch.where(near, torch.ones_like(rest), rest)
    finite = log_p.clamp_min(torch.finfo(log_p.dtype).min)  # so that p log p is 0 at p = 0
    return torch.where(near, 1 - rest / 2, -torch.exp(finite) * finite / safe)
