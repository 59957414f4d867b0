"""Uncertainty of metrics: intervals, null distributions under calibration, and paired tests of two models.

These functions receive a metric as an argument, and do not import the metrics.
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
