"""The content of a report on one model: one builder for rows in memory and for sums over rows that need not fit in memory."""

import hashlib
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Level, Natural, checked
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto.auto import Evidence
from calibrant.data.checks import Data, Summed, need_predictions
from calibrant.data.leakage import rows_in_sketch
from calibrant.data.predictions import Predictions
from calibrant.data.record import is_beside
from calibrant.evaluate.panel import PanelRow
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric
from calibrant.plot.arguments import Label, check_class_names
from calibrant.plot.diagrams import (
    POINTS,
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
    NOTHING,
    Advice,
    Gain,
    Verdict,
    advice_of,
    gains_of,
    row_of,
    side_of_confidence,
    verdict_of,
)
from calibrant.report.clusters import ClusterSection, clusters_of
from calibrant.report.events import Cells, EventFigures, EventSection, mass_table, percents
from calibrant.report.groups_report import Audit, audit, audit_of, unread
from calibrant.report.model import Model, Subject, Table, fingerprint, name_of_class, table_of_states
from calibrant.report.tables import Row, measure, panel_rows
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
from calibrant.scale.execute import Progress, Runner, in_turn
from calibrant.scale.passes import ParquetSource, Passes, SomeCalibrator, calibrator_identity
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import IntervalMoments, looks, metric_passes, one_pass, sums_of
from calibrant.statistics.enough import FEWEST_COMPARED
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import UnitSums

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
        clusters: Rows in groups, such as the tokens of sequences, or None.
    """

    model: Model | Subject
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
    clusters: ClusterSection | None = None

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
        return {name: percents(state.cells) for name, state in zip(("before", "after"), self.states, strict=False)}

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
        cells: The state of ``Cells``: of the event's probability, or of the confidence where there is no event.
        event: The figures of the event's probability, or None where there is no event.
    """

    rows: list[Row]
    diagram: Diagram
    histogram: Diagram
    curve: Curve
    classes: Mapping[int, Binned]
    groups: Mapping[int, Binned]
    cells: BinTable
    event: EventFigures | None = None


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
    classes = _worst_parts_first([state.classes for state in states], class_name)
    groups = _worst_parts_first([state.groups for state in states], str)
    events = [state.event for state in states if state.event is not None]
    event = EventSection(class_name(1), events, margin) if len(events) == len(states) else None
    if event is None:
        named = [(row_of(state.rows, ECE()), state.diagram) for state in states]
        verdicts = [verdict_of(ece, side_of_confidence(diagram, ece.value), margin=margin) for ece, diagram in named]
    else:
        verdicts = [verdict_of(one.ece, event.side_of(one), margin=margin, hint=bool(one.off)) for one in events]
    if verdicts[0].state != "not tested":
        detail = f"{verdicts[0].detail} The margin is the largest error that you accept (option margin)."
        verdicts[0] = replace(verdicts[0], detail=detail)
    clusters = clusters_of(model) if isinstance(model, Model) else None  # streamed sums know no order of rows
    rows = "rows" if clusters is None else clusters.rows
    if event is None:
        facts = summary(model, [state.rows for state in states], first.diagram, rows=rows)
    else:
        facts = [event.fact(evaluated(model, f"{event.states[0].ece.n:,} {rows}"))]
    if clusters is not None:
        facts = clusters.facts + facts
    elif groups:
        facts.append(f"The rows lie in {len(groups):,} groups (sequences, images, users …): intervals count those.")
    return Section(
        model=model,
        states=states,
        verdicts=verdicts,
        gains=gains,
        margin=margin,
        classes=classes,
        groups=groups,
        # of the state that would be used: after calibration, if there is one
        panels=[
            (part.name, diagram_from(last.classes[part.key].table, edges=equal_edges()))
            for part in classes[:PANELS]
            if part.key in last.classes
        ],
        words=facts + ([f"For whom: {audit.finding}"] if audit is not None and audit.finding else []),
        fingerprint=fingerprint,
        remarks=remarks,
        audit=audit,
        event=event,
        clusters=clusters,
    )


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
            states.append(_figures_in_memory(data, rows, of=model.before, draws=draws))
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


