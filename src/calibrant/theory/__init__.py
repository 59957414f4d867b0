"""The theory of losses that depend only on the true class's probability, as pure functions of log-probabilities.

This package computes the calibration maps, proper parts and minimisers of these losses, and the papers' inequalities.
"""

from calibrant.theory.bounds import EntropyBound, entropy_bound, focal_curvature, scaling_change
from calibrant.theory.calibration_map import calibration_map, inverse_calibration_map, proper_part
from calibrant.theory.focal_map import focal_logit, focal_map, gamma_from_threshold
from calibrant.theory.minimiser import Minimum, minimiser
from calibrant.theory.temperature_bounds import (
    SLOPE_BOUND_LIMIT,
    TemperatureBounds,
    TemperatureFit,
    fit_temperatures,
    measured_temperature_bounds,
    nearest_temperature,
    temperature_bounds,
)
from calibrant.theory.validity import Validity, validity

__all__ = [
    "SLOPE_BOUND_LIMIT",
    "EntropyBound",
    "Minimum",
    "TemperatureBounds",
    "TemperatureFit",
    "Validity",
    "calibration_map",
    "entropy_bound",
    "fit_temperatures",
    "focal_curvature",
    "focal_logit",
    "focal_map",
    "gamma_from_threshold",
    "inverse_calibration_map",
    "measured_temperature_bounds",
    "minimiser",
    "nearest_temperature",
    "proper_part",
    "scaling_change",
    "temperature_bounds",
    "validity",
]
