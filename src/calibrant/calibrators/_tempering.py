"""Temperature as a first step of other methods: the plain optimum, or one held near 1 by a weak prior."""

import math

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant._numerics import increasing_root, row_chunks
from calibrant.calibrators._affine import check_label_logits, total_weight
from calibrant.calibrators.temperature import T_HIGH, T_LOW, fit_log_temperature


def check_prior(prior: float | None) -> float | None:
    """Return the standard deviation of a prior on log T, if it is None or a positive number."""
    return None if prior is None else check_number(prior, name="prior", low=0, open_low=True)


def fit_temperature(logits: Tensor, labels: Tensor, weight: Tensor | None, prior: float | None) -> float:
    """Return the T that minimises log-loss, or its sum plus (log T)² / (2 · prior²).

    Raises:
        InputError: If a true class is excluded by −inf.
        FitError: If the search did not end.
    """
    if prior is None:
        return math.exp(fit_log_temperature(logits, labels, weight).x)
    check_label_logits(logits, labels)
    pull = 1 / (prior**2 * total_weight(labels, weight))

    def slope(u: float) -> tuple[float, float]:
        first, second = _derivatives(logits, labels, weight, math.exp(-u))
        return first + pull * u, second + pull

    return math.exp(increasing_root(slope, low=math.log(T_LOW), high=math.log(T_HIGH), start=0.0, tolerance=1e-9).x)


def _derivatives(logits: Tensor, labels: Tensor, weight: Tensor | None, beta: float) -> tuple[float, float]:
    """Return the first and second derivative of the mean log-loss by log T, at T = 1/β."""
    first = second = 0.0
    for rows in row_chunks(*logits.shape):
        z = logits[rows].double()
        d = (z - z.amax(dim=1, keepdim=True)).clamp_min(-1e300)  # ≤ 0; −inf · 0 otherwise
        p = torch.softmax(d * beta, dim=1)
        pd = p * d
        mean = pd.sum(dim=1)
        spread = (pd * d).sum(dim=1) - mean**2
        gap = mean - d.gather(1, labels[rows, None])[:, 0]
        if weight is not None:
            gap, spread = gap * weight[rows], spread * weight[rows]
        first, second = first + float(gap.sum()), second + float(spread.sum())
    total = total_weight(labels, weight)
    first, second = first / total, second / total
    return -beta * first, beta * first + beta**2 * second


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) of ``log_p`` (N, K), finite wherever share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(torch.log1p(-share) + log_p, (share / log_p.shape[1]).log().expand_as(log_p))
