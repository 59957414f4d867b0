"""Computes the numbers of reliability diagrams: in bins with consistency bars, or isotonic (CORP) with a band.

Nothing is drawn here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.binning import Binning, BinTable, EqualMass
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.predictions import Predictions
from calibrant.statistics import consistency_bars

BINS = 15
LEVEL = 0.95
Floats = NDArray[Any]  # float64


@dataclass(frozen=True)
class Bin:
    """One bin of confidence.

    Args:
        low: Lower edge, in [0, 1].
        high: Upper edge, in [0, 1].
        count: Number of rows in the bin; with weights, the bin's share of the effective sample size.
        confidence: Mean confidence of these rows.
        accuracy: Fraction of these rows that are correct.
        expect_low: The accuracy of a calibrated model is below this in 2.5 % of samples.
        expect_high: The accuracy of a calibrated model is above this in 2.5 % of samples.
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


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram as numbers.

    Args:
        bins: The non-empty bins, in order of confidence.
        confidence: Mean confidence of all rows.
        accuracy: Accuracy of all rows.
        ece: Calibration error in these bins.
        n: Number of rows; with weights, the effective sample size.
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
    """Return whether ``data`` are probabilities of a single event (two classes, or pairs without a predicted class).

    Args:
        data: Predictions or pairs.

    Examples:
        >>> from calibrant import Pairs
        >>> is_event(Pairs.from_probs([0.2], [0]))
        True
    """
    return data.classes == 2 if isinstance(data, Predictions) else are_events(data)


def event_pairs(data: Data) -> Pairs:
    """Return the pairs that a diagram shows: for class 1 if there are two classes, otherwise for the top label.

    Args:
        data: Labelled predictions or pairs.
    """
    return data.one_vs_rest(1) if isinstance(data, Predictions) and data.classes == 2 else data.top_label()


def labelled_rows(data: Any) -> Data:
    """Check that ``data`` are labelled predictions or pairs, and return their rows with positive weight.

    Args:
        data: The data to draw.

    Raises:
        InputError: If ``data`` are of another type, or have no rows or labels.
    """
    rows = require_rows(data, what="a picture or a report")
    if isinstance(rows, Predictions):
        rows.require_labels()
    return rows


def diagram_of(data: Data, *, binning: Binning | None = None) -> Diagram:
    """Return the reliability diagram of the top label.

    Args:
        data: Labelled predictions or pairs with at least one row.
        binning: The bins; None uses ``EqualMass(15)``.

    Raises:
        InputError: If there are no rows or no labels.

    Examples:
        >>> from calibrant import Pairs
        >>> diagram = diagram_of(Pairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4))
        >>> [(bin.count, bin.off) for bin in diagram.bins]
        [(10, True)]

    References:
        Nguyen & O'Connor 2015 (equal-mass bins); Bröcker & Smith 2007 (consistency bars).
    """
    pairs = labelled_rows(data).top_label()
    chosen = EqualMass(BINS) if binning is None else binning
    table = chosen.table(pairs.p, pairs.y, weight=pairs.weights)
    return diagram_from(table, edges=chosen.edges(pairs.p, weight=pairs.weights).tolist())


def diagram_from(table: BinTable, *, edges: Sequence[float]) -> Diagram:
    """Return the reliability diagram of a bin table, without access to its rows.

    Args:
        table: Counts and sums of B bins that contain all rows.
        edges: The B + 1 edges of the bins, or the edges of the non-empty bins.

    Examples:
        >>> import torch
        >>> from calibrant.binning import EqualWidth
        >>> table = EqualWidth(2).table(torch.tensor([0.9, 0.8]), torch.tensor([1.0, 0.0]))
        >>> round(diagram_from(table, edges=[0.0, 0.5, 1.0]).confidence, 4)
        0.85
    """
    # binomial with the mean confidence, which is slightly wider than a sum of unequal Bernoullis and thus conservative
    low, high = (ends.tolist() for ends in consistency_bars(table, level=LEVEL))
    count, sum_p, sum_y = table.count.tolist(), table.sum_p.tolist(), table.sum_y.tolist()
    rows = table.total if not table.weighted else table.total**2 / float(table.squares[0].sum())
    filled = [b for b, n in enumerate(count) if n]
    # equal-mass bins that are empty because of ties have no edges
    places = range(len(filled)) if len(edges) == len(filled) + 1 else filled
    bins = [
        Bin(
            low=edges[place],
            high=edges[place + 1],
            count=max(round(count[b] * rows / table.total), 1),
            confidence=sum_p[b] / count[b],
            accuracy=sum_y[b] / count[b],
            expect_low=low[b],
            expect_high=high[b],
        )
        for place, b in zip(places, filled, strict=True)
    ]
    return Diagram(bins, sum(sum_p) / table.total, sum(sum_y) / table.total, table.error(), round(rows))


