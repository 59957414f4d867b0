"""Computes the findings on one model: figures before and after calibration, the verdict, and what to do.

JSON reports contain these findings.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from calibrant._core.config import json_data
from calibrant.calibrators import AutoCalibrator, Calibrator, MultiLabelCalibrator
from calibrant.calibrators.auto import Evidence
from calibrant.data.multilabel import MultiLabel
from calibrant.data.predictions import Predictions
from calibrant.metrics import Accuracy
from calibrant.report.advice import MARGIN, Advice, Gain, Verdict, advice_of, gain_of, verdicts_of
from calibrant.report.groups import Audit, audit_of, off_in
from calibrant.report.model import Model, fingerprint
from calibrant.report.state import Event, State, state_of
from calibrant.report.wording import percent


@dataclass(frozen=True)
class ClassFigures:
    """The calibration of one class, before and after calibration.

    Args:
        name: Name of the class.
        n: Number of rows with this label.
        expected: Mean probability of the class.
        observed: Frequency of the class.
        error_before: ECE of the class's probability.
        error_after: ECE of the class's probability after calibration, or None.
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
    """The findings on one model.

    Args:
        model: The model.
        margin: ECE above which an error is large.
        states: The figures before calibration, and after it if there is a calibrator.
        audit: Groups of rows defined by features, or labels, with a test of the worst; or None.
        label: The label that the pictures show, if there are several labels per row.
        verdicts: The verdict on each state; the first is at the top of the page.
        gain: The calibrator's gain in log-loss, or None.
        advice: The recommendation.
        facts: The facts behind the verdict as sentences.
        remarks: Sentences on the effect of weights.
        classes: Every class, the largest error first.
    """

    model: Model
    margin: float
    states: Sequence[State]
    audit: Audit | None
    label: str | None
    verdicts: Sequence[Verdict]
    gain: Gain | None
    advice: Advice
    facts: Sequence[str]
    remarks: Sequence[str]
    classes: Sequence[ClassFigures]

    @property
    def calibrated(self) -> bool:
        """Whether figures after calibration exist."""
        return len(self.states) > 1

    @property
    def events(self) -> list[Event]:
        """The figures of an event before and after calibration; empty if there is no event."""
        return [state.event for state in self.states if state.event is not None]

    @property
    def evidence(self) -> Evidence | None:
        """The candidates of an automatic choice and their cross-validated log-losses, or None."""
        return self.model.calibrator.evidence if isinstance(self.model.calibrator, AutoCalibrator) else None

    @property
    def plain(self) -> dict[str, Any]:
        """The finding as JSON data."""
        after = self.states[1] if self.calibrated else None
        found = {
            "name": self.model.name,
            "source": self.model.file,
            "calibrator": self.model.calibrated_with,
            "fingerprint": fingerprint(self.model.before),
            "margin": self.margin,
            "verdict_before": self.verdicts[0],
            "verdict_after": self.verdicts[1] if after else None,
            "advice": self.advice,
            "gains": [{"against": "doing nothing", **asdict(self.gain)}] if self.gain else [],
            "evidence": self.evidence,
            "words": self.facts,
            "remarks": self.remarks,
            "classes": self.classes,
            "diagram_before": self.states[0].diagram,
            "diagram_after": after.diagram if after else None,
            "event": self.events or None,
            "groups": self.audit,
        }
        return {name: json_data(value) for name, value in found.items()}


def diagnose(model: Model, *, draws: int = 1000, margin: float = MARGIN) -> Finding:
    """Evaluate one model for a report.

    Args:
        model: The model.
        draws: As in ``write_report``.
        margin: As in ``write_report``.
    """
    audit, label = audit_of(model), None
    if audit is not None and audit.before is not None and audit.before.unit == "label":
        # show the label with the largest mean gap, among the significant ones if there are any
        label = (audit.worst or max(audit.before.rows, key=lambda row: abs(row.gap))).name
    datas = [model.before] if model.after is None else [model.before, model.after]
    states = [state_of(model, data, draws=draws, label=label) for data in datas]
    verdicts = verdicts_of(model, states, audit, label, margin=margin)
    gain = gain_of(model, draws=draws)
    advice = advice_of(model, verdicts, gain, states[-1], audit, margin=margin)
    facts, remarks, classes = _facts(model, states[0], audit), _remarks(model), _class_figures(model, states)
    return Finding(model, margin, states, audit, label, verdicts, gain, advice, facts, remarks, classes)


