"""Plots of predictions. Each function accepts an optional ``Axes`` and returns the figure with the numbers it shows."""

from calibrant.plot.display import CalibrationDisplay
from calibrant.plot.pictures import (
    classwise,
    compare,
    confidence_histogram,
    reliability,
    risk_coverage,
)

__all__ = [
    "CalibrationDisplay",
    "classwise",
    "compare",
    "confidence_histogram",
    "reliability",
    "risk_coverage",
]
