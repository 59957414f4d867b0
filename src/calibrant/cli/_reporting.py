"""From a file to a model that a report can show: which split is judged, and what calibrates it."""

from pathlib import Path

import calibrant
from calibrant.calibrators._base import Calibrator
from calibrant.cli._calibrators import make_calibrator, with_logits
from calibrant.report import Model
from calibrant.splits import UNNAMED

NONE = "none"


def load_model(path: str, *, shown: str, method: str, saved: str | None, splits: tuple[str, str]) -> Model:
    """Return the model of a file.

    It is calibrated by the saved calibrator; or by ``method`` fitted on the second of ``splits`` if the file has such a
    split; or not at all, since a calibrator is never judged on the rows it was fitted on.
    """
    judged, fitting = splits
    before = calibrant.load_predictions(path, judged)
    name = Path(shown).stem
    calibrator = _calibrator(path, shown=shown, method=method, saved=saved, fitting=fitting)
    if calibrator is None:
        return Model(name, before, source=shown, split=judged)
    after = with_logits(before, file=shown, split=judged).calibrated_by(calibrator)
    return Model(name, before, after, calibrator, source=shown, split=judged)


def _calibrator(path: str, *, shown: str, method: str, saved: str | None, fitting: str) -> Calibrator | None:
    if saved is not None:
        return calibrant.load(saved)
    splits = calibrant.load_splits(path)
    if method == NONE or UNNAMED in splits or fitting not in splits:
        return None
    data = with_logits(splits[fitting], file=shown, split=fitting)
    return make_calibrator(method).fit(data.logits, data.need_labels(), groups=data.groups)
