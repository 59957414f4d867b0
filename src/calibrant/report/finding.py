"""The content of a report on one model, as numbers and words; a report's JSON is this record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from calibrant._core.config import json_data
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto import Evidence
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.evaluate.tables import Row, measure
from calibrant.metrics import ECE, Accuracy, ClasswiseECE
from calibrant.plot.diagrams import BINS, Diagram, diagram_of, event_pairs, is_event
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
from calibrant.report.events import EventFigures, event_of
from calibrant.report.groups_report import Audit, audit_of
from calibrant.report.model import Model, fingerprint
from calibrant.report.wording import UNSEEN, counted, percent

BINNING = EqualWidth(BINS)
CLASSES = ClasswiseECE(BINNING)


@dataclass(frozen=True, eq=False)
class State:
    """The numbers of a model before calibration, or after it.

    Args:
        rows: Every metric.
        diagram: In bins of equal mass.
        histogram: In bins of equal width.
        classes: The bins of each class's probability; none for pairs.
        event: The figures of the event's probability, or None where there is no event.
    """

    rows: list[Row]
    diagram: Diagram
    histogram: Diagram
    classes: Sequence[BinTable]
    event: EventFigures | None


@dataclass(frozen=True)
class ClassFigures:
    """The calibration of one class, before and after calibration.

    Args:
        name: Name of the class.
        n: Rows with this label.
        expected: Mean probability of the class.
        observed: Its frequency.
        error_before: ECE of the class's probability.
        error_after: The same after calibration, or None.
        key: Class index.
    """

    name: str
    n: int
    expected: float
    observed: float
    error_before: float
    error_after: float | None
    key: int


@dataclass(frozen=True, eq=False)
class Finding:
    """What a report finds of one model.

    Args:
        model: The model.
        states: Its figures before calibration, and after it if there is a calibrator.
        verdicts: The verdict on each state.
        screen: The verdict that the first screen opens with: that on all rows, or on the clearest group.
        advice: The recommendation.
        gains: The calibrator's gains in log-loss.
        margin: ECE above which an error is large.
        classes: Every class, the largest error first.
        words: The facts as sentences.
        remarks: What weights do to the figures.
        fingerprint: Hash of the data, 16 hexadecimal digits.
        audit: The calibration of groups of rows by their features, or None.
    """

    model: Model
    states: Sequence[State]
    verdicts: Sequence[Verdict]
    screen: Verdict
    advice: Advice
    gains: Sequence[Gain]
    margin: float
    classes: Sequence[ClassFigures]
    words: Sequence[str]
    remarks: Sequence[str]
    fingerprint: str
    audit: Audit | None

    @property
    def calibrated(self) -> bool:
        """Whether there are figures after calibration."""
        return len(self.states) > 1

    @property
    def events(self) -> list[EventFigures]:
        """The event's probability in each state; empty where there is no event."""
        return [state.event for state in self.states if state.event is not None]

    @property
    def ece(self) -> list[Row]:
        """The row of the ECE of each state; of the event's probability where there is an event."""
        return [_ece_of(state) for state in self.states]

    @property
    def evidence(self) -> Evidence | None:
        """The candidates of an automatic choice and their cross-validated log-loss, or None."""
        return self.model.calibrator.evidence if isinstance(self.model.calibrator, AutoCalibrator) else None

    @property
    def plain(self) -> dict[str, Any]:
        """The finding as JSON data."""
        names = ("fingerprint", "evidence", "margin", "advice", "gains", "words", "remarks", "classes")
        before, after = self.states[0], self.states[1] if self.calibrated else None
        made: Mapping[str, Any] = {
            "name": self.model.name,
            "source": self.model.file,
            "calibrator": self.model.calibrated_with,
            **{name: getattr(self, name) for name in names},
            "verdict_before": self.verdicts[0],
            "verdict_after": self.verdicts[1] if after else None,
            "diagram_before": before.diagram,
            "diagram_after": after and after.diagram,
            "event": self.events or None,
            "for_whom": self.audit,
        }
        return {name: json_data(value) for name, value in made.items()}


