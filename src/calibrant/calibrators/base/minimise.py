"""SciPy's L-BFGS on a function whose value and gradient come from sums over rows, certified by its gradient."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FitError

# Largest gradient entry of a mean log-loss, in nats. TOLERANCE is small so that probabilities agree for any chunking of the
# rows; ENOUGH, a thousandth of the sampling error at N = 10,000, is accepted where rounding ends the search earlier.
TOLERANCE, ENOUGH = 3e-8, 1e-5
_HISTORY = 20  # correction pairs that L-BFGS stores


def lbfgs(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    blocks: Tensor,
    *,
    tolerance: float = TOLERANCE,
    enough: float = ENOUGH,
) -> tuple[Tensor, float, float]:
    """Return the minimum (P,), the value and the largest entry of the gradient of a smooth convex function.

    The search runs over v, x = L⁻ᵀ v with L Lᵀ the blocks, in which the problem is nearly round.

    Args:
        function: Value and gradient (P,) at x (P,).
        start: (P,) float64.
        blocks: (B, F, F), B·F = P: roughly the blocks on the Hessian's diagonal, positive definite.
        tolerance: Of the gradient's largest entry, at which the search ends.
        enough: Largest entry that is accepted where rounding ends the search before.

    Raises:
        FitError: If it has a larger one: without regularisation the minimum may be at infinity.
    """
    from scipy.optimize import minimize

    # preconditioning by a change of variables: with H ≈ L Lᵀ and x = L⁻ᵀ v, the Hessian in v is L⁻¹ H L⁻ᵀ ≈ I, and the
    # gradient in v is L⁻¹ times that in x
    factor = torch.linalg.cholesky(blocks)
    shape = (*factor.shape[:2], 1)

    def host(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(_parameters(v, factor))
        pulled = torch.linalg.solve_triangular(factor, gradient.view(shape), upper=False)
        return value, pulled.reshape(-1).cpu().numpy()

    v = (factor.mT @ start.view(shape)).reshape(-1).cpu().numpy()
    gtol, worst, value, x = tolerance, np.inf, np.inf, start
    # the certificate is the gradient in x: if that in v falls below gtol earlier, or rounding stops a line search, restart
    for _ in range(4):
        options = {"maxiter": 5000, "maxfun": 10_000, "maxcor": _HISTORY, "gtol": gtol, "ftol": 0.0, "maxls": 40}
        v = minimize(host, v, jac=True, method="L-BFGS-B", options=options).x
        x = _parameters(v, factor)
        value, gradient = function(x)
        worst = float(gradient.abs().max())
        if worst <= tolerance:
            return x, value, worst
        gtol = gtol * min(0.5, 0.5 * tolerance / worst)
    if not worst <= enough:
        remedy = "regularise more (the classes may be separable), or use more validation data"
        raise FitError(f"expected a gradient below {enough:g} at the optimum, got {worst:.3g}; {remedy}")
    return x, value, worst


def _parameters(v: np.ndarray, factor: Tensor) -> Tensor:
    """Return x = L⁻ᵀ v (P,) for L (B, F, F), on its device."""
    column = torch.from_numpy(v).to(factor.device).view(*factor.shape[:2], 1)
    x: Tensor = torch.linalg.solve_triangular(factor.mT, column, upper=True).reshape(-1)
    return x
