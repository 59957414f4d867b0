"""Affine maps of logits or log-probabilities under ridges: vector, matrix, Dirichlet and structured scaling, and their solver.

The log-loss of softmax(W φ) is convex in W. For few classes it is minimised by Newton's method with the softmax's Hessian in
closed form, for many by L-BFGS on the gradient, both summed over blocks of rows.
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
from calibrant.calibrators.base import Certified, Tempered
from calibrant.calibrators.chunks import LOWEST, check_label_logits, keep_excluded, lift_excluded, mix_with_uniform
from calibrant.calibrators.temperature import fit_temperature
from calibrant.rows import Batch, RowSource

# Up to here six Hessians cost no more than the thirty gradients that L-BFGS takes, and leave no digit open
NEWTON_DIAGONAL, _NEWTON_FULL = 125, 20  # classes
_BLOCK_CLASSES = 128  # up to here L-BFGS is scaled by a block for each class: 17 MB of them
_NEAR = 0.01  # of p (1 − p), above which a row belongs to a class's own
_TOLERANCE, _ACCEPTED = 3e-8, 1e-5  # of L-BFGS: a thousandth of the sampling error at 10,000 rows is no error
_RESTARTS = 4
# Of the largest curvature, what a class counts at least: one that no row is near would be scaled by 1 / √0.
_LEAST_CURVATURE = 1e-4


def log_probs_of(logits: Tensor) -> Tensor:
    """Return log softmax (N, K) of logits in float32 or wider, not below −100."""
    return torch.log_softmax(logits, dim=1).clamp_min(LOWEST)


def centre_rows(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in float64 less each row's maximum, −inf as −100: a constant that a row carries changes no sum."""
    x = logits.double()
    return torch.where(torch.isneginf(x), LOWEST, x - x.amax(dim=1, keepdim=True))


def logit_squares(batch: Batch) -> Tensor:
    """Return Σ weight · the variance of a row's logits: its root by the mass is their size."""
    return batch.row_weights @ centre_rows(batch.logits).var(dim=1, correction=0)


# The solver.


