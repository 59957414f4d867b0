"""Data sets larger than memory on the command line: a folder of Parquet files is streamed, with progress and resume."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant._check import check_choice
from calibrant.calibrators._base import Calibrator
from calibrant.cli._calibrators import make_calibrator
from calibrant.cli._files import STREAM
from calibrant.cli._output import console
from calibrant.errors import InputError
from calibrant.report import Section
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row, in_percent, label_of
from calibrant.scale import (
    Executor,
    apply_streamed,
    diagnose_streamed,
    evaluate_streamed,
    fit_streamed,
    in_turn,
    processes,
    ray_cluster,
    sum_metrics,
)
from calibrant.scale.checkpoint import calibrator_identity

ExecutorName = Annotated[
    str, typer.Option("--executor", help="For a folder of Parquet files: local, or ray for a cluster.")
]
Workers = Annotated[int, typer.Option(min=1, help="Processes of the local executor, or of a Ray cluster started here.")]
Address = Annotated[str | None, typer.Option(help="The Ray cluster's address; without it one is started here.")]
CHECKPOINTS = Path("calibrant-runs", "streams")


@dataclass(frozen=True)
class Crew:
    """Who does the work."""

    executor: str
    workers: int
    address: str | None

    def takes(self, file: str) -> bool:
        """Say whether ``file`` is a folder, which is streamed.

        Raises:
            InputError: If it is not, and an executor or address was named, which only a folder needs.
        """
        if is_streamed(file):
            return True
        if self.executor != "local" or self.address is not None:
            raise InputError(
                f"expected a folder of Parquet files beside --executor or --address, got {file}; leave out both"
            )
        return False

    @cached_property
    def workforce(self) -> Executor:
        """The executor that the options name, the same one for every pass."""
        check_choice(self.executor, name="--executor", choices=("local", "ray"))
        if self.executor == "ray":
            return ray_cluster(self.address, workers=self.workers if self.workers > 1 else None)
        if self.address is not None:
            raise InputError("expected --executor ray beside --address, got the local executor; name both")
        return in_turn if self.workers == 1 else processes(self.workers)


def is_streamed(file: str) -> bool:
    """Say whether ``file`` is a data set in a folder, which is streamed."""
    return Path(file).is_dir()


def measure_streamed(file: str, crew: Crew, calibrator: Calibrator | None = None) -> list[Row]:
    """Return the panel's sums over a folder of Parquet files; stopped and started again, it goes on."""
    metrics = sum_metrics()
    with bar(f"measuring {file}") as progress:
        figures = evaluate_streamed(
            file,
            metrics=metrics,
            calibrator=calibrator,
            checkpoint=_checkpoint(file, calibrator, "evaluate"),
            executor=crew.workforce,
            progress=progress,
        )
    name = None if calibrator is None else in_one_line(calibrator)
    return [
        Row(file, "all", name, one.metric, one.value, None, None, None, one.n, label_of(metric), in_percent(metric))
        for metric, one in zip(metrics, figures, strict=True)
    ]


def fit_on_folder(file: str, method: str | None, crew: Crew) -> Calibrator:
    """Fit a calibrator of one or two numbers, temperature scaling if none is named, on a folder of Parquet files.

    Stopped and started again, it goes on.

    Raises:
        InputError: For a method that cannot be fitted by sums.
    """
    calibrator = make_calibrator(method or "TemperatureScaling")
    with bar(f"fitting {file}") as progress:
        return fit_streamed(
            calibrator,
            file,
            executor=crew.workforce,
            checkpoint=_checkpoint(file, None, f"fit {calibrator!r}"),
            progress=lambda begun, done, total: progress(done, total, f"fitting {file}, pass {begun}"),
        )


def apply_to_folder(calibrator: Calibrator, file: str, output: str, crew: Crew) -> int:
    """Write a folder of calibrated Parquet files; stopped and started again, it goes on. Returns the files written."""
    if output == STREAM:
        raise InputError(f"expected a folder to write calibrated files of {file} to, got -; name one by --output")
    with bar(f"calibrating {file}") as progress:
        return apply_streamed(calibrator, file, output, executor=crew.workforce, progress=progress)


@dataclass(frozen=True)
class FolderReport:
    """What of a folder is reported: which splits, through which calibrator.

    A folder of folders has splits, named as they are; one with Parquet files in it is a single, unnamed split.
    """

    method: str | None
    saved: Calibrator | None
    split: str
    fit_split: str
    class_names: Sequence[str] | None

    def section(self, file: str, crew: Crew) -> Section:
        """Return what the report says of the folder ``file``.

        Raises:
            InputError: If a method is named and there is no split to fit it on.
        """
        home = Path(file)
        flat = any(home.glob("*.parquet"))
        judged, fitted_on = (home, None) if flat else (home / self.split, home / self.fit_split)
        calibrator = self.saved
        if calibrator is None and self.method != "none":
            if fitted_on is not None and fitted_on.is_dir():
                calibrator = fit_on_folder(str(fitted_on), self.method, crew)
            elif self.method is not None:
                raise InputError(
                    f"expected folders {self.fit_split} and {self.split} in {file} to fit {self.method} on one and judge on "
                    "the other, got none; fit it with `calibrant fit` on other rows and pass it as --calibrator"
                )
        with bar(f"reporting on {file}") as progress:
            return diagnose_streamed(
                judged,
                name=home.resolve().name,
                calibrator=calibrator,
                class_names=self.class_names,
                source=file,
                split="all" if flat else self.split,
                checkpoint=_checkpoint(judged, calibrator, "report"),
                executor=crew.workforce,
                progress=progress,
            )


def _checkpoint(path: str | Path, calibrator: Calibrator | None, what: str) -> Path:
    """Return where the progress of this work on these data is kept, in the working folder."""
    identity = f"{what} {Path(path).resolve()} {None if calibrator is None else calibrator_identity(calibrator)}"
    return CHECKPOINTS / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr, to a person only; gives the function to call with rows done, in all, and other words."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = console(err=True)
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def tell(done: int, total: int, now: str = what) -> None:
            progress.update(task, completed=done, total=total, description=now)

        yield tell
