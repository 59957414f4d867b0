"""The content of a report on one model: one builder for rows in memory and for sums over rows on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

import torch

from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto.auto import Evidence
from calibrant.data.checks import Data, need_rows
from calibrant.data.leakage import rows_of
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ClasswiseECE
from calibrant.plot.diagrams import Bin, Diagram, diagram_from, diagram_of, event_pairs, is_event
from calibrant.plot.risk import Curve, risk_curve
from calibrant.report.advice import (
    MARGIN,
    Advice,
    Gain,
    Verdict,
    advice_of,
    check_margin,
    find_row,
    gains_of,
    verdict_of,
)
from calibrant.report.events import Cells, EventFigures, EventSection, percents
from calibrant.report.groups_report import Audit, audit_of, group_findings
from calibrant.report.model import Model, Subject, Table, fingerprint
from calibrant.report.tables import Row, measure
from calibrant.report.wording import (
    HOW_TO_READ,
    HOW_TO_READ_AN_EVENT,
    TO_DO,
    WITHIN_CHANCE,
    beside_temperature,
    bin_sentence,
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
        before: Its figures before calibration.
        after: Its figures after calibration; empty without a calibrator.
        diagrams: Reliability diagrams before and after (or None), in bins of equal mass.
        histograms: The same in bins of equal width.
        verdicts: Verdicts before and after (or None).
        gains: The calibrator's gains in log-loss.
        margin: ECE above which an error is large.
        curves: Risk-coverage curves, each with its label.
        classes: Every class, the largest error first.
        groups: Every group of rows, the largest error first.
        panels: Small diagrams by ``"class"`` and ``"group"``, each with its name.
        words: The findings as sentences.
        fingerprint: Hash of the data, 16 hexadecimal digits.
        remarks: What is left out and why.
        audit: The calibration of groups of rows by their features, or None.
        event: The probability of the event, for two classes and for pairs of a probability and an outcome; else None.
        percents: Rows, Σp and Σy by whole percent of the probability, before and after.
    """

    model: Model | Subject
    before: list[Row]
    after: list[Row]
    diagrams: tuple[Diagram, Diagram | None]
    histograms: tuple[Diagram, Diagram | None]
    verdicts: tuple[Verdict, Verdict | None]
    gains: list[Gain]
    margin: float
    curves: list[tuple[str, Curve]]
    classes: list[Part]
    groups: list[Part]
    panels: dict[str, list[tuple[str, Diagram]]]
    words: list[str]
    fingerprint: str
    remarks: Sequence[str] = ()
    audit: Audit | None = None
    event: EventSection | None = None
    percents: Sequence[Sequence[list[float]]] = ()

    @property
    def advice(self) -> Advice:
        """The recommendation."""
        average = advice_of(self.model, *self.verdicts, self.gains, margin=self.margin)
        return average if self.audit is None else self.audit.advice(average, self.model)

    @property
    def screen(self) -> Verdict:
        """The verdict that the first screen opens with: that on all rows, or on the clearest group."""
        return self.verdicts[0] if self.audit is None else self.audit.verdict(self.verdicts[0])

    @property
    def ece(self) -> tuple[Row, Row | None]:
        """The rows of the ECE before and after."""
        if self.event is not None:
            states = self.event.states
            return states[0].ece, states[1].ece if len(states) > 1 else None
        before = find_row(self.before, ECE())
        assert before is not None
        return before, find_row(self.after, ECE())

    @property
    def shown(self) -> list[tuple[Row, Row | None]]:
        """The rows of the table, before and after, without uninformative ones."""
        after: Sequence[Row | None] = self.after or [None] * len(self.before)
        return [pair for pair in zip(self.before, after, strict=True) if not pair[0].says_nothing]

    @property
    def statistics(self) -> Table:
        """Every informative figure, before and after, with what it is if calibrated and what to do."""
        when = ("before", "after") if self.after else ("value",)
        rows = []
        for pair in self.shown:
            states = [row for row in pair if row is not None]
            last, cells = states[-1], [(row.shown(row.value), row.interval + " %" * row.percent) for row in states]
            within = last.null_high is not None and last.value <= last.null_high
            todo = WITHIN_CHANCE if within else TO_DO.get(last.label.split("(")[0], "")
            shown = [cell if cell != " %" else "" for pair in cells for cell in pair]
            rows.append([last.label, *shown, last.limits, todo])
        header = ["metric", *(cell for name in when for cell in (name, "95 %")), "if calibrated", "what to do"]
        title = f"All figures, before and after {self.model.calibrated_in_short}" if self.after else "All figures"
        return Table(title, header, rows)

    @property
    def cells(self) -> dict[str, list[list[float]]]:
        """Of each whole percent of probability: rows, Σp and Σy, before and after calibration, for the page's sliders."""
        named = zip(("before", "after"), self.percents, strict=False)
        return {name: [[round(x, 3) for x in column] for column in columns] for name, columns in named}

    @property
    def how_to_read(self) -> Sequence[str]:
        """How to read the pictures of the first screen."""
        return HOW_TO_READ if self.event is None else HOW_TO_READ_AN_EVENT

    @property
    def left_out(self) -> list[str]:
        """A sentence for each uninformative row, with the reason why it is left out."""
        return [
            f"{row.label} is left out: its 97.5 % limit if calibrated is {row.shown(row.null_high)} with so few rows."
            for row in self.before
            if row.says_nothing
        ]

    @property
    def source(self) -> str:
        """The file's own name, without the folders that lead to it."""
        return PurePath(self.model.source).name or self.model.source

    @property
    def worst(self) -> list[str]:
        """The worst bins of the last diagram, one sentence each."""
        return [bin_sentence(found) for found in worst_bins(self.diagrams[1] or self.diagrams[0])]

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
        fitted = rows_of(calibrator.fit_rows)
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
        group_diagram: Returns the diagram of a group; None takes the bins of ``groups``.
        cells: The state of ``Cells``: of the event's probability, or of the confidence where there is no event.
        event_ece: The ECE of the event's probability, or None where there is no event.
        independent: Whether rows are independent and count once or as often as they occurred.
    """

    rows: list[Row]
    diagram: Diagram
    histogram: Diagram
    curve: Curve
    classes: Mapping[int, Binned]
    groups: Mapping[int, Binned]
    cells: BinTable
    group_diagram: Callable[[int], Diagram] | None = None
    event_ece: Row | None = None
    independent: bool = True


def section_of(
    model: Model | Subject,
    states: Sequence[Figures],
    *,
    class_name: Callable[[int], str],
    margin: float,
    gains: list[Gain],
    fingerprint: str,
    remarks: list[str],
    audit: Audit | None,
) -> Section:
    """Return the section on a model from its figures.

    Args:
        model: The model.
        states: Its figures before calibration, and after it if there is a calibrator.
        class_name: Returns the name of a class.
        margin: ECE above which an error is large.
        gains: Of the calibrator.
        fingerprint: Hash of the data.
        remarks: What is left out and why.
        audit: The groups of rows by their features, or None.
    """
    first, last = states[0], states[-1]
    after = last.rows if len(states) > 1 else []
    classes = _parts([state.classes for state in states], class_name)
    groups = _parts([state.groups for state in states], str)
    in_class, in_group = partial(_diagram, last.classes), last.group_diagram or partial(_diagram, last.groups)
    events = tuple(
        EventFigures(state.cells, state.event_ece, state.independent) for state in states if state.event_ece is not None
    )
    if len(events) == len(states):
        event = EventSection(class_name(1), events, margin)
        verdicts = [verdict_of([one.ece], one.diagram, margin=margin, side=event.side_of(one)) for one in events]
    else:
        event = None
        verdicts = [verdict_of(state.rows, state.diagram, margin=margin) for state in states]
    facts = summary(model, first.rows, after, first.diagram) if event is None else event.facts
    return Section(
        model=model,
        before=first.rows,
        after=after,
        diagrams=(first.diagram, last.diagram if after else None),
        histograms=(first.histogram, last.histogram if after else None),
        verdicts=(verdicts[0], verdicts[1] if after else None),
        gains=gains,
        margin=margin,
        curves=[(label, state.curve) for label, state in zip(("before", "after"), states, strict=False)],
        classes=classes,
        groups=groups,
        panels={
            "class": [(part.name, in_class(part.key)) for part in classes[:PANELS] if part.key in last.classes],
            "group": [(part.name, in_group(part.key)) for part in groups[:PANELS]],
        },
        words=facts + group_findings(audit),
        fingerprint=fingerprint,
        remarks=remarks,
        audit=audit,
        event=event,
        percents=[percents(state.cells) for state in states],
    )


def _parts(states: Sequence[Mapping[int, Binned]], name: Callable[[int], str]) -> list[Part]:
    """Return every class or group, the largest error (after calibration, else before) first."""
    before, after = states[0], states[1] if len(states) > 1 else {}
    parts = []
    for key, one in before.items():
        expected, observed = (float(sums.sum()) / one.table.total for sums in (one.table.sum_p, one.table.sum_y))
        error_after = after[key].table.error() if key in after else None
        parts.append(Part(name(key), one.n, expected, observed, one.table.error(), error_after, key))
    return sorted(parts, key=lambda part: -(part.error_before if part.error_after is None else part.error_after))


def _diagram(tables: Mapping[int, Binned], key: int) -> Diagram:
    return diagram_from(tables[key].table, edges=equal_edges())


def equal_edges() -> list[float]:
    """Return the edges of the bins of equal width."""
    return [float(edge) for edge in _BINNING.edges(torch.zeros(1)).tolist()]


def diagnose(model: Model, *, draws: int = 1000, margin: float = MARGIN) -> Section:
    """Return the content of a report on one model.

    Args:
        model: The model.
        draws: As in ``write_report``.
        margin: As in ``write_report``.
    """
    check_margin(margin)
    file = PurePath(model.source).name or model.name
    states = []
    for data, calibrator in ((model.before, None), (model.after, model.calibrated_with)):
        if data is not None:
            rows = measure(data, file=file, split=model.split, draws=draws, calibrator=calibrator)
            states.append(_figures_of(data, rows, of=model.before, draws=draws))
    return section_of(
        model,
        states,
        class_name=model.class_name,
        margin=margin,
        gains=gains_of(model, draws=draws),
        fingerprint=fingerprint(model.before),
        remarks=weight_remarks(model.before) + beside_temperature(model),
        audit=audit_of(model),
    )


def _figures_of(data: Data, rows: list[Row], *, of: Data, draws: int) -> Figures:
    """Return the figures of rows in memory, with the groups that the rows had before calibration."""
    counted = need_rows(data, what="a report")
    groups, pairs = need_rows(of, what="a report").groups, counted.top_label()
    own = {} if groups is None else {key: pairs[groups == key] for key in torch.unique(groups).tolist()}
    return Figures(
        rows,
        diagram_of(data),
        diagram_of(data, binning=_BINNING),
        risk_curve(data),
        _classes(counted),
        {key: Binned(_BINNING.table(one.p, one.y, weight=one.weights), one.count) for key, one in own.items()},
        Cells().state(counted),
        lambda key: diagram_of(own[key]),  # of equal mass: a group may have few rows
        _event_ece(counted, rows[0], draws=draws) if is_event(counted) else None,
        counted.groups is None and counted.weight_kind != "sampling",
    )


def _event_ece(data: Data, place: Row, *, draws: int) -> Row:
    """Return the ECE of the event's probability of rows in memory; ``place`` says whose they are."""
    metrics = [ECE(_BINNING)]
    pairs, name = event_pairs(data), place.calibrator
    return measure(pairs, file=place.file, split=place.split, calibrator=name, metrics=metrics, draws=draws)[0]


def _classes(data: Data) -> dict[int, Binned]:
    if not isinstance(data, Predictions):
        return {}
    found = class_bins(CLASSES.state(data).table, classes=data.classes)
    if data.weight_kind != "sampling":
        return found
    rows = torch.bincount(data.need_labels(), minlength=data.classes).tolist()  # a weight makes no more rows of one
    return {k: Binned(one.table, rows[k]) for k, one in found.items()}


def class_bins(flat: BinTable | None, *, classes: int) -> dict[int, Binned]:
    """Return the bins of each class, from those of all classes in one table."""
    assert flat is not None  # the state of bins of equal width
    columns = (part.view(classes, BINS) for part in (flat.count, flat.sum_p, flat.sum_y))
    squares = [None] * classes if flat.squares is None else flat.squares.view(classes, BINS)
    rows = zip(*columns, squares, strict=True)
    tables = [BinTable(count, p, y, flat.total, of) for count, p, y, of in rows]
    return {k: Binned(table, round(float(table.sum_y.sum()))) for k, table in enumerate(tables)}


def worst_bins(diagram: Diagram, *, most: int = 3) -> list[Bin]:
    """Return the bins outside their consistency bars, by their contribution to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:most]
