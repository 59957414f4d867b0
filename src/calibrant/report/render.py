"""A report in one file: HTML that opens offline, or JSON. The same input gives the same bytes."""

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant._core.check import check_choice
from calibrant._core.config import json_data, own_version
from calibrant._files import as_path, check_suffix, write_whole
from calibrant.errors import InputError
from calibrant.report.advice import MARGIN
from calibrant.report.comparison import better_of, pairs_of
from calibrant.report.finding import diagnose
from calibrant.report.model import Block, Model, Page, Table
from calibrant.report.sections import overview_of, page_of
from calibrant.report.wording import limits_of

SUFFIXES = {"html": (".html", ".htm"), "json": (".json",)}
WORDY = ("what to do", "verdict, what to do")  # columns of sentences


def write_report(
    models: Sequence[Model],
    path: str | os.PathLike[str],
    *,
    title: str = "Calibration report",
    tables: Sequence[Block] = (),
    notes: Sequence[str] = (),
    format: str | None = None,
    draws: int = 1000,
    margin: float = MARGIN,
) -> Path:
    """Write one self-contained report on one or many models, atomically.

    Args:
        models: The models in order, at least one.
        path: Where to write it.
        title: Its heading.
        tables: Tables computed elsewhere, sentences as ``Claims``, and (caption, address) of figures drawn elsewhere, shown
            before the models in this order; JSON holds the tables alone.
        notes: Paragraphs shown below the heading.
        format: "html" or "json"; None takes it from the suffix of ``path``, else "html".
        draws: Simulation draws for intervals and limits, ≥ 0; 0 leaves both out.
        margin: ECE above which a miscalibration is called large, in (0, 1).

    Returns:
        The path.

    Raises:
        InputError: If there are no models, or predictions lack labels.
        FileFormatError: If the file cannot be written.

    Examples:
        >>> from calibrant.report import Model
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 3.0]], [0, 1, 1])
        >>> write_report([Model("tiny", data)], "report.json", draws=10).name
        'report.json'
    """
    chosen = check_format(path, format)
    if not models:
        raise InputError("at least one of models", "none", "pass a list such as [Model('mine', predictions)]")
    if not 0 < margin < 1:
        raise InputError("margin in (0, 1)", f"{margin}", "write 0.02 for 2 points")
    findings = [diagnose(one, draws=draws, margin=margin) for one in models]
    pairs = pairs_of(models) if draws else {}
    blocks = [*better_of(pairs, findings), *tables]
    if chosen == "json":
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
        }
        return write_json(path, content)
    blocks += [overview_of(findings)] if len(findings) > 1 else []
    pages = [page_of(found, prefix=f"s{place}", models=len(models)) for place, found in enumerate(findings)]
    limits = limits_of(top=any(not found.events for found in findings))
    return write_html(path, pages, title=title, notes=notes, blocks=blocks, limits=limits)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Write ``content`` and the versions that it depends on as JSON."""
    text = json.dumps({**content, "versions": versions()}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, text)
    return Path(path)


def write_html(
    path: str | os.PathLike[str],
    pages: Sequence[Page],
    *,
    title: str,
    limits: Sequence[str],
    notes: Sequence[str] = (),
    blocks: Sequence[Block] = (),
) -> Path:
    """Write one HTML file whose policy lets its own script run, by its hash, and no other.

    Args:
        path: Where to write it.
        pages: One for each model.
        title: Its heading.
        limits: What it cannot say.
        notes: Paragraphs below the heading.
        blocks: Shown before the models.
    """
    known = {"title": title, "notes": notes, "blocks": blocks, "pages": pages, "limits": limits}
    # rendered whole before the hash is taken: the policy names the script as it stands in the page
    page = environment().get_template("page.html").render(**known)
    page = re.sub(r"(?<=\d) %", "\u00a0%", page)  # no line break between a number and its percent sign
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    write_whole(path, page.replace("script-src 'none'", f"script-src 'sha256-{digest}'", 1))
    return Path(path)


def check_format(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a report at ``path``: "html" or "json".

    Args:
        path: Where it is written.
        format: The format, or None to take it from the suffix, else HTML.

    Raises:
        InputError: For another format, or a suffix that contradicts it.
    """
    # a suffix that says another format than was asked for would mislead every reader of the file
    suffix = as_path(path).suffix.lower()
    known = {name: kind for kind, names in SUFFIXES.items() for name in names}
    chosen = check_choice(format or known.get(suffix, "html"), name="format", choices=tuple(SUFFIXES))
    check_suffix(path, SUFFIXES[chosen], what=f"a report in {chosen}")
    return chosen


def versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    import scipy

    return {
        "calibrant": own_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


@cache
def environment() -> Any:
    """Return what renders the templates of reports; it compiles each once for the process, which takes as long as a picture."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"soft": _soft, "code": _code, "groups": _in_groups}
    made.globals |= {"versions": versions(), "wordy": WORDY}
    return made


def _in_groups(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Return consecutive blocks of one kind together: pictures stand side by side."""

    def kind_of(block: Block) -> str:
        return "text" if isinstance(block, str) else getattr(block, "kind", "image")

    return [(kind, list(group)) for kind, group in groupby(blocks, key=kind_of)]


def _soft(name: Any) -> Any:
    """Return a name, or a word of a command, as HTML that may break behind an underscore, slash or bracket, and not within a word."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/(]+|\)\.)", r"\1<wbr>", str(escape(name))))


def _code(sentence: str) -> Any:
    """Return a sentence as HTML with what stands in backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))
