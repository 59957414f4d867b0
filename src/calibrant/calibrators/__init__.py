"""Calibration after training: one method a file, each fitted on (logits, labels) and returning logits."""

import os
import sys
from collections.abc import Sequence

from calibrant.calibrators._base import Calibrator as Calibrator  # the base class to write methods on; no method itself
from calibrant.calibrators._convex import ConvexCalibrator as ConvexCalibrator  # likewise
from calibrant.calibrators._saved import load_calibrator
from calibrant.calibrators.adaptive_temperature import AdaptiveTemperatureScaling
from calibrant.calibrators.auto import AutoCalibrator
from calibrant.calibrators.beta import BetaCalibration
from calibrant.calibrators.bias_scaling import BiasScaling
from calibrant.calibrators.boosted_scaling import BoostedScaling
from calibrant.calibrators.centred_isotonic import CentredIsotonic
from calibrant.calibrators.chain import Chain
from calibrant.calibrators.dirichlet import DirichletCalibration
from calibrant.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from calibrant.calibrators.feature_scaling import FeatureScaling
from calibrant.calibrators.focal import FocalCalibration
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.group_scaling import GroupScaling
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.isotonic import IsotonicCalibration
from calibrant.calibrators.kernel_scaling import KernelScaling
from calibrant.calibrators.matrix import MatrixScaling
from calibrant.calibrators.multilabel import MultiLabelCalibrator
from calibrant.calibrators.platt import PlattScaling
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.quadratic import QuadraticScaling
from calibrant.calibrators.scaling_binning import ScalingBinning
from calibrant.calibrators.spline import SplineCalibration
from calibrant.calibrators.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.calibrators.temperature_mixture import TemperatureMixture
from calibrant.calibrators.vector import VectorScaling
from calibrant.calibrators.venn_abers import VennAbers

__all__ = [
    "AdaptiveTemperatureScaling",
    "AutoCalibrator",
    "BetaCalibration",
    "BiasScaling",
    "BoostedScaling",
    "CentredIsotonic",
    "Chain",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FeatureScaling",
    "FocalCalibration",
    "FocalTemperatureScaling",
    "GroupScaling",
    "HistogramBinning",
    "Identity",
    "IsotonicCalibration",
    "KernelScaling",
    "MatrixScaling",
    "MultiLabelCalibrator",
    "PlattScaling",
    "PriorShift",
    "QuadraticScaling",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureMixture",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
]


def load(path: str | os.PathLike[str], *, classes: Sequence[type[Calibrator]] = ()) -> Calibrator:
    """Return the fitted calibrator saved at ``path``.

    Args:
        path: A file made by ``save``.
        classes: Classes beyond ``calibrators.__all__`` that may be resolved; nothing else ever is.

    Raises:
        FileFormatError: If the file is not a whole calibrator.
        InputError: If its class is unknown, or it is for several labels a row (``MultiLabelCalibrator.load``).
    """
    return load_calibrator(path, sys.modules[__name__], Calibrator, classes=classes)  # type: ignore[type-abstract]
