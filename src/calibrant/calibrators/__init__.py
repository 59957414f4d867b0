"""Calibration after training: one method a file, each fitted on (logits, labels) and returning logits."""

import os
from collections.abc import Sequence

from calibrant.calibrators._base import Calibrator, load_with
from calibrant.calibrators.chain import Chain
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.temperature import TemperatureScaling

__all__ = ["Chain", "Identity", "TemperatureScaling"]


def load(path: str | os.PathLike[str], *, classes: Sequence[type[Calibrator]] = ()) -> Calibrator:
    """Return the fitted calibrator saved at ``path``.

    Args:
        path: A file made by ``save``.
        classes: Classes beyond ``calibrators.__all__`` that may be resolved; nothing else ever is.

    Raises:
        FileFormatError: If the file is not a whole calibrator.
        InputError: If its class is unknown.
    """
    return load_with(path, [*(globals()[name] for name in __all__), *classes])
