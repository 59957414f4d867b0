"""Exact search for the best (γ, T) of a grid (Komisarenko & Kull 2024 §4) that evaluates few candidates in few passes.

Branch and bound with two properties. By the triangle inequality ECE = Σ_b |Σ_{i∈b} (p_i − y_i)| / N ≥ |mean confidence −
accuracy|, if the bins contain every row. And at fixed γ the mean confidence decreases in T, and the log-loss is unimodal in
T: proved for γ = 0 (the log-loss is convex in 1/T), for other γ checked on a coarse subset of the temperatures, at most 15 %
apart. Where the check fails, or bins drop rows, every candidate is evaluated.

One pass evaluates many (γ, T): log-loss, mean confidence and binned gaps of softmax(z / T) under the focal map. What does
not depend on γ and T is done once: gaps to the largest logit, sorted in each row. Sorting lets a pass leave out classes
whose probability is below e^−37 of the runner-up's, which changes 1 − q_top and Σ h by less than K·1e-16, relative, at
every margin.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.constraints import Each, Number
from calibrant._core.warn import warn_user
from calibrant.binning import Binning, EqualMass, EqualWidth, split_starts
from calibrant.calibrators.chunks import check_label_logits
from calibrant.errors import BoundWarning, InputError
from calibrant.rows import Batch, RowSource
from calibrant.scores import entropy_ratio

_REACH = 37.0  # e^−37 = 8.5e-17
_PARTS = 4  # of a chunk: rows of like spread leave out like columns
_PART_VALUES = 1 << 15  # logits below which a part costs more to begin than it saves
_HELD = 1 << 20  # rows up to which bins of equal mass are made of every confidence
_ANSWERS = 1 << 25  # confidences, or counts of cells, that one pass may return
_CELLS = 1 << 16
_RATIO = 1.15  # largest ratio of consecutive temperatures in the coarse subset
_ROUNDING = 1e-11  # of means over the rows, relative to max(1, figure)
_DIGITS = 12  # values equal to this many decimals are ties
_INSIDE = 9  # temperatures evaluated at once inside an interval
_FIRST = 64  # candidates of the first round by ECE; rounds double, so that eight rounds evaluate 16,000

Pair = tuple[float, float]  # γ, T


@dataclass(frozen=True)
class FocalBlock:
    """Rows that are evaluated together.

    Args:
        first: (n,) gap from the largest logit to the runner-up's.
        rest: (n, K − 1) further gap of every other class, ascending, float64.
        nearest: (K − 1,) smallest of each column, which says how many columns matter at a temperature.
        label: (n,) gap of the true class.
        correct: (n,) bool.
        weight: (n,) float64.
    """

    first: Tensor
    rest: Tensor
    nearest: Tensor
    label: Tensor
    correct: Tensor
    weight: Tensor

    def evaluate(self, beta: float, gammas: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (weighted sum of log-losses, confidence (n,)) for each γ, T = 1/β."""
        count = int(torch.searchsorted(self.nearest, _REACH / beta)) or 1
        rest = self.rest[:, :count]
        e = (rest * -beta).exp_()  # (n, c): probability relative to the runner-up
        mass = e.sum(dim=1)
        lead = self.first * -beta
        odds = lead + mass.log()
        norm = F.softplus(odds)
        log_label = self.label * -beta - norm
        # γ = 0: the log-loss, and the log-odds of another class
        plain = torch.where(self.correct, norm, -log_label), odds
        mapped = {gamma for gamma in gammas if gamma != 0}
        shared = _Shared.of(self, -norm, odds - norm, lead - norm, log_label) if mapped else None
        if shared is not None:
            powers = _powers(e, rest, beta, shared.scale[:, None])
        for gamma in gammas:
            loss, excess = plain if shared is None or gamma == 0 else shared.at(gamma, e, *powers)
            yield (loss * self.weight).sum(), torch.sigmoid(-excess)


