"""``calibrant evaluate``: the panel of each split."""

from typing import Annotated

import typer

import calibrant
from calibrant.cli._calibrators import describe
from calibrant.cli._files import readable
from calibrant.cli._measuring import measure_file
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import say_json, say_rows, working
from calibrant.cli._streamed import Address, Crew, ExecutorName, Workers, measure_streamed
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row


def evaluate(
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

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped.

    Examples:

        calibrant evaluate predictions.npz

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate folder/ --executor ray
    """
    fitted = calibrant.load(calibrator) if calibrator else None
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    crew = Crew(executor, workers, address)
    rows: list[Row] = []
    notes = [] if fitted is None else [f"after: {in_one_line(fitted)}"]
    for file in files:
        if crew.takes(file):
            for chosen in [None, fitted] if fitted else [None]:
                rows += measure_streamed(file, crew, chosen)
            continue
        with readable(file) as path, working(f"measuring {file}"):
            measured = measure_file(path, fitted, shown=file, split=split, axes=axes, draws=draws)
        rows += measured[0]
        notes += measured[1]
    if as_json:
        say_json(rows, fitted=describe(fitted) if fitted is not None else None)
    else:
        say_rows(rows, notes=notes)
