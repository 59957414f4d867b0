"""The convex problem under vector, matrix, Dirichlet and structured scaling: softmax((I + D) x + b) with ridges."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant.calibrators._solver import Minimum, minimise
from calibrant.errors import InputError

_BLOCK_CLASSES = 300
_FLOAT32_LARGEST = 1e3
LOWEST = -100.0  # log-probabilities below this (4e-44) carry nothing, and products with them would lose digits


@dataclass(frozen=True)
class Ridge:
    """Penalties: diagonal · Σ D_kk² + off · Σ_{j≠k} D_jk² + bias · Σ b_k², added to the mean log-loss."""

    diagonal: float
    off: float
    bias: float


def log_probs_of(logits: Tensor) -> Tensor:
    """Return log softmax (N, K) in float32 or wider, not below −100."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide, dim=1).clamp_min(LOWEST)


def check_label_logits(logits: Tensor, labels: Tensor) -> None:
    """Refuse data in which a true class is excluded by −inf.

    Raises:
        InputError: With the first such row.
    """
    excluded = torch.isinf(logits.gather(1, labels[:, None])[:, 0])
    if bool(excluded.any()):
        row = int(torch.nonzero(excluded)[0])
        raise InputError(f"expected a finite logit for every label, got −inf in row {row}; unmask or drop the row")


def total_weight(labels: Tensor, weight: Tensor | None) -> float:
    """Return the number of rows, counted with their weights: a weight of 2 is the row twice."""
    return float(labels.shape[0]) if weight is None else float(weight.sum())


@dataclass(frozen=True)
class DiagonalProblem:
    """Mean log-loss of softmax((1 + v) ∘ x + b) plus ridge, as a function of (v, b) (2K,)."""

    x: Tensor
    labels: Tensor
    share: Tensor  # (N,) weight of each row; they sum to 1
    ridge: Ridge

    @property
    def rows(self) -> int:
        """N."""
        return self.x.shape[0]

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalised loss and its gradient."""
        v, b = theta.chunk(2)
        loss, gradient = 0.0, torch.zeros_like(theta)
        for rows in row_chunks(*self.x.shape):
            x = self.x[rows]
            part, residual = _loss_and_residual(x * (1 + v) + b, self.labels[rows], self.share[rows])
            loss += part
            gradient += torch.cat([(residual * x).sum(dim=0), residual.sum(dim=0)])
        strength = self._strength(theta)
        return loss + float(strength @ theta**2), gradient + 2 * strength * theta

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian (2K, 2K)."""
        v, b = theta.chunk(2)
        classes = len(v)
        total = torch.diag(2 * self._strength(theta))
        spots = torch.arange(classes, device=theta.device)
        for rows in row_chunks(*self.x.shape):
            x, share = self.x[rows], self.share[rows, None]
            p = torch.softmax(x * (1 + v) + b, dim=1)
            both = torch.cat([p * x, p], dim=1)  # (n, 2K)
            total -= (both * share).T @ both
            p = p * share
            total[spots, spots] += (p * x * x).sum(dim=0)
            total[spots + classes, spots + classes] += p.sum(dim=0)
            cross = (p * x).sum(dim=0)
            total[spots, spots + classes] += cross
            total[spots + classes, spots] += cross
        return total

    def narrowed(self) -> "DiagonalProblem | None":
        """Return the problem in float32, or None if ``x`` is too large for it."""
        return replace(self, x=self.x.float(), share=self.share.float()) if _fits_float32(self.x) else None

    def blocks(self) -> Tensor:
        """Return the Hessian's diagonal at the start, as blocks (2K, 1, 1)."""
        p = torch.softmax(self.x, dim=1)
        spread = p * (1 - p) * self.share[:, None]
        curvature = torch.cat([(spread * self.x**2).sum(dim=0), spread.sum(dim=0)])
        return (_lifted(curvature) + 2 * self._strength(curvature))[:, None, None]

    def _strength(self, theta: Tensor) -> Tensor:
        classes = len(theta) // 2
        return torch.cat([theta.new_full((classes,), self.ridge.diagonal), theta.new_full((classes,), self.ridge.bias)])


