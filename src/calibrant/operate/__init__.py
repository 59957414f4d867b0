"""Tools for calibrated models in production: limits on metrics, sample sizes, monitoring, estimates and decision rules."""

from calibrant.operate.abstain import abstain
from calibrant.operate.check import assert_calibrated, check
from calibrant.operate.decide import thresholds
from calibrant.operate.estimate import estimate
from calibrant.operate.monitor import Monitor
from calibrant.operate.rows_needed import rows_needed

__all__ = ["Monitor", "abstain", "assert_calibrated", "check", "estimate", "rows_needed", "thresholds"]
