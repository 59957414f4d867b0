"""The change of the top probability under the focal calibration map and under scaling of the logits."""

import math
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.check import check_matrix
from calibrant._core.constraints import Number, Positive, checked
from calibrant._objective.log_pairs import LogProbs, check_values, log_normalise
from calibrant.scores import FocalGamma
from calibrant.theory.focal_map import focal_map


@checked
def confidence_change(log_probs: LogProbs, gamma: FocalGamma) -> Tensor:
    """Return top p − top q (N,) under the focal calibration map; negative where it makes the row less confident.

    Proposition 5 states that it is never negative for γ > 0. That is false for four or more classes: the top probability
    of (.33, .33, .33, .01) falls to .32992 at γ = ½, and a top probability of .1 with 1,000 others of .0009 falls to
    .0806 at γ = 3. The change has the sign of r(q_top) − Σ_k q_k r(q_k), r(q) = (1 − q)^−γ / (1 + γ u(q)).

    Args:
        log_probs: (N, K) natural logarithms of q.
        gamma: γ > −1.

    Returns:
        (N,), in the dtype of ``log_probs``.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If γ ≤ −1.

    Examples:
        >>> confidence_change(torch.tensor([[0.33, 0.33, 0.33, 0.01]], dtype=torch.float64).log(), 0.5)
        tensor([-7.7414e-05], dtype=torch.float64)

    References:
        Komisarenko & Kull 2024, Proposition 5, corrected.
    """
    log_q = log_normalise(log_probs.double())
    top = log_q.argmax(dim=1, keepdim=True)
    change = torch.exp(focal_map(log_q, gamma).gather(1, top)) - torch.exp(log_q.gather(1, top))
    return change[:, 0].to(log_probs.dtype)


@checked
def confidence_never_falls(log_probs: LogProbs) -> Tensor:
    """Return for each row (N,) whether no γ > 0 can lower its top probability: at least ½, or at most three classes.

    This is Proposition 5, corrected. For q_top ≥ ½ every other r(q_k) is at most r(1 − q_top) ≤ r(q_top); for three
    classes it is the result of a dense numerical search, not a proof. For other rows see ``confidence_change``.

    Args:
        log_probs: (N, K) natural logarithms of q.

    Returns:
        (N,) bool.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.

    Examples:
        >>> confidence_never_falls(torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1]]).log())
        tensor([ True, False])

    References:
        Komisarenko & Kull 2024, Proposition 5, restricted to where it holds.
    """
    if log_probs.shape[1] <= 3:
        return torch.ones(log_probs.shape[0], dtype=torch.bool, device=log_probs.device)
    return log_normalise(log_probs.double()).amax(dim=1).exp() >= 0.5


@checked
def neutral_probability(gamma: Positive) -> float:
    """Return q₁ > 0 with r(q₁) = 1: relative to a class with q → 0, the map raises classes above q₁ and lowers those below.

    With r of ``confidence_change``. At γ = 1 it is 1/e. Since r(q) < 1 on (0, q₁), the map lowers the confidence of a row with
    all probabilities below q₁ and many near 0.

    Args:
        gamma: γ > 0.

    Returns:
        q₁ in (0, ½): it falls from 0.5 at γ → 0.

    Raises:
        InputError: If γ ≤ 0.

    Examples:
        >>> round(neutral_probability(1.0), 4), round(neutral_probability(3.0), 4)
        (0.3679, 0.2526)
    """

    from scipy.optimize import brentq

    def log_r(log_q: float) -> float:
        q = math.exp(log_q)
        return -gamma * math.log1p(-q) - math.log1p(-gamma * q * log_q / (1 - q))

    # next to q = 0 r is below 1 and falls to its minimum; from there it rises to more than 1 at ½
    return math.exp(brentq(log_r, -690.0, -math.log(2), xtol=1e-15, rtol=1e-15))


@checked
def scaling_change(logits: Tensor, factor: Annotated[float, Number(1)]) -> Tensor:
    """Return max softmax(t f) − max softmax(f) (N,) ≥ 0 for t > 1, zero only if all finite logits tie at the top.

    Args:
        logits: (N, K) f.
        factor: t ≥ 1.

    Returns:
        (N,) in the dtype of ``logits``; never negative up to rounding.

    Raises:
        InputError: If t < 1.

    Examples:
        >>> scaling_change(torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), 2.0)
        tensor([0.2016, 0.0000])

    References:
        Theorem 1 of a project report on calibration losses on CIFAR-10; its assumption that the logits are ordered is not
        needed, and for ties it holds with equality.
    """
    check_matrix(check_values(logits, name="logits"), name="logits")
    # max softmax(t f) = 1 / Σ_k exp(t (f_k − f_top)), and each term of the sum decreases in t
    below = logits - logits.amax(dim=1, keepdim=True)
    before, after = (torch.exp(t * below).sum(dim=1) for t in (1, factor))
    return (before - after) / (before * after)
