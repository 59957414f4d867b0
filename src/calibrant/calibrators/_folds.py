"""Folds that depend on the rows' content alone: not on their order, on shards, or on how often a row stands there."""

from torch import Tensor

from calibrant._leakage import hash_rows
from calibrant.rows import Chunk

_MIX = (0x2545F4914F6CDD1D, 0x1E3779B97F4A7C15)  # odd


def fold_of(chunk: Chunk, folds: int) -> Tensor:
    """Return the fold (n,) in [0, folds) of each row, by a hash of row and label; of the group, where there are groups."""
    return (_bits(chunk) % folds).to(chunk.labels.device)


def outside(chunk: Chunk, fold: int, folds: int) -> Tensor:
    """Return which rows (n,) do not belong to ``fold``."""
    return fold_of(chunk, folds) != fold


def inside(chunk: Chunk, fold: int, folds: int) -> Tensor:
    """Return which rows (n,) belong to ``fold``."""
    return fold_of(chunk, folds) == fold


def sampled(chunk: Chunk, rate: float) -> Tensor:
    """Return which rows (n,) belong to a random sample of about ``rate`` of them."""
    bits = (_bits(chunk) * _MIX[0]) >> 24 & ((1 << 32) - 1)
    return (bits < int(rate * (1 << 32))).to(chunk.labels.device)


def _bits(chunk: Chunk) -> Tensor:
    key = hash_rows(chunk.logits, chunk.labels) if chunk.groups is None else chunk.groups.cpu()
    mixed = (key ^ (key >> 32)) * _MIX[1]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[0]
    return (mixed >> 20) & ((1 << 40) - 1)
