"""Fits on tables larger than memory: each calibrator's own algorithm, whose sums come from passes over the shards."""

import os
from typing import TypeVar

from calibrant._places import as_path
from calibrant.calibrators import Calibrator
from calibrant.scale.checkpoint import check_calibrator
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.passes import ParquetSource, Passes, PassProgress
from calibrant.scale.rows import ParquetRows

__all__ = ["fit_streamed"]

C = TypeVar("C", bound=Calibrator)


def fit_streamed(
    calibrator: C,
    path: str | os.PathLike[str],
    *,
    executor: Executor = in_turn,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: PassProgress | None = None,
) -> C:
    """Fit any calibrator on a Parquet data set of any size: the answer, the certificate and the leakage guard of memory.

    Args:
        calibrator: What to fit; one that was fitted starts from what it knows.
        path: A file or a folder, as ``ParquetRows`` takes it, with labels.
        executor: What runs the shards; all give the same bits.
        checkpoint: A JSON file that keeps every sum that was made; a second call goes on from it. It is removed when
            the fit has ended.
        progress: Called with (passes begun, rows done in this one, rows in all).

    Returns:
        ``calibrator`` itself, fitted.

    Raises:
        InputError: If labels are missing, data are not valid (file, row group and row are named), or the calibrator needs
            all of more rows at once than can be held, as ``VennAbers`` does.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data or another fit.
        FitError: If the certificate is not reached.
    """
    check_calibrator(calibrator, needed=True)
    check_execution(executor, progress, figures=3)
    if checkpoint is not None:
        checkpoint = as_path(checkpoint, name="checkpoint")
    rows = ParquetRows(path)
    start = {name: value.tolist() for name, value in calibrator.state_dict().items()} if calibrator.fitted else None
    what = f"{type(calibrator).__name__} {calibrator.config()!r} from {start!r}"
    passes = Passes(rows, what, executor=executor, journal=checkpoint, progress=progress)
    calibrator.fit_from(ParquetSource.of(passes))
    passes.remove()
    return calibrator