@dataclass(frozen=True)
class MatrixProblem:
    """Mean log-loss of softmax(x + [D, b] [x; 1]) plus ridge, as a function of [D, b] (K·(K+1),)."""

    x: Tensor
    labels: Tensor
    share: Tensor
    ridge: Ridge

    @property
    def rows(self) -> int:
        """N."""
        return self.x.shape[0]

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalised loss and its gradient."""
        classes = self.x.shape[1]
        matrix = theta.view(classes, classes + 1)
        loss, gradient = 0.0, torch.zeros_like(matrix)
        for rows in row_chunks(self.rows, 2 * classes):
            x = self.x[rows]
            logits = torch.addmm(matrix[:, -1], x, matrix[:, :-1].T).add_(x)
            part, residual = _loss_and_residual(logits, self.labels[rows], self.share[rows])
            loss += part
            gradient[:, :-1].addmm_(residual.T, x)
            gradient[:, -1] += residual.sum(dim=0)
        strength = self._strength()
        penalty = float((strength * matrix**2).sum())
        return loss + penalty, (gradient + 2 * strength * matrix).reshape(-1)

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian (K·(K+1), K·(K+1))."""
        classes = self.x.shape[1]
        matrix = theta.view(classes, classes + 1)
        total = torch.diag(2 * self._strength().reshape(-1))
        blocks = total.view(classes, classes + 1, classes, classes + 1)
        diagonal = blocks.diagonal(dim1=0, dim2=2)  # (K+1, K+1, K), a view
        for rows in row_chunks(self.rows, classes * (classes + 1)):
            x = self.x[rows]
            ones = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
            p = torch.softmax(x + ones @ matrix.T, dim=1)
            flat = (p[:, :, None] * ones[:, None, :]).flatten(1)  # (n, K·(K+1))
            weighted = flat * self.share[rows, None]
            total.addmm_(weighted.T, flat, alpha=-1)
            diagonal += (weighted.T @ ones).view(classes, classes + 1, classes + 1).permute(1, 2, 0)
        return total

    def narrowed(self) -> "MatrixProblem | None":
        """Return the problem in float32, or None if ``x`` is too large for it."""
        return replace(self, x=self.x.float(), share=self.share.float()) if _fits_float32(self.x) else None

    def blocks(self) -> Tensor:
        """Return a block (K+1, K+1) for each class: mean p (1 − p) times the features' second moments, plus the ridge."""
        p = torch.softmax(self.x, dim=1)
        spread = _lifted(self.share @ (p * (1 - p)))
        ones = torch.cat([self.x, torch.ones_like(self.x[:, :1])], dim=1)
        moments = (ones * self.share[:, None]).T @ ones
        if self.x.shape[1] > _BLOCK_CLASSES:  # K blocks would not fit in memory
            return (spread[:, None] * moments.diagonal() + 2 * self._strength()).reshape(-1, 1, 1)
        moments += 1e-9 * moments.diagonal().max() * torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
        blocks = spread[:, None, None] * moments
        blocks.diagonal(dim1=1, dim2=2).add_(self._strength(), alpha=2)
        return blocks

    def _strength(self) -> Tensor:
        classes = self.x.shape[1]
        strength = self.x.new_full((classes, classes + 1), self.ridge.off)
        strength[:, :-1].fill_diagonal_(self.ridge.diagonal)
        strength[:, -1] = self.ridge.bias
        return strength


def _lifted(curvature: Tensor) -> Tensor:
    """Return ``curvature`` with classes that are never near kept away from 0: it only scales a search."""
    return curvature.clamp_min(1e-4 * float(curvature.max()) + 1e-12)


def _fits_float32(x: Tensor) -> bool:
    """Return whether float32 resolves softmax(x) to about 1e-4: it holds 7 digits of the logits."""
    return float(x.abs().max()) <= _FLOAT32_LARGEST


def _loss_and_residual(logits: Tensor, labels: Tensor, share: Tensor) -> tuple[float, Tensor]:
    """Return Σ share · log-loss and share · (p − e_y) (n, K)."""
    log_p = torch.log_softmax(logits, dim=1)
    at_label = labels[:, None]
    loss = -float(share @ log_p.gather(1, at_label)[:, 0])
    residual = log_p.exp_()
    residual.scatter_add_(1, at_label, torch.full_like(at_label, -1, dtype=residual.dtype))
    return loss, residual.mul_(share[:, None])


def fit_affine(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    ridge: Ridge,
    *,
    diagonal: bool,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Minimum]:
    """Return (scale, bias, minimum) of softmax(scale · x + bias): scale is (K,) if ``diagonal``, else (K, K).

    Args:
        x: (N, K).
        labels: (N,).
        weight: (N,) or None.
        ridge: On the deviations from scale = I and bias = 0.
        diagonal: Whether the scale is.
        start: A scale and a bias to start from, as of an earlier fit; used if they are for K classes.

    Raises:
        FitError: If the gradient's certificate is not reached.
    """
    x = x.double()
    classes = x.shape[1]
    share = torch.ones_like(x[:, 0]) if weight is None else weight
    share = share / share.sum()
    identity = torch.ones_like(x[0]) if diagonal else torch.eye(classes, dtype=x.dtype, device=x.device)
    first = x.new_zeros(identity.numel() + classes)
    if start is not None and start[0].shape == identity.shape:
        first = _joined((start[0] - identity).to(x), start[1].to(x))
    problem = (DiagonalProblem if diagonal else MatrixProblem)(x, labels, share, ridge)
    found = minimise(problem, first)
    if diagonal:
        v, b = found.x.chunk(2)
        return identity + v, b.clone(), found
    matrix = found.x.view(classes, classes + 1)
    return identity + matrix[:, :-1], matrix[:, -1].clone(), found


def _joined(deviation: Tensor, bias: Tensor) -> Tensor:
    """Return the problem's parameters: (v, b), or [D, b] row by row."""
    if deviation.dim() == 1:
        return torch.cat([deviation, bias])
    return torch.cat([deviation, bias[:, None]], dim=1).reshape(-1)


def apply_affine(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return scale · x + bias (N, K) in the dtype of ``x``."""
    scale, bias = scale.to(x.dtype), bias.to(x.dtype)
    return (x * scale if scale.dim() == 1 else x @ scale.T) + bias


def lift_excluded(x: Tensor) -> Tensor:
    """Return ``x`` (N, K) with −inf replaced by the row's maximum − 100, so that products with it are numbers."""
    return torch.where(torch.isneginf(x), x.amax(dim=1, keepdim=True) + LOWEST, x)


def keep_excluded(answer: Tensor, logits: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with −inf where they have it: an excluded class stays excluded."""
    return torch.where(torch.isneginf(logits), -torch.inf, answer).to(logits.dtype)
