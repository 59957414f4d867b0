"""Minimisation of smooth convex losses with derivatives by autograd, and a base class of calibrators that are fitted so."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import Certified
from calibrant.calibrators.chunks import check_label_logits, keep_excluded, lift_excluded
from calibrant.errors import FitError
from calibrant.rows import RowSource

_ENOUGH = 1e-6  # largest accepted gradient in nats, far below the sampling error of any parameter
# Largest number of parameters for autograd's Hessian, which needs one copy of the rows for each
_NEWTON_PARAMETERS = 64


def convex_fit(loss: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-10) -> tuple[Tensor, float]:
    """Return the minimum (P,) of a convex function and the largest entry of its gradient there, the certificate.

    The method is Newton's in a trust region (Nocedal & Wright 2006, Algorithm 7.2); autograd computes the Hessian or its products.

    Args:
        loss: A twice differentiable function of parameters (P,) float64 that returns the penalised mean log-loss ().
        start: (P,) float64 starting point.
        tolerance: Norm of the gradient at which the search ends.

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
    """Base class of calibrators whose parameters θ minimise a log-loss that is convex in θ, plus a penalty.

    A subclass implements ``mapped``, the calibrated logits for θ, and ``start``, the θ that changes nothing. The fit needs all
    rows at once, ends with a gradient certificate, and starts from the parameters of an earlier fit. If θ can grow without end on
    separable classes, a ``penalty`` is needed; otherwise ``fit`` raises ``FitError``. Logits of −inf stay −inf.

    Attributes:
        theta: (P,) the parameters.
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
        """Return calibrated logits (N, K), differentiable by autograd, such that the log-loss is convex in ``theta``.

        Args:
            logits: (N, K) float64, finite: −inf was replaced by the row's least other logit.
            theta: (P,) float64.
        """

    @abstractmethod
    def start(self, classes: int) -> Tensor:
        """Return the parameters (P,) from which a first fit starts.

        Args:
            classes: Number of classes K.
        """

    def penalty(self, theta: Tensor) -> Tensor:
        """Return the convex function that is added to the log-loss summed over the rows; 0 by default.

        Args:
            theta: (P,) float64.
        """
        return theta.new_zeros(())

    def learned(self) -> str:
        """Return the first parameters, for the repr."""
        values = ", ".join(f"{value:.4g}" for value in self.theta[:8].tolist())
        return f"theta=[{values}{', …' if len(self.theta) > 8 else ''}]"

    def _fit(self, rows: RowSource) -> None:
        start = self.start(rows.classes).detach().double().to(rows.device)
        if self.fitted and self.theta.shape == start.shape:
            start = self.theta
        batch = rows.gathered(why=type(self).__name__)
        check_label_logits(batch)
        logits, labels = lift_excluded(batch.logits.double()), batch.labels[:, None]
        weights = batch.row_weights / rows.mass

        def loss(theta: Tensor) -> Tensor:
            log_p = torch.log_softmax(self.mapped(logits, theta), dim=1)
            return self.penalty(theta) / rows.mass - weights @ log_p.gather(1, labels)[:, 0]

        self.theta, gradient = convex_fit(loss, start)
        self._certify(gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return keep_excluded(self.mapped(lift_excluded(logits.double()), self.theta), logits)
