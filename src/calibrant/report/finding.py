"""The content of a report on one model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from calibrant._core.config import json_data
from calibrant._core.constraints import Level, checked
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import AutoCalibrator
from calibrant.calibrators.auto import Evidence
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ClasswiseECE
from calibrant.plot.diagrams import (
    Bin,
    Curve,
    Diagram,
    diagram_of,
    event_pairs,
    is_event,
    risk_curve,
)
from calibrant.report.advice import (
    MARGIN,
    Advice,
    Gain,
    Verdict,
    advice_of,
    gains_of,
    row_of,
    side_of_confidence,
    verdict_of,
)
from calibrant.report.events import EventFigures, percents
from calibrant.report.groups_report import Audit, audit_of
from calibrant.report.model import Model, fingerprint
from calibrant.report.tables import Row, measure
from calibrant.report.wording import (
    beside_temperature,
    bin_sentence,
    evaluated,
    summary,
    weight_remarks,
)

BINS = 15
_BINNING = EqualWidth(BINS)
CLASSES = ClasswiseECE(_BINNING)


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


@dataclass(frozen=True, eq=False)
class Finding:
    """What a report finds of one model, as numbers and words.

    Args:
        model: The model.
        states: Its figures before calibration, and after it if there is a calibrator.
        verdicts: The verdict on each state.
        gains: The calibrator's gains in log-loss.
        margin: ECE above which an error is large.
        classes: Every class, the largest error first.
        groups: Every group of rows, the largest error first.
        words: The facts as sentences.
        fingerprint: Hash of the data, 16 hexadecimal digits.
        remarks: What is left out and why.
        audit: The calibration of groups of rows by their features, or None.
    """

    model: Model
    states: Sequence["State"]
    verdicts: list[Verdict]
    gains: list[Gain]
    margin: float
    classes: list[Part]
    groups: list[Part]
    words: list[str]
    fingerprint: str
    remarks: Sequence[str] = ()
    audit: Audit | None = None

    @property
    def calibrated(self) -> bool:
        """Whether there are figures after calibration."""
        return len(self.states) > 1

    @property
    def events(self) -> list[EventFigures]:
        """The event's probability in each state; empty where there is no event."""
        return [state.event for state in self.states if state.event is not None]

    @cached_property
    def advice(self) -> Advice:
        """The recommendation."""
        if self.events and self.events[-1].lacking:
            return Advice(f"Check the labels: there are no {self.events[-1].lacking}.", [], [])
        event = bool(self.events)
        average = advice_of(self.model, self.verdicts, self.gains, margin=self.margin, event=event)
        return average if self.audit is None else self.audit.advice(average, self.model, event=event)

    @property
    def screen(self) -> Verdict:
        """The verdict that the first screen opens with: that on all rows, or on the clearest group."""
        return self.verdicts[0] if self.audit is None else self.audit.verdict(self.verdicts[0])

    @property
    def ece(self) -> list[Row]:
        """The row of the ECE of each state; of the event's probability where there is an event."""
        return [event.ece for event in self.events] or [row_of(state.rows, ECE()) for state in self.states]

    @property
    def source(self) -> str:
        """The file's own name, without the folders that lead to it."""
        return PurePath(self.model.source).name or self.model.source

    @property
    def evidence(self) -> Evidence | None:
        """The candidates of an automatic choice and their cross-validated log-loss, or None."""
        return self.model.calibrator.evidence if isinstance(self.model.calibrator, AutoCalibrator) else None

    @property
    def plain(self) -> dict[str, Any]:
        """The finding as JSON data."""
        verdicts, diagrams = [*self.verdicts, None], [*(state.diagram for state in self.states), None]
        return {
            "name": self.model.name,
            "source": self.source,
            "calibrator": self.model.calibrated_with,
            "fingerprint": self.fingerprint,
            "evidence": json_data(self.evidence),
            "verdict_before": json_data(verdicts[0]),
            "verdict_after": json_data(verdicts[1]),
            "margin": self.margin,
            "advice": json_data(self.advice),
            "gains": json_data(self.gains),
            "words": self.words,
            "worst_bins": [bin_sentence(found) for found in worst_bins(self.states[-1].diagram)],
            "remarks": list(self.remarks),
            "diagram_before": json_data(diagrams[0]),
            "diagram_after": json_data(diagrams[1]),
            "classes": json_data(self.classes),
            "groups": json_data(self.groups),
            "event": [event.plain for event in self.events] or None,
            "for_whom": json_data(self.audit),
        }


@dataclass(frozen=True, eq=False)
class Binned:
    """The bins of one class's probability, or of the top label in one group.

    Args:
        table: In 15 bins of equal width.
        n: Rows with this label, or in this group.
    """

    table: BinTable
    n: int


@dataclass(frozen=True, eq=False)
class State:
    """The numbers of a finding before calibration, or after it.

    Args:
        rows: Every metric.
        diagram: In bins of equal mass.
        histogram: In bins of equal width.
        curve: Risk by coverage.
        classes: The bins of each class; none for top-label pairs.
        groups: The bins of each group of rows.
        cells: As ``percents`` returns them.
        event: The figures of the event's probability, or None where there is no event.
    """

    rows: list[Row]
    diagram: Diagram
    histogram: Diagram
    curve: Curve
    classes: Mapping[int, Binned]
    groups: Mapping[int, Binned]
    cells: list[list[float]]
    event: EventFigures | None = None


