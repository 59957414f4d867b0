"""Plots: each function takes predictions and optionally an ``Axes``, and returns the figure with the numbers it shows."""

from calibrant.plot.classes import ClassError
from calibrant.plot.corp import IsotonicDiagram, isotonic_diagram
from calibrant.plot.decisions import DecisionCurve, decision_curve
from calibrant.plot.diagrams import Bin, Diagram, diagram_of
from calibrant.plot.display import CalibrationDisplay
from calibrant.plot.path import TemperaturePath
from calibrant.plot.pictures import (
    Picture,
    classwise,
    compare,
    confidence_histogram,
    reliability,
    risk_coverage,
    temperature_path,
)
from calibrant.plot.risk import Curve, risk_curve

__all__ = [
    "Bin",
    "CalibrationDisplay",
    "ClassError",
    "Curve",
    "DecisionCurve",
    "Diagram",
    "IsotonicDiagram",
    "Picture",
    "TemperaturePath",
    "classwise",
    "compare",
    "confidence_histogram",
    "decision_curve",
    "diagram_of",
    "isotonic_diagram",
    "reliability",
    "risk_coverage",
    "risk_curve",
    "temperature_path",
]
