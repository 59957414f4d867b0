"""The content of a report on one model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import torch
from torch import Tensor

from calibrant._core.constraints import Level, checked
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto.auto import Evidence
from calibrant.data.checks import Data
from calibrant.data.leakage import rows_in_sketch
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ClasswiseECE
from calibrant.plot.diagrams import (
    Bin,
    Curve,
    Diagram,
    diagram_from,
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
from calibrant.report.events import EventFigures, EventSection, percents
from calibrant.report.groups_report import Audit, audit_of
from calibrant.report.model import Model, Table, fingerprint, table_of_states
from calibrant.report.tables import Row, measure
from calibrant.report.wording import (
    HOW_TO_READ,
    HOW_TO_READ_AN_EVENT,
    TO_DO,
    WITHIN_CHANCE,
    beside_temperature,
    bin_sentence,
    evaluated,
    summary,
    weight_remarks,
)

BINS = 15
MOST_ROWS = 20  # most rows of a table of classes or groups; its caption states the total
PANELS = 6
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


@dataclass(frozen=True)
class Section:
    """The content of a report on one model.

    Args:
        model: The model.
        states: Its figures before calibration, and after it if there is a calibrator.
        verdicts: The verdict on each state.
        gains: The calibrator's gains in log-loss.
        margin: ECE above which an error is large.
        classes: Every class, the largest error first.
        groups: Every group of rows, the largest error first.
        panels: Small diagrams of classes, each with its name.
        words: The findings as sentences.
        fingerprint: Hash of the data, 16 hexadecimal digits.
        remarks: What is left out and why.
        audit: The calibration of groups of rows by their features, or None.
        event: The probability of the event, for two classes and for pairs of a probability and an outcome; else None.
    """

    model: Model
    states: Sequence["Figures"]
    verdicts: list[Verdict]
    gains: list[Gain]
    margin: float
    classes: list[Part]
    groups: list[Part]
    panels: list[tuple[str, Diagram]]
    words: list[str]
    fingerprint: str
    remarks: Sequence[str] = ()
    audit: Audit | None = None
    event: EventSection | None = None

    @property
    def calibrated(self) -> bool:
        """Whether there are figures after calibration."""
        return len(self.states) > 1

    @property
    def advice(self) -> Advice:
        """The recommendation."""
        event = self.event is not None
        if self.event is not None and self.event.last.lacking:
            return Advice(f"Check the labels: there are no {self.event.last.lacking}.", [], [])
        average = advice_of(self.model, self.verdicts, self.gains, margin=self.margin, event=event)
        return average if self.audit is None else self.audit.advice(average, self.model, event=event)

    @property
    def screen(self) -> Verdict:
        """The verdict that the first screen opens with: that on all rows, or on the clearest group."""
        return self.verdicts[0] if self.audit is None else self.audit.verdict(self.verdicts[0])

    @property
    def ece(self) -> list[Row]:
        """The row of the ECE of each state; of the event's probability where there is an event."""
        if self.event is not None:
            return [state.ece for state in self.event.states]
        return [row_of(state.rows, ECE()) for state in self.states]

    @property
    def statistics(self) -> Table:
        """Every informative figure, before and after, with what it is if calibrated and what to do."""
        rows = []
        for states in zip(*(state.rows for state in self.states), strict=True):
            if states[0].says_nothing:
                continue
            last = states[-1]
            # what a calibrated model shows by chance asks for nothing
            within = last.null_high is not None and last.value <= last.null_high
            todo = WITHIN_CHANCE if within else TO_DO.get(last.label.split("(")[0], "")
            rows.append((last.label, [row.value_and_interval for row in states], last.limits, todo))
        title = f"All figures, before and after {self.model.calibrated_in_short}" if self.calibrated else "All figures"
        return table_of_states(title, "metric", rows, states=len(self.states))

    @property
    def cells(self) -> dict[str, list[list[float]]]:
        """Of each whole percent of probability: rows, Σp and Σy, before and after calibration, for the page's sliders."""
        return {name: state.cells for name, state in zip(("before", "after"), self.states, strict=False)}

    @property
    def how_to_read(self) -> Sequence[str]:
        """How to read the pictures of the first screen."""
        return HOW_TO_READ if self.event is None else HOW_TO_READ_AN_EVENT

    @property
    def left_out(self) -> list[str]:
        """A sentence for each uninformative row, with the reason why it is left out."""
        return [
            f"{row.label} is left out: its 97.5 % limit if calibrated is {row.shown(row.null_high)} with so few rows."
            for row in self.states[0].rows
            if row.says_nothing
        ]

    @property
    def source(self) -> str:
        """The file's own name, without the folders that lead to it."""
        return PurePath(self.model.source).name or self.model.source

    @property
    def worst(self) -> list[str]:
        """The worst bins of the last diagram, one sentence each."""
        return [bin_sentence(found) for found in worst_bins(self.states[-1].diagram)]

    @property
    def calibrator_class(self) -> str | None:
        """The first paragraph of the calibrator's docstring, or None."""
        calibrator = self.model.calibrator
        if not isinstance(calibrator, Calibrator):
            return None
        return " ".join((type(calibrator).__doc__ or "").split("\n\n")[0].split()).replace("``", "")

    @property
    def reasons(self) -> list[str]:
        """Why the calibrator was chosen, and on how many rows it was fitted."""
        calibrator = self.model.calibrator
        if not isinstance(calibrator, Calibrator):
            return []
        chosen = [] if self.evidence is None else [self.evidence.verdict[:1].upper() + self.evidence.verdict[1:] + "."]
        fitted = rows_in_sketch(calibrator.fit_rows)
        rows = f"{fitted:,} rows" if fitted else "rows that its file does not record"
        return [*chosen, f"It was fitted on {rows}; none of them may be among the rows evaluated here."]

    @property
    def evidence(self) -> Evidence | None:
        """The candidates of an automatic choice and their cross-validated log-loss, or None."""
        return self.model.calibrator.evidence if isinstance(self.model.calibrator, AutoCalibrator) else None


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
class Figures:
    """The numbers of a section before calibration, or after it.

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
def diagnose(model: Model, *, draws: int = 1000, margin: Level = MARGIN) -> Section:
    """Return the content of a report on one model.

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
            states.append(_figures_of(data, rows, of=model.before, draws=draws))
    last, audit = states[-1], audit_of(model)
    classes = _worst_parts_first([state.classes for state in states], model.class_name)
    groups = _worst_parts_first([state.groups for state in states], str)
    events = [state.event for state in states if state.event is not None]
    if len(events) == len(states):
        event = EventSection(model.class_name(1), events, margin)
        verdicts = [verdict_of(one.ece, event.side_of(one), margin=margin, hint=bool(one.off)) for one in events]
        facts = [event.fact(evaluated(model, f"{event.states[0].ece.n:,} rows"))]
    else:
        event = None
        named = [(row_of(state.rows, ECE()), state.diagram) for state in states]
        verdicts = [verdict_of(ece, side_of_confidence(diagram, ece.value), margin=margin) for ece, diagram in named]
        facts = summary(model, [state.rows for state in states], states[0].diagram)
    if verdicts[0].state != "not tested":
        detail = f"{verdicts[0].detail} The margin is the largest error that you accept (option margin)."
        verdicts[0] = replace(verdicts[0], detail=detail)
    if groups:
        facts.append(f"The rows lie in {len(groups):,} groups (sequences, images, users …): intervals count those.")
    if audit is not None and audit.finding:
        facts.append(f"For whom: {audit.finding}")
    return Section(
        model=model,
        states=states,
        verdicts=verdicts,
        gains=gains_of(model, draws=draws),
        margin=margin,
        classes=classes,
        groups=groups,
        # of the state that would be used: after calibration, if there is one
        panels=[
            (part.name, diagram_from(last.classes[part.key].table, edges=equal_edges()))
            for part in classes[:PANELS]
            if part.key in last.classes
        ],
        words=facts,
        fingerprint=fingerprint(model.before),
        remarks=weight_remarks(model.before) + beside_temperature(model),
        audit=audit,
        event=event,
    )


