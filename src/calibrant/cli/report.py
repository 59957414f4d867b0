"""``calibrant report``: one file to send to a colleague."""

from pathlib import Path
from typing import Annotated

import typer

import calibrant
from calibrant._places import shown
from calibrant.cli._files import readable, writable
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex, complete_method, refuse_typed
from calibrant.cli._output import console, working
from calibrant.cli._reporting import NONE, Source, load_model, read_names
from calibrant.cli._streamed import Address, Execution, ExecutorName, FolderReport, Workers
from calibrant.report import MARGIN, Model, Section, write_report
from calibrant.report.formats import check_format

Margin = Annotated[
    float, typer.Option(min=0.0001, max=0.9999, help="ECE above which a miscalibration is large; 0.02 is 2 points.")
]


def report(
    context: typer.Context,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Predictions (.npz, .safetensors, .parquet); - reads stdin.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it; - writes stdout.")] = "report.html",
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            autocompletion=complete_method,
            help="auto, a calibrator, or none; auto if left out and quick enough.",
        ),
    ] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="A saved one instead.")] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate.")] = "test",
    fit_split: Annotated[str, typer.Option(help="The split to fit on.")] = "val",
    format: Annotated[str | None, typer.Option(help="html, md or json; by the output's name if left out.")] = None,
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    class_names: Annotated[str | None, typer.Option(help="A text file with one class name a line.")] = None,
    title: Annotated[str, typer.Option(help="Its heading.")] = "Calibration report",
    margin: Margin = MARGIN,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped. With folders
    test/ and val/ in it a calibrator is chosen and fitted on val and evaluated on test.

    Examples:

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors --format md -o -

        calibrant report folder/ --workers 8 -o report.html
    """
    _refuse_choices(context, method, calibrator)
    names = read_names(class_names) if class_names else None
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    execution = Execution(context, executor, workers, address)
    saved = calibrant.load(calibrator) if calibrator else None
    models: list[Model | Section] = []
    with writable(
        output, suffix=f".{format or 'html'}", inputs=[*files, *filter(None, (calibrator, class_names))]
    ) as target:
        check_format(target, format)
        for file in files:
            if execution.streams(file):
                models.append(FolderReport(method, saved, split, fit_split, names, margin).section(file, execution))
                continue
            with readable(file) as path, working(f"calibrating {shown(file)}"):
                source = Source(path, Path(shown(file)).name, split, fit_split, axes, context)
                models.append(load_model(source, method=method, saved=saved, class_names=names))
        with working("reporting"):
            write_report(models, target, title=title, format=format, margin=margin)
    _say(files, output)


def _refuse_choices(context: typer.Context, method: str | None, calibrator: str | None) -> None:
    """Refuse what would fit where nothing is fitted."""
    if calibrator:
        refuse_typed(context, ["method"], where="a saved --calibrator, which is fitted already")
    if method == NONE:
        refuse_typed(context, ["fit_split"], where="--method none, which fits nothing")


def _say(files: list[str], output: str) -> None:
    said = ", ".join(shown(file) for file in files)
    console(err=True).print(f"report on {said} written to {shown(output)}", style="dim")
