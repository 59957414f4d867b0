"""Calibrate a Parquet data set of any size: each file becomes a file of the same name, whole or not there at all."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calibrant._places import as_path, atomic_write, check_target, same_file
from calibrant.calibrators import Calibrator
from calibrant.errors import FileFormatError, InputError
from calibrant.predictions import Predictions
from calibrant.scale.checkpoint import calibrator_identity, check_calibrator
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.rows import ParquetRows, Shard, file_identity, open_parquet, rows_of
from calibrant.splits import stale_names

__all__ = ["apply_streamed"]

_SHARE = 4  # of a piece: beside the rows stand their calibrated copy and what the writer holds
_MARK = (
    b"calibrant.apply"  # in a written file's footer: what it was made from, so that a second call knows its own work
)


def apply_streamed(
    calibrator: Calibrator,
    path: str | os.PathLike[str] | ParquetRows,
    out: str | os.PathLike[str],
    *,
    executor: Executor = in_turn,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write calibrated logits of a Parquet data set into a folder, a file for each file; a second call goes on.

    Every other column stays as it is. A file appears in the folder when it is whole, never before.

    Args:
        calibrator: Fitted, for the same number of classes.
        path: A file or a folder, as ``ParquetRows`` takes it.
        out: A folder, made if it is not there; for one file also a name that ends in .parquet, which is then written and
            replaced. For ``ray_cluster`` every node must reach it.
        executor: What writes the files: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``; all write the same.
        progress: Called with (rows done, rows in all).

    Returns:
        Files written by this call (those found finished are skipped).

    Raises:
        InputError: If data are not valid, or the calibrator has another number of classes.
        FileFormatError: If the folder cannot be written, or holds a file of that name that was made otherwise.
    """
    rows = rows_of(path)
    place = as_path(out, name="out").absolute()
    single = rows.path.is_file() and place.suffix == ".parquet" and not place.is_dir()
    folder = place.parent if single else place
    check_calibrator(calibrator, needed=True)
    check_execution(executor, progress)
    calibrator(torch.zeros(1, rows.classes))  # refuses an unfitted one and another number of classes, before any work
    if single:
        check_target(out, inputs=[rows.path])
    else:
        _check_folder(folder, rows, shown=out)
    identity = calibrator_identity(calibrator)
    jobs = [_job(rows, file, place if single else folder / file.name, identity) for file in rows.files]
    left = [job for job in jobs if not _is_finished(job, replace=single)]
    finished = rows.rows - sum(job.rows for job in left)
    if left:
        _make(folder, shown=out)
    if progress is not None and finished:
        progress(finished, rows.rows)
    for job, _ in zip(left, executor(_Work(calibrator, rows), left), strict=True):
        finished += job.rows
        if progress is not None:
            progress(finished, rows.rows)
    return len(left)


@dataclass(frozen=True)
class _Job:
    """One file to write: from which row groups, to where, and the mark that says so."""

    shards: tuple[Shard, ...]
    target: Path
    mark: str

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


@dataclass(frozen=True)
class _Work:
    """Write the file of a job."""

    calibrator: Calibrator
    rows: ParquetRows

    def __call__(self, job: _Job) -> None:
        import pyarrow.parquet

        writer = None
        with atomic_write(job.target, inputs=[self.rows.file(job.shards[0])]) as file, torch.no_grad():
            try:
                for shard in job.shards:
                    for batch, piece in self.rows.pieces(shard, share=_SHARE):
                        table = _calibrated(self.calibrator, batch, piece, kind=self.rows.kind)
                        if writer is None:
                            schema = table.schema.with_metadata({_MARK: job.mark})
                            writer = pyarrow.parquet.ParquetWriter(
                                file, schema, use_dictionary=False, write_page_checksum=True
                            )
                        writer.write_batch(table)
            finally:
                if writer is not None:
                    writer.close()


def _calibrated(calibrator: Calibrator, batch: Any, piece: Predictions, *, kind: str) -> Any:
    """Return the batch with calibrated logits in the place of its logits or probabilities."""
    import pyarrow as pa

    wide = piece.logits if piece.logits.dtype.itemsize >= 4 else piece.logits.float()
    # every row is passed through, the fitted ones too: nothing is evaluated here
    after = Predictions(wide, decision=piece.decision, features=piece.features).calibrated_by(
        calibrator, allow_fit_rows=True
    )
    flat = pa.array(after.logits.contiguous().numpy().reshape(-1))
    names = batch.schema.names
    stale = {name for name in stale_names(names, "") if name != kind}  # computed anew, or left out
    columns = {name: batch.column(name) for name in names if name not in stale}
    columns[kind] = pa.FixedSizeListArray.from_arrays(flat, after.classes)
    if after.decision is not None:
        columns["decision"] = pa.array(after.decision.numpy())
    return pa.record_batch(list(columns.values()), names=["logits" if name == kind else name for name in columns])


def _job(rows: ParquetRows, file: Path, target: Path, calibrator: str) -> _Job:
    shards = tuple(shard for shard in rows.shards if shard.file == file.name)
    size, modified, *_, footer = file_identity(
        file
    )  # not when it was put here: a copy of the data gives the same bytes
    source = [file.name, size, modified, footer, [shard.rows for shard in shards], calibrator]
    return _Job(shards, target, hashlib.sha256(json.dumps(source).encode()).hexdigest())


def _is_finished(job: _Job, *, replace: bool) -> bool:
    if not job.shards:  # a file without rows has nothing to write
        return True
    if replace or not os.path.lexists(job.target):
        return False
    with open_parquet(job.target) as parquet:
        found = (parquet.schema_arrow.metadata or {}).get(_MARK)
    if found != job.mark.encode():
        raise FileFormatError(
            f"expected {job.target} to be missing or written by this calibrator from these data, got another file; choose "
            "an empty folder"
        )
    return True


def _check_folder(folder: Path, rows: ParquetRows, *, shown: str | os.PathLike[str]) -> None:
    if same_file(folder, rows.folder):
        raise InputError(f"expected a folder other than the input's, got {shown} for both; choose another output")
    if folder.exists() and not folder.is_dir():
        raise FileFormatError(f"expected a folder to write to, got the file {shown}; choose another output")


def _make(folder: Path, *, shown: str | os.PathLike[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"expected a folder to write to, got {error.strerror!r} for {shown}; choose another"
        ) from error
