"""Calibrant: classifiers whose probabilities can be trusted.

Train with calibration-aware losses, calibrate trained models, evaluate them with honest statistics, and deploy them.
"""

import importlib.util
import typing

if typing.TYPE_CHECKING:
    from calibrant import (
        binning,
        calibrators,
        errors,
        evaluate,
        functional,
        language,
        losses,
        metrics,
        operate,
        plot,
        scores,
        statistics,
        theory,
    )
    from calibrant.calibrators import load
    from calibrant.data.examples import load_example
    from calibrant.data.io import read, save_predictions
    from calibrant.data.multilabel import MultiLabel
    from calibrant.data.pairs import Pairs
    from calibrant.data.predictions import Predictions

__version__ = "1.0.0"

__all__ = [
    "MultiLabel",
    "Pairs",
    "Predictions",
    "binning",
    "calibrators",
    "errors",
    "evaluate",
    "functional",
    "language",
    "load",
    "load_example",
    "losses",
    "metrics",
    "operate",
    "plot",
    "read",
    "save_predictions",
    "scores",
    "statistics",
    "theory",
]

# The modules of the names that are not modules themselves. Everything is imported when first used, so that `import
# calibrant` and `calibrant --help` do not wait for PyTorch or for unused parts.
_HOMES = {
    "MultiLabel": "data.multilabel",
    "Pairs": "data.pairs",
    "Predictions": "data.predictions",
    "load": "calibrators",
    "load_example": "data.examples",
    "read": "data.io",
    "save_predictions": "data.io",
}


def __getattr__(name: str) -> object:
    part = f"{__name__}.{_HOMES.get(name, name)}"
    if name.startswith("_") or "." in name or importlib.util.find_spec(part) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(part)
    value = getattr(home, name) if name in _HOMES else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
