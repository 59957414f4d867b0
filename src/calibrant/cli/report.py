"""``calibrant report`` writes a report on one or several models to a single file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrant.cli import options
from calibrant.cli.terminal import print_text, working
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.io import Contents

FEWEST_TO_CUT = 200  # smallest number of rows of a file without splits that is divided into two halves


@options.command()
@options.reading("files", *options.ROWS, "labels", "on", "multilabel")
@click.option("--output", "-o", default="report.html", show_default=True, help="File to write (.html or .json).")
@options.method
@options.saved
@options.split
@click.option("--fit-split", metavar="NAME", help="The split to fit on; val by default.")
@options.column_names(
    "--by", "Columns that define groups to evaluate (all features by default), or none for no groups."
)
def report(
    reading: options.Reading,
    output: str,
    method: str | None,
    calibrator: str | None,
    split: str,
    fit_split: str | None,
    by: list[str],
) -> None:
    """Write a report on one or several models before and after calibration.

    The calibrator is chosen and fitted on rows that the report does not evaluate: the val split, or one half of a file
    without splits. With --method none, no calibrator is fitted.

    Examples:

        calibrant report --example cifar10

        calibrant report predictions.npz -o report.html

        calibrant report predictions.npz --calibrator c.safetensors -o report.json

        calibrant report predictions.npz --by age,region

        calibrant report labels.npz --multilabel -o report.html
    """
    if method and calibrator:
        raise InputError("--method fits a calibrator and --calibrator names a fitted one; leave one out")
    sources, multilabel = reading.sources(), reading.multilabel
    options.check_output(output, inputs=[*(source.path for source in sources), calibrator, reading.labels])
    if multilabel and by:
        raise InputError("--by has no effect with --multilabel; leave it out")

    from calibrant._files import shown
    from calibrant.plot.diagrams import is_event
    from calibrant.report import Model
    from calibrant.report.finding import diagnose
    from calibrant.report.render import format_of, write_findings
    from calibrant.report.sections import pairs_of

    saved = options.read_calibrator(calibrator, several=multilabel)
    columns = None if not by else [] if by == [options.NONE] else by
    notes: list[str] = []
    format_of(output)
    models: list[Any] = []
    for source in sources:
        with working(f"calibrating {source.shown}"):
            contents = reading.contents(source, *(columns or ()), fitted=[saved])
            before, others = _rows_to_show_and_fit(source, contents, split, fit_split, method, saved, notes)
            fitted = saved if saved is not None or others is None else _fitted(others, method, columns)
            names = None if multilabel else before.class_names
            if names is None and reading.label and not multilabel and is_event(before):
                names = (f"{reading.label} = 0", f"{reading.label} = 1")
            model = Model(
                Path(source.shown).stem,
                before,
                None if fitted is None else before.calibrated_by(fitted),
                fitted,
                source=source.shown,
                split="all" if len(contents.splits) == 1 else split,
                class_names=names,
                options=source.options,
                by=columns,
            )
            models.append(model)
    if len({one.name for one in models}) < len(models):  # files with the same name in several folders
        models = [replace(one, name=source.shown) for one, source in zip(models, sources, strict=True)]
    with working("reporting"):
        findings = [diagnose(one) for one in models]
        write_findings(findings, output, pairs_of(findings), notes=notes)
    for found in findings:
        print_text(f"{found.model.name}: {found.verdicts[0].headline}. {found.advice.headline}", bold=True)
    read = ", ".join(source.shown for source in sources)
    print_text(f"report on {read} written to {shown(output)}", err=True)


def _rows_to_show_and_fit(
    source: options.Source,
    contents: Contents,
    split: str,
    fit_split: str | None,
    method: str | None,
    saved: Any,
    notes: list[str],
) -> tuple[Any, Any]:
    """Return the rows to show and other rows to fit on, or None if there are none or nothing is to be fitted."""
    import numpy as np
    import torch

    splits, name = contents.splits, options.find_split(contents, split)
    rows, other = splits[name], fit_split or "val"
    if method == options.NONE:
        return rows, None
    if other in splits and other != name:
        return rows, splits[other]
    if fit_split:
        raise InputError(f"{source.shown} has no split {other!r} to fit on besides {split!r}; leave --fit-split out")
    if saved is not None:
        return rows, None
    if len(splits) > 1 or len(rows) < FEWEST_TO_CUT:
        if method:
            raise InputError(
                f"{source.shown} has no other rows to fit {method} on; fit it with `calibrant fit` and pass it as --calibrator"
            )
        return rows, None
    # random halves that do not divide any group; the same file always gives the same halves
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


def _fitted(rows: Any, method: str | None, by: list[str] | None) -> Any:
    """Return a calibrator fitted on ``rows``; it is chosen automatically unless ``method`` names it.

    The automatic choice is a calibrator that corrects groups separately if a single correction leaves some of the
    groups in ``by`` miscalibrated.
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
