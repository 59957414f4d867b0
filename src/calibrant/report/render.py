"""Writes a report to one file: HTML that needs no network, or JSON. The same input gives the same bytes."""

import base64
import hashlib
import itertools
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant._core.config import json_data, own_version
from calibrant._files import as_path, check_suffix, write_whole
from calibrant.errors import InputError
from calibrant.evaluate.compare import Comparison
from calibrant.report.advice import MARGIN
from calibrant.report.figures import inline_svg
from calibrant.report.finding import Finding, diagnose
from calibrant.report.model import Block, Model, Table, fingerprint
from calibrant.report.sections import comparison_of, first_pictures, overview_of, pairs_of, sections_of


def write_report(
    models: Sequence[Model],
    path: str | os.PathLike[str],
    *,
    title: str = "Calibration report",
    tables: Sequence[Block] = (),
    notes: Sequence[str] = (),
    draws: int = 1000,
    margin: float = MARGIN,
) -> Path:
    """Write a self-contained report on one or more models to a single file.

    An existing file is replaced atomically.

    Args:
        models: At least one model; they are shown in this order.
        path: The file to write: HTML, or JSON if its name ends in .json.
        title: The heading.
        tables: Further tables, sentences (``Claims``) and figures as pairs (caption, data URL), shown in this order
            before the models. A JSON report contains only the tables.
        notes: Paragraphs below the heading.
        draws: Number of simulations for intervals and limits, ≥ 0; 0 omits both.
        margin: ECE above which a miscalibration is called large, in (0, 1).

    Returns:
        The path of the file.

    Raises:
        InputError: If there are no models, an argument is invalid, or the path has another suffix.
        FileFormatError: If the file cannot be written.

    Examples:
        >>> from calibrant.report import Model
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 3.0]], [0, 1, 1])
        >>> write_report([Model("tiny", data)], "report.json", draws=10).name
        'report.json'
    """
    format_of(path)
    if not models:
        raise InputError("at least one model", "none", "pass a list such as [Model('mine', predictions)]")
    if not 0 < margin < 1:
        raise InputError("margin in (0, 1)", f"{margin}", "write 0.02 for 2 points")
    findings = [diagnose(one, draws=draws, margin=margin) for one in models]
    write_findings(findings, path, pairs_of(findings) if draws else {}, title=title, tables=tables, notes=notes)
    return Path(path)


def write_findings(
    findings: Sequence[Finding],
    path: str | os.PathLike[str],
    pairs: dict[tuple[str, str], Comparison],
    *,
    title: str = "Calibration report",
    tables: Sequence[Block] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the findings on models, and the comparisons of pairs of them, as ``write_report`` does."""
    blocks = [*tables, *comparison_of(pairs, findings)]
    if format_of(path) == "json":
        content = {
            "title": title,
            "notes": list(notes),
            "tables": [json_data(block) for block in blocks if isinstance(block, Table)],
            "rows": [row.plain() for found in findings for state in found.states for row in state.rows],
            "models": [found.plain for found in findings],
            "comparisons": [
                {"a": a, "b": b, "calibrated": any(one.calibrated for one in findings), **json_data(found)}
                for (a, b), found in pairs.items()
            ],
            "versions": versions(),
        }
        write_whole(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return
    blocks += [overview_of(findings)] if len(findings) > 1 else []
    pages = [(found, first_pictures(found), sections_of(found, models=len(findings))) for found in findings]
    number = itertools.count()
    # render the page first: the security policy contains a hash of the script exactly as it is in the page
    page = _template().render(
        title=title,
        notes=notes,
        blocks=blocks,
        pages=pages,
        versions=versions(),
        fingerprint=fingerprint,
        svg=lambda picture: inline_svg(picture, prefix=f"f{next(number)}"),
    )
    page = re.sub(r"(?<=\d) %", "\u00a0%", page)  # no line break between a number and its percent sign
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    write_whole(path, page.replace("script-src 'none'", f"script-src 'sha256-{digest}'", 1))


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format of a report, "json" or "html", from the suffix of its path; the default is "html".

    Raises:
        InputError: If the path has any other suffix, which would mislead readers of the file.
    """
    format = "json" if as_path(path).suffix.lower() == ".json" else "html"
    check_suffix(path, (".html", ".htm", ".json"), what="a report")
    return format


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the numbers depend."""
    import scipy

    return {
        "calibrant": own_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def _template() -> Any:
    """Return the report template."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # group consecutive blocks of one kind, so that pictures are shown side by side
    made.filters["by_kind"] = lambda blocks: [
        (kind, [*group]) for kind, group in itertools.groupby(blocks, key=lambda block: type(block).__name__)
    ]
    return made.get_template("page.html")
