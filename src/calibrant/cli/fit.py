"""``calibrant fit``: learn a calibrator from the validation split."""

from typing import Annotated

import typer

from calibrant.calibrators import Calibrator
from calibrant.cli._calibrators import AUTO, describe, evidence_of, make_calibrator, with_logits
from calibrant.cli._files import STREAM, readable, writable
from calibrant.cli._multilabel import MultiLabel, Request, fit_labels
from calibrant.cli._options import FILES, Example, Inputs, at_path, complete_method, with_inputs
from calibrant.cli._output import say_evidence, say_json, say_rows, working
from calibrant.cli._streamed import Address, Execution, ExecutorName, Workers, fit_streamed_file, parts_of
from calibrant.errors import InputError
from calibrant.metrics import ECE, NLL, Accuracy, Metric
from calibrant.predictions import Predictions
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row, measure

SHOWN: list[Metric] = [Accuracy(), NLL(), ECE()]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        autocompletion=complete_method,
        help="A calibrator of `calibrant methods`; auto if left out.",
    ),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option(
        help="Feature columns to calibrate by, as a,b, or all: with auto (tried beside the others), GroupScaling or "
        "BoostedScaling."
    ),
]
ADVICE = "evaluate it on others, with `calibrant evaluate FILE --calibrator C --split test`."


@with_inputs
def fit(
    context: typer.Context,
    inputs: Inputs,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to save it (.safetensors); - writes stdout.")],
    file: Annotated[str | None, typer.Argument(help=FILES)] = None,
    example: Example = None,
    method: Method = None,
    features: FeatureColumns = None,
    split: Annotated[str, typer.Option(help="The split to fit on: never the one you will evaluate on.")] = "val",
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
    multilabel: MultiLabel = False,
) -> None:
    """Fit a calibrator on the validation split, and say what it did there.

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped. The automatic choice
    compares its candidates on a random sample where rows are many; all rows fit what is chosen.

    Examples:

        calibrant fit predictions.npz -o c.safetensors

        calibrant fit --logits val_logits.npy --labels val_labels.npy -o c.safetensors

        calibrant fit predictions.npz --method TemperatureScaling -o c.safetensors --json

        calibrant fit people.parquet --features region,age -o c.safetensors

        calibrant fit folder/ --method EnsembleTemperatureScaling --workers 8 -o c.safetensors

        calibrant fit labels.npz --multilabel -o c.safetensors
    """
    if multilabel:
        fit_labels(Request(context, inputs), file, output=output, method=method, split=split, as_json=as_json)
        return
    if as_json and output == STREAM:
        raise InputError("expected a file for the calibrator beside --json, got - for both; name one by --output")
    execution = Execution(context, executor, workers, address)
    sources = inputs.sources(file, example)
    if len(sources) > 1:
        raise InputError(f"expected one file to fit on, got {sources[0].shown} and --example; leave one out")
    source, name = sources[0], sources[0].shown
    if execution.streams(source.path):
        [(part, place)] = parts_of(source.path, split, context).items()
        with writable(output, suffix=".safetensors", inputs=[source.path, str(place), *inputs.beside]) as path:
            streamed = fit_streamed_file(place, method, execution, features=features)
            streamed.save(path)
        _say(streamed, [], output=output, split=part, as_json=as_json)
        return
    method = AUTO if method is None else method
    with readable(source.path) as path:
        data = with_logits(inputs.pick(at_path(source, path), split), file=name, split=split)
    with writable(output, suffix=".safetensors", inputs=[source.path, *inputs.beside]) as path:
        with working(f"fitting {method} on {len(data):,} rows"):
            calibrator, rows = _fit_and_measure(
                data, make_calibrator(method, features=features), file=name, split=split
            )
        calibrator.save(path)
    _say(calibrator, rows, output=output, split=split, as_json=as_json)


def _fit_and_measure(data: Predictions, made: Calibrator, *, file: str, split: str) -> tuple[Calibrator, list[Row]]:
    """Return the calibrator ``made`` fitted on ``data``, and accuracy, NLL and ECE there before and after."""
    calibrator = made.fit(data)
    after = data.calibrated_by(calibrator, allow_fit_rows=True)
    rows = measure(data, file=file, split=split, metrics=SHOWN)
    return calibrator, rows + measure(after, file=file, split=split, metrics=SHOWN, calibrator=in_one_line(calibrator))


def _say(calibrator: Calibrator, rows: list[Row], *, output: str, split: str, as_json: bool) -> None:
    """Say what was fitted; to stderr where stdout takes the calibrator itself."""
    if as_json and output != STREAM:
        say_json(rows, fitted=describe(calibrator) | {"split": split, "path": output})
        return
    if evidence := evidence_of(calibrator):
        say_evidence(evidence, err=output == STREAM)
    notes = [f"{in_one_line(calibrator)}, fitted on {split}, saved to {output}"]
    if rows:
        notes.append(f"These are the {rows[0].n:,} rows it was fitted on: {ADVICE}")
    say_rows(rows, err=output == STREAM, notes=notes)
