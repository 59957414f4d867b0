"""Exact search for the best (γ, T) of a grid (Komisarenko & Kull 2024 §4) that evaluates few candidates in few passes.

Branch and bound with two properties. By the triangle inequality ECE = Σ_b |Σ_{i∈b} (p_i − y_i)| / N ≥ |mean confidence −
accuracy|, if the bins contain every row. And at fixed γ the mean confidence decreases in T, and the log-loss is unimodal in
T: proved for γ = 0 (the log-loss is convex in 1/T), for other γ checked on a coarse subset of the temperatures, at most 15 %
apart. Where the check fails, or bins drop rows, every candidate is evaluated.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from calibrant._core.constraints import Each, Number
from calibrant._core.warn import warn_user
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.calibrators.focal.focal_grid import Figures, FocalGrid, Pair
from calibrant.errors import BoundWarning, InputError
from calibrant.rows import RowSource

_RATIO = 1.15  # largest ratio of consecutive temperatures in the coarse subset
_NARROW_ERROR = 5e-6  # error bound of float32 figures, relative to max(1, figure); the largest observed is 2e-6
_DIGITS = 12  # values equal to this many decimals are ties
_INSIDE = 9  # temperatures evaluated at once inside an interval
_FIRST = 64  # candidates of the first round by ECE; rounds double, so that eight rounds evaluate 16,000


@dataclass(frozen=True)
class Best:
    """The best pair found, and the objective there."""

    value: float
    gamma: float
    temperature: float


Rule = Callable[[Best], tuple[float, ...]]


def smallest_temperature(found: Best) -> tuple[float, ...]:
    """Order by value, then T: what a strict ``<`` over ascending T keeps."""
    return (round(found.value, _DIGITS), found.temperature)


def least_change(found: Best) -> tuple[float, ...]:
    """Order by value, then |γ|, then the distance of log T from 0."""
    return (round(found.value, _DIGITS), abs(found.gamma), abs(math.log(found.temperature)))


class Search:
    """The candidates of one data set and one objective: the ECE where the grid has bins, else the log-loss.

    Args:
        grid: The data.
        rule: Which of equally good candidates wins.
        ignore_zero: Pass over an ECE of exactly 0, as one of the papers' programs does.
    """

    def __init__(self, grid: FocalGrid, rule: Rule, *, ignore_zero: bool = False) -> None:
        self.grid, self.rule, self.ignore_zero = grid, rule, ignore_zero

    def best(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best of all pairs."""
        temps, binning = sorted(temperatures), self.grid.binning
        coarse = coarse_of(temps)
        drops_rows = isinstance(binning, EqualMass) and binning.ties == "interpolated"
        if drops_rows or len(coarse) * 2 > len(temps):
            return self.every(gammas, temps)
        scans = iter(self.grid.rough([(gamma, temps[i]) for gamma in gammas for i in coarse]))
        by_gamma = {gamma: [next(scans) for _ in coarse] for gamma in gammas}
        if binning is None:
            return self._valleys({gamma: [f.log_loss for f in scan] for gamma, scan in by_gamma.items()}, temps, coarse)
        means = {gamma: [f.mean for f in scan] for gamma, scan in by_gamma.items()}
        falling = {g: m for g, m in means.items() if all(b <= a + _NARROW_ERROR for a, b in pairwise(m))}
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

    def finer(self, best: Best, ends: tuple[float, float], temperatures: Sequence[float]) -> Best:
        """Return the best of three grids of 9 × 9 around the best so far, each a quarter as wide as the one before."""
        temps = sorted(temperatures)
        place = min(range(len(temps)), key=lambda i: abs(temps[i] - best.temperature))
        step_t = temps[min(place + 1, len(temps) - 1)] - temps[max(place - 1, 0)]
        step_gamma = (ends[1] - ends[0]) / 64
        for _ in range(3):
            near_t = [best.temperature + step_t * i / 4 for i in range(-4, 5)]
            near_gamma = {min(max(best.gamma + step_gamma * i / 4, ends[0]), ends[1]) for i in range(-4, 5)}
            found = self.every(sorted(near_gamma), [t for t in near_t if t > 0])
            best, step_t, step_gamma = min(best, found, key=self.rule), step_t / 4, step_gamma / 4
        return best

    def _value(self, figures: Figures) -> float:
        if self.grid.binning is None:
            return figures.log_loss
        return math.inf if self.ignore_zero and figures.error == 0 else figures.error

    def _valleys(self, losses: dict[float, list[float]], temps: Sequence[float], coarse: Sequence[int]) -> Best:
        """Return the candidate of least log-loss: at each γ between the coarse temperatures around its smallest loss."""
        brackets = {gamma: _bracket(mine, coarse) for gamma, mine in losses.items()}
        found = [self.every([gamma], temps) for gamma, bracket in brackets.items() if bracket is None]
        open_ = {gamma: bracket for gamma, bracket in brackets.items() if bracket is not None}
        while open_:
            tried = {gamma: _places(low, high) for gamma, (low, high) in open_.items()}
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
            # float32 error is subtracted so that the bound stays a lower bound.
            if i == j or j - i > 1:
                bound = max(accuracy - above, below - accuracy, 0.0) - _NARROW_ERROR
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
    # losses are float32: a violation of unimodality within the error bound is not one, and every place whose loss could
    # be the least within twice the bound (one for each of the two losses compared) stays inside the bracket
    slack = [_NARROW_ERROR * max(1.0, loss) for loss in losses]
    falls = all(losses[k + 1] <= losses[k] + slack[k] for k in range(lowest))
    rises = all(losses[k] <= losses[k + 1] + slack[k + 1] for k in range(lowest, len(coarse) - 1))
    if not (falls and rises):
        return None
    near = [k for k in range(len(coarse)) if losses[k] <= losses[lowest] + 2 * slack[lowest]]
    return coarse[max(near[0] - 1, 0)], coarse[min(near[-1] + 1, len(coarse) - 1)]


