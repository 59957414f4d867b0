"""The numbers of a reliability diagram: its non-empty bins, each with its consistency bar (expected if calibrated)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from calibrant._core.constraints import checked
from calibrant.binning import AnyBinning, BinTable, EqualMass
from calibrant.data.predictions import BinaryPairs, Events, Predictions
from calibrant.plot.arguments import Rows
from calibrant.statistics import consistency_bars

__all__ = ["Bin", "Data", "Diagram", "diagram_from", "diagram_of", "event_pairs", "is_event"]

from calibrant.data.checks import Data

BINS = 15
LEVEL = 0.95


@dataclass(frozen=True)
class Bin:
    """One bin of confidence.

    Args:
        low: Its lower edge.
        high: Its upper edge.
        count: Number of rows in it; with sampling weights its part of the effective sample size.
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
        >>> from calibrant import BinaryPairs
        >>> is_event(BinaryPairs.from_probs([0.2], [0]))
        True
    """
    return data.classes == 2 if isinstance(data, Predictions) else isinstance(data, Events)


@checked
def event_pairs(data: Rows) -> BinaryPairs:
    """Return the pairs that a diagram shows: probability of class 1 for two classes, else of the top label.

    Args:
        data: Labelled predictions or pairs.

    Raises:
        InputError: If there are no rows.
    """
    return data.one_vs_rest(1) if isinstance(data, Predictions) and data.classes == 2 else data.top_label()


@checked
def diagram_of(data: Rows, *, binning: AnyBinning | None = None) -> Diagram:
    """Return the reliability diagram of the top label.

    Args:
        data: Labelled predictions or pairs, at least one row.
        binning: The bins; None is ``EqualMass(15)``.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> diagram = diagram_of(BinaryPairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4))
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


def to_cpu(pairs: BinaryPairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and y as float64 on the CPU.

    Args:
        pairs: Pairs on any device.
    """
    return pairs.p.detach().cpu().double(), pairs.y.detach().cpu().double()