def _worst_parts_first(states: Sequence[Mapping[int, Binned]], name: Callable[[int], str]) -> list[Part]:
    """Return every class or group, the largest error (after calibration, else before) first."""
    before, after = states[0], states[1] if len(states) > 1 else {}
    parts = []
    for key, one in before.items():
        expected, observed = (float(sums.sum()) / one.table.total for sums in (one.table.sum_p, one.table.sum_y))
        error_after = after[key].table.error() if key in after else None
        parts.append(Part(name(key), one.n, expected, observed, one.table.error(), error_after, key))
    return sorted(parts, key=lambda part: -(part.error_before if part.error_after is None else part.error_after))


def equal_edges() -> list[float]:
    """Return the edges of the bins of equal width."""
    return [float(edge) for edge in _BINNING.edges(torch.zeros(1)).tolist()]


@checked
def diagnose(model: Model, *, draws: int = 1000, margin: Level = MARGIN) -> Finding:
    """Return what a report finds of one model.

    Args:
        model: The model.
        draws: As in ``write_report``.
        margin: As in ``write_report``.
    """
    file = PurePath(model.source).name or model.name
    states = []
    for data, calibrator in ((model.before, None), (model.after, model.calibrated_with)):
        if data is not None:
            rows = measure(data, file=file, split=model.split, draws=draws, calibrator=calibrator)
            states.append(_state_of(data, rows, of=model.before, draws=draws))
    verdicts = []
    for state in states:
        if state.event is None:
            ece, hint = row_of(state.rows, ECE()), False
            side = side_of_confidence(state.diagram, ece.value)
        else:
            ece, hint = state.event.ece, bool(state.event.off)
            side = f"Probabilities of {model.class_name(1)} are {state.event.side}"
        verdicts.append(verdict_of(ece, side, margin=margin, hint=hint))
    if verdicts[0].state != "not tested":
        detail = f"{verdicts[0].detail} The margin is the largest error that you accept (option margin)."
        verdicts[0] = replace(verdicts[0], detail=detail)
    event, groups, audit = states[0].event, _worst_parts_first([state.groups for state in states], str), audit_of(model)
    if event is None:
        facts = summary(model, [state.rows for state in states], states[0].diagram)
    else:
        facts = [event.fact(model.class_name(1), evaluated(model, f"{event.ece.n:,} rows"))]
    if groups:
        facts.append(f"The rows lie in {len(groups):,} groups (sequences, images, users …): intervals count those.")
    if audit is not None and audit.finding:
        facts.append(f"For whom: {audit.finding}")
    return Finding(
        model=model,
        states=states,
        verdicts=verdicts,
        gains=gains_of(model, draws=draws),
        margin=margin,
        classes=_worst_parts_first([state.classes for state in states], model.class_name),
        groups=groups,
        words=facts,
        fingerprint=fingerprint(model.before),
        remarks=weight_remarks(model.before) + beside_temperature(model),
        audit=audit,
    )


def _state_of(data: Data, rows: list[Row], *, of: Data, draws: int) -> State:
    """Return the figures of rows, with the groups that the rows had before calibration."""
    counted, event = data.counted, None
    if is_event(counted):
        pairs = event_pairs(counted)
        of_row = {"file": rows[0].file, "split": rows[0].split}
        (ece,) = measure(pairs, **of_row, calibrator=rows[0].calibrator, metrics=[ECE(_BINNING)], draws=draws)
        event = EventFigures(pairs, ece, counted.groups is None and counted.weights is None)
    return State(
        rows,
        diagram_of(data),
        diagram_of(data, binning=_BINNING),
        risk_curve(data),
        _bins_of_classes(counted),
        _bins_of_groups(counted, of.counted.groups),
        percents(counted),
        event,
    )


def _bins_of_groups(data: Data, groups: Tensor | None) -> dict[int, Binned]:
    """Return the bins of the top label in each group of rows."""
    if groups is None:
        return {}
    p, y, groups = data.confidence.cpu(), data.correct.cpu(), groups.cpu()
    weight = None if data.weights is None else data.weights.cpu()
    keys, code = torch.unique(groups, return_inverse=True)
    index = BINS * code + _BINNING.assign(p)
    flat = BinTable.from_pairs(index, p, y, bins=BINS * len(keys), weight=weight)
    rows = torch.bincount(code)
    tables = [replace(table, total=float(table.count.sum())) for table in flat.parts(len(keys))]
    return {key: Binned(table, int(n)) for key, table, n in zip(keys.tolist(), tables, rows.tolist(), strict=True)}


def _bins_of_classes(data: Data) -> dict[int, Binned]:
    """Return the bins of each class's probability; none of pairs."""
    if not isinstance(data, Predictions):
        return {}
    rows = torch.bincount(data.need_labels(), minlength=data.classes).tolist()
    tables = zip(CLASSES.state(data).parts(data.classes), rows, strict=True)
    return {k: Binned(table, n) for k, (table, n) in enumerate(tables)}


def worst_bins(diagram: Diagram) -> list[Bin]:
    """Return the three bins outside their consistency bars that contribute most to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:3]
