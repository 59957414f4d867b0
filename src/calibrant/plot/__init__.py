"""Plots: each function takes predictions and optionally an ``Axes``, and returns the figure with the numbers it shows."""

from calibrant.plot.diagrams import diagram_of
from calibrant.plot.display import CalibrationDisplay
from calibrant.plot.pictures import (
    classwise,
    compare,
    confidence_histogram,
    decision_curve,
    reliability,
    risk_coverage,
    temperature_path,
)

__all__ = [
    "CalibrationDisplay",
    "classwise",
    "compare",
    "confidence_histogram",
    "decision_curve",
    "diagram_of",
    "reliability",
    "risk_coverage",
    "temperature_path",
]
