"""Vector, matrix, Dirichlet and structured scaling: softmax((I + D) x + b) with ridges, one convex problem for all five."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from calibrant._core.constraints import NonNegative, Positive
from calibrant._core.minimise import Objective, at_least, minimise
from calibrant.calibrators.base import Certified, Tempered
from calibrant.calibrators.chunks import check_label_logits, mix_with_uniform
from calibrant.calibrators.temperature import fit_temperature
from calibrant.rows import Batch, RowSource

_BLOCK_CLASSES = 300
_NEAR_CLASSES = 128  # up to here each class has second moments of its own rows: 17 MB of them
_NEAR = 0.01  # of p (1 − p), above which a row belongs to a class's own
_NEWTON_PARAMETERS = 250  # up to here a Hessian costs at most six passes for a gradient, of which L-BFGS takes thirty
LOWEST = -100.0  # log-probabilities below this (4e-44) carry nothing, and products with them would lose digits


@dataclass(frozen=True)
class Ridge:
    """Penalties: diagonal · Σ D_kk² + off · Σ_{j≠k} D_jk² + bias · Σ b_k², added to the mean log-loss."""

    diagonal: float
    off: float
    bias: float


def log_probs_of(logits: Tensor) -> Tensor:
    """Return log softmax (N, K) of logits in float32 or wider, not below −100."""
    return torch.log_softmax(logits, dim=1).clamp_min(LOWEST)


@dataclass(frozen=True)
class AffineChunk:
    """Inputs (n, K) float64, labels (n,) and weights (n,)."""

    x: Tensor
    labels: Tensor
    weight: Tensor

    def diagonal_loss(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ log-loss of softmax((1 + v) ∘ x + b) and its gradient by (v, b) (2K,)."""
        v, b = theta.chunk(2)
        loss, residual = loss_and_residual(self.x * (1 + v) + b, self)
        return loss, torch.cat([(residual * self.x).sum(dim=0), residual.sum(dim=0)])

    def diagonal_derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what ``diagonal_loss`` does and the Hessian (2K, 2K), of one softmax.

        Classes come first: sums over few of them then run along the rows.
        """
        v, b = theta.chunk(2)
        classes, x = len(v), self.x.T.contiguous()
        loss, p, residual = _softmax_and_residual(x * (1 + v)[:, None] + b[:, None], self)
        both = torch.cat([p * x, p])  # (2K, n)
        weighted = both * self.weight
        total = -weighted @ both.T
        own = torch.cat([(weighted[:classes] * x).sum(dim=1), weighted.sum(dim=1)]).view(3, classes)
        total.diagonal().add_(own[[0, 2]].reshape(-1))
        total[:classes, classes:].diagonal().add_(own[1])
        total[classes:, :classes].diagonal().add_(own[1])
        return loss, torch.cat([(residual * x).sum(dim=1), residual.sum(dim=1)]), total

    def diagonal_curvature(self) -> Tensor:
        """Return Σ p (1 − p) x² and Σ p (1 − p) (2K,)."""
        p = torch.softmax(self.x, dim=1)
        spread = p * (1 - p) * self.weight[:, None]
        return torch.cat([(spread * self.x**2).sum(dim=0), spread.sum(dim=0)])

    def matrix_loss(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ log-loss of softmax(x + [D, b] [x; 1]) and its gradient by [D, b] (K·(K+1),)."""
        classes, x = self.x.shape[1], self.x
        matrix = theta.view(classes, classes + 1)
        loss, residual = loss_and_residual(torch.addmm(matrix[:, -1], x, matrix[:, :-1].T).add_(x), self)
        return loss, torch.cat([residual.T @ x, residual.sum(dim=0)[:, None]], dim=1).reshape(-1)

    def matrix_derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what ``matrix_loss`` does and the Hessian (K·(K+1), K·(K+1)), of one softmax.

        The Hessian's entry of (j, a) and (k, b) is Σ w (p_j δ_jk − p_j p_k) x_a x_b. Products of classes and of inputs are
        symmetric, so that each pair is made once: a quarter of the multiplications.
        """
        classes, x = self.x.shape[1], self.x.T
        matrix = theta.view(classes, classes + 1)
        ones = torch.cat([x, torch.ones_like(x[:1])])  # (K+1, n)
        loss, p, residual = _softmax_and_residual(x + matrix @ ones, self)
        moments, at_moment = _products_of_pairs(ones)
        weighted = moments.mul_(self.weight)
        products, at_product = _products_of_pairs(p)
        # H[(j, a), (k, b)] = δ_jk Σ w p_j x_a x_b − Σ w p_j p_k x_a x_b: the second part first, of the distinct pairs, spread out
        total = -(products @ weighted.T)[at_product][:, :, at_moment]  # (K, K, K+1, K+1)
        own = (p @ weighted.T)[:, at_moment]  # (K, K+1, K+1)
        # a diagonal's axis comes last, (K+1, K+1, K), and so must the classes of what is added to it
        total.diagonal(dim1=0, dim2=1).add_(own.permute(1, 2, 0))
        size = classes * (classes + 1)  # (j, k, a, b) → (j, a, k, b): parameters lie class by class, as θ does
        return loss, (residual @ ones.T).reshape(-1), total.transpose(1, 2).reshape(size, size)

    def matrix_curvature(self, near: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ p (1 − p) (K,), the second moments (K+1, K+1) of [x; 1], and those of each class's near rows.

        The latter are Σ p (1 − p) [x; 1] [x; 1]ᵀ (K, K+1, K+1) over rows with p (1 − p) above 0.01, or empty without ``near``.
        """
        p = torch.softmax(self.x, dim=1)
        ones = torch.cat([self.x, torch.ones_like(self.x[:, :1])], dim=1)
        spread, weighted = p * (1 - p), ones * self.weight[:, None]
        own = ones.new_zeros(p.shape[1] if near else 0, ones.shape[1], ones.shape[1])
        for k in range(len(own)):
            at = torch.nonzero(spread[:, k] > _NEAR)[:, 0]
            own[k] = (weighted[at] * spread[at, k : k + 1]).T @ ones[at]
        return self.weight @ spread, weighted.T @ ones, own


