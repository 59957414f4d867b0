"""``calibrant apply``: calibrated predictions in the layout of the file they came from."""

from pathlib import Path
from typing import Annotated

import typer

import calibrant
from calibrant._places import shown
from calibrant.cli._files import readable, writable
from calibrant.cli._layout import calibrate_file, write_like
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import console, working
from calibrant.cli._streamed import Address, Execution, ExecutorName, Workers, apply_to_streamed
from calibrant.report.model import in_one_line


def apply(
    context: typer.Context,
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    file: Annotated[
        str, typer.Argument(help="Predictions (.npz, .safetensors, .parquet), labelled or not; - reads stdin.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write them; - writes stdout.")],
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
) -> None:
    """Write the calibrated logits of every split; whatever else is in the file stays as it is.

    A folder of Parquet files becomes a folder of files of the same names: any number of rows, in bounded memory, resumed
    when stopped.

    Examples:

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        calibrant apply c.safetensors folder/ -o calibrated/ --workers 8

        cat predictions.npz | calibrant apply c.safetensors - -o - > calibrated.npz
    """
    fitted = calibrant.load(calibrator)
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    execution = Execution(context, executor, workers, address)
    name, inputs = shown(file), [calibrator, file]
    if execution.streams(file):
        said = apply_to_streamed(fitted, file, output, execution, inputs=inputs)
        console(err=True).print(f"{name} through {in_one_line(fitted)} to {shown(output)}: {said}", style="dim")
        return
    with (
        readable(file) as path,
        writable(output, suffix=Path(path).suffix, inputs=inputs) as target,
        working(f"calibrating {name}"),
    ):
        write_like(target, calibrate_file(path, fitted, shown=name, **axes))
    console(err=True).print(f"{name} through {in_one_line(fitted)} to {shown(output)}", style="dim")
