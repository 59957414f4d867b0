"""Losses, metrics and fits for large K, where the N × K logits do not fit in memory or are split over processes."""

from calibrant.vocabulary.fused import FusedLinearLoss
from calibrant.vocabulary.linear import LinearLogits
from calibrant.vocabulary.sharded import ShardedLogits

__all__ = ["FusedLinearLoss", "LinearLogits", "ShardedLogits"]
