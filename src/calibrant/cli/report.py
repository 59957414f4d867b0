"""``calibrant report``: one file to send to a colleague."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import calibrant
from calibrant._files import Array
from calibrant._formats import Named
from calibrant._places import shown
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.cli._calibrators import AUTO, make_calibrator, with_logits
from calibrant.cli._columns import column_names, column_of
from calibrant.cli._costs import Costs, read_costs
from calibrant.cli._files import readable, writable
from calibrant.cli._multilabel import LabelsAsked, MultiLabel, Request, report_labels
from calibrant.cli._options import (
    FILES,
    Example,
    Inputs,
    Source,
    at_path,
    complete_method,
    read_names,
    refuse_typed,
    with_inputs,
)
from calibrant.cli._output import console, working
from calibrant.cli._streamed import Address, Execution, ExecutorName, FolderReport, Workers
from calibrant.errors import InputError, LeakError
from calibrant.operate import thresholds
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.report import MARGIN, Model, Section, Table, write_report
from calibrant.report.decisions import answer_table, benefit_picture, cost_table
from calibrant.report.formats import check_format
from calibrant.splits import UNNAMED, find_split, pick_split

Margin = Annotated[
    float, typer.Option(min=0.0001, max=0.9999, help="ECE above which a miscalibration is large; 0.02 is 2 points.")
]
CostFile = Annotated[
    str | None,
    typer.Option(
        metavar="CSV", help="Also: decisions at these costs, a line for each class, a column for each action."
    ),
]
ErrorLimit = Annotated[
    float | None, typer.Option(help="Also: which rows to answer so that at most this fraction of answers is wrong.")
]
By = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN,…",
        help="Also: the groups of these columns; those of all features if left out, none: no groups.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method", "-m", autocompletion=complete_method, help="auto, a calibrator, or none; auto if left out."
    ),
]
Splits = Mapping[str, Predictions | BinaryPairs]
NONE = "none"


@with_inputs
def report(
    context: typer.Context,
    inputs: Inputs,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=FILES)] = None,
    example: Example = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it; - writes stdout.")] = "report.html",
    method: Method = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="A saved one instead.")] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate.")] = "test",
    fit_split: Annotated[str, typer.Option(help="The split to fit on.")] = "val",
    format: Annotated[str | None, typer.Option(help="html, md or json; by the output's name if left out.")] = None,
    title: Annotated[str, typer.Option(help="Its heading.")] = "Calibration report",
    margin: Margin = MARGIN,
    costs: CostFile = None,
    error_limit: ErrorLimit = None,
    by: By = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    address: Address = None,
    multilabel: MultiLabel = False,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

    A folder of Parquet files is streamed: any number of rows, in bounded memory, resumed when stopped. With folders
    test/ and val/ in it a calibrator is chosen and fitted on val and evaluated on test.

    Examples:

        calibrant report --example cifar10

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors --format md -o -

        calibrant report predictions.npz --costs costs.csv --error-limit .05

        calibrant report predictions.npz --by age,region

        calibrant report folder/ --workers 8 -o report.html

        calibrant report labels.npz --multilabel -o report.html
    """
    _refuse_choices(context, method, calibrator)
    if multilabel:
        asked = LabelsAsked(method, calibrator, split, fit_split, format, title)
        report_labels(Request(context, inputs), files, output, asked)
        return
    sources = inputs.sources(files, example)
    names = read_names(inputs.class_names) if inputs.class_names else None
    execution = Execution(context, executor, workers, address)
    saved = calibrant.load(calibrator) if calibrator else None
    folder = FolderReport(method, saved, split, fit_split, names, margin)
    decided = Decided(None if costs is None else read_costs(costs), error_limit)
    beside = filter(None, (calibrator, costs, inputs.class_names, inputs.labels))
    with writable(output, suffix=f".{format or 'html'}", inputs=[*(one.path for one in sources), *beside]) as target:
        check_format(target, format)
        models: list[Model | Section] = []
        for source in sources:
            if execution.streams(source.path):
                models.append(folder.section(source.path, execution))
                continue
            with readable(source.path) as path, working(f"calibrating {source.shown}"):
                data = Data(at_path(source, path), inputs, split, fit_split, context, by)
                models.append(_model_of(data, method=method, saved=saved))
        with working("reporting"):
            tables, pictures = decided.of(models)
            write_report(models, target, title=title, format=format, margin=margin, tables=tables, pictures=pictures)
    said = ", ".join(source.shown for source in sources)
    console(err=True).print(f"report on {said} written to {shown(output)}", style="dim")


