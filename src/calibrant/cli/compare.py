"""``calibrant compare``: two models, or two calibrators, on the same rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import calibrant
from calibrant._core.paths import shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import console, print_json, working
from calibrant.cli._options import Example, Inputs, Source
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.evaluate.compare import Comparison, ComparisonRow


UNCALIBRATED = "none"
SMALL_VALUES = 0.01  # below, a row is printed with five decimals


@with_groups
def compare(
    inputs: Inputs,
    a: Annotated[str, typer.Argument(metavar="A", help="Predictions, or with --on a calibrator or 'none'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of B.")],
    on: Annotated[str | None, typer.Option(help="Predictions to apply the calibrators A and B to.")] = None,
    example: Example = None,
    split: Annotated[str, typer.Option(help="The split to compare on.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Compare B with A on the same rows: differences, intervals, and paired tests.

    Examples:

        calibrant compare resnet.npz densenet.npz

        calibrant compare none c.safetensors --on predictions.npz

        calibrant compare none c.safetensors --example cifar10
    """
    from calibrant.evaluate import compare as compare_predictions

    if inputs.logits is not None or (on is not None and example is not None):
        extra = "--logits" if inputs.logits is not None else "--example beside --on"
        raise InputError("predictions as A and B, or one file to apply both to", f"{extra}", "leave it out")
    base = None if on is None and example is None else inputs.sources(on, example, examples=True)[0]
    with working("comparing"):
        found = compare_predictions(*(_load(name, on=base, split=split, inputs=inputs) for name in (a, b)))
    if as_json:
        plain = {"a": a, "b": b, "on": None if base is None else base.shown, "split": split, **asdict(found)}
        print_json(plain)
    else:
        screen = console()
        screen.print(_table(found))
        screen.print(f"A: {a}\nB: {b}\n\n{found.verdict}")


def _load(name: str, *, on: Source | None, split: str, inputs: Inputs) -> Predictions | BinaryPairs:
    from calibrant.cli._calibrators import with_logits

    if on is None:
        if name == UNCALIBRATED:
            raise InputError("two files of predictions", f"{name!r} without --on", "add --on PREDICTIONS")
        return inputs.pick(Source(name, shown(name)), split)
    data = inputs.pick(on, split)
    if name == UNCALIBRATED:
        return data
    return with_logits(data, file=on.shown, split=split).calibrated_by(calibrant.load(name))


def _table(found: Comparison) -> Table:
    table = Table(title=f"n = {found.n:,}", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("metric", overflow="fold")
    for heading in ("A", "B", "B − A", "interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            row.metric.split("(")[0], f"{row.a:.{_places(row)}f}", f"{row.b:.{_places(row)}f}", *_difference(row)
        )
    return table


def _difference(row: ComparisonRow) -> tuple[str, str, str]:
    if row.low is None or row.high is None or row.p_value is None:
        return f"{row.difference:+.{_places(row)}f}", "", ""
    p = "< 0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
    places = _places(row)
    return f"{row.difference:+.{places}f}", f"[{row.low:+.{places}f}, {row.high:+.{places}f}]", p


def _places(row: ComparisonRow) -> int:
    """Return the decimals that a row is printed with: squares of gaps are small."""
    return 5 if max(abs(row.a), abs(row.b)) < SMALL_VALUES else 4
