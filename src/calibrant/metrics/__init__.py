"""Measurement: one notion a file, each a frozen record called on predictions."""

from calibrant.metrics.accuracy import Accuracy, Error
from calibrant.metrics.calibration_error import ACE, ECE, MCE
from calibrant.metrics.classwise import ClasswiseECE
from calibrant.metrics.proper import NLL, Brier

__all__ = ["ACE", "ECE", "MCE", "NLL", "Accuracy", "Brier", "ClasswiseECE", "Error"]
