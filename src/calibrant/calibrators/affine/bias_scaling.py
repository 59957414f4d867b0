"""A temperature and a bias a class, shrunk towards the model by imagined rows that it labels itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.newton import ROUGH, Derivatives, newton
from calibrant.calibrators.affine.fit import apply_affine, keep_excluded, lift_excluded
from calibrant.calibrators.base.calibrator import Certified
from calibrant.calibrators.base.chunks import check_label_logits
from calibrant.calibrators.base.minimise import TOLERANCE, lbfgs
from calibrant.rows import Chunk, RowSource

__all__ = ["BiasScaling"]

_NEWTON_CLASSES = 250  # beyond this many a Hessian costs more than the passes that L-BFGS takes
_TOLERANCE, _ENOUGH = 1e-9, 1e-7  # of a gradient entry of the mean log-loss, for Newton's method
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

    preserves_argmax = False

    slope: Tensor
    bias: Tensor

    def __init__(self, *, prior_rows: float = 5.0) -> None:
        super().__init__()
        self.prior_rows = check_number(prior_rows, name="prior_rows", low=0, open_low=True)
        self._declare("slope", "bias", "certificate")

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
        spread, mass = float(rows.total(_spread)), rows.mass
        size = math.sqrt(spread / mass) or 1.0  # of the logits: it brings them near 1
        inputs = rows.prepared(_input_of, size)
        start = torch.cat([self.slope[None] * size, self.bias]) if self.fitted else None
        start = start if start is not None and len(start) == 1 + rows.classes else None
        search = _by_newton if rows.classes <= _NEWTON_CLASSES else _by_lbfgs
        theta, certificate = search(inputs, _Prior(mass, self.prior_rows / mass, size), start)
        self.slope = theta[0] / size
        self.bias = theta[1:] - theta[1:].mean()  # where the ridge is least: nothing else knows their common part
        self.certificate = torch.tensor(certificate, dtype=torch.float64, device=rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scale = self.slope.expand(logits.shape[1])
        return keep_excluded(apply_affine(lift_excluded(wide), scale, self.bias), logits)


@dataclass(frozen=True)
class _Prior:
    """Σ of the rows' weights, imagined rows a unit of weight, and the slope, in units of the inputs, that changes nothing."""

    mass: float
    share: float
    one: float

    def ridge(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return what settles the parameters: its value, and its gradient (P,)."""
        off = theta.clone()
        off[0] -= self.one
        return _SETTLES / self.mass * off.square().sum(), 2 * _SETTLES / self.mass * off


@dataclass(frozen=True)
class _BiasChunk:
    """Logits (n, K) over their size, the model's probabilities (n, K), labels and weights (n,)."""

    x: Tensor
    p: Tensor
    labels: Tensor
    weight: Tensor


def _by_newton(rows: RowSource, prior: _Prior, start: Tensor | None) -> tuple[Tensor, float]:
    """Return slope and biases (1 + K,) and the certificate."""

    def derivatives(theta: Tensor) -> Derivatives:
        (value, gradient), hessian = rows.totals(
            [(loss_sums, theta[0], prior.share), (curvature, theta[0], prior.share)]
        )
        ridge, slope = prior.ridge(theta[0])
        settled = 2 * _SETTLES / prior.mass * torch.eye(len(slope), dtype=slope.dtype, device=slope.device)
        return Derivatives(
            (value / prior.mass + ridge)[None],
            (gradient / prior.mass + slope)[None],
            (hessian / prior.mass + settled)[None],
        )

    # the uniform distribution is where the curvature is largest
    first = torch.zeros(1 + rows.classes, dtype=torch.float64, device=rows.device) if start is None else start
    tolerance = ROUGH if rows.rough else _TOLERANCE
    found = newton(derivatives, first[None], tolerance=tolerance, enough=max(_ENOUGH, tolerance), polish=not rows.rough)
    return found.x[0], float(found.gradient)


def _by_lbfgs(rows: RowSource, prior: _Prior, start: Tensor | None) -> tuple[Tensor, float]:
    """Return the same for many classes."""
    first = torch.zeros(1 + rows.classes, dtype=torch.float64, device=rows.device)
    first[0] = prior.one
    blocks = rows.total(spreads, prior.one, prior.share) / prior.mass
    blocks = blocks.clamp_min(1e-4 * float(blocks[1:].max()) + 1e-12) + 2 * _SETTLES / prior.mass

    def penalised(theta: Tensor) -> tuple[float, Tensor]:
        value, gradient = (part / prior.mass for part in rows.total(loss_sums, theta, prior.share))
        ridge, slope = prior.ridge(theta)
        return float(value + ridge), gradient + slope

    tolerance = ROUGH if rows.rough else TOLERANCE
    theta, _, worst = lbfgs(penalised, first if start is None else start, blocks[:, None, None], tolerance=tolerance)
    return theta, worst


def loss_sums(chunk: _BiasChunk, theta: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return Σ w (log-loss of the label + ``share`` · that of the model's own), and its gradient (1 + K,)."""
    log_q = torch.log_softmax(chunk.x * theta[0] + theta[1:], dim=1)
    at_label = chunk.labels[:, None]
    target = (chunk.p * share).scatter_add_(1, at_label, torch.ones_like(at_label, dtype=chunk.p.dtype))
    loss = -(chunk.weight @ (target * log_q).sum(dim=1))
    residual = ((1 + share) * log_q.exp() - target).mul_(chunk.weight[:, None])
    return loss, torch.cat([(residual * chunk.x).sum()[None], residual.sum(dim=0)])


def curvature(chunk: _BiasChunk, theta: Tensor, share: float) -> Tensor:
    """Return its Hessian (1 + K, 1 + K)."""
    q, weighted, centred = _moments(chunk, chunk.x * theta[0] + theta[1:], share)
    across = (weighted * centred).sum(dim=0)
    total = theta.new_empty(len(theta), len(theta))
    total[0, 0] = (weighted * centred * chunk.x).sum()
    total[0, 1:], total[1:, 0] = across, across
    total[1:, 1:] = torch.diag(weighted.sum(dim=0)) - q.T @ weighted
    return total


def spreads(chunk: _BiasChunk, slope: float, share: float) -> Tensor:
    """Return the diagonal of that Hessian (1 + K,) at this slope and no bias."""
    q, weighted, centred = _moments(chunk, chunk.x * slope, share)
    return torch.cat([(weighted * centred * chunk.x).sum()[None], (weighted * (1 - q)).sum(dim=0)])


def _moments(chunk: _BiasChunk, logits: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return q = softmax(logits) (n, K), the same times the rows' weights, real and imagined, and x less its mean under q."""
    q = torch.softmax(logits, dim=1)
    return q, q * (chunk.weight * (1 + share))[:, None], chunk.x - (q * chunk.x).sum(dim=1, keepdim=True)


def _spread(chunk: Chunk) -> Tensor:
    check_label_logits(chunk)
    x = lift_excluded(chunk.logits.double())
    return chunk.weights @ (x - x.mean(dim=1, keepdim=True)).square().mean(dim=1)


def _input_of(chunk: Chunk, size: float) -> _BiasChunk:
    x = lift_excluded(chunk.logits.double())
    return _BiasChunk(x / size, torch.softmax(x, dim=1), chunk.labels, chunk.weights)
