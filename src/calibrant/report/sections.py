"""The sections of a page on one model: each function returns one of what was found, or None where there is nothing to show."""

from collections.abc import Sequence

from calibrant.calibrators import Calibrator
from calibrant.data.leakage import rows_in_sketch
from calibrant.plot.diagrams import Bin, Diagram, diagram_from
from calibrant.report.events import event_table
from calibrant.report.figures import confidence_pictures, event_pictures, groups_picture, panel_pictures
from calibrant.report.finding import BINNING, Finding
from calibrant.report.groups_report import PROMISE, off_in
from calibrant.report.model import Block, Claims, Page, Picture, Section, Table, table_of_states
from calibrant.report.wording import (
    GLOSSARY,
    HOW_TO_READ,
    HOW_TO_READ_AN_EVENT,
    TO_DO,
    WITHIN_CHANCE,
    lower_first,
    percent,
)

PANELS = 6  # classes with a diagram of their own
FEW = 8  # models up to which their pages show those diagrams, which take half of the time
MOST_ROWS = 20  # most rows of a table of classes; its caption states the total


def page_of(found: Finding, *, prefix: str = "s", models: int = 1) -> Page:
    """Return the page on one model.

    Args:
        found: What was found.
        prefix: Of the ids in its pictures.
        models: How many models the report is on: of more than eight the pages have no diagrams of single classes.
    """
    event, folded, table = bool(found.events), list[Picture](), _panel_table(found)
    if event:
        table = [event_table(found.model.class_name(1), found.events, margin=found.margin)]
    pictures = (event_pictures if event else confidence_pictures)(found, prefix=prefix)
    if found.audit is not None and off_in(found.audit.before):  # beside the groups stands what all rows are now
        folded, pictures = pictures[:-1], [groups_picture(found.audit, prefix=prefix), pictures[-1]]
    sections = [
        Section("", table, folded=False),
        _for_whom(found),
        Section("The predicted class: all figures as “evaluate” prints them", _panel_table(found)) if event else None,
        _bins(found, folded),
        _classes(found, prefix=prefix, panels=PANELS if models <= FEW else 0),
        _calibrator(found),
        _record_section(found),
    ]
    how = HOW_TO_READ_AN_EVENT if event else HOW_TO_READ
    shown = [section for section in sections if section is not None]
    return Page(found.model.name, found.screen, found.advice, found.words, pictures, how, shown)


def overview_of(findings: Sequence[Finding]) -> Table:
    """Return the table of all models of a report, which leads to each."""
    rows = []
    for found in findings:
        after = f"; after: {lower_first(found.verdicts[1].headline)}" if found.calibrated else ""
        eces = [found.ece[0].value, found.ece[1].value if found.calibrated else None, found.ece[-1].null_high]
        cells = [f"{found.states[0].rows[0].n:,}", *map(percent, [found.states[-1].diagram.accuracy, *eces])]
        rows.append([found.model.name, *cells, f"{found.verdicts[0].headline}{after}. {found.advice.headline}"])
    header = ["model", "rows", "accuracy", "ECE before", "ECE after", "calibrated 97.5 %", "verdict, what to do"]
    links = [f"#model-{place}" for place in range(1, len(rows) + 1)]
    return Table("All models. Follow a name to its section.", header, rows, links=links)


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
        within = last.null_high is not None and not last.significant
        todo = WITHIN_CHANCE if within else TO_DO.get(last.label.split("(")[0], "")
        rows.append((last.label, [row.value_and_interval for row in states], last.limits, todo))
    title = f"All figures, before and after {found.model.calibrated_in_short}" if found.calibrated else "All figures"
    return [table_of_states(title, "metric", rows, states=len(found.states), note=GLOSSARY), *left, *found.remarks]


def _for_whom(found: Finding) -> Section | None:
    if (audit := found.audit) is None:
        return None
    which = ", after calibration unless named before" if audit.after else ""
    count, shown = len(audit.last.rows) if audit.last else 0, len(audit.lines)
    many = (
        f"The {shown} groups with the strongest evidence of {count}"
        if shown < count
        else "Groups, the strongest evidence first"
    )
    tables = [Table(f"{many}. Gap: mean probability − frequency{which}.", audit.header, audit.lines)] if shown else []
    return Section("For whom", [*audit.verdicts, *tables, f"{audit.scope} {PROMISE}".strip()], folded=False)


def worst_bins(diagram: Diagram) -> list[Bin]:
    """Return the three bins outside their consistency bars that contribute most to the ECE (count × gap), the largest first."""
    return sorted((b for b in diagram.bins if b.off), key=lambda b: -b.count * abs(b.gap))[:3]


