"""Calibrators that map the log-odds of each class against the rest; two classes share a single map.

Platt scaling, beta calibration and splines are logistic regressions on functions of the log-odds. They are fitted for all classes at
once by Newton's method. With more than two classes, the results are normalised.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count, check_number
from calibrant._core.newton import newton
from calibrant._core.numerics import in_row_chunks, row_chunks
from calibrant.calibrators.base import LOWEST, Calibrator
from calibrant.rows import RowSource

_TOLERANCE = 1e-10  # gradient entry of the mean log-loss at which the fit stops, with features scaled to at most 1
_MAX_SCORES = 1 << 24  # largest number of log-odds that are gathered if the rows are not in memory
_ROUNDING = 1e-12  # log-odds up to 100 in size have rounding errors of about 1e-14
_BLOCK = 1 << 17  # number of entries per block, so that a block stays in the cache


def log_odds(logits: Tensor) -> Tensor:
    """Return log(p_k / (1 − p_k)) for p = softmax(logits), in float64 and clipped to [−100, 100].

    The log-odds of the top class are computed from the other logits, because 1 − p loses its digits if p is nearly 1.

    Args:
        logits: Logits (N, K).

    Returns:
        The log-odds of class 1 (1, N) if K = 2, and of every class (K, N) otherwise. Classes are on the first axis, along which
        sums over few classes are vectorised.
    """
    z = logits.double().T.contiguous()
    if len(z) == 2:
        return (z[1:] - z[:1]).clamp(LOWEST, -LOWEST)
    largest, top = z.max(dim=0, keepdim=True)
    margin = z - largest
    e = margin.exp().scatter(0, top, 0.0)
    # summed along contiguous rows, because sums along the first axis are rounded differently from column to column, and would
    # separate equal rows
    others = e.T.contiguous().sum(dim=1)
    # p_k / (1 − p_k) = e_k / (1 + Σ of the others without e_k), where the 1 belongs to the top class, so that nothing cancels
    found = margin - torch.log1p(others - e)
    return found.scatter(0, top, -others.log()[None]).clamp(LOWEST, -LOWEST)


class OneVsRest(Calibrator):
    """A method that calibrates each class against the rest; subclasses fit the maps and apply them to log-odds."""

    def _scores(self, rows: RowSource) -> tuple[Tensor, Tensor, Tensor]:
        """Return each class's log-odds (C, n), its indicator (C, n), 1.0 where it is the label, and the row weights (n,)."""
        batch = rows.gathered(values=_MAX_SCORES, why=type(self).__name__)
        names = torch.arange(1 if rows.classes == 2 else 0, rows.classes, device=batch.labels.device)
        chunks = row_chunks(*batch.logits.shape, device=batch.logits.device)
        odds = torch.cat([log_odds(batch.logits[some]) for some in chunks], dim=1)
        return odds, (names[:, None] == batch.labels).double(), batch.row_weights

    @abstractmethod
    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        """Return the calibrated log-odds (C, N) for log-odds (C, N), before normalisation over classes."""

    def _transform(self, logits: Tensor) -> Tensor:
        return in_row_chunks(self._transform_rows, logits)

    def _transform_rows(self, logits: Tensor) -> Tensor:
        odds = log_odds(logits)
        # NaN stays NaN, although a search for it returns the last place
        answer = self._calibrated_log_odds(odds) + 0 * odds
        if logits.shape[1] == 2:
            answer = torch.nn.functional.logsigmoid(torch.cat([-answer, answer]))
        else:
            excluded = torch.isneginf(logits).T
            answer = torch.nn.functional.logsigmoid(answer).masked_fill(excluded, -torch.inf)
            # if every class has probability 0, all classes that are not excluded get the same probability
            lost = torch.isneginf(answer.amax(dim=0))
            answer = torch.log_softmax(answer.masked_fill(lost & ~excluded, 0.0), dim=0)
        return answer.T.to(logits.dtype).contiguous()


