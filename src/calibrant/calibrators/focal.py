"""Focal temperature scaling: a temperature, then the focal calibration map."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from calibrant._core.constraints import Each, Positive
from calibrant._core.minimise import Objective, by_exponent, minimise
from calibrant._objective.log_pairs import log_normalise
from calibrant.binning import AnyBinning
from calibrant.calibrators.base import Calibrator, Tempered
from calibrant.calibrators.chunks import check_label_logits, narrowed
from calibrant.calibrators.focal_search import PRESETS, Best, Grid, Search, criterion_of, search_of
from calibrant.calibrators.temperature import (
    T_HIGH,
    T_LOW,
    fit_log_temperature,
    fit_temperature,
)
from calibrant.errors import InputError
from calibrant.rows import Batch, RowSource
from calibrant.scores import FOCAL_GAMMA, FocalGamma
from calibrant.theory.focal_map import focal_scores

PUBLISHED_GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)


class FocalTemperatureScaling(Tempered):
    """FC_γ(softmax(z / T)): temperature scaling with a second parameter that curves the map (Komisarenko & Kull 2024).

    The order matters: first T, then the focal map. γ need not be that of training. The default γ are the published nine
    and 0, and 0 is temperature scaling, so that it is never worse than that on the data it is fitted on. Of equally
    good pairs the one with the smallest |γ| wins, then the T closest to 1. The decision never changes.

    Args:
        criterion: "nll" or "ece"; None is the preset's, else "nll". Choosing by ECE can wreck the log-loss.
        binning: Bins of the ECE; None is the preset's, else ``EqualMass(15)``. Weights need ``EqualWidth``.
        gammas: Candidates γ > −1, used as given; the published nine alone are ``FocalTemperatureScaling.published``.
        grid: Temperatures, or a preset's name as in ``TemperatureScaling``; None is "komisarenko"'s .01 … 5.
        search: "full" returns the best of all pairs, exactly, though most are ruled out unseen. "line" takes the best T
            at the outermost two γ, and searches the straight line between: 3 evaluations a temperature (Komisarenko &
            Kull §5.2). "continuous" leaves the grid: γ between the outermost two and any T in [1e-3, 1e3], by Newton's
            method in (log T, log(1 + γ)) for "nll"; for "ece", which jumps, by grids around the best, to 1/64 of the grid's
            step. Without a ``grid`` the best temperature at γ = 0 is tried as well, also beyond the grid's ends.
        prior: Standard deviation of normal priors on log T and on log(1 + γ) about 0, or None for none; a small or
            all-correct validation set cannot then drive them to their bounds. It needs "nll" and "continuous", which then
            starts at the best temperature with γ = 0, or at its previous solution if it was fitted before.

    Attributes:
        temperature: The fitted T.
        gamma: The fitted γ.
        objective: The criterion's value at the solution, on the data of the fit.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = torch.randn(500, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 2, dim=1), 1, generator=generator)[:, 0]
        >>> FocalTemperatureScaling(gammas=[0.0, 1.0], grid=[1.0, 2.0, 3.0, 4.0]).fit(z, y).temperature
        2.0

    References:
        Komisarenko & Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness, §4–5.
    """

    preserves_argmax = True
    published = PUBLISHED_GAMMAS

    exponent: Tensor
    reached: Tensor

    def __init__(
        self,
        criterion: Literal["nll", "ece"] | None = None,
        *,
        binning: AnyBinning | None = None,
        gammas: Annotated[Sequence[float], Each(FOCAL_GAMMA, least=1)] = (*PUBLISHED_GAMMAS, 0.0),
        grid: Grid = None,
        search: Literal["full", "line", "continuous"] = "full",
        prior: Positive | None = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.binning = binning
        self.gammas = sorted(set(gammas))
        self.grid = grid if grid is None or isinstance(grid, str) else sorted(set(grid))
        self.search = search
        self.prior = prior
        by = criterion_of(self.criterion, self.grid)
        if self.prior is not None and (self.search, by) != ("continuous", "nll"):
            raise InputError(
                "criterion 'nll' and search 'continuous' with a prior",
                f"{by!r} and {self.search!r}",
                "leave out the prior, or set both",
            )

    @property
    def gamma(self) -> float:
        """The fitted γ; NaN before ``fit``."""
        return float(self.exponent) if self.fitted else math.nan

    @property
    def objective(self) -> float:
        """The criterion's value on the data of the fit; NaN before ``fit``."""
        return float(self.reached) if self.fitted else math.nan

    def learned(self) -> str:
        """Return both numbers."""
        return f"gamma={self.gamma:.4g}, {super().learned()}"

    def _fit(self, rows: RowSource) -> None:
        if self.prior is not None:
            best = self._penalised(rows, self.prior)
        else:
            given = (self.criterion, self.binning, self.grid)
            search, temps = search_of(rows, *given, Best.least_change, otherwise=PRESETS["komisarenko"])
            best = min(self._candidates(rows, search, temps), key=Best.least_change)
            best.warn_at_end(temps)
        values = (math.log(best.temperature), best.gamma, best.value)
        self.log_temperature, self.exponent, self.reached = (
            torch.tensor(value, dtype=torch.float64, device=rows.device) for value in values
        )

    def _penalised(self, rows: RowSource, prior: float) -> Best:
        """Return the minimum with a prior, from the best temperature at γ = 0, or from what was fitted before."""
        again = self.fitted and self.temperature > 0
        start = (self.gamma, self.temperature) if again else (0.0, fit_temperature(rows, prior))
        gamma, temperature, value = focal_minimum(rows, self._ends, start, pull=prior**-2 / rows.mass)
        return Best(value, gamma, temperature)

    def _candidates(self, rows: RowSource, search: Search, temps: list[float]) -> list[Best]:
        """Return the best pair of the chosen search, and the best temperatures with γ = 0 that compete with it."""
        by_loss, off_grid = search.grid.binning is None, self.search == "continuous"
        if self.search == "line":
            found = [search.line(self.gammas, temps), search.best([0.0], temps)]
        else:
            found = [search.best(self.gammas, temps)]
        plain = self.search != "full" or (self.grid is None and 0.0 in self.gammas)
        if plain and by_loss:
            root = fit_log_temperature(rows)
            found += search.at([(0.0, math.exp(root.x))])
        elif plain and self.grid is None:
            found.append(search.best([0.0], PRESETS["wang"].temperatures))
        if off_grid and by_loss:
            for start in list(found):
                gamma, temperature, _ = focal_minimum(rows, self._ends, (start.gamma, start.temperature))
                found += search.at([(gamma, temperature)])
        elif off_grid:
            found.append(search.finer(min(found, key=Best.least_change), self._ends, temps))
        return found

    @property
    def _ends(self) -> tuple[float, float]:
        return self.gammas[0], self.gammas[-1]

    def _transform(self, logits: Tensor) -> Tensor:
        return focal_log_probs(self._tempered(logits), self.exponent.to(logits.dtype))