def _figures_in_memory(data: Data, rows: list[Row], *, of: Data, draws: int) -> Figures:
    """Return the figures of rows in memory, with the groups that the rows had before calibration."""
    counted = data.counted
    groups, sampled = of.counted.groups, counted.weight_kind == "sampling"
    # never too many for rows that are in memory
    sums = None if groups is None else sums_of_groups(counted, groups, most=3 * BINS * len(counted))
    cells, event = Cells().state(counted), None
    if is_event(counted):
        of_row = {"file": rows[0].file, "split": rows[0].split}
        pairs = event_pairs(counted)
        (ece,) = measure(pairs, **of_row, calibrator=rows[0].calibrator, metrics=[ECE(_BINNING)], draws=draws)
        event = EventFigures(cells, ece, counted.groups is None and not sampled)
    return Figures(
        rows,
        diagram_of(data),
        diagram_of(data, binning=_BINNING),
        risk_curve(data),
        _classes(counted),
        {} if sums is None else bins_of_groups(sums, sampled=sampled),
        cells,
        event,
    )


def sums_of_groups(data: Data, groups: Tensor, *, most: int | None = None) -> UnitSums:
    """Return of each group the rows, confidences and correct decisions in each bin of equal width."""
    p, w = data.confidence.cpu().double(), data.row_weights.cpu().double()
    column = EqualWidth(BINS).assign(data.confidence.cpu())[:, None] + BINS * torch.arange(3)
    values = torch.stack([torch.ones_like(p), p, data.correct.cpu().double()], dim=1)
    return UnitSums.of(groups.cpu(), w, 3 * BINS, [(slice(None), column, values * w[:, None])], most=most)


def bins_of_groups(found: UnitSums, *, sampled: bool = False) -> dict[int, Binned]:
    """Return the bins of each group; a weight makes no more rows of one, a count does."""
    parts = zip(found.keys.tolist(), found.rows if sampled else found.mass, found.sums, strict=True)
    tables = ((key, n, *sums.view(3, BINS)) for key, n, sums in parts)
    return {
        key: Binned(BinTable(rows, sum_p, sum_y, float(rows.sum())), int(n)) for key, n, rows, sum_p, sum_y in tables
    }


def _classes(data: Data) -> dict[int, Binned]:
    if not isinstance(data, Predictions):
        return {}
    found = bins_of_classes(CLASSES.state(data).table, classes=data.classes)
    if data.weight_kind != "sampling":
        return found
    rows = torch.bincount(data.need_labels(), minlength=data.classes).tolist()  # a weight makes no more rows of one
    return {k: Binned(one.table, rows[k]) for k, one in found.items()}


def bins_of_classes(flat: BinTable | None, *, classes: int) -> dict[int, Binned]:
    """Return the bins of each class, from those of all classes in one table."""
    assert flat is not None  # bins of equal mass alone have no such table
    columns = (part.view(classes, BINS) for part in (flat.count, flat.sum_p, flat.sum_y))
    # Σ w² of sampling weights, by which noise is told from error
    squares = [None] * classes if flat.squares is None else flat.squares.view(classes, BINS)
    rows = zip(*columns, squares, strict=True)
    tables = [BinTable(count, p, y, flat.total, of) for count, p, y, of in rows]
    return {k: Binned(table, round(float(table.sum_y.sum()))) for k, table in enumerate(tables)}


