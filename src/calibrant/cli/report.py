"""``calibrant report``: one file to send to a colleague."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._files import shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import console, working, writable
from calibrant.cli._options import (
    Files,
    Fitting,
    Inputs,
    MultiLabel,
    Page,
    Source,
    SplitRows,
    feature_names,
    refuse_for_several,
    refuse_typed,
    typed_columns,
)
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.report import Model
    from calibrant.report.labels import LabelReport

    Splits = Mapping[str, Any]


NONE = "none"
MOST_VALUES = 20  # of a column whose groups a note offers


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
    multilabel: MultiLabel = False,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

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
    inputs, sources = given.sources(inputs)
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
            look: dict[str, Any] = {"title": page.title, "format": page.format}
            if multilabel:
                write_label_report(models[0], target, **look)
            else:
                write_report(models, target, notes=notes, margin=page.margin, **look)
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
    notes: list[str] = field(default_factory=list)  # what the page says of how the file was read


def _model_of(data: Data, *, saved: Any) -> Model | LabelReport:
    """Return the model of a file.

    It is calibrated by the ``saved`` calibrator; or by the method fitted on the file's second split if there is one;
    or not at all, since a calibrator is never evaluated on the rows it was fitted on. Without a method the choice is
    automatic. Any other than a temperature is compared with one fitted on the same rows, where there are such.
    """
    from calibrant.calibrators import TemperatureScaling
    from calibrant.data.pairs import BinaryPairs
    from calibrant.data.splits import pick_name
    from calibrant.plot.diagrams import is_event
    from calibrant.report import Model
    from calibrant.report.labels import LabelReport

    file = Path(data.source.shown).name
    parts = data.inputs.parts(data.source, several=data.several, names_used=True)
    splits: Splits = {name: part.data for name, part in parts.items()}
    rows = replace(parts[pick_name(splits, data.fitting.split, file)], typed=data.fitting.split)
    named = rows.named
    if isinstance(rows.data, BinaryPairs) and data.inputs.class_names:
        raise InputError("scores of all classes beside --class-names", f"top-label pairs in {file}", "leave it out")
    if saved is not None and not data.several:
        rows = rows.with_features(feature_names(saved))
    before = rows.data
    made: dict[str, Any] = {"source": data.source.shown, "split": data.fitting.split, "whole": len(splits) == 1}
    calibrator = saved if saved is not None else _fit_for_report(data, parts)
    if calibrator is not None and not data.several:
        rows = rows.with_features(feature_names(calibrator))
        before = rows.data
    after = None if calibrator is None else before.calibrated_by(calibrator)
    if data.several:
        return LabelReport(Path(file).stem, before, after, calibrator, argument=data.source.argument, **made)
    names = named.class_names or None
    event = named.positive
    if names is None and (event or data.inputs.label) and is_event(before):  # of numbers, not of names
        names = (f"{data.inputs.label} = 0", f"{data.inputs.label} = 1") if event is None else named.sides
    made |= {"class_names": names, "argument": _file_and_options(data, names_matched=bool(named.matched))}
    made["by"] = data.columns and {name: rows.column(name) for name in data.columns}
    if data.columns is None and (unused := _columns_of_groups(rows)):
        are, by = "stands" if len(unused) == 1 else "stand", shlex.quote(shown(",".join(unused)))
        note = f"{', '.join(map(shown, unused))} {are} beside the rows, unused; --by {by} shows the groups"
        typer.echo(f"note: {data.source.shown}: {note}", err=True)
        data.notes.append(f"{file}: {note}.")
    if calibrator is None:
        return Model(Path(file).stem, before, **made)
    reference = None if isinstance(calibrator, TemperatureScaling) else _through_temperature(data, splits, before)
    if saved is not None and reference is None:
        where = f"a saved {type(saved).__name__} that no temperature fitted on that split of {data.source.shown} is compared with"
        refuse_typed(["fit_split"], where=where)
    return Model(Path(file).stem, before, after, calibrator, reference=reference, **made)


def _columns_of_groups(rows: SplitRows) -> list[str]:
    """Return the columns of few values beside the rows that are no features; not those whose values each have one label."""
    from calibrant.data.formats.evidence import few
    from calibrant.data.formats.roles import has_role
    from calibrant.data.splits import UNNAMED

    found, prefix, used = [], "" if rows.split == UNNAMED else f"{rows.split}_", rows.data.features or {}
    labels = [] if rows.data.labels is None else rows.data.labels.tolist()
    for key, values in rows.named.arrays.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or "," in name or has_role(name) or name in used:
            continue
        if values.shape == (len(labels),) and few(values, MOST_VALUES):
            pairs = set(zip(values.tolist(), labels, strict=True))
            found += [name] if len(pairs) > len({value for value, _ in pairs}) else []
    return found


def _file_and_options(data: Data, *, names_matched: bool) -> str:
    """Return the file and the options that read it, for other commands: names beside labels that are numbers are the report's own."""
    if names_matched or not data.inputs.class_names:
        return data.source.argument
    return data.source.argument.replace(data.inputs.words, replace(data.inputs, class_names=None).words).strip()


def _through_temperature(data: Data, splits: Splits, raw: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on the source's second split, or None where that cannot be compared."""
    from calibrant.calibrators import TemperatureScaling
    from calibrant.data.predictions import Predictions

    fitted_on = splits.get(_to_fit_on(data.fitting, splits) or "")
    if not isinstance(fitted_on, Predictions) or fitted_on.labels is None:
        return None
    try:
        return raw.calibrated_by(TemperatureScaling().fit(fitted_on))
    # the splits share rows, and a saved calibrator was fitted elsewhere (LeakError); or a label has probability 0, as rounded
    # numbers have it: no temperature is the best there, and other calibrators have a floor
    except InputError:
        return None


def _fit_for_report(data: Data, parts: Mapping[str, SplitRows]) -> Any:
    """Return the calibrator fitted on the split that ``--fit-split`` names; None where there is no such split.

    Left to itself it goes by the columns of whose groups those rows say that one correction for all leaves some off.
    """
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import AUTO, OF_LABELS, make_calibrator
    from calibrant.report.groups_report import audit, correction_by

    found = _other_split(data.fitting, parts, data.source.shown)
    if found is None:
        return None
    part, method = parts[found], data.fitting.method
    made = make_calibrator(method if method is not None else OF_LABELS if data.several else AUTO)
    if data.several:
        return MultiLabelCalibrator(made).fit(part.data)
    rows = part.with_features(data.columns or ()).data
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


def _to_fit_on(fitting: Fitting, splits: Splits) -> str | None:
    """Return the split that ``--fit-split`` names; None where a file has none of that name, or none at all."""
    from calibrant.data.splits import UNNAMED, find_split

    return None if UNNAMED in splits else find_split(splits, fitting.fit_split)


def _other_split(fitting: Fitting, splits: Splits, file: str) -> str | None:
    """Return the split to fit on, never the one that is evaluated; None where there is none, or nothing is fitted."""
    from calibrant.data.splits import find_split

    if fitting.method == NONE:
        return None
    found = _to_fit_on(fitting, splits)
    if found is None or found == find_split(splits, fitting.split):
        remedy = "leave it out, or fit with `calibrant fit` on other rows and pass it as --calibrator"
        where = f"{file}, which has no such split beside {fitting.split!r}"
        refuse_typed(["fit_split", "method"], where=where, remedy=remedy)
        return None
    return found
