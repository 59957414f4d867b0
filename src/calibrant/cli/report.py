"""``calibrant report`` writes a report on one or several models to a single file."""

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

FEWEST_TO_CUT = 200  # a file without splits and fewer rows is not divided: half of them is too few to fit on or to show


def report(
    files: options.Files = None,
    example: options.Example = None,
    output: Annotated[str, typer.Option("--output", "-o", help="File to write.")] = "report.html",
    format: Annotated[
        Literal["html", "json"] | None, typer.Option(help="Format of the report; by default that of the output's name.")
    ] = None,
    method: options.Method = None,
    calibrator: options.Saved = None,
    split: options.Split = "test",
    fit_split: Annotated[str | None, typer.Option(help="The split to fit on; by default val.")] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,…",
            help="Columns that define groups to evaluate; by default all features, or none for no groups.",
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
    """Write a report on one or several models before and after calibration.

    The calibrator is chosen and fitted on rows that the report does not show: the split val, or half of a file without splits.
    With --method none no calibrator is fitted.

    Examples:

        calibrant report --example cifar10

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors -o report.json

        calibrant report predictions.npz --by age,region

        calibrant report labels.npz --multilabel -o report.html
    """
    if method and calibrator:
        raise InputError("--method fits a calibrator and --calibrator names a fitted one; leave one out")
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

    saved = options.read_calibrator(calibrator, several=multilabel)
    columns_by = None if by is None else [] if by == [options.NONE] else options.names_in(by)
    notes: list[str] = []
    check_format(output, format)
    models: list[Any] = []
    for source in sources:
        with working(f"calibrating {source.shown}"):
            named = [] if multilabel else [*(columns_by or ()), *options.features_of(saved)]
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
    if len({one.name for one in models}) < len(models):  # files with the same name in several folders
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
    """Return the rows to show and different rows to fit on; the latter are None if there are none or nothing is fitted."""
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
    """Return the rows scaled by a temperature fitted on ``others``, or None if no comparison is possible."""
    from calibrant.calibrators import TemperatureScaling

    # not possible if the splits share rows (LeakError), or if a label has probability 0, as happens with rounded numbers:
    # then no temperature is best, while other calibrators have a floor
    with suppress(InputError):
        return None if others is None else before.calibrated_by(TemperatureScaling().fit(others))
    return None


def _fitted(rows: Any, method: str | None, by: list[str] | None) -> Any:
    """Return the calibrator, chosen automatically unless ``method`` names it, and fitted on ``rows``.

    The automatic choice corrects by columns if ``rows`` show that a single correction leaves some groups miscalibrated.
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