def diagnose(model: Model, *, draws: int = 1000, margin: float = MARGIN) -> Finding:
    """Return what a report finds of one model.

    Args:
        model: The model.
        draws: As in ``write_report``.
        margin: As in ``write_report``.
    """
    datas = [model.before] if model.after is None else [model.before, model.after]
    states = [_state_of(model, data, draws=draws) for data in datas]
    verdicts = []
    for state in states:
        ece, event = _ece_of(state), state.event
        side = side_of_confidence(state.diagram, ece.value)
        if event is not None:
            side = f"Probabilities of {model.class_name(1)} are {event.side}"
        verdicts.append(verdict_of(ece, side, margin=margin, hint=event is not None and bool(event.off)))
    if verdicts[0].state != "not tested":
        detail = f"{verdicts[0].detail} The margin is the largest error that you accept (option margin)."
        verdicts[0] = replace(verdicts[0], detail=detail)
    gains, audit, last = gains_of(model, draws=draws), audit_of(model), states[-1].event
    screen, advice = verdicts[0], advice_of(model, verdicts, gains, margin=margin, event=last is not None)
    if last is not None and last.lacking:
        advice = Advice(f"Check the labels: there are no {last.lacking}.", [], [])
    elif audit is not None:
        screen, advice = audit.verdict(screen), audit.advice(advice, model, event=last is not None)
    return Finding(
        model=model,
        states=states,
        verdicts=verdicts,
        screen=screen,
        advice=advice,
        gains=gains,
        margin=margin,
        classes=_class_figures(model, states),
        words=_model_facts(model, states[0], audit),
        remarks=_remarks_on_weights(model.before),
        fingerprint=fingerprint(model.before),
        audit=audit,
    )


def _ece_of(state: State) -> Row:
    return row_of(state.rows, ECE()) if state.event is None else state.event.ece


def _state_of(model: Model, data: Data, *, draws: int) -> State:
    place: dict[str, Any] = {"file": model.file or model.name, "split": model.split, "draws": draws}
    place["calibrator"] = None if data is model.before else model.calibrated_with
    rows, event = data.counted, None
    if is_event(rows):
        pairs = event_pairs(rows)
        (ece,) = measure(pairs, metrics=[ECE(BINNING)], **place)
        event = event_of(pairs, ece, independent=rows.groups is None and rows.weights is None)
    return State(
        rows=measure(data, **place),
        diagram=diagram_of(data),
        histogram=diagram_of(data, binning=BINNING),
        classes=CLASSES.state(rows).parts(rows.classes) if isinstance(rows, Predictions) else (),
        event=event,
    )


def _class_figures(model: Model, states: Sequence[State]) -> list[ClassFigures]:
    """Return every class, the largest error (after calibration, else before) first."""
    rows = model.before.counted
    if not isinstance(rows, Predictions):
        return []
    labels, found = torch.bincount(rows.require_labels(), minlength=rows.classes).tolist(), []
    for k, (n, *tables) in enumerate(zip(labels, *(state.classes for state in states), strict=True)):
        expected, observed = (float(sums.sum()) / tables[0].total for sums in (tables[0].sum_p, tables[0].sum_y))
        before, after = tables[0].error(), tables[1].error() if len(tables) > 1 else None
        found.append(ClassFigures(model.class_name(k), n, expected, observed, before, after, k))
    return sorted(found, key=lambda one: -(one.error_before if one.error_after is None else one.error_after))


def _model_facts(model: Model, state: State, audit: Audit | None) -> list[str]:
    """Return the facts behind the verdict as sentences."""
    rows = f"{len(model.before.counted):,} rows"
    if model.split not in ("", "all") and not model.whole:
        rows = f"the {rows} of split {model.split}"
    # rows go through a calibrator only after the leakage check, unless that was put off
    checked = isinstance(model.after, Predictions) and model.after.fit_check is None
    if isinstance(model.calibrator, Calibrator) and len(model.calibrator.fit_rows) and checked:
        rows = f"{rows}, {UNSEEN},"
    if (event := state.event) is not None:
        rate = event.diagram.accuracy
        happened = f"{rate * event.ece.n:,.0f} ({percent(rate, 1)}) of {rows}".removesuffix(",")
        mean = f"Its mean probability is {percent(event.diagram.confidence, 1)}."
        facts = [f"The event, {model.class_name(1)}, happened in {happened}. {mean}"]
    else:
        accuracy = row_of(state.rows, Accuracy())
        shown = accuracy.shown(accuracy.value)
        shown += f" (95 % interval {accuracy.interval} %)" if accuracy.interval else ""
        facts = [f"On {rows} accuracy is {shown} and mean confidence {100 * state.diagram.confidence:.1f} %."]
    if model.before.groups is not None:
        groups = counted(len(model.before.counted.groups.unique()), "group")  # type: ignore[union-attr]
        facts.append(f"The rows lie in {groups} (sequences, images, users …): intervals count those.")
    if audit is not None and audit.finding:
        facts.append(f"For whom: {audit.finding}")
    return facts


def _remarks_on_weights(data: Data) -> list[str]:
    """Return a sentence on the effect of the weights of ``data`` on its figures; nothing without weights."""
    if data.weights is None:
        return []
    effective = f"{data.effective_count:,.0f} rows of equal weight"
    every = f"Every figure weights its {data.count:,} rows by their weights."
    return [f"{every} They vary as much as {effective}, on which intervals, limits and the rows of a bin rest."]
