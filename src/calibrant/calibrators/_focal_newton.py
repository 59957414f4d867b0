"""The mean log-loss of the focal map by (log T, log(1 + γ)), with its derivatives, and a minimum of it."""

import math

import torch
from torch import Tensor

from calibrant._core.newton import ROUGH, Derivatives, newton
from calibrant.calibrators._chunks import check_label_logits
from calibrant.calibrators._log_temperature import T_HIGH, T_LOW
from calibrant.rows import Chunk, RowSource

_TOLERANCE, _ENOUGH = 1e-9, 1e-5  # of a gradient entry of the mean log-loss
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
    mass = rows.mass
    low = torch.tensor([math.log(T_LOW), math.log1p(ends[0])], dtype=torch.float64)
    high = torch.tensor([math.log(T_HIGH), math.log1p(ends[1])], dtype=torch.float64)

    def function(x: Tensor) -> Derivatives:
        t, v = x[0].tolist()
        rise = math.exp(v)  # dγ/dv
        loss, by_t, by_g, tt, tg, gg = (rows.total(focal_sums, t, math.expm1(v)).cpu() / mass).tolist()
        gradient = [by_t + pull * t, rise * by_g + pull * v]
        hessian = [[tt + pull, rise * tg], [rise * tg, rise**2 * gg + rise * by_g + pull]]
        value = loss + pull / 2 * (t * t + v * v)
        return Derivatives(*(torch.tensor([part], dtype=torch.float64) for part in (value, gradient, hessian)))

    first = torch.tensor([[math.log(start[1]), math.log1p(start[0])]], dtype=torch.float64).clamp(low, high)
    tolerance = ROUGH if rows.rough else _TOLERANCE
    found = newton(
        function, first, tolerance=tolerance, enough=_ENOUGH, bounds=(low, high), longest=1.0, polish=not rows.rough
    )
    t, v = found.x[0].tolist()
    penalty = pull / 2 * (t * t + v * v)
    return math.expm1(v), math.exp(t), float(found.value) - penalty


def focal_sums(chunk: Chunk, t: float, gamma: float) -> Tensor:
    """Return Σ ℓ, Σ ∂ℓ/∂t, Σ ∂ℓ/∂γ, Σ ∂²ℓ/∂t², Σ ∂²ℓ/∂t∂γ, Σ ∂²ℓ/∂γ² (6,) of ℓ = −log softmax(s) at the label, t = log T.

    With q = softmax(z / T), L = log q, M = log(1 − q) and u = −q L / (1 − q): s = L − γ M − log(1 + γ u) (Komisarenko & Kull
    2024, Proposition 2). With a = z / T, c = a − E a and V = Var a, all under q: ∂L/∂t = −c and ∂²L/∂t² = c − V; what is
    a function of L alone follows by the chain rule, dM/dL = −r with r = q / (1 − q), and ∂r/∂L = r (1 + r).
    """
    check_label_logits(chunk)
    step = max(1, _BLOCK // chunk.logits.shape[1]) if chunk.logits.device.type == "cpu" else len(chunk)
    total = torch.zeros(6, dtype=torch.float64, device=chunk.logits.device)
    for start in range(0, len(chunk), step):
        total += _block_sums(chunk.where(slice(start, start + step)), t, gamma)
    return total


def _block_sums(chunk: Chunk, t: float, gamma: float) -> Tensor:
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
    s, by_t, by_g, tt, tg, gg = _scores(q, log_q, rest.clamp_min(1e-130), log_rest, top, c, variance, gamma)
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
    return torch.stack([chunk.weights @ part for part in (-log_p.gather(0, label)[0], *firsts, *seconds)])


def _scores(
    q: Tensor, log_q: Tensor, rest: Tensor, log_rest: Tensor, top: Tensor, c: Tensor, variance: Tensor, gamma: float
) -> tuple[Tensor, ...]:
    """Return s and its derivatives by t, γ, tt, tγ, γγ, each (K, n)."""
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
    s = log_q - gamma * log_rest - lift.log()
    s1 = 1 + gamma * (r - w)
    s2 = gamma * (r * (1 + r) - u2 / lift + gamma * w * w)
    return s, -c * s1, -log_rest - v, s2 * c * c + s1 * (c - variance), -c * (r - w / lift), v * v


def _at_top(q: Tensor, rest: Tensor, top: Tensor, found: tuple[Tensor, ...]) -> list[Tensor]:
    """Return u, u' and u'' (1, n) of the top class: by their series where q is nearly 1 and the formulas lose all digits."""
    q, rest = q.gather(0, top), rest.gather(0, top)
    near = rest < _NEAR_ONE
    series = (1 - rest / 2 - rest**2 / 6 - rest**3 / 12, q * (0.5 + rest / 3 + rest**2 / 4), q * (1 / 6 + rest / 6))
    return [torch.where(near, one, whole.gather(0, top)) for one, whole in zip(series, found, strict=True)]
