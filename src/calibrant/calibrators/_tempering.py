"""Temperature as a first step of other methods: the plain optimum, or one held near 1 by a weak prior."""

import math

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.calibrators._log_temperature import fit_log_temperature
from calibrant.rows import RowSource


def check_prior(prior: float | None) -> float | None:
    """Return the standard deviation of a prior on log T, if it is None or a positive number."""
    return None if prior is None else check_number(prior, name="prior", low=0, open_low=True)


def fit_temperature(rows: RowSource, prior: float | None) -> float:
    """Return the T that minimises log-loss, or its sum plus (log T)² / (2 · prior²).

    Raises:
        InputError: If a true class is excluded by −inf.
        FitError: If the search did not end.
    """
    return math.exp(fit_log_temperature(rows, prior=prior).x)


def narrowed(log_p: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``log_p`` (N, K) in ``dtype``; where digits are lost, less each row's largest, which so stays alone at 0.

    Rounding log-probabilities of thousands of classes would make ties, and with them other decisions.
    """
    return log_p if log_p.dtype == dtype else (log_p - log_p.amax(dim=1, keepdim=True)).to(dtype)


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) of ``log_p`` (N, K), finite wherever share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(torch.log1p(-share) + log_p, (share / log_p.shape[1]).log().expand_as(log_p))
