"""Evaluation, fits and calibration of data larger than memory, on one or several machines, from sums that merge."""

from calibrant.scale.apply import apply_streamed
from calibrant.scale.execute import processes, ray_cluster
from calibrant.scale.passes import fit_streamed
from calibrant.scale.stream import evaluate_multilabel_streamed, evaluate_streamed

__all__ = [
    "apply_streamed",
    "evaluate_multilabel_streamed",
    "evaluate_streamed",
    "fit_streamed",
    "processes",
    "ray_cluster",
]
