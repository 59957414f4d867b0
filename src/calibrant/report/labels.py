"""The report on predictions of several labels a row: pooled and averaged figures, every label, the worst of them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
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
from calibrant.report.advice import Advice
from calibrant.report.figures import PLACEHOLDERS, dot_titles, inline_svg, panel_figure
from calibrant.report.model import Picture, Table
from calibrant.report.render import check_format, environment, finished, versions
from calibrant.report.tables import json_record
from calibrant.report.verdict import MARGIN, Verdict, points
from calibrant.report.wording import HOW_TO_READ_LABELS

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
        argument: The file and the options that read it, for the commands that the report recommends; empty takes the source.
        whole: Whether the file has no other split that a calibrator could be fitted on.
    """

    name: str
    before: MultiLabelPredictions
    after: MultiLabelPredictions | None = None
    calibrator: MultiLabelCalibrator | None = None
    source: str = ""
    split: str = ""
    argument: str = ""
    whole: bool = False

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
    screen = Screen(subject.name, _verdict(labels["before"]), notes, _advice(subject, panels))
    if chosen == "json":
        text = _json(title, notes, panels, labels)
    else:
        context: dict[str, Any] = {"title": title, "blocks": tables}
        if chosen == "html":
            last, table = states[-1][1], labels[states[-1][0]]
            context |= {"section": screen, "notes": [], "how": HOW_TO_READ_LABELS, "pictures": _pooled(states)}
            text = finished("labels.html", context | {"panels": _worst(last, table)})
        else:
            head = [f"{screen.verdicts[0].headline}.", screen.advice.headline, *screen.advice.reasons, *notes]
            head += [screen.verdicts[0].detail, *(f"`{command}`" for _, command in screen.advice.commands)]
            text = environment(markdown=True).get_template("report.md").render(**context, notes=head, sections=[])
    with atomic_write(path) as file:
        file.write(text.encode())
    return Path(path)


@dataclass(frozen=True)
class Screen:
    """The first screen of a report on several labels: what is wrong, how sure that is, what to do.

    Args:
        name: Of the model.
        verdict: On its labels before calibration.
        words: Facts.
        advice: What to do.
    """

    name: str
    verdict: Verdict
    words: list[str]
    advice: Advice

    @property
    def verdicts(self) -> tuple[Verdict, None]:
        """The verdict, as every section has it."""
        return self.verdict, None


def _verdict(table: LabelTable) -> Verdict:
    """Return the verdict on the label with the strongest evidence; ``label_table`` accounts for their number."""
    if not table.tested:
        return Verdict("unclear", "Too few rows or events to test any label", table.verdict)
    found = [row for row in table.tested if row.p_adjusted is not None and row.p_adjusted < 1 - table.level]
    worst = max(found or table.tested, key=lambda row: abs(row.gap))
    if not found:
        detail = (
            f"The largest gap is that of {worst.label}, {points(abs(worst.gap))}; chance gives as much. {table.verdict}"
        )
        return Verdict("unclear", f"No label of {len(table.tested)} is significantly off on average", detail)
    side = "high" if worst.gap > 0 else "low"
    others = "" if len(found) == 1 else f" and {len(found) - 1} more"
    headline = f"Probabilities are too {side} by {points(abs(worst.gap))} for {worst.label}{others}: significant"
    return Verdict("large" if abs(worst.gap) >= MARGIN else "small", headline, table.verdict)


def _advice(subject: LabelReport, panels: dict[str, list[MultiLabelRow]]) -> Advice:
    file = subject.argument or quote(subject.source or "labels.npz")
    saved, suffix = (
        quote(f"{Path(subject.source).stem or 'labels'}-labels.safetensors"),
        Path(subject.source).suffix or ".npz",
    )
    fit = file if not subject.whole else file.replace(quote(subject.source), f"other{suffix}", 1)
    new = file.replace(quote(subject.source), f"new{suffix}", 1) if subject.source else "new.npz"
    commands = [
        ("fit", f"calibrant fit {fit} --multilabel -o {saved}"),
        ("ship", f"calibrant apply {saved} {new} --multilabel -o new-calibrated{suffix}"),
        ("check", f"calibrant evaluate {file} --multilabel --calibrator {saved}"),
    ]
    if "after" not in panels:
        return Advice("Calibrate each label on labelled rows other than these.", [], commands)
    before, after = (next(row for row in panels[name] if row.metric == "NLL") for name in ("before", "after"))
    reason = f"The log-loss of all labels pooled is {before.value:.4f} before and {after.value:.4f} after."
    if after.value >= before.value:
        return Advice("Leave the model as it is: calibration does not lower its log-loss.", [reason], [])
    return Advice("Calibrate each label: a slope and a bias, rare labels shrunk towards the pool.", [reason], commands)


def _notes(subject: LabelReport, labels: dict[str, LabelTable]) -> list[str]:
    before = subject.before
    missing = int((~before.known).sum())
    split = f", split {subject.split}" if subject.split and subject.split != "all" else ""
    place = f" from {subject.source}{split}" if subject.source else ""
    rows = f"{len(before):,} rows of {len(before.names)} labels{place}; {missing:,} labels are missing."
    found = [f"{subject.name}: {rows} The event of each label is that it is 1; there is no top label."]
    found += [f"After: {table.verdict}" for name, table in labels.items() if name == "after"]
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


def _pooled(states: Sequence[tuple[str, MultiLabelPredictions]]) -> list[Picture]:
    """Return the reliability diagram of all labels pooled."""
    found = []
    for name, data in states:
        diagram = diagram_of(data.pooled())
        figure = panel_figure(diagram, palette=PLACEHOLDERS, x="probability", y="frequency")
        what = f"All labels pooled, {name} calibration" if len(states) > 1 else "All labels pooled"
        caption = f"{what}: mean probability {100 * diagram.confidence:.2f} %, frequency {100 * diagram.accuracy:.2f} %"
        titles = dot_titles(diagram, "mean probability", "frequency")
        found.append(Picture(caption, inline_svg(figure, prefix=f"p{name[0]}", titles=titles)))
    return found


def _worst(data: MultiLabelPredictions, table: LabelTable) -> list[Picture]:
    found = []
    for number, row in enumerate(table.tested[:PANELS]):
        diagram = diagram_of(data.label(row.label))
        figure = panel_figure(diagram, palette=PLACEHOLDERS, x="probability", y="frequency")
        svg = inline_svg(figure, prefix=f"l{number}", titles=dot_titles(diagram, "mean probability", "frequency"))
        found.append(Picture(f"{row.label}: gap {row.gap:+.4f}, ECE {row.ece:.4f}", svg))
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
