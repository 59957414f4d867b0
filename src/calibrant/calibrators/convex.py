"""A calibrator of which only the map is written: its parameters minimise the log-loss, whose derivatives come by autograd."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.minimise import Objective, minimise
from calibrant.calibrators.affine.fit import keep_excluded, lift_excluded
from calibrant.calibrators.base import Certified
from calibrant.errors import FitError
from calibrant.rows import Batch, RowSource

_ENOUGH = 1e-6  # nats: far below the sampling error of any parameter
_NEWTON_PARAMETERS = 64  # autograd's Hessian holds as many copies of a chunk
# Of the Hessian's diagonal, added for the steps only, which leaves the optimum where it is. Parameters that change nothing,
# such as biases that all rise by the same amount, make the Hessian singular: an undamped step would follow rounding.
_DAMPING = 1e-7


def convex_fit(loss: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-10) -> tuple[Tensor, float]:
    """Return the minimum (P,) of a convex function and the largest entry of its gradient there, the certificate.

    Newton's method in a trust region (Nocedal & Wright 2006, Algorithm 7.2), with the Hessian, or its products, by autograd.

    Args:
        loss: The penalised mean log-loss (), of parameters (P,) float64; twice differentiable.
        start: (P,) float64.
        tolerance: Of the gradient's norm, at which the search ends.

    Raises:
        FitError: If the gradient ends above 1e-6: without a ridge the minimum may be at infinity.
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

    few = len(start) <= _NEWTON_PARAMETERS
    how = {"method": "trust-exact", "hess": hessian} if few else {"method": "trust-ncg", "hessp": product}
    options = {"gtol": tolerance, "maxiter": 200}
    found = minimize(value_and_gradient, start.cpu().numpy(), jac=True, options=options, **how)
    theta = host(found.x)
    worst = float(slope(theta)[0].abs().max())
    if not worst <= max(_ENOUGH, tolerance):
        remedy = "regularise more (the classes may be separable), or use more validation data"
        raise FitError(f"a gradient below {_ENOUGH:g} at the optimum", f"{worst:.3g}", remedy)
    return theta, worst


class ConvexCalibrator(Certified):
    """The map of logits whose parameters minimise the log-loss, convex in them, plus a penalty.

    A subclass gives ``mapped``, the calibrated logits for parameters θ, and ``start``, the θ that changes nothing. The fit ends
    with a gradient certificate, is the same for rows in memory and in files, and starts from the parameters of an earlier
    fit. Newton's method is used for up to 64 parameters, SciPy's L-BFGS beyond. A common part of
    all biases, or whatever else does not change the log-loss, ends near its start; where the optimum is at infinity, the fit ends
    when the gradient is below the tolerance.

    Attributes:
        theta: (P,) float64, the parameters.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> class Shifted(ConvexCalibrator):
        ...     @staticmethod
        ...     def mapped(logits, theta):
        ...         return logits + theta
        ...
        ...     def start(self, classes):
        ...         return torch.zeros(classes)
        >>> fitted = Shifted().fit(torch.zeros(4, 2), [0, 0, 0, 1])
        >>> fitted(torch.zeros(1, 2)).softmax(dim=1)
        tensor([[0.7500, 0.2500]])
    """

    theta: Tensor

    @staticmethod
    @abstractmethod
    def mapped(logits: Tensor, theta: Tensor) -> Tensor:
        """Return calibrated logits (N, K), such that the log-loss is convex in ``theta``.

        A static method of torch operations that autograd can differentiate twice, so that it can be sent to other processes.

        Args:
            logits: (N, K) float64, finite.
            theta: (P,) float64.
        """

    @abstractmethod
    def start(self, classes: int) -> Tensor:
        """Return the parameters (P,) from which a first fit starts.

        Args:
            classes: K.
        """

    def penalty(self, theta: Tensor) -> Tensor:
        """Return what is added to the log-loss summed over the rows: 0, unless a subclass gives a convex function.

        Args:
            theta: (P,) float64.
        """
        return theta.new_zeros(())

    def learned(self) -> str:
        """Return the parameters, where they are few."""
        values = ", ".join(f"{value:.4g}" for value in self.theta[:8].tolist())
        return f"theta=[{values}{', …' if len(self.theta) > 8 else ''}]"

    def _fit(self, rows: RowSource) -> None:
        start = check_start(self.start(rows.classes), self).to(rows.device)
        if self.fitted and self.theta.shape == start.shape and self._columns == rows.classes:
            start = self.theta
        mapped, penalty = type(self).mapped, self.penalty

        def second(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            sums = zip(rows.total(_second_order, mapped, theta), _orders(penalty, theta), strict=True)
            value, gradient, hessian = (loss + extra for loss, extra in sums)
            return value, gradient, hessian + _DAMPING * torch.diag(hessian.diagonal())

        def first(theta: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = rows.total(_first_order, mapped, theta)
            slope, extra = torch.func.grad_and_value(penalty)(theta)
            return value + extra, gradient + slope

        loss = Objective(rows.mass, second, first)
        found = minimise(loss, start, newton_up_to=_NEWTON_PARAMETERS)
        self.theta = found.theta
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return keep_excluded(type(self).mapped(lift_excluded(logits.double()), self.theta), logits)


Map = Callable[[Tensor, Tensor], Tensor]
Penalty = Callable[[Tensor], Tensor]


def check_start(start: Any, calibrator: ConvexCalibrator) -> Tensor:
    """Return the parameters to start from (P,) in float64.

    Raises:
        InputError: If they are not finite numbers along one axis.
    """
    if not isinstance(start, Tensor) or start.dim() != 1 or not len(start) or not bool(torch.isfinite(start).all()):
        got = tuple(start.shape) if isinstance(start, Tensor) else type(start).__name__
        name = type(calibrator).__name__
        raise refuse(
            f"{name}.start to return a finite tensor (P,)", str(got), "return torch.zeros(classes), for example"
        )
    return start.detach().double()


def _first_order(chunk: Batch, mapped: Map, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows' summed log-loss and its gradient (P,)."""
    gradient, value = torch.func.grad_and_value(_loss_of(chunk, mapped))(theta)
    return value, gradient


def _second_order(chunk: Batch, mapped: Map, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows' summed log-loss, its gradient (P,) and its Hessian (P, P)."""
    return _orders(_loss_of(chunk, mapped), theta)


def _orders(function: Penalty, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradient, value = torch.func.grad_and_value(function)(theta)
    return value, gradient, torch.func.hessian(function)(theta)


def _loss_of(chunk: Batch, mapped: Map) -> Penalty:
    logits, labels, weights = lift_excluded(chunk.logits.double()), chunk.labels[:, None], chunk.row_weights

    def loss(theta: Tensor) -> Tensor:
        log_p = torch.log_softmax(mapped(logits, theta), dim=1)
        return -(weights * log_p.gather(1, labels)[:, 0]).sum()

    return loss
