"""``calibrant evaluate``: the panel of each split."""

from typing import Annotated

import typer

import calibrant
from calibrant.cli._calibrators import describe, fitted_on, with_logits
from calibrant.cli._files import readable
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import say_json, say_rows, working
from calibrant.cli._streamed import Address, Crew, ExecutorName, Workers, is_streamed, measure_streamed
from calibrant.report.tables import Row, measure


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
    rows: list[Row] = []
    notes: list[str] = []
    for file in files:
        if is_streamed(file):
            for chosen in [None, fitted] if fitted else [None]:
                rows += measure_streamed(file, Crew(executor, workers, address), chosen)
            continue
        with readable(file) as path, working(f"measuring {file}"):
            one = {split: calibrant.load_predictions(path, split, **axes)} if split else None
            for name, data in (one or calibrant.load_splits(path, **axes)).items():
                rows += measure(data, file=file, split=name, draws=draws)
                if fitted is not None:
                    after = with_logits(data, file=file, split=name).calibrated_by(fitted, allow_fit_rows=True)
                    rows += measure(after, file=file, split=name, calibrator=repr(fitted), draws=draws)
                    if fitted_on(data, fitted):
                        notes.append(f"{file}, {name}: the calibrator was fitted on these rows; judge it on others.")
    if as_json:
        say_json(rows, fitted=describe(fitted) if fitted is not None else None)
    else:
        say_rows(rows, notes=[f"after: {fitted}", *notes] if fitted is not None else notes)
