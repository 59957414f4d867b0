"""The report on rows in groups, such as the tokens of sequences: how much they say, whole groups, and where in them they are off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import BinaryPairs
from calibrant.plot.diagrams import event_pairs, is_event
from calibrant.report.advice import signed, too_high_or_low
from calibrant.report.model import Model, Table, table_of_states
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.interval import wilson
from calibrant.statistics.means import Clusters, Interval, mean_error, mean_interval, mean_of

FIFTHS = ("first fifth", "second fifth", "middle fifth", "fourth fifth", "last fifth")
UNITS = {"token": "sequence", "pixel": "image"}  # what rows are → what their groups are then called
_LEVEL = 1 - 0.05 / len(FIFTHS)  # Bonferroni: the intervals of all fifths hold together at 95 %


@dataclass(frozen=True)
class ClusterFigures:
    """The figures of rows in groups before calibration, or after it.

    Args:
        rows: Their number.
        groups: Number of groups.
        gap: Mean probability − frequency, with the interval of whole groups; both ends NaN where there are too few of them.
        worth: Independent rows whose mean would vary as much; None where there are too few groups.
        right: Number of groups that are right in every row; None for an event and for weighted rows.
        product: The number that the product of confidences expects; None likewise.
        fifths: The gap in each fifth of the groups, with the interval of all fifths at once; none where rows are weighted, or
            groups few or short.
        apart: Whether each fifth is off by significantly more, or less, than the others of its group.
    """

    rows: int
    groups: int
    gap: Interval
    worth: float | None
    right: int | None
    product: float | None
    fifths: Sequence[Interval] = ()
    apart: Sequence[bool] = ()


def clusters_of(model: Model) -> "ClusterSection | None":
    """Return the rows of a model in their groups, before calibration and after it; None if they have no groups."""
    before = model.before.counted
    if before.groups is None:
        return None
    order, event = (before.features or {}).get("position"), is_event(before)
    order = order if isinstance(order, Tensor) else None
    states = [one.counted for one in (model.before, model.after) if one is not None]
    return ClusterSection(
        model.unit or "token" * (order is not None),
        order is not None,
        "probability − frequency" if event else "confidence − accuracy",
        [_cluster_figures(event_pairs(one), before.groups, order=order, decision=not event) for one in states],
    )


def _cluster_figures(pairs: BinaryPairs, groups: Tensor, *, order: Tensor | None, decision: bool) -> ClusterFigures:
    p, y, groups = pairs.p.cpu().double(), pairs.y.cpu().double(), groups.cpu()
    residual, weight, right, product = p - y, None if pairs.weights is None else pairs.weights.cpu(), None, None
    _, code, size = torch.unique(groups, return_inverse=True, return_counts=True)
    if decision and weight is None:
        logs, wrong = (torch.zeros(len(size), dtype=p.dtype).index_add_(0, code, one) for one in (p.log(), 1 - y))
        right, product = int((wrong == 0).sum()), float(logs.exp().sum())
    if Clusters.of(size).effective < FEWEST - 1e-6:  # as for every interval of groups
        gap = Interval(mean_of(residual, weight), math.nan, math.nan, 0.95, "none")
        return ClusterFigures(pairs.count, len(size), gap, None, right, product)
    gap = mean_interval(residual, groups=groups, weight=weight)
    alone, together = (mean_error(residual, groups=one, weight=weight) for one in (None, groups))
    # rows of one group that offset each other would be worth more than as many independent ones: not promised
    worth = pairs.count * min(1.0, (alone / together) ** 2 if together else 1.0)
    own = weight is None and int(size.min()) >= len(FIFTHS)
    fifths = _fifths(residual, code, size, torch.arange(len(p)) if order is None else order.cpu()) if own else ((), ())
    return ClusterFigures(pairs.count, len(size), gap, worth, right, product, *fifths)


def _fifths(residual: Tensor, code: Tensor, size: Tensor, order: Tensor) -> tuple[list[Interval], list[bool]]:
    """Return the gap in each fifth of the groups, and whether it differs from that in the others."""
    ranked = torch.from_numpy(np.lexsort((order.numpy(), code.numpy())))
    part = torch.empty_like(ranked)
    part[ranked] = len(FIFTHS) * (torch.arange(len(code)) - (size.cumsum(0) - size)[code[ranked]]) // size[code[ranked]]
    # (G, 5) rows and Σ (p − y): of each group, its mean in one fifth less that in the others
    place, ones = code * len(FIFTHS) + part, torch.ones_like(residual)
    rows, sums = (torch.bincount(place, weights=one).view(len(size), -1) for one in (ones, residual))
    contrasts = sums / rows - (sums.sum(1, keepdim=True) - sums) / (size[:, None] - rows)
    found = [mean_interval(residual[part == k], groups=code[part == k], level=_LEVEL) for k in range(len(FIFTHS))]
    apart = [mean_interval(one, level=_LEVEL) for one in contrasts.T]
    return found, [not one.low <= 0 <= one.high for one in apart]


@dataclass(frozen=True, eq=False)
class ClusterSection:
    """Rows in groups before calibration, and after it if there is a calibrator.

    Args:
        unit: What a row is, such as "token"; "" is a row.
        positions: Whether a column says where in its group a row stands.
        of: What gaps are of: "confidence − accuracy", or "probability − frequency" of an event.
        states: The figures, one or two.
    """

    unit: str
    positions: bool
    of: str
    states: Sequence[ClusterFigures]

    @property
    def rows(self) -> str:
        """What rows are called."""
        return f"{self.unit or 'row'}s"

    @property
    def group(self) -> str:
        """What a group is called."""
        return UNITS.get(self.unit, "group")

    @property
    def facts(self) -> list[str]:
        """What rows and groups are and how much they say, whole groups, and where they are off, as sentences."""
        first, rows, group = self.states[0], self.rows, self.group
        which = "" if self.unit in UNITS else " (a text's tokens, an image's pixels, a user's rows)"
        worth = (
            "" if first.worth is None else f", and together they tell as much as {first.worth:,.0f} independent {rows}"
        )
        found = [f"The {first.rows:,} {rows} lie in {first.groups:,} {group}s{which}: intervals count those{worth}."]
        if first.product is not None and (first.right or first.product >= 0.5):
            seen, said = (f"{100 * (one or 0) / first.groups:.1f} %" for one in (first.right, first.product))
            found.append(
                f"{seen} of the {group}s are right in all their {rows}; the product of confidences says {said}."
            )
        off = [(abs(fifth.estimate - first.gap.estimate), k) for k, fifth in enumerate(first.fifths) if first.apart[k]]
        for _, k in sorted(off)[-1:]:
            here, on_all = (too_high_or_low(one.estimate) for one in (first.fifths[k], first.gap))
            what = self.of.partition(" ")[0]
            found.append(
                f"In the {FIFTHS[k]} of each {group} {what} is {here} (on all {rows} {on_all}), significantly different from the "
                "other fifths."
            )
        return found

    @property
    def statistics(self) -> Table:
        """Every figure, before and after, with what it is if calibrated and what to do."""
        last, rows, group = self.states[-1], self.rows, self.group
        within = last.gap.low <= 0 <= last.gap.high
        todo = (
            "Nothing: the average is right, as far as these can tell."
            if within
            else f"If that is too much, calibrate on other {group}s."
        )
        lines = [(f"mean {self.of}, in points", [_gap_and_interval(one.gap) for one in self.states], "0", todo)]
        for k, apart in enumerate(last.apart):
            todo = _APART if apart else "Nothing: no different from the other fifths."
            lines.append((f"in the {FIFTHS[k]}", [_gap_and_interval(one.fifths[k]) for one in self.states], "0", todo))
        if last.worth is not None:
            worth = [(f"{one.worth or 0:,.0f} of {one.rows:,}", "") for one in self.states]
            todo = f"To know more label further {group}s rather than more {rows} of these."
            todo = todo if last.worth < 0.8 * last.rows else f"Nothing: {rows} of one {group} err almost independently."
            lines.append((f"independent {rows} that tell as much", worth, "", todo))
        if last.right is not None and last.product is not None and (last.right or last.product >= 0.5):
            found, product = wilson(last.right, last.groups), last.product / last.groups
            right = [(f"{one.right:,} of {one.groups:,}", "") for one in self.states]
            right[-1] = right[-1][0], f"{100 * found.low:.1f} to {100 * found.high:.1f} %"
            todo = f"Do not multiply confidences: calibrate a score of the whole {group}."
            if found.low <= product <= found.high:
                todo = "Nothing: the product of confidences holds, as far as these can tell."
            lines.append((f"right in all their {rows}", right, f"{100 * product:.1f} %", todo))
        order = "by the column position" if self.positions else "in the order in which they stand"
        note = f"Intervals take whole {group}s as their units."
        if last.fifths:
            note += f" Fifths: the {rows} of each {group}, {order}; their intervals hold for all five at once."
        if last.worth is None:
            note += f" Intervals need ten {group}s of equal size."
        title = f"{group.capitalize()}s and their {rows}"
        return table_of_states(title, f"of {group}s", lines, states=len(self.states), note=note)


_APART = "Calibrate with the position as a feature (AdaptiveTemperatureScaling, FeatureScaling)."


def _gap_and_interval(gap: Interval) -> tuple[str, str]:
    value, low, high = (signed(100 * x) for x in (gap.estimate, gap.low, gap.high))
    return value, "" if math.isnan(gap.low) else f"{low} to {high}"
