"""Whether enough decisions are wrong, by their effective number: below it an interval or a test of two models is refused."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant._core.numerics import row_chunks
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.statistics.design import FEWEST

# Wrong decisions of both models below which a mean loss is not tested: one error among few decides the variance, so that the
# over-confident of two equally good models was preferred in up to 73 % of samples.
FEWEST_COMPARED = 20
# Enough for a two-sided test of log-losses or Brier scores of rows that count alike, if they tell the two models apart. Of 229
# simulated pairs of equally good models none was found to differ in more than 5 % and two standard errors of 2,000 simulations.
FEWEST_OF_ROWS = 5
# An unlikely label counts in full from this part of the deciding size on: with all of it the tests lost up to a fifth of their power
# where they are valid, with a third none, and every simulated pair held its level.
FULL_FROM = 1 / 3


def decided_of(data: Data) -> Tensor:
    """Return (2, 2) Σ w and Σ w² of wrong and of right decisions."""
    right, w = data.correct.double().cpu(), data.row_weights.cpu()
    return torch.stack([1 - right, right]) @ torch.stack([w, w.square()], dim=1)


def check_enough_errors(decided: Tensor, *, what: object, weighted: bool) -> None:
    """Raise if there are too few wrong, or right, decisions: by their effective numbers, from ``decided_of``."""
    wrong, right = (float(mass**2 / max(square, 1e-300)) for mass, square in decided.tolist())
    fewest, kind = min((wrong, "wrong"), (right, "right"))
    if fewest < FEWEST:
        rows = float(decided[:, 0].sum())
        more = f"about {math.ceil(rows * FEWEST * 1.6 / fewest):,} rows" if fewest else "many more rows"
        worth = " (the rows of equal weight that theirs are worth)" if weighted else ""
        raise NoIntervalError(
            f"at least {FEWEST} {kind} decisions for an interval of {shown(what, most=200)}",
            f"{fewest:.3g}{worth} of {rows:,.0f}",
            f"measure on {more}, or read the interval of Accuracy()",
        )


# log-probabilities (n, K) → each label's loss, up to a row's constant; it falls where its log-probability rises
LossOfLabels: TypeAlias = Callable[[Tensor], Tensor]


def scarce_errors(
    a: Data, b: Data, *, loss: LossOfLabels | None = None, enough: int = FEWEST_COMPARED
) -> tuple[float, int] | None:
    """Return the fewest wrong decisions of two models and about how many rows would hold enough to test a mean loss.

    Rows of one group are one unit: it counts once if it holds a wrong decision. None if both have ``enough``.

    Args:
        a: Labelled rows of one model.
        b: The same rows of the other model.
        loss: The loss to compare; only wrong decisions on which the models differ then count.
        enough: Number of wrong decisions of each model that the test needs.
    """
    wrong = []
    for data in (a, b):
        if data.groups is not None:
            wrong.append(float(torch.unique(data.groups[~data.correct.to(data.groups.device)]).shape[0]))
        else:
            mass, square = decided_of(data)[0].tolist()
            wrong.append(mass**2 / max(square, 1e-300))
    if loss and isinstance(a, Predictions) and isinstance(b, Predictions):
        wrong.append(_telling_errors(a, b, loss))
    if (fewest := min(wrong)) >= enough:
        return None
    # one more error than were seen, so that none still gives a number; 1.6 as 12 more than 20 are then expected
    return fewest, math.ceil(a.count * enough * 1.6 / (fewest + 1))


def _telling_errors(a: Predictions, b: Predictions, loss: LossOfLabels) -> float:
    """Return how many labels are unlikely and tell two models apart; infinite for models without a difference.

    An unlikely label moves the mean difference δ of the two losses by s = w |δ(label) − δ(likeliest)|, likely by the mean of both
    models. Where both say .5 it is often wrong and moves nothing: hundreds of such rows must not vouch for the few that decide.
    So an event counts min(1, 3 s / s̄), with s̄ = Σ q s² / Σ q s the size of those that decide the variance, as the models expect.
    """
    labels, weight = a.require_labels().cpu(), a.row_weights.cpu()
    size, sums = torch.zeros(len(a), dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for rows in row_chunks(len(a), a.classes):
        logs = [model.log_probs_in(rows).cpu() for model in (a, b)]
        q = (logs[0].exp() + logs[1].exp()) / 2
        change = loss(logs[1]) - loss(logs[0])
        moved = (change - change.gather(1, q.argmax(dim=1, keepdim=True))).abs()
        moved = torch.where(moved.isfinite(), moved, 0.0)  # a label of probability 0 is not expected
        moved *= weight[rows, None]
        sums += torch.stack([(q * moved.square()).sum(), (q * moved).sum()])
        size[rows] = moved.gather(1, labels[rows, None])[:, 0]
    if not sums[0]:
        return math.inf
    events = size * float(sums[1] / sums[0]) / FULL_FROM
    if a.groups is not None:
        events = torch.bincount(torch.unique(a.groups.cpu(), return_inverse=True)[1], weights=events)
    return float(events.clamp_max(1).sum())