def focal_blocks(chunk: Batch) -> list[FocalBlock]:
    """Return a chunk's rows, ready to be evaluated at any (γ, T).

    Raises:
        InputError: If a label's logit is −inf.
    """
    check_label_logits(chunk)
    z = chunk.logits.double()
    gaps = (z.amax(dim=1, keepdim=True) - z).clamp_max_(1e300)
    at_label = gaps.gather(1, chunk.labels[:, None])[:, 0]
    correct = chunk.logits.argmax(dim=1) == chunk.labels
    others = gaps.sort(dim=1).values[:, 1:]  # (n, K − 1): one 0 in each row is the top class itself
    rest = others - others[:, :1]
    order = torch.argsort(rest.clamp_max(100.0).sum(dim=1))
    blocks = []
    for part in torch.split(order, max(64, _PART_VALUES // z.shape[1], -(-len(order) // _PARTS))):
        near = rest[part]
        columns = (at_label[part], correct[part], chunk.row_weights[part])
        blocks.append(FocalBlock(others[part, 0], near, near.amin(dim=0), *columns))
    return blocks


@dataclass(frozen=True)
class GridFigures:
    """Of one (γ, T) over all rows: the mean log-loss, the mean confidence, and the ECE if it was asked for."""

    log_loss: float
    mean: float
    error: float


class FocalGrid:
    """Answers what the log-loss and the ECE are at pairs (γ, T), many in one pass; each is asked for once.

    Args:
        rows: The data.
        binning: Bins of the ECE, or None where only the log-loss counts.
    """

    def __init__(self, rows: RowSource, binning: Binning | None) -> None:
        self.blocks = rows.map(focal_blocks)
        self.binning, self.count, self.mass = binning, rows.count, rows.mass
        self.accuracy = float(self.blocks.total(right_mass)) / self.mass
        self.passes = self.evaluations = 0
        self._known: dict[tuple[Pair, bool], GridFigures] = {}
        self._correct: Tensor | None = None

    @property
    def batch(self) -> int:
        """How many pairs one pass may be asked for."""
        if not isinstance(self.binning, EqualMass):
            return 1 << 20
        return max(8, _ANSWERS // (self.count if self.count <= _HELD else 3 * _CELLS))

    def means(self, pairs: Sequence[Pair]) -> list[GridFigures]:
        """Return log-loss and mean confidence at each pair, without the ECE."""
        return self._answers(pairs, binned=False)

    def at(self, pairs: Sequence[Pair]) -> list[GridFigures]:
        """Return the figures at each pair."""
        return self._answers(pairs, binned=self.binning is not None)

    def _answers(self, pairs: Sequence[Pair], *, binned: bool) -> list[GridFigures]:
        asked = sorted({pair for pair in pairs if (pair, binned) not in self._known}, key=lambda pair: pair[::-1])
        for start in range(0, len(asked), self.batch):
            self._ask(asked[start : start + self.batch], binned=binned)
        return [self._known[pair, binned] for pair in pairs]

    def _ask(self, pairs: list[Pair], *, binned: bool) -> None:
        self.passes, self.evaluations = self.passes + 1, self.evaluations + len(pairs)
        errors = [0.0] * len(pairs)
        if not binned or self.binning is None:
            sums = self.blocks.total(pair_sums, tuple(pairs))
        elif isinstance(self.binning, EqualMass):
            sums, errors = self._by_mass(self.binning, pairs)
        else:
            sums, gaps = self.blocks.total(binned_sums, tuple(pairs), self.binning)
            errors = (gaps.abs().sum(dim=1) / self.mass).tolist()
        for pair, (loss, mean), error in zip(pairs, (sums / self.mass).tolist(), errors, strict=True):
            self._known[pair, binned] = GridFigures(loss, mean, error)

    def _by_mass(self, binning: EqualMass, pairs: list[Pair]) -> tuple[Tensor, list[float]]:
        if self.count > _HELD:
            sums, cells = self.blocks.total(cell_sums, tuple(pairs))
            return sums, [_error_of_cells(binning, one.cpu()) for one in cells]
        if self._correct is None:
            self._correct = torch.cat(self.blocks.collected(_correct_of))
        sums, p = zip(*self.blocks.collected(confidences, tuple(pairs)), strict=True)
        every = torch.cat(p, dim=-1)
        return torch.stack(sums).sum(dim=0), [binned_error(binning, one, self._correct) for one in every]


def right_mass(blocks: list[FocalBlock]) -> Tensor:
    """Return the weight of the rows that are right."""
    return torch.stack([block.weight[block.correct].sum() for block in blocks]).sum()


def pair_sums(blocks: list[FocalBlock], pairs: tuple[Pair, ...]) -> Tensor:
    """Return Σ w log-loss and Σ w confidence (Q, 2) of each pair."""
    return confidences(blocks, pairs)[0]


def binned_sums(blocks: list[FocalBlock], pairs: tuple[Pair, ...], binning: EqualWidth) -> tuple[Tensor, Tensor]:
    """Return the same, and Σ w (confidence − right) in each bin (Q, B)."""
    sums, p = confidences(blocks, pairs)
    correct, weight = _correct_of(blocks), torch.cat([block.weight for block in blocks])
    gaps = [torch.bincount(binning.assign(one), weights=(one - correct) * weight, minlength=binning.bins) for one in p]
    return sums, torch.stack(gaps)


def cell_sums(blocks: list[FocalBlock], pairs: tuple[Pair, ...]) -> tuple[Tensor, Tensor]:
    """Return the sums of ``pair_sums``, and rows, Σ confidence and Σ right in 65,536 cells of [0, 1] (Q, 3, cells)."""
    sums, p = confidences(blocks, pairs)
    correct, made = _correct_of(blocks), []
    for one in p:
        cell = (one * _CELLS).long().clamp_max(_CELLS - 1)
        columns = (torch.ones_like(one), one, correct)
        made.append(torch.stack([torch.bincount(cell, weights=column, minlength=_CELLS) for column in columns]))
    return sums, torch.stack(made)


def binned_error(binning: Binning, p: Tensor, correct: Tensor) -> float:
    """Return the ECE of confidences ``p`` (N,): that of ``binning.table``, by one sort where the bins are of equal mass."""
    if not isinstance(binning, EqualMass) or binning.ties != "together" or p.device.type != "cpu":
        return binning.table(p, correct).error()
    values = p.numpy()
    order = np.argsort(values)
    ranked = values[order]
    gaps = np.concatenate([[0.0], np.cumsum(ranked - correct.numpy()[order])])
    size, larger = divmod(len(ranked), binning.bins)
    starts = np.arange(1, binning.bins) * size + np.minimum(np.arange(1, binning.bins), larger)
    starts = starts[(starts > 0) & (starts < len(ranked))]
    # equal values stay in the bin of their first row: a bin starts after the run that holds the row before its nominal start
    tied = ranked[starts] == ranked[starts - 1]
    starts = np.where(tied, np.searchsorted(ranked, ranked[starts], side="right"), starts)
    at = gaps[np.concatenate([[0], starts, [len(ranked)]])]
    return float(np.abs(np.diff(at)).sum() / len(ranked))


def _error_of_cells(binning: EqualMass, cells: Tensor) -> float:
    count, p, right = cells[:, cells[0] > 0]
    rows = int(count.sum())
    # the bin of the first row of each cell, of so many bins of equally many rows (numpy.array_split)
    ends = torch.searchsorted(count.cumsum(0), split_starts(rows, binning.bins)[1:].double())
    index = torch.searchsorted(ends, torch.arange(len(count)))
    return float(torch.bincount(index, weights=p - right).abs().sum() / rows)


def _correct_of(blocks: list[FocalBlock]) -> Tensor:
    return torch.cat([block.correct for block in blocks]).double()


def confidences(blocks: list[FocalBlock], pairs: tuple[Pair, ...]) -> tuple[Tensor, Tensor]:
    """Return the sums of ``pair_sums`` (Q, 2), and every confidence (Q, n); pairs of one temperature share its work."""
    sums = torch.zeros(len(pairs), 2, dtype=torch.float64, device=blocks[0].weight.device)
    p = torch.empty(len(pairs), sum(len(block.weight) for block in blocks), dtype=torch.float64, device=sums.device)
    column = 0
    for block in blocks:
        begun = 0
        while begun < len(pairs):
            ended, temperature = begun, pairs[begun][1]
            while ended < len(pairs) and pairs[ended][1] == temperature:
                ended += 1
            gammas = [gamma for gamma, _ in pairs[begun:ended]]
            for i, (loss, confidence) in enumerate(block.evaluate(1 / temperature, gammas), start=begun):
                sums[i, 0] += loss
                sums[i, 1] += confidence @ block.weight
                p[i, column : column + len(confidence)] = confidence
            begun = ended
        column += len(block.weight)
    return sums, p


@dataclass(frozen=True)
class _Shared:
    """What all γ of one temperature share (n,): log q and log(1 − q) of the top class and of the label, and u of both.

    ``scale`` is the log probability of the runner-up.
    """

    correct: Tensor
    log_top: Tensor
    log_rest: Tensor
    scale: Tensor
    log_label: Tensor
    log_not_label: Tensor
    u_top: Tensor
    u_label: Tensor

    @classmethod
    def of(cls, block: FocalBlock, log_top: Tensor, log_rest: Tensor, scale: Tensor, log_label: Tensor) -> "_Shared":
        log_not_label = torch.log1p(-log_label.exp().clamp_max(0.5))  # used for wrong rows only, where q ≤ 1/2
        u_top, u_label = entropy_ratio(log_top, log_rest), entropy_ratio(log_label, log_not_label)
        return cls(block.correct, log_top, log_rest.clamp_min(-1e300), scale, log_label, log_not_label, u_top, u_label)

    def at(self, gamma: float, e: Tensor, log_not_q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-losses (n,) under the map of γ, and the log-odds (n,) of any class but the top one."""
        h = torch.exp(log_not_q * -gamma).div_(u * gamma + 1).mul_(e)
        log_sum = self.scale + h.sum(dim=1).log()
        top = self.log_top - gamma * self.log_rest - torch.log1p(gamma * self.u_top)
        label = self.log_label - gamma * self.log_not_label - torch.log1p(gamma * self.u_label)
        excess = log_sum - top
        loss = F.softplus(excess)
        return torch.where(self.correct, loss, loss + (top - label)), excess


def _powers(e: Tensor, rest: Tensor, beta: float, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(1 − q) and u(q) = −q log q / (1 − q) of the other classes (n, c), all q ≤ 1/2."""
    log_q = (rest * -beta).add_(scale)
    q = e * scale.exp()
    rest_of_one = 1 - q
    u = log_q.mul_(q).neg_().div_(rest_of_one)
    return rest_of_one.log_(), u


@dataclass(frozen=True)
class Best:
    """The best pair found, and the objective there."""

    value: float
    gamma: float
    temperature: float

    def smallest_temperature(self) -> tuple[float, ...]:
        """Order by value, then T: what a strict ``<`` over ascending T keeps."""
        return (round(self.value, _DIGITS), self.temperature)

    def least_change(self) -> tuple[float, ...]:
        """Order by value, then |γ|, then the distance of log T from 0."""
        return (round(self.value, _DIGITS), abs(self.gamma), abs(math.log(self.temperature)))

    def warn_at_end(self, temperatures: Sequence[float]) -> None:
        """Warn if the best temperature is an end of the grid, so that a better one may lie beyond."""
        if len(temperatures) > 1 and self.temperature in (min(temperatures), max(temperatures)):
            warn_user(
                f"expected the best temperature inside the grid, got its end {self.temperature:g}, so a better one may lie "
                "beyond; extend the grid, or use more validation data",
                BoundWarning,
            )


Rule = Callable[[Best], tuple[float, ...]]


class Search:
    """The candidates of one data set and one objective: the ECE where the grid has bins, else the log-loss.

    Args:
        grid: The data.
        rule: Which of equally good candidates wins.
        ignore_zero: Pass over an ECE of exactly 0, as one of the papers' programs does.
    """

    def __init__(self, grid: FocalGrid, rule: Rule, *, ignore_zero: bool = False) -> None:
        self.grid, self.rule, self.ignore_zero = grid, rule, ignore_zero

    def best(self, gammas: Sequence[float], temps: Sequence[float]) -> Best:
        """Return the best of all pairs; temperatures ascend."""
        coarse, binning = coarse_of(temps), self.grid.binning
        drops_rows = isinstance(binning, EqualMass) and binning.ties == "interpolated"
        if drops_rows or len(coarse) * 2 > len(temps):
            return self.every(gammas, temps)
        scans = iter(self.grid.means([(gamma, temps[i]) for gamma in gammas for i in coarse]))
        by_gamma = {gamma: [next(scans) for _ in coarse] for gamma in gammas}
        if binning is None:
            return self._valleys({gamma: [f.log_loss for f in scan] for gamma, scan in by_gamma.items()}, temps, coarse)
        means = {gamma: [f.mean for f in scan] for gamma, scan in by_gamma.items()}
        falling = {g: m for g, m in means.items() if all(b <= a + _ROUNDING for a, b in pairwise(m))}
        others = [gamma for gamma in gammas if gamma not in falling]
        known = [self.every(others, temps)] if others else []
        return self._band(falling, temps, coarse, known) if falling else known[0]

    def at(self, pairs: Sequence[Pair]) -> list[Best]:
        """Return the objective at each pair."""
        return [Best(self._value(f), *pair) for f, pair in zip(self.grid.at(pairs), pairs, strict=True)]

    def every(self, gammas: Sequence[float], temps: Sequence[float]) -> Best:
        """Return the best of all pairs by visiting all of them."""
        return min(self.at([(gamma, t) for t in temps for gamma in gammas]), key=self.rule)

    def line(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best on the line through the best temperatures of the outermost two γ, as many points as temperatures."""
        low, high = (self.best([gamma], temperatures) for gamma in (min(gammas), max(gammas)))
        span = high.gamma - low.gamma
        if span == 0:
            return low
        slope, count = (high.temperature - low.temperature) / span, max(len(temperatures), 2)
        at = [low.gamma + span * i / (count - 1) for i in range(count)]
        return min(self.at([(gamma, low.temperature + slope * (gamma - low.gamma)) for gamma in at]), key=self.rule)

    def finer(self, best: Best, ends: tuple[float, float], temps: Sequence[float]) -> Best:
        """Return the best of three grids of 9 × 9 around the best so far, each a quarter as wide as the one before."""
        place = min(range(len(temps)), key=lambda i: abs(temps[i] - best.temperature))
        step_t = temps[min(place + 1, len(temps) - 1)] - temps[max(place - 1, 0)]
        step_gamma = (ends[1] - ends[0]) / 64
        for _ in range(3):
            near_t = [best.temperature + step_t * i / 4 for i in range(-4, 5)]
            near_gamma = {min(max(best.gamma + step_gamma * i / 4, ends[0]), ends[1]) for i in range(-4, 5)}
            found = self.every(sorted(near_gamma), [t for t in near_t if t > 0])
            best, step_t, step_gamma = min(best, found, key=self.rule), step_t / 4, step_gamma / 4
        return best

    def _value(self, figures: GridFigures) -> float:
        if self.grid.binning is None:
            return figures.log_loss
        return math.inf if self.ignore_zero and figures.error == 0 else figures.error

    def _valleys(self, losses: dict[float, list[float]], temps: Sequence[float], coarse: Sequence[int]) -> Best:
        """Return the candidate of least log-loss: at each γ between the coarse temperatures around its smallest loss."""
        brackets = {gamma: _bracket(mine, coarse) for gamma, mine in losses.items()}
        found = [self.every([gamma], temps) for gamma, bracket in brackets.items() if bracket is None]
        open_ = {gamma: bracket for gamma, bracket in brackets.items() if bracket is not None}
        while open_:
            tried = {gamma: _spread_places(low, high) for gamma, (low, high) in open_.items()}
            values = iter(self.at([(gamma, temps[i]) for gamma, places in tried.items() for i in places]))
            narrowed = {}
            for gamma, places in tried.items():
                mine = {i: next(values) for i in places}
                least = min(places, key=lambda i, mine=mine: self.rule(mine[i]))  # type: ignore[misc]
                found.append(mine[least])
                at = places.index(least)
                low, high = places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)]
                if any(b - a > 1 for a, b in pairwise(places[max(at - 1, 0) : at + 2])):
                    narrowed[gamma] = (low, high)
            open_ = narrowed
        return min(found, key=self.rule)

    def _band(
        self, means: dict[float, list[float]], temps: Sequence[float], coarse: Sequence[int], known: Sequence[Best]
    ) -> Best:
        """Return the candidate of least ECE, by the gap of mean confidence and accuracy, smallest first.

        ``means`` holds the mean confidence at the coarse temperatures for each γ; it falls with T, so that it bounds
        the mean confidence between them. Each round asks for the candidates of smallest bound, twice as many as before.
        """
        accuracy = self.grid.accuracy
        best = min(known, key=self.rule, default=Best(math.inf, 0.0, 1.0))
        queue: list[tuple[float, float, int, int, float, float]] = []

        def push(gamma: float, i: int, j: int, above: float, below: float) -> None:
            # Candidates strictly between i and j, or i itself if i == j. Their mean confidence lies in [below, above], so
            # |mean confidence − accuracy|, hence the ECE, is at least the distance of the accuracy from that interval. The
            # rounding error is subtracted so that the bound stays a lower bound.
            if i == j or j - i > 1:
                bound = max(accuracy - above, below - accuracy, 0.0) - _ROUNDING
                heapq.heappush(queue, (bound, gamma, i, j, above, below))

        for gamma, mean in means.items():
            for k, i in enumerate(coarse):
                push(gamma, i, i, mean[k], mean[k])
                if k + 1 < len(coarse):
                    push(gamma, i, coarse[k + 1], mean[k], mean[k + 1])
        size = _FIRST
        # best-first: once the smallest bound exceeds the best ECE, no remaining candidate can be better
        while queue and queue[0][0] <= best.value:
            taken: list[tuple[float, float, int, int, float, float]] = []
            while queue and queue[0][0] <= best.value and len(taken) < size:
                taken.append(heapq.heappop(queue))
            pairs = [(gamma, temps[(i + j) // 2]) for _, gamma, i, j, _, _ in taken]
            best = min(best, *self.at(pairs), key=self.rule)
            for (_, gamma, i, j, above, below), figures in zip(taken, self.grid.at(pairs), strict=True):
                if i < j:
                    push(gamma, i, (i + j) // 2, above, figures.mean)
                    push(gamma, (i + j) // 2, j, figures.mean, below)
            size *= 2
        return best


def _bracket(losses: Sequence[float], coarse: Sequence[int]) -> tuple[int, int] | None:
    """Return the places between which the least log-loss lies; None if it does not fall and then rise."""
    lowest = min(range(len(coarse)), key=losses.__getitem__)
    # a violation of unimodality within rounding is not one, and every place whose loss could be the least within twice
    # that (once for each of the two losses compared) stays inside the bracket
    slack = [_ROUNDING * max(1.0, loss) for loss in losses]
    falls = all(losses[k + 1] <= losses[k] + slack[k] for k in range(lowest))
    rises = all(losses[k] <= losses[k + 1] + slack[k + 1] for k in range(lowest, len(coarse) - 1))
    if not (falls and rises):
        return None
    near = [k for k in range(len(coarse)) if losses[k] <= losses[lowest] + 2 * slack[lowest]]
    return coarse[max(near[0] - 1, 0)], coarse[min(near[-1] + 1, len(coarse) - 1)]


def _spread_places(low: int, high: int) -> list[int]:
    """Return up to eleven places from ``low`` to ``high``, both among them."""
    parts = min(high - low, _INSIDE + 1)
    return sorted({low + (high - low) * i // parts for i in range(parts + 1)}) if parts else [low]


def coarse_of(temps: Sequence[float]) -> list[int]:
    """Return indices, first and last among them, of temperatures not more than 15 % apart where the grid allows it."""
    chosen = [0]
    for i in range(1, len(temps) - 1):
        if temps[i + 1] > temps[chosen[-1]] * _RATIO:
            chosen.append(i)
    return [*chosen, len(temps) - 1] if len(temps) > 1 else chosen


@dataclass(frozen=True)
class Preset:
    """T = step, 2·step … count·step, as exact quotients: the programs that add up T drift to 9.99999999999998."""

    per_unit: int
    count: int
    binning: Binning
    ignore_zero: bool = False

    @property
    def temperatures(self) -> list[float]:
        """The candidates, ascending."""
        return [i / self.per_unit for i in range(1, self.count + 1)]


# All go by ECE. "wang-code" also holds T = 0, whose NaN its comparison passes over, and never takes an ECE of exactly 0.
PRESETS = {
    "mukhoti": Preset(10, 100, EqualWidth(15)),
    "wang": Preset(100, 1000, EqualWidth(15)),
    "wang-code": Preset(100, 499, EqualWidth(15), ignore_zero=True),
    "komisarenko": Preset(100, 500, EqualMass(15)),
    "komisarenko-code": Preset(20, 100, EqualMass(15, ties="interpolated")),
}
Temperatures = Annotated[Sequence[float], Each(Number(0, open_low=True), least=1)]
Grid = Temperatures | Literal["mukhoti", "wang", "wang-code", "komisarenko", "komisarenko-code"] | None


def criterion_of(criterion: str | None, grid: Sequence[float] | str | None) -> str:
    """Return the criterion that was given, or that of the grid."""
    return criterion or ("ece" if isinstance(grid, str) else "nll")


def search_of(
    rows: RowSource,
    criterion: str | None,
    binning: Binning | None,
    grid: Sequence[float] | str | None,
    rule: Rule,
    *,
    otherwise: Preset,
) -> tuple[Search, list[float]]:
    """Return the search by ``rule`` and the temperatures; what was not given is the preset's of the grid, or ``otherwise``'s."""
    preset = PRESETS[grid] if isinstance(grid, str) else otherwise
    used = (binning or preset.binning) if criterion_of(criterion, grid) == "ece" else None
    if used is not None and rows.weighted:
        check_weights_count(used)
    temperatures = preset.temperatures if grid is None or isinstance(grid, str) else list(grid)
    return Search(FocalGrid(rows, used), rule, ignore_zero=preset.ignore_zero), temperatures


def check_weights_count(binning: Binning) -> None:
    """Refuse weighted rows with bins of equal mass: their parts differ by a row, which a row of weight 2.5 cannot split."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no sample_weight with bins of equal mass", "one", "use binning=EqualWidth(15), or repeat the rows"
        )
