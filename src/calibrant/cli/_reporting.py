"""From a file to a model that a report can show: which split is judged, and what calibrates it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import calibrant
from calibrant.calibrators._base import Calibrator
from calibrant.cli._calibrators import AUTO, make_calibrator, with_logits
from calibrant.cli._options import Axes
from calibrant.errors import FileFormatError
from calibrant.report import Model
from calibrant.splits import UNNAMED

NONE = "none"
MOST_FOR_AUTO = 1_000_000  # N · K up to which trying every candidate takes seconds


@dataclass(frozen=True)
class Source:
    """A predictions file: where it is, what messages call it, and the splits to judge and to fit on."""

    path: str
    shown: str
    split: str
    fit_split: str
    axes: Axes


def load_model(
    source: Source, *, method: str | None, saved: Calibrator | None, class_names: Sequence[str] | None = None
) -> Model:
    """Return the model of a file.

    It is calibrated by the ``saved`` calibrator; or by ``method`` fitted on the source's second split if there is one;
    or not at all, since a calibrator is never judged on the rows it was fitted on. Without a method the choice is
    automatic, or a temperature where trying every candidate would take minutes.
    """
    name = Path(source.shown).stem
    before = calibrant.load_predictions(source.path, source.split, **source.axes)
    calibrator = saved if saved is not None else _fit(source, method)
    if calibrator is None:
        return Model(name, before, source=source.shown, split=source.split, class_names=class_names)
    after = with_logits(before, file=source.shown, split=source.split).calibrated_by(calibrator)
    return Model(name, before, after, calibrator, source.shown, source.split, class_names)


def read_names(path: str) -> list[str]:
    """Return the lines of a text file.

    Raises:
        FileFormatError: If it cannot be read as text.
    """
    try:
        return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"expected a text file of class names, got {error} for {path}; check it") from error


def _fit(source: Source, method: str | None) -> Calibrator | None:
    splits = calibrant.load_splits(source.path, **source.axes)
    if method == NONE or UNNAMED in splits or source.fit_split not in splits:
        return None
    data = with_logits(splits[source.fit_split], file=source.shown, split=source.fit_split)
    if method is None:
        method = AUTO if data.logits.numel() <= MOST_FOR_AUTO else "TemperatureScaling"
    return make_calibrator(method).fit(data.logits, data.need_labels(), groups=data.groups)
