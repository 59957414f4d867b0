"""The row source: what a fit may ask of labelled rows, wherever they lie, so that each algorithm is written once.

A fit asks for sums. ``source.total(work, *parameters)`` is Σ over the rows' chunks of ``work(chunk, *parameters)``, a pure
function that returns float64 tensors; ``largest`` is their maximum, and ``fold`` joins anything else that merges. Chunks
keep their order, so every executor gives the same bits. Rows in memory answer at once; ``calibrant.scale`` answers from
Parquet files, a pass over them for each question, and ``DistributedRows`` from the ranks of ``torch.distributed``.
"""

from calibrant.rows.distributed import DistributedRows
from calibrant.rows.source import Chunk, LazyRows, MemoryRows, RowSource, chunks_of

__all__ = ["Chunk", "DistributedRows", "LazyRows", "MemoryRows", "RowSource", "chunks_of"]