@dataclass(frozen=True)
class Affine:
    """What was found: scale (K,) or (K, K), bias (K,), the penalised mean log-loss, and the largest entry of its gradient."""

    scale: Tensor
    bias: Tensor
    value: float
    gradient: float


def fit_affine(
    rows: RowSource,
    mass: float,
    ridge: Ridge,
    *,
    diagonal: bool,
    start: tuple[Tensor, Tensor] | None = None,
) -> Affine:
    """Return the certified minimum of the mean log-loss of softmax(scale · x + bias) plus ridge.

    Args:
        rows: A source of ``AffineChunk``.
        mass: Σ weights.
        ridge: On the deviations from scale = I and bias = 0.
        diagonal: Whether the scale is.
        start: A scale and a bias to start from, as of an earlier fit; used if they are for K classes.

    Raises:
        FitError: If the gradient's certificate is not reached.
    """
    classes = rows.classes
    # the scale that changes nothing: (K,) or (K, K)
    identity = (torch.ones(classes) if diagonal else torch.eye(classes)).double().to(rows.device)
    strength = _strength(classes, ridge, diagonal=diagonal).to(rows.device)
    first, second = (
        (AffineChunk.diagonal_loss, AffineChunk.diagonal_derivatives)
        if diagonal
        else (AffineChunk.matrix_loss, AffineChunk.matrix_derivatives)
    )
    found = minimise(
        Objective(mass, partial(rows.total, second), partial(rows.total, first), ridge=strength),
        _start(identity, start),
        newton_up_to=_NEWTON_PARAMETERS,
        blocks=lambda: _hessian_blocks(rows, mass, strength, diagonal=diagonal),
    )
    matrix = found.theta.view(classes, classes + 1) if not diagonal else None  # as in ``_start``
    deviation, bias = found.theta.chunk(2) if matrix is None else (matrix[:, :-1], matrix[:, -1])
    return Affine(identity + deviation, bias.clone(), found.value, found.gradient)


