"""A temperature and a bias a class, shrunk towards the model by imagined rows that it labels itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.constraints import Positive
from calibrant._core.minimise import Objective, at_least, minimise
from calibrant.calibrators.affine.fit import apply_affine, centre_rows, keep_excluded, lift_excluded, logit_squares
from calibrant.calibrators.base import Certified
from calibrant.calibrators.chunks import check_label_logits
from calibrant.rows import Batch, RowSource

_NEWTON_CLASSES = 250  # beyond this many a Hessian costs more than the passes that L-BFGS takes
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

    def __init__(self, *, prior_rows: Positive = 5.0) -> None:
        super().__init__()
        self.prior_rows = prior_rows

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
        spread, mass = float(rows.total(logit_squares)), rows.mass
        size = math.sqrt(spread / mass) or 1.0  # of the logits: it brings them near 1
        inputs, share, settles = rows.map(_BiasChunk.of, size), self.prior_rows / mass, _SETTLES / mass
        centre = torch.zeros(1 + rows.classes, dtype=torch.float64, device=rows.device)
        centre[0] = size  # the slope that changes nothing

        def blocks() -> Tensor:
            diagonal = inputs.total(_BiasChunk.spreads, size, share) / mass
            diagonal[1:] = at_least(diagonal[1:])
            diagonal[0].clamp_min_(float(diagonal[1:].min()))  # equal logits leave the slope without curvature
            made: Tensor = (diagonal + 2 * settles)[:, None, None]
            return made

        # Newton's method sets out from the uniform distribution, where the curvature is largest; L-BFGS from the model, where its
        # blocks are made
        first = torch.zeros_like(centre) if rows.classes <= _NEWTON_CLASSES else centre
        if self.fitted and len(self.bias) == rows.classes:
            first = torch.cat([self.slope[None] * size, self.bias])
        loss = Objective(
            mass,
            lambda theta: inputs.total(_BiasChunk.derivatives, theta, share),
            lambda theta: inputs.total(_BiasChunk.loss_sums, theta, share),
            ridge=settles,
            centre=centre,
        )
        found = minimise(loss, first, newton_up_to=1 + _NEWTON_CLASSES, blocks=blocks)
        self.slope = found.theta[0] / size
        # where the ridge is least: nothing else knows their common part
        self.bias = found.theta[1:] - found.theta[1:].mean()
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        scale = self.slope.expand(logits.shape[1])
        return keep_excluded(apply_affine(lift_excluded(logits), scale, self.bias), logits)


@dataclass(frozen=True)
class _BiasChunk:
    """Logits (n, K) over their size, the model's probabilities (n, K), labels and weights (n,)."""

    x: Tensor
    p: Tensor
    labels: Tensor
    weight: Tensor

    @classmethod
    def of(cls, chunk: Batch, size: float) -> "_BiasChunk":
        check_label_logits(chunk)
        x = centre_rows(chunk.logits)
        return cls(x / size, torch.softmax(x, dim=1), chunk.labels, chunk.row_weights)

    def loss_sums(self, theta: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return Σ w (log-loss of the label + ``share`` · that of the model's own), and its gradient (1 + K,)."""
        log_q = torch.log_softmax(self.x * theta[0] + theta[1:], dim=1)
        at_label = self.labels[:, None]
        target = (self.p * share).scatter_add_(1, at_label, torch.ones_like(at_label, dtype=self.p.dtype))
        loss = -(self.weight @ (target * log_q).sum(dim=1))
        residual = ((1 + share) * log_q.exp() - target).mul_(self.weight[:, None])
        return loss, torch.cat([(residual * self.x).sum()[None], residual.sum(dim=0)])

    def derivatives(self, theta: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same, and the Hessian (1 + K, 1 + K)."""
        q, weighted, centred = self._moments(self.x * theta[0] + theta[1:], share)
        across = (weighted * centred).sum(dim=0)
        total = theta.new_empty(len(theta), len(theta))
        total[0, 0] = (weighted * centred * self.x).sum()
        total[0, 1:], total[1:, 0] = across, across
        total[1:, 1:] = torch.diag(weighted.sum(dim=0)) - q.T @ weighted
        return *self.loss_sums(theta, share), total

    def spreads(self, slope: float, share: float) -> Tensor:
        """Return the diagonal of that Hessian (1 + K,) at this slope and no bias."""
        q, weighted, centred = self._moments(self.x * slope, share)
        return torch.cat([(weighted * centred * self.x).sum()[None], (weighted * (1 - q)).sum(dim=0)])

    def _moments(self, logits: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return q = softmax(logits) (n, K), the same times the rows' weights, real and imagined, and x less its mean under q."""
        q = torch.softmax(logits, dim=1)
        return q, q * (self.weight * (1 + share))[:, None], self.x - (q * self.x).sum(dim=1, keepdim=True)
