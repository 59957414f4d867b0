"""Regression trees as plain arrays, applied in PyTorch: nothing is pickled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_AT_ONCE = 1 << 17  # places in trees that rows hold at once: what stays in the cache
_WORDS = 8  # of 32 bits: a bit for each of 256 categories
BUFFERS = ("feature", "left", "right", "missing_left", "threshold", "value", "members", "bits", "roots")


@dataclass(frozen=True)
class Trees:
    """M nodes of T trees; a leaf has itself for both children, so that one more step changes nothing.

    Args:
        feature: (M,) int64 column that the node splits on.
        left: (M,) int64 node of rows with a value ≤ the threshold, or a category that is a member.
        right: (M,) int64 node of the others.
        missing_left: (M,) bool whether rows with NaN go left.
        threshold: (M,) float64.
        value: (M,) float64 of a leaf.
        members: (M,) int64 row in ``bits`` of a split by categories, −1 of one by a number.
        bits: (S, 8) int64 words of 32 bits: which categories go left.
        roots: (T,) int64 first node of each tree.
    """

    feature: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    threshold: Tensor
    value: Tensor
    members: Tensor
    bits: Tensor
    roots: Tensor

    def __len__(self) -> int:
        return int(self.roots.shape[0])

    @classmethod
    def none(cls, device: torch.device | None = None) -> "Trees":
        """Return no trees."""
        whole, number = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        flags, bits = torch.empty(0, dtype=torch.bool), torch.empty(0, _WORDS, dtype=torch.int64)
        parts = (whole, whole, whole, flags, number, number, whole, bits, whole)
        return cls(*(part.to(device) for part in parts))

    def depth(self) -> int:
        """Return the most steps from a root to a leaf.

        Raises:
            ValueError: If what comes from a file is no trees: a child before its parent, or a place that is not there.
        """
        self._check()
        level = torch.zeros_like(self.left)
        for node in range(len(self.left)):  # children come after their parent
            for child in (int(self.left[node]), int(self.right[node])):
                if child != node:
                    level[child] = level[node] + 1
        return int(level.max()) if len(level) else 0

    def _check(self) -> None:
        nodes, own = len(self.left), torch.arange(len(self.left), device=self.left.device)
        if len({len(getattr(self, name)) for name in BUFFERS[:-2]}) > 1 or self.bits.shape[1:] != (_WORDS,):
            raise ValueError("trees of unequal parts")
        leaf = (self.left == own) & (self.right == own)
        inside = leaf | ((self.left > own) & (self.right > own) & (self.left < nodes) & (self.right < nodes))
        roots = (self.roots >= 0) & (self.roots < nodes)
        sets = (self.members >= -1) & (self.members < len(self.bits))
        if not bool(inside.all() & roots.all() & sets.all() & (self.feature >= 0).all()):
            raise ValueError("a tree that points outside itself")
        if not bool(torch.isfinite(self.value).all()):
            raise ValueError("a tree without a finite value")

    def values(self, columns: Tensor, depth: int) -> Tensor:
        """Return what each tree says (N, T) float64 of rows ``columns`` (N, F) float64, which may hold NaN."""
        found = columns.new_empty(columns.shape[0], len(self), dtype=torch.float64)
        step = max(1, _AT_ONCE // max(1, len(self)))
        for start in range(0, columns.shape[0], step):
            rows = columns[start : start + step]
            node = self.roots.expand(rows.shape[0], -1)
            for _ in range(depth):
                node = self._next(rows, node)
            found[start : start + step] = self.value[node]
        return found

    def _next(self, rows: Tensor, node: Tensor) -> Tensor:
        x = rows.gather(1, self.feature[node])
        low = x <= self.threshold[node]
        if len(self.bits):
            members, code = self.members[node], torch.nan_to_num(x).clamp(0, 32 * _WORDS - 1).long()
            word = self.bits[members.clamp_min(0), code >> 5]
            low = torch.where(members >= 0, ((word >> (code & 31)) & 1).bool(), low)
        low = torch.where(torch.isnan(x), self.missing_left[node], low)
        return torch.where(low, self.left[node], self.right[node])


def bits_of(inside: Tensor) -> Tensor:
    """Return the words (M, 8) whose bits are the flags (M, C), C ≤ 256."""
    flags = torch.zeros(len(inside), _WORDS * 32, dtype=torch.int64)
    flags[:, : inside.shape[1]] = inside.long()
    return (flags.view(-1, _WORDS, 32) << torch.arange(32)).sum(dim=2)


def joined(parts: Sequence[Trees]) -> Trees:
    """Return the trees of all parts in order."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return Trees.none()
    nodes = np.cumsum([0, *(len(part.left) for part in parts)])[:-1].tolist()
    sets = np.cumsum([0, *(len(part.bits) for part in parts)])[:-1].tolist()
    moved = [
        Trees(
            part.feature,
            part.left + at,
            part.right + at,
            part.missing_left,
            part.threshold,
            part.value,
            torch.where(part.members >= 0, part.members + first, -1),
            part.bits,
            part.roots + at,
        )
        for part, at, first in zip(parts, nodes, sets, strict=True)
    ]
    return Trees(*(torch.cat([getattr(part, name) for part in moved]) for name in BUFFERS))
