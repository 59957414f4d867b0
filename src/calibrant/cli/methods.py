"""``calibrant methods`` and ``theory``: all losses, calibrators and metrics, and the figures of the theory."""

import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import calibrant
from calibrant._core.paths import check_folder
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import console, print_json, working
from calibrant.cli._options import AsJson, among, choose

# calibrant.theory.FIGURES, for a help that waits for nothing
NAMES = (
    "minimisers", "proper-part", "binary-fit", "bounds", "isolines", "arrows", "three-classes", "four-classes", "difference",
)  # fmt: skip
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


@with_groups
def theory(
    figure: Annotated[
        str | None,
        typer.Option(autocompletion=among(lambda: list(NAMES)), help=f"One of {', '.join(NAMES)}; all if left out."),
    ] = None,
    output: str = option("calibrant-theory", "Folder to write into.", "--output", "-o", without="as_json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers instead of drawing them.")] = False,
) -> None:
    """Draw Figures 1 to 7 of Komisarenko & Kull (2024) and A.1 of Mukhoti et al. (2020), as SVG and PNG, with a page.

    Examples:

        calibrant theory -o figures

        calibrant theory --figure bounds --json
    """
    from calibrant.report.theory_figures import write_theory
    from calibrant.theory import FIGURES, figure_numbers

    if not as_json:
        check_folder(output)
    numbers = []
    for name in FIGURES if figure is None else [figure]:
        with working(f"computing {name}"):
            numbers.append(figure_numbers(name))
    if as_json:
        plain = numbers[0].plain() if figure else {"figures": [each.plain() for each in numbers]}
        print_json(plain)
        return
    with working("drawing"):
        written = write_theory(numbers, Path(output))
    console(err=True).print(f"{len(written)} files written to {output}; start with {written[-1]}", style="dim")
