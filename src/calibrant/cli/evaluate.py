"""``calibrant evaluate``: the panel of each split."""

from typing import Annotated

import typer

import calibrant
from calibrant._places import shown
from calibrant.cli._calibrators import describe
from calibrant.cli._files import readable
from calibrant.cli._measuring import measure_file
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import say_json, say_rows, working
from calibrant.cli._streamed import Address, Execution, ExecutorName, Workers, measure_streamed
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row


def evaluate(
    context: typer.Context,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Predictions (.npz, .safetensors, .parquet); - reads stdin.")
    ],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="Also after this calibrator.")] = None,
    draws: Annotated[int, typer.Option(min=0, help="Draws for intervals and null levels; 0 leaves them out.")] = 1000,
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Measure accuracy, log-loss and calibration of every split.

    A folder of Parquet files, or one large one, is streamed: any number of rows, in bounded memory, resumed when stopped.
    Folders in it, such as val/ and test/, are splits.

    Examples:

        calibrant evaluate predictions.npz

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate folder/ --executor ray
    """
    fitted = calibrant.load(calibrator) if calibrator else None
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    execution = Execution(context, executor, workers, address)
    rows: list[Row] = []
    notes = [] if fitted is None else [f"after: {in_one_line(fitted)}"]
    for file in files:
        name = shown(file)
        if execution.streams(file):
            rows += measure_streamed(file, split, execution, fitted)
            continue
        with readable(file) as path, working(f"measuring {name}"):
            measured = measure_file(path, fitted, shown=name, split=split, axes=axes, draws=draws)
        rows += measured[0]
        notes += measured[1]
    if as_json:
        say_json(rows, fitted=describe(fitted) if fitted is not None else None)
    else:
        say_rows(rows, notes=notes)
