"""The calibration map of a true-class score, which maps the minimiser of its expected loss to the true probabilities.

The inverse map, which is computed by bracketed Newton steps, maps the true probabilities to the minimiser.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.log_pairs import check_log_probs, finite_floor, log_normalise, log_pairs, working_dtype
from calibrant._core.numerics import row_chunks
from calibrant.scores import TrueClassScore
from calibrant.theory.validity import log_h, require_map


def calibration_map(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return log p with p_j ∝ −1/φ′(q_j), the true probabilities if q = exp(log_probs) minimises the expected loss φ.

    If q minimises Σ_j η_j φ(q_j) over the simplex, then p = η, whether or not q is the only minimiser. For the focal score,
    this is the focal calibration map.

    Args:
        score: The score φ. It must decrease, with −φ′(p) → ∞ as p → 0 (see ``validity``). If φ is not also convex (inverse
            focal with 1 < γ < 3.59), the map exists but has no inverse.
        log_probs: Natural logarithms of q (N, K); −inf for q = 0.

    Returns:
        Natural logarithms of p (N, K), in the dtype of ``log_probs``, differentiable.

    Raises:
        InputError: If the exponentials in a row do not sum to 1.
        RangeError: If φ has no calibration map, because it does not decrease everywhere or −φ′ stays finite at 0.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> calibration_map(FocalScore(2.0), torch.tensor([[0.62, 0.38]]).log()).exp()
        tensor([[0.7876, 0.2124]])

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4; Charoenphakdee et al. 2021 for the focal score.
    """
    check_log_probs(log_probs)
    require_map(score, "the calibration map", inverse=False)
    log_q, log_not_q = log_pairs(log_probs.to(working_dtype(log_probs)))
    log_p = log_normalise(finite_floor(log_q - score.log_slope(log_q, log_not_q)))
    return log_p.masked_fill(torch.isneginf(log_probs), -torch.inf).to(log_probs.dtype)


_ROUNDS = 200  # largest number of rounds; bracketed Newton steps need 5 to 15
_TOLERANCE = 1e-7  # relative change of a logit: convergence is quadratic, so the remaining error is about its square


