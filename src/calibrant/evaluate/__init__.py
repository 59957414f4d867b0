"""Judging: the panel of metrics with their uncertainty, and what needs both a metric and a fit."""

from calibrant.evaluate.compare import Comparison, ComparisonRow, compare
from calibrant.evaluate.panel import PanelRow, default_metrics, panel

__all__ = ["Comparison", "ComparisonRow", "PanelRow", "compare", "default_metrics", "panel"]
