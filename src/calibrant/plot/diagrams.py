"""The numbers of diagrams: reliability in bins with consistency bars, isotonic (CORP) with its band, risk by coverage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.constraints import Count, Seed, checked
from calibrant.binning import AnyBinning, BinTable, EqualMass
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.predictions import Predictions
from calibrant.plot.arguments import Rows
from calibrant.statistics import consistency_bars

BINS = 15
LEVEL = 0.95


@dataclass(frozen=True)
class Bin:
    """One bin of confidence.

    Args:
        low: Its lower edge.
        high: Its upper edge.
        count: Number of rows in it; with weights its part of the effective sample size.
        confidence: Their mean confidence.
        accuracy: The fraction of them that is correct.
        expect_low: A calibrated model's accuracy lies below this in 2.5 % of samples.
        expect_high: A calibrated model's accuracy lies above this in 2.5 % of samples.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float
    expect_low: float
    expect_high: float

    @property
    def off(self) -> bool:
        """Whether the accuracy lies outside what is expected if calibrated."""
        return not self.expect_low <= self.accuracy <= self.expect_high

    @property
    def gap(self) -> float:
        """Confidence minus accuracy: positive is over-confident."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram as numbers.

    Args:
        bins: Its non-empty bins, by confidence.
        confidence: Mean confidence of all rows.
        accuracy: Accuracy of all rows.
        ece: Calibration error of these bins.
        n: Rows.
    """

    bins: Sequence[Bin]
    confidence: float
    accuracy: float
    ece: float
    n: int

    @property
    def lowest(self) -> float:
        """The smallest confidence, accuracy or consistency limit of any bin."""
        return min((min(b.confidence, b.accuracy, b.expect_low) for b in self.bins), default=0.0)


def is_event(data: Data) -> bool:
    """Return whether ``data`` are probabilities of one event (two classes, or pairs without a predicted class).

    Args:
        data: Predictions or pairs.

    Examples:
        >>> from calibrant import Pairs
        >>> is_event(Pairs.from_probs([0.2], [0]))
        True
    """
    return data.classes == 2 if isinstance(data, Predictions) else are_events(data)


def event_pairs(data: Data) -> Pairs:
    """Return the pairs that a diagram shows: probability of class 1 for two classes, else of the top label.

    Args:
        data: Labelled predictions or pairs.
    """
    return data.one_vs_rest(1) if isinstance(data, Predictions) and data.classes == 2 else data.top_label()


@checked
def diagram_of(data: Rows, *, binning: AnyBinning | None = None) -> Diagram:
    """Return the reliability diagram of the top label.

    Args:
        data: Labelled predictions or pairs, at least one row.
        binning: The bins; None is ``EqualMass(15)``.

    Examples:
        >>> from calibrant import Pairs
        >>> diagram = diagram_of(Pairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4))
        >>> [(bin.count, bin.off) for bin in diagram.bins]
        [(10, True)]

    References:
        Nguyen & O'Connor 2015 (equal-mass bins); Bröcker & Smith 2007 (what is expected if calibrated).
    """
    pairs = data.top_label()
    chosen = EqualMass(BINS) if binning is None else binning
    table = chosen.table(pairs.p, pairs.y, weight=pairs.weights)
    edges = chosen.edges(pairs.p, weight=pairs.weights).tolist()
    if len(edges) <= len(table.count):  # ties emptied some bins, and the edges are those of the non-empty ones
        kept = table.count > 0
        squares = None if table.squares is None else table.squares[kept]
        table = BinTable(table.count[kept], table.sum_p[kept], table.sum_y[kept], table.total, squares)
    return diagram_from(table, edges=edges)


def diagram_from(table: BinTable, *, edges: Sequence[float]) -> Diagram:
    """Return the reliability diagram of a bin table, without access to its rows.

    Args:
        table: Counts and sums of B bins that hold every row.
        edges: Their B + 1 edges.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> table = EqualWidth(2).table(torch.tensor([0.9, 0.8]), torch.tensor([1.0, 0.0]))
        >>> round(diagram_from(table, edges=[0.0, 0.5, 1.0]).confidence, 4)
        0.85
    """
    # Binomial with the mean confidence: slightly wider than the sum of unequal Bernoullis, so conservative
    low, high = (ends.tolist() for ends in consistency_bars(table, level=LEVEL))
    sums = zip(table.count.tolist(), table.sum_p.tolist(), table.sum_y.tolist(), strict=True)
    rows = int(table.total) if table.squares is None else round(1 / float(table.squared_shares.sum()))
    scale = 1.0 if table.squares is None else rows / table.total
    filled = [
        Bin(edges[b], edges[b + 1], max(round(count * scale), 1), p / count, y / count, low[b], high[b])
        for b, (count, p, y) in enumerate(sums)
        if count
    ]
    confidence, accuracy = (float(sums.sum()) / table.total for sums in (table.sum_p, table.sum_y))
    return Diagram(filled, confidence, accuracy, table.error(), rows)


