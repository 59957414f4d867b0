"""The papers' searches of a temperature and a focal exponent γ: every candidate of a grid, or a line through two of its columns.

They go by the log-loss or by the ECE of softmax(z / T) under the focal map, which is the identity at γ = 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from calibrant._core.check import check_choice, check_number, refuse
from calibrant._core.log_pairs import log_pairs
from calibrant._core.warn import warn_user
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.calibrators.chunks import check_label_logits
from calibrant.errors import BoundWarning, InputError
from calibrant.rows import RowSource
from calibrant.scores import entropy_ratio

_DIGITS = 12  # values equal to so many decimals are ties
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
        self.top = self.logits.argmax(dim=1, keepdim=True)
        self.correct = (self.top == self.labels)[:, 0].double()

    def at(self, gammas: Sequence[float], temperature: float) -> list[Best]:
        """Return the candidates of one temperature."""
        log_q, log_not_q = log_pairs(self.logits / temperature)
        u, found = entropy_ratio(log_q, log_not_q), []
        for gamma in gammas:
            # Komisarenko & Kull 2024, Proposition 2: log p up to a constant of the row is log q − γ log(1 − q) − log(1 + γ u)
            s = log_q - gamma * log_not_q - torch.log1p(gamma * u) if gamma else log_q
            norm = torch.logsumexp(s, dim=1)
            if self.binning is None:
                loss = norm - s.gather(1, self.labels)[:, 0]
                value = float(loss.mean() if self.weights is None else self.weights @ loss / self.weights.sum())
            else:
                confidence = torch.exp(s.gather(1, self.top)[:, 0] - norm).clamp_max(1.0)
                value = self.binning.table(confidence, self.correct, weight=self.weights).error()
                value = math.inf if self.ignore_zero and value == 0 else value
            found.append(Best((round(value, _DIGITS), abs(gamma), temperature), value, gamma, temperature))
        return found

    def full(self, gammas: Sequence[float]) -> Best:
        """Return the best of all pairs."""
        best = min(one for temperature in self.temperatures for one in self.at(gammas, temperature))
        ends = (self.temperatures[0], self.temperatures[-1])
        if ends[0] < ends[1] and best.temperature in ends:
            warn_user(
                f"expected the best temperature inside the grid, got its end {best.temperature:g}, so a better one may lie "
                "beyond; extend the grid, or use more validation data",
                BoundWarning,
            )
        return best

    def line(self, gammas: Sequence[float]) -> Best:
        """Return the best on the line through the best temperatures of the outermost two γ, as many points as temperatures."""
        low, high, count = self.full([min(gammas)]), self.full([max(gammas)]), len(self.temperatures)
        if low.gamma == high.gamma or count == 1:
            return min(low, high)
        spans = high.gamma - low.gamma, high.temperature - low.temperature
        places = [i / (count - 1) for i in range(count)]
        return min(self.at([low.gamma + spans[0] * x], low.temperature + spans[1] * x)[0] for x in places)


def check_weights_count(binning: Binning) -> None:
    """Refuse weighted rows with bins of equal mass: their parts differ by a row, which a row of weight 2.5 cannot split."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no weights with bins of equal mass", "weights", "use binning=EqualWidth(15), or repeat the rows"
        )
