"""``calibrant apply``: calibrated predictions in the layout of the file they came from."""

from pathlib import Path
from typing import Annotated

import typer

import calibrant
from calibrant.cli._calibrators import with_logits
from calibrant.cli._files import STREAM, readable, writable
from calibrant.cli._output import console, working
from calibrant.errors import InputError


def apply(
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    file: Annotated[
        str, typer.Argument(help="Predictions (.npz, .safetensors, .parquet), labelled or not; - reads stdin.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write them; - writes stdout.")],
) -> None:
    """Write the calibrated logits of every split; labels, groups and split names stay as they are.

    Examples:

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        cat predictions.npz | calibrant apply c.safetensors - -o - > calibrated.npz
    """
    if output == file != STREAM:
        raise InputError(
            f"expected an output other than the input, got {file} for both; applied twice it would be wrong"
        )
    fitted = calibrant.load(calibrator)
    with readable(file) as path, writable(output, suffix=Path(path).suffix) as target, working(f"calibrating {file}"):
        splits = calibrant.load_splits(path)
        whole = {name: with_logits(data, file=file, split=name) for name, data in splits.items()}
        # every split is passed through, the fitted one too: nothing is judged here
        after = {name: data.calibrated_by(fitted, allow_fit_rows=True) for name, data in whole.items()}
        calibrant.save_predictions(target, after)
    rows = sum(len(data) for data in after.values())
    console(err=True).print(f"{rows:,} rows of {', '.join(after)} through {fitted} to {output}", style="dim")
