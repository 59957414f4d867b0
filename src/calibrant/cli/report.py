"""``calibrant report``: one file to send to a colleague."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._files import shown
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import check_output, console, working, writable
from calibrant.cli._options import (
    Files,
    Inputs,
    SeveralLabels,
    Source,
    SplitRows,
    check_calibrator,
    choose_method,
    complete_method,
    feature_names,
    refuse_for_several,
    refuse_typed,
    typed_columns,
)
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.io import Contents
    from calibrant.data.predictions import Predictions
    from calibrant.report import Model
    from calibrant.report.labels import LabelReport


NONE = "none"
FEWEST_TO_CUT = 200  # rows of a file without splits, below which a half of them is too few to fit on or to show


@dataclass(frozen=True)
class Fitting:
    """Which calibrator a report is on: a saved one, or one fitted on a split of the file; and the split it is evaluated on."""

    method: str | None = option(
        None,
        "auto, a calibrator, or none; auto if left out.",
        "--method",
        "-m",
        autocompletion=complete_method,
        without="calibrator",
    )
    calibrator: str | None = option(None, "A saved one instead.", "--calibrator", "-c")
    split: str = option("test", "The split to evaluate.")
    fit_split: str = option("val", "The split to fit on.")


@dataclass(frozen=True)
class Page:
    """What a report is written as."""

    output: str = option("report.html", "Where to write it; - writes stdout.", "--output", "-o")
    format: Literal["html", "json"] | None = option(None, "By the output's name if left out.")
    title: str = option("Calibration report", "Its heading.")
    margin: float = option(
        0.02, "ECE above which a miscalibration is large; 0.02 is 2 points.", min=0.0001, max=0.9999
    )  # calibrant.report.advice.MARGIN


@with_groups
def report(
    inputs: Inputs,
    given: Files,
    fitting: Fitting,
    page: Page,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,…",
            help="Also: the groups of these columns; those of all features if left out; none: no groups.",
        ),
    ] = None,
    multilabel: SeveralLabels = False,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

    The calibrator is chosen and fitted on other rows than the page shows: on the split val, or on half of a file without splits.

    Examples:

        calibrant report --example cifar10

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors --format json -o -

        calibrant report predictions.npz --by age,region

        calibrant report labels.npz --multilabel -o report.html
    """
    if fitting.method == NONE:
        refuse_typed(["fit_split"], where="--method none, which fits nothing")
    if multilabel:
        refuse_for_several("margin", "by")
    if fitting.method != NONE:
        choose_method(fitting.method)
    sources = given.sources(inputs)
    check_calibrator(fitting.calibrator)
    read = [*(source.path for source in sources), *filter(None, [fitting.calibrator, inputs.labels])]
    check_output(page.output, inputs=read)
    if multilabel and len(sources) > 1:
        raise InputError("one FILE of predictions with --multilabel", f"{len(sources)}", "name one")

    from calibrant.cli._calibrators import load_fitted
    from calibrant.report import write_report
    from calibrant.report.labels import write_label_report
    from calibrant.report.render import check_format

    saved = load_fitted(fitting.calibrator, several=multilabel)
    columns = [] if by == [NONE] else typed_columns(by)
    with writable(page.output, suffix=f".{page.format or 'html'}") as target:
        check_format(target, page.format)
        models: list[Any] = []
        notes: list[str] = []
        for source in sources:
            with working(f"calibrating {source.shown}"):
                data = Data(source, inputs, fitting, columns, multilabel, notes)
                models.append(_model_of(data, saved=saved))
        named = [one.name for one in models]
        models = [  # files of one name in several folders
            replace(one, name=source.shown) if named.count(name) > 1 else one
            for one, name, source in zip(models, named, sources, strict=True)
        ]
        with working("reporting"):
            look: dict[str, Any] = {"title": page.title, "format": page.format, "notes": notes}
            if multilabel:
                write_label_report(models[0], target, **look)
            else:
                write_report(models, target, margin=page.margin, **look)
    said = ", ".join(source.shown for source in sources)
    console(err=True).print(f"report on {said} written to {shown(page.output)}", style="dim")


@dataclass(frozen=True)
class Data:
    """A predictions file: where it is, how it is read, what is fitted, and the columns whose groups are looked at."""

    source: Source
    inputs: Inputs
    fitting: Fitting
    columns: list[str] | None = None
    several: bool = False  # labels a row
    notes: list[str] = field(default_factory=list)  # what the page says of how its rows were chosen


