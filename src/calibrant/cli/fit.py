"""``calibrant fit`` fits a calibrator, ``apply`` applies it to a file, and ``export`` writes it as an ONNX model."""

from __future__ import annotations

import dataclasses
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrant.cli import options
from calibrant.cli.evaluate import print_rows
from calibrant.cli.terminal import print_json, print_table, print_text, working
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators.auto import Evidence
    from calibrant.evaluate.panel import Row

output = click.option(
    "--output", "-o", metavar="OUT", required=True, help="Output file, or output folder if the input is a folder."
)


@options.command()
@options.reading("file", *options.ROWS, "labels", "on", "multilabel")
@click.option("--output", "-o", metavar="C", required=True, help="File to save the calibrator to (.safetensors).")
@options.method
@click.option(
    "--features",
    metavar="COLUMN,…",
    help="Columns that GroupScaling or FeatureScaling uses: a,b, or all of those called feature:NAME.",
)
@click.option(
    "--split", default="val", show_default=True, help="The split to fit on; do not use it for evaluation later."
)
@options.as_json
def fit(
    reading: options.Reading, output: str, method: str | None, features: str | None, split: str, as_json: bool
) -> None:
    """Fit a calibrator on the validation split and print its effect there.

    A folder of Parquet files is streamed, so memory does not grow with the number of rows. If there are many rows, the
    automatic choice compares the candidates on a random sample and fits the chosen one on all rows.

    Examples:

        calibrant fit predictions.npz -o c.safetensors

        calibrant fit scores.csv --columns cat,dog,fox --label truth --kind probs -o c.safetensors

        calibrant fit predictions.npz --method TemperatureScaling -o c.safetensors --json

        calibrant fit people.parquet -m GroupScaling --features region,age -o c.safetensors

        calibrant fit folder/ --method EnsembleTemperatureScaling -o c.safetensors

        calibrant fit labels.npz --multilabel -o c.safetensors
    """
    source, multilabel = reading.source(), reading.multilabel
    options.check_output(output, inputs=[source.path, reading.labels], suffixes=[".safetensors"], what="a calibrator")

    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.evaluate.multilabel import measure
    from calibrant.metrics import ECE, NLL, Accuracy, Metric
    from calibrant.report.model import in_one_line

    name = method or (options.OF_LABELS if multilabel else options.AUTO)
    by = features.split(",") if features else []
    calibrator: Any = options.make_calibrator(name, features=by)
    figures: list[Row] = []
    if reading.is_streamed(source):
        batches = reading.batches(source, features=features)
        if calibrator.needs_features:
            raise InputError(f"{name} needs features, which streamed rows do not have; fit it on a sample in memory")
        split = "all"
        with working(f"fitting {source.shown}"):
            calibrator.fit(batches)
    else:
        contents = reading.contents(source, *([] if by == ["all"] else by))
        split = options.find_split(contents, split)
        rows = contents.splits[split]
        if not multilabel and calibrator.needs_features and not rows.features:
            remedy = f"name columns of {source.shown} with --features a,b ('all' takes only those called feature:NAME)"
            raise InputError(f"{name} needs features; {remedy}")
        with working(f"fitting {name} on {len(rows):,} rows"):
            calibrator = (MultiLabelCalibrator(calibrator) if multilabel else calibrator).fit(rows)
        states = {None: rows, in_one_line(calibrator): rows.calibrated_by(calibrator, allow_fit_rows=True)}
        metrics: list[Metric] | None = None if multilabel else [Accuracy(), NLL(), ECE()]
        for state, data in states.items():
            figures += measure(data, file=source.shown, split=split, calibrator=state, metrics=metrics)
    calibrator.save(output)
    if as_json:
        facts = calibrator_facts(calibrator) | {"split": split, "path": output}
        print_json({"rows": [row.plain() for row in figures], "fitted": facts})
        return
    if evidence := evidence_of(calibrator):
        print_text(f"auto: {evidence.verdict}", bold=True)
        cells = []
        for trial in evidence.trials:
            if math.isfinite(trial.loss):
                # remove settings in parentheses, also nested ones
                plain = re.sub(r"\([^()]*=[^()]*\)", "", re.sub(r"\([^()]*\)", "", trial.name))
                numbers = f"{trial.loss:.4f}", f"{trial.gain:+.4f}", f"{trial.error:.4f}", f"{trial.weight:.2f}"
                cells.append([plain, *numbers])
        print_table(("tried", "log-loss", "gain", "± s.e.", "weight"), cells)
    notes = [f"{_in_words(calibrator)}, fitted on {'all rows' if split == 'all' else split}, saved to {output}"]
    if figures:
        evaluated = f"`calibrant evaluate FILE --calibrator C{'' if split == 'all' else ' --split test'}`"
        notes.append(
            f"These are the {figures[0].n:,} rows it was fitted on; evaluate it on other rows with {evaluated}."
        )
    print_rows(figures, notes=notes)


def _in_words(calibrator: Any) -> str:
    """Return a one-line description of a calibrator; for several labels, it contains the number that share one fit."""
    from calibrant.report.model import in_one_line

    if not calibrator.multi_label:
        return in_one_line(calibrator)
    kept = sum(fact.pooled == 1 for fact in calibrator.labels_fitted)
    return f"{len(calibrator.names)} labels through {type(calibrator.base).__name__}, {kept} as the pool"


