"""Calibrate a Parquet data set of any size: each file becomes a file of the same name, whole or not there at all."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calibrant._files import atomic_write
from calibrant.calibrators._base import Calibrator
from calibrant.errors import FileFormatError, InputError
from calibrant.predictions import Predictions
from calibrant.scale.checkpoint import calibrator_identity
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard, open_parquet

__all__ = ["apply_streamed"]

_SHARE = 4  # of a piece: beside the rows stand their calibrated copy and what the writer holds
_MARK = (
    b"calibrant.apply"  # in a written file's footer: what it was made from, so that a second call knows its own work
)


def apply_streamed(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
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
        out: A folder, made if it is not there. For ``ray_cluster`` every node must reach it.
        executor: What writes the files: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``; all write the same.
        progress: Called with (rows done, rows in all).

    Returns:
        Files written by this call (those found finished are skipped).

    Raises:
        InputError: If data are not valid, or the calibrator has another number of classes.
        FileFormatError: If the folder cannot be written, or holds a file of that name that was made otherwise.
    """
    rows = ParquetRows(path)
    folder = Path(out).absolute()
    calibrator(torch.zeros(1, rows.classes))  # refuses an unfitted one and another number of classes, before any work
    _check_folder(folder, rows, shown=out)
    identity = calibrator_identity(calibrator)
    jobs = [_job(rows, file, folder, identity) for file in rows.files]
    left = [job for job in jobs if not _is_finished(job)]
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
        with atomic_write(job.target) as file, torch.no_grad():
            try:
                for shard in job.shards:
                    for batch, piece in self.rows.pieces(shard, share=_SHARE):
                        table = _calibrated(self.calibrator, batch, piece, kind=self.rows.kind)
                        if writer is None:
                            schema = table.schema.with_metadata({_MARK: job.mark})
                            writer = pyarrow.parquet.ParquetWriter(file, schema, use_dictionary=False)
                        writer.write_batch(table)
            finally:
                if writer is not None:
                    writer.close()


def _calibrated(calibrator: Calibrator, batch: Any, piece: Predictions, *, kind: str) -> Any:
    """Return the batch with calibrated logits in the place of its logits or probabilities."""
    import pyarrow as pa

    wide = piece.logits if piece.logits.dtype.itemsize >= 4 else piece.logits.float()
    # every row is passed through, the fitted ones too: nothing is judged here
    after = Predictions(wide, decision=piece.decision).calibrated_by(calibrator, allow_fit_rows=True)
    flat = pa.array(after.logits.contiguous().numpy().reshape(-1))
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns[kind] = pa.FixedSizeListArray.from_arrays(flat, after.classes)
    if after.decision is not None:
        columns["decision"] = pa.array(after.decision.numpy())
    return pa.record_batch(list(columns.values()), names=["logits" if name == kind else name for name in columns])


def _job(rows: ParquetRows, file: Path, folder: Path, calibrator: str) -> _Job:
    stat = file.stat()
    shards = tuple(shard for shard in rows.shards if shard.file == file.name)
    source = [file.name, stat.st_size, stat.st_mtime_ns, [shard.rows for shard in shards], calibrator]
    return _Job(shards, folder / file.name, hashlib.sha256(json.dumps(source).encode()).hexdigest())


def _is_finished(job: _Job) -> bool:
    if not job.shards:  # a file without rows has nothing to write
        return True
    if not job.target.exists():
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
    if folder.resolve() == rows.folder.resolve():
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
