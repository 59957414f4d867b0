"""``calibrant fit``: learn a calibrator from the validation split."""

from typing import Annotated

import typer

import calibrant
from calibrant.cli._calibrators import describe, make_calibrator, with_logits
from calibrant.cli._files import STREAM, readable, writable
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex
from calibrant.cli._output import say_json, say_rows, working
from calibrant.cli._streamed import Address, Crew, ExecutorName, Workers, fit_streamed, is_streamed
from calibrant.metrics import ECE, NLL, Accuracy
from calibrant.metrics._base import Metric
from calibrant.report.tables import measure

DEFAULT = "TemperatureScaling"
SHOWN: list[Metric] = [Accuracy(), NLL(), ECE()]
ADVICE = "judge it on others, with `calibrant evaluate FILE --calibrator C --split test`."


def fit(
    file: Annotated[str, typer.Argument(help="Predictions (.npz, .safetensors, .parquet) with labels; - reads stdin.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to save it (.safetensors); - writes stdout.")],
    method: Annotated[str, typer.Option("--method", "-m", help="A calibrator, see `calibrant methods`.")] = DEFAULT,
    split: Annotated[str, typer.Option(help="The split to fit on: never the one you will judge by.")] = "val",
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Fit a calibrator on the validation split, and say what it did there.

    Examples:

        calibrant fit predictions.npz -o c.safetensors

        calibrant fit predictions.npz --method TemperatureScaling -o c.safetensors --json
    """
    if is_streamed(file):
        streamed = fit_streamed(file, method, Crew(executor, workers, address))
        streamed.save(output)
        if as_json:
            say_json([], fitted=describe(streamed) | {"split": "all", "path": output})
        else:
            say_rows([], notes=[f"{streamed} saved to {output}"])
        return
    calibrator = make_calibrator(method)
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    with readable(file) as path:
        data = with_logits(calibrant.load_predictions(path, split, **axes), file=file, split=split)
    with writable(output, suffix=".safetensors", inputs=[file]) as path:
        with working(f"fitting {method} on {len(data):,} rows"):
            calibrator.fit(data.logits, data.need_labels(), groups=data.groups)
            rows = measure(data, file=file, split=split, metrics=SHOWN)
            after = data.calibrated_by(calibrator, allow_fit_rows=True)
            rows += measure(after, file=file, split=split, metrics=SHOWN, calibrator=repr(calibrator))
        calibrator.save(path)
    if as_json and output != STREAM:
        say_json(rows, fitted=describe(calibrator) | {"split": split, "path": output})
    else:
        notes = [f"{calibrator} saved to {output}", f"These are the {len(data):,} rows it was fitted on: {ADVICE}"]
        say_rows(rows, err=output == STREAM, notes=notes)