def inverse_calibration_map(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return log q for the only q on the simplex with η_j ∝ −1/φ′(q_j), the minimiser of Σ_j η_j φ(q_j) for η = exp(log_probs).

    The equation is solved in float64 by bracketed Newton steps in the logits of q, which is accurate for every η. Gradients are
    computed by implicit differentiation. For focal scores with −1 < γ < 0, h = −1/φ′ first increases and then decreases; only
    the top class can lie where h decreases, and the bracket for its logit contains both parts.

    Args:
        score: The score φ, which must decrease, be convex and be steep at 0, or state its own argument (see ``validity``).
        log_probs: Natural logarithms of η (N, K); −inf for η = 0, which gives q = 0.

    Returns:
        Natural logarithms of q (N, K), in the dtype of ``log_probs``.

    Raises:
        InputError: If the exponentials in a row do not sum to 1.
        RangeError: If the map has no inverse because it is not a bijection; ``minimiser`` still finds a minimum.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> inverse_calibration_map(FocalScore(2.0), torch.tensor([[0.8, 0.2]]).log()).exp()
        tensor([[0.6266, 0.3734]])

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4; they tabulate the inverse instead of solving for it.
    """
    check_log_probs(log_probs)
    require_map(score, "the inverse calibration map", inverse=True)
    log_eta = log_normalise(finite_floor(log_probs.double()))
    excluded = torch.isneginf(log_probs)
    logits = torch.empty_like(log_eta)
    for rows in row_chunks(*log_eta.shape):
        logits[rows] = _solve(score, log_eta[rows].detach(), excluded[rows])
    log_q = _log_eta_step(score, log_eta, logits, excluded)
    return log_q.masked_fill(excluded, -math.inf).to(log_probs.dtype)


def _solve(score: TrueClassScore, log_eta: Tensor, excluded: Tensor) -> Tensor:
    """Return the logits of q (N, K), which are log q_j − log(1 − q_j).

    Each row has one unknown, the logit x of the top class. The other q_j follow from h(q_j)/h(q_top) = η_j/η_top with
    h = −1/φ′. The function F(x) = log(1 − q_top) − log Σ_others q_j decreases in x and is 0 at the solution.
    """
    top = log_eta.argmax(dim=1, keepdim=True)
    fixed = excluded.scatter(1, top, True)  # classes whose logit is not solved for by _others
    ratio = (log_eta - log_eta.gather(1, top)).masked_fill(fixed, 0.0)
    one_hot = fixed.all(dim=1, keepdim=True)
    count = (~fixed).sum(dim=1, keepdim=True).clamp_min(1)
    low = -torch.log(count.double()) - 1e-12  # q_top ≥ 1/K, so its logit is at least −log(K − 1)
    high = torch.full_like(low, math.inf)
    # the search starts at q = η (the solution for the log score), that is, at the logit of η_top
    x = torch.logsumexp(ratio.masked_fill(fixed, -math.inf), dim=1, keepdim=True).neg().masked_fill(one_hot, 0.0)
    s = x.clamp_max(0.0) + ratio
    for _ in range(_ROUNDS):
        log_h_top, rate = log_h(score, x)
        s, rates = _others(score, log_h_top + ratio, s)
        log_q = F.logsigmoid(s).masked_fill(fixed, -math.inf).masked_fill(one_hot, -1.0)
        rest = torch.logsumexp(log_q, dim=1, keepdim=True)
        gap = F.logsigmoid(-x) - rest  # F(x)
        # F′(x) = −σ(x) − Σ_j (q_j / Σ q) (1 − q_j) ds_j/dx with ds_j/dx = rate(x) / rate(s_j)
        weight = torch.exp(log_q - rest) * torch.sigmoid(-s) / rates
        slope = -torch.sigmoid(x) - rate * weight.sum(dim=1, keepdim=True)
        low, high = torch.where(gap > 0, x, low), torch.where(gap > 0, high, x)
        new = _bracketed(x - gap / slope, low, high, x)
        moved = ((new - x).abs() > _TOLERANCE * x.abs().clamp_min(1)) & (gap != 0) & ~one_hot
        # first-order prediction for the next round
        s = (s + rate / rates * (new - x)).clamp(s - 8, s + 8).clamp_max(0.0)
        x = torch.where(one_hot, x, new)
        if not bool(moved.any()):
            # the logit of an excluded class is set to −∞, because any other value could exceed x and look like the top class
            return torch.where(one_hot | excluded, -math.inf, s).scatter(1, top, torch.where(one_hot, math.inf, x))
    raise ArithmeticError(f"the inverse calibration map of {score} did not converge in {_ROUNDS} rounds")


def _others(score: TrueClassScore, target: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return s ≤ 0 with log h(σ(s)) = target, or 0 where the solution is positive, and the derivative of log h at s."""
    low, high = torch.full_like(s, -math.inf), torch.zeros_like(s)
    for _ in range(_ROUNDS):
        value, rates = log_h(score, s)
        excess = value - target
        low, high = torch.where(excess <= 0, s, low), torch.where(excess > 0, s, high)
        newton = s - excess / rates
        new = _bracketed(newton.clamp_max(0.0), low, high, s)
        moved = (new - s).abs() > _TOLERANCE * s.abs().clamp_min(1)
        s = new
        if not bool(moved.any()):
            return s, rates
    raise ArithmeticError(f"the inverse of h of {score} did not converge in {_ROUNDS} rounds")


def _bracketed(target: Tensor, low: Tensor, high: Tensor, current: Tensor) -> Tensor:
    """Return ``target`` if it lies in [low, high], else the midpoint, or a step of 8 towards an infinite end."""
    # 8 in the logit is a factor of 3,000 in the odds, so if h is monotone, a few such steps bracket any solution in float64
    middle = (low + high) / 2
    fallback = torch.where(torch.isfinite(middle), middle, current + torch.where(torch.isfinite(low), 8.0, -8.0))
    return torch.where((target >= low) & (target <= high), target, fallback)


def _log_eta_step(score: TrueClassScore, log_eta: Tensor, logits: Tensor, excluded: Tensor) -> Tensor:
    """Return log q (N, K) after one further, differentiable, Newton step for log h(q_j) = t + log η_j with Σ q_j = 1.

    With e_j = d log h / d log q at q_j and r_j = log η_j − log h(q_j), the step is d log q_j = (r_j − m)/e_j, where m keeps
    Σ q_j = 1. The step is written relative to the top class, whose e may be 0 or negative for −1 < γ < 0, in terms of rates
    e_j (1 − q_j), which stay finite as q_top → 1.
    """
    logits = logits.nan_to_num(posinf=1e4, neginf=-1e4)
    value, rates = log_h(score, logits)
    top = logits.argmax(dim=1, keepdim=True)
    fixed = excluded.scatter(1, top, True)
    r = (log_eta - value).masked_fill(excluded, 0.0)
    r = r - r.gather(1, top)
    rate, x = rates.gather(1, top), logits.gather(1, top)
    e = torch.where(fixed, 1.0, rates / torch.sigmoid(-logits))
    log_weight = F.logsigmoid(logits).masked_fill(fixed, -1e8) - torch.log(e)
    log_total = torch.logsumexp(log_weight, dim=1, keepdim=True)
    mean = (torch.exp(log_weight - log_total) * r).sum(dim=1, keepdim=True)
    spread = torch.sigmoid(x) * torch.exp(F.logsigmoid(-x) - log_total) + rate
    of_top = -mean * torch.sigmoid(-x) / spread
    of_others = (r - mean * rate / spread) / e
    return F.logsigmoid(logits) + of_others.masked_fill(fixed, 0.0).scatter(1, top, of_top)


def proper_part(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return the proper part of φ for every class, L*(p, y) = φ(q_y), where q is the inverse calibration map of p.

    The loss φ equals the proper loss L* applied to the calibrated probabilities.

    Args:
        score: The score φ, whose calibration map must have an inverse (see ``validity``).
        log_probs: Natural logarithms of p (N, K).

    Returns:
        The losses (N, K), differentiable; column y holds the loss if y is the true class.

    Raises:
        InputError: If the exponentials in a row do not sum to 1.
        RangeError: If the calibration map has no inverse.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> proper_part(FocalScore(3.0), torch.tensor([[0.95, 0.05]]).log())
        tensor([[0.0107, 0.3917]])

    References:
        Komisarenko & Kull 2024, Propositions 2 and 4.
    """
    log_q, log_not_q = log_pairs(inverse_calibration_map(score, log_probs.double()))
    return score.value(log_q, log_not_q).to(log_probs.dtype)