CELLS = 1000  # largest number of values at which the band is simulated; more would move it by less than a line's width


@dataclass(frozen=True)
class IsotonicDiagram:
    """An isotonic reliability diagram as numbers.

    Args:
        p: Probabilities at the knots of the curve, increasing.
        recalibrated: The event's frequency at each knot, by isotonic regression.
        band_p: Probabilities at which the band is given.
        band_low: The curve of a calibrated model is below this in 2.5 % of samples.
        band_high: The curve of a calibrated model is above this in 2.5 % of samples.
        miscalibration: Mean Brier score minus that of the recalibrated probabilities, ≥ 0.
        discrimination: Brier score of the base rate minus that of the recalibrated probabilities, ≥ 0.
        uncertainty: Brier score of the base rate.
        n: Number of rows; with weights, the effective sample size.
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


def isotonic_diagram(data: Data, *, draws: int = 200, seed: int = 0) -> IsotonicDiagram:
    """Return the isotonic diagram of an event's probability, with its consistency band.

    Isotonic regression determines the bins. The band is simulated: labels are drawn from the predicted probabilities,
    and the regression is repeated on each draw. With more than 1,000 distinct probabilities, the band (but not the
    curve) uses 1,000 cells of equal mass. For weighted rows, the number of simulated rows is the effective sample size.

    Args:
        data: Two-class predictions (for the probability of class 1), pairs, or other predictions (for the confidence).
        draws: Number of simulated label sets for the band, ≥ 1.
        seed: Seed of the simulation; the same seed gives the same band.

    Raises:
        InputError: If there are no rows or no labels.

    Examples:
        >>> from calibrant import Pairs
        >>> diagram = isotonic_diagram(Pairs.from_probs([0.1, 0.4, 0.8, 0.9], [0, 1, 0, 1]))
        >>> diagram.recalibrated
        [0.0, 0.5, 0.5, 1.0]

    References:
        Dimitriadis, Gneiting & Jordan 2021, Stable reliability diagrams for probabilistic classifiers, PNAS.
    """
    pairs = event_pairs(labelled_rows(data))
    p, y, weight = pair_columns(pairs)
    weight = weight * (pairs.effective_count / weight.sum())
    values, code = np.unique(p, return_inverse=True)
    count, events = np.bincount(code, weight), np.bincount(code, weight * y)
    fitted, rows = isotonic(events / count, count), float(count.sum())
    base = float(events.sum()) / rows
    # Σ (m − y)² / N for y in {0, 1} is Σ (n m² − 2 m Σy + Σy) / N
    before, after = (float((count * m**2 - 2 * m * events + events).sum()) / rows for m in (values, fitted))
    # cells of equal mass: each value belongs to the cell that contains the middle of its rows
    cell = np.unique(((count.cumsum() - count / 2) * (CELLS / rows)).astype(np.int64), return_inverse=True)[1]
    sizes = np.bincount(cell, count)
    band_p = np.clip(np.bincount(cell, count * values) / sizes, 0.0, 1.0)
    whole = np.maximum(np.rint(sizes), 1).astype(np.int64)
    drawn = np.random.default_rng(seed).binomial(whole, band_p, size=(draws, len(whole)))
    curves = np.stack([isotonic(happened / whole, sizes) for happened in drawn])
    low, high = np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    # the curve is determined by the first and the last value of every level
    change = np.flatnonzero(np.diff(fitted))
    knots = np.unique(np.concatenate([[0], change, change + 1, [len(fitted) - 1]]))
    return IsotonicDiagram(
        p=values[knots].tolist(),
        recalibrated=fitted[knots].tolist(),
        band_p=band_p.tolist(),
        band_low=low.tolist(),
        band_high=high.tolist(),
        miscalibration=max(before - after, 0.0),
        discrimination=max(base * (1 - base) - after, 0.0),
        uncertainty=base * (1 - base),
        n=round(rows),
    )


def pair_columns(pairs: Pairs) -> tuple[Floats, Floats, Floats]:
    """Return the probability, outcome and weight (1 if unweighted) of each row as float64 arrays (N,).

    Args:
        pairs: Pairs on any device.
    """
    p, y, weight = (one.detach().cpu().double().numpy() for one in (pairs.p, pairs.y, pairs.row_weights))
    return p, y, weight


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the non-decreasing fit in [0, 1] to the frequencies ``values`` (M,) of ``weights`` (M,) rows each."""
    from scipy.optimize import isotonic_regression

    fitted: Floats = np.clip(isotonic_regression(values, weights=weights).x, 0.0, 1.0)
    return fitted