def _places(low: int, high: int) -> list[int]:
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


def warn_at_end(found: Best, temperatures: Sequence[float]) -> None:
    """Warn if the best temperature is an end of the grid, so that a better one may lie beyond."""
    if len(temperatures) > 1 and found.temperature in (min(temperatures), max(temperatures)):
        warn_user(
            f"expected the best temperature inside the grid, got its end {found.temperature:g}, so a better one may lie "
            "beyond; extend the grid, or use more validation data",
            BoundWarning,
        )


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


def resolve(
    criterion: str | None, binning: Binning | None, grid: Sequence[float] | str | None, *, otherwise: Preset
) -> tuple[str, Preset, list[float]]:
    """Return criterion, preset and temperatures of what was given; what was not is the preset's, or ``otherwise``'s."""
    preset = PRESETS[grid] if isinstance(grid, str) else otherwise
    chosen = criterion or ("ece" if isinstance(grid, str) else "nll")
    if binning is not None:
        preset = Preset(preset.per_unit, preset.count, binning, preset.ignore_zero)
    return chosen, preset, preset.temperatures if grid is None or isinstance(grid, str) else sorted(set(grid))


def search_of(
    rows: RowSource,
    criterion: str | None,
    binning: Binning | None,
    grid: Sequence[float] | str | None,
    rule: Rule,
    *,
    otherwise: Preset,
) -> tuple[Search, list[float]]:
    """Return the search of what was given, as ``resolve`` reads it, by ``rule``, and the temperatures to search."""
    by, preset, temperatures = resolve(criterion, binning, grid, otherwise=otherwise)
    used = preset.binning if by == "ece" else None
    if used is not None and rows.weighted:
        check_weights_count(used)
    return Search(FocalGrid(rows, used), rule, ignore_zero=preset.ignore_zero), temperatures


def check_weights_count(binning: Binning) -> None:
    """Refuse weighted rows with bins of equal mass: their parts differ by a row, which a row of weight 2.5 cannot split."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no sample_weight with bins of equal mass", "one", "use binning=EqualWidth(15), or repeat the rows"
        )
