"""The report on predictions of several labels a row: pooled and averaged figures, every label, the worst of them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant._core.arguments import check_kind
from calibrant._core.paths import atomic_write
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.data.multilabel import MultiLabelPredictions
from calibrant.errors import InputError
from calibrant.evaluate import label_table, multilabel_panel
from calibrant.evaluate.labels import LabelTable
from calibrant.evaluate.multilabel import MultiLabelRow
from calibrant.plot.arguments import check_label
from calibrant.plot.diagrams import diagram_of
from calibrant.report.figures import PLACEHOLDERS, inline_svg, panel_figure
from calibrant.report.model import Table
from calibrant.report.render import check_format, environment, versions
from calibrant.report.tables import json_record

__all__ = ["LabelReport", "write_label_report"]

PANELS = 6  # labels with a diagram of their own
_HEADER = ("label", "rows", "positive", "mean probability", "frequency", "gap", "95 %", "ECE", "p, all labels")
_NOTE = (
    "Gap: mean probability − frequency. p, all labels: the chance of a gap as clear as this in any label of a model of which each "
    "label is calibrated; – where a label has fewer than 100 rows or 5 expected events."
)


@dataclass(frozen=True, eq=False)
class LabelReport:
    """Predictions of several labels a row, before and after calibration.

    Args:
        name: Of the model.
        before: Labelled predictions.
        after: The same rows calibrated, or None.
        calibrator: What made them, or None.
        source: File the rows came from.
        split: Name of the split.
    """

    name: str
    before: MultiLabelPredictions
    after: MultiLabelPredictions | None = None
    calibrator: MultiLabelCalibrator | None = None
    source: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        for text in ("name", "source", "split"):
            check_label(getattr(self, text), name=text)
        remedy = "make them with MultiLabelPredictions.from_logits(logits, labels)"
        check_kind(self.before, MultiLabelPredictions, name="before", remedy=remedy).need_labels()
        if self.after is not None:
            after = check_kind(self.after, MultiLabelPredictions, name="after", remedy=remedy)
            if len(after) != len(self.before) or after.names != self.before.names:
                raise InputError("the same rows and labels before and after", "others", "use calibrated_by")


def write_label_report(
    subject: LabelReport,
    path: str | os.PathLike[str],
    *,
    title: str = "Calibration report",
    format: str | None = None,
    draws: int = 1000,
) -> Path:
    """Write one self-contained report on predictions of several labels a row, atomically.

    Args:
        subject: The predictions.
        path: Where to write it.
        title: Its heading.
        format: "html", "md" or "json"; None takes it from the suffix of ``path``, else "html".
        draws: As in ``evaluate.multilabel_panel``.

    Returns:
        The path.

    Raises:
        InputError: If a label is missing in all rows.
        FileFormatError: If the file cannot be written.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> data = MultiLabelPredictions.from_probs([[0.8, 0.3], [0.6, 0.3]] * 60, [[1, 0], [1, 1]] * 60)
        >>> write_label_report(LabelReport("mine", data), "labels.md", draws=10).name
        'labels.md'
    """
    check_kind(subject, LabelReport, name="subject", remedy="make it with LabelReport(name, predictions)")
    check_label(title, name="title")
    chosen = check_format(path, format)
    states = [("before", subject.before)] + ([] if subject.after is None else [("after", subject.after)])
    panels = {name: multilabel_panel(data, draws=draws) for name, data in states}
    labels = {name: label_table(data) for name, data in states}
    tables = [_figures(panels), *(_labels(name, found) for name, found in labels.items())]
    notes = _notes(subject, labels)
    if chosen == "json":
        text = _json(title, notes, panels, labels)
    else:
        context: dict[str, Any] = {"title": title, "notes": notes, "tables": tables}
        if chosen == "html":
            context |= {"figures": _pooled(states), "panels": _worst(states[-1][1], labels[states[-1][0]])}
            text = environment().get_template("labels.html").render(**context)
        else:
            text = environment(markdown=True).get_template("report.md").render(**context, sections=[], pictures=[])
    with atomic_write(path) as file:
        file.write(text.encode())
    return Path(path)


def _notes(subject: LabelReport, labels: dict[str, LabelTable]) -> list[str]:
    before = subject.before
    missing = int((~before.known).sum())
    split = f", split {subject.split}" if subject.split and subject.split != "all" else ""
    place = f" from {subject.source}{split}" if subject.source else ""
    rows = f"{len(before):,} rows of {len(before.names)} labels{place}; {missing:,} labels are missing."
    found = [f"{subject.name}: {rows} The event of each label is that it is 1; there is no top label."]
    found += [f"{name.capitalize()}: {table.verdict}" for name, table in labels.items()]
    if subject.calibrator is not None:
        kept = sum(fact.pooled == 1 for fact in subject.calibrator.labels_fitted)
        base = type(subject.calibrator.base).__name__
        found.append(
            f"Calibrated by {base} a label, rare labels shrunk towards the pool; {kept} labels keep the pool's calibrator."
        )
    return found


def _figures(panels: dict[str, list[MultiLabelRow]]) -> Table:
    """Return the pooled and averaged figures, before beside after."""
    when = list(panels)
    header = ["metric", *(cell for name in when for cell in ((name if len(when) > 1 else "value"), "95 %"))]
    rows = []
    for states in zip(*panels.values(), strict=True):
        first = states[0]
        average = "all labels pooled" if first.average == "pooled" else "mean over labels"
        rows.append(
            [f"{first.metric}, {average}", *(cell for row in states for cell in (f"{row.value:.4f}", _ends(row)))]
        )
    note = (
        "NLL in nats; Brier (p − y)²; Bias: mean probability − frequency; ECE in 15 bins of equal width. Intervals take rows, or "
        "their groups, for the units: labels of one row are not independent. The mean ECE over labels has no interval; perfectly "
        f"calibrated models would have {panels[when[-1]][-1].null_mean or 0:.4f} with these probabilities."
    )
    return Table("Figures", header, rows, note)


def _labels(name: str, found: LabelTable) -> Table:
    rows = [
        (
            row.label, f"{row.n:,}", f"{row.positives:,}", f"{row.confidence:.4f}", f"{row.rate:.4f}", f"{row.gap:+.4f}",
            "" if row.low is None or row.high is None else f"{row.low:+.4f} … {row.high:+.4f}", f"{row.ece:.4f}",
            "–" if row.p_adjusted is None else f"{row.p_adjusted:.2g}",
        )
        for row in found.rows
    ]  # fmt: skip
    return Table(f"Labels {name} calibration, the strongest evidence first", _HEADER, rows, _NOTE)


def _ends(row: MultiLabelRow) -> str:
    return "" if row.low is None or row.high is None else f"{row.low:.4f} … {row.high:.4f}"


def _pooled(states: Sequence[tuple[str, MultiLabelPredictions]]) -> list[tuple[str, str]]:
    """Return (caption, SVG) of the reliability diagram of all labels pooled."""
    found = []
    for name, data in states:
        diagram = diagram_of(data.pooled())
        figure = panel_figure(diagram, palette=PLACEHOLDERS, x="probability", y="frequency")
        what = f"All labels pooled, {name} calibration" if len(states) > 1 else "All labels pooled"
        caption = f"{what}: mean probability {100 * diagram.confidence:.2f} %, frequency {100 * diagram.accuracy:.2f} %"
        found.append((caption, inline_svg(figure, prefix=f"p{name[0]}")))
    return found


def _worst(data: MultiLabelPredictions, table: LabelTable) -> list[tuple[str, str]]:
    found = []
    for number, row in enumerate(table.tested[:PANELS]):
        figure = panel_figure(diagram_of(data.label(row.label)), palette=PLACEHOLDERS, x="probability", y="frequency")
        found.append((f"{row.label}: gap {row.gap:+.4f}, ECE {row.ece:.4f}", inline_svg(figure, prefix=f"l{number}")))
    return found


def _json(title: str, notes: list[str], panels: dict[str, list[MultiLabelRow]], labels: dict[str, LabelTable]) -> str:
    shown = {
        "title": title,
        "notes": notes,
        "rows": [{"when": name, **json_record(row)} for name, rows in panels.items() for row in rows],
        "labels": [{"when": name, **json_record(row)} for name, table in labels.items() for row in table.rows],
        "worst_label": [
            {"when": name, "p_value": table.p_value, "verdict": table.verdict} for name, table in labels.items()
        ],
        "versions": versions(),
    }
    return json.dumps(shown, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
