"""Temperatures and focal maps chosen from grids on tables larger than memory: the in-memory search, a pass at a time.

The search is the in-memory one. Where it asks for figures that are not known yet, the question is noted and it starts
again once a pass has answered; all that can be asked at once is asked in one pass, so that a full search of 5,000 pairs
takes about ten.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.binning import Binning, BinTable, EqualWidth
from calibrant.calibrators import FocalTemperatureScaling, TemperatureScaling
from calibrant.calibrators._focal_grid import FocalGrid
from calibrant.calibrators._focal_search import (
    Best,
    Rule,
    Search,
    coarse_of,
    least_change,
    smallest_temperature,
    warn_at_end,
)
from calibrant.calibrators._grids import PRESETS, resolve
from calibrant.errors import InputError
from calibrant.scale.passes import StreamedPasses, labelled
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["fit_focal_temperature", "fit_temperature_grid"]

T = TypeVar("T")
Question = tuple[float, tuple[float, ...], str]  # temperature, gammas, dtype
_GRID_BYTES = 4 << 20  # of logits made ready at a time: sorted gaps take ten times as much


def fit_temperature_grid(calibrator: TemperatureScaling, passes: StreamedPasses) -> dict[str, Any]:
    """Return what ``TemperatureScaling`` with a grid learns.

    Args:
        calibrator: With its grid, criterion and bins.
        passes: The data.
    """
    chosen = resolve(calibrator.criterion, calibrator.binning, calibrator.grid, otherwise=PRESETS["wang"])
    search = _search_of(chosen, passes, smallest_temperature)
    best = search.best([0.0], chosen[2])
    warn_at_end(best, chosen[2])
    return {"log_temperature": math.log(best.temperature), "certificate": []}


def fit_focal_temperature(
    calibrator: FocalTemperatureScaling, passes: StreamedPasses, log_temperature: Callable[[], float]
) -> dict[str, Any]:
    """Return what ``FocalTemperatureScaling`` learns by its full grid or along its line.

    Args:
        calibrator: With its candidates, criterion and bins.
        passes: The data.
        log_temperature: Fits log T alone by log-loss.

    Raises:
        InputError: For the continuous search, whose steps follow one another by the hundred.
    """
    if calibrator.search == "continuous":
        raise InputError(
            "expected search='full' or 'line' for a folder, got 'continuous', which takes hundreds of passes; choose one "
            "of them, or fit on a sample in one file"
        )
    chosen = resolve(calibrator.criterion, calibrator.binning, calibrator.grid, otherwise=PRESETS["komisarenko"])
    criterion, _, temps = chosen
    search = _search_of(chosen, passes, least_change)
    if calibrator.search == "full":
        best = search.best(calibrator.gammas, temps)
    else:
        best = min(search.line(calibrator.gammas, temps), search.best([0.0], temps), key=least_change)
        if criterion == "nll":
            best = min(best, search.answered(lambda: search.at(0.0, math.exp(log_temperature()))), key=least_change)
    warn_at_end(best, temps)
    return {"log_temperature": math.log(best.temperature), "exponent": best.gamma, "reached": best.value}


def _search_of(chosen: tuple[str, Any, list[float]], passes: StreamedPasses, rule: Rule) -> "StreamedSearch":
    criterion, preset, _ = chosen
    binning = preset.binning if criterion == "ece" else None
    if binning is not None and not isinstance(binning, EqualWidth):
        raise InputError(
            f"expected bins of equal width for a folder, got {binning}, whose edges need all rows at once; pass "
            "binning=EqualWidth(15), or fit on a sample in one file"
        )
    return StreamedSearch(StreamedGrid(passes, binning), binning, rule, ignore_zero=preset.ignore_zero)


class _UnansweredError(Exception):
    """A figure was asked for that no pass has given yet."""


@dataclass(frozen=True)
class StreamedFigures:
    """Of one (γ, T) over all rows: the mean log-loss, the mean confidence, and the bins if there are any."""

    log_loss: float
    mean: float
    table: BinTable | None


class StreamedGrid:
    """As ``FocalGrid``, over rows on disk: questions are collected, and answered by ``ask``.

    Args:
        passes: The data.
        binning: Bins to sum the confidences in, or None.
    """

    def __init__(self, passes: StreamedPasses, binning: EqualWidth | None) -> None:
        self.passes = passes
        self.bins = 0 if binning is None else binning.bins
        self.accuracy = float(passes.total(right_of)) / passes.rows.rows
        self.wanted: list[Question] = []
        self._known: dict[Question, list[StreamedFigures]] = {}

    def at(
        self, temperature: float, gammas: Sequence[float], *, dtype: torch.dtype = torch.float64
    ) -> list[StreamedFigures]:
        """Return the figures at one T for each γ.

        Raises:
            _UnansweredError: If no pass has given them; the question is noted.
        """
        question = (temperature, tuple(gammas), str(dtype).removeprefix("torch."))
        if question not in self._known:
            self.want(*question)
            raise _UnansweredError
        return self._known[question]

    def want(self, temperature: float, gammas: Sequence[float], dtype: str = "float64") -> None:
        """Note a question for the next pass."""
        question = (temperature, tuple(gammas), dtype)
        if question not in self._known and question not in self.wanted:
            self.wanted.append(question)

    def ask(self) -> None:
        """Answer the questions that were noted, by one pass."""
        if not self.wanted:
            return
        questions, self.wanted = sorted(self.wanted), []
        rows, width = self.passes.rows.rows, 2 + 3 * self.bins
        sums = self.passes.total(figures_of, questions=tuple(questions), bins=self.bins)
        answers = iter(sums.split(width))
        for question in questions:
            self._known[question] = [self._figures(next(answers), rows) for _ in question[1]]

    def mean_confidence(self, figures: StreamedFigures) -> float:
        """Return the mean of the confidences."""
        return figures.mean

    def _figures(self, sums: Tensor, rows: int) -> StreamedFigures:
        table = None
        if self.bins:
            count, p, y = sums[2:].view(3, self.bins)
            table = BinTable(count.round().long(), p, y, rows)
        return StreamedFigures(float(sums[0]) / rows, float(sums[1]) / rows, table)


class StreamedSearch(Search):
    """The in-memory search over a ``StreamedGrid``."""

    grid: StreamedGrid  # type: ignore[assignment]

    def __init__(self, grid: StreamedGrid, binning: Binning | None, rule: Rule, *, ignore_zero: bool = False) -> None:
        super().__init__(grid, binning, rule, ignore_zero=ignore_zero)  # type: ignore[arg-type]
        self._after: dict[float, float] = {}  # the next larger candidate, which a bisection asks for as well

    def value(self, figures: Any) -> float:
        """Return the objective of ``figures``."""
        if figures.table is None:
            return float(figures.log_loss)
        error = figures.table.error()
        return math.inf if self.ignore_zero and error == 0 else error

    def at(self, gamma: float, temperature: float) -> Best:
        """Return the objective at one pair."""
        try:
            return super().at(gamma, temperature)
        except _UnansweredError:
            if temperature in self._after:
                self.grid.want(self._after[temperature], [gamma])
            raise

    def answered(self, compute: Callable[[], T]) -> T:
        """Return what ``compute`` returns once every question of it is answered."""
        while True:
            try:
                return compute()
            except _UnansweredError:
                self.grid.ask()

    def best(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best of all pairs."""
        temps = sorted(temperatures)
        self._after = dict(pairwise(temps))
        coarse = coarse_of(temps)
        if len(coarse) * 2 > len(temps):
            for t in temps:
                self.grid.want(t, gammas)
        else:
            for i in coarse:
                self.grid.want(temps[i], gammas, "float32")
        self.grid.ask()
        return self.answered(lambda: super(StreamedSearch, self).best(gammas, temps))

    def valleys(
        self, gammas: Sequence[float], temps: Sequence[float], coarse: Sequence[int], losses: Sequence[Sequence[float]]
    ) -> list[Best]:
        """Return the best of each γ; the questions of all γ go into the same passes."""
        found: list[Best] = []
        missing = False
        for gamma, mine in zip(gammas, losses, strict=True):
            try:
                found.append(self._valley(gamma, temps, coarse, mine) or self._every([gamma], temps))
            except _UnansweredError:
                missing = True
        if missing:
            raise _UnansweredError
        return found

    def line(self, gammas: Sequence[float], temperatures: Sequence[float]) -> Best:
        """Return the best on the line through the best temperatures of the outermost two γ."""
        ends = [self.best([gamma], temperatures) for gamma in (min(gammas), max(gammas))]
        for gamma, temperature in self.points(ends[0], ends[1], len(temperatures)):
            self.grid.want(temperature, [gamma])
        self.grid.ask()
        return self.answered(lambda: super(StreamedSearch, self).line(gammas, temperatures))

    def _every(self, gammas: Sequence[float], temps: Sequence[float]) -> Best:
        for t in temps:
            self.grid.want(t, gammas)
        return super()._every(gammas, temps)


