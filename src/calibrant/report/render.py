"""A report in one file: HTML that opens offline, Markdown, or JSON. The same input gives the same bytes."""

import json
import math
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant._check import check_choice
from calibrant._files import atomic_write
from calibrant.calibrators import AutoCalibrator
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators.auto import Evidence
from calibrant.errors import InputError
from calibrant.report.diagnosis import (
    BINS,
    MOST_ROWS,
    Curve,
    Diagram,
    Part,
    by_class,
    by_group,
    class_panels,
    diagram_of,
    group_panels,
    risk_coverage,
    worst_bins,
)
from calibrant.report.model import Model, Subject, Table, fingerprint
from calibrant.report.tables import Row, measure
from calibrant.report.words import HOW_TO_READ, LIMITS, bin_sentence, summary

FORMATS = ("html", "md", "json")


@dataclass(frozen=True)
class Section:
    """All that a report says of one model.

    Args:
        model: What it is about.
        before: Its figures before calibration.
        after: The same after, or none.
        diagrams: Reliability before and after, or None.
        curves: Risk by coverage, each with its label.
        classes: Every class, the worst calibrated first.
        groups: Every group of rows likewise.
        panels: Small diagrams by ``"class"`` and ``"group"``, each with its name.
        words: The findings.
        fingerprint: Of the data, 16 hexadecimal digits.
        remarks: What is left out and why.
    """

    model: Model | Subject
    before: list[Row]
    after: list[Row]
    diagrams: tuple[Diagram, Diagram | None]
    curves: list[tuple[str, Curve]]
    classes: list[Part]
    groups: list[Part]
    panels: dict[str, list[tuple[str, Diagram]]]
    words: list[str]
    fingerprint: str
    remarks: Sequence[str] = ()

    @property
    def worst(self) -> list[str]:
        """The worst bins of the last diagram, in words."""
        return [bin_sentence(found) for found in worst_bins(self.diagrams[1] or self.diagrams[0])]

    @property
    def calibrator_class(self) -> str | None:
        """What the calibrator does, in its own documentation's first sentence."""
        calibrator = self.model.calibrator
        if not isinstance(calibrator, Calibrator):
            return None
        return " ".join((type(calibrator).__doc__ or "").split("\n\n")[0].split()).replace("``", "")

    @property
    def reasons(self) -> list[str]:
        """Where the calibrator was fitted, and why it was chosen."""
        calibrator = self.model.calibrator
        if not isinstance(calibrator, Calibrator):
            return []
        chosen = [] if self.evidence is None else [self.evidence.verdict[:1].upper() + self.evidence.verdict[1:] + "."]
        rows = f"{len(calibrator.fit_rows):,} rows" if len(calibrator.fit_rows) else "rows that it kept no record of"
        return [*chosen, f"It was fitted on {rows}, none of which should be among those judged here."]

    @property
    def evidence(self) -> Evidence | None:
        """What an automatic choice weighed."""
        return self.model.calibrator.evidence if isinstance(self.model.calibrator, AutoCalibrator) else None


def write_report(
    models: Sequence[Model | Section],
    path: str | os.PathLike[str],
    *,
    title: str = "Calibration report",
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    pictures: Sequence[tuple[str, str]] = (),
    format: str | None = None,
    draws: int = 1000,
) -> Path:
    """Write one self-contained report on one or many models, atomically.

    Args:
        models: What to report on, in order; a ``Section`` is one that was diagnosed already, as of rows on disk.
        path: Where to write it.
        title: Its heading.
        tables: Tables computed elsewhere, shown before the models.
        notes: Paragraphs shown below the heading.
        pictures: (caption, address) of figures drawn elsewhere, shown after the tables of an HTML report.
        format: "html", "md" or "json"; None takes it from the suffix of ``path``, else "html".
        draws: Draws for intervals and null levels; 0 leaves both out.

    Returns:
        The path.

    Raises:
        InputError: If there are no models, or predictions lack labels.
        FileFormatError: If the file cannot be written.

    Example:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 3.0]], [0, 1, 1])
        >>> write_report([Model("tiny", data)], "report.md", draws=10).name
        'report.md'
    """
    if not models:
        raise InputError("expected at least one model to report on, got none; pass a list of Model")
    suffix = Path(path).suffix.removeprefix(".")
    chosen = check_choice(format or (suffix if suffix in FORMATS else "html"), name="format", choices=FORMATS)
    sections = [model if isinstance(model, Section) else diagnose(model, draws=draws) for model in models]
    text = {"html": _html, "md": _markdown, "json": _json}[chosen](
        {
            "title": title,
            "notes": list(notes),
            "tables": list(tables),
            "pictures": list(pictures),
            "sections": sections,
        }
    )
    with atomic_write(path) as file:
        file.write(text.encode())
    return Path(path)


def diagnose(model: Model, *, draws: int = 1000) -> Section:
    """Compute all that a report says of one model.

    Args:
        model: The model.
        draws: As in ``write_report``.
    """
    measured = partial(measure, file=model.source or model.name, split=model.split, draws=draws)
    before = measured(model.before)
    after = [] if model.after is None else measured(model.after, calibrator=model.calibrated_with)
    diagrams = (diagram_of(model.before), None if model.after is None else diagram_of(model.after))
    curves = [("before", risk_coverage(model.before))]
    if model.after is not None:
        curves.append(("after", risk_coverage(model.after)))
    return Section(
        model=model,
        before=before,
        after=after,
        diagrams=diagrams,
        curves=curves,
        classes=(classes := by_class(model)),
        groups=(groups := by_group(model)),
        panels={"class": class_panels(model, classes), "group": group_panels(model, groups)},
        words=summary(model, before, after, diagrams[0]),
        fingerprint=fingerprint(model.before),
    )


def evidence_in_plain(evidence: Evidence) -> dict[str, Any]:
    """Return the evidence as JSON data; what was not tried is None."""
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


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda value: "" if value is None else f"{100 * value:.2f} %"
    environment.globals.update(versions=versions(), limits=LIMITS, how_to_read=HOW_TO_READ, bins=BINS, most=MOST_ROWS)
    return environment


def _html(context: dict[str, Any]) -> str:
    from calibrant.report.vector import figures_of

    figures = [figures_of(section, prefix=f"s{i}") for i, section in enumerate(context["sections"])]
    page = _environment().get_template("report.html").render(**context, figures=figures)
    return re.sub(r"(?<=\d) %", "\u00a0%", page)  # a number and its sign stay on one line


def _markdown(context: dict[str, Any]) -> str:
    return _environment().get_template("report.md").render(**context)


def _json(context: dict[str, Any]) -> str:
    models = [
        {
            "name": section.model.name,
            "source": section.model.source,
            "calibrator": section.model.calibrated_with,
            "fingerprint": section.fingerprint,
            "evidence": None if section.evidence is None else evidence_in_plain(section.evidence),
            "words": section.words,
            "worst_bins": section.worst,
            "remarks": list(section.remarks),
            "diagram_before": asdict(section.diagrams[0]),
            "diagram_after": None if section.diagrams[1] is None else asdict(section.diagrams[1]),
            "classes": [asdict(part) for part in section.classes],
            "groups": [asdict(part) for part in section.groups],
        }
        for section in context["sections"]
    ]
    rows = [row.plain() for section in context["sections"] for row in [*section.before, *section.after]]
    tables = [asdict(table) for table in context["tables"]]
    shown = {"title": context["title"], "notes": context["notes"], "tables": tables, "rows": rows, "models": models}
    return json.dumps(shown | {"versions": versions()}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
