"""Builds the sections of a page on one model; each function returns a section, or None if there is nothing to show."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from calibrant.calibrators import Calibrator
from calibrant.data.leakage import rows_in_sketch
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import are_events
from calibrant.errors import InputError
from calibrant.evaluate.compare import Comparison, compare_all
from calibrant.plot.diagrams import diagram_from, diagram_of
from calibrant.plot.drawing import lower_limit
from calibrant.report.figures import groups_picture, panel_picture, state_picture
from calibrant.report.finding import Finding
from calibrant.report.groups import off_in
from calibrant.report.model import Block, Claims, Picture, Section, Table
from calibrant.report.state import BINNING, FEWEST, Event, excludes
from calibrant.report.wording import listed, lower_first, percent, signed
from calibrant.statistics.means import Interval

# Advice by metric class. For metrics that grow with miscalibration, it is shown only if the value is above its limit.
TO_DO = {
    "Accuracy": "To improve it, train a better model: calibration hardly changes it.",
    "NLL": "Use it to compare models and calibrators: lower is better, and every class and row counts.",
    "Brier": "Use it like the NLL; it penalises confident errors less.",
    "Bias": "Above 0, events are rarer than predicted; below 0, more frequent. Opposite errors of labels cancel, so check every label.",
    "ECE": "Probabilities are off by this much on average; if that is too much, calibrate.",
    "MCE": "Inspect the lowest and highest dots; with few rows, this error is mostly due to chance.",
    "ClasswiseECE": "See the section “Class by class”. A slope and a bias per class, which auto tries, can correct it.",
    "DebiasedECE": "Read it as the ECE without the part that is due to chance.",
    "SmoothECE": "Read it as an ECE that does not depend on bins.",
    "AURC": "Lower is better if the model answers only the most confident rows.",
}
WITHIN_CHANCE = "Nothing: a calibrated model reaches this value by chance."
# Number of classes or labels with their own diagram, divided among the models; diagrams take half of the time.
PANELS = 6
MOST_ROWS = 20  # largest number of rows in a table of classes, groups or labels; JSON has all of them
MOST_COMPARED = 4  # largest number of models that are compared in pairs, to keep the first screen short


def sections_of(found: Finding, *, models: int = 1) -> list[Section]:
    """Return the sections of the page on one model, in order.

    Args:
        found: The findings.
        models: Number of models in the report; with more models, each section has fewer diagrams of single classes.
    """
    panels = PANELS // models
    made = [
        event_section(found),
        panel_section(found),
        parts_section(found, panels=panels),
        classes_section(found, panels=panels),
        calibrator_section(found),
    ]
    return [section for section in made if section is not None]


def first_pictures(found: Finding) -> list[Picture]:
    """Return the pictures of the first screen: the gaps of groups, and diagrams before and after calibration."""
    names = ("Before", f"After {found.model.method or 'calibration'}") if found.calibrated else ("Uncalibrated",)
    audit, start = found.audit, lower_limit(*(state.diagram for state in found.states))
    groups = [groups_picture(audit)] if audit is not None and audit.columns and off_in(audit.before) else []
    named = zip(names, found.states, strict=True)
    return [*groups, *(state_picture(state, name, subject=_subject(found), start=start) for name, state in named)]


def _subject(found: Finding) -> str:
    """Return the name of the event that the pictures show, which is a label if there are several."""
    return found.label or found.model.class_name(1)


def _table_of_states(found: Finding, title: str, subject: str, rows: Sequence[Any], note: str = "") -> Table:
    """Return a table from rows (name, a pair (value, interval) per state, value if calibrated, advice)."""
    when = ("before", "after") if found.calibrated else ("value",)
    header = [subject, *chain.from_iterable((name, "95 %") for name in when), "if calibrated", "what to do"]
    return Table(title, header, [[label, *chain.from_iterable(pairs), *last] for label, pairs, *last in rows], note)


def panel_section(found: Finding) -> Section:
    """Return the section on all metrics before and after calibration, with their values if calibrated and advice."""
    rows = []
    for states in zip(*(state.rows for state in found.states), strict=True):
        last = states[-1]
        # no advice for a value that a calibrated model reaches by chance
        within = last.null_high is not None and not last.significant
        over = "" if last.average is None else f", {last.average}"
        todo = WITHIN_CHANCE if within else TO_DO.get(last.label.split("(")[0], "")
        limits = last.limits or last.shown(last.null_mean)
        rows.append((last.label + over, [row.value_and_interval for row in states], limits, todo))
    title, event = "All figures", bool(found.events) and not isinstance(found.model.before, MultiLabel)
    if found.calibrated:
        title += f", before and after {found.model.method or 'calibration'}"
    table = _table_of_states(found, title, "metric", rows)
    heading = "The predicted class: all figures as “evaluate” prints them" if event else ""
    return Section(heading, [table, *found.remarks], folded=event)


def event_section(found: Finding) -> Section | None:
    """Return the section on an event's statistics, with their values if calibrated and advice."""
    if not (states := found.events):
        return None
    last = states[-1]
    ranking = "To improve it, train a better model: calibration hardly changes the ranking."
    ece = WITHIN_CHANCE
    if last.ece.null_high is None or last.ece.significant:
        ece = (
            "Calibrate." if last.ece.value >= found.margin else "Below your margin: calibrate only if it costs nothing."
        )
    expects = "The event is {} than the model expects: refit on recent rows, or correct for a new rate (PriorShift)."
    gap = (expects.format("more frequent"), expects.format("rarer"))
    slope = (
        "Shrink the log-odds: probabilities are too near 0 and 1.",
        "Stretch the log-odds: probabilities are too close together.",
    )
    rows = [
        ("mean probability − rate", [_ends(one.gap) for one in states], "0", _todo(last, last.gap, 0, gap)),
        ("slope of the log-odds", [_ends(one.slope) for one in states], "1", _todo(last, last.slope, 1, slope)),
        ("intercept, given the slope", [_ends(one.intercept) for one in states], "0", "Read it with the slope."),
        ("ECE of the event, 15 bins", [one.ece.value_and_interval for one in states], last.ece.limits, ece),
        ("Brier score (p − y)²", [(f"{one.brier:.4f}", "") for one in states], "", TO_DO["NLL"]),
        ("AUROC", [("–" if one.auroc is None else f"{one.auroc:.4f}", "") for one in states], "", ranking),
    ]
    note = "The advice refers to the last column of figures."
    if math.isnan(last.gap.low):
        note += f" Gap and slope have no intervals here, which need independent rows: {FEWEST} with the event and {FEWEST} without."
    table = _table_of_states(found, f"The probability of {_subject(found)}", "statistic", rows, note)
    return Section("", [table], folded=False)


