"""Affine maps of logits or log-probabilities with ridge penalties: vector, matrix, Dirichlet and structured scaling.

The log-loss of softmax(W φ) is convex in W. For few classes it is minimised by Newton's method with the Hessian in closed form,
and for many classes by L-BFGS; both sum over blocks of rows.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.newton import Optimum, newton, no_minimum
from calibrant.calibrators.base import (
    LOWEST,
    Certified,
    Tempered,
    check_label_logits,
    keep_excluded,
    lift_excluded,
    mix_with_uniform,
)
from calibrant.calibrators.temperature import check_prior, fit_log_temperature
from calibrant.rows import Batch, MemoryRows, RowSource

# Up to this number of parameters, six Hessians take no longer than thirty L-BFGS gradients, and they reach full precision
_NEWTON = 250
_MANY_PARAMETERS = 64  # with so many, a Hessian takes much longer than a gradient
# With many rows, the search starts at the optimum for a sample of this size, found with this tolerance
_SAMPLE, _ROUGH = 8192, 1e-3
_BLOCK_CLASSES = 150  # up to this number of classes, L-BFGS is scaled by one block per class, 28 MB in all
_TOLERANCE, _ACCEPTED = 3e-9, 1e-5  # for L-BFGS; 1e-5 is a thousandth of the sampling error at 10,000 rows
_STEPS, _RESTARTS = 20, 50  # of L-BFGS, whose scale is computed again at each restart
# Smallest curvature of a parameter relative to the largest; the parameters of a class far from all rows would otherwise be scaled
# by 1 / √0
_LEAST_CURVATURE = 1e-9
# A ridge, in rows, that determines what the loss does not: a constant added to all biases, or the slope if all logits are equal
_SETTLES = 1e-6


def log_probs_of(logits: Tensor) -> Tensor:
    """Return the log-softmax (N, K) of ``logits`` in float32 or wider, clipped below at −100."""
    return torch.log_softmax(logits, dim=1).clamp_min(LOWEST)


def centre_rows(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in float64 minus each row's maximum, which does not change the softmax; −inf becomes −100."""
    x = logits.double()
    return torch.where(torch.isneginf(x), LOWEST, x - x.amax(dim=1, keepdim=True))


def logit_squares(batch: Batch) -> Tensor:
    """Return the weighted sum of each row's variance over its logits; the root of the mean variance is the scale of the logits."""
    return batch.row_weights @ centre_rows(batch.logits).var(dim=1, correction=0)


# The solver.


