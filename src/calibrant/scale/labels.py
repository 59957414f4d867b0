"""Evaluation of several labels a row in tables larger than memory: batch after batch, by sums."""

import os
from typing import Any

from calibrant._core.check import refuse
from calibrant._core.paths import as_path, shown
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.data.leakage import LeakCheck
from calibrant.data.multilabel_files import multilabel_batches
from calibrant.errors import Remedy
from calibrant.evaluate.label_sums import LabelSums

__all__ = ["evaluate_multilabel_streamed"]


def evaluate_multilabel_streamed(
    source: str | os.PathLike[str],
    *,
    calibrator: MultiLabelCalibrator | None = None,
    columns: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    allow_fit_rows: bool = False,
) -> tuple[LabelSums, tuple[str, ...]]:
    """Return the sums of all rows of a table, or a folder of tables, and the labels' names; in bounded memory, in this process.

    Args:
        source: As ``multilabel_files.multilabel_batches`` takes it.
        calibrator: A fitted one to measure after, or None.
        columns: As in ``load_multilabel``.
        label: As there.
        kind: As there.
        allow_fit_rows: Accept rows that the calibrator was fitted on.

    Returns:
        Sums for ``evaluate.panel_of_sums``; names in the order of the sums' columns.

    Raises:
        FileFormatError: If a file cannot be read or holds no such predictions.
        InputError: If what it holds is not valid, or there are no rows or no labels.
        LeakError: If consecutive rows of the fit are found.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant import MultiLabelPredictions, save_multilabel
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = MultiLabelPredictions.from_logits([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [-1, 1]])
        >>> for part in (0, 1):
        ...     save_multilabel(folder / f"{part}.parquet", {"all": data[part : part + 1]})
        >>> evaluate_multilabel_streamed(folder)[0].n
        2
    """
    if calibrator is not None and not isinstance(calibrator, MultiLabelCalibrator):
        raise refuse(
            "a MultiLabelCalibrator",
            type(calibrator).__name__,
            Remedy("load it with MultiLabelCalibrator.load", command="add --multilabel", option="--multilabel"),
        )
    sums: LabelSums | None = None
    names: tuple[str, ...] = ()
    check = None if calibrator is None or allow_fit_rows else LeakCheck(calibrator.fit_rows)
    for data in multilabel_batches(source, columns=columns, label=label, kind=kind):
        if calibrator is not None:
            if check is not None:
                check.see(data.logits)
            data = data.calibrated_by(calibrator, allow_fit_rows=True)
        part: Any = LabelSums.of(data)
        sums, names = part if sums is None else sums + part, data.names
    if check is not None:
        check.end()
    if sums is None:
        raise refuse("at least one row", f"none in {shown(as_path(source))}", "check how the rows were selected")
    return sums, names