def _figures_of(data: Data, rows: list[Row], *, of: Data, draws: int) -> Figures:
    """Return the figures of rows, with the groups that the rows had before calibration."""
    counted, event = data.counted, None
    if is_event(counted):
        pairs = event_pairs(counted)
        of_row = {"file": rows[0].file, "split": rows[0].split}
        (ece,) = measure(pairs, **of_row, calibrator=rows[0].calibrator, metrics=[ECE(_BINNING)], draws=draws)
        event = EventFigures(pairs, ece, counted.groups is None and counted.weights is None)
    return Figures(
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
    tables = [replace(table, total=float(table.count.sum())) for table in _parts_of(flat, len(keys))]
    return {key: Binned(table, int(n)) for key, table, n in zip(keys.tolist(), tables, rows.tolist(), strict=True)}


def _bins_of_classes(data: Data) -> dict[int, Binned]:
    """Return the bins of each class's probability; none of pairs."""
    if not isinstance(data, Predictions):
        return {}
    flat = CLASSES.state(data).table
    assert flat is not None  # bins of equal mass alone have no such table
    rows = torch.bincount(data.need_labels(), minlength=data.classes).tolist()
    tables = zip(_parts_of(flat, data.classes), rows, strict=True)
    return {k: Binned(table, n) for k, (table, n) in enumerate(tables)}


def _parts_of(flat: BinTable, parts: int) -> list[BinTable]:
    """Return the tables that were laid one after the other, each with the rows of the whole as its total."""
    columns = (part.view(parts, BINS) for part in (flat.count, flat.sum_p, flat.sum_y))
    # Σ w², by which noise is told from error
    squares = [None] * parts if flat.squares is None else flat.squares.view(parts, BINS)
    return [BinTable(count, p, y, flat.total, of) for count, p, y, of in zip(*columns, squares, strict=True)]


def worst_bins(diagram: Diagram) -> list[Bin]:
    """Return the three bins outside their consistency bars that contribute most to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:3]