def _start(identity: Tensor, given: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the parameters, (v, b) or [D, b] row by row, of a given scale and bias; zeros where None or of another shape."""
    if given is None or given[0].shape != identity.shape:
        return identity.new_zeros(identity.numel() + len(identity))
    deviation, bias = (part.to(identity) for part in (given[0] - identity, given[1]))
    if deviation.dim() == 1:
        return torch.cat([deviation, bias])
    return torch.cat([deviation, bias[:, None]], dim=1).reshape(-1)


def _strength(classes: int, ridge: Ridge, *, diagonal: bool) -> Tensor:
    """Return the penalty's factor of each squared parameter (P,)."""
    if diagonal:
        return torch.tensor([ridge.diagonal] * classes + [ridge.bias] * classes, dtype=torch.float64)
    strength = torch.full((classes, classes + 1), ridge.off, dtype=torch.float64)
    strength[:, :-1].fill_diagonal_(ridge.diagonal)
    strength[:, -1] = ridge.bias
    return strength.reshape(-1)


def _products_of_pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products (F·(F+1)/2, n) of every two of the rows (F, n), and which of them belongs to (a, b) (F, F)."""
    count = len(rows)
    made = torch.cat([rows[a:] * rows[a] for a in range(count)])
    index = torch.zeros(count, count, dtype=torch.int64, device=rows.device)
    first, second = torch.triu_indices(count, count, device=rows.device)
    index[first, second] = index[second, first] = torch.arange(len(first), device=rows.device)
    return made, index


def _hessian_blocks(rows: RowSource, mass: float, strength: Tensor, *, diagonal: bool) -> Tensor:
    """Return roughly the blocks on the Hessian's diagonal at the start (B, F, F); they only scale the search."""
    classes = rows.classes
    if diagonal:
        curvature = rows.total(AffineChunk.diagonal_curvature) / mass
        return (at_least(curvature) + 2 * strength)[:, None, None]
    spread, moments, own = (part / mass for part in rows.total(AffineChunk.matrix_curvature, classes <= _NEAR_CLASSES))
    spread, ridge = at_least(spread), strength.view(classes, classes + 1)
    if classes > _BLOCK_CLASSES:  # K blocks would not fit in memory
        diagonals: Tensor = (spread[:, None] * moments.diagonal() + 2 * ridge).reshape(-1, 1, 1)
        return diagonals
    # [x; 1] has linearly dependent entries where rows of x sum to a constant: 1e-9 of the largest moment is far above rounding,
    # so that Cholesky's factor exists, and far below what changes the scaling
    moments = moments + 1e-9 * moments.diagonal().max() * torch.eye(len(moments), dtype=moments.dtype).to(
        moments.device
    )
    # The rows near to a class's boundary make its block; those that are far share the moments of all. Where no row is far, the
    # difference is 0 but for rounding, and the near rows need not span all directions: a thousandth keeps the block definite.
    far = spread if not len(own) else (spread - own[:, -1, -1]).clamp_min(1e-3 * spread)
    blocks: Tensor = far[:, None, None] * moments + (own if len(own) else 0.0)
    blocks.diagonal(dim1=1, dim2=2).add_(ridge, alpha=2)
    return blocks


def loss_and_residual(logits: Tensor, chunk: AffineChunk) -> tuple[Tensor, Tensor]:
    """Return Σ weight · log-loss and weight · (p − e_y) (n, K)."""
    log_p = torch.log_softmax(logits, dim=1)
    at_label = chunk.labels[:, None]
    loss = -(chunk.weight @ log_p.gather(1, at_label)[:, 0])
    residual = log_p.exp_()
    residual.scatter_add_(1, at_label, torch.full_like(at_label, -1, dtype=residual.dtype))
    return loss, residual.mul_(chunk.weight[:, None])


def _softmax_and_residual(logits: Tensor, chunk: AffineChunk) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ weight · log-loss, p (K, n) and weight · (p − e_y) (K, n) for ``logits`` (K, n)."""
    log_p = torch.log_softmax(logits, dim=0)
    at_label = chunk.labels[None]
    loss = -(chunk.weight @ log_p.gather(0, at_label)[0])
    p = log_p.exp_()
    return loss, p, (p * chunk.weight).scatter_add_(0, at_label, -chunk.weight[None])


def apply_affine(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return scale · x + bias (N, K) in the dtype of ``x``."""
    scale, bias = scale.to(x.dtype), bias.to(x.dtype)
    return (x * scale if scale.dim() == 1 else x @ scale.T) + bias


def lift_excluded(x: Tensor) -> Tensor:
    """Return ``x`` (N, K) with −inf replaced by the row's maximum − 100, so that products with it are numbers."""
    return torch.where(torch.isneginf(x), x.amax(dim=1, keepdim=True) + LOWEST, x)


def centre_rows(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in float64 less each row's maximum, −inf as −100: a constant that a row carries changes no sum."""
    x = logits.double()
    return torch.where(torch.isneginf(x), LOWEST, x - x.amax(dim=1, keepdim=True))


def logit_squares(chunk: Batch) -> Tensor:
    """Return Σ weight · the variance of a row's logits: its root by the mass is their size."""
    x = centre_rows(chunk.logits)
    return chunk.row_weights @ (x - x.mean(dim=1, keepdim=True)).square().mean(dim=1)


def keep_excluded(answer: Tensor, logits: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with −inf where they have it: an excluded class stays excluded."""
    return torch.where(torch.isneginf(logits), -torch.inf, answer).to(logits.dtype)


def lowest_of(rows: RowSource) -> Tensor:
    """Return how far below the best (1,) a class may lie before it is one that no row of the fit was like: twice as far as any was.

    −inf if a class of a row was at probability 0.
    """
    least = -2 * torch.stack(rows.collected(_largest_span)).amax(dim=0)
    return least.clamp_max(LOWEST).to(rows.device)


def _largest_span(chunk: Batch) -> Tensor:
    low, high = torch.aminmax(chunk.logits.double(), dim=1)
    return (high - low).amax(keepdim=True).cpu()


def beyond(logits: Tensor, lowest: Tensor) -> Tensor:
    """Return which classes (N, K) lie further below the best than ``lowest`` (1,): at 0 or masked, where the fit had none such."""
    return logits < logits.amax(dim=1, keepdim=True) + lowest.to(logits.dtype)


def at_least_of_row(logits: Tensor, out: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with the least of the row's others where ``out`` (N, K) says so: times a matrix, −100 moves them all."""
    return torch.where(out, logits.masked_fill(out, torch.inf).amin(dim=1, keepdim=True), logits)


def as_far_below(answer: Tensor, logits: Tensor, out: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with the distance to the best that these have where ``out`` (N, K) says so."""
    apart = logits - logits.amax(dim=1, keepdim=True)
    return torch.where(out, answer.amax(dim=1, keepdim=True) + apart, answer).to(logits.dtype)


class RidgeAffine(Certified):
    """softmax(A x + b) of inputs x that a subclass makes of the logits, shrunk by ridges towards A = I and b = 0.

    A matrix takes a class that lies far below all that it was fitted on as the least of its row: it must not move the others.
    """

    diagonal: ClassVar[bool] = False

    scale: Tensor
    bias: Tensor
    lowest: Tensor

    @abstractmethod
    def _inputs(self, wide: Tensor) -> Tensor:
        """Return x (N, K) of logits (N, K) in float32 or wider; −inf is replaced."""

    @abstractmethod
    def _ridge(self, classes: int, mass: float) -> Ridge:
        """Return the ridges for K classes and rows of this weight."""

    def _unit(self, rows: RowSource) -> float:
        """Learn what the inputs need, and return the number that they are divided by in the fit: there A is near I."""
        return 1.0

    def _fit(self, rows: RowSource) -> None:
        unit, mass = self._unit(rows), rows.mass
        start = (self.scale * unit, self.bias) if self.fitted else None
        ridge = self._ridge(rows.classes, mass)
        # a diagonal map leaves the other classes alone whatever it makes of one
        self.lowest = torch.empty(0, dtype=torch.float64) if self.diagonal else lowest_of(rows)
        found = fit_affine(rows.map(_affine_chunk, self, unit), mass, ridge, diagonal=self.diagonal, start=start)
        self.scale, self.bias = found.scale / unit, found.bias
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        if not self.lowest.numel():
            return keep_excluded(apply_affine(self._inputs(logits), self.scale, self.bias), logits)
        out = beyond(logits, self.lowest)
        inputs = self._inputs(at_least_of_row(logits, out))
        return as_far_below(keep_excluded(apply_affine(inputs, self.scale, self.bias), logits), logits, out)


def _affine_chunk(chunk: Batch, calibrator: RidgeAffine, unit: float) -> AffineChunk:
    check_label_logits(chunk)
    return AffineChunk(calibrator._inputs(chunk.logits.double()) / unit, chunk.labels, chunk.row_weights)


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

    def __init__(self, *, off_diagonal: NonNegative | None = None, intercept: NonNegative | None = None) -> None:
        super().__init__()
        self.off_diagonal = off_diagonal
        self.intercept = intercept

    def _ridge(self, classes: int, mass: float) -> Ridge:
        pairs = classes * (classes - 1)
        off = pairs**2 / mass if self.off_diagonal is None else self.off_diagonal
        intercept = classes**2 / mass if self.intercept is None else self.intercept
        return Ridge(diagonal=1 / mass, off=off / pairs, bias=intercept / classes)

    def _inputs(self, wide: Tensor) -> Tensor:
        return log_probs_of(wide)


class _Structured(RidgeAffine, Tempered):
    """softmax((I + D) x + b), x = log((1 − ε) softmax(z / T) + ε / K), with ridges that grow with K and fall with N."""

    share: Tensor

    def __init__(self, *, strength: NonNegative = 1.0, prior: Positive | None = None) -> None:
        super().__init__()
        self.strength = strength
        self.prior = prior

    def _unit(self, rows: RowSource) -> float:
        self._temper(math.log(fit_temperature(rows, self.prior)), rows)
        self.share = torch.tensor(1 / (rows.mass + 1), dtype=torch.float64, device=rows.device)
        return 1.0

    def _ridge(self, classes: int, mass: float) -> Ridge:
        single = self.strength * classes / mass
        return Ridge(diagonal=single, off=single * (classes - 1), bias=single)

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


class _OfLogits(RidgeAffine):
    """softmax(W z + b), W diagonal or full, with ridge / N · (‖W T − I‖² + ‖b‖²) added, T being the best temperature."""

    def __init__(self, *, ridge: NonNegative = 1.0, prior: Positive | None = None) -> None:
        super().__init__()
        self.ridge = ridge
        self.prior = prior

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return W, of shape (K,) if diagonal, else (K, K), and b (K,)."""
        return self.scale, self.bias

    def _unit(self, rows: RowSource) -> float:
        return fit_temperature(rows, self.prior)

    def _ridge(self, classes: int, mass: float) -> Ridge:
        return Ridge(*[self.ridge / mass] * 3)  # off the diagonal: of no diagonal map

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