# The mean log-loss of the focal map by (log T, log(1 + γ)), with its derivatives, and a minimum of it.

_ENOUGH = (
    1e-5  # of a gradient entry of the mean log-loss: the map has no digits left where γ is near −1 and rows are sure
)
_NEAR_ONE = 1e-3  # 1 − q below which u and its derivatives come from their series
_EXCLUDED = -1e30  # stands for −inf: its exponential is 0, and 0 times its square is not NaN
_BLOCK = 1 << 13  # logits whose intermediate results stay in a core's cache, and in memory that is at hand


def focal_minimum(
    rows: RowSource, ends: tuple[float, float], start: tuple[float, float], *, pull: float = 0.0
) -> tuple[float, float, float]:
    """Return (γ, T, mean log-loss) at the local minimum, found from ``start`` (γ, T), of log-loss + pull/2 · (t² + v²).

    t = log T and v = log(1 + γ). Newton's method with exact derivatives, inside [1e-3, 1e3] and ``ends``.

    Args:
        rows: The data.
        ends: Smallest and largest γ.
        start: (γ, T).
        pull: Strength of the penalty, 0 for none.

    Raises:
        FitError: If the gradient is not small at the end.
    """
    low = torch.tensor([math.log(T_LOW), math.log1p(ends[0])], dtype=torch.float64)
    high = torch.tensor([math.log(T_HIGH), math.log1p(ends[1])], dtype=torch.float64)

    def second(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t, v = x.tolist()
        return by_exponent(rows.total(focal_sums, t, math.expm1(v)), math.exp(v))

    start_at = torch.tensor([math.log(start[1]), math.log1p(start[0])], dtype=torch.float64).clamp(low, high)
    loss = Objective(rows.mass, second, ridge=pull / 2, bounds=(low, high))
    found = minimise(loss, start_at, enough=_ENOUGH, longest=1.0)
    t, v = found.theta.tolist()
    return math.expm1(v), math.exp(t), found.value - pull / 2 * (t * t + v * v)


def focal_sums(chunk: Batch, t: float, gamma: float) -> Tensor:
    """Return Σ ℓ, Σ ∂ℓ/∂t, Σ ∂ℓ/∂γ, Σ ∂²ℓ/∂t², Σ ∂²ℓ/∂t∂γ, Σ ∂²ℓ/∂γ² (6,) of ℓ = −log softmax(s) at the label, t = log T.

    With q = softmax(z / T), L = log q, M = log(1 − q) and u = −q L / (1 − q): s = L − γ M − log(1 + γ u) (Komisarenko & Kull
    2024, Proposition 2). With a = z / T, c = a − E a and V = Var a, all under q: ∂L/∂t = −c and ∂²L/∂t² = c − V; what is
    a function of L alone follows by the chain rule, dM/dL = −r with r = q / (1 − q), and ∂r/∂L = r (1 + r).
    """
    check_label_logits(chunk)
    step = max(1, _BLOCK // chunk.logits.shape[1]) if chunk.logits.device.type == "cpu" else len(chunk)
    total = torch.zeros(6, dtype=torch.float64, device=chunk.logits.device)
    for start in range(0, len(chunk), step):
        total += _block_sums(chunk.selected(slice(start, start + step)), t, gamma)
    return total


def _block_sums(chunk: Batch, t: float, gamma: float) -> Tensor:
    """Return the six sums of few rows; classes lie along the first dimension, where sums over few of them are fast."""
    z, label = chunk.logits.double().T.contiguous(), chunk.labels[None]  # (K, n)
    highest, top = z.max(dim=0, keepdim=True)
    a = ((z - highest) * math.exp(-t)).clamp_min(_EXCLUDED)
    e = a.exp()
    others = e.scatter(0, top, 0.0).sum(dim=0, keepdim=True)
    norm = 1 + others
    q, log_q = e / norm, a - norm.log()
    # the top's 1 − q comes from the others, since it has lost its digits where q is nearly 1
    rest, log_rest = (1 - q).scatter(0, top, others / norm), torch.log1p(-q.clamp_max(0.5))
    log_rest = log_rest.scatter(0, top, others.log() - norm.log()).clamp_min(-300.0)
    c = a - (q * a).sum(dim=0)
    variance = (q * c * c).sum(dim=0)
    s, by_t, by_g, tt, tg, gg = _focal_log_odds(q, log_q, rest.clamp_min(1e-130), log_rest, top, c, variance, gamma)
    log_p = torch.log_softmax(s, dim=0)
    p = log_p.exp()
    parts = (by_t, by_g, tt, tg, gg)
    means = [(p * part).sum(dim=0) for part in parts]
    at = [part.gather(0, label)[0] for part in parts]
    t1, g1 = p * by_t, p * by_g
    crossed = [(x * y).sum(dim=0) - mx * my for x, y, mx, my in (
        (t1, by_t, means[0], means[0]), (t1, by_g, means[0], means[1]), (g1, by_g, means[1], means[1])
    )]  # fmt: skip
    firsts = [means[0] - at[0], means[1] - at[1]]
    seconds = [means[i] - at[i] + cross for i, cross in zip((2, 3, 4), crossed, strict=True)]
    return torch.stack([chunk.row_weights @ part for part in (-log_p.gather(0, label)[0], *firsts, *seconds)])


def _focal_log_odds(
    q: Tensor, log_q: Tensor, rest: Tensor, log_rest: Tensor, top: Tensor, c: Tensor, variance: Tensor, gamma: float
) -> tuple[Tensor, ...]:
    """Return s and its derivatives by t, γ, tt, tγ, γγ, each (K, n)."""
    # s = L − γ M − log(1 + γ u), all a function of L = log q for the derivatives: dM/dL = −r, dr/dL = r (1 + r).
    # −745 is the log of the least float64: below it q, and with it r L, is 0 and not 0 · inf
    r = q / rest
    u = -r * log_q.clamp_min(-745.0)
    # u' = −r (1 + (1 + r) L) and u'' = −r (1 + r) (2 + (1 + 2 r) L), where L = −u / r
    u1 = (1 + r) * u - r
    u2 = (1 + r) * ((1 + 2 * r) * u - 2 * r)
    u, u1, u2 = (
        whole.scatter(0, top, one) for whole, one in zip((u, u1, u2), _at_top(q, rest, top, (u, u1, u2)), strict=True)
    )
    lift = 1 + gamma * u
    v, w = u / lift, u1 / lift
    # s′ = 1 + γ (r − w) and s″ = γ (r (1 + r) − u″ / (1 + γ u) + γ w²) by L, with w = u′ / (1 + γ u). By t, where L_t = −c and
    # L_tt = c − V: s_t = −c s′, s_tt = s″ c² + s′ (c − V). By γ: s_γ = −M − v, s_γγ = v², and s_tγ = −c (r − w / (1 + γ u)), as
    # γ w has the derivative w / (1 + γ u)
    s = log_q - gamma * log_rest - lift.log()
    s1 = 1 + gamma * (r - w)
    s2 = gamma * (r * (1 + r) - u2 / lift + gamma * w * w)
    return s, -c * s1, -log_rest - v, s2 * c * c + s1 * (c - variance), -c * (r - w / lift), v * v


def _at_top(q: Tensor, rest: Tensor, top: Tensor, found: tuple[Tensor, ...]) -> list[Tensor]:
    """Return u, u' and u'' (1, n) of the top class: by their series where q is nearly 1 and the formulas lose all digits."""
    q, rest = q.gather(0, top), rest.gather(0, top)
    # with x = 1 − q: u = 1 − x/2 − x²/6 − x³/12 − …, and u′ = −q du/dx, u″ likewise; the next terms are at most 5e-14, 2e-10 and 2e-7
    near = rest < _NEAR_ONE
    series = (1 - rest / 2 - rest**2 / 6 - rest**3 / 12, q * (0.5 + rest / 3 + rest**2 / 4), q * (1 / 6 + rest / 6))
    return [torch.where(near, one, whole.gather(0, top)) for one, whole in zip(series, found, strict=True)]


class FocalCalibration(Calibrator):
    """p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))], q = softmax(z), u(q) = −q log q / (1 − q), at a given γ.

    The probabilities a network should have given if it has minimised focal loss at γ. Nothing is learned but the number
    of classes. In log space, so the decision never changes and saturated rows stay ordered.

    Args:
        gamma: γ > −1, usually the one of training; 0 is the identity, γ > 0 makes confident rows more confident and
            may make flat ones less, γ < 0 makes confident rows less so.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> FocalCalibration(1.0).fit(z, y)(z).exp()
        tensor([[0.9732, 0.0268],
                [0.1445, 0.8555]])

    References:
        Charoenphakdee et al. 2021. Komisarenko & Kull 2024, Propositions 2 and 4.
    """

    preserves_argmax = True

    def __init__(self, gamma: FocalGamma) -> None:
        super().__init__()
        self.gamma = gamma

    def _fit(self, rows: RowSource) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return focal_log_probs(logits, self.gamma)


def focal_log_probs(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return log p (N, K) of the focal map; as ``theory.focal_map``, but without a branch on values, so that it traces."""
    log_p = log_normalise(focal_scores(logits, gamma))
    # the top class is computed in another way than the others, so that rounding could put one that is tied with it first
    top, at = logits.max(dim=1, keepdim=True)
    lead = log_p.gather(1, at)
    log_p = torch.where(logits == top, lead, torch.minimum(log_p, lead))
    return narrowed(log_p.masked_fill(torch.isneginf(logits), -torch.inf), logits.dtype)
