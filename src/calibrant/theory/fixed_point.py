"""The fixed point of training with a weighted log-loss whose weight is a constant in the gradient (``detach_weight=True``)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.scores import TrueClassScore, check_score, map_rate_by_autograd
from calibrant.theory.inverse_map import invert

__all__ = ["detached_fixed_point"]


def detached_fixed_point(score: TrueClassScore, log_probs: Tensor) -> Tensor:
    """Return log q at which the expected gradient of w(p_y)·(−log p_y), with w held constant, vanishes: η_j ∝ q_j / w(q_j).

    For the focal score and two classes it is exactly the true log-odds divided by T = γ + 1. With the full gradient the
    fixed point is ``inverse_calibration_map``, which is closer to the true probabilities.

    Args:
        score: φ; its weight is w(p) = φ(p) / (−log p).
        log_probs: (N, K) natural logarithms of the true probabilities η, at margins up to 100.

    Returns:
        (N, K) natural logarithms of q.

    Raises:
        InputError: If rows do not exponentiate to a sum of 1.
        RangeError: If q / w(q) does not increase, as for inverse focal with γ > 2: then the fixed point is not unique.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> detached_fixed_point(FocalScore(3.0), torch.tensor([[0.8, 0.2]]).log()).exp()
        tensor([[0.5858, 0.4142]])

    References:
        Derived here. The public code of Wang et al. 2021 trains focal loss with a detached weight; the paper does not say so.
    """
    return invert(_Detached(check_score(score)), log_probs, "the detached fixed point")


@dataclass(frozen=True)
class _Detached:
    """The slope w of a score whose full gradient equals the detached gradient of ``score``, with w its weight."""

    score: TrueClassScore

    def slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p)."""
        return torch.exp(self.log_slope(log_p, log_not_p))

    def log_slope(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return log φ(p) − log(−log p)."""
        tiny = torch.finfo(log_p.dtype).tiny
        log_loss = torch.log(-log_p.clamp_max(-tiny))
        return torch.log(self.score.value(log_p, log_not_p).clamp_min(tiny)) - log_loss

    def map_rate(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return the derivative of log(p / w) with respect to the logit of p."""
        return map_rate_by_autograd(self.log_slope, log_p, log_not_p)

    def bijection_argument(self) -> None:
        """Return None: no argument beyond convexity is known."""
