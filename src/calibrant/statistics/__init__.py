"""Uncertainty of metrics: intervals, null distributions under calibration, and paired tests of two models.

The functions take a metric as an argument, so this package does not import ``calibrant.metrics``.
"""

from calibrant.statistics.binned import consistency_bars
from calibrant.statistics.interval import bootstrap, interval, null_band
from calibrant.statistics.means import Interval

__all__ = [
    "Interval",
    "bootstrap",
    "consistency_bars",
    "interval",
    "null_band",
]