def calibrator_facts(calibrator: Any) -> dict[str, Any]:
    """Return a calibrator's class, configuration and learned numbers as JSON data; for several labels, each fit."""
    from calibrant._core.config import json_data, to_plain
    from calibrant.errors import NotFittedError
    from calibrant.report.model import in_one_line

    facts: dict[str, Any] = {"type": type(calibrator).__name__, "repr": in_one_line(calibrator)}
    if calibrator.multi_label:
        return facts | {"labels": [dataclasses.asdict(fact) for fact in calibrator.labels_fitted]}
    learned = {}
    for cls in reversed(type(calibrator).__mro__):
        # only members of Calibrant's classes, because properties of nn.Module are not learned
        for name, member in vars(cls).items() if cls.__module__.startswith("calibrant.") else ():
            if isinstance(member, property) and name != "fitted":
                with suppress(NotFittedError):  # priors that a further step learns
                    learned[name] = getattr(calibrator, name)
    numbers = {name: value for name, value in learned.items() if isinstance(value, bool | int | float | str)}
    facts |= {"config": json_data(to_plain(calibrator.config())), "learned": json_data(numbers)}
    return facts | {"evidence": json_data(evidence_of(calibrator))}


def evidence_of(calibrator: Any) -> Evidence | None:
    """Return the evidence for an automatic choice, or None for any other calibrator."""
    from calibrant.calibrators import AutoCalibrator

    return calibrator.evidence if isinstance(calibrator, AutoCalibrator) else None


@options.command()
@click.argument("calibrator")
@options.reading("file", *options.MAPPING, "multilabel")
@output
@click.option("--replace", is_flag=True, help="Replace a table's scores instead of adding columns.")
def apply(reading: options.Reading, calibrator: str, output: str, replace: bool) -> None:
    """Write a copy of a file with calibrated scores: probabilities for probabilities, logits for logits.

    CALIBRATOR is a file saved by `calibrant fit`. In a table, a column calibrated_p_cat is added for the column p_cat;
    in a file of arrays, the scores are replaced. Everything else is unchanged, and labels are not needed. A folder of
    Parquet files is streamed to a folder of files with the same names.

    Examples:

        calibrant apply c.safetensors scores.csv -o calibrated.csv

        calibrant apply c.safetensors scores.csv --columns cat,dog,fox --kind probs -o calibrated.csv

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        calibrant apply c.safetensors folder/ -o calibrated/
    """
    source = reading.source()
    streamed = reading.is_streamed(source)
    if not streamed:
        options.check_output(output, inputs=[calibrator, source.path])

    from calibrant import scale
    from calibrant._files import shown
    from calibrant.calibrators.groups import feature_names
    from calibrant.data.io import CALIBRATED, calibrated_columns, read_contents
    from calibrant.data.tables import Arrays, open_table

    fitted = options.read_calibrator(calibrator, several=reading.multilabel)
    with working(f"calibrating {source.shown}"):
        if streamed:
            scale.apply(fitted, reading.batches(source, replace=replace), output)
        else:
            suffix = Path(source.path).suffix.replace(".pth", ".npz").replace(".pt", ".npz")
            if Path(output).suffix != suffix:
                raise InputError(
                    f"the output for {source.shown} is a {suffix} file; name an output that ends in {suffix}"
                )
            table = open_table(source.path)
            features = () if reading.multilabel else feature_names(fitted)
            mapped = dataclasses.replace(reading, features=features)
            found = read_contents(table, mapped, labelled=False)
            prefix = "" if replace or isinstance(table, Arrays) else CALIBRATED
            added: dict[str, Any] = {}
            for part, data in zip(found.parts, found.splits.values(), strict=True):
                # rows used for fitting are allowed, because nothing is evaluated here
                after = data.calibrated_by(fitted, allow_fit_rows=True)
                added |= calibrated_columns(part, after, prefix)
            table.write(Path(output), added)
    print_text(f"{source.shown} through {_in_words(fitted)} to {shown(output)}", err=True)


@click.command()
@click.argument("calibrator")
@output
@options.choice("--kind", ["logits", "probs"], "The input of the ONNX model.", default="logits")
@click.option("--class-names", metavar="FILE", help="A text file with one class name per line, in order.")
def export(calibrator: str, output: str, kind: Any, class_names: str | None) -> None:
    """Write a calibrator as an ONNX model that turns logits or probabilities into calibrated probabilities.

    CALIBRATOR is a file saved by `calibrant fit`. The model has one input, "logits" or "given_probs", and one output,
    "probs". A service needs only onnxruntime and NumPy to run it.

    Examples:

        calibrant export c.safetensors -o c.onnx

        calibrant export c.safetensors -o c.onnx --kind probs --class-names names.txt
    """
    from calibrant._files import read_text, shown

    options.check_output(output, inputs=[calibrator, class_names], suffixes=[".onnx"], what="an ONNX model")
    lines = [] if class_names is None else read_text(class_names).splitlines()
    names = [line.strip() for line in lines if line.strip()] or None
    with working(f"exporting {shown(calibrator)}"):
        import calibrant
        from calibrant.adapters.onnx import export_served

        export_served(calibrant.load(calibrator), output, kind=kind, class_names=names)
    print_text(f"{shown(calibrator)} written to {shown(output)}: {kind} in, probs out", err=True)
