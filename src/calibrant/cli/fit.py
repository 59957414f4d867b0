"""``calibrant fit``: learn a calibrator from the validation split."""

from typing import Annotated

import typer

import calibrant
from calibrant._places import shown
from calibrant.cli._calibrators import AUTO, with_logits
from calibrant.cli._files import STREAM, readable, writable
from calibrant.cli._fitting import fit_and_measure, say_fit
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex, complete_method
from calibrant.cli._output import working
from calibrant.cli._streamed import Address, Execution, ExecutorName, Workers, fit_streamed_file, parts_of
from calibrant.errors import InputError


def fit(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Predictions (.npz, .safetensors, .parquet) with labels; - reads stdin.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to save it (.safetensors); - writes stdout.")],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            autocompletion=complete_method,
            help="A calibrator of `calibrant methods`; auto if left out.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="The split to fit on: never the one you will evaluate on.")] = "val",
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Fit a calibrator on the validation split, and say what it did there.

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped. The automatic choice
    compares its candidates on a random sample where rows are many; all rows fit what is chosen.

    Examples:

        calibrant fit predictions.npz -o c.safetensors

        calibrant fit predictions.npz --method TemperatureScaling -o c.safetensors --json

        calibrant fit folder/ --method EnsembleTemperatureScaling --workers 8 -o c.safetensors
    """
    if as_json and output == STREAM:
        raise InputError("expected a file for the calibrator beside --json, got - for both; name one by --output")
    execution = Execution(context, executor, workers, address)
    name = shown(file)
    if execution.streams(file):
        [(part, place)] = parts_of(file, split, context).items()
        with writable(output, suffix=".safetensors", inputs=[file, str(place)]) as path:
            streamed = fit_streamed_file(place, method, execution)
            streamed.save(path)
        say_fit(streamed, [], output=output, split=part, as_json=as_json)
        return
    method = AUTO if method is None else method
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    with readable(file) as path:
        data = with_logits(calibrant.load_predictions(path, split, **axes), file=name, split=split)
    with writable(output, suffix=".safetensors", inputs=[file]) as path:
        with working(f"fitting {method} on {len(data):,} rows"):
            calibrator, rows = fit_and_measure(data, method, file=name, split=split)
        calibrator.save(path)
    say_fit(calibrator, rows, output=output, split=split, as_json=as_json)
