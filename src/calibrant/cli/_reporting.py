"""From a file to a model that a report can show: which split is evaluated, and what calibrates it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

import calibrant
from calibrant._files import reason_of
from calibrant._places import check_source, shown
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.cli._calibrators import AUTO, make_calibrator, with_logits
from calibrant.cli._options import Axes, refuse_typed
from calibrant.errors import FileFormatError, LeakError
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.report import Model
from calibrant.splits import UNNAMED, find_split, pick_split

Splits = Mapping[str, Predictions | BinaryPairs]
NONE = "none"


@dataclass(frozen=True)
class Source:
    """A predictions file: where it is, what messages call it, and the splits to evaluate and to fit on."""

    path: str
    shown: str
    split: str
    fit_split: str
    axes: Axes
    context: typer.Context


def load_model(
    source: Source, *, method: str | None, saved: Calibrator | None, class_names: Sequence[str] | None = None
) -> Model:
    """Return the model of a file.

    It is calibrated by the ``saved`` calibrator; or by ``method`` fitted on the source's second split if there is one;
    or not at all, since a calibrator is never evaluated on the rows it was fitted on. Without a method the choice is
    automatic. Any other than a temperature is compared with one fitted on the same rows, where there are such.
    """
    name = Path(source.shown).stem
    splits = calibrant.load_splits(source.path, **source.axes)
    before = pick_split(splits, source.split, source.shown)
    calibrator = saved if saved is not None else _fit(source, splits, method)
    if calibrator is None:
        return Model(name, before, source=source.shown, split=source.split, class_names=class_names)
    raw = with_logits(before, file=source.shown, split=source.split)
    after = raw.calibrated_by(calibrator)
    reference = None if isinstance(calibrator, TemperatureScaling) else _through_temperature(source, splits, raw)
    return Model(name, before, after, calibrator, source.shown, source.split, class_names, reference)


def read_names(path: str) -> list[str]:
    """Return the lines of a text file.

    Raises:
        FileFormatError: If it cannot be read as text.
    """
    try:
        return [line.strip() for line in check_source(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"expected a text file of class names, got {reason_of(error)} for {shown(path)}; check it"
        ) from error


def _through_temperature(source: Source, splits: Splits, raw: Predictions) -> Predictions | None:
    """Return the rows through a temperature fitted on the source's second split, or None where that cannot be compared."""
    found = None if UNNAMED in splits else find_split(splits, source.fit_split)
    fitted_on = None if found is None else splits[found]
    if not isinstance(fitted_on, Predictions) or fitted_on.labels is None:
        return None
    try:
        return raw.calibrated_by(TemperatureScaling().fit(fitted_on.logits, fitted_on.labels))
    except LeakError:  # a saved calibrator was fitted elsewhere, and this file's two splits share rows
        return None


def _fit(source: Source, splits: Splits, method: str | None) -> Calibrator | None:
    if method == NONE:
        return None
    found = None if UNNAMED in splits else find_split(splits, source.fit_split)
    if found is None or found == find_split(splits, source.split):
        where = f"{source.shown}, which has no such split beside {source.split!r}"
        refuse_typed(source.context, ["fit_split", "method"], where=where)
        return None
    data = with_logits(splits[found], file=source.shown, split=found)
    return make_calibrator(AUTO if method is None else method).fit(data.logits, data.need_labels(), groups=data.groups)
