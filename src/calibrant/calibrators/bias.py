"""A temperature and a bias a class, shrunk towards the model by imagined rows that it labels itself."""

import math

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.calibrators.affine import (
    NEWTON_DIAGONAL,
    AffineRows,
    centre_rows,
    diagonal_curvature,
    diagonal_sums,
    fit_affine,
    logit_squares,
)
from calibrant.calibrators.base import Certified
from calibrant.calibrators.chunks import check_label_logits, keep_excluded, lift_excluded
from calibrant.rows import Batch, RowSource

_SETTLES = 1e-6  # rows of ridge: biases that all rise by the same change nothing, nor does the slope of equal logits


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

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return 1 / T for each class (K,), and b (K,)."""
        return self.slope.expand(len(self.bias)), self.bias

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
        if self.fitted and len(self.bias) == classes:
            start = torch.cat([self.slope[None] * size, self.bias])
        ridge = torch.full_like(centre, _SETTLES / mass)
        blocks = None if classes <= NEWTON_DIAGONAL else _tied_blocks
        found = fit_affine(
            ready, _tied_sums, blocks, start, ridge=ridge, centre=centre, tilt=tilt, tolerance=self.tolerance
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


def _tied_sums(rows: AffineRows, theta: Tensor, second: bool) -> tuple[Tensor, ...]:
    """Return ``diagonal_sums`` by one slope and the biases (1 + K,)."""
    value, gradient, *hessian = diagonal_sums(rows, _free(theta), second)
    return value, _tied(gradient), *(_tied(_tied(part).T) for part in hessian)


def _tied_blocks(rows: RowSource, theta: Tensor, ridge: Tensor) -> Tensor:
    curvature = _tied(rows.total(diagonal_curvature, _free(theta)) / rows.mass)
    return (curvature + curvature.mean() + 2 * ridge)[:, None, None]


def _free(theta: Tensor) -> Tensor:
    """Return the parameters of ``diagonal_sums`` (2K,): the one slope and its bias for each class."""
    return torch.stack([theta[:1].expand(len(theta) - 1), theta[1:]], dim=1).view(-1)


def _tied(columns: Tensor) -> Tensor:
    """Return ``columns`` (2K, …) with those of the slopes, which share a parameter, as their sum (1 + K, …)."""
    return torch.cat([columns[::2].sum(dim=0, keepdim=True), columns[1::2]])