def _model_of(data: Data, *, saved: Any) -> Model | LabelReport:
    """Return the model of a file.

    It is calibrated by the ``saved`` calibrator, or by one chosen and fitted on other rows than the page shows: on the split
    that ``--fit-split`` names, or on half of a file without splits. Without a method the choice is automatic. Any other than a
    temperature is compared with one fitted on the same rows, where there are such.
    """
    from calibrant.calibrators import TemperatureScaling
    from calibrant.plot.diagrams import is_event
    from calibrant.report import Model
    from calibrant.report.labels import LabelReport

    file = Path(data.source.shown).name
    features = [] if data.several else [*(data.columns or ()), *feature_names(saved)]
    contents = data.inputs.contents(data.source, features=features, several=data.several)
    before, others = _rows_of(data, contents, saved=saved)
    rows = SplitRows(before, data.fitting.split, data.source)
    made: dict[str, Any] = {
        "source": data.source.shown,
        "split": data.fitting.split,
        "whole": len(contents.splits) == 1,
    }
    made |= {"argument": data.source.argument}
    calibrator = _fitted_for_report(data, others) if saved is None and others is not None else saved
    after = None if calibrator is None else before.calibrated_by(calibrator)
    if data.several:
        return LabelReport(Path(file).stem, before, after, calibrator, **made)
    names = before.class_names
    if names is None and data.inputs.label and is_event(before):
        names = (f"{data.inputs.label} = 0", f"{data.inputs.label} = 1")
    by = data.columns and {name: rows.column(name) for name in data.columns}
    made |= {"class_names": names, "by": by}
    if calibrator is None:
        return Model(Path(file).stem, before, **made)
    reference = None if isinstance(calibrator, TemperatureScaling) else _through_temperature(others, before)
    if saved is not None and reference is None:
        where = f"a saved {type(saved).__name__} that no temperature fitted on that split of {data.source.shown} is compared with"
        refuse_typed(["fit_split"], where=where)
    return Model(Path(file).stem, before, after, calibrator, reference=reference, **made)


def _rows_of(data: Data, contents: Contents, *, saved: Any) -> tuple[Any, Any]:
    """Return the rows that the page shows, and those to fit on, never the same; None where there are none, or nothing is fitted."""
    splits, fitting = contents.splits, data.fitting
    name = contents.find(fitting.split)
    if fitting.method == NONE:
        return splits[name], None
    if fitting.fit_split in splits and fitting.fit_split != name:
        return splits[name], splits[fitting.fit_split]
    if saved is not None:
        return splits[name], None
    where = f"{data.source.shown}, which has no such split beside {fitting.split!r}"
    refuse_typed(["fit_split"], where=where)
    rows = splits[name]
    if len(splits) > 1 or len(rows) < FEWEST_TO_CUT:
        refuse_typed(
            ["method"], where=where, remedy="fit with `calibrant fit` on other rows and pass it as --calibrator"
        )
        return rows, None
    fit, shown_half = _halves(rows)
    how = "chosen and fitted" if fitting.method is None else "fitted"
    data.notes.append(
        f"{Path(data.source.shown).name} has no splits: the calibrator was {how} on a random half of it, "
        f"{len(fit):,} rows, and the figures are those of the other {len(shown_half):,}."
    )
    return shown_half, fit


def _halves(rows: Any) -> tuple[Any, Any]:
    """Return two random halves of the rows, with every group in one of them; the same file gives the same halves."""
    import numpy as np
    import torch

    units = (
        np.arange(len(rows)) if rows.groups is None else np.unique(rows.groups.cpu().numpy(), return_inverse=True)[1]
    )
    chosen = np.random.default_rng(0).permutation(units.max() + 1) % 2 == 0
    first = torch.from_numpy(chosen[units])
    return rows[first], rows[~first]


def _through_temperature(others: Any, before: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on ``others``, or None where that cannot be compared."""
    from calibrant.calibrators import TemperatureScaling
    from calibrant.data.predictions import Predictions

    if not isinstance(others, Predictions) or others.labels is None:
        return None
    try:
        return before.calibrated_by(TemperatureScaling().fit(others))
    # the splits share rows, and a saved calibrator was fitted elsewhere (LeakError); or a label has probability 0, as rounded
    # numbers have it: no temperature is the best there, and other calibrators have a floor
    except InputError:
        return None


def _fitted_for_report(data: Data, rows: Any) -> Any:
    """Return the calibrator chosen and fitted on ``rows``.

    Left to itself it goes by the columns of whose groups those rows say that one correction for all leaves some off.
    """
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import AUTO, OF_LABELS, make_calibrator
    from calibrant.report.groups_report import audit, correction_by

    method = data.fitting.method
    made = make_calibrator(method if method is not None else OF_LABELS if data.several else AUTO)
    if data.several:
        return MultiLabelCalibrator(made).fit(rows)
    fitted, columns = made.fit(rows), rows.features or {}
    if data.columns is not None:
        columns = {name: columns[name] for name in data.columns if name in columns}
    if method is not None or not columns:
        return fitted
    off_by = audit(rows, rows.calibrated_by(fitted, allow_fit_rows=True), columns).off_by
    if not off_by:
        return fitted
    name, chosen = correction_by(off_by, columns)
    return make_calibrator(name, features=chosen).fit(rows)