def _bins(found: Finding, pictures: Sequence[Picture]) -> Section:
    said: Block = f"No bin lies outside what is expected if calibrated{' after calibration' * found.calibrated}."
    if worst := worst_bins(found.states[-1].diagram):
        said = Claims("", [_bin_sentence(one) for one in worst])
    header = ["confidence (%)", "rows", "mean confidence", "accuracy", "expected if calibrated", "outside"]
    tables = []
    for state, when in zip(found.states, ("before", "after"), strict=False):
        rows = [
            [
                f"{100 * one.low:.5g} – {100 * one.high:.5g}",
                f"{one.count:,}",
                percent(one.confidence),
                percent(one.accuracy),
                f"{100 * one.expect_low:.1f} – {100 * one.expect_high:.1f} %",
                _side(one) if one.off else "",
            ]
            for one in state.diagram.bins
        ]
        tables.append(Table(f"Bins {when}", header, rows))
    return Section("Bins with the largest errors", [*pictures, said, *tables])


def _side(one: Bin) -> str:
    return "over-confident" if one.gap > 0 else "under-confident"


def _bin_sentence(one: Bin) -> str:
    where = f"{one.count:,} rows with confidence {100 * one.low:.4g} – {100 * one.high:.4g} %"
    means = f"mean confidence {percent(one.confidence, 1)}, accuracy {percent(one.accuracy, 1)}"
    expected = f"{100 * one.expect_low:.1f} – {100 * one.expect_high:.1f} % expected if calibrated"
    return f"{where}: {means}, {_side(one)} by {100 * abs(one.gap):.1f} points ({expected})."


def _classes(found: Finding, *, prefix: str, panels: int) -> Section | None:
    if not (classes := found.classes):
        return None
    rows = []
    for one in classes[:MOST_ROWS]:
        errors = [one.error_before, one.error_after][: len(found.states)]
        rows.append([one.name, f"{one.n:,}", *map(percent, [one.expected, one.observed, *errors])])
    header = ["class", "rows", "mean probability", "frequency", "ECE before", "ECE after"][: 4 + len(found.states)]
    many = f"The {MOST_ROWS} worst of {len(classes)}" if len(classes) > MOST_ROWS else f"{len(classes)}"
    table = Table(f"{many} classes, the worst calibrated first.", header, rows)
    edges, named = [k / BINNING.bins for k in range(BINNING.bins + 1)], []
    for one in classes[:panels]:  # as it would be used: after calibration, if there is a calibrator
        diagram = diagram_from(found.states[-1].classes[one.key], edges=edges)
        named.append((f"{one.name}: ECE {percent(diagram.ece)}", diagram))
    after = ", after calibration" if found.calibrated else ""
    how = f"Frequency of the class (vertical) against its probability (horizontal){after}, in the {len(named)} classes worst calibrated."
    return Section(
        "Class by class", [table, how, *panel_pictures(named, prefix=f"{prefix}c", event=True)] if named else [table]
    )


def _calibrator(found: Finding) -> Section | None:
    if not found.calibrated:
        return None
    calibrator, blocks = found.model.calibrator, list[Block]([found.model.calibrated_with or "not named"])
    if isinstance(calibrator, Calibrator):
        about = " ".join((type(calibrator).__doc__ or "").split("\n\n")[0].split()).replace("``", "")
        fitted = rows_in_sketch(calibrator.fit_rows)
        rows = f"{fitted:,} rows" if fitted else "rows that its file does not record"
        blocks += [about, f"It was fitted on {rows}; none of them may be among the rows evaluated here."]
    if (evidence := found.evidence) is not None:
        tried = [
            [one.name, *(f"{value:.4f}" for value in (one.loss, one.gain, one.error, one.weight))]
            for one in evidence.trials
            if one.loss < float("inf")
        ]
        title = "Candidates: cross-validated log-loss (nats), and the gain over doing nothing with its standard error."
        header = ["candidate", "log-loss (nats)", "gain (nats)", "± s.e.", "weight"]
        blocks += [f"{evidence.verdict[:1].upper()}{evidence.verdict[1:]}.", Table(title, header, tried)]
    return Section("The calibrator", blocks)


def _record_section(found: Finding) -> Section:
    split = f", split {found.model.split}" if found.model.split else ""
    lines = [
        f"Source: {found.model.file or 'in memory'}{split}",
        f"Data fingerprint (SHA-256): {found.fingerprint}",
        f"Margin for “large”: ECE {100 * found.margin:g} points",
        "Bins: diagrams: 15 of equal mass; histogram and ECE: 15 of equal width",
    ]
    return Section("Record", [Claims("", lines)])
