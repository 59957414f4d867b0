"""Calibration maps, proper parts, minimisers and bounds of true-class scores: pure functions on log-probabilities."""

from calibrant.theory.calibration_map import calibration_map
from calibrant.theory.focal_map import FocalTerms, focal_logit, focal_map
from calibrant.theory.inverse_map import inverse_calibration_map
from calibrant.theory.proper_part import proper_part
from calibrant.theory.threshold import gamma_from_threshold
from calibrant.theory.validity import Validity, validity

__all__ = [
    "FocalTerms",
    "Validity",
    "calibration_map",
    "focal_logit",
    "focal_map",
    "gamma_from_threshold",
    "inverse_calibration_map",
    "proper_part",
    "validity",
]