@dataclass(frozen=True)
class AffineRows:
    """Rows in the form that the fit sums over, with classes on the first axis so that sums over few classes are vectorised.

    Args:
        inputs: The inputs φ (F, n), float64.
        labels: Class indices (n,).
        weight: Row weights (n,), float64.
        offset: Constants (K, n) that are added to the logits.
    """

    inputs: Tensor
    labels: Tensor
    weight: Tensor
    offset: Tensor | float = 0.0

    def softmax(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ w · log-loss, p = softmax(logits) (K, n) and w (p − e_y) (K, n) for ``logits`` (K, n)."""
        log_p = torch.log_softmax(logits, dim=0)
        loss = -(self.weight @ log_p.gather(0, self.labels[None])[0])
        p = log_p.exp_()
        return loss, p, (p * self.weight).scatter_add_(0, self.labels[None], -self.weight[None])


# Each structure of a map is a function of the rows and of the parameters θ (P,). It returns the summed log-loss, its gradient (P,)
# and, on request, its curvature: the Hessian (P, P), or its diagonal blocks (B, F, F) with B · F = P, which scale L-BFGS.


def diagonal_sums(rows: AffineRows, theta: Tensor, curvature: str) -> tuple[Tensor, ...]:
    """Return the sums for softmax(a ∘ x + b), where θ is a_1, b_1, a_2, b_2 …."""
    x, (a, b) = rows.inputs, theta.view(-1, 2, 1).unbind(dim=1)
    loss, p, residual = rows.softmax(a * x + b)
    gradient = torch.stack([(residual * x).sum(dim=1), residual.sum(dim=1)], dim=1).view(-1)
    if not curvature:
        return loss, gradient
    if curvature == "blocks":
        spread = rows.weight * p * (1 - p)
        return loss, gradient, torch.stack([(spread * x * x).sum(dim=1), spread.sum(dim=1)], dim=1).view(-1, 1, 1)
    # covariance under p of (x_k e_k, e_k): the diagonal part minus the outer product
    both = torch.stack([p * x, p], dim=1)  # (K, 2, n)
    weighted = both * rows.weight
    hessian = (weighted.flatten(0, 1) @ both.flatten(0, 1).T).neg_()
    own = (weighted[:, 0] * x).sum(dim=1), weighted[:, 0].sum(dim=1), weighted[:, 1].sum(dim=1)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        hessian.view(len(x), 2, len(x), 2)[:, i, :, j].diagonal().add_(own[i + j])
    return loss, gradient, hessian


def slope_sums(rows: AffineRows, theta: Tensor, curvature: str) -> tuple[Tensor, ...]:
    """Return the sums for softmax(s · x + b), where θ is s, b_1, b_2 …."""
    x = rows.inputs
    loss, p, residual = rows.softmax(torch.addcmul(theta[1:, None], theta[0], x))
    gradient = torch.cat([torch.tensordot(residual, x)[None], residual.sum(dim=1)])
    if not curvature:
        return loss, gradient
    # covariance under p of x and of the class's indicator
    weighted, off = p * rows.weight, x - (p * x).sum(dim=0)
    variance = (weighted * off * off).sum()
    if curvature == "blocks":
        return loss, gradient, torch.cat([variance[None], (weighted * (1 - p)).sum(dim=1)]).view(-1, 1, 1)
    hessian = theta.new_empty(len(theta), len(theta))
    hessian[0, 0] = variance
    hessian[0, 1:] = hessian[1:, 0] = (weighted * off).sum(dim=1)
    hessian[1:, 1:] = torch.diag(weighted.sum(dim=1)) - weighted @ p.T
    return loss, gradient, hessian


def full_sums(rows: AffineRows, theta: Tensor, curvature: str) -> tuple[Tensor, ...]:
    """Return the sums for softmax(W φ + offset), where θ is W (K, F) row by row.

    The Hessian's entry for (j, a) and (k, b) is Σ w (p_j δ_jk − p_j p_k) φ_a φ_b. The products of two classes and of two inputs are
    symmetric, so each pair is computed only once, which takes a quarter of the multiplications.
    """
    phi = rows.inputs
    loss, p, residual = rows.softmax(theta.view(-1, len(phi)) @ phi + rows.offset)
    gradient = (residual @ phi.T).view(-1)
    if not curvature:
        return loss, gradient
    if curvature == "blocks":
        spread = rows.weight * p * (1 - p)
        if len(p) > _BLOCK_CLASSES:
            return loss, gradient, (spread @ phi.square().T).view(-1, 1, 1)
        return loss, gradient, torch.stack([(phi * one) @ phi.T for one in spread])
    moments, at_moment = _products_of_pairs(phi)
    moments *= rows.weight
    products, at_product = _products_of_pairs(p)
    hessian = -(products @ moments.T)[at_product][:, :, at_moment]  # (K, K, F, F)
    hessian.diagonal(dim1=0, dim2=1).add_((p @ moments.T)[:, at_moment].permute(1, 2, 0))
    return loss, gradient, hessian.transpose(1, 2).reshape(len(theta), len(theta))


def _products_of_pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products (F·(F+1)/2, n) of all pairs of ``rows`` (F, n), and the index (F, F) of each pair's product."""
    first, second = torch.triu_indices(len(rows), len(rows), device=rows.device)
    index = torch.empty(len(rows), len(rows), dtype=torch.int64, device=rows.device)
    index[first, second] = index[second, first] = torch.arange(len(first), device=rows.device)
    return torch.cat([rows[a:] * rows[a] for a in range(len(rows))]), index


def fit_affine(
    rows: RowSource,
    sums: Callable[..., tuple[Tensor, ...]],
    start: Tensor,
    *,
    ridge: Tensor,
    centre: Tensor,
    tilt: Tensor | float = 0.0,
    hessian: bool = True,
    tolerance: float | None = None,
) -> Optimum:
    """Return the certified minimum θ (P,) of the mean log-loss + Σ ridge (θ − centre)² + Σ tilt θ.

    Args:
        rows: A source of ``AffineRows``.
        sums: The structure: ``diagonal_sums``, ``slope_sums`` or ``full_sums``.
        start: The starting point (P,), float64.
        ridge: Ridge strengths (P,) ≥ 0.
        centre: The point (P,) towards which the ridge shrinks θ.
        tilt: Slopes (P,) of a linear term.
        hessian: Whether to use Newton's method if there are few parameters; it does not pay off with more inputs than classes.
        tolerance: The search may stop when the gradient's largest entry is below this value; None for the solver's default.

    Returns:
        The minimum and its certificate.

    Raises:
        FitError: If there is no finite minimum, or the search did not reach it.
    """

    def objective(theta: Tensor, curvature: str = "", rows: RowSource = rows) -> Any:
        value, gradient, *second = (part / rows.mass for part in rows.total(sums, theta, curvature))
        off = theta - centre
        value = value + (tilt * theta).sum() + (ridge * off * off).sum()
        return value, gradient + tilt + 2 * ridge * off, *second

    def with_hessian(theta: Tensor, rows: RowSource = rows) -> Any:
        value, gradient, second = objective(theta, "hessian", rows)
        return value, gradient, second + torch.diag(2 * ridge)

    def blocks(theta: Tensor) -> Tensor:
        found: Tensor = objective(theta, "blocks")[2]
        scale = found.diagonal(dim1=1, dim2=2)  # (B, F)
        scale.add_(_LEAST_CURVATURE * scale.max() + 2 * ridge.view_as(scale))
        return found

    few, in_memory = hessian and len(start) <= _NEWTON, isinstance(rows, MemoryRows)
    if few and in_memory and len(start) >= _MANY_PARAMETERS and bool(ridge.all()):
        # the Hessian scales the search, whose steps then need only gradients; with many rows, a sample gives the Hessian and the start
        some = rows
        if rows.count >= 4 * _SAMPLE:
            some = rows.map(_thinned, rows.count // _SAMPLE)
            start = newton(partial(with_hessian, rows=some), start, tolerance=_ROUGH, accepted=math.inf).theta
        found = _lbfgs(objective, lambda theta: with_hessian(theta, some)[2][None], start, tolerance or _TOLERANCE)
    elif few:
        # convergence is quadratic: the last step squares the remaining error
        ends = {} if tolerance is None else {"tolerance": 100 * tolerance, "accepted": 100 * tolerance}
        found = newton(with_hessian, start, **ends)
    else:
        found = _lbfgs(objective, blocks, start, tolerance or _TOLERANCE)
    # if the summed log-loss is below log 2, all rows are correct, and a larger θ is always better
    if not bool(ridge.any()) and found.value * rows.mass < math.log(2):
        raise no_minimum("parameters that grow without bound")
    return found


def _thinned(rows: AffineRows, step: int) -> AffineRows:
    """Return every ``step``-th row, with its weight multiplied by ``step`` so that the sample represents all rows."""
    offset = rows.offset[:, ::step] if isinstance(rows.offset, Tensor) else rows.offset
    return AffineRows(rows.inputs[:, ::step].contiguous(), rows.labels[::step], step * rows.weight[::step], offset)


def _lbfgs(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    curvature: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float,
) -> Optimum:
    """Minimise a smooth convex function with L-BFGS, scaled by diagonal blocks (B, F, F) of its Hessian, where B · F = P.

    The search restarts every few steps with the ``curvature`` there, which can be far from that at the start. A restart also clears
    the history after a line search that rounding errors have stopped.
    """
    found = Optimum(start, 0.0, math.inf)
    for _ in range(_RESTARTS):
        found, steps = _scaled_steps(function, torch.linalg.cholesky(curvature(found.theta)), found.theta, tolerance)
        if found.gradient <= tolerance or steps < 2:
            break
    if not found.gradient <= _ACCEPTED:
        raise no_minimum(f"a gradient of {found.gradient:.3g}")
    return found


def _scaled_steps(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], factor: Tensor, start: Tensor, tolerance: float
) -> tuple[Optimum, int]:
    """Return where a few steps of SciPy's L-BFGS lead, and how many there were.

    With H ≈ L Lᵀ for the ``factor`` L, the steps are made in coordinates v with x = L⁻ᵀ v, in which the Hessian is L⁻¹ H L⁻ᵀ ≈ I
    and the gradient is L⁻¹ times the gradient in x.
    """
    from scipy.optimize import minimize

    shape, found = (*factor.shape[:2], 1), Optimum(start, 0.0, math.inf)

    def evaluate(v: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal found
        column = torch.from_numpy(v).to(factor.device).view(shape)
        x = torch.linalg.solve_triangular(factor.mT, column, upper=True).view(-1)
        value, gradient = function(x)
        found = Optimum(x, float(value), float(gradient.abs().max()))
        scaled = torch.linalg.solve_triangular(factor, gradient.view(shape), upper=False)
        return found.value, scaled.view(-1).cpu().numpy()

    def stop_at_tolerance(_: np.ndarray) -> None:
        # SciPy's own rule uses the gradient in v, but the certificate is the gradient in x
        if found.gradient <= tolerance:
            raise StopIteration

    v = (factor.mT @ start.view(shape)).view(-1).cpu().numpy()
    options = {"maxiter": _STEPS, "maxcor": _STEPS, "gtol": 0.0, "ftol": 0.0, "maxls": 40}
    ended = minimize(evaluate, v, jac=True, method="L-BFGS-B", callback=stop_at_tolerance, options=options)
    if found.gradient > tolerance:
        evaluate(ended.x)  # the point evaluated last may belong to a line search that failed
    return found, ended.nit


# The calibrators.


class _Affine(Certified):
    """softmax(A x + b), where a subclass computes the inputs x from the logits; ridges shrink A towards I and b towards 0."""

    diagonal: ClassVar[bool] = False

    scale: Tensor
    bias: Tensor

    @abstractmethod
    def _inputs(self, wide: Tensor) -> Tensor:
        """Return the inputs x (N, K) for logits (N, K) in float32 or wider, with −inf replaced by finite values."""

    @abstractmethod
    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        """Return the ridges on A's diagonal, on its other entries and on b, for K classes and rows of total weight ``mass``."""

    def _unit(self, rows: RowSource) -> float:
        """Learn what the inputs depend on, and return the number by which the fit divides them so that A is near I."""
        return 1.0

    def _fit(self, rows: RowSource) -> None:
        unit, classes = self._unit(rows), rows.classes
        on_diagonal, off_diagonal, on_bias = self._ridge(classes, rows.mass)
        # θ is [A, b] row by row, or [a, b] for a diagonal A
        centre = torch.eye(classes, classes + 1, dtype=torch.float64, device=rows.device)
        ridge = torch.full_like(centre, off_diagonal).fill_diagonal_(on_diagonal)
        ridge[:, -1] = on_bias
        if self.diagonal:
            centre, ridge = (torch.stack([part.diagonal(), part[:, -1]], dim=1) for part in (centre, ridge))
        start = centre
        if len(self.bias) == classes:
            start = torch.cat([self.scale.view(classes, -1) * unit, self.bias[:, None]], dim=1)
        found = fit_affine(
            rows.map(_affine_rows, self, unit),
            diagonal_sums if self.diagonal else full_sums,
            start.reshape(-1),
            ridge=ridge.view(-1),
            centre=centre.view(-1),
            tolerance=self.tolerance,
        )
        theta = found.theta.view_as(centre)
        self.scale, self.bias = theta[:, 0 if self.diagonal else slice(-1)] / unit, theta[:, -1].clone()
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        x = self._inputs(logits)
        scale, bias = self.scale.to(x.dtype), self.bias.to(x.dtype)
        return keep_excluded((x * scale if self.diagonal else x @ scale.T) + bias, logits)


def _affine_rows(batch: Batch, calibrator: _Affine, unit: float) -> AffineRows:
    check_label_logits(batch)
    x = (calibrator._inputs(batch.logits.double()) / unit).T
    inputs = x.contiguous() if calibrator.diagonal else torch.cat([x, torch.ones_like(x[:1])])
    return AffineRows(inputs, batch.labels, batch.row_weights)


class _OfLogits(_Affine):
    """softmax(W z + b), with W diagonal or full and the penalty ridge / N · (‖W T − I‖² + ‖b‖²), where T is the best temperature."""

    def __init__(self, *, ridge: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.ridge, self.prior = check_number(ridge, name="ridge", low=0), check_prior(prior)

    def _unit(self, rows: RowSource) -> float:
        return math.exp(fit_log_temperature(rows, prior=self.prior)[0])

    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        return (self.ridge / mass,) * 3

    def _inputs(self, wide: Tensor) -> Tensor:
        return lift_excluded(wide)


class VectorScaling(_OfLogits):
    """softmax(w ∘ z + b), with a factor and a bias for each class that minimise the validation log-loss (Guo et al. 2017).

    Unregularised vector scaling is known to do harm with many classes or few rows. By default, w and b are therefore shrunk
    towards temperature scaling: ridge / N · Σ ((w_k T − 1)² + b_k²) is added to the mean log-loss, where T is the best
    temperature. Biases may change the decision. The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Shrinkage strength in rows, ≥ 0. With 0 there may be no finite optimum, which raises an error.
        prior: Standard deviation of a normal prior on log T with mean 0; None for no prior.

    Attributes:
        scale: The factors w (K,).
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> VectorScaling().fit(z, y).bias.shape
        torch.Size([2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """

    diagonal = True


class MatrixScaling(_OfLogits):
    """softmax(W z + b), with W (K, K) and b (K,) that minimise the validation log-loss (Guo et al. 2017).

    With more than a few classes, its K² + K parameters overfit; prefer ``StructuredMatrixScaling``, which shrinks them by
    different amounts. By default, ridge / N · (Σ (W T − I)² + Σ b²) is added to the mean log-loss, where T is the best
    temperature. The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Shrinkage strength in rows, ≥ 0. With 0 there may be no finite optimum, which raises an error.
        prior: Standard deviation of a normal prior on log T with mean 0; None for no prior.

    Attributes:
        scale: The matrix W (K, K).
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> MatrixScaling().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """


class DirichletCalibration(_Affine):
    """softmax(W log p + b) with p = softmax(z), which is exact if p has a Dirichlet distribution in each class (Kull et al. 2019).

    The regularisation is ODIR: off_diagonal / (K(K−1)) · Σ_{j≠k} W_jk² + intercept / K · Σ b_k² is added to the mean
    log-loss. The diagonal is shrunk towards 1 with strength 1/N only, so that separable data have a finite optimum. The paper
    chooses both strengths by cross-validation; the defaults here decrease as 1/N. The fit is convex and ends with a gradient
    certificate.

    Args:
        off_diagonal: Ridge strength λ ≥ 0 on the off-diagonal entries; None for (K(K−1))² / N.
        intercept: Ridge strength μ ≥ 0 on the biases; None for K² / N.

    Attributes:
        scale: The matrix W (K, K).
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> DirichletCalibration().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Kull et al. 2019, Beyond temperature scaling, §3 and §4.1 (ODIR).
    """

    def __init__(self, *, off_diagonal: float | None = None, intercept: float | None = None) -> None:
        super().__init__()
        for name, value in (("off_diagonal", off_diagonal), ("intercept", intercept)):
            if value is not None:
                check_number(value, name=name, low=0)
        self.off_diagonal, self.intercept = off_diagonal, intercept

    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        pairs = classes * (classes - 1)
        off = pairs**2 / mass if self.off_diagonal is None else self.off_diagonal
        intercept = classes**2 / mass if self.intercept is None else self.intercept
        return 1 / mass, off / pairs, intercept / classes

    def _inputs(self, wide: Tensor) -> Tensor:
        return lift_excluded(torch.log_softmax(wide, dim=1)).clamp_min(LOWEST)


class _Structured(_Affine, Tempered):
    """softmax((I + D) x + b) with x = log((1 − ε) softmax(z / T) + ε / K), and ridges that grow with K and decrease with N."""

    share: Tensor

    def __init__(self, *, strength: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.strength, self.prior = check_number(strength, name="strength", low=0), check_prior(prior)

    def _unit(self, rows: RowSource) -> float:
        start = float(self.log_temperature) if self.fitted else 0.0
        found, _ = fit_log_temperature(rows, start=start, prior=self.prior)
        self.log_temperature, self.share = torch.tensor([found, 1 / (rows.mass + 1)], dtype=torch.float64)
        return 1.0

    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        single = self.strength * classes / mass
        return single, single * (classes - 1), single

    def _inputs(self, wide: Tensor) -> Tensor:
        return mix_with_uniform(log_probs_of(self._tempered(wide)), self.share)


class StructuredVectorScaling(_Structured):
    """Structured vector scaling (SVS): temperature scaling followed by a ridge-penalised softmax((1 + v) ∘ x + b).

    The inputs are x = log((1 − ε) softmax(z / T) + ε / K) with the best T, where ε = 1 / (N + 1) limits the influence of a
    single saturated logit. The penalty strength · K/N · (Σ v_k² + Σ b_k²) is added to the mean log-loss, so that with few rows
    per class the result is close to temperature scaling. The fit is convex and ends with a gradient certificate.

    Args:
        strength: Factor on the ridge penalty, ≥ 0; 1 as published.
        prior: Standard deviation of a normal prior on log T with mean 0; None for no prior, as published.

    Attributes:
        temperature: The T of the first step.
        scale: The factors 1 + v (K,).
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> StructuredVectorScaling().fit(z, y).bias.shape
        torch.Size([2])

    References:
        Berta, Holzmüller, Jordan, Bach 2025, Structured Matrix Scaling for Multi-Class Calibration, arXiv 2511.03685.
    """

    diagonal = True


class StructuredMatrixScaling(_Structured):
    """Structured matrix scaling (SMS): temperature scaling followed by a ridge-penalised softmax((I + diag(v) + M) x + b).

    This method extends ``StructuredVectorScaling`` by an off-diagonal matrix M with a stronger penalty,
    strength · K(K−1)/N · Σ M_jk². Given enough rows for its K² + K parameters, it is the best or nearly the best method in the
    published comparisons.

    Args:
        strength: Factor on all ridge penalties, ≥ 0; 1 as published.
        prior: Standard deviation of a normal prior on log T with mean 0; None for no prior, as published.

    Attributes:
        temperature: The T of the first step.
        scale: The matrix I + diag(v) + M (K, K).
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> StructuredMatrixScaling().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Berta, Holzmüller, Jordan, Bach 2025, Structured Matrix Scaling for Multi-Class Calibration, arXiv 2511.03685.
    """


class BiasScaling(Certified):
    """softmax(z / T + b), fitted on the given rows and on ``prior_rows`` imagined rows that the model itself has labelled.

    An imagined row has the logits of a real row and the model's probabilities p as its label. With λ imagined rows, the mean
    log-loss becomes (1 / N) Σ_i [−log q_i(y_i)] + (λ / N) · (1 / N) Σ_i Σ_k p_ik (−log q_ik). This prior is conjugate to the
    likelihood and counts like data drawn from the model. A class that the model expected ten times but that never occurred
    loses most of its probability, whereas a class that the model expected half a time hardly changes. A ridge on b cannot
    distinguish these two cases. The fit is convex and ends with a gradient certificate. Biases may change the decision.

    Args:
        prior_rows: Total number λ > 0 of imagined rows.

    Attributes:
        temperature: T, the inverse of the fitted slope; negative if the order of the logits is wrong.
        bias: The biases b (K,).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> z = torch.zeros(10, 2)  # the model considers both classes equally likely
        >>> y = torch.tensor([0] * 9 + [1])
        >>> fitted = BiasScaling(prior_rows=10).fit(z, y)
        >>> torch.softmax(fitted(z[:1]), dim=1).round(decimals=2)  # (9 + 5) / 20 of the rows, real and imagined
        tensor([[0.7000, 0.3000]])

    References:
        Diaconis & Ylvisaker 1979, Conjugate priors for exponential families; Huang, Stein, Rubin, Kou 2020, Catalytic prior
        distributions with application to generalized linear models, Eq. 2.
    """

    shows = ("temperature", "bias")

    slope: Tensor
    bias: Tensor

    def __init__(self, *, prior_rows: float = 5.0) -> None:
        super().__init__()
        self.prior_rows = check_number(prior_rows, name="prior_rows", low=0, open_low=True)

    @property
    def temperature(self) -> float:
        """The fitted T; NaN before ``fit``."""
        return 1 / float(self.slope) if self.fitted and float(self.slope) else math.nan

    def _fit(self, rows: RowSource) -> None:
        classes, mass = rows.classes, rows.mass
        size = math.sqrt(float(rows.total(logit_squares)) / mass) or 1.0  # the scale of the logits
        share = self.prior_rows / mass
        # With target y + share · p and weight 1 + share, the loss is (1 + share) (log Σ e^z − z_y) + share (z_y − ⟨p, z⟩), whose
        # second part is linear in the slope and the biases
        ready = rows.map(_bias_rows, size, 1 + share)
        tilt = share / (1 + share) * ready.total(_linear_part, size) / mass
        centre = torch.zeros(1 + classes, dtype=torch.float64, device=rows.device)
        centre[0] = size  # the slope that leaves the logits unchanged
        start = torch.zeros_like(centre)  # the uniform distribution, where the curvature is largest
        if len(self.bias) == classes:
            start = torch.cat([self.slope[None] * size, self.bias])
        ridge = torch.full_like(centre, _SETTLES / mass)
        found = fit_affine(ready, slope_sums, start, ridge=ridge, centre=centre, tilt=tilt, tolerance=self.tolerance)
        self.slope = found.theta[0] / size
        # only the ridge depends on a constant added to all biases, and the ridge is smallest if their mean is 0
        self.bias = found.theta[1:] - found.theta[1:].mean()
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        x = lift_excluded(logits)
        return keep_excluded(x * self.slope.to(x.dtype) + self.bias.to(x.dtype), logits)


def _bias_rows(batch: Batch, size: float, weight: float) -> AffineRows:
    check_label_logits(batch)
    return AffineRows((centre_rows(batch.logits) / size).T.contiguous(), batch.labels, weight * batch.row_weights)


def _linear_part(rows: AffineRows, size: float) -> Tensor:
    """Return Σ w (x_y − ⟨p, x⟩) and Σ w (e_y − p) (1 + K,), where p = softmax(size · x) are the model's probabilities."""
    _, _, residual = rows.softmax(rows.inputs * size)
    return -torch.cat([(residual * rows.inputs).sum()[None], residual.sum(dim=1)])
