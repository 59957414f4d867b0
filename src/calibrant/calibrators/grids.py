"""The published searches for a temperature and a focal exponent γ, over a whole grid or along a line through two of its columns.

The criterion is the log-loss or the ECE of softmax(z / T) after the focal map, which is the identity at γ = 0.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number, refuse
from calibrant._core.log_pairs import log_pairs
from calibrant._core.warn import warn_user
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.calibrators.base import check_label_logits
from calibrant.errors import BoundWarning, InputError
from calibrant.rows import RowSource
from calibrant.scores import entropy_ratio

_DIGITS = 12  # values that agree to this many decimal places are ties
_ROUNDING = 1e-11  # rounding error of a mean over rows; values that differ by less are ties
Criterion = Literal["nll", "ece"] | None
Grid = Sequence[float] | Literal["mukhoti", "wang", "wang-code", "komisarenko", "komisarenko-code"] | None


class Preset(NamedTuple):
    """A published grid of temperatures, T = step, 2·step … steps·step.

    The temperatures are exact quotients, because repeated addition would drift to values such as 9.99999999999998.
    """

    per_unit: int
    steps: int
    binning: Binning
    ignore_zero: bool = False  # whether candidates with an ECE of exactly 0 are ignored

    @property
    def temperatures(self) -> list[float]:
        """The candidate temperatures, in ascending order."""
        return [i / self.per_unit for i in range(1, self.steps + 1)]


# All presets use the ECE. The published code behind "wang-code" also tries T = 0, whose NaN it ignores, and never accepts an ECE of
# exactly 0.
PRESETS = {
    "mukhoti": Preset(10, 100, EqualWidth(15)),
    "wang": Preset(100, 1000, EqualWidth(15)),
    "wang-code": Preset(100, 499, EqualWidth(15), ignore_zero=True),
    "komisarenko": Preset(100, 500, EqualMass(15)),
    "komisarenko-code": Preset(20, 100, EqualMass(15, ties="interpolated")),
}


def check_grid(criterion: Any, grid: Any) -> Any:
    """Check the grid and the criterion, and return ``grid`` with its temperatures sorted."""
    check_choice(criterion or "nll", name="criterion", choices=("nll", "ece"))
    if grid is None or isinstance(grid, str):
        return grid and check_choice(grid, name="grid", choices=PRESETS)
    temperatures = sorted({check_number(one, name="grid", low=0, open_low=True) for one in grid})
    if not temperatures:
        raise refuse("at least one temperature in grid", "none", "pass temperatures, or the name of a preset")
    return temperatures


class Best(NamedTuple):
    """A candidate. The lowest criterion is best; ties are broken by the smallest |γ|, then by the smallest T."""

    rounded: float
    size: float
    temperature: float
    gamma: float
    value: float


class GridSearch:
    """Computes the criterion at any (γ, T) on one data set in memory.

    Args:
        rows: The data.
        criterion: "nll" or "ece"; None means the ECE for a preset and the log-loss otherwise.
        binning: Bins for the ECE; None uses those of the preset.
        grid: Temperatures, or the name of a preset; None uses the preset ``otherwise``.
        otherwise: The name of a preset.

    Raises:
        InputError: If a label's logit is −inf, or if the rows have weights and the bins have equal mass.
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
        self.correct = (self.logits.argmax(dim=1) == batch.labels).double()

    def at(self, gamma: float, temperature: float) -> tuple[Best, float]:
        """Return the candidate (γ, T) and, for the ECE, its mean confidence minus the accuracy."""
        s, excess = self.logits / temperature, math.nan
        if gamma:
            log_q, log_not_q = log_pairs(s)
            # Komisarenko & Kull 2024, Prop. 2: log p up to a constant of the row is log q − γ log(1 − q) − log(1 + γ u)
            s = log_q - gamma * log_not_q - torch.log1p(gamma * entropy_ratio(log_q, log_not_q))
        if self.binning is None:
            value = self._mean(torch.logsumexp(s, dim=1) - s.gather(1, self.labels)[:, 0])
        else:
            confidence = 1 / torch.exp(s - s.amax(dim=1, keepdim=True)).sum(dim=1)
            value = self.binning.table(confidence, self.correct, weight=self.weights).error()
            value = math.inf if self.ignore_zero and value == 0 else value
            excess = self._mean(confidence - self.correct)
        return Best(round(value, _DIGITS), abs(gamma), temperature, gamma, value), excess

    def _mean(self, values: Tensor) -> float:
        return float(values.mean() if self.weights is None else self.weights @ values / self.weights.sum())

    def full(self, gammas: Sequence[float]) -> Best:
        """Return the best of all pairs (γ, T)."""
        # interpolated edges leave rows out, so the ECE can be below |mean confidence − accuracy|
        bounded = self.binning is not None and getattr(self.binning, "ties", "") != "interpolated"
        best = Best(math.inf, 0, 0, 0, math.inf)
        for gamma in gammas:
            best = (
                self._crossing(gamma, best)
                if bounded
                else min(best, *(self.at(gamma, t)[0] for t in self.temperatures))
            )
        ends = (self.temperatures[0], self.temperatures[-1])
        if ends[0] < ends[1] and best.temperature in ends:
            warn_user(
                f"expected the best temperature inside the grid, got its end {best.temperature:g}, so a better one may lie "
                "beyond it; extend the grid, or use more validation data",
                BoundWarning,
            )
        return best

    def _crossing(self, gamma: float, best: Best) -> Best:
        """Return the better of ``best`` and the T with the lowest ECE at this γ, skipping temperatures that cannot be the best.

        By the triangle inequality, the ECE is at least |mean confidence − accuracy|. The mean confidence decreases with T, so the
        search starts at the T where the mean confidence equals the accuracy, and proceeds in both directions until this bound
        exceeds the best ECE. If the mean confidence increases anywhere, all temperatures are compared.
        """
        excess: dict[int, float] = {}

        def visit(place: int) -> float:
            nonlocal best
            candidate, excess[place] = self.at(gamma, self.temperatures[place])
            best = min(best, candidate)
            return excess[place]

        count = len(self.temperatures)
        crossing = bisect_left(range(count), True, key=lambda place: visit(place) <= 0)
        for places in (range(crossing - 1, -1, -1), range(crossing, count)):
            for place in places:
                if abs(excess[place] if place in excess else visit(place)) > best.value + _ROUNDING:
                    break
        along = [excess[place] for place in sorted(excess)]
        if any(after > before + _ROUNDING for before, after in pairwise(along)):
            for place in range(count):
                visit(place)
        return best

    def line(self, gammas: Sequence[float]) -> Best:
        """Return the best candidate on the line between the best temperatures at the smallest and the largest γ.

        The line has as many points as the grid has temperatures.
        """
        low, high, count = self.full([min(gammas)]), self.full([max(gammas)]), len(self.temperatures)
        if low.gamma == high.gamma or count == 1:
            return min(low, high)
        spans = high.gamma - low.gamma, high.temperature - low.temperature
        places = [i / (count - 1) for i in range(count)]
        return min(self.at(low.gamma + spans[0] * x, low.temperature + spans[1] * x)[0] for x in places)


def check_weights_count(binning: Binning) -> None:
    """Raise an error if bins have equal mass, because a weighted row, say of weight 2.5, cannot be split between such bins."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no weights with bins of equal mass", "weights", "use binning=EqualWidth(15), or repeat the rows"
        )
