"""``calibrant methods``: what there is to choose from."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from calibrant.cli._catalogue import FAMILIES, catalogue, pick_family
from calibrant.cli._options import among
from calibrant.cli._output import say_methods


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
    chosen = list(FAMILIES) if family is None else [pick_family(family)]
    found = {name: catalogue(name) for name in chosen}
    if as_json:
        plain = {name: [asdict(entry) for entry in entries] for name, entries in found.items()}
        typer.echo(json.dumps(plain, indent=1, ensure_ascii=False))
        return
    for name, entries in found.items():
        say_methods(name, entries)
