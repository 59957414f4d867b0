"""The mean log-loss of the focal map by (log T, log(1 + γ)), with its derivatives, and a minimum of it."""

import math

import torch
from torch import Tensor

from calibrant.calibrators._chunks import check_label_logits
from calibrant.calibrators._log_temperature import T_HIGH, T_LOW
from calibrant.calibrators._newton import Derivatives, newton
from calibrant.rows import Chunk, RowSource
from calibrant.scores import entropy_ratio

_TOLERANCE, _ENOUGH = 1e-9, 1e-5  # of a gradient entry of the mean log-loss
_NEAR_ONE = 1e-3  # 1 − q below which derivatives of u come from its series


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
    found = newton(function, first, tolerance=_TOLERANCE, enough=_ENOUGH, bounds=(low, high), longest=1.0)
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
    z = chunk.logits.double()
    top = z.argmax(dim=1, keepdim=True)
    a = (z - z.gather(1, top)) * math.exp(-t)
    log_q = torch.log_softmax(a, dim=1)
    q = log_q.exp()
    a = torch.where(q > 0, a, 0.0)
    mean = (q * a).sum(dim=1, keepdim=True)
    c = a - mean
    variance = (q * c * c).sum(dim=1, keepdim=True)
    others = torch.logsumexp(log_q.scatter(1, top, -torch.inf), dim=1, keepdim=True)
    log_rest = torch.log1p(-q.clamp_max(0.5)).scatter(1, top, others).clamp_min(-300.0)
    s, by_t, by_g, tt, tg, gg = _scores(log_q, log_rest, c, variance, gamma)
    gone = q == 0  # an excluded class, or one beyond what a float64 holds
    s = torch.where(gone, -torch.inf, s)
    p = torch.softmax(s, dim=1)
    label = chunk.labels[:, None]
    loss = -torch.log_softmax(s, dim=1).gather(1, label)[:, 0]
    far = torch.isinf(loss)  # a true class beyond what a float64 holds: its loss falls with T as its gap does
    loss = torch.where(far, -(a_gap := (z.gather(1, label) - z.gather(1, top))[:, 0] * math.exp(-t)), loss)
    parts = [torch.where(gone, 0.0, part) for part in (by_t, by_g, tt, tg, gg)]
    means = [(p * part).sum(dim=1) for part in parts]
    at = [part.gather(1, label)[:, 0] for part in parts]
    at[0], at[2] = torch.where(far, -a_gap, at[0]), torch.where(far, a_gap, at[2])
    t1, g1 = parts[0], parts[1]
    crossed = [(p * x * y).sum(dim=1) - mx * my for x, y, mx, my in (
        (t1, t1, means[0], means[0]), (t1, g1, means[0], means[1]), (g1, g1, means[1], means[1])
    )]  # fmt: skip
    firsts = [means[0] - at[0], means[1] - at[1]]
    seconds = [means[i] - at[i] + cross for i, cross in zip((2, 3, 4), crossed, strict=True)]
    return torch.stack([chunk.weights @ part for part in (loss, *firsts, *seconds)])


def _scores(log_q: Tensor, log_rest: Tensor, c: Tensor, variance: Tensor, gamma: float) -> tuple[Tensor, ...]:
    """Return s and its derivatives by t, γ, tt, tγ, γγ, each (n, K)."""
    q, rest = log_q.exp(), log_rest.exp()
    r = q / rest
    u = entropy_ratio(log_q.clamp_min(-1e300), log_rest)
    lift = 1 + gamma * u
    finite = log_q.clamp_min(-745.0)
    # u' = −r (1 + (1 + r) L) and u'' = −r (1 + r) (2 + (1 + 2 r) L) lose all digits where q is nearly 1
    near = rest < _NEAR_ONE
    u1 = torch.where(near, q * (0.5 + rest / 3 + rest**2 / 4), -r * (1 + (1 + r) * finite))
    u2 = torch.where(near, q * (1 / 6 + rest / 6), -r * (1 + r) * (2 + (1 + 2 * r) * finite))
    s = log_q - gamma * log_rest - torch.log(lift)
    s1 = 1 + gamma * r - gamma * u1 / lift
    s2 = gamma * r * (1 + r) - gamma * (u2 / lift - gamma * u1**2 / lift**2)
    by_g = -log_rest - u / lift
    return s, -c * s1, by_g, s2 * c * c + s1 * (c - variance), -c * (r - u1 / lift**2), (u / lift) ** 2
