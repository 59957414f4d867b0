"""The best (γ, T) of a grid, exactly, without visiting most of it.

Two facts prune. Every bin's gap counts in the ECE, so ECE ≥ |mean confidence − accuracy| for bins that hold every row.
And at fixed γ the mean confidence falls with T, and the log-loss falls and then rises: proved for γ = 0 (the log-loss is
convex in 1/T), and for other γ checked on a coarse subset of the temperatures, never more than 15 % apart. Where the
check fails, or bins drop rows, every candidate is evaluated.
"""

import heapq
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from calibrant.binning import Binning, EqualMass
from calibrant.calibrators._focal_grid import Figures, FocalGrid
from calibrant.calibrators._log_temperature import T_HIGH, T_LOW
from calibrant.errors import BoundWarning

_RATIO = 1.15  # of neighbours in the coarse subset
_NARROW_ERROR = 5e-6  # of figures from float32 arithmetic, relative to max(1, figure); 2e-6 is the worst seen
_DIGITS = 12  # two values that agree in these are a tie


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
    """The candidates of one data set and one objective.

    Args:
        grid: The data.
        binning: The bins of the ECE to minimise, or None for the log-loss.
        rule: Which of equally good candidates wins.
        ignore_zero: Pass over an ECE of exactly 0, as one of the papers' programs does.
    """

    def __init__(self, grid: FocalGrid, binning: Binning | None, rule: Rule, *, ignore_zero: bool = False) -> None:
        self.grid = grid
        self.binning = binning
        self.rule = rule
        self.ignore_zero = ignore_zero

    def best(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best of all pairs."""
        temps = sorted(temperatures)
        coarse = coarse_of(temps)
        drops_rows = isinstance(self.binning, EqualMass) and self.binning.ties == "interpolated"
        if drops_rows or len(coarse) * 2 > len(temps):
            return self._every(gammas, temps)
        scans = [self.grid.at(temps[i], gammas, dtype=torch.float32) for i in coarse]
        if self.binning is None:
            losses = [[scan[g].log_loss for scan in scans] for g in range(len(gammas))]
            candidates = self.valleys(gammas, temps, coarse, losses)
        else:
            means = [[self.grid.mean_confidence(scan[g]) for scan in scans] for g in range(len(gammas))]
            falling = [all(b <= a + _NARROW_ERROR for a, b in pairwise(m)) for m in means]
            regular = {gamma: m for gamma, m, ok in zip(gammas, means, falling, strict=True) if ok}
            irregular = [gamma for gamma in gammas if gamma not in regular]
            candidates = [self._every(irregular, temps)] if irregular else []
            candidates.append(self._band(regular, temps, coarse, candidates))
        return min(candidates, key=self.rule)

    def valleys(
        self, gammas: Sequence[float], temps: Sequence[float], coarse: Sequence[int], losses: Sequence[Sequence[float]]
    ) -> list[Best]:
        """Return the best of each γ by log-loss, given its ``losses`` at the coarse temperatures."""
        found = []
        for gamma, mine in zip(gammas, losses, strict=True):
            found.append(self._valley(gamma, temps, coarse, mine) or self._every([gamma], temps))
        return found

    def value(self, figures: Figures) -> float:
        """Return the objective of ``figures``."""
        if self.binning is None:
            return figures.log_loss
        error = binned_error(self.binning, figures, self.grid)
        return math.inf if self.ignore_zero and error == 0 else error

    def at(self, gamma: float, temperature: float) -> Best:
        """Return the objective at one pair."""
        return Best(self.value(self.grid.at(temperature, [gamma])[0]), gamma, temperature)

    def line(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best on the line through the best temperatures of the outermost two γ, as many points as temperatures."""
        low, high = (self.best([gamma], temperatures) for gamma in (min(gammas), max(gammas)))
        return min((self.at(*point) for point in self.points(low, high, len(temperatures))), key=self.rule)

    def points(self, low: Best, high: Best, count: int) -> list[tuple[float, float]]:
        """Return ``count`` pairs (γ, T), or two at least, on the line from ``low`` to ``high``; one if they are at the same γ."""
        span = high.gamma - low.gamma
        if span == 0:
            return [(low.gamma, low.temperature)]
        count = max(count, 2)
        slope = (high.temperature - low.temperature) / span
        gammas = [low.gamma + span * i / (count - 1) for i in range(count)]
        return [(gamma, low.temperature + slope * (gamma - low.gamma)) for gamma in gammas]

    def continuous(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best (γ, T) off the grid that a local search from the grid's best finds."""
        best = self.best(gammas, temperatures)
        ends = (min(gammas), max(gammas))
        if ends[0] == ends[1]:
            return self._best_temperature(best.gamma, best)
        if self.binning is not None:
            return self._finer(best, ends, temperatures)
        beside = sorted({*ends, *gammas})
        place = beside.index(best.gamma)
        low, high = beside[max(place - 1, 0)], beside[min(place + 1, len(beside) - 1)]
        seen = [best]

        def loss(gamma: float) -> float:
            nearest = min(seen, key=lambda found: abs(found.gamma - gamma))
            seen.append(self._best_temperature(gamma, nearest))
            return seen[-1].value

        _minimise(loss, low, high, tolerance=1e-4)
        return min(seen, key=self.rule)

    def penalised(self, ends: tuple[float, float], start: tuple[float, float], *, pull: float) -> Best:
        """Return the local minimum of log-loss + pull/2 · ((log T)² + log(1 + γ)²) that is found from ``start``, (γ, T).

        A quasi-Newton search with γ between ``ends``, to about 1e-4 in log T and log(1 + γ).
        """
        from scipy.optimize import minimize

        low, high = math.log1p(min(ends)), math.log1p(max(ends))

        def objective(x: np.ndarray) -> float:
            loss = self.grid.at(math.exp(x[0]), [math.expm1(x[1])])[0].log_loss
            return loss + pull * float(x @ x) / 2

        first = np.array([math.log(start[1]), min(max(math.log1p(start[0]), low), high)])
        bounds = [(math.log(T_LOW), math.log(T_HIGH)), (low, high)]
        found = minimize(objective, first, method="L-BFGS-B", bounds=bounds, options={"gtol": 1e-6, "ftol": 1e-12})
        x = found.x if found.fun <= objective(first) else first
        return self.at(math.expm1(x[1]), math.exp(x[0]))

    def _best_temperature(self, gamma: float, near: Best) -> Best:
        """Return the T of a local minimum of the log-loss at ``gamma``, to 1e-5 in log T, searched from ``near``."""
        if self.binning is not None:
            return near
        center, reach = math.log(near.temperature), 0.5
        while True:
            low, high = max(center - reach, math.log(T_LOW)), min(center + reach, math.log(T_HIGH))
            u = _minimise(lambda t: self.at(gamma, math.exp(t)).value, low, high, tolerance=1e-5)
            inside = low + 1e-3 < u < high - 1e-3
            if inside or u <= math.log(T_LOW) + 1e-3 or u >= math.log(T_HIGH) - 1e-3:
                return self.at(gamma, math.exp(u))
            center, reach = u, 2 * reach

    def _finer(self, best: Best, ends: tuple[float, float], temperatures: Sequence[float]) -> Best:
        """Return the best of three grids of 9 × 9 around the best so far, each a quarter as wide as the one before."""
        temps = sorted(temperatures)
        place = temps.index(best.temperature)
        step_t = temps[min(place + 1, len(temps) - 1)] - temps[max(place - 1, 0)]
        step_gamma = (ends[1] - ends[0]) / 64
        for _ in range(3):
            near_t = [best.temperature + step_t * i / 4 for i in range(-4, 5)]
            near_gamma = [min(max(best.gamma + step_gamma * i / 4, ends[0]), ends[1]) for i in range(-4, 5)]
            found = self._every(sorted(set(near_gamma)), [t for t in near_t if t > 0])
            best, step_t, step_gamma = min(best, found, key=self.rule), step_t / 4, step_gamma / 4
        return best

    def _every(self, gammas: Sequence[float], temps: Sequence[float]) -> Best:
        found = [
            Best(self.value(figures), gamma, t)
            for t in temps
            for gamma, figures in zip(gammas, self.grid.at(t, gammas), strict=True)
        ]
        return min(found, key=self.rule)

    def _valley(
        self, gamma: float, temps: Sequence[float], coarse: Sequence[int], losses: Sequence[float]
    ) -> Best | None:
        """Return the candidate of least log-loss by bisection; None if the log-loss does not fall and then rise."""
        lowest = min(range(len(coarse)), key=losses.__getitem__)
        slack = [_NARROW_ERROR * max(1.0, loss) for loss in losses]
        falls = all(losses[k + 1] <= losses[k] + slack[k] for k in range(lowest))
        rises = all(losses[k] <= losses[k + 1] + slack[k + 1] for k in range(lowest, len(coarse) - 1))
        if not (falls and rises):
            return None
        near = [k for k in range(len(coarse)) if losses[k] <= losses[lowest] + 2 * slack[lowest]]
        low, high = coarse[max(near[0] - 1, 0)], coarse[min(near[-1] + 1, len(coarse) - 1)]
        seen: dict[int, Best] = {}

        def at(i: int) -> Best:
            if i not in seen:
                seen[i] = self.at(gamma, temps[i])
            return seen[i]

        while high - low > 2:
            middle = (low + high) // 2
            if at(middle).value <= at(middle + 1).value:
                high = middle
            else:
                low = middle + 1
        found = min(range(low, high + 1), key=lambda i: self.rule(at(i)))
        beside = [i for i in (found - 1, found + 1) if 0 <= i < len(temps)]
        return at(found) if all(at(i).value >= at(found).value for i in beside) else None

    def _band(
        self,
        means: dict[float, list[float]],
        temps: Sequence[float],
        coarse: Sequence[int],
        known: Sequence[Best],
    ) -> Best:
        """Return the candidate of least ECE, by the gap of mean confidence and accuracy, smallest first.

        ``means`` holds the mean confidence at the coarse temperatures for each γ; it falls with T, so that it bounds
        the mean confidence between them.
        """
        accuracy = self.grid.accuracy
        best = min(known, key=self.rule, default=Best(math.inf, 0.0, 1.0))
        queue: list[tuple[float, float, int, int, float, float]] = []

        def push(gamma: float, i: int, j: int, above: float, below: float) -> None:
            # the candidates strictly between i and j, or i itself if i == j
            if i == j or j - i > 1:
                bound = max(accuracy - above, below - accuracy, 0.0) - _NARROW_ERROR
                heapq.heappush(queue, (bound, gamma, i, j, above, below))

        for gamma, mean in means.items():
            for k, i in enumerate(coarse):
                push(gamma, i, i, mean[k], mean[k])
                if k + 1 < len(coarse):
                    push(gamma, i, coarse[k + 1], mean[k], mean[k + 1])
        while queue and queue[0][0] <= best.value:
            _, gamma, i, j, above, below = heapq.heappop(queue)
            middle = (i + j) // 2
            figures = self.grid.at(temps[middle], [gamma])[0]
            mean_here = self.grid.mean_confidence(figures)
            if abs(mean_here - accuracy) <= best.value + 10**-_DIGITS:
                best = min(best, Best(self.value(figures), gamma, temps[middle]), key=self.rule)
            if i < j:
                push(gamma, i, middle, above, mean_here)
                push(gamma, middle, j, mean_here, below)
        return best


def _minimise(function: Callable[[float], float], low: float, high: float, *, tolerance: float) -> float:
    """Return a local minimum of ``function`` on [low, high] by Brent's method."""
    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": tolerance}).x)


def binned_error(binning: Binning, figures: Figures, grid: FocalGrid) -> float:
    """Return the ECE of ``figures``: that of ``binning.table``, by one sort where the bins are of equal mass.

    Rows count by their weight in bins of fixed edges; callers refuse weights with bins of equal mass.
    """
    p = figures.confidence
    if grid.weighted:
        by_bin = torch.bincount(binning.assign(p), weights=(p - grid.correct) * grid.weight, minlength=binning.bins)
        return float(by_bin.abs().sum())
    if not isinstance(binning, EqualMass) or binning.ties != "together" or p.device.type != "cpu":
        return binning.table(p, grid.correct).error()
    values = p.numpy()
    order = np.argsort(values)
    ranked = values[order]
    gaps = np.concatenate([[0.0], np.cumsum(ranked - grid.correct.numpy()[order])])
    size, larger = divmod(len(ranked), binning.bins)
    starts = np.arange(1, binning.bins) * size + np.minimum(np.arange(1, binning.bins), larger)
    starts = starts[(starts > 0) & (starts < len(ranked))]
    # equal values stay in the bin of their first row: a bin starts after the run that holds its nominal start's forerunner
    tied = ranked[starts] == ranked[starts - 1]
    starts = np.where(tied, np.searchsorted(ranked, ranked[starts], side="right"), starts)
    at = gaps[np.concatenate([[0], starts, [len(ranked)]])]
    return float(np.abs(np.diff(at)).sum() / len(ranked))


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
        warnings.warn(
            f"expected the best temperature inside the grid, got its end {found.temperature:g}, so a better one may lie "
            "beyond; extend the grid, or use more validation data",
            BoundWarning,
            stacklevel=5,
        )
