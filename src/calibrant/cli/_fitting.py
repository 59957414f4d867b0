"""Fitting for the command line: what is fitted, what it did to the fitting data, and how that is said."""

from calibrant.calibrators import Calibrator
from calibrant.cli._calibrators import describe, evidence_of, make_calibrator
from calibrant.cli._files import STREAM
from calibrant.cli._output import say_evidence, say_json, say_rows
from calibrant.metrics import ECE, NLL, Accuracy, Metric
from calibrant.predictions import Predictions
from calibrant.report.model import in_one_line
from calibrant.report.tables import Row, measure

SHOWN: list[Metric] = [Accuracy(), NLL(), ECE()]
ADVICE = "evaluate it on others, with `calibrant evaluate FILE --calibrator C --split test`."


def fit_and_measure(data: Predictions, method: str, *, file: str, split: str) -> tuple[Calibrator, list[Row]]:
    """Return the calibrator ``method`` fitted on ``data``, and accuracy, NLL and ECE there before and after."""
    calibrator = make_calibrator(method).fit(data.logits, data.need_labels(), groups=data.groups)
    after = data.calibrated_by(calibrator, allow_fit_rows=True)
    rows = measure(data, file=file, split=split, metrics=SHOWN)
    return calibrator, rows + measure(after, file=file, split=split, metrics=SHOWN, calibrator=in_one_line(calibrator))


def say_fit(calibrator: Calibrator, rows: list[Row], *, output: str, split: str, as_json: bool) -> None:
    """Say what was fitted; to stderr where stdout takes the calibrator itself."""
    if as_json and output != STREAM:
        say_json(rows, fitted=describe(calibrator) | {"split": split, "path": output})
        return
    if evidence := evidence_of(calibrator):
        say_evidence(evidence, err=output == STREAM)
    notes = [f"{in_one_line(calibrator)}, fitted on {split}, saved to {output}"]
    if rows:
        notes.append(f"These are the {rows[0].n:,} rows it was fitted on: {ADVICE}")
    say_rows(rows, err=output == STREAM, notes=notes)
