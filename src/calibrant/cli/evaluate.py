"""``calibrant evaluate``: the panel of each split."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

import calibrant
from calibrant.calibrators import Calibrator
from calibrant.cli._calibrators import describe, fitted_on, with_logits
from calibrant.cli._files import readable
from calibrant.cli._measures import Panel, by_column, complete_metric
from calibrant.cli._options import FILES, Example, Inputs, Source, at_path, with_inputs
from calibrant.cli._output import say_json, say_rows, working
from calibrant.cli._streamed import Address, Execution, ExecutorName, Workers, measure_streamed
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row, measure
from calibrant.splits import pick_split


@with_inputs
def evaluate(
    context: typer.Context,
    inputs: Inputs,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=FILES)] = None,
    example: Example = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="Also after this calibrator.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:OPTION=VALUE,…]",
            autocompletion=complete_metric,
            help="This metric instead of the panel, such as ECE:bins=20 or NLL; may be repeated.",
        ),
    ] = None,
    bins: Annotated[int | None, typer.Option(min=1, help="Bins of every metric that has some.")] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Also each group of this column; may be repeated.")
    ] = None,
    draws: Annotated[int, typer.Option(min=0, help="Draws for intervals and null levels; 0 leaves them out.")] = 1000,
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

        calibrant evaluate scores.csv --columns 'p_*' --label y --kind probs

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate predictions.npz --metric ECE:bins=20 --metric NLL --by region
    """
    fitted = calibrant.load(calibrator) if calibrator else None
    panel = Panel.of(metric or [], bins)
    execution = Execution(context, executor, workers, address)
    rows: list[Row] = []
    notes = [] if fitted is None else [f"after: {in_one_line(fitted)}"]
    for source in inputs.sources(files, example):
        if execution.streams(source.path):
            rows += measure_streamed(source.path, split, execution, fitted, metrics=panel.sums(source.shown))
            continue
        with readable(source.path) as path, working(f"measuring {source.shown}"):
            measured = _measure_file(
                at_path(source, path), inputs, fitted, panel, split=split, by=by or [], draws=draws
            )
        rows += measured[0]
        notes += measured[1]
    if as_json:
        say_json(rows, fitted=describe(fitted) if fitted is not None else None)
    else:
        say_rows(rows, notes=notes)


def _measure_file(
    source: Source,
    inputs: Inputs,
    calibrator: Calibrator | None,
    panel: Panel,
    *,
    split: str | None,
    by: Sequence[str],
    draws: int,
) -> tuple[list[Row], list[str]]:
    """Return the rows of a file's splits (or of one) and their groups, and notes on splits that the calibrator was fitted on."""
    named = inputs.named(source)
    splits = inputs.splits_of(named, source)
    rows: list[Row] = []
    notes: list[str] = []
    chosen = splits if split is None else {split: pick_split(splits, split, source.shown)}
    for name, data in chosen.items():
        own = next(key for key, held in splits.items() if held is data)
        for part, group in _parts(data, by_column(named, by, split=own, data=data, inputs=inputs, file=source.shown)):
            measured: dict[str, Any] = {
                "file": source.shown,
                "split": name,
                "metrics": panel.metrics_for(part),
                "draws": draws,
                "group": group,
            }
            rows += measure(part, **measured)
            if calibrator is not None:
                after = with_logits(part, file=source.shown, split=name).calibrated_by(calibrator, allow_fit_rows=True)
                rows += measure(after, calibrator=in_one_line(calibrator), **measured)
        if calibrator is not None and fitted_on(data, calibrator):
            notes.append(f"{source.shown}, {name}: the calibrator was fitted on these rows; evaluate it on others.")
    return rows, notes


def _parts(
    data: Predictions | BinaryPairs, groups: Iterator[tuple[str, Predictions | BinaryPairs]]
) -> Iterator[tuple[Predictions | BinaryPairs, str | None]]:
    yield data, None
    for name, part in groups:
        yield part, name
