"""A report in one file: HTML that opens offline, Markdown, or JSON. The same input gives the same bytes."""

import base64
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import torch

from calibrant._core.check import check_choice, check_count, check_sequence, refuse, shown
from calibrant._core.paths import as_path, atomic_write, check_suffix
from calibrant.binning import EqualWidth
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto.auto import Evidence
from calibrant.data.leakage import rows_of
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.plot.arguments import check_label
from calibrant.plot.diagrams import Diagram, diagram_of
from calibrant.plot.risk import Curve, risk_curve
from calibrant.report.advice import Advice, Gain, advice_of, gains_of
from calibrant.report.diagnosis import (
    BINS,
    MOST_ROWS,
    Part,
    by_class,
    by_group,
    class_panels,
    group_panels,
    worst_bins,
)
from calibrant.report.groups_report import FIRST, PROMISE, Audit, audit_of, group_findings
from calibrant.report.model import Model, Subject, Table, fingerprint
from calibrant.report.tables import Row, measure
from calibrant.report.verdict import MARGIN, Verdict, check_margin, find_row, verdict_of
from calibrant.report.wording import GLOSSARY, HOW_TO_READ, LIMITS, bin_sentence, summary, weight_remarks

SUFFIXES = {"html": (".html", ".htm"), "md": (".md", ".markdown", ".txt"), "json": (".json",)}
FORMATS = tuple(SUFFIXES)
T = TypeVar("T")


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

    @property
    def advice(self) -> Advice:
        """The recommendation."""
        return advice_of(self.model, *self.verdicts, self.gains, margin=self.margin)

    @property
    def ece(self) -> tuple[Row, Row | None]:
        """The rows of the ECE before and after."""
        before = find_row(self.before, ECE())
        assert before is not None
        return before, find_row(self.after, ECE())

    @property
    def shown(self) -> list[tuple[Row, Row | None]]:
        """The rows of the table, before and after, without uninformative ones."""
        after: Sequence[Row | None] = self.after or [None] * len(self.before)
        return [pair for pair in zip(self.before, after, strict=True) if not pair[0].says_nothing]

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


def write_report(
    models: Sequence[Model | Section],
    path: str | os.PathLike[str],
    *,
    title: str = "Calibration report",
    tables: Sequence[Table | tuple[str, str]] = (),
    notes: Sequence[str] = (),
    format: str | None = None,
    draws: int = 1000,
    margin: float = MARGIN,
) -> Path:
    """Write one self-contained report on one or many models, atomically.

    Args:
        models: The models in order; pass a ``Section`` for one that is already diagnosed, such as rows on disk.
        path: Where to write it.
        title: Its heading.
        tables: Tables computed elsewhere, and (caption, address) of figures drawn elsewhere, shown before the models: first
            the tables, then in HTML the figures.
        notes: Paragraphs shown below the heading.
        format: "html", "md" or "json"; None takes it from the suffix of ``path``, else "html".
        draws: Simulation draws for intervals and limits; 0 leaves both out.
        margin: ECE above which a miscalibration is called large, in (0, 1); a ``Section`` has its own.

    Returns:
        The path.

    Raises:
        InputError: If there are no models, or predictions lack labels.
        FileFormatError: If the file cannot be written.

    Examples:
        >>> from calibrant.report import Model
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 3.0]], [0, 1, 1])
        >>> write_report([Model("tiny", data)], "report.md", draws=10).name
        'report.md'
    """
    given = check_sequence(models, name="models")
    if not given:
        raise InputError("expected at least one model to report on, got none; pass a list of Model")
    for model in given:
        if not isinstance(model, Model | Section):
            raise refuse("models as Model or Section", shown(model), "pass a list such as [Model('mine', predictions)]")
    check_count(draws, name="draws", low=0)
    check_label(title, name="title")
    _check_extras(tables, notes)
    chosen = check_format(path, format)
    sections = [model if isinstance(model, Section) else diagnose(model, draws=draws, margin=margin) for model in given]
    text = {"html": _html, "md": _markdown, "json": _json}[chosen](
        {
            "title": title,
            "notes": list(notes),
            "tables": [one for one in tables if isinstance(one, Table)],
            "pictures": [one for one in tables if not isinstance(one, Table)],
            "sections": sections,
        }
    )
    with atomic_write(path) as file:
        file.write(text.encode())
    return Path(path)


