"""The sections of a page on one model: each function returns one of what was found, or None where there is nothing to show."""

from collections.abc import Sequence

from calibrant.calibrators import Calibrator
from calibrant.data.leakage import rows_in_sketch
from calibrant.plot.diagrams import Diagram, diagram_from
from calibrant.report.events import event_table
from calibrant.report.figures import (
    confidence_pictures,
    event_pictures,
    groups_picture,
    panel_pictures,
    risk_picture,
)
from calibrant.report.finding import Finding, Part, equal_edges, worst_bins
from calibrant.report.groups_report import FIRST, PROMISE, off_in
from calibrant.report.model import Block, Claims, Live, Page, Picture, Section, Table, table_of_states
from calibrant.report.wording import (
    GLOSSARY,
    HOW_TO_READ,
    HOW_TO_READ_AN_EVENT,
    TO_DO,
    WITHIN_CHANCE,
    bin_sentence,
)

PANELS = 6
MOST_ROWS = 20  # most rows of a table of classes or groups; its caption states the total


def page_of(found: Finding, *, prefix: str = "s") -> Page:
    """Return the page on one model.

    Args:
        found: What was found.
        prefix: Of the ids in its pictures.
    """
    if found.events:
        pictures = event_pictures(found.model.class_name(1), found.events, prefix=prefix)
    else:
        pictures = confidence_pictures(found, prefix=prefix)
    more: list[Picture] = []
    if found.audit is not None and off_in(found.audit.before):  # beside the groups stands what all rows are now
        more, pictures = pictures[:-1], [groups_picture(found.audit, prefix=prefix), pictures[-1]]
    sections = [
        _figures(found),
        _for_whom(found),
        _all_groups(found),
        _predicted_class(found),
        _bins(found, more),
        Section("Error by coverage", [risk_picture([state.curve for state in found.states], prefix=prefix)]),
        _classes(found, prefix=prefix),
        _groups(found),
        _calibrator(found),
        _record(found),
    ]
    how = HOW_TO_READ_AN_EVENT if found.events else HOW_TO_READ
    shown = [section for section in sections if section is not None]
    return Page(found.model.name, found.screen, found.advice, found.words, pictures, how, shown)


def overview_of(findings: Sequence[Finding]) -> Table:
    """Return the table of all models of a report, which leads to each."""
    rows = []
    for found in findings:
        after = found.verdicts[1].headline if found.calibrated else ""
        said = found.verdicts[0].headline + (f"; after: {after[:1].lower()}{after[1:]}" if after else "")
        eces = [found.ece[0].value, found.ece[1].value if found.calibrated else None, found.ece[-1].null_high]
        cells = [f"{found.states[0].rows[0].n:,}", *map(_percent, [found.states[-1].diagram.accuracy, *eces])]
        rows.append([found.model.name, *cells, f"{said}. {found.advice.headline}"])
    header = ["model", "rows", "accuracy", "ECE before", "ECE after", "calibrated 97.5 %", "verdict, what to do"]
    links = [f"#model-{place}" for place in range(1, len(rows) + 1)]
    return Table("All models. Follow a name to its section.", header, rows, links=links)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _panel_table(found: Finding) -> list[Block]:
    """Return every informative figure, before and after, with what it is if calibrated and what to do, and what is left out."""
    rows, left = [], []
    for states in zip(*(state.rows for state in found.states), strict=True):
        last = states[-1]
        if states[0].says_nothing:
            limit = states[0].shown(states[0].null_high)
            left.append(f"{last.label} is left out: its 97.5 % limit if calibrated is {limit} with so few rows.")
            continue
        # what a calibrated model shows by chance asks for nothing
        within = last.null_high is not None and last.value <= last.null_high
        todo = WITHIN_CHANCE if within else TO_DO.get(last.label.split("(")[0], "")
        rows.append((last.label, [row.value_and_interval for row in states], last.limits, todo))
    title = f"All figures, before and after {found.model.calibrated_in_short}" if found.calibrated else "All figures"
    note = " ".join(f"{term[:1].upper()}{term[1:]}: {meaning}" for term, meaning in GLOSSARY)
    return [table_of_states(title, "metric", rows, states=len(found.states), note=note), *left, *found.remarks]


def _figures(found: Finding) -> Section:
    cells = {name: state.cells for name, state in zip(("before", "after"), found.states, strict=False)}
    if found.events:
        first: list[Block] = [event_table(found.model.class_name(1), found.events, margin=found.margin)]
    else:
        first = _panel_table(found)
    return Section("", [*first, Live("act" if found.events else "answer", cells), Live("bins", cells)], folded=False)


def _predicted_class(found: Finding) -> Section | None:
    title = "The predicted class: all figures as “evaluate” prints them"
    return Section(title, _panel_table(found)) if found.events else None


def _for_whom(found: Finding) -> Section | None:
    audit = found.audit
    if audit is None:
        return None
    which = ", after calibration unless named before." if audit.after else "."
    title = f"Groups with the strongest evidence. Gap: mean probability − frequency{which}"
    tables = [Table(title, audit.header, audit.lines[:FIRST])] if audit.lines else []
    return Section("For whom", [*audit.verdicts, *tables, f"{audit.scope} {PROMISE}".strip()], folded=False)