def _ends(one: Interval | None) -> tuple[str, str]:
    if one is None:
        return "–", ""
    value, low, high = (signed(x, "+.4f") for x in (one.estimate, one.low, one.high))
    return value, "" if math.isnan(one.low) else f"{low} to {high}"


def _todo(event: Event, one: Interval | None, right: float, below_and_above: tuple[str, str]) -> str:
    """Return the advice for a statistic whose value is ``right`` for a calibrated model."""
    if one is None or math.isnan(one.low):
        return "Label more rows to find out."
    if not excludes(one, right):
        return "Nothing: these rows show no deviation."
    chance = " One in twenty calibrated models shows this by chance, so check it on other rows."
    return below_and_above[one.estimate > right] + ("" if event.ece.significant else chance)


def parts_section(found: Finding, *, panels: int) -> Section | None:
    """Return the section on groups or labels, sorted by the strength of the evidence, with a test of the worst."""
    if (audit := found.audit) is None:
        return None
    tables = [parts for parts in (audit.before, audit.after) if parts is not None]
    when = ("Before calibration: ", "After it: ") if len(tables) > 1 else ("",)
    blocks: list[Block] = [f"{opens}{parts.verdict}" for opens, parts in zip(when, tables, strict=False)]
    if tables and tables[-1].rows:
        unit, shown = tables[-1].unit, tables[-1].rows[:MOST_ROWS]
        first, rows = {part.name: part for part in tables[0].rows}, []
        for part in shown:
            low, high = (part.all_low, part.all_high) if part.columns else (part.low, part.high)
            ends = "" if low is None or high is None else f"{signed(100 * low)} to {signed(100 * high)}"
            old = [signed(100 * first[part.name].gap) if part.name in first else ""] if audit.after else []
            means = [percent(part.confidence), percent(part.rate), *old, signed(100 * part.gap), ends]
            p = "–" if part.p_adjusted is None else f"{part.p_adjusted:.2g}"
            rows.append([part.name, f"{part.n:,}", *means, percent(part.ece), p])
        gap = ["gap before", "gap after"] if audit.after else ["gap"]
        header = [unit, "rows", "mean probability", "frequency", *gap, "95 %", "ECE", f"p, all {unit}s"]
        note = (
            "Gap: mean probability − frequency, in points; intervals of groups hold for all groups at once. p: the probability "
            f"that at least one {unit} shows evidence as clear as this if all are calibrated."
        )
        title = f"{len(rows)} of {len(tables[-1].rows)} {unit}s, the strongest evidence first"
        blocks.append(Table(title, header, rows, note))
        if isinstance(data := found.states[-1].data, MultiLabel):
            for part in shown[:panels]:
                caption = f"{part.name}: gap {signed(100 * part.gap)} points, ECE {percent(part.ece)}"
                blocks.append(panel_picture(caption, diagram_of(data.label(part.name)), event=True))
            return Section("Every label", blocks, folded=False)
    promise = (
        f"Groups were formed by {', '.join(audit.columns)}. A finding holds at 95 % for all groups at once. The absence of findings proves "
        "nothing about other columns. Calibration within groups makes neither error rates equal nor decisions fair."
    )
    return Section("Groups", [*blocks, *audit.notes, promise], folded=False)