class _Logistic(OneVsRest):
    """σ(Σ_j θ_j φ_j(s)) of the log-odds s, with a few coefficients per class and a ridge measured in rows.

    A subclass defines the features φ, the identity map's θ (``centre``), any lower bounds of θ, and whether to use Platt's targets,
    which add one imagined row of each kind. The penalty ridge · Σ (θ_j − centre_j)² is added to the summed log-loss.
    """

    centre: tuple[float, ...]
    platt: ClassVar[bool] = True
    low: ClassVar[tuple[float, ...] | None] = None

    coefficients: Tensor

    def __init__(self, *, ridge: float) -> None:
        super().__init__()
        self.ridge = check_number(ridge, name="ridge", low=0)

    @abstractmethod
    def _features(self, log_odds: Tensor) -> Tensor:
        """Return the features φ (C, P, n) for log-odds (C, n)."""

    def _place(self, scores: tuple[Tensor, Tensor, Tensor]) -> None:
        """Learn what the features depend on, such as knots."""

    def _fit(self, rows: RowSource) -> None:
        # finds the certified optimum for all classes at once, with features scaled to a maximum of 1
        odds, hit, weight = scores = self._scores(rows)
        self._place(scores)
        phi = self._features(odds)
        scale = phi.abs().amax(dim=2).clamp_min(1e-12)  # (C, P); for features φ / a, the parameters are a θ
        phi.div_(scale[:, :, None])
        hits, mass = hit @ weight, weight.sum()
        target = hit
        if self.platt:  # Platt 1999, Eq. 2.2: the targets are the means after one imagined row of each kind
            target = torch.lerp((1 / (mass - hits + 2))[:, None], ((hits + 1) / (hits + 2))[:, None], hit)
        step = max(1, _BLOCK // phi[:, :, 0].numel())
        blocks = list(zip(phi.split(step, dim=2), target.split(step, dim=1), weight.split(step), strict=True))
        middle, strength = scale.new_tensor(self.centre) * scale, self.ridge / mass / scale.square()

        def derivatives(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            sums = [_logistic_sums(*block, theta) for block in blocks]
            value, gradient, hessian = (sum(part) / mass for part in zip(*sums, strict=True))
            off = theta - middle
            return (
                value + (strength * off.square()).sum(dim=1),
                gradient + 2 * strength * off,
                hessian + torch.diag_embed(2 * strength),
            )

        least = -torch.inf if self.low is None else scale.new_tensor(self.low) * scale
        self.coefficients = newton(derivatives, middle, low=least, tolerance=_TOLERANCE).theta / scale

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        return (self._features(log_odds) * self.coefficients[:, :, None]).sum(dim=1)


def _logistic_sums(phi: Tensor, target: Tensor, weight: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ w · log-loss (C,) of σ(θ φ) for the targets (C, n), its gradient (C, P) and its Hessian (C, P, P)."""
    s = (theta[:, None] @ phi)[:, 0]  # (C, n)
    p = torch.sigmoid(s)
    value = (-torch.nn.functional.logsigmoid(-s) - target * s) @ weight  # softplus would drop e^−s beyond s = 20
    gradient = (phi @ ((p - target) * weight)[:, :, None])[:, :, 0]
    return value, gradient, (phi * (p * (1 - p) * weight)[:, None]) @ phi.mT


class PlattScaling(_Logistic):
    """Platt scaling: the sigmoid σ(a s + b) of the log-odds s.

    Two classes share one pair (a, b). With more classes, each class has its own pair against the rest, and the results are
    normalised. The log-loss uses Platt's targets, which add one imagined row of each kind and give separable data a finite
    optimum. The penalty ridge / N · ((a − 1)² + b²) is added. The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Ridge strength ≥ 0, in rows. The small default only determines what the data do not, for example if s is constant.

    Attributes:
        coefficients: a and b (C, 2); C = 1 for two classes (class 1 against class 0), else C = K.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> PlattScaling().fit(z, y).coefficients.shape
        torch.Size([1, 2])

    References:
        Platt 1999, Probabilistic Outputs for Support Vector Machines, §2.1, §2.2.
    """

    centre = (1.0, 0.0)

    def __init__(self, *, ridge: float = 1e-3) -> None:
        super().__init__(ridge=ridge)

    def _features(self, log_odds: Tensor) -> Tensor:
        return torch.stack([log_odds, torch.ones_like(log_odds)], dim=1)


class BetaCalibration(_Logistic):
    """σ(a log p − b log(1 − p) + c) with a, b ≥ 0, which is exact if p has a beta distribution in each class (Kull et al. 2017).

    Two classes share one triple (a, b, c). With more classes, each class has its own triple against the rest, and the results
    are normalised. The map never decreases, so it preserves the ranking of the rows for each class. The fit is convex, with
    exact bounds. The penalty ridge / N · ((a − 1)² + (b − 1)² + c²) is added to the mean log-loss and gives separable data a
    finite optimum.

    Args:
        ridge: Ridge strength ≥ 0, in rows.

    Attributes:
        coefficients: a, b and c (C, 3); C = 1 for two classes (class 1 against class 0), else C = K.

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> BetaCalibration().fit(z, y).coefficients.shape
        torch.Size([1, 3])

    References:
        Kull, Silva Filho, Flach 2017, Beta calibration, Theorem 1 and §3.2.
    """

    centre, platt, low = (1.0, 1.0, 0.0), False, (0.0, 0.0, -torch.inf)

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge)

    def _features(self, log_odds: Tensor) -> Tensor:
        sigmoid = torch.nn.functional.logsigmoid
        return torch.stack([sigmoid(log_odds), -sigmoid(-log_odds), torch.ones_like(log_odds)], dim=1)


class SplineCalibration(_Logistic):
    """σ(g(s)), where g is a natural cubic spline in the log-odds s that is linear beyond the outer knots (Lucena 2018).

    Two classes share one curve. With more classes, each class has its own curve against the rest, and the results are
    normalised. The knots are at weighted quantiles of s. The log-loss uses Platt's targets; ridge / N times the squared distance
    of the coefficients of g from those of g(s) = s is added to its mean. The fit is convex and ends with a gradient certificate.
    The curve can decrease, so the order of the classes may change.

    Args:
        knots: Number of knots, ≥ 3.
        ridge: Ridge strength > 0, in rows.

    Attributes:
        places: Positions of the knots (C, knots), in log-odds.
        coefficients: Constant, slope and curved parts (C, knots); C = 1 for two classes, else C = K.

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> SplineCalibration().fit(z, y).coefficients.shape
        torch.Size([1, 5])

    References:
        Lucena 2018, Spline-Based Probability Calibration, §3. Basis: Hastie, Tibshirani, Friedman 2009, §5.2.1.
    """

    places: Tensor

    def __init__(self, knots: int = 5, *, ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge)
        self.knots = check_count(knots, name="knots", low=3)
        self.centre = (0.0, 1.0) + (0.0,) * (knots - 2)

    def _place(self, scores: tuple[Tensor, Tensor, Tensor]) -> None:
        self.places = torch.stack([_quantiles(one, self.knots) for one in pool_ties(*scores)]).to(scores[0].device)

    def _features(self, log_odds: Tensor) -> Tensor:
        # the natural cubic basis: Hastie, Tibshirani, Friedman 2009, Eq. 5.4 and 5.5
        s, places = log_odds[:, None], self.places[:, :, None]
        cubes = (s - places).clamp_min(0) ** 3
        d = (cubes - cubes[:, -1:])[:, :-1] / (places[:, -1:] - places[:, :-1])  # (C, knots − 1, n)
        # divided by the range of the knots, the curved parts have the scale of s
        curved = (d[:, :-1] - d[:, -1:]) / (places[:, -1:] - places[:, :1])
        return torch.cat([torch.ones_like(s), s, curved], dim=1)


class PooledScores(NamedTuple):
    """The distinct log-odds (M,) of one class in ascending order, with the mean label (M,) and the total weight (M,) at each."""

    places: np.ndarray
    mean: np.ndarray
    mass: np.ndarray


def pool_ties(log_odds: Tensor, hits: Tensor, weight: Tensor) -> list[PooledScores]:
    """Return the distinct scores of each class, from ``log_odds`` (C, n), ``hits`` (C, n) in {0, 1} and ``weight`` (n,).

    Scores that differ only by rounding are ties, so that the same row has the same place whichever library computes its log-odds.
    """
    pooled = []
    for odds, hit in zip(log_odds.cpu().numpy(), hits.cpu().numpy(), strict=True):
        order = np.argsort(odds)
        x, y, w = odds[order], hit[order], weight.cpu().numpy()[order]
        distinct = np.r_[True, x[1:] > x[:-1] + _ROUNDING]
        if not distinct.all():  # only with ties, because the sums take a quarter of the time of an isotonic fit
            first = np.flatnonzero(distinct)
            mass = np.add.reduceat(w, first)
            x, y, w = x[first], np.add.reduceat(w * y, first) / mass, mass
        pooled.append(PooledScores(x, y, w))
    return pooled


def _quantiles(scores: PooledScores, knots: int) -> Tensor:
    """Return increasing knots (knots,) at the weighted 5 % … 95 % quantiles, at least 0.01 apart."""
    below = scores.mass.cumsum() / scores.mass.sum()
    at = np.searchsorted(below, np.linspace(0.05, 0.95, knots) - 1e-12).clip(max=len(below) - 1)
    steps = np.arange(knots) * 0.01
    return torch.from_numpy(np.maximum.accumulate(scores.places[at] - steps) + steps)