def _all_groups(found: Finding) -> Section | None:
    if found.audit is None or found.audit.last is None or len(found.audit.lines) <= FIRST:
        return None
    shown, count = len(found.audit.lines), len(found.audit.last.rows)
    title = f"All {count} groups" if shown == count else f"The first {shown} of {count} groups"
    return Section(title, [Table("Groups, the strongest evidence first", found.audit.header, found.audit.lines)])


def _bins(found: Finding, more: Sequence[Picture]) -> Section:
    worst = [bin_sentence(one) for one in worst_bins(found.states[-1].diagram)]
    after = " after calibration" if found.calibrated else ""
    said: Block = Claims("", worst) if worst else f"No bin lies outside what is expected if calibrated{after}."
    tables = [_bin_table(state.diagram, when) for state, when in zip(found.states, ("before", "after"), strict=False)]
    return Section("Bins with the largest errors", [*more, said, *tables])


def _bin_table(diagram: Diagram, when: str) -> Table:
    rows = [
        [
            f"{100 * one.low:.5g} – {100 * one.high:.5g}", f"{one.count:,}", _percent(one.confidence), _percent(one.accuracy),
            f"{100 * one.expect_low:.1f} – {100 * one.expect_high:.1f} %",
            ("over-confident" if one.gap > 0 else "under-confident") if one.off else "",
        ]
        for one in diagram.bins
    ]  # fmt: skip
    header = ["confidence (%)", "rows", "mean confidence", "accuracy", "expected if calibrated", "outside"]
    return Table(f"Bins {when}", header, rows)


def _part_table(parts: Sequence[Part], kind: str, says: str, is_: str) -> Table:
    many = f"The {MOST_ROWS} worst of {len(parts)}" if len(parts) > MOST_ROWS else f"{len(parts)}"
    plural = kind if len(parts) == 1 else f"{kind}es" if kind == "class" else f"{kind}s"
    after = parts[0].error_after is not None
    rows = []
    for part in parts[:MOST_ROWS]:
        errors = [part.error_before, *([part.error_after] if after else [])]
        rows.append([part.name, f"{part.n:,}", *map(_percent, [part.expected, part.observed, *errors])])
    header = [kind, "rows", says, is_, "ECE before", *(["ECE after"] if after else [])]
    return Table(f"{many} {plural}, the worst calibrated first.", header, rows)


def _classes(found: Finding, *, prefix: str) -> Section | None:
    if not found.classes:
        return None
    last, named = found.states[-1], []  # what would be used: after calibration, if there is a calibrator
    for part in (part for part in found.classes[:PANELS] if part.key in last.classes):
        diagram = diagram_from(last.classes[part.key].table, edges=equal_edges())
        named.append((f"{part.name}: ECE {_percent(diagram.ece)}", diagram))
    after = ", after calibration" if found.calibrated else ""
    how = f"Frequency of the class (vertical) against its probability (horizontal){after}, in the {len(named)} classes worst calibrated."
    table = _part_table(found.classes, "class", "mean probability", "frequency")
    return Section("Class by class", [table, how, *panel_pictures(named, prefix=f"{prefix}c", event=True)])


def _groups(found: Finding) -> Section | None:
    how = "The figures of the whole model are computed over all rows, not averaged over groups; intervals resample whole groups."
    if not found.groups:
        return None
    return Section("Group by group", [_part_table(found.groups, "group", "mean confidence", "accuracy"), how])


def _calibrator(found: Finding) -> Section | None:
    if not found.calibrated:
        return None
    calibrator, blocks = found.model.calibrator, [found.model.calibrated_with or "not named"]
    if not isinstance(calibrator, Calibrator):
        return Section("The calibrator", blocks)
    about = " ".join((type(calibrator).__doc__ or "").split("\n\n")[0].split()).replace("``", "")
    fitted = rows_in_sketch(calibrator.fit_rows)
    rows = f"{fitted:,} rows" if fitted else "rows that its file does not record"
    said = f"It was fitted on {rows}; none of them may be among the rows evaluated here."
    evidence = found.evidence
    if evidence is None:
        return Section("The calibrator", [*blocks, about, said])
    tried = [
        [trial.name, *(f"{value:.4f}" for value in (trial.loss, trial.gain, trial.error, trial.weight))]
        for trial in evidence.trials
        if trial.loss < float("inf")
    ]
    title = "Candidates: cross-validated log-loss (nats), and the gain over doing nothing with its standard error."
    table = Table(title, ["candidate", "log-loss (nats)", "gain (nats)", "± s.e.", "weight"], tried)
    verdict = f"{evidence.verdict[:1].upper()}{evidence.verdict[1:]}."
    return Section("The calibrator", [*blocks, about, verdict, said, table])


def _record(found: Finding) -> Section:
    split = f", split {found.model.split}" if found.model.split else ""
    lines = [
        f"Source: {found.source or 'in memory'}{split}",
        f"Data fingerprint (SHA-256): {found.fingerprint}",
        f"Margin for “large”: ECE {100 * found.margin:g} points",
        "Bins: diagrams: 15 of equal mass; histogram and ECE: 15 of equal width",
    ]
    return Section("Record", [Claims("", lines)])
