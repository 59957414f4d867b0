"""Newton's method for smooth convex losses, with given derivatives (for many problems at once, and within bounds) or with autograd.

Each search ends with a certificate, the largest entry of the gradient, or with an error.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import FitError

Derivatives = tuple[Tensor, Tensor, Tensor]

# Convergence is quadratic. More than some tens of steps are needed only if parameters leave a bound one after the other, as the mixing
# weights of nearly equal components do. A step that is halved sixty times is 1e-18 of its length.
_STEPS, _HALVINGS = 500, 60
_ARMIJO = 1e-4
# relative increase that does not count as ascent, some hundred times the rounding error of a float64 sum
_ROUNDING = 1e-13
# Added to the Hessian's unit diagonal, for the steps only. Directions that do not change the loss, such as a constant added to all
# biases, make the Hessian singular, and rounding errors would determine the step.
_DAMPING = 1e-10
_NEAR = 1e-2  # distance to a bound within which a coordinate with an outward gradient gets a step of its own
_SHORT = 1e-3  # relative to the largest parameter: longer steps with hardly any gradient show that there is no minimum
_TINY = 1e-300
_FEW = 64  # largest number of parameters for autograd's Hessian, which needs one copy of the rows per parameter
# Largest gradient entry in nats that ``convex_fit`` accepts, far below the sampling error of any parameter
_ENOUGH = 1e-6


@dataclass(frozen=True)
class Optimum:
    """A minimum of a loss.

    Args:
        theta: The minimiser, in the shape of the starting point.
        value: The loss at the minimiser, summed over problems.
        gradient: The certificate: the largest entry of the gradient, ignoring entries that a bound keeps from decreasing.
    """

    theta: Tensor
    value: float
    gradient: float


def no_minimum(got: str) -> FitError:
    """Return the error for a search that found no minimum."""
    remedy = "regularise more (the classes may be separable), or use more validation data"
    return FitError("a finite minimum of the log-loss", got, remedy)


def newton(
    derivatives: Callable[[Tensor], Derivatives],
    start: Tensor,
    *,
    low: Tensor | float = -math.inf,
    high: Tensor | float = math.inf,
    tolerance: float = 1e-9,
    accepted: float = 1e-7,
) -> Optimum:
    """Return the certified minimum of a convex loss, or of C losses at once.

    Args:
        derivatives: A function from θ (P,) to the mean loss (), its gradient (P,) and its Hessian (P, P); or from θ (C, P) to
            (C,), (C, P) and (C, P, P). A value that is not finite means that θ is outside the domain.
        start: The starting point (P,) or (C, P), float64.
        low: The smallest allowed θ, broadcast.
        high: The largest allowed θ, broadcast.
        tolerance: Gradient entry below which only one more step is taken. Convergence is then quadratic, so this last step makes
            the point itself exact, however the rows were cut into chunks.
        accepted: The largest accepted gradient entry if rounding errors stop the search; inf for a rough starting point.

    Returns:
        The minimum and its certificate.

    Raises:
        FitError: If there is no finite minimum, as can happen without a ridge, or if the gradient ends above ``accepted``.

    References:
        Bertsekas 1982, Projected Newton methods for optimization problems with simple constraints, Eq. 32.
    """

    def evaluate(x: Tensor) -> Derivatives:
        if start.dim() == 2:
            return derivatives(x)
        value, gradient, hessian = derivatives(x[0])
        return value[None], gradient[None], hessian[None]

    x = torch.atleast_2d(start)
    low, high = (torch.as_tensor(end, dtype=x.dtype, device=x.device).expand_as(x) for end in (low, high))

    def uncertainty(gradient: Tensor) -> float:
        return float((x - (x - gradient).clamp(low, high)).abs().max())  # NaN if any entry is NaN

    value, gradient, hessian = evaluate(x)
    for _ in range(_STEPS):
        # Coordinates that are about to reach a bound get separate steps, because a step that is clipped there then still descends
        near = ((x <= low + _NEAR) & (gradient > 0)) | ((x >= high - _NEAR) & (gradient < 0))
        step = _newton_step(hessian, gradient, ~near)
        move = (x + step).clamp(low, high) - x
        short = float(move.abs().max()) <= _SHORT * (1 + float(x.abs().max()))
        # if the minimum is at infinity, the gradient vanishes as well, but the steps stay long
        if not short and uncertainty(gradient) <= _SHORT * tolerance:
            raise no_minimum("parameters that grow without bound")
        settled = short and uncertainty(gradient) <= tolerance
        length = torch.ones_like(value)[:, None]
        for _ in range(_HALVINGS):
            there = (x + length * step).clamp(low, high)
            new = evaluate(there)
            # Armijo's rule: f(x + l d) ≤ f(x) + 1e-4 gᵀ (l d) up to rounding, with the step clipped at the bounds
            most = value + _ARMIJO * (gradient * (there - x)).sum(dim=1) + _ROUNDING * value.abs().clamp_min(1.0)
            descends = (new[0] <= most)[:, None]
            if bool(descends.all()):
                break
            length = torch.where(descends, length, length / 2)
        x, (value, gradient, hessian) = there, new
        if settled:
            break
    found = Optimum(x.view_as(start), float(value.sum()), uncertainty(gradient))
    if not found.gradient <= accepted:
        raise no_minimum(f"a gradient of {found.gradient:.3g}")
    return found


def _newton_step(hessian: Tensor, gradient: Tensor, free: Tensor) -> Tensor:
    """Return the Newton step −H⁻¹ g (C, P). Coordinates that are not ``free`` (C, P) do not influence the steps of the others."""
    apart = free[:, :, None] & free[:, None, :] | torch.eye(free.shape[1], dtype=torch.bool, device=free.device)
    # with D = diag(H)^−½, the step is −D (D H D)⁻¹ D g; D H D has a unit diagonal whatever the units of the parameters are
    scale = hessian.diagonal(dim1=1, dim2=2).clamp_min(_TINY).rsqrt()
    scaled = hessian * apart * scale[:, :, None] * scale[:, None, :]
    scaled.diagonal(dim1=1, dim2=2).add_(_DAMPING)
    factor, _ = torch.linalg.cholesky_ex(scaled)
    step: Tensor = -torch.cholesky_solve((gradient * scale)[:, :, None], factor)[:, :, 0] * scale
    return step


def convex_fit(loss: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-10) -> tuple[Tensor, float]:
    """Return the minimum (P,) of a convex function and the certificate, the largest entry of its gradient there.

    Newton's method is used in a trust region (Nocedal & Wright 2006, Algorithm 7.2); autograd computes the Hessian or its products.

    Args:
        loss: A twice differentiable function of parameters (P,), float64, that returns the penalised mean log-loss ().
        start: The starting point (P,), float64.
        tolerance: Norm of the gradient at which the search stops.

    Returns:
        The minimum and the certificate.

    Raises:
        FitError: If the gradient ends above 1e-6, because the minimum may be at infinity without a ridge.
    """
    from scipy.optimize import minimize

    slope = torch.func.grad_and_value(loss)

    def host(x: Any) -> Tensor:
        return torch.from_numpy(x).to(start.device)

    def value_and_gradient(x: Any) -> tuple[float, Any]:
        gradient, value = slope(host(x))
        return float(value), gradient.cpu().numpy()

    def hessian(x: Any) -> Any:
        return torch.func.hessian(loss)(host(x)).cpu().numpy()

    def product(x: Any, v: Any) -> Any:
        return torch.func.jvp(torch.func.grad(loss), (host(x),), (host(v),))[1].cpu().numpy()

    few = len(start) <= _FEW
    how = {"method": "trust-exact", "hess": hessian} if few else {"method": "trust-ncg", "hessp": product}
    options = {"gtol": tolerance, "maxiter": 200}
    found = minimize(value_and_gradient, start.cpu().numpy(), jac=True, options=options, **how)
    theta = host(found.x)
    worst = float(slope(theta)[0].abs().max())
    if not worst <= max(_ENOUGH, tolerance):
        remedy = "regularise more (the classes may be separable), or use more validation data"
        raise FitError(f"a gradient below {_ENOUGH:g} at the optimum", f"{worst:.3g}", remedy)
    return theta, worst
