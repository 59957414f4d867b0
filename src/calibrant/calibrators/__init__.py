"""Calibrators: methods that are fitted on logits and labels after training, and return calibrated logits."""

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
from calibrant.calibrators.base import Calibrator as Calibrator  # likewise; not a method itself
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

# Names of these methods in other libraries, which the command line and the scikit-learn adapter accept as well.
SHORT_NAMES = {
    "auto": "AutoCalibrator",
    "temperature": "TemperatureScaling",
    "isotonic": "IsotonicCalibration",
    "sigmoid": "PlattScaling",
    "beta": "BetaCalibration",
}


def load(path: str | os.PathLike[str], *, classes: Sequence[type[Calibrator]] = ()) -> Any:
    """Load a fitted calibrator, which can be a ``MultiLabelCalibrator``.

    Args:
        path: A file written by ``save``.
        classes: Classes that the file may name in addition to those of ``calibrators.__all__``; no others are constructed.

    Returns:
        The fitted calibrator.

    Raises:
        FileFormatError: If the file is damaged or does not contain a calibrator.
        InputError: If its class is unknown.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import TemperatureScaling
        >>> fitted = TemperatureScaling().fit(torch.tensor([[2.0, 0.0]] * 10), [0] * 8 + [1] * 2)
        >>> fitted.save("calibrator.safetensors")
        >>> load("calibrator.safetensors").temperature == fitted.temperature
        True
    """
    return saved.load_calibrator(path, sys.modules[__name__], classes=classes)
