"""``calibrant theory``: the figures of the theory, or their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant._core.paths import check_folder
from calibrant.cli._io import console, print_json, working
from calibrant.cli._options import among, refuse_typed

# calibrant.theory.FIGURES, for a help that waits for nothing
NAMES = (
    "minimisers", "proper-part", "binary-fit", "bounds", "isolines", "arrows", "three-classes", "four-classes", "difference",
)  # fmt: skip


def theory(
    context: typer.Context,
    figure: Annotated[
        str | None,
        typer.Option(autocompletion=among(lambda: list(NAMES)), help=f"One of {', '.join(NAMES)}; all if left out."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Folder to write into.")] = "calibrant-theory",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers instead of drawing them.")] = False,
) -> None:
    """Draw Figures 1 to 7 of Komisarenko & Kull (2024) and A.1 of Mukhoti et al. (2020), as SVG and PNG, with a page.

    Examples:

        calibrant theory -o figures

        calibrant theory --figure bounds --json
    """
    from calibrant.report.theory_figures import write_theory
    from calibrant.theory import FIGURES, figure_numbers

    if as_json:
        refuse_typed(context, ["output"], where="--json, which prints and writes no files")
    else:
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
