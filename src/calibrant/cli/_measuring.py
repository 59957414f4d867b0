"""Measuring for the command line: every split of a file, before and after a calibrator."""

import calibrant
from calibrant.calibrators import Calibrator
from calibrant.cli._calibrators import fitted_on, with_logits
from calibrant.cli._options import Axes
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row, measure


def measure_file(
    path: str, calibrator: Calibrator | None, *, shown: str, split: str | None, axes: Axes, draws: int
) -> tuple[list[Row], list[str]]:
    """Return the rows of a file's splits (or of one), and notes on splits that the calibrator was fitted on."""
    rows: list[Row] = []
    notes: list[str] = []
    one = {split: calibrant.load_predictions(path, split, **axes)} if split else None
    for name, data in (one or calibrant.load_splits(path, **axes)).items():
        rows += measure(data, file=shown, split=name, draws=draws)
        if calibrator is None:
            continue
        after = with_logits(data, file=shown, split=name).calibrated_by(calibrator, allow_fit_rows=True)
        rows += measure(after, file=shown, split=name, calibrator=in_one_line(calibrator), draws=draws)
        if fitted_on(data, calibrator):
            notes.append(f"{shown}, {name}: the calibrator was fitted on these rows; evaluate it on others.")
    return rows, notes
