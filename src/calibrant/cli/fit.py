"""``calibrant fit``: learn a calibrator from the validation split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._files import shown
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import (
    STREAM,
    Findings,
    check_output,
    say_evidence,
    say_json,
    say_rows,
    working,
    writable,
)
from calibrant.cli._options import (
    AsJson,
    Inputs,
    OneFile,
    SeveralLabels,
    Source,
    choose_method,
    complete_method,
    feature_names,
    refuse_for_several,
    typed_columns,
)
from calibrant.cli._streams import OnRay, parts_of, source_of, streams
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator, MultiLabelCalibrator


ADVICE = "evaluate it on others, with `calibrant evaluate FILE --calibrator C{}`."


@dataclass(frozen=True)
class Chosen:
    """Which calibrator is fitted, and on what."""

    method: str | None = option(
        None, "A calibrator of `calibrant methods`; auto if left out.", "--method", "-m", autocompletion=complete_method
    )
    features: str | None = option(
        None,
        "Feature columns that GroupScaling or FeatureScaling (for numbers) calibrates by, as a,b, or all.",
    )
    split: str = option("val", "The split to fit on: never the one you will evaluate on.")

    @property
    def columns(self) -> list[str] | None:
        """The columns that ``--features`` names."""
        return typed_columns(None if self.features is None else [self.features], option="--features")

    def make(self, method: str) -> Calibrator:
        """Return the calibrator of this name, with what was asked for."""
        from calibrant.cli._calibrators import make_calibrator

        return make_calibrator(method, features=self.columns)


@with_groups
def fit(
    inputs: Inputs,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to save it (.safetensors); - writes stdout.")],
    given: OneFile,
    chosen: Chosen,
    as_json: AsJson = False,
    multilabel: SeveralLabels = False,
    on_ray: OnRay = False,
) -> None:
    """Fit a calibrator on the validation split and print its effect there.

    A folder of Parquet files is streamed: any number of rows, in bounded memory. The automatic choice
    compares its candidates on a random sample if there are many rows, and fits the chosen one on all rows.

    Examples:

        calibrant fit predictions.npz -o c.safetensors

        calibrant fit scores.csv --columns cat,dog,fox --label truth --kind probs -o c.safetensors

        calibrant fit predictions.npz --method TemperatureScaling -o c.safetensors --json

        calibrant fit people.parquet -m GroupScaling --features region,age -o c.safetensors

        calibrant fit folder/ --method EnsembleTemperatureScaling -o c.safetensors

        calibrant fit labels.npz --multilabel -o c.safetensors
    """
    if multilabel:
        refuse_for_several("features")
    if as_json and output == STREAM:
        raise InputError("--json and the calibrator cannot both go to stdout; name a file by --output")
    choose_method(chosen.method)
    source = given.source(inputs)
    check_output(output, inputs=[source.path], suffixes=[".safetensors"], what="a calibrator")

    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import AUTO, OF_LABELS
    from calibrant.data.record import need_features

    if not multilabel and streams(source.path, "features"):
        _fit_on_disk(source, inputs, chosen, output=output, as_json=as_json, on_ray=on_ray)
        return
    method = chosen.method if chosen.method is not None else OF_LABELS if multilabel else AUTO
    made = chosen.make(method)
    rows = inputs.read(source, chosen.split, several=multilabel, features=[] if multilabel else feature_names(made))
    if not multilabel and made.needs_features:
        need_features(rows.data)
    with writable(output, suffix=".safetensors") as path:
        with working(f"fitting {method} on {len(rows.data):,} rows"):
            one_for_all = MultiLabelCalibrator(made) if multilabel else made
            calibrator, found = _fit_and_measure(rows.data, one_for_all, file=source.shown, split=rows.split)
        calibrator.save(path)
    _say_what_was_fitted(calibrator, found, output=output, split=rows.split, as_json=as_json)


def _fit_on_disk(source: Source, inputs: Inputs, chosen: Chosen, *, output: str, as_json: bool, on_ray: bool) -> None:
    """Fit on streamed rows, save the calibrator and say what was fitted."""
    from calibrant.cli._calibrators import AUTO

    [(part, place)] = parts_of(source.path, chosen.split).items()
    made = chosen.make(chosen.method or AUTO)
    if made.needs_features:
        raise InputError(
            "a calibrator of logits alone for streamed rows",
            type(made).__name__,
            "fit it on a sample that fits in memory",
        )
    with writable(output, suffix=".safetensors") as path:
        with working(f"fitting {shown(place)}"):
            fitted = made.fit(source_of(place, inputs, on_ray=on_ray))
        fitted.save(path)
    _say_what_was_fitted(fitted, Findings(), output=output, split=part, as_json=as_json)


def _fit_and_measure(data: Any, made: Any, *, file: str, split: str) -> tuple[Any, Findings]:
    """Return the calibrator ``made`` fitted on ``data``, and figures there before and after: of one class accuracy, NLL and ECE."""
    from calibrant.data.predictions import Predictions
    from calibrant.metrics import ECE, NLL, Accuracy
    from calibrant.report.model import in_one_line

    shown = [Accuracy(), NLL(), ECE()] if isinstance(data, Predictions) else None  # all of several labels
    calibrator, found = made.fit(data), Findings()
    found.measure(data, file=file, split=split, metrics=shown)
    after = data.calibrated_by(calibrator, allow_fit_rows=True)
    found.measure(after, file=file, split=split, metrics=shown, calibrator=in_one_line(calibrator))
    return calibrator, found


def _say_what_was_fitted(
    calibrator: Calibrator | MultiLabelCalibrator,
    found: Findings,
    *,
    output: str,
    split: str,
    as_json: bool,
) -> None:
    """Say what was fitted on a split, "all" of a file without any; to stderr where stdout takes the calibrator itself."""
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import calibrator_facts, evidence_of, in_words

    if as_json and output != STREAM:
        extra = found.plain if isinstance(calibrator, MultiLabelCalibrator) else None
        say_json(found.rows, fitted=calibrator_facts(calibrator) | {"split": split, "path": output}, extra=extra)
        return
    if evidence := evidence_of(calibrator):
        say_evidence(evidence, err=output == STREAM)
    notes = [f"{in_words(calibrator)}, fitted on {'all rows' if split == 'all' else split}, saved to {output}"]
    if found.rows:
        advice = ADVICE.format(" --split test" if split != "all" else "")
        notes.append(f"These are the {found.rows[0].n:,} rows it was fitted on: {advice}")
    say_rows(found.rows, err=output == STREAM, notes=notes)
