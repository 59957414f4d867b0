"""Newton's method with bounds and a line search, for many small problems at once: one pass over the rows for all of them.

A problem has P parameters; value, gradient and Hessian are one sum over the rows. Where the function is not convex, the
absolute values of the Hessian's eigenvalues are used (saddle-free Newton: Dauphin et al. 2014), so that every step descends;
coordinates at a bound whose gradient points outwards are fixed (projected Newton: Bertsekas 1982, Eq. 32).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import FitError

ARMIJO = 1e-4
ROUGH = 1e-5  # gradient tolerance of fits that are only compared: the mean log-loss is within about 1e-9 nats of its minimum
# Far more steps than a quadratically convergent search takes; half a step sixty times is 1e-18 of it, which changes no digit.
_STEPS, _HALVINGS = 200, 60
# Of the value: some hundred times what rounding a sum leaves in float64. Smaller changes say nothing about descent.
_FLAT = 1e-13
_TINY = 1e-300  # keeps 0 / 0 from being NaN, and changes no other number
# Least |eigenvalue| of the Hessian scaled to a unit diagonal: a flat direction gets at most 1e10 of its gradient, and the line
# search cuts that; a smaller floor would let rounding choose the direction.
_LEAST_EIGENVALUE = 1e-10
# distance to a bound within which a coordinate with an outward gradient gets a step of its own (Bertsekas' ε)
_NEAR = 1e-2


@dataclass(frozen=True)
class Derivatives:
    """Of C problems: value (C,), gradient (C, P) and Hessian (C, P, P), all float64."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor


@dataclass(frozen=True)
class Minimum:
    """Where C problems are least.

    Args:
        x: (C, P).
        value: (C,).
        gradient: (C,) largest entry of the gradient there, without what a bound holds: the certificate.
    """

    x: Tensor
    value: Tensor
    gradient: Tensor


Function = Callable[[Tensor], Derivatives]


def newton(
    function: Function,
    start: Tensor,
    *,
    tolerance: float,
    enough: float,
    bounds: tuple[Tensor, Tensor] | None = None,
    longest: float = float("inf"),
    polish: bool = True,
) -> Minimum:
    """Return the minimum of each problem that is found from ``start`` (C, P).

    Args:
        function: Derivatives at points (C, P); a value that is not finite is outside of the domain.
        start: (C, P), inside.
        tolerance: Of a gradient's entry, at which the search ends.
        enough: Largest entry that is accepted where rounding ends the search before.
        bounds: (P,) or (C, P) lowest and highest, or None.
        longest: Largest change of a coordinate in one step.
        polish: Whether to take one more step at the end, which makes the points exact.

    Raises:
        FitError: If a gradient ends above ``enough``.
    """
    x, at = start, function(start)
    stuck = torch.zeros_like(at.value, dtype=torch.bool)
    for _ in range(_STEPS):
        slope = _free_gradient(x, at.gradient, bounds)
        done = stuck | (slope.abs().amax(dim=1) <= tolerance)
        if bool(done.all()):
            break
        step = _limited(_step(_apart(at.hessian, x, slope, bounds), slope), longest)
        x, at, moved = _line_search(function, x, at, torch.where(done[:, None], 0.0, step), bounds)
        stuck = stuck | ~(moved | done)
    if polish:
        x, at = _polished(function, x, at, bounds, longest)
    worst = _free_gradient(x, at.gradient, bounds).abs().amax(dim=1)
    if not bool((worst <= enough).all()):
        raise FitError(
            f"a gradient below {enough:g} at the optimum",
            f"{float(worst.max()):.3g}",
            "regularise more (the classes may be separable), or use more validation data",
        )
    return Minimum(x, at.value, worst)


def _polished(
    function: Function, x: Tensor, at: Derivatives, bounds: tuple[Tensor, Tensor] | None, longest: float
) -> tuple[Tensor, Derivatives]:
    """Return points and derivatives one full step on, where that lowers the gradient.

    A gradient below the tolerance leaves the point uncertain by the tolerance over the curvature. Convergence is quadratic
    there, so that one more step makes the point itself exact, however the rows were cut into chunks.
    """
    slope = _free_gradient(x, at.gradient, bounds)
    step = _limited(_step(_apart(at.hessian, x, slope, bounds), slope), longest)
    there = x + step if bounds is None else (x + step).clamp(bounds[0], bounds[1])
    new = function(there)
    better = _free_gradient(there, new.gradient, bounds).abs().amax(dim=1) < slope.abs().amax(dim=1)
    rising = new.value > at.value + _FLAT * at.value.abs().clamp_min(1.0)
    taken = better & ~rising & torch.isfinite(new.value)
    chosen = [
        torch.where(taken.view(-1, *[1] * (one.dim() - 1)), one, other)
        for one, other in ((there, x), (new.value, at.value), (new.gradient, at.gradient), (new.hessian, at.hessian))
    ]
    return chosen[0], Derivatives(*chosen[1:])


