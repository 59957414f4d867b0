"""Calibrators: post-hoc methods that are fitted on logits and labels after training and return calibrated logits."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from calibrant import _files as files
from calibrant import binning
from calibrant._core.config import build
from calibrant.calibrators.affine import (
    BiasScaling,
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.calibrators.auto import AutoCalibrator
from calibrant.calibrators.base import FORMAT, Chain, Identity
from calibrant.calibrators.base import Calibrator as Calibrator  # not a method itself, so that __all__ leaves it out
from calibrant.calibrators.binned import CentredIsotonic, HistogramBinning, IsotonicCalibration, VennAbers
from calibrant.calibrators.focal import FocalCalibration, FocalTemperatureScaling
from calibrant.calibrators.groups import FeatureScaling, GroupScaling
from calibrant.calibrators.kernel import KernelScaling
from calibrant.calibrators.multilabel import MultiLabelCalibrator
from calibrant.calibrators.one_vs_rest import BetaCalibration, PlattScaling, SplineCalibration
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling
from calibrant.calibrators.wrappers import ConfidenceBinning, KeepDecision
from calibrant.errors import FileFormatError, InputError

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

# The names that other libraries use for these methods. The command line and the scikit-learn adapter accept them as well.
SHORT_NAMES = {
    "auto": "AutoCalibrator",
    "temperature": "TemperatureScaling",
    "isotonic": "IsotonicCalibration",
    "sigmoid": "PlattScaling",
    "beta": "BetaCalibration",
}

# Errors that are raised if the contents of a file are not the state of a calibrator
_BROKEN = KeyError, TypeError, ValueError, RuntimeError, RecursionError, IndexError, AttributeError


def load(path: str | os.PathLike[str], *, classes: Sequence[type[Calibrator]] = ()) -> Any:
    """Load a fitted calibrator or ``MultiLabelCalibrator`` from a file.

    Args:
        path: A file written by ``save``.
        classes: Your own calibrator classes that the file may name, in addition to those in ``calibrators.__all__``. No other
            class is ever constructed.

    Returns:
        The fitted calibrator.

    Raises:
        FileFormatError: If the file is damaged or does not contain a calibrator.
        InputError: If the file names an unknown class.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import TemperatureScaling
        >>> fitted = TemperatureScaling().fit(torch.tensor([[2.0, 0.0]] * 10), [0] * 8 + [1] * 2)
        >>> fitted.save("calibrator.safetensors")
        >>> load("calibrator.safetensors").temperature == fitted.temperature
        True
    """
    family, known = sys.modules[__name__], {cls.__name__: cls for cls in classes}
    files.check_suffix(path, [".safetensors"], what="a saved calibrator")
    metadata = files.read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError("a saved calibrator", f"another kind of file: {files.shown(path)}", "create it with save")
    name = metadata.get("type", "")
    if name not in __all__ and name not in known:
        more = f" or one of {', '.join(sorted(known))}" if known else ""
        remedy = f"load it in Python with calibrant.load(path, classes=[{name}])"
        raise InputError(f"a class of {__name__}{more}", f"{name!r} in {files.shown(path)}", remedy)
    try:
        table = {"type": name, **json.loads(metadata["config"])}
        calibrator = build(table, families=[family, binning], classes=list(known.values()))
        state = {key: torch.from_numpy(value) for key, value in files.read_arrays(path).items()}
        calibrator.load_state_dict(state)
        spoiled = any(value.is_floating_point() and bool(value.isnan().any()) for value in state.values())
        if spoiled or not 1 <= int(calibrator.classes) <= 1 << 22:
            raise ValueError("NaN, or an impossible number of classes")
        if not getattr(calibrator, "needs_features", False):
            calibrator(torch.zeros(1, int(calibrator.classes)))  # parts of unlike shapes fail here
        calibrator.class_names = tuple(map(str, json.loads(metadata["class_names"])))
    except _BROKEN as error:
        got = f"a broken one in {files.shown(path)} ({files.reason_of(error)})"
        raise FileFormatError("a whole calibrator", got, "save it again") from error
    return calibrator
