"""Checks whether your own loss, calibrator or metric fulfils the contract of its family."""

from calibrant.testing.calibrators import check_calibrator
from calibrant.testing.losses import check_loss
from calibrant.testing.metrics import check_metric

__all__ = ["check_calibrator", "check_loss", "check_metric"]
