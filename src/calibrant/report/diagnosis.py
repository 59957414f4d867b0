"""Calibration by class, by group and by bin: the numbers behind a report's figures and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from calibrant.binning import BinTable, EqualWidth
from calibrant.data.checks import Data, count_of, need_rows
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.metrics import ECE, Accuracy
from calibrant.plot.diagrams import Bin, Diagram, diagram_of
from calibrant.report.model import Model

BINS = 15
MOST_ROWS = 20  # most rows of a table of classes or groups; its caption states the total
PANELS = 6


@dataclass(frozen=True)
class Part:
    """The calibration of one class or group, before and after calibration.

    Args:
        name: Name of the class or group.
        n: Rows with this label, or in this group.
        expected: Mean probability of the class, or mean confidence in the group.
        observed: Frequency of the class, or accuracy in the group.
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


def by_class(model: Model) -> list[Part]:
    """Return every class, the largest error (after calibration, else before) first; empty for top-label pairs."""
    before, after = model.before, model.after
    if not isinstance(before, Predictions):
        return []
    binning = EqualWidth(BINS)

    def errors(data: Predictions) -> list[tuple[float, float, float, int]]:
        counted = cast("Predictions", need_rows(data, what="a report"))
        pairs = (counted.one_vs_rest(k) for k in range(data.classes))
        return [_of_class(binning.table(p.p, p.y, weight=p.weights), p) for p in pairs]

    old = errors(before)
    new = errors(after) if isinstance(after, Predictions) else None
    parts = []
    for k, (error, expected, observed, n) in enumerate(old):
        parts.append(Part(model.class_name(k), n, expected, observed, error, new[k][0] if new else None, k))
    return worst_first(parts)


def by_group(model: Model) -> list[Part]:
    """Return every group of rows, the largest error first; empty if there are no groups."""
    counted = need_rows(model.before, what="a report")
    groups = counted.groups
    if groups is None:
        return []
    metric = ECE()
    parts = []
    for group in torch.unique(groups).tolist():
        rows = groups == group
        before, after = counted.top_label()[rows], _top(model.after, rows)
        error_after = None if after is None else metric(after)
        table = EqualWidth(1).table(before.p, before.y, weight=before.weights)
        expected = float(table.sum_p.sum()) / table.total
        parts.append(
            Part(str(group), count_of(before), expected, Accuracy()(before), metric(before), error_after, group)
        )
    return worst_first(parts)


def _of_class(table: BinTable, pairs: BinaryPairs) -> tuple[float, float, float, int]:
    """Return the error, the mean probability, the frequency and the rows of a class; rows counted as often as they count."""
    mean, frequency = (float(sums.sum()) / table.total for sums in (table.sum_p, table.sum_y))
    of_class = pairs.y.sum() if pairs.weight_kind != "frequency" else table.sum_y.sum()
    return table.error(), mean, frequency, round(float(of_class))


def _top(data: Data | None, rows: Tensor) -> BinaryPairs | None:
    return None if data is None else need_rows(data, what="a report").top_label()[rows]


def worst_first(parts: Sequence[Part]) -> list[Part]:
    """Return ``parts`` sorted by their error after calibration (before, if there is no calibrator), the largest first."""
    return sorted(parts, key=lambda part: -(part.error_before if part.error_after is None else part.error_after))


def class_panels(model: Model, parts: Sequence[Part]) -> list[tuple[str, Diagram]]:
    """Return the diagrams (probability of a class against its frequency) of the first six ``parts``, after calibration if any."""
    data = model.before if model.after is None else model.after
    if not isinstance(data, Predictions):
        return []
    return [(part.name, diagram_of(data.one_vs_rest(part.key), binning=EqualWidth(BINS))) for part in parts[:PANELS]]


def group_panels(model: Model, parts: Sequence[Part]) -> list[tuple[str, Diagram]]:
    """Return the reliability diagrams of the first six groups in ``parts``, after calibration if any."""
    data = need_rows(model.before if model.after is None else model.after, what="a report")
    groups = need_rows(model.before, what="a report").groups
    if groups is None:
        return []
    pairs = data.top_label()
    return [(part.name, diagram_of(pairs[groups == part.key])) for part in parts[:PANELS]]


def worst_bins(diagram: Diagram, *, most: int = 3) -> list[Bin]:
    """Return the bins outside their consistency bars, by their contribution to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:most]
