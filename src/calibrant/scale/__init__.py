"""Evaluation, fits and calibration of data larger than memory, on one or several machines, from sums that merge."""

from calibrant.scale.apply import apply_streamed
from calibrant.scale.execute import Executor, Processes, RayCluster, in_turn, processes, ray_cluster
from calibrant.scale.fit import fit_streamed
from calibrant.scale.labels import evaluate_multilabel_streamed
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import StreamedFigure, evaluate_streamed, shard_states, sum_metrics

__all__ = [
    "Executor",
    "ParquetRows",
    "Processes",
    "RayCluster",
    "Shard",
    "StreamedFigure",
    "apply_streamed",
    "evaluate_multilabel_streamed",
    "evaluate_streamed",
    "fit_streamed",
    "in_turn",
    "processes",
    "ray_cluster",
    "shard_states",
    "sum_metrics",
]