def worst_bins(diagram: Diagram) -> list[Bin]:
    """Return the three bins outside their consistency bars that contribute most to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:3]


LEVEL = 0.95
States = dict[Summed, Any]
_ECE = ECE(EqualWidth(BINS))
_PANEL: tuple[Metric, ...] = (
    Accuracy(), NLL(), Brier(), _ECE, MCE(EqualWidth(BINS)), DebiasedECE(EqualWidth(BINS)),
)  # fmt: skip
_EVENT = IntervalMoments(_ECE, event=True)  # of the probability of the second of two classes
_OMITTED = (
    "These figures are sums over rows read from disk in pieces. Figures that need all rows at once are left out: the ECE in "
    "equal-mass bins, SmoothECE, AURC, and the gain over plain temperature scaling."
)
_MANY_GROUPS = "There are more than 10,000 groups, so figures by group are left out."


@checked
def diagnose_streamed(
    path: str | os.PathLike[str],
    *,
    name: Label | None = None,
    calibrator: SomeCalibrator | None = None,
    class_names: Sequence[str] | None = None,
    source: Label | None = None,
    split: str = "all",
    draws: Natural = 1000,
    margin: Level = MARGIN,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: Runner = in_turn,
    progress: Progress | None = None,
) -> Section:
    """Return the content of a report on a Parquet data set of any size, for ``report.write_report([section], path)``.

    One pass over the rows, one more with the calibrator, and one where features lie beside the rows: groups are tested on all
    of at most a million rows, else on a random sample of about a million. Counts equal those computed in memory, sums agree within
    1e-12, and intervals and limits if calibrated are those of memory, from the same sums.

    Args:
        path: A file or a folder with labels, as for ``ParquetRows``.
        name: Name of the model; None takes the path's last part.
        calibrator: A fitted calibrator to report on as well, or None. It must not have been fitted on these rows.
        class_names: K names, or None for the class indices.
        source: Source of the rows, which the report names and its commands read; None takes the path.
        split: Name of the split.
        draws: Simulation draws for limits if calibrated; 0 leaves them and the intervals out.
        margin: ECE above which a miscalibration is called large, in (0, 1).
        checkpoint: A JSON file that is updated after every shard, and in the same folder one for the pass with the
            calibrator and one for that of groups; a repeated call resumes from them. They are removed at the end.
        executor: Runs the shards: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``.
        progress: Called with (rows done, total rows) of all passes together.

    Raises:
        InputError: If labels are missing, class names are not K, or data are not valid: file, row group and row are named.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data.
    """
    rows = ParquetRows(path)
    if rows.weight_kind is not None:
        remedy = (
            "its limits if calibrated are drawn from counts of rows: leave that column out, evaluate these rows by "
            "evaluate_streamed, or report on a file of them, which is read whole"
        )
        raise refuse("rows without weights for a report on streamed data", f"{rows.weight_kind} weights", remedy)
    subject = Subject(name or Path(path).name, calibrator, source or os.fspath(path), split, rows.grouped)
    class_names = check_class_names(class_names, classes=rows.classes)
    draws = 0 if rows.partly_grouped else draws
    asked, featured = _sums(rows.classes), has_features(rows)
    each = looks(rows, asked, draws=draws)
    total = (each * (1 + (calibrator is not None)) + featured) * rows.rows

    def settings(begun: int, name: str = "") -> dict[str, Any]:
        """Return how a pass is made, before which ``begun`` lie: its progress is that of all, its checkpoint lies beside the first's."""

        def report(done: int, _: int = 0) -> None:
            if progress is not None:
                progress(begun * rows.rows + done, total)

        own = Path(checkpoint).with_suffix(f".{name}.json") if checkpoint is not None and name else checkpoint
        return {"executor": executor, "checkpoint": own, "progress": progress and report}

    gain = [] if calibrator is None else [LossGain(calibrator_identity(calibrator), calibrator)]
    passes = [metric_passes(rows, first := [*asked, Digest(), *gain], None, draws=draws, **settings(0))]
    states = [sums_of(passes[0], first, None, draws=draws)]
    if calibrator is not None:
        passes.append(metric_passes(rows, asked, calibrator, draws=draws, **settings(each, "after")))
        states.append(sums_of(passes[1], asked, calibrator, draws=draws))
    if featured:
        passes.append(audit_passes(rows, calibrator, **settings(each * len(states), "groups")))
    groups = audit_streamed(passes[-1] if featured else None, calibrator)
    for one in passes:
        one.remove()
    named = zip(states, (None, subject.calibrated_with), strict=False)
    return section_of(
        subject,
        [
            _figures_on_disk(state, partial(_metric_row, subject, state, by, draws=draws), grouped=rows.grouped)
            for state, by in named
        ],
        class_name=lambda k: name_of_class(k, class_names, event=rows.classes == 2),
        margin=margin,
        gains=[] if rows.grouped else _gains(states[0], states[-1], *gain),
        fingerprint=hashlib.sha256(states[0][Digest()].encode()).hexdigest()[:16],
        remarks=[_OMITTED] + ([_MANY_GROUPS] if states[-1][ByGroup()].dropped else []),
        audit=groups,
    )


def _sums(classes: int) -> list[Any]:
    """Return what every figure of the page is computed from."""
    event = [_EVENT] if classes == 2 else []
    panel = map(IntervalMoments, (*_PANEL, CLASSES))
    return [*panel, *event, _ECE, CLASSES, Cells(), Cells(decision=True), ByGroup()]


