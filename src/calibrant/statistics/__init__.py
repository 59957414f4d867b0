"""Uncertainty of metrics: intervals, null distributions under calibration, and paired tests of two models.

Functions here take a metric as an object with the methods they need (``HasRows``, ``HasInterval``, ``HasNull``) and import no
metric.
"""

from calibrant.statistics.binned import consistency_bars, error_interval
from calibrant.statistics.interval import bootstrap, interval
from calibrant.statistics.means import Interval
from calibrant.statistics.null import null_band, null_draws

__all__ = [
    "Interval",
    "bootstrap",
    "consistency_bars",
    "error_interval",
    "interval",
    "null_band",
    "null_draws",
]
