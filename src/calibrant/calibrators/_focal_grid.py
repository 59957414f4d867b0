"""Log-loss, mean confidence and confidences of softmax(z / T) under the focal map, for many (γ, T) on one data set.

What does not depend on γ and T is done once: gaps to the largest logit, sorted in each row. Sorting lets a pass leave
out classes whose probability is below e^−37 of the runner-up's, which changes 1 − q_top and Σ h by less than K·1e-16,
relative, at every margin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._numerics import CHUNK_BYTES
from calibrant.errors import InputError
from calibrant.scores import entropy_ratio

_REACH = 37.0  # e^−37 = 8.5e-17


@dataclass(frozen=True)
class Figures:
    """Of one (γ, T): the mean log-loss and the confidence (N,) float64, in the order of ``FocalGrid.correct``."""

    log_loss: float
    confidence: Tensor


@dataclass(frozen=True)
class _Block:
    """Rows that are evaluated together.

    Args:
        first: (n,) gap from the largest logit to the runner-up's.
        rest: (n, K − 1) further gap of every other class, ascending, float64.
        narrow: The same in float32.
        nearest: (K − 1,) smallest of each column, which says how many columns matter at a temperature.
        label: (n,) gap of the true class.
        correct: (n,) bool.
        weight: (n,) float64; all sum to 1.
    """

    first: Tensor
    rest: Tensor
    narrow: Tensor
    nearest: Tensor
    label: Tensor
    correct: Tensor
    weight: Tensor


class FocalGrid:
    """The data, ready to be evaluated at any (γ, T)."""

    def __init__(self, blocks: list[_Block], classes: int, *, weighted: bool = False) -> None:
        self.blocks = blocks
        self.weighted = weighted
        self.classes = classes
        self.correct = torch.cat([block.correct for block in blocks]).double()
        self.weight = torch.cat([block.weight for block in blocks])
        self.accuracy = float((self.correct * self.weight).sum())
        self.evaluations = 0

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Self:
        """Return the grid of checked ``logits`` (N, K), ``labels`` (N,) and weights (N,) or None.

        Raises:
            InputError: If a label's logit is −inf.
        """
        z = logits.double()
        gaps = (z.amax(dim=1, keepdim=True) - z).clamp_max_(1e300)
        at_label = gaps.gather(1, labels[:, None])[:, 0]
        if bool((at_label >= 1e300).any()):
            row = int(torch.nonzero(at_label >= 1e300)[0])
            raise InputError(f"expected a finite logit for every label, got −inf in row {row}; unmask or drop the row")
        share = torch.full_like(at_label, 1.0) if weight is None else weight
        share = share / share.sum()
        correct = logits.argmax(dim=1) == labels
        others = gaps.sort(dim=1).values[:, 1:]  # (N, K − 1): one 0 in each row is the top class itself
        rest = others - others[:, :1]
        order = torch.argsort(rest.clamp_max(100.0).sum(dim=1))  # rows of like spread leave out like columns
        step = max(1, CHUNK_BYTES // (8 * rest.shape[1]))
        blocks = []
        for chunk in torch.split(order, step):
            near = rest[chunk]
            blocks.append(
                _Block(
                    others[chunk, 0],
                    near,
                    near.clamp_max(1e30).float(),  # where float32 overflows the probability is 0 all the same
                    near.amin(dim=0),
                    at_label[chunk],
                    correct[chunk],
                    share[chunk],
                )
            )
        return cls(blocks, int(z.shape[1]), weighted=weight is not None)

    def at(self, temperature: float, gammas: Sequence[float], *, dtype: torch.dtype = torch.float64) -> list[Figures]:
        """Return the figures at one T for each γ; ``dtype`` is that of the (N, K) arithmetic, sums are float64."""
        self.evaluations += len(gammas)
        parts = [list(_evaluate(block, 1 / temperature, gammas, dtype)) for block in self.blocks]
        return [
            Figures(sum(float(part[g][0]) for part in parts), torch.cat([part[g][1] for part in parts]))
            for g in range(len(gammas))
        ]

    def mean_confidence(self, figures: Figures) -> float:
        """Return the weighted mean of the confidences."""
        return float((figures.confidence * self.weight).sum())


def _evaluate(
    block: _Block, beta: float, gammas: Sequence[float], dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (weighted sum of log-losses, confidence (n,)) for each γ, T = 1/β."""
    count = int(torch.searchsorted(block.nearest, _REACH / beta)) or 1
    rest = (block.rest if dtype == torch.float64 else block.narrow)[:, :count]
    e = (rest * -beta).exp_()  # (n, c): probability relative to the runner-up
    mass = e.sum(dim=1, dtype=torch.float64)
    lead = block.first * -beta
    odds = lead + mass.log()
    norm = F.softplus(odds)
    log_top, log_rest = -norm, odds - norm
    scale = lead - norm  # log probability of the runner-up
    u_top = entropy_ratio(log_top, log_rest)
    log_label = block.label * -beta - norm
    log_not_label = torch.log1p(-log_label.exp().clamp_max(0.5))  # used for wrong rows only, where q ≤ 1/2
    u_label = entropy_ratio(log_label, log_not_label)
    shared = None if all(gamma == 0 for gamma in gammas) else _powers(e, rest, beta, scale.to(dtype)[:, None])
    for gamma in gammas:
        log_sum = odds
        if gamma != 0 and shared is not None:
            log_not_q, u = shared
            h = torch.exp(log_not_q * -gamma).div_(u * gamma + 1).mul_(e)
            log_sum = scale + h.sum(dim=1, dtype=torch.float64).log()
        top = log_top - gamma * log_rest.clamp_min(-1e300) - torch.log1p(gamma * u_top) if gamma != 0 else log_top
        excess = log_sum - top if gamma != 0 else odds
        loss = F.softplus(excess)
        label = log_label - gamma * log_not_label - torch.log1p(gamma * u_label)
        loss = torch.where(block.correct, loss, loss + (top - label))
        yield (loss * block.weight).sum(), torch.sigmoid(-excess)


def _powers(e: Tensor, rest: Tensor, beta: float, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(1 − q) and u(q) = −q log q / (1 − q) of the other classes (n, c), all q ≤ 1/2."""
    log_q = (rest * -beta).add_(scale)
    q = e * scale.exp()
    rest_of_one = 1 - q
    u = log_q.mul_(q).neg_().div_(rest_of_one)
    return rest_of_one.log_(), u
