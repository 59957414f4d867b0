"""Data sets larger than memory on the command line: folders of Parquet files, and large ones, are streamed and resumed."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant._core.paths import check_folder, check_suffix, check_target, shown
from calibrant._core.warn import warn_user
from calibrant.cli._io import STREAM, console
from calibrant.cli._options import LAYOUT, STREAMING, Inputs, refuse_typed, typed
from calibrant.errors import FileFormatError, InputError, UsageWarning

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.metrics import SumMetric
    from calibrant.report.tables import Row
    from calibrant.rows import RowSource
    from calibrant.scale.execute import Executor


CHECKPOINTS = Path("calibrant-runs", "streams")


_WHOLE = ("class_dim", "ignore_index", "by", "costs", "error_limit")  # options for files that are read whole
STREAMED_BYTES = (
    256 << 20
)  # of logits, above which one Parquet file is streamed: reading it whole takes several times that


@dataclass(frozen=True)
class Streaming:
    """The options on what runs the passes over streamed data."""

    executor: Annotated[str, typer.Option(help="For a folder of Parquet files: local, or ray for a cluster.")] = "local"
    workers: Annotated[
        int, typer.Option(min=1, help="Processes of the local executor, or of a Ray cluster started here.")
    ] = 1
    address: Annotated[str | None, typer.Option(help="The Ray cluster's address; without it one is started here.")] = (
        None
    )


@dataclass(frozen=True)
class Execution:
    """What runs the passes over streamed data, as the options say."""

    context: typer.Context
    options: Streaming = Streaming()
    several: bool = False  # labels a row
    refused: tuple[str, ...] = _WHOLE  # options for files that are read whole

    def streams(self, file: str) -> bool:
        """Return whether ``file`` is streamed: a folder, or a Parquet file of much data.

        Raises:
            InputError: For an option that has no effect on such a file.
        """
        from calibrant.data.formats import is_array_folder

        if self.several:
            folder = Path(file).is_dir() and not is_array_folder(file)
            if folder:
                refuse_typed(self.context, ["draws", "split"], where=f"the folder {shown(file)}, which is streamed")
            return folder
        if is_streamed(file):
            refuse_typed(self.context, self.refused, where=f"{shown(file)}, which is streamed")
            names = LAYOUT if self.context.command.name != "report" else LAYOUT[:-1]
            refuse_typed(
                self.context,
                names,
                where=f"{shown(file)}, which is streamed",
                remedy=f"convert it with them: calibrant convert {shlex.quote(shown(file))} converted",
            )
            return True
        refuse_typed(self.context, STREAMING, where=f"{shown(file)}, which is read whole: only streamed data need them")
        return False

    @cached_property
    def runner(self) -> Executor:
        """The executor that the options name, the same one for every pass."""
        from calibrant._core.check import check_choice
        from calibrant.scale import processes, ray_cluster
        from calibrant.scale.execute import in_turn

        check_choice(self.options.executor, name="--executor", choices=("local", "ray"))
        if self.options.executor == "ray":
            if self.options.address is not None:
                refuse_typed(self.context, ["workers"], where="a cluster at --address, which has its own")
            return ray_cluster(
                self.options.address, workers=self.options.workers if typed(self.context, ["workers"]) else None
            )
        if self.options.address is not None:
            raise InputError("--executor ray beside --address", "the local executor", "name both")
        return in_turn if self.options.workers == 1 else processes(self.options.workers)


def is_streamed(file: str) -> bool:
    """Return whether ``file`` is a data set that is streamed: a folder of Parquet files, or one large Parquet file."""
    from calibrant.data.formats import is_array_folder
    from calibrant.scale.rows import logits_bytes

    return (Path(file).is_dir() and not is_array_folder(file)) or logits_bytes(file) > STREAMED_BYTES


def parts_of(file: str, split: str | None, context: typer.Context, *, option: str = "split") -> dict[str, Path]:
    """Return split name → where its rows are: the folders in a folder, or all of a file or folder that has no splits.

    Args:
        file: A folder or a Parquet file.
        split: The requested one, or None for all.
        context: Of the command.
        option: The parameter that names it.

    Raises:
        InputError: If a split is named and a folder has none, or it has both files and folders of them.
        FileFormatError: If there is no such split.
    """
    from calibrant.data.splits import canonical_split, find_split

    home = Path(file)
    if not home.is_dir():
        return {split or "all": home}
    folders = split_places(home)
    flat = any(home.glob("*.parquet")) and not any(place.is_file() for place in folders.values())
    if folders and flat:
        raise InputError(f"Parquet files or folders of them in {shown(file)}", "both", "name the folder that is meant")
    if not folders:
        refuse_typed(context, [option], where=f"{shown(file)}, a folder without folders of splits")
        return {"all": home}
    names = [canonical_split(name) for name in folders]
    if len(set(names)) < len(names):
        raise InputError(f"one folder a split in {shown(file)}", f"{sorted(folders)}", "keep one spelling of each")
    if split is None:
        return folders
    found = find_split(folders, split)
    if found is None:
        raise FileFormatError(f"the split {split!r}", f"only {sorted(folders)} in {shown(file)}", "name one of these")
    return {split: folders[found]}


def split_places(home: Path) -> dict[str, Path]:
    """Return split name → folder of Parquet files, or file, where all files of a folder are called as splits are."""
    from calibrant.data.formats import SPLITS

    folders = {path.parent.name: path.parent for path in sorted(home.glob("*/*.parquet"))}
    files = sorted(home.glob("*.parquet"))
    if not folders and len(files) > 1 and all(file.stem.casefold() in SPLITS for file in files):
        return {file.stem: file for file in files}
    return folders


def measure_streamed(
    file: str,
    split: str | None,
    execution: Execution,
    calibrator: Any,
    *,
    inputs: Inputs,
    metrics: Sequence[SumMetric[Any]],
    draws: int,
) -> list[Row]:
    """Return figures over the splits of streamed data, before and after ``calibrator``; stopped, those of ``metrics`` go on."""
    from calibrant.evaluate import panel_of_sums
    from calibrant.report.model import as_text
    from calibrant.report.tables import Row, in_percent, label_of, rows_of_labels
    from calibrant.scale import evaluate_multilabel_streamed, evaluate_streamed
    from calibrant.scale.rows import ParquetRows

    found = []
    if execution.several:
        for fitted in dict.fromkeys((None, calibrator)):
            read: dict[str, Any] = {"columns": inputs.columns, "label": inputs.label, "kind": inputs.kind}
            sums, _ = evaluate_multilabel_streamed(file, calibrator=fitted, **read)
            found += rows_of_labels(panel_of_sums(sums), file=shown(file), split="all", calibrator=as_text(fitted))
        return found
    for part, path in parts_of(file, split, execution.context).items():
        rows = ParquetRows(path)  # once: before and after are of the same version of the files
        for chosen in [None, calibrator] if calibrator else [None]:
            with bar(f"measuring {shown(path)}") as progress, kept_progress(path, chosen, "evaluate") as checkpoint:
                figures = evaluate_streamed(
                    rows,
                    metrics=metrics,
                    calibrator=chosen,
                    checkpoint=checkpoint,
                    executor=execution.runner,
                    progress=progress,
                    draws=draws,
                )
            for metric, one in zip(metrics, figures, strict=True):
                numbers = (one.value, one.low, one.high, one.null_high, one.n, label_of(metric), in_percent(metric))
                found.append(Row(shown(file), part, as_text(chosen), one.metric, *numbers, one.null_mean))
    return found


def rows_streamed(file: str, split: str, execution: Execution, calibrator: Calibrator | None) -> RowSource:
    """Return the rows of one split of streamed data, after the calibrator if there is one, as a source of predictions."""
    from calibrant.scale.passes import ParquetSource, Passes, Pieces
    from calibrant.scale.rows import ParquetRows

    [path] = parts_of(file, split, execution.context).values()
    return ParquetSource(Passes(ParquetRows(path), "a gate"), units=Pieces(calibrator))


def fit_streamed_file(path: Path, calibrator: Calibrator, execution: Execution) -> Calibrator:
    """Fit a calibrator on streamed rows.

    Stopped and started again, it goes on.

    Raises:
        InputError: For a method that cannot be fitted by sums, or that goes by features where there are none.
    """
    from calibrant._core.check import refuse
    from calibrant.data.record import is_beside
    from calibrant.scale import fit_streamed
    from calibrant.scale.rows import ParquetRows

    name = shown(path)
    if calibrator.needs_features and not any(map(is_beside, ParquetRows(path).beside or ())):
        raise refuse("features to calibrate by", f"none in {name}", "name the columns feature:NAME")
    with bar(f"fitting {name}") as progress, kept_progress(path, None, f"fit {calibrator!r}") as checkpoint:
        return fit_streamed(
            calibrator,
            path,
            executor=execution.runner,
            checkpoint=checkpoint,
            progress=lambda begun, done, total: progress(done, total, f"fitting {name}, pass {begun}"),
        )


def apply_to_streamed(
    calibrator: Calibrator, file: str, output: str, execution: Execution, *, inputs: Sequence[str]
) -> str:
    """Write calibrated Parquet files for streamed rows; stopped and started again, it goes on.

    Returns:
        What was written, in words.

    Raises:
        InputError: For stdout, or a name of a file.
    """
    from calibrant.scale import apply_streamed
    from calibrant.scale.rows import ParquetRows

    if output == STREAM:
        raise InputError(f"a folder to write calibrated files of {shown(file)} to", "-", "name one by --output")
    rows = ParquetRows(file)
    if rows.path.is_file():
        check_suffix(output, (".parquet",), what="a large Parquet file, which is streamed")
    if rows.path.is_dir() or not Path(output).suffix:
        check_folder(output)
    else:
        check_target(output, inputs=inputs)
    with bar(f"calibrating {shown(file)}") as progress:
        written = apply_streamed(calibrator, rows, output, executor=execution.runner, progress=progress)
    there = len(rows.files) - written
    return f"{written} files written" + (f", {there} were there already" if there else "")


@contextmanager
def kept_progress(path: str | Path, calibrator: Calibrator | None, what: str) -> Iterator[Path | None]:
    """Give the file in the working folder that keeps the progress of this work on these data, None where none can be written.

    What it made and left empty is removed, so that finished work leaves nothing behind.
    """
    from calibrant.scale.passes import calibrator_identity

    home = next(place for place in (CHECKPOINTS, *CHECKPOINTS.parents) if place.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        warn_user(
            f"expected a working folder that can be written, got {shown(home.absolute())}, so no progress is kept and stopped "
            "work starts anew; run it where you can write",
            UsageWarning,
        )
        yield None
        return
    missing = [place for place in (CHECKPOINTS, *CHECKPOINTS.parents) if not place.exists()]
    identity = f"{what} {Path(path).resolve()} {None if calibrator is None else calibrator_identity(calibrator)}"
    try:
        yield CHECKPOINTS / f"{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}.json"
    finally:
        for place in missing:
            with suppress(OSError):  # not empty: another run's, or work that was stopped
                place.rmdir()


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr, to a person only; gives the function to call with rows done, in all, and other words."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = console(err=True)
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def report(done: int, total: int, now: str = what) -> None:
            progress.update(task, completed=done, total=total, description=now)

        yield report
