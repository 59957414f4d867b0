"""Checks that a method of your own keeps the contract of its family, and that a model keeps its limits."""

from calibrant.testing.assertions import assert_calibrated
from calibrant.testing.calibrators import check_calibrator
from calibrant.testing.losses import check_loss
from calibrant.testing.metrics import check_metric

__all__ = ["assert_calibrated", "check_calibrator", "check_loss", "check_metric"]