def _figures_on_disk(states: States, row: Any, *, grouped: bool) -> Figures:
    """Return the figures of rows on disk from their sums; ``row`` makes a row of a metric."""
    decisions = states[Cells(decision=True)]
    mass, ends = mass_table(decisions)
    tables = bins_of_classes(states[CLASSES].table, classes=states[CLASSES].classes)
    return Figures(
        [row(IntervalMoments(metric)) for metric in (*_PANEL, CLASSES)],
        diagram_from(mass, edges=ends),
        diagram_from(states[_ECE], edges=equal_edges()),
        _risk_points(decisions),
        tables,
        bins_of_groups(states[ByGroup()]),
        states[Cells()],
        EventFigures(states[Cells()], row(_EVENT), not grouped) if _EVENT in states else None,
    )


def _gains(states: States, after: States, *of: "LossGain") -> list[Gain]:
    """Return the calibrator's gain over doing nothing of independent rows; none for few errors, for which it does not hold."""
    # the effective number of wrong decisions, before and after
    wrong = min(float(one[IntervalMoments(_PANEL[0])].decided[0, 0]) for one in (states, after))
    if not of or wrong < FEWEST_COMPARED:
        return []
    total, squares, rows = states[of[0]]
    if rows < 2 or not math.isfinite(squares):
        return []
    # Σ x / N and its normal interval, s² = Σ x² / N − mean²
    mean = total / rows
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(max(squares / rows - mean**2, 0.0) / rows)
    return [Gain(NOTHING, mean, mean - half, mean + half)]


def _metric_row(subject: Subject, states: States, calibrator: str | None, measured: Any, *, draws: int) -> Row:
    """Return the row of a metric: of its moments, with interval and limits; of one without them its value."""
    ends = measured.figures(states[measured], draws=draws, seed=0, level=LEVEL) if draws else {}
    known = {name: ends.get(name) for name in ("low", "high", "null_high", "null_mean")}
    metric = measured.metric
    value = metric.value(states[metric]) if metric == CLASSES else measured.value(states[measured])
    figure = PanelRow(repr(metric), value, n=int(states[_ECE].total), **known)
    file = PurePath(subject.source).name or subject.name
    return panel_rows([figure], [metric], file=file, split=subject.split, calibrator=calibrator)[0]


def _risk_points(cells: BinTable) -> Curve:
    """Return points of the risk-coverage curve at the cells' edges, where it is exact, most confident first."""
    # from the most confident cell down
    count, wrong = cells.count.flip(0), (cells.count - cells.sum_y).flip(0)
    filled = torch.nonzero(count)[:, 0]
    taken, errors = count[filled].cumsum(0).double(), wrong[filled].cumsum(0)
    if len(filled) > POINTS:  # points spaced evenly in coverage, the last one included
        target = torch.linspace(0, 1, POINTS, dtype=torch.float64)[1:] * cells.total
        keep = torch.unique(torch.searchsorted(taken, target).clamp_max(len(filled) - 1))
        taken, errors = taken[keep], errors[keep]
    return Curve((taken / cells.total).tolist(), (errors / taken).tolist())


MOST_GROUPS = 10_000  # most groups with sums of their own: a million users would exceed the memory bound


@dataclass(frozen=True)
class LossGain:
    """Σ x, Σ x² and the number of rows, x the reduction of a row's log-loss by a calibrator.

    Args:
        identity: Hash of the calibrator, which identifies this sum in a checkpoint and between processes.
        calibrator: The calibrator.
    """

    identity: str
    calibrator: Calibrator = field(compare=False, repr=False)  # its hash says which it is

    def state(self, data: Data) -> tuple[float, float, int]:
        """Return the sums of ``data``."""
        predictions = need_predictions(data, metric=self)
        gain = (predictions.nll - predictions.calibrated_by(self.calibrator).nll).double()
        return float(gain.sum()), float(gain.square().sum()), gain.shape[0]


@dataclass(frozen=True)
class ByGroup:
    """The bins of the top label in each group of rows, for at most 10,000 groups."""

    def state(self, data: Data) -> UnitSums:
        """Return the sums of ``data``."""
        most = MOST_GROUPS * 3 * BINS
        if data.groups is None:
            return sums_of_groups(data[:0], torch.zeros(0, dtype=torch.int64), most=most)
        return sums_of_groups(data, data.groups, most=most)


