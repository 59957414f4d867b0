"""Metrics of calibration, accuracy and ranking.

Each metric is a frozen dataclass whose fields are its configuration. To compute its value, call it on predictions.
"""

from calibrant.metrics._base import MeanMetric, Metric, SumMetric
from calibrant.metrics.calibration_error import ACE, ECE, MCE, KSError, TopLabelECE
from calibrant.metrics.canonical import CanonicalError
from calibrant.metrics.classwise import ClasswiseECE
from calibrant.metrics.debiased import DebiasedECE
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
    "Accuracy",
    "Brier",
    "CalibrationLoss",
    "CanonicalError",
    "ClasswiseECE",
    "DebiasedECE",
    "Entropy",
    "Error",
    "KSError",
    "MeanMetric",
    "Metric",
    "RefinementLoss",
    "RiskCoverage",
    "RocCurve",
    "SmoothECE",
    "SplitNLL",
    "SumMetric",
    "TopLabelECE",
    "entropy_rows",
    "ood_auroc",
    "ood_roc",
    "risk_coverage",
]
