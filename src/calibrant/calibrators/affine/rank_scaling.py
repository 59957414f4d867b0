"""A slope and a bias for each rank of a row's logits, so that their order stays."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

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

        bounds = (low, torch.full_like(low, math.inf))
        loss = Objective(
            mass,
            partial(inputs.total, _RankChunk.derivatives),
            ridge=self.strength / mass,
            centre=centre,
            bounds=bounds,
        )
        found = minimise(loss, centre, rough=rows.rough)
        self.slopes, self.offsets = found.theta[:gaps] / temperature, found.theta[gaps:]
        self._certify(found.gradient, rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = lift_excluded(logits)
        ranked, order = sort_down(wide)
        gap = torch.arange(wide.shape[1] - 1, device=wide.device).clamp_max(len(self.slopes) - 1)
        slopes, offsets = (part.to(wide.dtype)[gap] for part in (self.slopes, self.offsets))
        below = ((ranked[:, :-1] - ranked[:, 1:]) * slopes + offsets).cumsum(dim=1)
        answer = F.pad(-below, (1, 0))
        return keep_excluded(torch.empty_like(answer).scatter(1, order, answer), logits)


@dataclass(frozen=True)
class _RankChunk:
    """The gaps with parameters of their own (n, R − 1), how far ranks lie below the last of these (n, K − R + 1), the label's rank
    (n,) and the weight (n,).
    """

    gaps: Tensor
    below: Tensor
    place: Tensor
    weight: Tensor

    @classmethod
    def of(cls, chunk: Chunk, temperature: float, gaps: int) -> "_RankChunk":
        check_label_logits(chunk)
        ranked, order = sort_down(lift_excluded(chunk.logits.double() / temperature))
        place = (order == chunk.labels[:, None]).long().argmax(dim=1)
        own = ranked[:, :gaps]
        return cls(own[:, :-1] - own[:, 1:], own[:, -1:] - ranked[:, gaps - 1 :], place, chunk.weights)

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed log-loss at θ (2R,), its gradient and its Hessian.

        Rank r lies −Σ_a θ_a D_ra below the first. Of a gap j < R, D_ra is its size, or 1, where r > j; so that E D_a is that times
        P(r > j), and E D_a D_b = E D_a · (size of b, or 1) for a's gap at or after b's. Only of the last gap D depends on the rank.
        """
        gaps = len(theta) // 2
        slopes, offsets = theta[:gaps], theta[gaps:]
        count = torch.arange(self.below.shape[1], dtype=theta.dtype, device=theta.device)
        first = F.pad(-(self.gaps * slopes[:-1] + offsets[:-1]).cumsum(dim=1), (1, 0))
        further = first[:, -1:] - self.below * slopes[-1] - count * offsets[-1]
        log_q = torch.log_softmax(torch.cat([first[:, :-1], further], dim=1), dim=1)
        q = log_q.exp()
        at_least = q.flip(1).cumsum(dim=1).flip(1)[:, 1:gaps]  # P(r > j) of the first gaps
        last = q[:, gaps - 1 :]
        size = F.pad(torch.cat([self.gaps, self.gaps.new_zeros(len(q), 1), torch.ones_like(self.gaps)], dim=1), (0, 1))
        means = [self.gaps * at_least, (last * self.below).sum(dim=1, keepdim=True), at_least, (last @ count)[:, None]]
        mean = torch.cat(means, dim=1)  # E D (n, 2R)
        weighted = mean * self.weight[:, None]
        gap = torch.arange(gaps, device=theta.device).repeat(2)
        products = weighted.T @ size
        hessian = torch.where(gap[:, None] >= gap, products, products.T)
        mass = last * self.weight[:, None]
        square, mixed = ((mass * self.below * other).sum() for other in (self.below, count))
        ends = torch.stack([square, mixed, mixed, (mass @ count.square()).sum()]).view(2, 2)
        at_last = torch.tensor([gaps - 1, 2 * gaps - 1], device=theta.device)
        hessian[at_last[:, None], at_last] = ends
        reached = (self.place[:, None] - torch.arange(gaps, device=theta.device)).clamp_min(0)
        tail = reached[:, -1:]  # ranks below the last of the first gaps
        own = torch.cat([self.below.gather(1, tail), tail], dim=1)
        label = (size * (reached > 0).repeat(1, 2)).index_copy(1, at_last, own)
        value = -(self.weight @ log_q.gather(1, self.place[:, None])[:, 0])
        return value, self.weight @ label - weighted.sum(dim=0), hessian - weighted.T @ mean
