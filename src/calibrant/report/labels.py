"""The report on predictions of several labels a row: pooled and averaged figures, every label, the worst of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from shlex import quote
from typing import Any

from calibrant._core.config import json_data
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.evaluate import label_table, multilabel_panel
from calibrant.evaluate.multilabel import LabelRow, LabelTable, MultiLabelRow
from calibrant.plot.diagrams import diagram_of
from calibrant.report.advice import LABELS, MARGIN, Advice, Verdict, stem_of
from calibrant.report.figures import panel_pictures
from calibrant.report.model import Page, Picture, Section, Table, table_of_states
from calibrant.report.render import check_format, write_html, write_json
from calibrant.report.wording import (
    HOW_TO_READ_LABELS,
    TO_DO,
    UNSEEN,
    counted,
    limits_of,
    lower_first,
    points,
    signed,
    too_high_or_low,
)

PANELS = 6  # labels with a diagram of their own
POOLED = {
    "Bias": "Away from 0: recalibrate on recent rows: events are rarer (+) or more frequent (−). Opposite labels cancel: see below.",
    "ECE": "If that is too much, calibrate: a probability is off by it on average.",
}
CHANCE = "Compare it with calibrated models (below): label by label, chance makes most of it."
ALIKE = "The same with every label counting alike."
HEADER = ("label", "rows", "positive", "mean probability %", "frequency %", "gap", "95 %", "ECE %", "p, all labels")
NOTE = (
    "Gap: mean probability − frequency, in points. p, all labels: the chance of a gap as clear as this in any label of a model of "
    "which each label is calibrated; – where a label has fewer than 100 rows or 5 expected events."
)


@dataclass(frozen=True, eq=False)
class LabelReport:
    """Predictions of several labels a row, before and after calibration, with what the page says of them.

    Args:
        name: Of the model.
        before: Labelled predictions.
        after: The same rows calibrated, or None.
        calibrator: What made them, or None.
        source: File the rows came from.
        split: Name of the split.
        argument: The file and the options that read it, for the commands that the report recommends.
        whole: Whether the file has no other split that a calibrator could be fitted on.
        draws: As in ``evaluate.multilabel_panel``.
    """

    name: str
    before: MultiLabel
    after: MultiLabel | None
    calibrator: MultiLabelCalibrator | None
    source: str
    split: str
    argument: str
    whole: bool
    draws: int = 1000

    @cached_property
    def states(self) -> dict[str, MultiLabel]:
        """The predictions before calibration, and after it if there is a calibrator."""
        return {"before": self.before} | ({} if self.after is None else {"after": self.after})

    @cached_property
    def panels(self) -> dict[str, list[MultiLabelRow]]:
        """The figures of each state."""
        return {name: multilabel_panel(data, draws=self.draws) for name, data in self.states.items()}

    @cached_property
    def labels(self) -> dict[str, LabelTable]:
        """The labels of each state."""
        return {name: label_table(data) for name, data in self.states.items()}

    @property
    def off(self) -> list[LabelRow]:
        """The labels that are off before calibration, by the test that accounts for their number."""
        table = self.labels["before"]
        return [row for row in table.tested if row.p_adjusted is not None and row.p_adjusted < 1 - table.level]

    @property
    def worst(self) -> LabelRow | None:
        """The label of the largest mean gap before calibration: of those that are off, or of all that are tested."""
        return max(self.off or self.labels["before"].tested, key=lambda row: abs(row.gap), default=None)

    @property
    def screen(self) -> Verdict:
        """The verdict of the first screen."""
        table, found, worst = self.labels["before"], self.off, self.worst
        if worst is None:
            return Verdict("unclear", "Too few rows or events to test any label", table.verdict)
        if not found:
            detail = f"The largest gap is that of {worst.label}, {points(abs(worst.gap))}; chance gives as much. {table.verdict}"
            return Verdict("unclear", f"No label of {len(table.tested)} is significantly off on average", detail)
        side = f"{too_high_or_low(worst.gap)} for {worst.label!r}"
        headline = f"Probabilities are {side}: significant"
        if len(found) > 1:  # the others may be off in another direction, or in single ranges alone
            headline = f"{len(found)} of {len(table.tested)} labels are significantly off; the largest mean gap: {side}"
        after = "" if self.after is None else f" After calibration: {lower_first(self.labels['after'].verdict)}"
        return Verdict("large" if abs(worst.gap) >= MARGIN else "small", headline, table.verdict + after)

    @property
    def advice(self) -> Advice:
        """What to do, with the commands for it."""
        suffix = PurePath(self.source).suffix or ".npz"
        saved = quote(f"{stem_of(self.source, name=self.name)}-calibrator.safetensors")
        fit, new = (self.argument.replace(quote(self.source), name + suffix, 1) for name in ("other", "new"))
        commands = [
            ("fit", f"calibrant fit {fit if self.whole else self.argument} --multilabel -o {saved}"),
            ("ship", f"calibrant apply {saved} {LABELS.sub('', new)} --multilabel -o new-calibrated{suffix}"),
            ("check", f"calibrant evaluate {self.argument} --multilabel --calibrator {saved}"),
        ]
        if self.after is None:
            return Advice("Calibrate each label on labelled rows other than these.", [], commands)
        before, after = (next(row for row in rows if row.metric == "NLL") for rows in self.panels.values())
        reason = f"The log-loss of all labels pooled is {before.value:.4f} before and {after.value:.4f} after."
        if after.value >= before.value:
            return Advice("Leave the model as it is: calibration does not lower its log-loss.", [reason], [])
        headline = "Calibrate each label: a slope and a bias, rare labels shrunk towards the pool."
        return Advice(headline, [reason], commands)

    @property
    def words(self) -> list[str]:
        """The facts behind the verdict as sentences."""
        data, calibrator, missing = self.before, self.calibrator, int((~self.before.known).sum())
        split = f", split {self.split}" if self.split != "all" and not self.whole else ""
        unseen = f", {UNSEEN}" if calibrator is not None and len(calibrator.fit_rows) else ""
        lacking = f"; {missing:,} labels are missing" if missing else ""
        where = f"{PurePath(self.source).name}{split}{unseen}{lacking}"
        rows = f"{len(data):,} rows of {len(data.names)} labels from {where}"
        facts = [f"{self.name}: {rows}. The event of each label is that it is 1."]
        if calibrator is not None:
            # a label without enough events keeps the calibrator of all labels together
            kept = sum(fact.pooled == 1 for fact in calibrator.labels_fitted)
            pooled = f"; {counted(kept, 'label keeps', 'labels keep')} the pool's calibrator" if kept else ""
            base = type(calibrator.base).__name__
            facts.append(f"Calibrated by {base} a label, rare labels shrunk towards the pool{pooled}.")
        return facts

    @property
    def figures(self) -> Table:
        """The pooled and averaged figures, before beside after."""
        rows: list[tuple[Any, ...]] = []
        for states in zip(*self.panels.values(), strict=True):
            metric, pooled = states[0].metric, states[0].average == "pooled"
            cells = [(signed(row.value, ".4f"), _ends(row.low, row.high, ".4f")) for row in states]
            if rows and rows[-1][1] == cells:  # every label is known in as many rows: both averages are one
                rows[-1] = f"{metric}, all labels", cells, rows[-1][2]
                continue
            todo = (TO_DO | POOLED)[metric] if pooled else CHANCE if metric == "ECE" else ALIKE
            rows.append((f"{metric}, {'all labels pooled' if pooled else 'mean over labels'}", cells, todo))
        note = (
            "NLL in nats; Brier (p − y)²; Bias: mean probability − frequency; ECE in 15 bins of equal width. Intervals take rows, or "
            "their groups, for the units: labels of one row are not independent. The mean ECE over labels has no interval; "
            f"perfectly calibrated models would have {[*self.panels.values()][-1][-1].null_mean or 0:.4f} with these probabilities."
        )
        return table_of_states("Figures", "metric", rows, states=len(self.panels), more=("what to do",), note=note)

    @property
    def plain(self) -> dict[str, Any]:
        """The figures as JSON data."""
        tables = self.labels.items()
        return {
            "rows": [{"when": name, **json_data(row)} for name, rows in self.panels.items() for row in rows],
            "labels": [{"when": name, **json_data(row)} for name, table in tables for row in table.rows],
            "worst_label": [{"when": name, "p_value": x.p_value, "verdict": x.verdict} for name, x in tables],
        }


def page_of_labels(report: LabelReport) -> Page:
    """Return the page on predictions of several labels a row."""
    when_of = {"before": ", before calibration", "after": ", after calibration"} if report.after else {"before": ""}
    when, last = list(report.states.items())[-1]
    worst, named = report.worst, dict[str, Pairs]()
    if worst is not None:
        named = {f"{worst.label}{when_of[name]}": x.label(worst.label) for name, x in report.states.items()}
    named |= {f"All labels pooled{when_of[name]}": x.pooled() for name, x in report.states.items()}
    large = dict(list(named.items())[:2])  # two stand beside each other
    small = {
        f"{row.label}: gap {100 * row.gap:+.2f} points, ECE {100 * row.ece:.2f} %": last.label(row.label)
        for row in report.labels[when].tested[:PANELS]
    } | {name: events for name, events in named.items() if name not in large}
    tables = [_table_of_labels(name, found) for name, found in report.labels.items()]
    sections = [
        Section("", [report.figures, *tables], folded=False),
        Section("The labels with the strongest evidence", _pictures(small, "l", small=True), folded=False),
    ]
    pictures = _pictures(large, "p", small=False)
    return Page(report.name, report.screen, report.advice, report.words, pictures, HOW_TO_READ_LABELS, sections)


def write_label_report(
    report: LabelReport, path: str, *, title: str, format: str | None, notes: Sequence[str] = ()
) -> None:
    """Write one self-contained report on predictions of several labels a row, atomically.

    Args:
        report: The predictions, and what the page says of them.
        path: Where to write it.
        title: Its heading.
        format: "html" or "json"; None takes it from the suffix of ``path``, else "html".
        notes: Paragraphs shown below the heading.

    Raises:
        InputError: If a label is missing in all rows.
        FileFormatError: If the file cannot be written.
    """
    if check_format(path, format) == "json":
        write_json(path, {"title": title, "notes": [*notes, *report.words], **report.plain})
    else:
        limits = limits_of(top=False, labels=True)
        write_html(path, [page_of_labels(report)], title=title, notes=notes, limits=limits)


def _table_of_labels(name: str, found: LabelTable) -> Table:
    rows = []
    for row in found.rows:
        means = [f"{100 * value:.2f}" for value in (row.confidence, row.rate)]
        gap = [signed(100 * row.gap), _ends(row.low, row.high, "+.2f", scale=100)]
        rows.append([row.label, f"{row.n:,}", f"{row.positives:,}", *means, *gap, f"{100 * row.ece:.2f}", row.p_shown])
    return Table(f"Labels {name} calibration, the strongest evidence first", HEADER, rows, NOTE)


def _ends(low: float | None, high: float | None, form: str, *, scale: int = 1) -> str:
    return "" if low is None or high is None else f"{signed(scale * low, form)} … {signed(scale * high, form)}"


def _pictures(named: Mapping[str, Pairs], prefix: str, *, small: bool) -> list[Picture]:
    """Return a reliability diagram of each caption's events, all on the whole scale."""
    diagrams = []
    for caption, events in named.items():
        one = diagram_of(events)
        means = f"mean probability {100 * one.confidence:.2f} %, frequency {100 * one.accuracy:.2f} %"
        diagrams.append((f"{caption}: {means}", one))
    return panel_pictures(diagrams, prefix=prefix, event=True, small=small)
