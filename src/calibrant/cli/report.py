"""``calibrant report``: one file to send to a colleague."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
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


def report(
    files: options.Files = None,
    example: options.Example = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it.")] = "report.html",
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

        calibrant report predictions.npz --calibrator c.safetensors -o report.json

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
    from calibrant.calibrators import TemperatureScaling
    from calibrant.plot.diagrams import is_event
    from calibrant.report import Model, write_report
    from calibrant.report.render import check_format

    saved = options.load_calibrator(calibrator, several=multilabel)
    columns_by = None if by is None else [] if by == [options.NONE] else options.names_in(by)
    notes: list[str] = []
    check_format(output, format)
    models: list[Any] = []
    for source in sources:
        with working(f"calibrating {source.shown}"):
            named = [] if multilabel else [*(columns_by or ()), *options.feature_names(saved)]
            contents = reading.contents(source, features=named, several=multilabel)
            before, others = _rows_to_show_and_fit(source, contents, split, fit_split, method, saved, notes)
            fitted = saved if saved is not None or others is None else _fitted(others, method, columns_by)
            alone = multilabel or fitted is None or isinstance(fitted, TemperatureScaling)
            names = None if multilabel else before.class_names
            if names is None and label and not multilabel and is_event(before):
                names = (f"{label} = 0", f"{label} = 1")
            model = Model(
                Path(source.shown).stem,
                before,
                None if fitted is None else before.calibrated_by(fitted),
                fitted,
                source=source.shown,
                split="all" if len(contents.splits) == 1 else split,
                class_names=names,
                reference=None if alone else _through_temperature(others, before),
                options=source.options,
                by=columns_by,
            )
            models.append(model)
    if len({one.name for one in models}) < len(models):  # files of one name in several folders
        models = [replace(one, name=source.shown) for one, source in zip(models, sources, strict=True)]
    with working("reporting"):
        write_report(models, output, format=format, notes=notes)
    read = ", ".join(source.shown for source in sources)
    print_line(f"report on {read} written to {shown(output)}", style="dim", err=True)


def _rows_to_show_and_fit(
    source: options.Source,
    contents: Contents,
    split: str,
    fit_split: str | None,
    method: str | None,
    saved: Any,
    notes: list[str],
) -> tuple[Any, Any]:
    """Return the rows that the page shows, and those to fit on, never the same; None where there are none, or nothing is fitted."""
    import numpy as np
    import torch

    splits, name = contents.splits, contents.find(split)
    rows, other = splits[name], fit_split or "val"
    if method == options.NONE:
        return rows, None
    if other in splits and other != name:
        return rows, splits[other]
    if fit_split:
        raise InputError(f"{source.shown} has no split {other!r} to fit on beside {split!r}; leave --fit-split out")
    if saved is not None:
        return rows, None
    if len(splits) > 1 or len(rows) < FEWEST_TO_CUT:
        if method:
            raise InputError(
                f"{source.shown} has no other rows to fit {method} on; fit it with `calibrant fit` and pass it as --calibrator"
            )
        return rows, None
    # random halves, with every group in one of them; the same file gives the same halves
    units = np.arange(len(rows))
    if rows.groups is not None:
        units = np.unique(rows.groups.cpu().numpy(), return_inverse=True)[1]
    half = torch.from_numpy((np.random.default_rng(0).permutation(units.max() + 1) % 2 == 0)[units])
    fit, shown = rows[half], rows[~half]
    notes.append(
        f"{Path(source.shown).name} has no splits: the calibrator was {'' if method else 'chosen and '}fitted on a random half "
        f"of it, {len(fit):,} rows, and the figures are those of the other {len(shown):,}."
    )
    return shown, fit


def _through_temperature(others: Predictions | None, before: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on ``others``, or None where that cannot be compared."""
    from calibrant.calibrators import TemperatureScaling

    # the splits share rows, and a saved calibrator was fitted elsewhere (LeakError); or a label has probability 0, as rounded
    # numbers have it: no temperature is the best there, and other calibrators have a floor
    with suppress(InputError):
        return None if others is None else before.calibrated_by(TemperatureScaling().fit(others))
    return None


def _fitted(rows: Any, method: str | None, by: list[str] | None) -> Any:
    """Return the calibrator chosen and fitted on ``rows``.

    Left to itself it goes by the columns of whose groups those rows say that one correction for all leaves some off.
    """
    from calibrant import MultiLabel
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.report.groups import audit_groups, correction_by

    if isinstance(rows, MultiLabel):
        return MultiLabelCalibrator(options.make_calibrator(method or options.OF_LABELS)).fit(rows)
    fitted = options.make_calibrator(method or options.AUTO).fit(rows)
    columns = {name: column for name, column in (rows.features or {}).items() if by is None or name in by}
    if method is not None or not columns:
        return fitted
    off_by = audit_groups(rows, rows.calibrated_by(fitted, allow_fit_rows=True), columns).off_by
    if not off_by:
        return fitted
    name, chosen = correction_by(off_by, columns)
    return options.make_calibrator(name, features=chosen).fit(rows)