def to_cpu(pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and y as float64 on the CPU.

    Args:
        pairs: Pairs on any device.
    """
    return pairs.p.detach().cpu().double(), pairs.y.detach().cpu().double()


Floats = NDArray[np.float64]
_CELLS = 1000  # largest number of values of p at which the band is simulated: more would change it by less than a line's width


@dataclass(frozen=True)
class IsotonicDiagram:
    """An isotonic reliability diagram as numbers.

    Args:
        p: Probabilities at the knots of the curve, increasing.
        recalibrated: The event's frequency by isotonic regression at each.
        band_p: Probabilities at which the band is given.
        band_low: A calibrated model's curve lies below this in 2.5 % of samples.
        band_high: A calibrated model's curve lies above this in 2.5 % of samples.
        miscalibration: Mean Brier score minus that of the recalibrated probabilities, ≥ 0.
        discrimination: Brier score of the base rate minus that of the recalibrated probabilities, ≥ 0.
        uncertainty: Brier score of the base rate.
        n: Rows.
    """

    p: Sequence[float]
    recalibrated: Sequence[float]
    band_p: Sequence[float]
    band_low: Sequence[float]
    band_high: Sequence[float]
    miscalibration: float
    discrimination: float
    uncertainty: float
    n: int


@checked
def isotonic_diagram(data: Rows, *, draws: Count = 200, seed: Seed = 0) -> IsotonicDiagram:
    """Return the isotonic diagram of an event's probability, with its consistency band.

    Isotonic regression determines the bins. The band is simulated: labels are drawn with the predicted probabilities and
    the regression is repeated on each draw. With more than 1,000 distinct probabilities, the band (not the curve) uses
    1,000 cells of equal mass. Weighted rows are drawn as their effective number of rows.

    Args:
        data: Two-class predictions (probability of class 1), pairs, or predictions (confidence of the top label).
        draws: Label sets for the band, ≥ 1.
        seed: Same seed, same band.

    Raises:
        InputError: If there are no rows.

    Examples:
        >>> from calibrant import Pairs
        >>> diagram = isotonic_diagram(Pairs.from_probs([0.1, 0.4, 0.8, 0.9], [0, 1, 0, 1]))
        >>> diagram.recalibrated
        [0.0, 0.5, 0.5, 1.0]

    References:
        Dimitriadis, Gneiting & Jordan 2021, Stable reliability diagrams for probabilistic classifiers, PNAS.
    """
    pairs = event_pairs(data)
    p, y = (column.numpy() for column in to_cpu(pairs))
    weight = pairs.row_weights.cpu().numpy()
    weight = weight * (pairs.effective_count / weight.sum())
    places, code = np.unique(p, return_inverse=True)
    count, hits = (np.bincount(code, w).astype(np.float64) for w in (weight, weight * y))
    fitted, rows = isotonic(hits / count, count), float(count.sum())
    knots, base = _ends_of_blocks(fitted), float(hits.sum()) / rows
    # Σ (m − y)² / N for y in {0, 1} is Σ (n m² − 2 m Σy + Σy) / N
    before, after = (float((count * m**2 - 2 * m * hits + hits).sum()) / rows for m in (places, fitted))
    rest = base * (1 - base)
    # cells of equal mass: each value lies in that of the middle of its rows
    cell = ((count.cumsum() - count / 2) * (_CELLS / rows)).astype(np.int64)
    cell = np.unique(cell, return_inverse=True)[1]
    sizes, sums = (np.bincount(cell, w).astype(np.float64) for w in (count, count * places))
    band_p, low, high = _band(sizes, sums, draws=draws, seed=seed)
    return IsotonicDiagram(
        p=places[knots].tolist(),
        recalibrated=fitted[knots].tolist(),
        band_p=band_p.tolist(),
        band_low=low.tolist(),
        band_high=high.tolist(),
        miscalibration=max(before - after, 0.0),
        discrimination=max(rest - after, 0.0),
        uncertainty=rest,
        n=round(rows),
    )


def isotonic(values: Floats, weights: Floats) -> Floats:
    from scipy.optimize import isotonic_regression

    fitted: Floats = np.clip(isotonic_regression(values, weights=weights).x, 0.0, 1.0)
    return fitted


def _ends_of_blocks(fitted: Floats) -> NDArray[np.int64]:
    """Return the first and last index of every run of equal values."""
    change = np.flatnonzero(np.diff(fitted)) + 1
    starts, ends = np.concatenate([[0], change]), np.concatenate([change, [len(fitted)]]) - 1
    return np.unique(np.stack([starts, ends], axis=1).ravel()).astype(np.int64)


def _band(count: Floats, sum_p: Floats, *, draws: int, seed: int) -> tuple[Floats, Floats, Floats]:
    mean, rows = np.clip(sum_p / count, 0.0, 1.0), np.maximum(np.rint(count), 1).astype(np.int64)
    drawn = np.random.default_rng(seed).binomial(rows, mean, size=(draws, len(rows)))
    curves = np.stack([isotonic(hits / rows, count) for hits in drawn])
    low, high = np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return mean, low, high


POINTS = 200


@dataclass(frozen=True)
class Curve:
    """Risk by coverage.

    Args:
        coverage: Fractions of the rows, increasing, the last 1.
        risk: The error among the most confident rows up to each.
    """

    coverage: Sequence[float]
    risk: Sequence[float]


@checked
def risk_curve(data: Rows) -> Curve:
    """Return the error among the most confident c · N rows (by weight) for up to 200 coverages c; rows of equal confidence stay together.

    Args:
        data: Labelled predictions or pairs, at least one row.

    Raises:
        InputError: If there are no rows.

    References:
        El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017.
    """
    pairs = data.top_label()
    p, y = to_cpu(pairs)
    weight = pairs.row_weights.detach().cpu()
    confidence, order = torch.sort(p, descending=True, stable=True)
    kept, errors = weight[order].cumsum(0), (weight * (1 - y))[order].cumsum(0)
    last_of_tie = torch.ones_like(confidence, dtype=torch.bool)
    last_of_tie[:-1] = confidence[:-1] != confidence[1:]
    ends = torch.nonzero(last_of_tie)[:, 0]
    if len(ends) > POINTS:
        ends = ends[torch.linspace(0, len(ends) - 1, POINTS).round().long()]
    return Curve((kept[ends] / kept[-1]).tolist(), (errors[ends] / kept[ends]).tolist())