@dataclass(frozen=True)
class AffineRows:
    """What the fit sums over; classes come first, so that sums over few of them run along the rows.

    Args:
        inputs: φ (F, n) float64.
        labels: (n,).
        weight: (n,) float64.
        offset: (K, n) added to the logits.
    """

    inputs: Tensor
    labels: Tensor
    weight: Tensor
    offset: Tensor | float = 0.0

    def softmax(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ w · log-loss, p (K, n) and w (p − e_y) (K, n) of ``logits`` (K, n)."""
        log_p = torch.log_softmax(logits, dim=0)
        loss = -(self.weight @ log_p.gather(0, self.labels[None])[0])
        p = log_p.exp_()
        return loss, p, (p * self.weight).scatter_add_(0, self.labels[None], -self.weight[None])


def diagonal_sums(rows: AffineRows, theta: Tensor, second: bool) -> tuple[Tensor, ...]:
    """Return Σ log-loss of softmax(a ∘ x + b), its gradient by (a_k, b_k) (2K,), and with ``second`` its Hessian."""
    x, (a, b) = rows.inputs, theta.view(-1, 2, 1).unbind(dim=1)
    loss, p, residual = rows.softmax(a * x + b)
    gradient = torch.stack([(residual * x).sum(dim=1), residual.sum(dim=1)], dim=1).view(-1)
    if not second:
        return loss, gradient
    # Cov_p of (x_k e_k, e_k): its diagonal part less the outer product
    both = torch.stack([p * x, p], dim=1)  # (K, 2, n)
    weighted = both * rows.weight
    hessian = (weighted.flatten(0, 1) @ both.flatten(0, 1).T).neg_()
    own = (weighted[:, 0] * x).sum(dim=1), weighted[:, 0].sum(dim=1), weighted[:, 1].sum(dim=1)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        hessian.view(len(x), 2, len(x), 2)[:, i, :, j].diagonal().add_(own[i + j])
    return loss, gradient, hessian


def full_sums(rows: AffineRows, theta: Tensor, second: bool) -> tuple[Tensor, ...]:
    """Return Σ log-loss of softmax(W φ + offset), its gradient by W (K·F,), and with ``second`` its Hessian.

    The Hessian's entry of (j, a) and (k, b) is Σ w (p_j δ_jk − p_j p_k) φ_a φ_b. Products of classes and of inputs are symmetric,
    so that each pair is made once: a quarter of the multiplications.
    """
    phi = rows.inputs
    loss, p, residual = rows.softmax(theta.view(-1, len(phi)) @ phi + rows.offset)
    gradient = (residual @ phi.T).view(-1)
    if not second:
        return loss, gradient
    moments, at_moment = _products_of_pairs(phi)
    moments *= rows.weight
    products, at_product = _products_of_pairs(p)
    hessian = -(products @ moments.T)[at_product][:, :, at_moment]  # (K, K, F, F)
    hessian.diagonal(dim1=0, dim2=1).add_((p @ moments.T)[:, at_moment].permute(1, 2, 0))
    return loss, gradient, hessian.transpose(1, 2).reshape(len(theta), len(theta))


def _products_of_pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products (F·(F+1)/2, n) of every two of the rows (F, n), and which of them belongs to (a, b) (F, F)."""
    first, second = torch.triu_indices(len(rows), len(rows), device=rows.device)
    index = torch.empty(len(rows), len(rows), dtype=torch.int64, device=rows.device)
    index[first, second] = index[second, first] = torch.arange(len(first), device=rows.device)
    return torch.cat([rows[a:] * rows[a] for a in range(len(rows))]), index


def diagonal_blocks(rows: RowSource, theta: Tensor, ridge: Tensor) -> Tensor:
    """Return the Hessian's diagonal for ``diagonal_sums`` as blocks (2K, 1, 1), by which L-BFGS is scaled."""
    curvature: Tensor = rows.total(diagonal_curvature, theta) / rows.mass
    return (_at_least(curvature) + 2 * ridge)[:, None, None]


def diagonal_curvature(rows: AffineRows, theta: Tensor) -> Tensor:
    """Return Σ w p_k (1 − p_k) of (x_k², 1) (2K,)."""
    x, (a, b) = rows.inputs, theta.view(-1, 2, 1).unbind(dim=1)
    p = torch.softmax(a * x + b, dim=0)
    spread = rows.weight * p * (1 - p)
    return torch.stack([(spread * x * x).sum(dim=1), spread.sum(dim=1)], dim=1).view(-1)


def full_blocks(rows: RowSource, theta: Tensor, ridge: Tensor) -> Tensor:
    """Return roughly the blocks (B, F, F) on the diagonal of the Hessian of ``full_sums``, by which L-BFGS is scaled."""
    spread, moments, own = (part / rows.mass for part in rows.total(_full_curvature, theta))
    spread, ridge = _at_least(spread), 2 * ridge.view(len(spread), -1)
    if not len(own):
        scales: Tensor = (spread[:, None] * moments.diagonal() + ridge).view(-1, 1, 1)
        return scales
    # where rows of x sum to a constant, [x; 1] is linearly dependent: 1e-9 is far above rounding, and far below what matters
    moments.diagonal().add_(1e-9 * moments.diagonal().max())
    # near rows make a class's block, those that are far share the moments of all; where none is far, near rows need not span all
    far = (spread - own[:, -1, -1]).clamp_min(1e-3 * spread)
    blocks: Tensor = far[:, None, None] * moments + own + torch.diag_embed(ridge)
    return blocks


def _full_curvature(rows: AffineRows, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ w p (1 − p) (K,), Σ w φ φᵀ (F, F), and up to 128 classes Σ w p (1 − p) φ φᵀ (K, F, F) over each class's near rows."""
    phi = rows.inputs
    p = torch.softmax(theta.view(-1, len(phi)) @ phi + rows.offset, dim=0)
    spread, weighted = p * (1 - p), phi * rows.weight
    own = phi.new_zeros(len(p) if len(p) <= _BLOCK_CLASSES else 0, len(phi), len(phi))
    for k in range(len(own)):
        near = torch.nonzero(spread[k] > _NEAR)[:, 0]
        own[k] = (weighted[:, near] * spread[k, near]) @ phi[:, near].T
    return spread @ rows.weight, weighted @ phi.T, own


def _at_least(curvature: Tensor) -> Tensor:
    return curvature.clamp_min(_LEAST_CURVATURE * float(curvature.max()) + 1e-12)


def fit_affine(
    rows: RowSource,
    sums: Callable[..., tuple[Tensor, ...]],
    blocks: Callable[[RowSource, Tensor, Tensor], Tensor] | None,
    start: Tensor,
    *,
    ridge: Tensor,
    centre: Tensor,
    tilt: Tensor | float = 0.0,
    tolerance: float | None = None,
) -> Optimum:
    """Return the certified minimum θ (P,) of the mean log-loss + Σ tilt θ + Σ ridge (θ − centre)².

    Args:
        rows: A source of ``AffineRows``.
        sums: Summed loss, gradient and Hessian, such as ``diagonal_sums``.
        blocks: What L-BFGS is scaled by, such as ``diagonal_blocks``; None for Newton's method.
        start: (P,) float64.
        ridge: (P,).
        centre: (P,).
        tilt: (P,), or 0.
        tolerance: Of the gradient's largest entry, at which the search may end; None for the method's own.

    Raises:
        FitError: If there is no finite minimum, or the search did not reach it.
    """

    def objective(theta: Tensor, second: bool) -> Any:
        value, gradient, *hessian = (part / rows.mass for part in rows.total(sums, theta, second))
        off = theta - centre
        value = value + (tilt * theta).sum() + (ridge * off * off).sum()
        return value, gradient + tilt + 2 * ridge * off, *(part + torch.diag(2 * ridge) for part in hessian)

    if blocks is None:
        # Newton's last step squares what is left
        ends = {} if tolerance is None else {"tolerance": 100 * tolerance, "accepted": 100 * tolerance}
        found = newton(partial(objective, second=True), start, **ends)
    else:
        scales = blocks(rows, start, ridge)
        found = _lbfgs(partial(objective, second=False), start, scales, tolerance or _TOLERANCE)
    if not bool(ridge.any()) and found.value * rows.mass < math.log(2):  # all rows are right: a larger θ is better
        raise no_minimum("parameters that grow without end")
    return found


def _lbfgs(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, blocks: Tensor, tolerance: float
) -> Optimum:
    """Return the minimum (P,) of a smooth convex function from its value and gradient, by SciPy's L-BFGS.

    With blocks (B, F, F), B · F = P, of roughly the Hessian's diagonal, H ≈ L Lᵀ, the search runs over v, x = L⁻ᵀ v: the Hessian
    in v is L⁻¹ H L⁻ᵀ ≈ I, and the gradient in v is L⁻¹ times that in x.
    """
    from scipy.optimize import minimize

    factor = torch.linalg.cholesky(blocks)
    shape = (*factor.shape[:2], 1)

    def point(v: np.ndarray) -> Tensor:
        column = torch.from_numpy(v).to(factor.device).view(shape)
        x: Tensor = torch.linalg.solve_triangular(factor.mT, column, upper=True).view(-1)
        return x

    def host(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(point(v))
        scaled = torch.linalg.solve_triangular(factor, gradient.view(shape), upper=False)
        return float(value), scaled.view(-1).cpu().numpy()

    v, gtol, found = (factor.mT @ start.view(shape)).view(-1).cpu().numpy(), tolerance, Optimum(start, 0.0, math.inf)
    # SciPy stops by the gradient in v, the certificate is the one in x; each restart also clears the history of a line search that
    # rounding stopped
    for _ in range(_RESTARTS):
        options = {"maxiter": 5000, "maxfun": 10_000, "maxcor": 20, "gtol": gtol, "ftol": 0.0, "maxls": 40}
        v = minimize(host, v, jac=True, method="L-BFGS-B", options=options).x
        value, gradient = function(point(v))
        found = Optimum(point(v), float(value), float(gradient.abs().max()))
        if found.gradient <= tolerance:
            break
        gtol *= min(0.5, 0.5 * tolerance / found.gradient)
    if not found.gradient <= _ACCEPTED:
        raise no_minimum(f"a gradient of {found.gradient:.3g}")
    return found


# The calibrators.


class RidgeAffine(Certified):
    """softmax(A x + b) of inputs x that a subclass makes of the logits, shrunk by ridges towards A = I and b = 0."""

    diagonal: ClassVar[bool] = False

    scale: Tensor
    bias: Tensor

    @abstractmethod
    def _inputs(self, wide: Tensor) -> Tensor:
        """Return x (N, K) of logits (N, K) in float32 or wider; −inf is replaced."""

    @abstractmethod
    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        """Return the ridges of A's diagonal, of its other entries and of b, for K classes and rows of this weight."""

    def _unit(self, rows: RowSource) -> float:
        """Learn what the inputs need, and return the number that they are divided by in the fit: there A is near I."""
        return 1.0

    def _fit(self, rows: RowSource) -> None:
        unit, classes = self._unit(rows), rows.classes
        on_diagonal, off_diagonal, on_bias = self._ridge(classes, rows.mass)
        # θ is [A, b] row by row, of a diagonal A [a, b]
        if self.diagonal:
            centre, ridge = (
                torch.tensor([pair] * classes, dtype=torch.float64) for pair in ((1.0, 0.0), (on_diagonal, on_bias))
            )
        else:
            centre = torch.eye(classes, classes + 1, dtype=torch.float64)
            ridge = torch.full_like(centre, off_diagonal).fill_diagonal_(on_diagonal)
            ridge[:, -1] = on_bias
        start = centre
        if self.fitted and len(self.bias) == classes:
            start = torch.cat([self.scale.view(classes, -1) * unit, self.bias[:, None]], dim=1)
        sums, blocks = (diagonal_sums, diagonal_blocks) if self.diagonal else (full_sums, full_blocks)
        by_newton = classes <= (NEWTON_DIAGONAL if self.diagonal else _NEWTON_FULL)
        ready = rows.map(_affine_rows, self, unit)
        start, ridge, centre = (part.reshape(-1).to(rows.device) for part in (start, ridge, centre))
        scales = None if by_newton else blocks
        found = fit_affine(ready, sums, scales, start, ridge=ridge, centre=centre, tolerance=self.tolerance)
        theta = found.theta.view(classes, -1)
        self.scale, self.bias = theta[:, 0 if self.diagonal else slice(-1)] / unit, theta[:, -1].clone()
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        x = self._inputs(logits)
        scale, bias = self.scale.to(x.dtype), self.bias.to(x.dtype)
        return keep_excluded((x * scale if self.diagonal else x @ scale.T) + bias, logits)


def _affine_rows(batch: Batch, calibrator: RidgeAffine, unit: float) -> AffineRows:
    check_label_logits(batch)
    x = (calibrator._inputs(batch.logits.double()) / unit).T
    inputs = x.contiguous() if calibrator.diagonal else torch.cat([x, torch.ones_like(x[:1])])
    return AffineRows(inputs, batch.labels, batch.row_weights)


class _OfLogits(RidgeAffine):
    """softmax(W z + b), W diagonal or full, with ridge / N · (‖W T − I‖² + ‖b‖²) added, T being the best temperature."""

    def __init__(self, *, ridge: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.ridge, self.prior = check_number(ridge, name="ridge", low=0), _check_prior(prior)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return W, of shape (K,) if diagonal, else (K, K), and b (K,)."""
        return self.scale, self.bias

    def _unit(self, rows: RowSource) -> float:
        return fit_temperature(rows, self.prior)

    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        return (self.ridge / mass,) * 3

    def _inputs(self, wide: Tensor) -> Tensor:
        return lift_excluded(wide)


class VectorScaling(_OfLogits):
    """softmax(w ∘ z + b), with w and b (K,) that minimise the validation log-loss (Guo et al. 2017).

    The fit is convex and ends with a gradient certificate. Without regularisation it is known to hurt where classes are
    many or rows few, so by default w and b are shrunk towards temperature scaling: ridge / N · Σ ((w_k T − 1)² + b_k²) is
    added to the mean log-loss, T being the best temperature. Biases may change the decision.

    Args:
        ridge: Strength in rows, ≥ 0. With 0 there may be no finite optimum, which is an error.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        scale: (K,) the factors w.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

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

    K² + K parameters overfit badly beyond a few classes: prefer ``StructuredMatrixScaling``, which knows which of them
    to trust. By default ridge / N · (Σ (W T − I)² + Σ b²) is added to the mean log-loss, T being the best temperature.
    The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Strength in rows, ≥ 0. With 0 there may be no finite optimum, which is an error.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        scale: (K, K) the matrix W.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> MatrixScaling().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """


class DirichletCalibration(RidgeAffine):
    """softmax(W log p + b), p = softmax(z): exact if p is Dirichlet distributed given each class (Kull et al. 2019).

    ODIR regularisation: off_diagonal / (K(K−1)) · Σ_{j≠k} W_jk² + intercept / K · Σ b_k² is added to the mean log-loss.
    The diagonal is shrunk towards 1 with 1/N only, which keeps separable data finite. The paper finds both strengths by
    cross-validation; here the default lets them fall as 1/N, so that more rows are trusted more. The fit is convex and
    ends with a gradient certificate.

    Args:
        off_diagonal: λ ≥ 0; None for (K(K−1))² / N.
        intercept: μ ≥ 0; None for K² / N.

    Attributes:
        scale: (K, K) the matrix W.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

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


class _Structured(RidgeAffine, Tempered):
    """softmax((I + D) x + b), x = log((1 − ε) softmax(z / T) + ε / K), with ridges that grow with K and fall with N."""

    share: Tensor

    def __init__(self, *, strength: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.strength, self.prior = check_number(strength, name="strength", low=0), _check_prior(prior)

    def _unit(self, rows: RowSource) -> float:
        self._temper(math.log(fit_temperature(rows, self.prior)), rows)
        self.share = torch.tensor(1 / (rows.mass + 1), dtype=torch.float64, device=rows.device)
        return 1.0

    def _ridge(self, classes: int, mass: float) -> tuple[float, float, float]:
        single = self.strength * classes / mass
        return single, single * (classes - 1), single

    def _inputs(self, wide: Tensor) -> Tensor:
        return mix_with_uniform(log_probs_of(self._tempered(wide)), self.share)


class StructuredVectorScaling(_Structured):
    """softmax((1 + v) ∘ x + b) after a temperature, with ridge: SVS (Berta et al. 2025).

    x = log((1 − ε) softmax(z / T) + ε / K) with the best T and ε = 1 / (N + 1), which bounds what one floored or
    saturated logit can do. strength · K/N · (Σ v_k² + Σ b_k²) is added to the mean log-loss, so with few rows a class
    the answer is temperature scaling. The fit is convex and ends with a gradient certificate.

    Args:
        strength: Factor on the ridge, ≥ 0; 1 as published.
        prior: Standard deviation of a normal prior on log T about 0, or None for none, as published.

    Attributes:
        temperature: The T of the first step.
        scale: (K,) 1 + v.
        bias: (K,) b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> StructuredVectorScaling().fit(z, y).bias.shape
        torch.Size([2])

    References:
        Berta, Holzmüller, Jordan, Bach 2025, Structured Matrix Scaling for Multi-Class Calibration, arXiv 2511.03685.
    """

    diagonal = True


class StructuredMatrixScaling(_Structured):
    """softmax((I + diag(v) + M) x + b) after a temperature, with ridge on each part: SMS (Berta et al. 2025).

    As ``StructuredVectorScaling``, with an off-diagonal M under the stronger ridge strength · K(K−1)/N · Σ M_jk²: the
    K(K−1) of them are trusted last. Best or near it in every published comparison with enough rows; K² + K parameters.

    Args:
        strength: Factor on all ridges, ≥ 0; 1 as published.
        prior: Standard deviation of a normal prior on log T about 0, or None for none, as published.

    Attributes:
        temperature: The T of the first step.
        scale: (K, K) I + diag(v) + M.
        bias: (K,) b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> StructuredMatrixScaling().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Berta, Holzmüller, Jordan, Bach 2025, Structured Matrix Scaling for Multi-Class Calibration, arXiv 2511.03685.
    """


def _check_prior(prior: float | None) -> float | None:
    return None if prior is None else check_number(prior, name="prior", low=0, open_low=True)
