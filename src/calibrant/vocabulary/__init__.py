"""Large K: losses, measures and fits for vocabularies whose N × K logits are never held whole, or by no one process."""

from calibrant.vocabulary.fused import FusedLinearLoss
from calibrant.vocabulary.linear import LinearLogits
from calibrant.vocabulary.sharded import ShardedLogits

__all__ = ["FusedLinearLoss", "LinearLogits", "ShardedLogits"]
