"""The focal calibration map in closed form: p_j ∝ h(q_j) with h(q) = q / [(1 − q)^γ (1 + γ u(q))], u(q) = −q log q / (1 − q)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number
from calibrant._core.log_pairs import check_class_axis, finite_floor, log_normalise, log_pairs, working_dtype
from calibrant.scores import check_focal_gamma, focal_log_slope


def focal_map(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return log p for the focal calibration map, p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))] with q = softmax(logits).

    The map is differentiable in both arguments. It is exact for one-hot rows and accurate up to rounding for all others.

    Args:
        logits: Logits (…, K), or log q; −inf for an excluded class.
        gamma: γ > −1; 0 is the identity. For a tensor of shape (G, …), the map is computed for each of its values.

    Returns:
        Log-probabilities (…, K), or (G, …, …, K) if γ is a tensor, in the dtype of ``logits``.

    Raises:
        InputError: If γ is not finite, or the logits are not a floating tensor with at least two classes.
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
    check_class_axis(logits)
    _check_gamma(gamma)
    if isinstance(gamma, Tensor):
        gamma = gamma.to(working_dtype(logits)).reshape(*gamma.shape, *[1] * logits.dim())
    log_p = log_normalise(focal_scores(logits, gamma))
    return log_p.masked_fill(torch.isneginf(logits), -torch.inf).to(logits.dtype)


def focal_scores(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return log h(q) (…, K), the unnormalised log-probabilities of the map, in float32 or float64.

    ``gamma`` broadcasts against ``logits``, and its range is not checked.
    """
    log_q, log_not_q = log_pairs(logits.to(working_dtype(logits)))
    return log_q - focal_log_slope(log_q, finite_floor(log_not_q), gamma)


def focal_logit(s: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the logit of the binary focal calibration map at the logit ``s``, logit FC(s) = log h(σ(s)) − log h(σ(−s)).

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
    _check_gamma(gamma)
    log_q, log_not = F.logsigmoid(s), F.logsigmoid(-s)
    return s - focal_log_slope(log_q, log_not, gamma) + focal_log_slope(log_not, log_q, gamma)


def _check_gamma(gamma: float | Tensor) -> None:
    """Raise ``RangeError`` if a value is ≤ −1, where 1 + γ u(q) changes sign, and ``InputError`` if a value is not finite."""
    check_focal_gamma(float(gamma.detach().min()) if isinstance(gamma, Tensor) else gamma)


def gamma_from_threshold(p0: float) -> float:
    """Return the γ > 0 for which focal loss and cross-entropy have equal gradients at p_y = p₀.

    This γ solves (1 − p₀)^γ (1 + γ u(p₀)) = 1. Focal loss with this γ has a larger gradient than cross-entropy for p_y < p₀ and a
    smaller one for p_y > p₀. FLSD-53 rounds γ(0.2) = 4.85 to 5 and γ(0.25) = 3.07 to 3.

    Args:
        p0: Probability in (0, 1/2). For p_y ≥ 1/2, focal loss has the smaller gradient for every γ > 0.

    Returns:
        The exponent γ.

    Raises:
        InputError: If ``p0`` lies outside (0, 1/2).

    Examples:
        >>> round(gamma_from_threshold(0.2), 4)
        4.8506

    References:
        Mukhoti et al. 2020, §5 of the conference version (sample-dependent γ), solved there with Lambert's W.
    """
    from scipy.optimize import brentq

    check_number(p0, name="p0", low=0, high=0.5, open_low=True, open_high=True)
    fall, rise = math.log1p(-p0), -p0 * math.log(p0) / (1 - p0)

    def excess(gamma: float) -> float:
        # −log of the ratio of the gradients, which is convex in γ, 0 at γ = 0, and increasing beyond its minimum ``lowest``
        return -gamma * fall - math.log1p(gamma * rise)

    lowest = -1 / fall - 1 / rise
    high = 2 * lowest
    while excess(high) <= 0:
        high *= 2
    return float(brentq(excess, lowest, high, xtol=1e-15 * high, rtol=1e-15))
