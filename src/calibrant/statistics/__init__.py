"""Uncertainty of a figure: intervals that cover, the level a calibrated model would show, and tests for two models.

Everything here takes a metric as an object with the methods it needs (``HasRows``, ``HasInterval``, ``HasNull``), so it
knows no metric by name.
"""

from calibrant.statistics.binned import BinnedEstimate, consistency_bars, corrected_error, error_interval, interval_ends
from calibrant.statistics.interval import (
    HasInterval,
    HasRows,
    Interval,
    bootstrap,
    interval,
    mean_error,
    normal_quantile,
    wilson,
)
from calibrant.statistics.null import HasNull, null_band, null_draws, null_outcomes, redraw
from calibrant.statistics.paired import PairedTest, holm, paired_bootstrap, two_sample_test

__all__ = [
    "BinnedEstimate",
    "HasInterval",
    "HasNull",
    "HasRows",
    "Interval",
    "PairedTest",
    "bootstrap",
    "consistency_bars",
    "corrected_error",
    "error_interval",
    "holm",
    "interval",
    "interval_ends",
    "mean_error",
    "normal_quantile",
    "null_band",
    "null_draws",
    "null_outcomes",
    "paired_bootstrap",
    "redraw",
    "two_sample_test",
    "wilson",
]
