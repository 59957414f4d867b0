"""Certified convex minimisation: Newton's method where the Hessian is small, L-BFGS elsewhere.

L-BFGS runs in float32 first, on the device of the data; where float64 does not agree at once that the end is reached,
scipy's goes on from there on the host. All end with the same certificate: no entry of the gradient, in float64, is
larger than the tolerance. What does not reach it raises FitError, so a returned optimum is one.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FitError

TOLERANCE = 1e-5  # of a gradient entry of a mean log-loss, in nats: a thousandth of its sampling error at N = 10,000
_NEWTON_TOLERANCE = 1e-7  # for Newton's method, whose last step costs little
_NEWTON_PARAMETERS = 250  # a Hessian of this side is solved in about 1 ms
_NEWTON_WORK = 1e8  # multiplications for one Hessian; beyond it L-BFGS is sooner done
_ARMIJO = 1e-4
_HISTORY = 20  # steps that L-BFGS keeps
_SLOPE = 0.9  # of the first slope along a step, at which the step is taken
_NEAR = 0.95  # of the tolerance: where float32 ends, so that float64 most often agrees at once
_STEPS, _PATIENCE = 1000, 40  # in float32: at most, and without a smaller gradient


class Objective(Protocol):
    """A convex function of a float64 vector."""

    @property
    def rows(self) -> int:
        """Return how many rows one evaluation reads."""

    def value_and_gradient(self, x: Tensor) -> tuple[float, Tensor]:
        """Return the value and the gradient (P,) at ``x`` (P,)."""

    def hessian(self, x: Tensor) -> Tensor:
        """Return the Hessian (P, P) at ``x`` (P,)."""

    def narrowed(self) -> "Objective | None":
        """Return the same function of a float32 vector; None where float32 cannot hold it."""

    def blocks(self) -> Tensor:
        """Return roughly the blocks (B, F, F), B·F = P, on the Hessian's diagonal: positive definite; to scale the search."""


@dataclass(frozen=True)
class Minimum:
    """Where the minimum is, its value, and the certificate: the largest entry of the gradient there."""

    x: Tensor
    value: float
    gradient: float


def minimise(objective: Objective, start: Tensor, *, tolerance: float = TOLERANCE) -> Minimum:
    """Return the minimum of a smooth convex function, certified by its gradient.

    Args:
        objective: The function, a mean over ``objective.rows`` rows.
        start: (P,) float64, on the device of the data; a warm start shortens the search and changes nothing else.
        tolerance: Largest entry that the gradient may have at the end.

    Raises:
        FitError: If the gradient is not that small at the end: without regularisation the minimum may be at infinity.
    """
    parameters = start.numel()
    small = parameters <= _NEWTON_PARAMETERS and objective.rows * parameters**2 <= _NEWTON_WORK
    tolerance = min(tolerance, _NEWTON_TOLERANCE) if small else tolerance
    found = _newton(objective, start, tolerance) if small else _lbfgs(objective, start, tolerance)
    if not found.gradient <= tolerance:
        raise FitError(
            f"expected a gradient below {tolerance:g} at the optimum, got {found.gradient:.3g}; "
            "regularise more (the classes may be separable), or use more validation data"
        )
    return found


def _newton(objective: Objective, start: Tensor, tolerance: float) -> Minimum:
    x = start.clone()
    value, gradient = objective.value_and_gradient(x)
    for _ in range(200):
        worst = float(gradient.abs().max())
        if worst <= tolerance or not np.isfinite(value):
            break
        step = _newton_step(objective.hessian(x), gradient)
        moved = _backtrack(objective, x, value, gradient, step)
        if moved is None:
            break
        x, value, gradient = moved
    return Minimum(x, value, float(gradient.abs().max()))


