"""``calibrant methods`` lists all losses, calibrators and metrics."""

import inspect
import re
from typing import Annotated, Any

import typer

from calibrant.cli import options
from calibrant.cli.show import print_json, print_line

FAMILIES = ("losses", "calibrators", "metrics")


def methods(
    family: Annotated[str | None, typer.Argument(help=f"One of {', '.join(FAMILIES)}; by default all.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List every loss, calibrator and metric with a description, its properties and its source.

    Examples:

        calibrant methods

        calibrant methods calibrators
    """
    chosen = FAMILIES if family is None else (options.choose(family, FAMILIES, option="family"),)
    found = {name: [_entry(*member) for member in members(name)] for name in chosen}
    if as_json:
        print_json(found)
        return
    for name, entries in found.items():
        print_line(f"{name} ({len(entries)})", style="bold underline")
        for entry in entries:
            facts = " · ".join(filter(None, (entry["properties"], entry["source"])))
            print_line(f"{entry['name']}  {entry['what']}")
            print_line(f"    {facts}" if facts else "", style="dim")


def members(family: str) -> list[tuple[str, type]]:
    """Return the concrete classes of a family by name, in the order of its ``__all__``."""
    import calibrant

    home = getattr(calibrant, family)
    base = {"metrics": calibrant.metrics.Metric, "calibrators": calibrant.calibrators.Calibrator}.get(family, object)
    named = [(name, getattr(home, name)) for name in home.__all__]
    return [
        (name, one)
        for name, one in named
        if isinstance(one, type) and issubclass(one, base) and not inspect.isabstract(one)
    ]


def _entry(name: str, member: Any) -> dict[str, str]:
    """Return the description, the properties and the source of a class."""
    text = inspect.getdoc(member) or ""
    summary = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    what = re.sub(r"\s*\([A-Z][^()]*\d{4}[^()]*\)", "", summary)  # the source has its own place
    facts = [getattr(member, "notion", None), f"{member.better} is better" if getattr(member, "better", None) else None]
    if isinstance(keeps := getattr(member, "preserves_argmax", None), bool):
        facts.append("keeps the decision" if keeps else "may change the decision")
    if getattr(member, "top_label", False) is True:
        facts.append("top label only")
    source = getattr(member, "cite", None) or _first_reference(text)
    return {"name": name, "what": what, "properties": ", ".join(filter(None, facts)), "source": source}


def _first_reference(text: str) -> str:
    """Return authors and year of the first source in a docstring, in the form A, A & B or A et al."""
    found = re.search(r"References:\s+([A-Z][^.;()\d]*?(?:et al\.)?[^.;()\d]*?),?\s+\(?(\d{4})\)?", text)
    found = found or re.search(r"([A-Z]\w+ et al\.)\s+\(?(\d{4})", text)  # no list of sources: the first in the text
    if found is None:
        return ""
    names = [name.strip() for name in re.split(r",|&| and ", found[1]) if name.strip()]
    authors = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{authors} {found[2]}"