def check_format(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a report at ``path``: "html", "md" or "json".

    Args:
        path: Where it is written.
        format: The format, or None to take it from the suffix, else HTML.

    Raises:
        InputError: For another format, or a suffix that contradicts it.
    """
    suffix = as_path(path).suffix.lower()
    known = {name: kind for kind, names in SUFFIXES.items() for name in names}
    chosen = check_choice(known.get(suffix, "html") if format is None else format, name="format", choices=FORMATS)
    check_suffix(path, SUFFIXES[chosen], what=f"a report in {chosen}")
    return chosen


def _check_extras(tables: Sequence[Table | tuple[str, str]], notes: Sequence[str]) -> None:
    for one in check_sequence(tables, name="tables"):
        if not isinstance(one, Table) and not _is_picture(one):
            remedy = "pass a list of calibrant.report.Table, or two strings a figure"
            raise refuse("tables as Table, or figures as (caption, address)", shown(one), remedy)
    for note in check_sequence(notes, name="notes"):
        check_label(note, name="every note")


def _is_picture(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def diagnose(model: Model, *, draws: int = 1000, margin: float = MARGIN) -> Section:
    """Return the content of a report on one model.

    Args:
        model: The model.
        draws: As in ``write_report``.
        margin: As in ``write_report``.
    """
    check_margin(margin)
    file = PurePath(model.source).name or model.name
    measured = partial(measure, file=file, split=model.split, draws=draws)
    states = [model.before] if model.after is None else [model.before, model.after]
    names = [None, model.calibrated_with]
    figures = [measured(data, calibrator=name) for data, name in zip(states, names, strict=False)]
    diagrams = [diagram_of(data) for data in states]
    histograms = [diagram_of(data, binning=EqualWidth(BINS)) for data in states]
    verdicts = [verdict_of(rows, d, margin=margin) for rows, d in zip(figures, diagrams, strict=True)]
    classes, groups, audit = by_class(model), by_group(model), audit_of(model)
    words = summary(model, figures[0], figures[1] if len(figures) > 1 else [], diagrams[0])
    return Section(
        model=model,
        before=figures[0],
        after=figures[1] if len(figures) > 1 else [],
        diagrams=before_after(diagrams),
        histograms=before_after(histograms),
        verdicts=before_after(verdicts),
        gains=gains_of(model, draws=draws),
        margin=margin,
        curves=[(name, risk_curve(data)) for name, data in zip(("before", "after"), states, strict=False)],
        classes=classes,
        groups=groups,
        panels={"class": class_panels(model, classes), "group": group_panels(model, groups)},
        words=words + group_findings(audit),
        fingerprint=fingerprint(model.before),
        remarks=weight_remarks(model.before),
        audit=audit,
    )


def before_after(found: Sequence[T]) -> tuple[T, T | None]:
    """Return ``found`` as (before, after), with None for a missing second element.

    Args:
        found: One or two elements.
    """
    return found[0], found[1] if len(found) > 1 else None


def evidence_in_plain(evidence: Evidence) -> dict[str, Any]:
    """Return the evidence as JSON data; figures of candidates that were not tried are None."""
    plain = asdict(evidence)
    finite = [{k: None if v in (math.inf, -math.inf) else v for k, v in trial.items()} for trial in plain["trials"]]
    return plain | {"trials": finite}


def versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    import scipy

    return {
        "calibrant": vars(sys.modules["calibrant"])["__version__"],  # the layer above this one, so not imported
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def environment(*, markdown: bool = False) -> Any:
    """Return what renders the templates of reports.

    Args:
        markdown: Whether text is escaped so that Markdown renderers do not read it as HTML.
    """
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["soft"] = _soft
    made.filters["percent"] = lambda value: "" if value is None else f"{100 * value:.2f} %"
    made.globals.update(versions=versions(), limits=LIMITS, how_to_read=HOW_TO_READ, most=MOST_ROWS)
    made.globals.update(glossary=GLOSSARY, promise=PROMISE, first_groups=FIRST)
    if markdown:
        made.finalize = _without_tags
    return made


def _soft(name: Any) -> Any:
    """Return a name as HTML that may break behind an underscore or a slash, and not within a word."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/]+)", r"\1<wbr>", str(escape(name))))


def _html(context: dict[str, Any]) -> str:
    from calibrant.report.figures import figures_of

    figures = [figures_of(section, prefix=f"s{i}") for i, section in enumerate(context["sections"])]
    page = environment().get_template("report.html").render(**context, figures=figures)
    page = re.sub(r"(?<=\d) %", "\u00a0%", page)  # no line break between a number and its percent sign
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page.replace("script-src 'none'", f"script-src 'sha256-{digest}'", 1)  # this script and no other runs


def _markdown(context: dict[str, Any]) -> str:
    return environment(markdown=True).get_template("report.md").render(**context)


def _without_tags(value: Any) -> Any:
    """Return text escaped so that Markdown renderers do not read titles and names as HTML."""
    return value.replace("&", "&amp;").replace("<", "&lt;") if isinstance(value, str) else value


def _json(context: dict[str, Any]) -> str:
    models = [
        {
            "name": section.model.name,
            "source": section.source,
            "calibrator": section.model.calibrated_with,
            "fingerprint": section.fingerprint,
            "evidence": None if section.evidence is None else evidence_in_plain(section.evidence),
            "verdict_before": asdict(section.verdicts[0]),
            "verdict_after": None if section.verdicts[1] is None else asdict(section.verdicts[1]),
            "margin": section.margin,
            "advice": asdict(section.advice),
            "gains": [asdict(gain) for gain in section.gains],
            "words": section.words,
            "worst_bins": section.worst,
            "remarks": list(section.remarks),
            "diagram_before": asdict(section.diagrams[0]),
            "diagram_after": None if section.diagrams[1] is None else asdict(section.diagrams[1]),
            "classes": [asdict(part) for part in section.classes],
            "groups": [asdict(part) for part in section.groups],
            "for_whom": None if section.audit is None else asdict(section.audit),
        }
        for section in context["sections"]
    ]
    rows = [row.plain() for section in context["sections"] for row in [*section.before, *section.after]]
    tables = [asdict(table) for table in context["tables"]]
    shown = {"title": context["title"], "notes": context["notes"], "tables": tables, "rows": rows, "models": models}
    return json.dumps(shown | {"versions": versions()}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
