"""Calibrate a Parquet data set of any size: one output file per input file, written atomically."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calibrant._core.constraints import checked
from calibrant._core.paths import as_path, atomic_write, check_folder, check_target, same_file
from calibrant.calibrators import Calibrator
from calibrant.data.predictions import Predictions
from calibrant.data.splits import stale_names
from calibrant.errors import FileFormatError, InputError
from calibrant.scale.execute import Progress, Runner, in_turn
from calibrant.scale.passes import SomeCalibrator, calibrator_identity
from calibrant.scale.rows import ParquetRows, Shard, file_identity, open_parquet

# pieces are this many times smaller: the calibrated copy and the writer's buffers are held in memory, too
_PIECE_SHARE = 4
_MARK = b"calibrant.apply"  # footer key of a hash of the inputs, by which a repeated call recognises finished files


@checked
def apply_streamed(
    calibrator: SomeCalibrator,
    path: str | os.PathLike[str] | ParquetRows,
    out: str | os.PathLike[str],
    *,
    executor: Runner = in_turn,
    progress: Progress | None = None,
) -> int:
    """Write calibrated logits of a Parquet data set, one output file per input file, and return how many were written.

    All other columns are copied unchanged. Files are written atomically, and a repeated call skips finished ones.

    Args:
        calibrator: A fitted calibrator for the same number of classes.
        path: A file or a folder, as for ``ParquetRows``.
        out: A folder, created if it does not exist; for one input file also a name that ends in .parquet, which is
            overwritten. For ``ray_cluster`` it must be reachable from every node.
        executor: Runs the files: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``; all write the same bytes.
        progress: Called with (rows done, total rows).

    Returns:
        Number of files written by this call; finished files are skipped.

    Raises:
        InputError: If data are not valid, or the calibrator has another number of classes.
        FileFormatError: If the folder cannot be written, or holds a file of that name from other inputs.
    """
    rows = ParquetRows.of(path)
    place = as_path(out, name="out").absolute()
    single = rows.path.is_file() and place.suffix == ".parquet" and not place.is_dir()
    folder = place.parent if single else place
    calibrator.check_input(torch.zeros(1, rows.classes))  # unfitted, or of another number of classes: before any work
    if single:
        check_target(out, inputs=[rows.path])
    else:
        if same_file(folder, rows.folder):
            raise InputError("a folder other than the input's", f"{out} for both", "choose another output")
        check_folder(out)
    identity = calibrator_identity(calibrator)
    # the mark of a file says of which input and calibrator it is: a repeated call skips what it finished
    jobs = [_OutputFile.of(rows, file, place if single else folder / file.name, identity) for file in rows.files]
    left = [job for job in jobs if not job.finished(replace=single)]
    finished = rows.rows - sum(job.rows for job in left)
    if left:
        folder.mkdir(parents=True, exist_ok=True)
    if progress is not None and finished:
        progress(finished, rows.rows)
    for job, _ in zip(left, executor(partial(_write, calibrator, rows), left), strict=True):
        finished += job.rows
        if progress is not None:
            progress(finished, rows.rows)
    return len(left)


@dataclass(frozen=True)
class _OutputFile:
    """One file to write: its row groups, its path, and the mark for its footer."""

    shards: tuple[Shard, ...]
    target: Path
    mark: str

    @classmethod
    def of(cls, rows: ParquetRows, file: Path, target: Path, calibrator: str) -> "_OutputFile":
        shards = tuple(shard for shard in rows.shards if shard.file == file.name)
        size, modified, *_, footer = file_identity(file)  # without ctime, so that a copy of the data has the same mark
        source = [file.name, size, modified, footer, [shard.rows for shard in shards], calibrator]
        return cls(shards, target, hashlib.sha256(json.dumps(source).encode()).hexdigest())

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def finished(self, *, replace: bool) -> bool:
        """Return whether an earlier call has written the file."""
        if not self.shards:  # a file without rows needs no output
            return True
        if replace or not os.path.lexists(self.target):
            return False
        with open_parquet(self.target) as parquet:
            found = (parquet.schema_arrow.metadata or {}).get(_MARK)
        if found != self.mark.encode():
            raise FileFormatError(
                f"{self.target} to be missing or written by this calibrator from these data",
                "another file",
                "choose an empty folder",
            )
        return True


def _write(calibrator: Calibrator, rows: ParquetRows, job: _OutputFile) -> None:
    """Write the file of a job."""
    import pyarrow.parquet

    writer = None
    with atomic_write(job.target, inputs=[rows.file(job.shards[0])]) as file, torch.no_grad():
        try:
            for shard in job.shards:
                for batch, piece in rows.pieces(shard, share=_PIECE_SHARE):
                    table = _with_calibrated(calibrator, batch, piece, kind=rows.kind)
                    if writer is None:
                        schema = table.schema.with_metadata({_MARK: job.mark})
                        writer = pyarrow.parquet.ParquetWriter(
                            file, schema, use_dictionary=False, write_page_checksum=True
                        )
                    writer.write_batch(table)
        finally:
            if writer is not None:
                writer.close()


def _with_calibrated(calibrator: Calibrator, batch: Any, piece: Predictions, *, kind: str) -> Any:
    """Return the batch with calibrated logits instead of its logits or probabilities."""
    import pyarrow as pa

    wide = piece.logits if piece.logits.dtype.itemsize >= 4 else piece.logits.float()
    # rows that the calibrator was fitted on are allowed: nothing is evaluated here
    after = Predictions(wide, decision=piece.decision, features=piece.features).calibrated_by(
        calibrator, allow_fit_rows=True
    )
    flat = pa.array(after.logits.contiguous().numpy().reshape(-1))
    names = batch.schema.names
    stale = {name for name in stale_names(names, "") if name != kind}  # recomputed, or left out
    columns = {name: batch.column(name) for name in names if name not in stale}
    columns[kind] = pa.FixedSizeListArray.from_arrays(flat, after.classes)
    if after.decision is not None:
        columns["decision"] = pa.array(after.decision.numpy())
    return pa.record_batch(list(columns.values()), names=["logits" if name == kind else name for name in columns])
