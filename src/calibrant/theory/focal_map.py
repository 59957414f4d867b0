"""The focal calibration map in closed form: p_j ∝ h(q_j), h(q) = q / [(1 − q)^γ (1 + γ u(q))], u(q) = −q log q / (1 − q)."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import refuse
from calibrant._core.constraints import Fits, Number, PublicCalls, checked
from calibrant._objective.log_pairs import (
    ClassLogits,
    Floating,
    broadcastable,
    check_values,
    finite_floor,
    log_normalise,
    log_pairs_and_top,
    working_dtype,
)
from calibrant.scores import check_focal_gamma, entropy_ratio, focal_log_slope


def check_gammas(gamma: Any, *, name: str = "gamma") -> float | Tensor:
    """Return ``gamma`` if it is a number > −1 or a tensor of such numbers.

    Raises:
        InputError: If it is not finite, or a tensor without values.
        RangeError: If a value is ≤ −1.
    """
    if not isinstance(gamma, Tensor):
        return check_focal_gamma(gamma, name=name)
    if check_values(gamma, name=name).numel() == 0:
        raise refuse("gamma with at least one value", f"shape {tuple(gamma.shape)}", "pass a number")
    lowest = gamma.detach().min()
    check_focal_gamma(float(lowest if bool(torch.isfinite(gamma).all()) else torch.nan))
    return gamma


Gammas = Annotated[float | Tensor, Fits(check_gammas, "> −1")]


@checked
def focal_map(logits: ClassLogits, gamma: Gammas) -> Tensor:
    """Return log p of the focal calibration map, p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))], q = softmax(logits).

    Differentiable in both arguments; exact for one-hot rows, accurate to rounding for all others.

    Args:
        logits: (…, K) logits, or log q; −inf for an excluded class.
        gamma: γ > −1; 0 is the identity. A tensor of shape (G, …) returns one result for each of its values.

    Returns:
        (…, K) log-probabilities, or (G, …, …, K), in the dtype of ``logits``.

    Raises:
        RangeError: If γ ≤ −1.

    Examples:
        >>> q = torch.tensor([[0.7, 0.2, 0.1]])
        >>> focal_map(q.log(), 2.0).exp()
        tensor([[0.9197, 0.0546, 0.0257]])
        >>> focal_map(q.log(), torch.tensor([0.0, 2.0])).shape
        torch.Size([2, 1, 3])

    References:
        Charoenphakdee et al. 2021, On Focal Loss for Class-Posterior Probability Estimation. Komisarenko & Kull 2024,
        Proposition 4 (the sign printed there cancels in the ratio).
    """
    return FocalTerms.of(logits).map(gamma)


@checked
def focal_logit(s: Floating, gamma: Gammas) -> Tensor:
    """Return the logit of the binary focal calibration map at logit ``s``: logit FC(s) = log h(σ(s)) − log h(σ(−s)).

    Args:
        s: Logits of any shape.
        gamma: γ > −1, a number or a tensor that broadcasts against ``s``.

    Returns:
        Logits of the broadcast shape.

    Raises:
        RangeError: If γ ≤ −1.

    Examples:
        >>> focal_logit(torch.tensor(5.0, dtype=torch.float64), 0.5)
        tensor(7.1124, dtype=torch.float64)

    References:
        Komisarenko & Kull 2024, Proposition 2.
    """
    if isinstance(gamma, Tensor) and not broadcastable(gamma.shape, s.shape):
        got = f"shapes {tuple(gamma.shape)} and {tuple(s.shape)}"
        raise refuse("gamma that broadcasts against s", got, "pass a number, or one value per element of s")
    log_q, log_not = F.logsigmoid(s), F.logsigmoid(-s)
    return s - focal_log_slope(log_q, log_not, gamma) + focal_log_slope(log_not, log_q, gamma)


@dataclass(frozen=True)
class FocalTerms(metaclass=PublicCalls):
    """The terms of the focal map that do not depend on γ: computed once, then used for many γ.

    Args:
        log_q: (…, K) log q.
        log_not_q: (…, K) log(1 − q), finite.
        ratio: (…, K) u(q) = −q log q / (1 − q), in [0, 1).
        excluded: (…, K) bool, true where the logit is −inf; None if no logit is.
        dtype: The dtype of results.

    Examples:
        >>> terms = FocalTerms.of(torch.tensor([[2.0, 0.0]]))
        >>> [round(terms.map(gamma).exp()[0, 0].item(), 4) for gamma in (0.0, 1.0, 3.0)]
        [0.8808, 0.9732, 0.9993]
    """

    log_q: Tensor
    log_not_q: Tensor
    ratio: Tensor
    excluded: Tensor | None
    dtype: torch.dtype

    @classmethod
    def of(cls, logits: Tensor) -> Self:
        """Return the terms of ``logits`` (…, K), computed in float32 or, if they are float64, in float64."""
        infinite = torch.isneginf(logits)
        log_q, log_not_q, top = log_pairs_and_top(logits.to(working_dtype(logits)))
        log_not_q = finite_floor(log_not_q)
        # u(q) = −q log q / (1 − q) loses precision as q → 1, and only the top class can be near 1
        others = log_q.scatter(-1, top, -1.0)
        ratio_of_top = entropy_ratio(log_q.gather(-1, top), log_not_q.gather(-1, top))
        q = torch.exp(others)
        ratio = (q * others / (q - 1)).scatter(-1, top, ratio_of_top)
        # a traced graph and tensors without values cannot branch on values
        masked = torch.compiler.is_compiling() or logits.is_meta or bool(infinite.any())
        return cls(log_q, log_not_q, ratio, infinite if masked else None, logits.dtype)

    def scores(self, gamma: float | Tensor) -> Tensor:
        """Return log h(q) (…, K), unnormalised logits of the map; ``gamma`` broadcasts and is not checked."""
        return self.log_q - gamma * self.log_not_q - torch.log1p(gamma * self.ratio)

    @checked
    def map(self, gamma: Gammas) -> Tensor:
        """Return log p (…, K) for one γ > −1, or (G, …, …, K) for a tensor of them."""
        if isinstance(gamma, Tensor):
            gamma = gamma.to(self.log_q.dtype).reshape(*gamma.shape, *[1] * self.log_q.dim())
        log_p = log_normalise(self.scores(gamma))
        if self.excluded is not None:
            log_p = log_p.masked_fill(self.excluded, -torch.inf)
        return log_p.to(self.dtype)


@checked
def gamma_from_threshold(p0: Annotated[float, Number(0, 0.5, open_low=True, open_high=True)]) -> float:
    """Return the γ > 0 at which focal loss and cross-entropy have equal gradients at p_y = p₀: (1 − p₀)^γ (1 + γ u(p₀)) = 1.

    For p_y < p₀ the gradient of this focal loss is larger than that of cross-entropy, for p_y > p₀ smaller. FLSD-53
    rounds γ(0.2) = 4.85 to 5 and γ(0.25) = 3.07 to 3.

    Args:
        p0: Probability in (0, 1/2); for p_y ≥ 1/2 focal loss has the smaller gradient for every γ > 0.

    Returns:
        γ.

    Raises:
        InputError: If ``p0`` lies outside (0, 1/2).

    Examples:
        >>> round(gamma_from_threshold(0.2), 4)
        4.8506

    References:
        Mukhoti et al. 2020, §5 of the conference version (sample-dependent γ), solved there with Lambert's W.
    """
    from scipy.optimize import brentq

    fall, rise = math.log1p(-p0), -p0 * math.log(p0) / (1 - p0)

    def excess(gamma: float) -> float:
        # −log of the ratio of the gradients: convex in γ, 0 at γ = 0, and increasing beyond its minimum ``lowest``
        return -gamma * fall - math.log1p(gamma * rise)

    lowest = -1 / fall - 1 / rise
    high = 2 * lowest
    while excess(high) <= 0:
        high *= 2
    return float(brentq(excess, lowest, high, xtol=1e-15 * high, rtol=1e-15))
