"""A slope and a bias for each rank of a row's logits, so that their order stays."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.constraints import NonNegative, Positive
from calibrant._core.minimise import Objective, minimise
from calibrant._core.numerics import sort_down
from calibrant.calibrators.affine.fit import keep_excluded, lift_excluded
from calibrant.calibrators.base.calibrator import Certified
from calibrant.calibrators.base.chunks import check_label_logits
from calibrant.calibrators.focal.temperature import fit_temperature
from calibrant.rows import Chunk, RowSource

_RANKS = 8  # gaps with parameters of their own; further ones share the last, for few labels lie beyond
_FLATTEST = 1e-3  # least slope, as of the temperatures: two logits that differ never become equal


class RankScaling(Certified):
    """x_(r) − x_(r+1) = s_r (z_(r) − z_(r+1)) / T + c_r between logits of neighbouring ranks, s_r > 0, c_r ≥ 0: the order stays.

    A temperature first; then a slope and a bias for each of the first eight gaps, the last for all further ones, by log-loss plus
    strength / N · Σ ((s_r − 1)² + c_r²). The logits are linear in them, so the fit is convex; it ends with a gradient certificate.

    Args:
        strength: Of the ridge, ≥ 0.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        slopes: (R,) s_r over T.
        offsets: (R,) c_r.
        gradient: The largest entry of the objective's gradient at the end, in nats, without what a bound holds: the certificate.

    Examples:
        >>> z, y = torch.tensor([[3.0, 1.0, 0.0]]).repeat(10, 1), torch.tensor([0] * 6 + [1] * 3 + [2])
        >>> RankScaling(strength=0.01).fit(z, y)(z[:1]).softmax(dim=1)
        tensor([[0.6006, 0.2985, 0.1010]])

    References:
        After Zhang et al. 2025, arXiv 2507.06516 (monotone maps of sorted logits).
    """

    preserves_argmax = True

    slopes: Tensor
    offsets: Tensor

    learned_bounds = (("slopes", 0.0, 1e12), ("offsets", 0.0, 1e12))

    def __init__(self, *, strength: NonNegative = 1.0, prior: Positive | None = None) -> None:
        super().__init__()
        self.strength = strength
        self.prior = prior

    def learned(self) -> str:
        """Return the slope and the bias of the first gap."""
        return f"first slope {float(self.slopes[0]):.4g}, first bias {float(self.offsets[0]):.3g}"

    def _fit(self, rows: RowSource) -> None:
        temperature = fit_temperature(rows, self.prior)
        gaps, mass = min(_RANKS, rows.classes - 1), rows.mass
        centre = torch.cat([torch.ones(gaps), torch.zeros(gaps)]).double().to(rows.device)
        low = torch.cat([torch.full((gaps,), _FLATTEST), torch.zeros(gaps)]).double().to(rows.device)
        inputs = rows.prepared(_RankChunk.of, temperature, gaps)

        def sums(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, gradient, hessian = inputs.total(_RankChunk.derivatives, theta)
            return value, gradient, hessian

        bounds = (low, torch.full_like(low, math.inf))
        loss = Objective(mass, sums, ridge=self.strength / mass, centre=centre, bounds=bounds)
        found = minimise(loss, centre, rough=rows.rough)
        self.slopes, self.offsets = found.theta[:gaps] / temperature, found.theta[gaps:]
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = lift_excluded(logits)
        ranked, order = sort_down(wide)
        gap = torch.arange(wide.shape[1] - 1, device=wide.device).clamp_max(len(self.slopes) - 1)
        slopes, offsets = (part.to(wide.dtype)[gap] for part in (self.slopes, self.offsets))
        below = ((ranked[:, :-1] - ranked[:, 1:]) * slopes + offsets).cumsum(dim=1)
        answer = torch.nn.functional.pad(-below, (1, 0))
        return keep_excluded(torch.empty_like(answer).scatter(1, order, answer), logits)


@dataclass(frozen=True)
class _RankChunk:
    """Of each rank what its logit is linear in, (n, K, 2R), the label's rank (n,) and the weight (n,)."""

    basis: Tensor
    place: Tensor
    weight: Tensor

    @classmethod
    def of(cls, chunk: Chunk, temperature: float, gaps: int) -> "_RankChunk":
        """Return −Σ of the gaps above each rank, and −their number, by the gap's parameters."""
        check_label_logits(chunk)
        ranked, order = sort_down(lift_excluded(chunk.logits.double() / temperature))
        rows, classes = ranked.shape
        sizes = ranked[:, :-1] - ranked[:, 1:]
        own = (
            torch.nn.functional.one_hot(torch.arange(classes - 1).clamp_max(gaps - 1), gaps).double().to(ranked.device)
        )
        steps = torch.cat([sizes[:, :, None] * own, own.expand(rows, -1, -1)], dim=2)
        basis = torch.nn.functional.pad(-steps.cumsum(dim=1), (0, 0, 1, 0))
        place = (order == chunk.labels[:, None]).long().argmax(dim=1)
        return cls(basis, place, chunk.weights)

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed log-loss at θ (2R,), its gradient and its Hessian: Σ w Cov_q(basis)."""
        log_q = torch.log_softmax(self.basis @ theta, dim=1)
        at_label = self.place[:, None]
        q = log_q.exp()
        mean = (q[:, :, None] * self.basis).sum(dim=1)
        label = self.basis.gather(1, at_label[:, :, None].expand(-1, -1, len(theta)))[:, 0]
        centred = (self.basis - mean[:, None]) * (q * self.weight[:, None]).sqrt()[:, :, None]
        flat = centred.reshape(-1, len(theta))
        return -(self.weight @ log_q.gather(1, at_label)[:, 0]), self.weight @ (mean - label), flat.T @ flat
