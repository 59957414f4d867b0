"""Data larger than memory, and more than one machine: the same answers from sums that merge."""

from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import StreamedFigure, apply_streamed, evaluate_streamed, shard_states, sum_metrics

__all__ = [
    "ParquetRows",
    "Shard",
    "StreamedFigure",
    "apply_streamed",
    "evaluate_streamed",
    "shard_states",
    "sum_metrics",
]