def right_of(rows: ParquetRows, shard: Shard) -> Tensor:
    """Return how many rows of a shard are right (1,)."""
    return torch.stack([(z.argmax(dim=1) == y).sum() for z, y in labelled(rows, shard)]).sum()[None].double()


def figures_of(rows: ParquetRows, shard: Shard, *, questions: tuple[Question, ...], bins: int) -> Tensor:
    """Return, for each question and γ, Σ log-loss, Σ confidence, and counts, Σ confidence and Σ right of the bins."""
    total: Tensor | None = None
    for logits, labels in labelled(rows, shard):
        step = max(1, _GRID_BYTES // (4 * logits.shape[1]))
        for start in range(0, len(labels), step):
            grid = FocalGrid.of(logits[start : start + step], labels[start : start + step], None)
            part = torch.cat([_sums(grid, question, bins) for question in questions])
            total = part if total is None else total + part
    assert total is not None
    return total


def _sums(grid: FocalGrid, question: Question, bins: int) -> Tensor:
    temperature, gammas, dtype = question
    parts = []
    for figures in grid.at(temperature, gammas, dtype=getattr(torch, dtype)):
        p = figures.confidence
        parts.append(torch.tensor([figures.log_loss * len(p), float(p.sum())], dtype=torch.float64))
        if bins:
            table = EqualWidth(bins).table(p, grid.correct)
            parts += [table.count.double(), table.sum_p, table.sum_y]
    return torch.cat(parts)
