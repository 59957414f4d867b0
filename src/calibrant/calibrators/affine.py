"""Affine maps of logits or log-probabilities under ridges: vector, matrix, Dirichlet and structured scaling, and their solver.

The log-loss of softmax(W φ) is convex in W. For few classes it is minimised by Newton's method with the softmax's Hessian in
closed form, for many by L-BFGS on the gradient, both summed over blocks of rows.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.newton import Optimum, newton, no_minimum
from calibrant.calibrators.base import Certified, Tempered
from calibrant.calibrators.chunks import LOWEST, check_label_logits, keep_excluded, lift_excluded, mix_with_uniform
from calibrant.calibrators.temperature import check_prior, fit_log_temperature
from calibrant.rows import Batch, MemoryRows, RowSource

# Classes, up to which six Hessians cost no more than the thirty gradients that L-BFGS takes, and leave no digit open
_NEWTON_DIAGONAL, _NEWTON_FULL = 125, 15
_SAMPLE, _ROUGH = 8192, 1e-3  # rows of a sample at whose optimum the search on many rows starts, and its tolerance
_BLOCK_CLASSES = 128  # up to here L-BFGS is scaled by a block for each class: 17 MB of them
_NEAR = 0.01  # of p (1 − p), above which a row belongs to a class's own
_TOLERANCE, _ACCEPTED = 3e-9, 1e-5  # of L-BFGS: a thousandth of the sampling error at 10,000 rows is no error
_RESTARTS = 4
# Of the largest curvature, what a class counts at least: one that no row is near would be scaled by 1 / √0.
_LEAST_CURVATURE = 1e-4
_SETTLES = 1e-6  # rows of ridge: biases that all rise by the same change nothing, nor does the slope of equal logits


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


def _diagonal_blocks(rows: RowSource, theta: Tensor) -> Tensor:
    """Return the Hessian's diagonal for ``diagonal_sums`` as blocks (2K, 1, 1), by which L-BFGS is scaled."""
    curvature: Tensor = rows.total(_diagonal_curvature, theta) / rows.mass
    return _at_least(curvature)[:, None, None]


def _diagonal_curvature(rows: AffineRows, theta: Tensor) -> Tensor:
    """Return Σ w p_k (1 − p_k) of (x_k², 1) (2K,)."""
    x, (a, b) = rows.inputs, theta.view(-1, 2, 1).unbind(dim=1)
    p = torch.softmax(a * x + b, dim=0)
    spread = rows.weight * p * (1 - p)
    return torch.stack([(spread * x * x).sum(dim=1), spread.sum(dim=1)], dim=1).view(-1)


def _full_blocks(rows: RowSource, theta: Tensor) -> Tensor:
    """Return roughly the blocks (B, F, F) on the diagonal of the Hessian of ``full_sums``, by which L-BFGS is scaled."""
    spread, moments, own = (part / rows.mass for part in rows.total(_full_curvature, theta))
    spread = _at_least(spread)
    if not len(own):
        scales: Tensor = (spread[:, None] * moments.diagonal()).view(-1, 1, 1)
        return scales
    # where rows of x sum to a constant, [x; 1] is linearly dependent: 1e-9 is far above rounding, and far below what matters
    moments.diagonal().add_(1e-9 * moments.diagonal().max())
    # near rows make a class's block, those that are far share the moments of all; where none is far, near rows need not span all
    far = (spread - own[:, -1, -1]).clamp_min(1e-3 * spread)
    blocks: Tensor = far[:, None, None] * moments + own
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


class Penalty(NamedTuple):
    """Σ ridge (θ − centre)² + Σ tilt θ, ridge and centre (P,)."""

    ridge: Tensor
    centre: Tensor
    tilt: Tensor | float = 0.0