def classes_section(found: Finding, *, panels: int) -> Section | None:
    """Return the section on classes, with the worst calibrated first, and diagrams of the first ones."""
    if not (classes := found.classes):
        return None
    rows = []
    for one in classes[:MOST_ROWS]:
        errors = [one.error_before, one.error_after][: len(found.states)]
        rows.append([one.name, f"{one.n:,}", *map(percent, [one.expected, one.observed, *errors])])
    header = ["class", "rows", "mean probability", "frequency", "ECE before", "ECE after"][: 4 + len(found.states)]
    many = f"The {MOST_ROWS} worst of {len(classes)}" if len(classes) > MOST_ROWS else f"{len(classes)}"
    blocks: list[Block] = [Table(f"{many} classes, the worst calibrated first.", header, rows)]
    if panels:
        after = ", after calibration" if found.calibrated else ""
        blocks.append(f"Frequency of the class (vertical) against its probability (horizontal){after}.")
    edges = [k / BINNING.bins for k in range(BINNING.bins + 1)]
    for one in classes[:panels]:  # after calibration, if there is a calibrator
        diagram = diagram_from(found.states[-1].classes[one.key], edges=edges)
        blocks.append(panel_picture(f"{one.name}: ECE {percent(diagram.ece)}", diagram, event=True))
    return Section("Class by class", blocks)


def calibrator_section(found: Finding) -> Section | None:
    """Return the section on the calibrator: its parameters, the number of fitted rows, and why it was chosen."""
    if not found.calibrated:
        return None
    calibrator, blocks = found.model.calibrator, list[Block]([found.model.calibrated_with or "not named"])
    if isinstance(calibrator, Calibrator) and (fitted := rows_in_sketch(calibrator.fit_rows)):
        blocks += [f"It was fitted on {fitted:,} rows; none of them may be among the rows evaluated here."]
    if (evidence := found.evidence) is not None:
        tried = [
            [one.name, *(f"{value:.4f}" for value in (one.loss, one.gain, one.error, one.weight))]
            for one in evidence.trials
            if one.loss < math.inf
        ]
        title = "Candidates: cross-validated log-loss (nats), and the gain over doing nothing with its standard error."
        header = ["candidate", "log-loss (nats)", "gain (nats)", "± s.e.", "weight"]
        blocks += [f"{evidence.verdict[:1].upper()}{evidence.verdict[1:]}.", Table(title, header, tried)]
    return Section("The calibrator", blocks)


def overview_of(findings: Sequence[Finding]) -> Table:
    """Return the table of all models in a report, with links to their sections."""
    rows = []
    for found in findings:
        after = f"; after: {lower_first(found.verdicts[1].headline)}" if found.calibrated else ""
        before, last = found.states[0], found.states[-1]
        eces = [before.ece.value, last.ece.value if found.calibrated else None, last.ece.null_high]
        cells = [f"{before.rows[0].n:,}", *map(percent, [last.diagram.accuracy, *eces])]
        rows.append([found.model.name, *cells, f"{found.verdicts[0].headline}{after}. {found.advice.headline}"])
    header = ["model", "rows", "accuracy", "ECE before", "ECE after", "limit if calibrated", "verdict, what to do"]
    links = [f"#model-{place}" for place in range(1, len(rows) + 1)]
    return Table("All models. A name links to its section.", header, rows, links=links)


def pairs_of(findings: Sequence[Finding]) -> dict[tuple[str, str], Comparison]:
    """Return the comparisons of all pairs of two to four models after calibration; empty if their rows differ."""
    names = [found.model.name for found in findings]
    names = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]
    used = {}
    for name, found in zip(names, findings, strict=True):
        data = found.states[-1].data
        # only true classes show whether the rows are the same
        if not isinstance(data, MultiLabel) and (are_events(data) or data.labels is not None):
            used[name] = data
    if not 2 <= len(used) == len(findings) <= MOST_COMPARED:
        return {}
    try:
        return compare_all(used)
    except InputError:  # the rows differ, so they cannot be paired
        return {}


def comparison_of(pairs: dict[tuple[str, str], Comparison], findings: Sequence[Finding]) -> list[Claims]:
    """Return the advice and the verdicts on ``pairs`` as sentences under a heading; empty without pairs."""
    if not pairs:
        return []
    lost, score = set(), ""
    for (a, b), found in pairs.items():
        # a proper score decides, because it measures calibration and ranking together
        row = next(one for name in ("NLL", "Brier", "") for one in found.rows if one.metric.startswith(name))
        score = "log-loss" if row.metric.startswith("NLL") else row.metric.split("(")[0]
        lost |= {"a": {b}, "b": {a}}.get(row.winner or "", set())
    best = sorted({name for pair in pairs for name in pair} - lost)
    todo = (
        f"{listed(best)} do not differ significantly in {score} on these rows: use the simpler one, or label more rows."
    )
    if len(best) == 1:
        then = [one.advice.headline for one in findings if one.model.name == best[0]]
        todo = " ".join([f"use {best[0]}, which has the better {score}.", *then])
    calibrated = ", after calibration" if any(one.calibrated for one in findings) else ""
    adjusted = "The p-values are adjusted for all metrics and pairs of models (Holm); the intervals are not."
    verdicts = [found.verdict for found in pairs.values()]
    return [Claims("Which model" + calibrated, [f"What to do: {todo}", *verdicts, adjusted])]
