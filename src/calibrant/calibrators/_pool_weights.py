"""The weights of a pool of candidates, from their log-losses on rows that they were not fitted on."""

import torch
from torch import Tensor

from calibrant.calibrators._cross_fitting import Scores, Sums
from calibrant.calibrators._simplex import MixtureChunk, fit_mixture_weights
from calibrant.errors import FitError
from calibrant.rows import MemoryRows


def exponential(sums: Sums, *, rate: float, log_odds: float, least: float) -> Tensor:
    """Return weights (M,) ∝ exp(rate · summed gain), the first times exp(log_odds); none where not all rows were scored.

    Args:
        sums: Of all candidates.
        rate: Of the weights.
        log_odds: Of doing nothing, before the data.
        least: Lighter ones are left out.
    """
    log_weights = torch.where(sums.mass == sums.mass[0], rate * sums.gain, -torch.inf)
    log_weights[0] += log_odds
    return without(torch.softmax(log_weights, dim=0), least)


def stacked(scores: Scores, otherwise: Tensor, *, least: float) -> Tensor:
    """Return the weights (M,) of the mixture of least log-loss on rows that its members were not fitted on (Wolpert 1992).

    Args:
        scores: Of the rows that candidates were last compared on; those that were not scored on all of them get none.
        otherwise: Weights to keep if the optimum is not reached.
        least: Lighter ones are left out.
    """
    known = ~torch.isnan(scores.gain).any(dim=0)
    gain = scores.gain[:, known]
    # a row's probabilities matter up to a factor, and so do those of doing nothing, which the gains are relative to
    chunk = MixtureChunk.of(torch.exp(gain - gain.amax(dim=1, keepdim=True)), scores.weight)
    members = int(known.sum())
    rows = MemoryRows([chunk], classes=members, count=len(gain), weighted=True, device=gain.device)
    try:
        found = fit_mixture_weights(rows, members=members, mass=float(scores.weight.sum()))
    except FitError:
        return otherwise
    weights = torch.zeros_like(otherwise)
    weights[known] = found
    return without(weights, least)


def without(weights: Tensor, least: float) -> Tensor:
    """Return ``weights`` (M,), Σ = 1, with those below ``least`` shared among the others."""
    kept = torch.where(weights < least, 0.0, weights)
    return kept / kept.sum()
