"""``calibrant methods``: all losses, calibrators and metrics."""

import difflib
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.text import Text

import calibrant
from calibrant.cli._io import console, print_json
from calibrant.cli._options import among
from calibrant.errors import InputError

FAMILIES = ("losses", "calibrators", "metrics")


def methods(
    family: Annotated[
        str | None,
        typer.Argument(
            autocompletion=among(lambda: list(FAMILIES)), help=f"One of {', '.join(FAMILIES)}; all if left out."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List every loss, calibrator and metric: what it is, its properties, its source.

    Examples:

        calibrant methods

        calibrant methods calibrators
    """
    chosen = list(FAMILIES) if family is None else [_pick_family(family)]
    found = {name: _catalogue(name) for name in chosen}
    if as_json:
        plain = {name: [asdict(entry) for entry in entries] for name, entries in found.items()}
        print_json(plain)
        return
    for name, entries in found.items():
        _say(name, entries)


@dataclass(frozen=True)
class Entry:
    """One method: its name, what it is in a sentence, its declared properties and its source."""

    name: str
    what: str
    properties: str
    source: str


def _pick_family(name: str) -> str:
    """Return the family called ``name``, in singular or plural.

    Raises:
        InputError: If there is none.
    """
    for family in FAMILIES:
        if name.lower() in (family, family.removesuffix("s"), family.removesuffix("es")):
            return family
    close = difflib.get_close_matches(name.lower(), FAMILIES, n=1)
    hint = f"did you mean {close[0]}?" if close else "choose one of these"
    raise InputError(f"a family among {', '.join(FAMILIES)}", f"{name!r}", hint)


def _catalogue(family: str) -> list[Entry]:
    """Return what ``family`` exports, in the order of its ``__all__``."""
    home = getattr(calibrant, family)
    members = [(name, getattr(home, name)) for name in home.__all__]
    return [_entry(name, member) for name, member in members if callable(member) and not inspect.isabstract(member)]


def _entry(name: str, member: object) -> Entry:
    text = inspect.getdoc(member) or ""
    summary = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    what = re.sub(r"\s*\([A-Z][^()]*\d{4}[^()]*\)", "", summary)  # the source has its own place
    return Entry(name, what, _properties(member), getattr(member, "cite", None) or _first_reference(text))


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


def _say(family: str, entries: Sequence[Entry]) -> None:
    """Print a family: each name, what it is in one sentence, and its properties and source."""
    screen = console()
    screen.print(f"{family} ({len(entries)})", style="bold underline")
    for entry in entries:
        facts = " · ".join(fact for fact in (entry.properties, entry.source) if fact)
        head, *rest = textwrap.wrap(f"{entry.name}  {entry.what}", screen.width, subsequent_indent="    ")
        screen.print(Text.assemble((entry.name, "bold"), head.removeprefix(entry.name)))
        for line in rest:
            screen.print(line)
        if facts:
            screen.print(f"    {facts}", style="dim")
    screen.print()
