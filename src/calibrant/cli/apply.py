"""``calibrant apply``: calibrated predictions in the layout of the file they came from."""

from pathlib import Path
from typing import Annotated

import typer

import calibrant
from calibrant.cli._files import readable, writable
from calibrant.cli._layout import calibrate_file, write_like
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import console, working
from calibrant.cli._streamed import Address, Crew, ExecutorName, Workers, apply_to_folder
from calibrant.report.model import in_one_line


def apply(
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
    crew = Crew(executor, workers, address)
    if crew.takes(file):
        written = apply_to_folder(fitted, file, output, crew)
        console(err=True).print(
            f"{file} through {in_one_line(fitted)} to {output}: {written} files written", style="dim"
        )
        return
    inputs = [calibrator, file]
    with (
        readable(file) as path,
        writable(output, suffix=Path(path).suffix, inputs=inputs) as target,
        working(f"calibrating {file}"),
    ):
        write_like(target, calibrate_file(path, fitted, shown=file, **axes))
    console(err=True).print(f"{file} through {in_one_line(fitted)} to {output}", style="dim")
