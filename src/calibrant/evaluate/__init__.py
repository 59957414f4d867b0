"""Evaluation of models: metrics with their uncertainty, model comparisons, and the calibration of subgroups and labels."""

from calibrant.evaluate.compare import compare, compare_all
from calibrant.evaluate.cost_calibration import cost_calibration
from calibrant.evaluate.multilabel import label_table, multilabel_panel
from calibrant.evaluate.panel import default_metrics, panel
from calibrant.evaluate.recalibration import calibration_line, optimal_ece, refinement
from calibrant.evaluate.subgroups import subgroups

__all__ = [
    "calibration_line",
    "compare",
    "compare_all",
    "cost_calibration",
    "default_metrics",
    "label_table",
    "multilabel_panel",
    "optimal_ece",
    "panel",
    "refinement",
    "subgroups",
]
