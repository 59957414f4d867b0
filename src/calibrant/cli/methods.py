"""``calibrant methods``: all losses, calibrators and metrics."""

import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

import calibrant
from calibrant.cli._io import console, print_json
from calibrant.cli._options import AsJson, among, choose

FAMILIES = ("losses", "calibrators", "metrics")


def methods(
    family: Annotated[
        str | None,
        typer.Argument(
            autocompletion=among(lambda: list(FAMILIES)), help=f"One of {', '.join(FAMILIES)}; all if left out."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every loss, calibrator and metric: what it is, its properties, its source.

    Examples:

        calibrant methods

        calibrant methods calibrators
    """
    chosen = list(FAMILIES) if family is None else [_pick_family(family)]
    found = {name: _catalogue(name) for name in chosen}
    if as_json:
        print_json(found)
        return
    for name, entries in found.items():
        _say_family(name, entries)


def _pick_family(name: str) -> str:
    """Return the family called ``name``, in singular or plural."""
    forms = {form: one for one in FAMILIES for form in (one, one.removesuffix("s"), one.removesuffix("es"))}
    return forms.get(name.lower()) or choose(name, FAMILIES, option="a family", listing="calibrant methods --help")


def _catalogue(family: str) -> list[dict[str, str]]:
    """Return what ``family`` exports, in the order of its ``__all__``: name, what it is in a sentence, properties and source."""
    home = getattr(calibrant, family)
    members = [(name, getattr(home, name)) for name in home.__all__]
    return [_entry(name, member) for name, member in members if callable(member) and not inspect.isabstract(member)]


def _entry(name: str, member: object) -> dict[str, str]:
    text = inspect.getdoc(member) or ""
    summary = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    what = re.sub(r"\s*\([A-Z][^()]*\d{4}[^()]*\)", "", summary)  # the source has its own place
    source = getattr(member, "cite", None) or _first_reference(text)
    return {"name": name, "what": what, "properties": _properties(member), "source": source}


def _properties(member: object) -> str:
    better, notion = getattr(member, "better", None), getattr(member, "notion", None)
    facts = [notion, f"{better} is better" if better else None]
    keeps = getattr(member, "preserves_argmax", None)
    if isinstance(keeps, bool):
        facts.append("keeps the decision" if keeps else "may change the decision")
    if getattr(member, "top_label", False) is True:
        facts.append("top label only")
    return ", ".join(fact for fact in facts if fact)


def _first_reference(text: str) -> str:
    """Return authors and year of the first source that a docstring names: A, A & B or A et al."""
    found = re.search(r"References:\s+([A-Z][^.;()\d]*?(?:et al\.)?[^.;()\d]*?),?\s+\(?(\d{4})\)?", text)
    if found is None:  # no list of sources: the first that the text names
        found = re.search(r"([A-Z]\w+ et al\.)\s+\(?(\d{4})", text)
    if found is None:
        return ""
    names = [name.strip() for name in re.split(r",|&| and ", found[1]) if name.strip()]
    authors = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{authors} {found[2]}"


def _say_family(family: str, entries: Sequence[dict[str, str]]) -> None:
    screen = console()
    screen.print(f"{family} ({len(entries)})", style="bold underline")
    for entry in entries:
        name, facts = entry["name"], " · ".join(filter(None, (entry["properties"], entry["source"])))
        head, *rest = textwrap.wrap(f"{name}  {entry['what']}", screen.width, subsequent_indent="    ")
        screen.print(Text.assemble((name, "bold"), head.removeprefix(name)))
        for line in rest:
            screen.print(line)
        if facts:
            screen.print(f"    {facts}", style="dim")
    screen.print()
