"""``calibrant plan``: how many labelled rows a gate needs."""

import json
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from calibrant.cli._files import readable
from calibrant.cli._options import Inputs, at_path, refuse_typed, with_inputs
from calibrant.cli._output import console, working
from calibrant.errors import InputError
from calibrant.operate import plan as plan_rows


@with_inputs
def plan(
    context: typer.Context,
    inputs: Inputs,
    file: Annotated[
        str | None, typer.Argument(help="Predictions whose confidences stand for the model's; labels are not used.")
    ] = None,
    ece: Annotated[float, typer.Option(help="The limit on the ECE that is to be checked.")] = 0.03,
    power: Annotated[float, typer.Option(help="Probability of the right verdict.")] = 0.9,
    accuracy: Annotated[float | None, typer.Option(help="Assumed accuracy, where there is no file.")] = None,
    true_ece: Annotated[
        float, typer.Option(help="Assumed ECE: below the limit the gate is to pass, above it to fail.")
    ] = 0.0,
    split: Annotated[str, typer.Option(help="The split whose confidences are taken.")] = "test",
    draws: Annotated[int, typer.Option(min=10, help="Simulated checks a number of rows.")] = 500,
    seed: Annotated[int, typer.Option(help="Same seed, same plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with the whole curve.")] = False,
) -> None:
    """Say how many labelled rows `calibrant check --max ece=…` needs to decide, by simulation, with the curve.

    Examples:

        calibrant plan --ece .03 --power .9 --accuracy .9

        calibrant plan predictions.npz --ece .05 --true-ece .08
    """
    data = None
    if file is not None or inputs.logits is not None:
        source = inputs.sources(file)[0]
        with readable(source.path) as path:
            data = inputs.pick(at_path(source, path), split)
    elif inputs != Inputs():
        raise InputError("expected a FILE beside options on what it holds, got none; name one, or leave them out")
    else:
        refuse_typed(context, ["split"], where="a call without FILE")
        accuracy = 0.9 if accuracy is None else accuracy
    with working("simulating"):
        found = plan_rows(data, ece=ece, power=power, accuracy=accuracy, true_ece=true_ece, draws=draws, seed=seed)
    if as_json:
        typer.echo(json.dumps(found.plain(), indent=1, ensure_ascii=False, allow_nan=False))
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("rows", "pass", "fail", "not enough evidence"):
        table.add_column(heading, justify="right")
    for point in found.curve:
        table.add_row(f"{point.rows:,}", *(f"{100 * p:.1f} %" for p in (point.passes, point.fails, point.undecided)))
    screen = console()
    screen.print(table)
    if data is None:
        screen.print(f"Assumed: accuracy {accuracy:g}.", style="dim")
    screen.print(str(found), style="bold")
