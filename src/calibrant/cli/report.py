"""``calibrant report``: one file to send to a colleague."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant.cli import options
from calibrant.cli.show import print_line, working
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.io import Contents
    from calibrant.data.predictions import Predictions

FEWEST_TO_CUT = 200  # rows of a file without splits, below which a half of them is too few to fit on or to show


@dataclass(frozen=True)
class Fitting:
    """What is fitted, on which split, what the page shows, the columns whose groups it looks at, and whether rows have several labels."""

    method: str | None
    split: str
    fit_split: str | None
    by: list[str] | None
    several: bool


def report(
    files: options.Files = None,
    example: options.Example = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it; - writes stdout.")] = "report.html",
    format: Annotated[Literal["html", "json"] | None, typer.Option(help="By the output's name if left out.")] = None,
    method: options.Method = None,
    calibrator: options.Saved = None,
    split: options.Split = "test",
    fit_split: Annotated[str | None, typer.Option(help="The split to fit on; val if left out.")] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,…", help="Also: the groups of these columns; of all features if left out; none: no groups."
        ),
    ] = None,
    columns: options.Columns = None,
    label: options.Label = None,
    kind: options.Kind = None,
    weights: options.Weights = None,
    groups: options.Groups = None,
    labels: options.LabelsFile = None,
    on: options.On = None,
    multilabel: options.SeveralLabels = False,
) -> None:
    """Write a report on one or many models: before and after calibration, in figures and words.

    The calibrator is chosen and fitted on other rows than the page shows: on the split val, or on half of a file without splits.
    --method none fits nothing.

    Examples:

        calibrant report --example cifar10

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors --format json -o -

        calibrant report predictions.npz --by age,region

        calibrant report labels.npz --multilabel -o report.html
    """
    if method and calibrator:
        raise InputError("--method fits a calibrator, and --calibrator names a fitted one; leave one out")
    reading = options.Reading(columns, label, kind, weights, groups, labels, on)
    sources = reading.sources(files, example)
    options.check_output(output, inputs=[*(source.path for source in sources), calibrator, labels])
    if multilabel and by:
        raise InputError("--by has no effect with --multilabel; leave it out")

    from calibrant._files import shown
    from calibrant.report import write_report
    from calibrant.report.render import check_format

    saved = options.load_calibrator(calibrator, several=multilabel)
    how = Fitting(
        method,
        split,
        fit_split,
        None if by is None else [] if by == [options.NONE] else options.names_in(by),
        multilabel,
    )
    notes: list[str] = []
    with options.writable(output, suffix=f".{format or 'html'}") as target:
        check_format(target, format)
        models: list[Any] = []
        for source in sources:
            with working(f"calibrating {source.shown}"):
                models.append(_model_of(source, reading, how, saved, notes))
        named = [one.name for one in models]
        if len(set(named)) < len(named):  # files of one name in several folders
            models = [replace(one, name=source.shown) for one, source in zip(models, sources, strict=True)]
        with working("reporting"):
            write_report(models, target, format=format, notes=notes)
    print_line(
        f"report on {', '.join(source.shown for source in sources)} written to {shown(output)}", style="dim", err=True
    )


def _model_of(source: options.Source, reading: options.Reading, how: Fitting, saved: Any, notes: list[str]) -> Any:
    """Return the model of a file before and after a calibrator.

    That is the ``saved`` one, or one chosen and fitted on other rows than the page shows. Any other than a temperature is compared
    with a temperature fitted on the same rows, where there are such.
    """
    from calibrant.calibrators import TemperatureScaling
    from calibrant.plot.diagrams import is_event
    from calibrant.report import Model

    features = [] if how.several else [*(how.by or ()), *options.feature_names(saved)]
    contents = reading.contents(source, features=features, several=how.several)
    before, others = _fitting_and_test_rows(source, contents, how, saved, notes)
    calibrator = saved if saved is not None or others is None else _fitted(others, how)
    names = None if how.several else before.class_names
    if names is None and reading.label and not how.several and is_event(before):
        names = (f"{reading.label} = 0", f"{reading.label} = 1")
    compared = not how.several and calibrator is not None and not isinstance(calibrator, TemperatureScaling)
    return Model(
        Path(source.shown).stem,
        before,
        None if calibrator is None else before.calibrated_by(calibrator),
        calibrator,
        source=source.shown,
        split="all" if len(contents.splits) == 1 else how.split,
        class_names=names,
        reference=_through_temperature(others, before) if compared else None,
        options=source.options,
        by=how.by,
    )


def _fitting_and_test_rows(
    source: options.Source, contents: Contents, how: Fitting, saved: Any, notes: list[str]
) -> tuple[Any, Any]:
    """Return the rows that the page shows, and those to fit on, never the same; None where there are none, or nothing is fitted."""
    splits, name = contents.splits, contents.find(how.split)
    rows, other = splits[name], how.fit_split or "val"
    if how.method == options.NONE:
        return rows, None
    if other in splits and other != name:
        return rows, splits[other]
    if how.fit_split:
        raise InputError(f"{source.shown} has no split {other!r} to fit on beside {how.split!r}; leave --fit-split out")
    if saved is not None:
        return rows, None
    if len(splits) > 1 or len(rows) < FEWEST_TO_CUT:
        if how.method:
            raise InputError(
                f"{source.shown} has no other rows to fit {how.method} on; fit it with `calibrant fit` and pass it as --calibrator"
            )
        return rows, None
    fit, shown = _halves(rows)
    notes.append(
        f"{Path(source.shown).name} has no splits: the calibrator was {'' if how.method else 'chosen and '}fitted on a random half "
        f"of it, {len(fit):,} rows, and the figures are those of the other {len(shown):,}."
    )
    return shown, fit


def _halves(rows: Any) -> tuple[Any, Any]:
    """Return two random halves of the rows, with every group in one of them; the same file gives the same halves."""
    import numpy as np
    import torch

    units = (
        np.arange(len(rows)) if rows.groups is None else np.unique(rows.groups.cpu().numpy(), return_inverse=True)[1]
    )
    first = torch.from_numpy((np.random.default_rng(0).permutation(units.max() + 1) % 2 == 0)[units])
    return rows[first], rows[~first]


def _through_temperature(others: Any, before: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on ``others``, or None where that cannot be compared."""
    from calibrant.calibrators import TemperatureScaling

    if others is None:
        return None
    try:
        return before.calibrated_by(TemperatureScaling().fit(others))
    # the splits share rows, and a saved calibrator was fitted elsewhere (LeakError); or a label has probability 0, as rounded
    # numbers have it: no temperature is the best there, and other calibrators have a floor
    except InputError:
        return None


def _fitted(rows: Any, how: Fitting) -> Any:
    """Return the calibrator chosen and fitted on ``rows``.

    Left to itself it goes by the columns of whose groups those rows say that one correction for all leaves some off.
    """
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.report.groups import audit_groups, correction_by

    made = options.make_calibrator(how.method or (options.OF_LABELS if how.several else options.AUTO))
    if how.several:
        return MultiLabelCalibrator(made).fit(rows)
    fitted, columns = made.fit(rows), dict(rows.features or {})
    if how.by is not None:
        columns = {name: column for name, column in columns.items() if name in how.by}
    if how.method is not None or not columns:
        return fitted
    off_by = audit_groups(rows, rows.calibrated_by(fitted, allow_fit_rows=True), columns).off_by
    if not off_by:
        return fitted
    name, chosen = correction_by(off_by, columns)
    return options.make_calibrator(name, features=chosen).fit(rows)
