"""``calibrant methods`` lists all losses, calibrators and metrics."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click

from calibrant.cli import options
from calibrant.cli.terminal import print_json, print_text

FAMILIES = ("losses", "calibrators", "metrics")


@click.command()
@click.argument("family", required=False, type=click.Choice(FAMILIES))
@options.as_json
def methods(family: str | None, as_json: bool) -> None:
    """List every loss, calibrator and metric with a description, its properties and its source.

    Examples:

        calibrant methods

        calibrant methods calibrators
    """
    found = {name: [_entry(*member) for member in members(name)] for name in ([family] if family else FAMILIES)}
    if as_json:
        print_json(found)
        return
    for name, entries in found.items():
        print_text(f"{name} ({len(entries)})", bold=True)
        for entry in entries:
            facts = " · ".join(filter(None, (entry["properties"], entry["source"])))
            print_text(f"{entry['name']}  {entry['what']}")
            print_text(f"    {facts}" if facts else "", dim=True)


def members(family: str) -> Iterator[tuple[str, type]]:
    """Yield the concrete classes of a family with their names, in the order of its ``__all__``."""
    import calibrant

    home = getattr(calibrant, family)
    base = {"metrics": calibrant.metrics.Metric, "calibrators": calibrant.calibrators.Calibrator}.get(family, object)
    for name in home.__all__:
        one = getattr(home, name)
        if isinstance(one, type) and issubclass(one, base) and not inspect.isabstract(one):
            yield name, one


def _entry(name: str, member: Any) -> dict[str, str]:
    """Return the description, the properties and the source of a class."""
    text = inspect.getdoc(member) or ""
    summary = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    what = re.sub(r"\s*\([A-Z][^()]*\d{4}[^()]*\)", "", summary)  # the source is shown separately
    facts = [getattr(member, "notion", None), f"{member.better} is better" if getattr(member, "better", None) else None]
    if isinstance(keeps := getattr(member, "preserves_argmax", None), bool):
        facts.append("keeps the decision" if keeps else "may change the decision")
    if getattr(member, "top_label", False) is True:
        facts.append("top label only")
    if name in options.IN_PYTHON:
        facts.append("in Python only")
    source = getattr(member, "cite", None) or _first_reference(text)
    return {"name": name, "what": what, "properties": ", ".join(filter(None, facts)), "source": source}


def _first_reference(text: str) -> str:
    """Return the authors (A, A & B, or A et al.) and the year of the first source in a docstring."""
    found = re.search(r"References:\s+([A-Z][^.;()\d]*?(?:et al\.)?[^.;()\d]*?),?\s+\(?(\d{4})\)?", text)
    found = found or re.search(r"([A-Z]\w+ et al\.)\s+\(?(\d{4})", text)  # no list of references, so search the text
    if found is None:
        return ""
    names = [name.strip() for name in re.split(r",|&| and ", found[1]) if name.strip()]
    authors = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{authors} {found[2]}"
