"""Calibration after training: one method a file, each fitted on (logits, labels) and returning logits."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from calibrant.calibrators import saved
from calibrant.calibrators.affine import (
    BiasScaling,
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.calibrators.auto import AutoCalibrator
from calibrant.calibrators.base import Calibrator as Calibrator  # likewise; no method itself
from calibrant.calibrators.base import Identity
from calibrant.calibrators.binned import CentredIsotonic, HistogramBinning, IsotonicCalibration
from calibrant.calibrators.chain import Chain
from calibrant.calibrators.convex import ConvexCalibrator as ConvexCalibrator
from calibrant.calibrators.focal import FocalCalibration, FocalTemperatureScaling
from calibrant.calibrators.groups import FeatureScaling, GroupScaling
from calibrant.calibrators.kernel import KernelScaling
from calibrant.calibrators.mixture import EnsembleTemperatureScaling
from calibrant.calibrators.multilabel import MultiLabelCalibrator
from calibrant.calibrators.one_vs_rest import BetaCalibration, PlattScaling, SplineCalibration
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.calibrators.venn_abers import VennAbers
from calibrant.calibrators.wrappers import ConfidenceBinning, KeepDecision

__all__ = [
    "AutoCalibrator",
    "BetaCalibration",
    "BiasScaling",
    "CentredIsotonic",
    "Chain",
    "ConfidenceBinning",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FeatureScaling",
    "FocalCalibration",
    "FocalTemperatureScaling",
    "GroupScaling",
    "HistogramBinning",
    "Identity",
    "IsotonicCalibration",
    "KeepDecision",
    "KernelScaling",
    "MatrixScaling",
    "MultiLabelCalibrator",
    "PlattScaling",
    "PriorShift",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
]

# How other libraries name these methods: the command line and the adapter of scikit-learn take both.
SHORT_NAMES = {
    "auto": "AutoCalibrator",
    "temperature": "TemperatureScaling",
    "isotonic": "IsotonicCalibration",
    "sigmoid": "PlattScaling",
    "beta": "BetaCalibration",
}


def load(path: str | os.PathLike[str], *, classes: Sequence[type[Calibrator]] = ()) -> Any:
    """Return the fitted calibrator saved at ``path``, a ``MultiLabelCalibrator`` among them.

    Args:
        path: A file made by ``save``.
        classes: Classes beyond ``calibrators.__all__`` that may be resolved; nothing else ever is.

    Raises:
        FileFormatError: If the file is not a whole calibrator.
        InputError: If its class is unknown.
    """
    return saved.load_calibrator(path, sys.modules[__name__], classes=classes)
