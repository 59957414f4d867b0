"""Convex losses with a ridge, minimised with a certificate: Newton's method for few parameters, L-BFGS for many.

Value, gradient and Hessian are sums over the rows wherever these are, so that memory, files and workers give one optimum.
Newton's method has bounds and a line search, and treats many small problems at once: one pass over the rows for all of them.
Where the function is not convex, the absolute values of the Hessian's eigenvalues are used (saddle-free Newton: Dauphin et al.
2014), so that every step descends; coordinates at a bound whose gradient points outwards are fixed (projected Newton:
Bertsekas 1982, Eq. 32).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FitError

# Largest gradient entry of a mean log-loss, in nats. Newton's method converges quadratically, so that nine digits cost one step
# more than five. L-BFGS pays for every digit: its tolerance is what probabilities need to agree for any chunking of the rows.
NEWTON_TOLERANCE, NEWTON_ENOUGH = 1e-9, 1e-7
LBFGS_TOLERANCE = 3e-8
LBFGS_ENOUGH = 1e-5  # a thousandth of the sampling error at N = 10,000: accepted where rounding ends the search earlier
_HISTORY = 20  # correction pairs that L-BFGS stores
_RESTARTS = 4  # searches at most; each further one asks for half the gradient or less
# Of the largest curvature, what a block counts at least. A class that no row is near has a curvature of about 0 at the
# start, and a step of its parameters would be scaled by 1/√0; with 1e-4 it is at most a hundred times the others'.
_LEAST_CURVATURE = 1e-4

FirstOrder = Callable[[Tensor], tuple[Tensor, Tensor]]
SecondOrder = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def _absent(theta: Tensor) -> Any:
    raise TypeError(
        "a loss without the derivatives that this search needs: first for L-BFGS, second for Newton's method"
    )


@dataclass(frozen=True)
class Objective:
    """The mean of a convex loss over rows, plus Σ ridge · (θ − centre)².

    Args:
        mass: Σ of the rows' weights, by which sums are divided.
        second: From θ to the summed loss, its gradient (P,) and its Hessian (P, P); or, for C problems at once, from (C, P)
            to (C,), (C, P) and (C, P, P). None where only L-BFGS is used.
        first: From θ (P,) to the summed loss and its gradient alone, for L-BFGS.
        ridge: The penalty's strength, already over the mass: a number, (P,) or (C, P).
        centre: Where the penalty is 0.
        bounds: Lowest and highest θ, (P,) or (C, P), for Newton's method; or None.
    """

    mass: float
    second: SecondOrder = _absent
    first: FirstOrder = _absent
    ridge: Tensor | float = 0.0
    centre: Tensor | float = 0.0
    bounds: tuple[Tensor, Tensor] | None = None

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalised mean at θ (P,) and its gradient."""
        value, gradient = self.first(theta)
        off = theta - self.centre
        return float(value / self.mass + (self.ridge * off**2).sum()), gradient / self.mass + 2 * self.ridge * off

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the penalised mean at θ (P,) or (C, P), its gradient and its Hessian."""
        value, gradient, hessian = (part / self.mass for part in self.second(theta))
        off = theta - self.centre
        curvature = 2 * self.ridge * torch.ones_like(theta)
        return (
            value + (self.ridge * off**2).sum(dim=-1),
            gradient + self.ridge * (2 * off),
            hessian + torch.diag_embed(curvature),
        )


@dataclass(frozen=True)
class Optimum:
    """The minimum: θ, in the shape of the start, the value, and the certificate.

    Args:
        theta: (P,) or (C, P).
        value: The penalised mean there, summed over problems.
        gradient: The largest entry of any gradient there, without what a bound holds.
    """

    theta: Tensor
    value: float
    gradient: float

    def needed(self, enough: float) -> "Optimum":
        """Return it if the certificate is at most ``enough``.

        Raises:
            FitError: If not, or if it is NaN.
        """
        if self.gradient <= enough:
            return self
        remedy = "regularise more (the classes may be separable), or use more validation data"
        raise FitError(f"a gradient below {enough:g} at the optimum", f"{self.gradient:.3g}", remedy)


def minimise(
    loss: Objective,
    start: Tensor,
    *,
    newton_up_to: int | None = None,
    blocks: Callable[[], Tensor] | None = None,
    tolerance: float | None = None,
    enough: float = NEWTON_ENOUGH,
    longest: float = math.inf,
) -> Optimum:
    """Return the certified minimum of a loss.

    Args:
        loss: Convex.
        start: (P,), or (C, P) for C problems at once, float64.
        newton_up_to: Most parameters for which Newton's method is used, L-BFGS beyond; None: always Newton's.
        blocks: Makes blocks (B, F, F), B · F = P, of about the Hessian's diagonal; they scale L-BFGS. None: the identity.
        tolerance: Of the gradient's largest entry; None for the method's own.
        enough: Largest entry that Newton's method accepts where rounding ends its search before; inf where the end is only a start
            for another search, and may be anywhere.
        longest: Largest change of a parameter in one step of Newton's method.

    Raises:
        FitError: If the gradient ends above what is accepted: without a ridge the minimum may be at infinity.
    """
    if newton_up_to is not None and start.shape[-1] > newton_up_to:
        tolerance = tolerance or LBFGS_TOLERANCE
        scales = torch.ones(len(start), 1, 1, dtype=start.dtype, device=start.device) if blocks is None else blocks()
        return lbfgs(loss.value_and_gradient, start, scales, tolerance=tolerance)
    tolerance = tolerance or NEWTON_TOLERANCE
    polish = math.isfinite(enough)
    return newton(loss, start, tolerance=tolerance, enough=max(enough, tolerance), longest=longest, polish=polish)


def by_exponent(sums: Tensor, rise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, gradient (2,) and Hessian (2, 2) by (x, v), where the second parameter is e^v up to a constant.

    With r = e^v: ∂_v = r ∂_y, ∂_xv = r ∂_xy and ∂_vv = r² ∂_yy + r ∂_y.

    Args:
        sums: (6,) value, ∂_x, ∂_y, ∂_xx, ∂_xy and ∂_yy.
        rise: r.
    """
    value, x, y, xx, xy, yy = sums.cpu()
    cross = rise * xy
    hessian = torch.stack([xx, cross, cross, rise**2 * yy + rise * y]).view(2, 2)
    return value, torch.stack([x, rise * y]), hessian