def fit_affine(
    rows: RowSource,
    sums: Callable[..., tuple[Tensor, ...]],
    start: Tensor,
    *,
    penalty: Penalty,
    tie: Tensor | None = None,
    second: bool = False,
    tolerance: float | None = None,
) -> Optimum:
    """Return the certified minimum θ (P,) of the mean log-loss + ``penalty``.

    Args:
        rows: A source of ``AffineRows``.
        sums: Summed loss, gradient and Hessian: ``diagonal_sums`` or ``full_sums``.
        start: (P,) float64.
        penalty: Of θ.
        tie: Which entry of θ each parameter of ``sums`` is, where several are one; None for each its own.
        second: Whether to search by Newton's method, and not by L-BFGS.
        tolerance: Of the gradient's largest entry, at which the search may end; None for the method's own.

    Raises:
        FitError: If there is no finite minimum, or the search did not reach it.
    """

    def untied(theta: Tensor) -> Tensor:
        return theta if tie is None else theta[tie]

    def tied(part: Tensor) -> Tensor:
        return part if tie is None else part.new_zeros(len(start), *part.shape[1:]).index_add_(0, tie, part)

    def objective(theta: Tensor, second: bool, rows: RowSource = rows) -> Any:
        value, gradient, *hessian = (part / rows.mass for part in rows.total(sums, untied(theta), second))
        off = theta - centre
        value = value + (tilt * theta).sum() + (ridge * off * off).sum()
        gradient = tied(gradient) + tilt + 2 * ridge * off
        return value, gradient, *(tied(tied(part).T) + torch.diag(2 * ridge) for part in hessian)

    ridge, centre, tilt = penalty
    many = isinstance(rows, MemoryRows) and rows.count >= 4 * _SAMPLE and bool(ridge.all())
    if second and many:  # a Hessian of few rows scales the search on all, of which each step costs a gradient alone
        some = partial(objective, second=True, rows=rows.map(_thinned, rows.count // _SAMPLE))
        start = newton(some, start, tolerance=_ROUGH, accepted=math.inf).theta
        found = _lbfgs(partial(objective, second=False), start, some(start)[2][None], tolerance or _TOLERANCE)
    elif second:
        # Newton's last step squares what is left
        ends = {} if tolerance is None else {"tolerance": 100 * tolerance, "accepted": 100 * tolerance}
        found = newton(partial(objective, second=True), start, **ends)
    else:
        blocks = tied((_diagonal_blocks if sums is diagonal_sums else _full_blocks)(rows, untied(start)))
        blocks = blocks + torch.diag_embed(2 * ridge.view(blocks.shape[:2]))
        found = _lbfgs(partial(objective, second=False), start, blocks, tolerance or _TOLERANCE)
    if not bool(ridge.any()) and found.value * rows.mass < math.log(2):  # all rows are right: a larger θ is better
        raise no_minimum("parameters that grow without end")
    return found


def _thinned(rows: AffineRows, step: int) -> AffineRows:
    """Return every ``step``-th row, at the weight of all."""
    offset = rows.offset[:, ::step] if isinstance(rows.offset, Tensor) else rows.offset
    return AffineRows(rows.inputs[:, ::step].contiguous(), rows.labels[::step], step * rows.weight[::step], offset)


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


class _Affine(Certified):
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
            penalty=Penalty(ridge.view(-1), centre.view(-1)),
            second=classes <= (_NEWTON_DIAGONAL if self.diagonal else _NEWTON_FULL),
            tolerance=self.tolerance,
        )
        theta = found.theta.view_as(centre)
        self.scale, self.bias = theta[:, 0 if self.diagonal else slice(-1)] / unit, theta[:, -1].clone()
        self._certify(found.gradient, rows.device)

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
    """softmax(W z + b), W diagonal or full, with ridge / N · (‖W T − I‖² + ‖b‖²) added, T being the best temperature."""

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


class DirichletCalibration(_Affine):
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


class _Structured(_Affine, Tempered):
    """softmax((I + D) x + b), x = log((1 − ε) softmax(z / T) + ε / K), with ridges that grow with K and fall with N."""

    share: Tensor

    def __init__(self, *, strength: float = 1.0, prior: float | None = None) -> None:
        super().__init__()
        self.strength, self.prior = check_number(strength, name="strength", low=0), check_prior(prior)

    def _unit(self, rows: RowSource) -> float:
        start = float(self.log_temperature) if self.fitted else 0.0
        self._temper(fit_log_temperature(rows, start=start, prior=self.prior)[0], rows)
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


class BiasScaling(Certified):
    """softmax(z / T + b): the map of least log-loss on the rows and on ``prior_rows`` imagined ones that the model labels.

    An imagined row has the logits of a row and the model's probabilities p as its label, so that the mean log-loss becomes
    (1 / N) Σ_i [−log q_i(y_i)] + (λ / N) · (1 / N) Σ_i Σ_k p_ik (−log q_ik), λ being their number. This prior is conjugate to
    the likelihood: it counts like data that the model itself drew, and needs no units. A class that is never right where the model
    expected it ten times loses most of its probability; one that was expected half a time hardly changes, which a ridge on
    b cannot tell apart. The fit is convex and ends with a gradient certificate. Biases may change the decision.

    Args:
        prior_rows: λ > 0, imagined rows in all.

    Attributes:
        temperature: T, one over the slope; negative where the order of the logits is wrong.
        bias: (K,) b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> z = torch.zeros(10, 2)  # says that both classes are equally likely
        >>> y = torch.tensor([0] * 10)
        >>> fitted = BiasScaling(prior_rows=10).fit(z, y)
        >>> torch.softmax(fitted(z[:1]), dim=1).round(decimals=2)  # (10 + 5) / 20 of the rows, real and imagined
        tensor([[0.7500, 0.2500]])

    References:
        Diaconis & Ylvisaker 1979, Conjugate priors for exponential families; Huang, Stein, Rubin, Kou 2020, Catalytic prior
        distributions with application to generalized linear models, Eq. 2.
    """

    slope: Tensor
    bias: Tensor

    def __init__(self, *, prior_rows: float = 5.0) -> None:
        super().__init__()
        self.prior_rows = check_number(prior_rows, name="prior_rows", low=0, open_low=True)

    @property
    def temperature(self) -> float:
        """T; NaN before ``fit``."""
        return 1 / float(self.slope) if self.fitted and float(self.slope) else math.nan

    def learned(self) -> str:
        """Return the temperature and the range of the biases."""
        return (
            f"temperature={self.temperature:.4g}, biases {float(self.bias.min()):+.3g} … {float(self.bias.max()):+.3g}"
        )

    def _fit(self, rows: RowSource) -> None:
        classes, mass = rows.classes, rows.mass
        size = math.sqrt(float(rows.total(logit_squares)) / mass) or 1.0  # of the logits: it brings them near 1
        share = self.prior_rows / mass
        # With the target y + share · p of weight 1 + share, the loss is (1 + share) (log Σ e^z − z_y) + share (z_y − ⟨p, z⟩), of which
        # the second part is linear in the slope and the biases
        ready = rows.map(_bias_rows, size, 1 + share)
        tilt = share / (1 + share) * ready.total(_linear_part, size) / mass
        centre = torch.zeros(1 + classes, dtype=torch.float64, device=rows.device)
        centre[0] = size  # the slope that changes nothing
        start = torch.zeros_like(centre)  # the uniform distribution, where the curvature is largest
        if len(self.bias) == classes:
            start = torch.cat([self.slope[None] * size, self.bias])
        ridge = torch.full_like(centre, _SETTLES / mass)
        tie = torch.arange(2 * classes, device=rows.device) // 2 + 1  # one slope, and a bias for each class
        tie[::2] = 0
        found = fit_affine(
            ready,
            diagonal_sums,
            start,
            penalty=Penalty(ridge, centre, tilt),
            tie=tie,
            second=classes <= _NEWTON_DIAGONAL,
            tolerance=self.tolerance,
        )
        self.slope = found.theta[0] / size
        # where the ridge is least: nothing else knows their common part
        self.bias = found.theta[1:] - found.theta[1:].mean()
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        x = lift_excluded(logits)
        return keep_excluded(x * self.slope.to(x.dtype) + self.bias.to(x.dtype), logits)


def _bias_rows(batch: Batch, size: float, weight: float) -> AffineRows:
    check_label_logits(batch)
    return AffineRows((centre_rows(batch.logits) / size).T.contiguous(), batch.labels, weight * batch.row_weights)


def _linear_part(rows: AffineRows, size: float) -> Tensor:
    """Return Σ w (x_y − ⟨p, x⟩) and Σ w (e_y − p) (1 + K,), p = softmax(size · x) being the model's probabilities."""
    _, _, residual = rows.softmax(rows.inputs * size)
    return -torch.cat([(residual * rows.inputs).sum()[None], residual.sum(dim=1)])
