"""The papers' searches of a temperature and a focal exponent γ: every candidate of a grid, or a line through two of its columns.

They go by the log-loss or by the ECE of softmax(z / T) under the focal map, which is the identity at γ = 0.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number, refuse
from calibrant._core.log_pairs import log_pairs
from calibrant._core.warn import warn_user
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.calibrators.chunks import check_label_logits
from calibrant.errors import BoundWarning, InputError
from calibrant.rows import RowSource
from calibrant.scores import entropy_ratio

_DIGITS = 12  # values equal to so many decimals are ties
_ROUNDING = 1e-11  # of a mean over the rows, and what is a tie of two errors
_FAR = 1e300  # below the top class: its exponential is 0, and 0 times it is not NaN
Criterion = Literal["nll", "ece"] | None
Grid = Sequence[float] | Literal["mukhoti", "wang", "wang-code", "komisarenko", "komisarenko-code"] | None


@dataclass(frozen=True)
class Preset:
    """T = step, 2·step … count·step, as exact quotients: the programs that add up T drift to 9.99999999999998."""

    per_unit: int
    count: int
    binning: Binning
    ignore_zero: bool = False  # pass over an ECE of exactly 0

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


def check_grid(criterion: Any, grid: Any) -> Any:
    """Return ``grid``, temperatures sorted, after checking it and the criterion."""
    check_choice(criterion or "nll", name="criterion", choices=("nll", "ece"))
    if grid is None or isinstance(grid, str):
        return grid and check_choice(grid, name="grid", choices=PRESETS)
    temperatures = sorted({check_number(one, name="grid", low=0, open_low=True) for one in grid})
    if not temperatures:
        raise refuse("at least one temperature in grid", "none", "name one, or a preset")
    return temperatures


@dataclass(frozen=True, order=True)
class Best:
    """A candidate and its criterion: the lowest wins; of equal ones the smallest |γ|, and then the smallest T."""

    rank: tuple[float, float, float]
    value: float
    gamma: float
    temperature: float


class GridSearch:
    """The criterion at any (γ, T) on one data set, which is held in memory.

    Args:
        rows: The data.
        criterion: "nll" or "ece"; None is that of a preset, which is the ECE, and else the log-loss.
        binning: Bins of the ECE; None is the preset's.
        grid: Temperatures, or a preset's name; None is that of ``otherwise``.
        otherwise: A preset's name.

    Raises:
        InputError: If a label's logit is −inf, or there are weights and bins of equal mass.
    """

    def __init__(
        self, rows: RowSource, criterion: Criterion, binning: Binning | None, grid: Grid, *, otherwise: str
    ) -> None:
        preset = PRESETS[grid if isinstance(grid, str) else otherwise]
        self.temperatures = preset.temperatures if grid is None or isinstance(grid, str) else list(grid)
        by_ece = (criterion or ("ece" if isinstance(grid, str) else "nll")) == "ece"
        self.binning, self.ignore_zero = (binning or preset.binning) if by_ece else None, preset.ignore_zero
        batch = rows.gathered(why="a search over a grid")
        check_label_logits(batch)
        if batch.weights is not None and self.binning is not None:
            check_weights_count(self.binning)
        self.logits, self.labels, self.weights = batch.logits.double(), batch.labels[:, None], batch.weights
        top = self.logits.argmax(dim=1, keepdim=True)
        self.correct = (top == self.labels)[:, 0].double()
        # how far each other class lies below the top one, which itself counts as infinitely far
        largest = self.logits.gather(1, top)
        self.gaps = (self.logits - largest).clamp_min_(-_FAR).scatter_(1, top, -_FAR)

    def at(self, gamma: float, temperature: float) -> Best:
        """Return the candidate of one pair."""
        return self._candidate(gamma, temperature)[0]

    def _candidate(self, gamma: float, temperature: float) -> tuple[Best, float]:
        """Return the candidate of one pair, and the mean confidence by ECE."""
        if self.binning is None:
            log_q, log_not_q = log_pairs(self.logits / temperature)
            # Komisarenko & Kull 2024, Prop. 2: log p up to a constant of the row is log q − γ log(1 − q) − log(1 + γ u)
            s = log_q - gamma * log_not_q - torch.log1p(gamma * entropy_ratio(log_q, log_not_q)) if gamma else log_q
            value, mean = self._mean(torch.logsumexp(s, dim=1) - s.gather(1, self.labels)[:, 0]), math.nan
        else:
            confidence = self._confidence(gamma, temperature)
            value = self.binning.table(confidence, self.correct, weight=self.weights).error()
            value, mean = math.inf if self.ignore_zero and value == 0 else value, self._mean(confidence)
        return Best((round(value, _DIGITS), abs(gamma), temperature), value, gamma, temperature), mean

    def _mean(self, values: Tensor) -> float:
        return float(values.mean() if self.weights is None else self.weights @ values / self.weights.sum())

    def _confidence(self, gamma: float, temperature: float) -> Tensor:
        """Return the probability (N,) of the top class."""
        scaled = self.gaps / temperature
        relative = scaled.exp()
        others = relative.sum(dim=1)  # p(not top) / p(top)
        if gamma == 0:
            return 1 / (1 + others)
        log_others, log_total = torch.logsumexp(scaled, dim=1), others.log1p()
        log_q = scaled.sub_(log_total[:, None])
        q = relative.div_(1 + others[:, None])  # of the others, at most ½, so that log(1 − q) is exact
        u = q.mul(log_q).div_(q - 1)
        s = log_q.sub_(q.neg_().log1p_(), alpha=gamma).sub_(u.mul_(gamma).log1p_())
        # of the top class, whose 1 − q is that of the others together; log(1 + x) / x is 1 at x = 0
        u_top = torch.where(others > 0, log_total / others, 1.0)
        s_top = -log_total - gamma * (log_others - log_total) - torch.log1p(gamma * u_top)
        return torch.sigmoid(s_top - torch.logsumexp(s, dim=1))

    def full(self, gammas: Sequence[float]) -> Best:
        """Return the best of all pairs."""
        bounded = self.binning is not None and getattr(self.binning, "ties", "") != "interpolated"
        best = self._bounded(gammas) if bounded else self._every(gammas)
        ends = (self.temperatures[0], self.temperatures[-1])
        if ends[0] < ends[1] and best.temperature in ends:
            warn_user(
                f"expected the best temperature inside the grid, got its end {best.temperature:g}, so a better one may lie "
                "beyond; extend the grid, or use more validation data",
                BoundWarning,
            )
        return best

    def _every(self, gammas: Sequence[float]) -> Best:
        return min(self.at(gamma, temperature) for temperature in self.temperatures for gamma in gammas)

    def _bounded(self, gammas: Sequence[float]) -> Best:
        """Return the pair of least ECE without visiting those that cannot be it.

        Where bins hold every row, the ECE is at least |mean confidence − accuracy| (the triangle inequality). The mean confidence
        falls as T rises: between two temperatures it lies between its values there, which bounds the ECE. Intervals are halved,
        that of the lowest bound first, until no bound is below the best ECE. Should the mean rise at some γ, all its
        temperatures are compared.
        """
        temperatures, accuracy, found = self.temperatures, self._mean(self.correct), list[Best]()
        open_: list[tuple[float, float, int, int, float, float]] = []  # bound, γ, places of the ends, means there

        def visit(gamma: float, place: int) -> float:
            candidate, mean = self._candidate(gamma, temperatures[place])
            found.append(candidate)
            return mean

        def leave(gamma: float, low: int, high: int, at_low: float, at_high: float) -> None:
            if high - low > 1:
                heapq.heappush(
                    open_, (max(0.0, at_high - accuracy, accuracy - at_low), gamma, low, high, at_low, at_high)
                )

        last, rising = len(temperatures) - 1, set[float]()
        for gamma in gammas:
            leave(gamma, 0, last, visit(gamma, 0), visit(gamma, last))
        while open_ and open_[0][0] <= min(found).value + _ROUNDING:
            _, gamma, low, high, at_low, at_high = heapq.heappop(open_)
            middle = (low + high) // 2
            mean = visit(gamma, middle)
            if not at_high - _ROUNDING <= mean <= at_low + _ROUNDING:
                rising.add(gamma)
            leave(gamma, low, middle, at_low, mean)
            leave(gamma, middle, high, mean, at_high)
        return min([*found, *([self._every(sorted(rising))] if rising else [])])

    def line(self, gammas: Sequence[float]) -> Best:
        """Return the best on the line through the best temperatures of the outermost two γ, as many points as temperatures."""
        low, high, count = self.full([min(gammas)]), self.full([max(gammas)]), len(self.temperatures)
        if low.gamma == high.gamma or count == 1:
            return min(low, high)
        spans = high.gamma - low.gamma, high.temperature - low.temperature
        places = [i / (count - 1) for i in range(count)]
        return min(self.at(low.gamma + spans[0] * x, low.temperature + spans[1] * x) for x in places)


def check_weights_count(binning: Binning) -> None:
    """Refuse weighted rows with bins of equal mass: their parts differ by a row, which a row of weight 2.5 cannot split."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no weights with bins of equal mass", "weights", "use binning=EqualWidth(15), or repeat the rows"
        )