@dataclass(frozen=True)
class Digest:
    """The digests of the numbers and labels, piece after piece."""

    def state(self, data: Data) -> str:
        """Return the digest of ``data``."""
        return fingerprint(data, digits=32)


# Sums would need every pair of groups, and quantiles first. A million rows know a gap to 0.05 points, and take about 100 MB.
MOST_AUDITED = 1_000_000
_MOST_KEPT = (
    1 << 24
)  # bytes of the sample in a checkpoint, which is written after every shard; a larger one is drawn again


def has_features(rows: ParquetRows) -> bool:
    """Return whether features lie beside the rows."""
    return any(map(is_beside, rows.beside or ()))


def audit_passes(rows: ParquetRows, calibrator: Calibrator | None, **settings: Any) -> Passes:
    """Return the pass that ``audit_streamed`` reads rows with, which keeps a sample smaller than 16 MiB in its checkpoint.

    Args:
        rows: The data set, with labels and features.
        calibrator: A fitted one, or None.
        settings: ``executor``, ``checkpoint`` and ``progress``, as for ``one_pass``.
    """
    what = f"the groups of {MOST_AUDITED} rows of {calibrator and calibrator_identity(calibrator)}"
    return one_pass(rows, what, most=_MOST_KEPT, **settings)


def audit_streamed(passes: Passes | None, calibrator: Calibrator | None) -> Audit | None:
    """Return the groups of the rows by their features before and after ``calibrator``; None without a pass.

    One pass over the rows. Of more than a million rows each is taken with the same probability, so that about a million are
    tested; which ones depends on the names of the files alone.

    Args:
        passes: As ``audit_passes`` returns it.
        calibrator: The same as there.
    """
    if passes is None:
        return None
    # every row is taken with one probability, so that the sample is one of all shards
    share = min(1.0, MOST_AUDITED / passes.rows.rows)
    parts = ParquetSource(passes, units=SampledPieces(share)).part(rows_for_groups, add, calibrator)
    if parts is None:
        return Audit((), None, reason="Groups are not tested: no row of positive weight was taken.")
    # a column of too many categories in one piece is left out of all
    names = [name for name in parts[0][2] if all(name in part.features for part, _, _ in parts)]
    dropped = sorted(set(parts[0][2]) - set(names))
    alike = [replace(part, features={name: part.features[name] for name in names}) for part, _, _ in parts]
    before = type(alike[0]).cat(alike)
    after = None if calibrator is None else type(alike[0]).cat([part for _, part, _ in parts])
    count = f"all {len(before):,} rows"
    if share < 1:
        count = f"{len(before):,} of {passes.rows.rows:,} rows, drawn at random"
    bare = replace(before, features=None)
    return replace(audit(bare, after, before.features, dropped=tuple(dropped)), basis=f"Computed on {count}.")


@dataclass(frozen=True)
class SampledPieces:
    """Yields a random part of a shard's rows of positive weight, piece by piece, where there are any.

    Args:
        share: Probability with which each row is taken, in (0, 1].
    """

    share: float

    def __call__(self, rows: ParquetRows, shard: Shard) -> Iterator[Predictions]:
        # seeded by the place of the rows: the same ones are taken in any order of the shards
        rng = np.random.default_rng([zlib.crc32(shard.file.encode()), shard.row_group])
        for piece in rows.read(shard):
            taken = np.ones(len(piece), dtype=bool) if self.share >= 1 else rng.random(len(piece)) < self.share
            if piece.weights is not None:
                taken &= (piece.weights > 0).numpy()
            if taken.any():
                yield piece if taken.all() else piece[torch.from_numpy(np.flatnonzero(taken))]


def rows_for_groups(
    piece: Predictions, calibrator: Calibrator | None
) -> tuple[tuple[Data, Data | None, tuple[str, ...]]]:
    """Return what groups are tested on: the rows with their features, the rows after calibration, and the features' names."""
    features: Mapping[str, Any] = piece.features or {}
    kept = {name: values for name, values in features.items() if not unread(values)}
    after = None if calibrator is None else piece.calibrated_by(calibrator, allow_fit_rows=True)  # checked before
    return ((_decision(piece, kept), None if after is None else _decision(after, None), tuple(features)),)


def _decision(data: Predictions, features: Any) -> Data:
    """Return what groups are tested by: of more than two classes the decision alone."""
    return replace(data if data.classes == 2 else replace(data.top_label(), labels=None), features=features)
