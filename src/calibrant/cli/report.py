"""``calibrant report``: one file to send to a colleague."""

from typing import Annotated

import typer

import calibrant
from calibrant.cli._files import readable, writable
from calibrant.cli._options import Axes, ClassDim, IgnoreIndex, complete_method
from calibrant.cli._output import console, working
from calibrant.cli._reporting import Source, load_model, read_names
from calibrant.cli._streamed import Address, Crew, ExecutorName, FolderReport, Workers
from calibrant.report import Model, Section, write_report


def report(
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
    split: Annotated[str, typer.Option(help="The split to judge.")] = "test",
    fit_split: Annotated[str, typer.Option(help="The split to fit on.")] = "val",
    format: Annotated[str | None, typer.Option(help="html, md or json; by the output's name if left out.")] = None,
    class_dim: ClassDim = 1,
    ignore_index: IgnoreIndex = None,
    class_names: Annotated[str | None, typer.Option(help="A text file with one class name a line.")] = None,
    title: Annotated[str, typer.Option(help="Its heading.")] = "Calibration report",
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped. With folders
    test/ and val/ in it a temperature is fitted on val and judged on test.

    Examples:

        calibrant report predictions.npz -o report.html

        calibrant report a.npz b.npz c.npz --method VectorScaling -o report.html

        calibrant report predictions.npz --calibrator c.safetensors --format md -o -

        calibrant report folder/ --workers 8 -o report.html
    """
    names = read_names(class_names) if class_names else None
    axes = Axes(class_dim=class_dim, ignore_index=ignore_index)
    crew = Crew(executor, workers, address)
    saved = calibrant.load(calibrator) if calibrator else None
    folder = FolderReport(method, saved, split, fit_split, names)
    models: list[Model | Section] = []
    with writable(output, suffix=f".{format or 'html'}", inputs=files) as target:
        for file in files:
            if crew.takes(file):
                models.append(folder.section(file, crew))
                continue
            with readable(file) as path, working(f"calibrating {file}"):
                source = Source(path, file, split, fit_split, axes)
                models.append(load_model(source, method=method, saved=saved, class_names=names))
        with working(f"reporting on {len(models)} models"):
            write_report(models, target, title=title, format=format)
    console(err=True).print(f"report on {', '.join(files)} written to {output}", style="dim")
