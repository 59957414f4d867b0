"""Calibrant: classifiers whose probabilities can be trusted.

Train with calibration-aware losses, calibrate afterwards, measure with honest statistics, show the result, ship it.
"""

from calibrant import binning, calibrators, errors, evaluate, losses, metrics, scores, statistics, theory, vocabulary
from calibrant.calibrators import load
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.splits import load_predictions, load_splits, save_predictions
from calibrant.top_k import TopK

__version__ = "0.1.0"

__all__ = [
    "BinaryPairs",
    "Predictions",
    "TopK",
    "binning",
    "calibrators",
    "errors",
    "evaluate",
    "load",
    "load_predictions",
    "load_splits",
    "losses",
    "metrics",
    "save_predictions",
    "scores",
    "statistics",
    "theory",
    "vocabulary",
]