def _newton_step(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Return −H⁻¹g; where H is not positive definite to working precision its diagonal is raised until it is."""
    damping = 0.0
    scale = float(hessian.diagonal().abs().max())
    while True:
        raised = hessian + damping * torch.eye(len(gradient), dtype=hessian.dtype, device=hessian.device)
        factor, failed = torch.linalg.cholesky_ex(raised)
        if not int(failed):
            return -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        damping = max(1e-12 * scale, 1e-300, 10 * damping)


def _backtrack(
    objective: Objective, x: Tensor, value: float, gradient: Tensor, step: Tensor
) -> tuple[Tensor, float, Tensor] | None:
    """Return the point, value and gradient after the longest of the steps 1, ½, ¼ … that descends; None if none does."""
    slope = float(gradient @ step)
    before = float(gradient.abs().max())
    length = 1.0
    for _ in range(60):
        there = x + length * step
        new_value, new_gradient = objective.value_and_gradient(there)
        # at the end the value no longer changes in float64; there a smaller gradient is the descent
        flat = abs(new_value - value) <= 1e-13 * max(1.0, abs(value))
        if new_value <= value + _ARMIJO * length * slope or (flat and float(new_gradient.abs().max()) < before):
            return there, new_value, new_gradient
        length /= 2
    return None


def _lbfgs(objective: Objective, start: Tensor, tolerance: float) -> Minimum:
    """Minimise over v, x = L⁻ᵀ v with L Lᵀ the Hessian's blocks, in which the problem is nearly round."""
    from scipy.optimize import minimize

    factor = torch.linalg.cholesky(objective.blocks())  # (B, F, F), lower
    blocks = factor.shape[:2]
    narrow = objective.narrowed()
    if narrow is not None:
        start = _near(narrow, start, factor.float(), _NEAR * tolerance)
        value, gradient = objective.value_and_gradient(start)
        worst = float(gradient.abs().max())
        if worst <= tolerance:
            return Minimum(start, value, worst)

    def outward(v: np.ndarray) -> Tensor:
        column = torch.from_numpy(v).to(start.device).view(*blocks, 1)
        x: Tensor = torch.linalg.solve_triangular(factor.mT, column, upper=True).reshape(-1)
        return x

    def host(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective.value_and_gradient(outward(v))
        pulled = torch.linalg.solve_triangular(factor, gradient.view(*blocks, 1), upper=False)
        return value, pulled.reshape(-1).cpu().numpy()

    v = (factor.mT @ start.view(*blocks, 1)).reshape(-1).cpu().numpy()
    gtol = tolerance
    # the certificate is of the gradient by x; where v's is small too early, or rounding stops a line search, go on
    for _ in range(4):
        options = {"maxiter": 5000, "maxfun": 10_000, "maxcor": _HISTORY, "gtol": gtol, "ftol": 0.0, "maxls": 40}
        v = minimize(host, v, jac=True, method="L-BFGS-B", options=options).x
        x = outward(v)
        value, gradient = objective.value_and_gradient(x)
        worst = float(gradient.abs().max())
        if worst <= tolerance:
            break
        gtol = gtol * min(0.5, 0.5 * tolerance / worst)
    return Minimum(x, value, worst)


def _near(objective: Objective, start: Tensor, factor: Tensor, tolerance: float) -> Tensor:
    """Return about where the minimum is (P,), by L-BFGS in float32: it only chooses where float64 starts.

    Near the end the value no longer changes in float32, so the line search looks at slopes alone: enough where convex.
    """
    x = best = start.float()
    gradient = objective.value_and_gradient(x)[1]
    least, since = float(gradient.abs().max()), 0
    history: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_HISTORY)
    for _ in range(_STEPS):
        if least <= tolerance or since >= _PATIENCE:
            break
        moved = _by_slope(objective, x, gradient, -_quasi_newton(gradient, history, factor))
        if moved is None:
            break
        there, new = moved
        step, change = there - x, new - gradient
        curvature = float(step @ change)
        if curvature > 0:
            history.append((step, change, curvature))
        x, gradient = there, new
        worst, since = float(gradient.abs().max()), since + 1
        if worst < least:
            best, least, since = x, worst, 0
    return best.to(start)


def _quasi_newton(gradient: Tensor, history: Iterable[tuple[Tensor, Tensor, float]], factor: Tensor) -> Tensor:
    """Return B⁻¹ g (P,): (L Lᵀ)⁻¹ g, corrected by the steps and the changes of the gradient in ``history``."""
    pairs, shares = list(history), []
    q = gradient.clone()
    for step, change, curvature in reversed(pairs):
        shares.append(float(step @ q) / curvature)
        q -= shares[-1] * change
    r: Tensor = torch.cholesky_solve(q.view(*factor.shape[:2], 1), factor).reshape(-1)
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        r += (share - float(change @ r) / curvature) * step
    return r


def _by_slope(objective: Objective, x: Tensor, gradient: Tensor, step: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the point along ``step``, and its gradient, where the slope is below 0.9 of the first; None if not found."""
    first = float(gradient @ step)
    low, high, length = 0.0, math.inf, 1.0
    at_low, at_high = first, math.nan
    for _ in range(20 if first < 0 else 0):
        there = x + length * step
        new = objective.value_and_gradient(there)[1]
        slope = float(new @ step)
        if abs(slope) <= -_SLOPE * first:
            return there, new
        if slope < 0:
            low, at_low = length, slope
        else:  # beyond the minimum, or not a number
            high, at_high = length, slope
        if math.isinf(high):
            length *= 2
        elif math.isfinite(at_high):  # where a line through both slopes is 0, kept off the ends
            length = low + (high - low) * min(max(at_low / (at_low - at_high), 0.1), 0.9)
        else:
            length = (low + high) / 2
    return None


def golden_section(function: Callable[[float], float], *, low: float, high: float, points: int, width: float) -> float:
    """Return where ``function`` is least on [low, high]: the best of ``points`` evenly spaced, refined to ``width``.

    A stated search for functions that are not convex: a minimum narrower than the grid's spacing can be missed.
    """
    grid = np.linspace(low, high, points)
    best = int(np.argmin([function(float(x)) for x in grid]))
    left, right = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, points - 1)])
    ratio = (5**0.5 - 1) / 2
    inner, outer = right - ratio * (right - left), left + ratio * (right - left)
    at_inner, at_outer = function(inner), function(outer)
    while right - left > width:
        if at_inner <= at_outer:
            right, outer, at_outer = outer, inner, at_inner
            inner = right - ratio * (right - left)
            at_inner = function(inner)
        else:
            left, inner, at_inner = inner, outer, at_outer
            outer = left + ratio * (right - left)
            at_outer = function(outer)
    return (left + right) / 2
