"""Metrics: frozen dataclasses that hold a configuration and are called on predictions."""

from collections.abc import Sequence
from typing import Annotated, Any

from calibrant._core.constraints import Kind
from calibrant.data.checks import need_predictions, need_rows
from calibrant.metrics._base import MeanMetric, Metric, SumMetric
from calibrant.metrics.calibration_error import ACE, ECE, MCE, SweepECE, TopLabelECE
from calibrant.metrics.canonical import CanonicalError
from calibrant.metrics.classwise import ClasswiseECE
from calibrant.metrics.cumulative import KSError, KuiperError, SpiegelhalterZ, TwoBinError
from calibrant.metrics.debiased import DebiasedECE, SquaredECE, SquaredGaps
from calibrant.metrics.kernel import SKCE, KernelECE
from calibrant.metrics.multicalibration import MulticalibrationError
from calibrant.metrics.proper import (
    NLL,
    Accuracy,
    Brier,
    CalibrationLoss,
    Entropy,
    Error,
    RefinementLoss,
    SplitNLL,
    entropy_rows,
)
from calibrant.metrics.ranking import AURC, RiskCoverage, RocCurve, ood_auroc, ood_roc, risk_coverage
from calibrant.metrics.smooth import SmoothECE

__all__ = [
    "ACE",
    "AURC",
    "ECE",
    "MCE",
    "NLL",
    "SKCE",
    "Accuracy",
    "Brier",
    "CalibrationLoss",
    "CanonicalError",
    "ClasswiseECE",
    "DebiasedECE",
    "Entropy",
    "Error",
    "KSError",
    "KernelECE",
    "KuiperError",
    "MeanMetric",
    "Metric",
    "MulticalibrationError",
    "RefinementLoss",
    "RiskCoverage",
    "RocCurve",
    "SmoothECE",
    "SpiegelhalterZ",
    "SplitNLL",
    "SquaredECE",
    "SquaredGaps",
    "SumMetric",
    "SweepECE",
    "TopLabelECE",
    "TwoBinError",
    "entropy_rows",
    "need_predictions",
    "need_rows",
    "ood_auroc",
    "ood_roc",
    "risk_coverage",
]

_REMEDY = "leave it out, or evaluate it in memory"
SumMetrics = Sequence[Annotated[SumMetric[Any], Kind(SumMetric, _REMEDY, "a metric that is a sum, such as ECE()")]]