@dataclass(frozen=True)
class Decided:
    """What the report is to say of decisions: at which costs, and with how many wrong answers allowed."""

    costs: Costs | None
    error: float | None

    def of(self, models: Sequence[Model | Section]) -> tuple[list[Table], list[tuple[str, str]]]:
        """Return the tables and pictures of all models."""
        found = [self._of_one(model) for model in models if isinstance(model, Model)]
        return [table for tables, _ in found for table in tables], [one for _, pictures in found for one in pictures]

    def _of_one(self, model: Model) -> tuple[list[Table], list[tuple[str, str]]]:
        """Return the tables and pictures of one model, of its calibrated rows if there are such."""
        if self.costs is None and self.error is None:
            return [], []
        data = model.before if model.after is None else model.after
        if not isinstance(data, Predictions):
            raise InputError(
                f"expected probabilities of all classes for decisions, got top-label pairs in {model.source}; save the model's logits"
            )
        tables, pictures = [], []
        if self.costs is not None:
            self.costs.check_classes(model.class_names or ())
            tables.append(cost_table(model.name, data, rule=thresholds(self.costs.table), actions=self.costs.actions))
            pictures += [benefit_picture(model.name, data)] if data.classes == 2 else []
        if self.error is not None:
            tables.append(answer_table(model.name, data, error=self.error))
        return tables, pictures


@dataclass(frozen=True)
class Data:
    """A predictions file: where it is, how it is read, the splits to evaluate and to fit on, and the columns whose groups are looked at."""

    source: Source
    inputs: Inputs
    split: str
    fit_split: str
    context: typer.Context
    by: Sequence[str] | None = None

    @property
    def columns(self) -> list[str] | None:
        """The columns that ``--by`` names; none of them for ``none``."""
        return [] if self.by == [NONE] else column_names(self.by)


def _refuse_choices(context: typer.Context, method: str | None, calibrator: str | None) -> None:
    """Refuse what would fit where nothing is fitted."""
    if calibrator:
        refuse_typed(context, ["method"], where="a saved --calibrator, which is fitted already")
    if method == NONE:
        refuse_typed(context, ["fit_split"], where="--method none, which fits nothing")


def _model_of(data: Data, *, method: str | None, saved: Calibrator | None) -> Model:
    """Return the model of a file.

    It is calibrated by the ``saved`` calibrator; or by ``method`` fitted on the file's second split if there is one;
    or not at all, since a calibrator is never evaluated on the rows it was fitted on. Without a method the choice is
    automatic. Any other than a temperature is compared with one fitted on the same rows, where there are such.
    """
    file = Path(data.source.shown).name
    named = data.inputs.named(data.source, names_used=True)
    class_names: Sequence[str] | None = named.class_names or None
    splits = data.inputs.splits_of(named, data.source)
    before = pick_split(splits, data.split, file)
    made: dict[str, Any] = {
        "source": file,
        "split": data.split,
        "class_names": class_names,
        "argument": data.source.argument,
        "by": data.columns and _columns(data, named, splits, before),
    }
    calibrator = saved if saved is not None else _fit(data, splits, method)
    if calibrator is None:
        return Model(Path(file).stem, before, **made)
    raw = with_logits(before, file=file, split=data.split)
    after = raw.calibrated_by(calibrator)
    reference = None if isinstance(calibrator, TemperatureScaling) else _through_temperature(data, splits, raw)
    return Model(Path(file).stem, before, after, calibrator, reference=reference, **made)


def _columns(data: Data, named: Named, splits: Splits, before: Predictions | BinaryPairs) -> dict[str, Array]:
    """Return the columns of ``--by`` beside the rows that are evaluated."""
    own = next(name for name, held in splits.items() if held is before)
    place: dict[str, Any] = {"split": own, "data": before, "inputs": data.inputs, "file": data.source.shown}
    return {name: column_of(named, name, **place) for name in data.columns or ()}


def _through_temperature(data: Data, splits: Splits, raw: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on the source's second split, or None where that cannot be compared."""
    found = None if UNNAMED in splits else find_split(splits, data.fit_split)
    fitted_on = None if found is None else splits[found]
    if not isinstance(fitted_on, Predictions) or fitted_on.labels is None:
        return None
    try:
        return raw.calibrated_by(TemperatureScaling().fit(fitted_on))
    except LeakError:  # a saved calibrator was fitted elsewhere, and this file's two splits share rows
        return None


def _fit(data: Data, splits: Splits, method: str | None) -> Calibrator | None:
    if method == NONE:
        return None
    found = None if UNNAMED in splits else find_split(splits, data.fit_split)
    if found is None or found == find_split(splits, data.split):
        where = f"{data.source.shown}, which has no such split beside {data.split!r}"
        refuse_typed(data.context, ["fit_split", "method"], where=where)
        return None
    rows = with_logits(splits[found], file=data.source.shown, split=found)
    return make_calibrator(AUTO if method is None else method).fit(rows)
