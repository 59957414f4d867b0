"""Whether rows tell enough: wrong decisions and groups, by their effective numbers, below which an interval or a test is refused."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant._core.numerics import row_chunks
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.statistics.means import need_clusters

FEWEST = 10  # wrong (and correct) decisions, and groups, below which no interval of a mean or binned error is offered
# Wrong decisions of both models below which a mean loss is not tested: one error among few decides the variance, so that the
# over-confident of two equally good models was preferred in up to 73 % of samples.
FEWEST_COMPARED = 20
# Enough for a two-sided test of log-losses or Brier scores of rows that count alike, if they tell the two models apart. Of 229
# simulated pairs of equally good models none was told apart in more than 5 % and two errors of 2,000 samples.
FEWEST_OF_ROWS = 5
# An unlikely label counts in full from this part of the deciding size on: with all of it the tests lost up to a fifth of their power
# where they are valid, with a third none, and every pair of the registry held.
FULL_FROM = 1 / 3
MOST_SURE = 20_000  # wrong decisions that are looked at before all scores are


def decided_of(data: Predictions | Pairs) -> Tensor:
    """Return (2, 2) Σ w and Σ w² of wrong and of right decisions."""
    right = data.correct.double().cpu()
    w = data.row_weights.cpu()
    return torch.stack([torch.stack([(part * w).sum(), (part * w.square()).sum()]) for part in (1 - right, right)])


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
    a: Predictions | Pairs,
    b: Predictions | Pairs,
    *,
    loss: LossOfLabels | None = None,
    enough: int = FEWEST_COMPARED,
) -> tuple[float, int] | None:
    """Return the fewest wrong decisions of two models and about how many rows would hold enough to test a mean loss.

    Rows of one group are one unit: it counts once if it holds a wrong decision. None if both have ``enough``.

    Args:
        a: Labelled rows of one model.
        b: Of the other.
        loss: The loss that is compared: wrong decisions then count as far as they tell the models apart (``_telling_errors``).
        enough: Wrong decisions of both that the test needs.
    """
    wrong = []
    if loss and isinstance(a, Predictions) and isinstance(b, Predictions):
        known = _surely_telling(a, b, loss)
        wrong.append(known if known >= enough else _telling_errors(a, b, loss))
    for data in (a, b):
        chosen = ~data.correct
        if data.groups is not None:
            wrong.append(float(torch.unique(data.groups[chosen.to(data.groups.device)]).shape[0]))
        else:
            wrong.append(float(_effective(data, chosen)))
    fewest = min(wrong)
    if fewest >= enough:
        return None
    # one more error than were seen, so that none still gives a number; 1.6 as 12 more than 20 are then expected
    return fewest, math.ceil(a.count * enough * 1.6 / (fewest + 1))


def _telling_errors(a: Predictions, b: Predictions, loss: LossOfLabels) -> float:
    """Return how many labels are unlikely and tell two models apart; infinite for models without a difference.

    An unlikely label moves the mean difference δ of the two losses by s = w |δ(label) − δ(likeliest)|, likely by the mean of both
    models. Where both say .5 it is often wrong and moves nothing: hundreds of such rows must not vouch for the few that decide.
    So an event counts min(1, 3 s / s̄), with s̄ = Σ q s² / Σ q s the size of those that decide the variance, as the models expect.
    """
    labels, weight = a.need_labels().cpu(), a.row_weights.cpu()
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
        _, code = torch.unique(a.groups.cpu(), return_inverse=True)
        return float(torch.bincount(code, weights=events).clamp_max(1).sum())
    return float(events.clamp_max(1).sum())


def _surely_telling(a: Predictions, b: Predictions, loss: LossOfLabels) -> float:
    """Return at least how many errors ``_telling_errors`` counts, from a few rows: many of them need no pass over all scores.

    Of rows that both models decide alike and wrongly s is known, and s̄ ≤ max s, which the range of the scores bounds.
    """
    if a.decision is not None or b.decision is not None:
        return 0.0
    labels, decided = a.need_labels().cpu(), a.predicted.cpu()
    rows = torch.nonzero((decided == b.predicted.cpu()) & (decided != labels))[:MOST_SURE, 0]
    columns, most, losses = torch.stack([decided[rows], labels[rows]], dim=1), 0.0, []
    for model in (a, b):
        at = rows.to(model.logits.device)
        least = model.logits.amin().double() - model.logits.amax().double() - math.log(model.classes)
        ends = loss(torch.stack([least, torch.zeros_like(least)]))
        most += float(ends[0] - ends[1])
        scores = model.logits[at[:, None], columns.to(at.device)].double()
        losses.append(loss(scores - (model.row_max[at].double() + model.log_sum[at])[:, None]).cpu())
    if not 0 < most < math.inf:
        return 0.0
    events = (losses[1] - losses[0]).diff(dim=1).abs()[:, 0] / (FULL_FROM * most)
    if a.weights is not None:
        weight = a.weights.cpu()
        events *= weight[rows] / weight.max()
    if a.groups is not None:
        events = torch.bincount(torch.unique(a.groups.cpu()[rows], return_inverse=True)[1], weights=events)
    return float(events.clamp_max(1).sum())


def _effective(data: Predictions | Pairs, chosen: Tensor) -> float:
    """Return the number of chosen rows; with weights their effective number."""
    if data.weights is None:
        return int(chosen.sum())
    weight = data.weights[chosen]
    return float(weight.sum().square() / weight.square().sum().clamp_min(1e-300))


def need_groups(groups: Tensor | None, *, what: object, least: int = FEWEST) -> None:
    """Raise if there are too few groups for an interval or a null distribution.

    Args:
        groups: (N,) group of each row, or None.
        what: The metric, for the message.
        least: How many of equal size are needed.

    Raises:
        NoIntervalError: If there are fewer, or unequal ones that are worth fewer.
    """
    if groups is None:
        return
    need_clusters(torch.unique(groups, return_counts=True)[1], what=what, least=least)


def need_independent(groups: object, *, what: object) -> None:
    """Raise if rows have groups, for methods that need independent rows.

    Args:
        groups: None for independent rows.
        what: The metric, for the message.

    Raises:
        NoIntervalError: If the rows have groups.
    """
    if groups is not None:
        raise NoIntervalError(
            f"independent rows for the uncertainty of {shown(what, most=200)}",
            "groups, for which no method is known to hold",
            "use ECE()",
        )
