"""Where a model's confidence is right and where it is not: the numbers that figures and words are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.binning import BinTable, EqualWidth
from calibrant.metrics import ECE, Accuracy
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.report.model import Data, Model

BINS = 15
LEVEL = 0.95
MOST_ROWS = 20  # of a table of classes or groups; the rest is counted
PANELS = 6
_CURVE_POINTS = 200


@dataclass(frozen=True)
class Bin:
    """One bin of confidence.

    Args:
        low: Its lower edge.
        high: Its upper edge.
        count: Rows in it.
        confidence: Their mean confidence.
        accuracy: The share of them that is right.
        expect_low: Below this a calibrated model's share lies in 2.5 % of samples.
        expect_high: Above this likewise.
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
        """Whether the share that is right lies outside what calibration lets expect."""
        return not self.expect_low <= self.accuracy <= self.expect_high

    @property
    def gap(self) -> float:
        """Confidence minus accuracy: positive is over-confident."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram as numbers: its filled bins, mean confidence, accuracy and ECE."""

    bins: Sequence[Bin]
    confidence: float
    accuracy: float
    ece: float
    n: int


@dataclass(frozen=True)
class Curve:
    """Risk by coverage: the error among the most confident share of the rows."""

    coverage: Sequence[float]
    risk: Sequence[float]


@dataclass(frozen=True)
class Part:
    """One class or group: how often it is predicted and right, before and after.

    Args:
        name: What it is called.
        n: Rows of it.
        expected: What the model says: mean probability of the class, or mean confidence in the group.
        observed: What is true: frequency of the class, or accuracy in the group.
        error_before: Calibration error (ECE of the class's probability, or of the group).
        error_after: The same after calibration, or None.
        key: Class index or group.
    """

    name: str
    n: int
    expected: float
    observed: float
    error_before: float
    error_after: float | None
    key: int = 0


def diagram_of(data: Data, *, bins: int = BINS) -> Diagram:
    """Return the reliability diagram of the top label.

    Args:
        data: Labelled predictions or pairs.
        bins: Equal-width bins.

    Example:
        >>> diagram = diagram_of(BinaryPairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4))
        >>> [(bin.count, bin.off) for bin in diagram.bins]
        [(10, True)]
    """
    pairs = data.top_label()
    binning = EqualWidth(bins)
    return diagram_from(binning.table(pairs.p, pairs.y), edges=binning.edges(pairs.p).tolist())


def diagram_from(table: BinTable, *, edges: Sequence[float]) -> Diagram:
    """Return the reliability diagram of sums, however many rows they were made from.

    Args:
        table: Counts and sums of B bins that hold every row.
        edges: Their B + 1 edges.

    Example:
        >>> table = EqualWidth(2).table(torch.tensor([0.9, 0.8]), torch.tensor([1.0, 0.0]))
        >>> round(diagram_from(table, edges=[0.0, 0.5, 1.0]).confidence, 4)
        0.85
    """
    from scipy.stats import binom

    filled = []
    for b, (count, p, y) in enumerate(
        zip(table.count.tolist(), table.sum_p.tolist(), table.sum_y.tolist(), strict=True)
    ):
        if count:
            # Binomial with the mean confidence: a little wider than the sum of unequal Bernoullis, so never too strict
            low, high = binom.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], count, min(p / count, 1.0)) / count
            filled.append(Bin(edges[b], edges[b + 1], count, p / count, y / count, float(low), float(high)))
    confidence, accuracy = (float(sums.sum()) / table.total for sums in (table.sum_p, table.sum_y))
    return Diagram(filled, confidence, accuracy, table.error(), table.total)


def risk_coverage(data: Data) -> Curve:
    """Return the error among the most confident c · N rows for up to 200 coverages c; equal confidences stay together."""
    pairs = data.top_label()
    confidence, order = torch.sort(pairs.p, descending=True, stable=True)
    wrong = (1 - pairs.y[order]).cumsum(0)
    last_of_tie = torch.ones_like(confidence, dtype=torch.bool)
    last_of_tie[:-1] = confidence[:-1] != confidence[1:]
    ends = torch.nonzero(last_of_tie)[:, 0]
    if len(ends) > _CURVE_POINTS:
        ends = ends[torch.linspace(0, len(ends) - 1, _CURVE_POINTS).round().long()]
    taken = (ends + 1).double()
    return Curve((taken / len(pairs)).tolist(), (wrong[ends] / taken).tolist())


def by_class(model: Model) -> list[Part]:
    """Return every class, the one worst calibrated (after, else before) first; nothing for top-label pairs."""
    before, after = model.before, model.after
    if not isinstance(before, Predictions):
        return []
    binning = EqualWidth(BINS)

    def errors(data: Predictions) -> list[tuple[float, float, float, int]]:
        pairs = (data.one_vs_rest(k) for k in range(data.classes))
        return [(binning.table(p.p, p.y).error(), float(p.p.mean()), float(p.y.mean()), int(p.y.sum())) for p in pairs]

    old = errors(before)
    new = errors(after) if isinstance(after, Predictions) else None
    parts = []
    for k, (error, expected, observed, n) in enumerate(old):
        parts.append(Part(model.class_name(k), n, expected, observed, error, new[k][0] if new else None, k))
    return worst_first(parts)


def by_group(model: Model) -> list[Part]:
    """Return every group of rows, the one worst calibrated first; nothing where there are no groups."""
    groups = model.before.groups
    if groups is None:
        return []
    metric = ECE()
    parts = []
    for group in torch.unique(groups).tolist():
        rows = groups == group
        before, after = model.before.top_label()[rows], _top(model.after, rows)
        error_after = None if after is None else metric(after)
        expected = float(before.p.mean())
        parts.append(Part(str(group), len(before), expected, Accuracy()(before), metric(before), error_after, group))
    return worst_first(parts)


def _top(data: Data | None, rows: Tensor) -> BinaryPairs | None:
    return None if data is None else data.top_label()[rows]


def worst_first(parts: Sequence[Part]) -> list[Part]:
    """Return ``parts`` by their error after calibration, or before if there is none, the largest first."""
    return sorted(parts, key=lambda part: -(part.error_before if part.error_after is None else part.error_after))


def class_panels(model: Model, parts: Sequence[Part]) -> list[tuple[str, Diagram]]:
    """Return the diagrams (probability of a class against its frequency) of the first six ``parts``, after calibration if any."""
    data = model.before if model.after is None else model.after
    if not isinstance(data, Predictions):
        return []
    return [(part.name, diagram_of(data.one_vs_rest(part.key))) for part in parts[:PANELS]]


def group_panels(model: Model, parts: Sequence[Part]) -> list[tuple[str, Diagram]]:
    """Return the reliability diagrams of the first six groups in ``parts``, after calibration if any."""
    data, groups = model.before if model.after is None else model.after, model.before.groups
    if groups is None:
        return []
    pairs = data.top_label()
    return [(part.name, diagram_of(pairs[groups == part.key])) for part in parts[:PANELS]]


def worst_bins(diagram: Diagram, *, most: int = 3) -> list[Bin]:
    """Return the bins outside what calibration lets expect, by the rows they misstate (count × gap), worst first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:most]