def _limited(step: Tensor, longest: float) -> Tensor:
    """Return the steps (C, P), shortened to ``longest`` in their largest coordinate."""
    return step * (longest / step.abs().amax(dim=1, keepdim=True).clamp_min(_TINY)).clamp_max(1.0)


def _free_gradient(x: Tensor, gradient: Tensor, bounds: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the gradient with 0 where it would only push across a bound."""
    if bounds is None:
        return gradient
    held = ((x <= bounds[0]) & (gradient > 0)) | ((x >= bounds[1]) & (gradient < 0))
    return torch.where(held, 0.0, gradient)


def _apart(hessian: Tensor, x: Tensor, gradient: Tensor, bounds: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the Hessian with coordinates that are about to reach a bound by themselves, so that the others' step descends."""
    if bounds is None:
        return hessian
    # Bertsekas 1982, Prop. 1: a Newton step clipped to the bounds need not descend, unless the Hessian is diagonal in the
    # coordinates that are at, or about to reach, a bound
    near = ((x <= bounds[0] + _NEAR) & (gradient > 0)) | ((x >= bounds[1] - _NEAR) & (gradient < 0))
    free = (~near).double()
    diagonal = torch.diag_embed(hessian.diagonal(dim1=1, dim2=2) * near)
    return hessian * free[:, :, None] * free[:, None, :] + diagonal


def _step(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Return −|H|⁻¹ g (C, P) over the coordinates with a gradient; scaled by the diagonal, which parameters' units spoil."""
    # with D = diag(H)^−½ the step is −D (D H D)⁻¹ D g: D H D has a unit diagonal, whatever the parameters' units
    scale = hessian.diagonal(dim1=1, dim2=2).abs().clamp_min(_TINY).rsqrt()
    free = (gradient != 0).double()
    scaled = hessian * scale[:, :, None] * scale[:, None, :] * free[:, :, None] * free[:, None, :]
    scaled = scaled + torch.diag_embed(1 - free)
    right = (gradient * scale)[:, :, None]
    factor, failed = torch.linalg.cholesky_ex(scaled)
    answer = torch.cholesky_solve(right, factor)
    bad = (failed != 0) | ~torch.isfinite(answer).all(dim=(1, 2))  # not positive definite: use |eigenvalues| instead
    if bool(bad.any()):
        values, vectors = torch.linalg.eigh(torch.nan_to_num(scaled[bad]))
        curved = values.abs().clamp_min(_LEAST_EIGENVALUE)
        answer[bad] = vectors @ ((vectors.mT @ right[bad]) / curved[:, :, None])
    return -answer[:, :, 0] * scale * free


def _line_search(
    function: Function, x: Tensor, at: Derivatives, step: Tensor, bounds: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Derivatives, Tensor]:
    """Return points and derivatives after the longest of the steps 1, ½, ¼ … that descends, and which did."""
    length = torch.ones_like(at.value)
    before = _free_gradient(x, at.gradient, bounds).abs().amax(dim=1)
    still = (step == 0).all(dim=1)
    for _ in range(_HALVINGS):
        there = x + length[:, None] * step
        there = there if bounds is None else there.clamp(bounds[0], bounds[1])
        new = function(there)
        slope = (at.gradient * (there - x)).sum(dim=1)
        # Armijo's condition fails near the optimum, where rounding hides changes of the value: there a smaller gradient
        # counts as descent instead
        flat = (new.value - at.value).abs() <= _FLAT * at.value.abs().clamp_min(1.0)
        calmer = _free_gradient(there, new.gradient, bounds).abs().amax(dim=1) < before
        # Armijo: f(x + l d) ≤ f(x) + 1e-4 gᵀ (l d), with the step as the bounds clipped it
        good = still | ((new.value <= at.value + ARMIJO * slope) & ~flat) | (flat & calmer)
        if bool(good.all()):
            return there, new, ~still
        length = torch.where(good, length, length / 2)
    kept = torch.where(good[:, None], there, x)
    return kept, function(kept), good & ~still
