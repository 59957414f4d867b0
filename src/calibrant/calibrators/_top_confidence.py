"""The confidence of a decision in ten bins, from rows that what took the decision was not fitted on.

A pool of many parameters is too sure on new rows, and on its own rows that does not show. So the curve is fitted to answers
out of fold: the mean, weighted by cross-fitted log-loss, of doing nothing, Platt scaling, beta calibration, centred isotonic
regression and a spline. Answering its mean in bins of equal mass is the third step of scaling-binning (Kumar et al. 2019).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._core.numerics import rank_in
from calibrant._objective.log_pairs import log_pair_of_top
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._cross_fitting import cross_fitted, quietly
from calibrant.calibrators._pool_weights import exponential
from calibrant.calibrators._scores import mean_bins, pool_ties
from calibrant.calibrators.beta import BetaCalibration
from calibrant.calibrators.centred_isotonic import CentredIsotonic
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.platt import PlattScaling
from calibrant.calibrators.spline import SplineCalibration
from calibrant.rows import Chunk, MemoryRows

# Fixed on the half of the real sets that fixed the pool: fewer bins have a larger log-loss, more a larger ECE.
BINS = 10
_RATE = 0.5  # a curve's weight is exp(rate · its summed log-loss gain), as in the pool
_LEAST = 0.01
_SPAN = 100.0  # log-odds lie in [−100, 100]
_MARGIN = 1e-6  # of log-odds by which the decision stays ahead: more than float32 rounds log-probabilities by


def pairs_of(answers: Iterable[tuple[Chunk, Tensor]]) -> MemoryRows:
    """Return rows of two classes, wrong and right, with logits 0 and the log-odds of the decision's probability.

    Args:
        answers: Rows, and logits (n, K) for them of what was not fitted on them.
    """
    chunks = []
    for chunk, logits in answers:
        log_q, log_rest, decided = log_pair_of_top(logits.double())
        log_odds = (log_q.gather(1, decided) - log_rest).clamp(-_SPAN, _SPAN)
        two = torch.cat([torch.zeros_like(log_odds), log_odds], dim=1)
        chunks.append(Chunk(two, (decided[:, 0] == chunk.labels).long(), chunk.weight, chunk.groups))
    first = chunks[0]
    count = sum(len(chunk) for chunk in chunks)
    weighted = first.weight is not None
    return MemoryRows(chunks, classes=2, count=count, weighted=weighted, device=first.logits.device)


def fit_confidence(pairs: MemoryRows, folds: int) -> tuple[Tensor, Tensor]:
    """Return the edges (B − 1,) of bins in log-odds, ascending, and the log-odds (B,) that each bin answers.

    Args:
        pairs: As ``pairs_of`` returns them.
        folds: How many parts the curves are compared on.
    """
    curves: Sequence[Calibrator] = (
        Identity(),
        PlattScaling(ridge=1.0),
        BetaCalibration(),
        CentredIsotonic(),
        SplineCalibration(),
    )
    sums = cross_fitted(curves, [True] * len(curves), pairs, folds, far=torch.inf).summed()
    weights = exponential(sums, rate=_RATE, log_odds=0.0, least=_LEAST)
    whole = pairs.gathered()
    scores = pool_ties(whole.logits[:, 1], whole.labels.double(), whole.weights)
    places = torch.from_numpy(scores.places)
    logits = torch.stack([torch.zeros_like(places), places], dim=1).to(pairs.device)
    p, mass = torch.zeros_like(places), 0.0
    for curve, weight in zip(curves, weights.tolist(), strict=True):
        if weight > 0 and quietly(curve, pairs):
            p, mass = p + weight * torch.softmax(curve(logits), dim=1)[:, 1].cpu(), mass + weight
    edges, means = mean_bins(places, p / mass, torch.from_numpy(scores.mass), bins=BINS)
    return edges.to(pairs.device), torch.logit(means).clamp(-_SPAN, _SPAN).to(pairs.device)


def with_confidence(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Return log-probabilities (N, K) float64 in which the decision has its bin's probability, and stays the decision.

    The other classes keep their proportions. Where the bin's probability is less than the runner-up would get, the two are
    all but equal.
    """
    log_q, log_rest, decided = log_pair_of_top(logits.double())
    others = log_q - log_rest
    runner_up = others.scatter(1, decided, -torch.inf).amax(dim=1, keepdim=True)
    log_odds = values[rank_in(edges, (log_q.gather(1, decided) - log_rest)[:, 0])][:, None]
    log_odds = torch.maximum(log_odds, runner_up + _MARGIN)
    answer = (others + logsigmoid(-log_odds)).scatter(1, decided, logsigmoid(log_odds))
    return answer.masked_fill(torch.isneginf(logits), -torch.inf)
