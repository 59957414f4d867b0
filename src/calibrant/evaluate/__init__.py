"""Evaluation: the panel of metrics with uncertainty, comparisons of models, groups and labels, and recalibration."""

from calibrant.evaluate.compare import Comparison, ComparisonRow, compare
from calibrant.evaluate.label_sums import LabelSums
from calibrant.evaluate.labels import LabelRow, LabelTable, label_table
from calibrant.evaluate.multilabel import MultiLabelRow, multilabel_panel, panel_of_sums
from calibrant.evaluate.panel import PanelRow, default_metrics, panel
from calibrant.evaluate.recalibration import (
    CalibrationLine,
    OptimalECE,
    Refinement,
    calibration_line,
    optimal_ece,
    refinement,
)
from calibrant.evaluate.subgroups import Subgroup, Subgroups, subgroups
from calibrant.evaluate.subsets import panel_by

__all__ = [
    "CalibrationLine",
    "Comparison",
    "ComparisonRow",
    "LabelRow",
    "LabelSums",
    "LabelTable",
    "MultiLabelRow",
    "OptimalECE",
    "PanelRow",
    "Refinement",
    "Subgroup",
    "Subgroups",
    "calibration_line",
    "compare",
    "default_metrics",
    "label_table",
    "multilabel_panel",
    "optimal_ece",
    "panel",
    "panel_by",
    "panel_of_sums",
    "refinement",
    "subgroups",
]