def at_least(curvature: Tensor) -> Tensor:
    """Return ``curvature``, of classes, kept so far above 0 that a class that no row is near does not spoil the scaling."""
    return curvature.clamp_min(_LEAST_CURVATURE * float(curvature.max()) + 1e-12)


def lbfgs(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    blocks: Tensor,
    *,
    tolerance: float,
) -> Optimum:
    """Return the minimum (P,) of a smooth convex function.

    The search, SciPy's L-BFGS, runs over v, x = L⁻ᵀ v with L Lᵀ the blocks, in which the problem is nearly round.

    Args:
        function: Value and gradient (P,) at x (P,).
        start: (P,) float64.
        blocks: (B, F, F), B·F = P: roughly the blocks on the Hessian's diagonal, positive definite.
        tolerance: Of the gradient's largest entry, at which the search ends.

    Raises:
        FitError: If it has one above ``LBFGS_ENOUGH``: without regularisation the minimum may be at infinity.
    """
    from scipy.optimize import minimize

    # preconditioning by a change of variables: with H ≈ L Lᵀ and x = L⁻ᵀ v, the Hessian in v is L⁻¹ H L⁻ᵀ ≈ I, and the
    # gradient in v is L⁻¹ times that in x
    factor = torch.linalg.cholesky(blocks)
    shape = (*factor.shape[:2], 1)

    def host(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(_solve_triangular(v, factor))
        scaled = torch.linalg.solve_triangular(factor, gradient.view(shape), upper=False)
        return value, scaled.reshape(-1).cpu().numpy()

    v = (factor.mT @ start.view(shape)).reshape(-1).cpu().numpy()
    gtol, worst, value, x = tolerance, np.inf, np.inf, start
    # SciPy stops by the gradient in v, the certificate is the one in x = L⁻ᵀ v: where L shrinks a direction, the first falls below
    # gtol too early. Each restart, which also clears the history of a line search stopped by rounding, asks for half of
    # what is missing by the ratio of the two.
    for _ in range(_RESTARTS):
        # ftol = 0: changes of the value vanish by rounding long before the gradient is small
        options = {"maxiter": 5000, "maxfun": 10_000, "maxcor": _HISTORY, "gtol": gtol, "ftol": 0.0, "maxls": 40}
        v = minimize(host, v, jac=True, method="L-BFGS-B", options=options).x
        x = _solve_triangular(v, factor)
        value, gradient = function(x)
        worst = float(gradient.abs().max())
        if worst <= tolerance:
            break
        gtol = gtol * min(0.5, 0.5 * tolerance / worst)
    return Optimum(x, value, worst).needed(LBFGS_ENOUGH)


def _solve_triangular(v: np.ndarray, factor: Tensor) -> Tensor:
    """Return x = L⁻ᵀ v (P,) for L (B, F, F), on its device."""
    column = torch.from_numpy(v).to(factor.device).view(*factor.shape[:2], 1)
    x: Tensor = torch.linalg.solve_triangular(factor.mT, column, upper=True).reshape(-1)
    return x


ARMIJO = 1e-4
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


Function = Callable[[Tensor], Derivatives]


def newton(loss: Objective, start: Tensor, *, tolerance: float, enough: float, longest: float, polish: bool) -> Optimum:
    """Return the minimum of each problem that is found from ``start``; arguments are those of ``minimise``.

    A value of the loss that is not finite is outside of the domain; ``polish`` is whether to take one more step at the end, which
    makes the points exact.
    """

    def function(x: Tensor) -> Derivatives:
        if start.dim() == 2:
            return Derivatives(*loss.derivatives(x))
        return Derivatives(*(part[None] for part in loss.derivatives(x[0])))

    bounds, x = loss.bounds, torch.atleast_2d(start)
    at = function(x)
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
    worst = _free_gradient(x, at.gradient, bounds).abs().max()  # NaN is its own largest
    return Optimum(x.view(start.shape), float(at.value.sum()), float(worst)).needed(enough)


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