def _class_figures(model: Model, states: Sequence[State]) -> list[ClassFigures]:
    """Return all classes in descending order of the error after calibration, or before it if there is no calibrator."""
    rows = model.before.counted
    if not isinstance(rows, Predictions):
        return []
    labels, found = torch.bincount(rows.require_labels(), minlength=rows.classes).tolist(), []
    for k, (n, *tables) in enumerate(zip(labels, *(state.classes for state in states), strict=True)):
        expected, observed = (float(sums.sum()) / tables[0].total for sums in (tables[0].sum_p, tables[0].sum_y))
        before, after = tables[0].error(), tables[1].error() if len(tables) > 1 else None
        found.append(ClassFigures(model.class_name(k), n, expected, observed, before, after, k))
    return sorted(found, key=lambda one: -(one.error_before if one.error_after is None else one.error_after))


def _facts(model: Model, state: State, audit: Audit | None) -> list[str]:
    """Return the facts behind the verdict as sentences."""
    data, calibrator = model.before.counted, model.calibrator
    rows = f"{len(data):,} rows" if model.whole else f"the {len(data):,} rows of the {model.split} split"
    # unless the leakage check was postponed, it was passed before the rows were calibrated
    put_off = isinstance(model.after, Predictions) and model.after.fit_check is not None
    if isinstance(calibrator, Calibrator | MultiLabelCalibrator) and len(calibrator.fit_rows) and not put_off:
        rows += ", which the calibrator was not fitted on"
    mean = f"{percent(state.diagram.confidence, 1)}"
    if isinstance(data, MultiLabel):
        missing = int((~data.known).sum())
        lacking = f"; {missing:,} labels are missing" if missing else ""
        facts = [
            f"{rows[:1].upper()}{rows[1:]}, each with {len(data.names)} labels; the event of a label is that it is 1{lacking}."
        ]
        if isinstance(calibrator, MultiLabelCalibrator):
            # a label with too few events keeps the calibrator that is shared by all labels
            kept = sum(fact.pooled == 1 for fact in calibrator.labels_fitted)
            pooled = f"; {kept} rare ones share the pooled calibrator" if kept else ""
            facts.append(
                f"{type(calibrator.base).__name__} for each label; rare labels are shrunk towards the pool{pooled}."
            )
    elif state.event is not None:
        rate = state.diagram.accuracy
        happened = f"{rate * state.event.ece.n:,.0f} ({percent(rate, 1)}) of {rows}"
        facts = [f"The event, {model.class_name(1)}, happened in {happened}. Its mean probability is {mean}."]
    else:
        accuracy = state.row(Accuracy())
        shown = accuracy.shown(accuracy.value)
        shown += f" (95 % interval {accuracy.interval} %)" if accuracy.interval else ""
        facts = [f"Accuracy is {shown} and mean confidence {mean}, on {rows}."]
    if data.groups is not None:
        groups = f"{len(data.groups.unique()):,} groups"
        facts.append(
            f"The rows belong to {groups} (sequences, images, users …), the independent units of the intervals."
        )
    if audit is not None and audit.columns and audit.last is not None and off_in(audit.last):
        facts.append(f"Groups: {audit.last.verdict}")
    return facts


def _remarks(model: Model) -> list[str]:
    """Return sentences on how weights affect the figures; empty without weights."""
    data = model.before
    if data.weights is None:
        return []
    effective = f"{data.effective_count:,.0f} rows of equal weight"
    every = f"Every figure weights its {data.counted.count:,} rows by their weights."
    return [f"{every} They are worth {effective}, the number that intervals, limits and bins use."]
