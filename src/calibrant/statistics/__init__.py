"""Uncertainty of metrics: intervals, null distributions under calibration, and paired tests of two models.

Functions here take a metric as an object and import none.
"""

from calibrant.statistics.binned import consistency_bars
from calibrant.statistics.interval import bootstrap, interval
from calibrant.statistics.means import Interval
from calibrant.statistics.null import null_band

__all__ = [
    "Interval",
    "bootstrap",
    "consistency_bars",
    "interval",
    "null_band",
]
