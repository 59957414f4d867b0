"""Regression trees as plain arrays, applied in PyTorch: nothing is pickled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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


def joined_trees(parts: Sequence[Trees]) -> Trees:
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


# Regression trees grown on histograms of coded columns, in several fits at once.
#
# One tree of every fit grows a level at a time: sums of gradients g and curvatures h by node and code, one pass over the rows
# for several columns together, then the best split of every node, of a column of numbers at a threshold, of categories in the order
# of g / h (Fisher 1958). A split gains G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ), a leaf is −G / (H + λ): Newton steps.
#
# scikit-learn's histogram trees say the same (a test compares them), but bin the rows anew in every fit and grow one tree at a time:
# cross-fitting small trees, most of the time went there.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

RIDGE = 10.0  # λ: Σ h that holds a leaf, and a category's place among the others, at 0
FEWEST = 2.0  # Σ h of a leaf: rows of a decision that is open count a quarter each
_CELLS = 2048  # of columns that are counted together
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class CodedColumn:
    """A column whose entries are codes.

    Args:
        code: (N,) int64 in [0, size).
        size: Codes.
        names: Whether the codes are categories, in no order.
        missing: Whether the last code is that of missing numbers.
    """

    code: Ints
    size: int
    names: bool
    missing: bool = False


@dataclass(frozen=True)
class Splits:
    """The best split of each of M nodes.

    Args:
        gain: (M,) of the loss; 0 where there is no split.
        column: (M,) that is split.
        code: (M,) largest code that goes left, of a column of numbers.
        left: (M, S) which codes go left.
        missing_left: (M,) whether missing numbers do.
        g: (M,) Σ g of the rows that go left.
        h: (M,) their Σ h.
    """

    gain: Floats
    column: Ints
    code: Ints
    left: Flags
    missing_left: Flags
    g: Floats
    h: Floats


@dataclass(frozen=True)
class Grown:
    """One tree of each fit, each a heap of ``2 ** (depth + 1) − 1`` nodes, one after the other.

    Args:
        heap: Nodes of a fit.
        used: (P · heap,) whether the node is there.
        split: (P · heap,) whether it is split.
        column: (P · heap,) by which column.
        code: (P · heap,) largest code that goes left, of a column of numbers.
        left: (P · heap, S) which codes go left.
        missing_left: (P · heap,) whether missing numbers do.
        value: (P · heap,) of leaves.
    """

    heap: int
    used: Flags
    split: Flags
    column: Ints
    code: Ints
    left: Flags
    missing_left: Flags
    value: Floats

    @classmethod
    def empty(cls, fits: int, heap: int, size: int) -> "Grown":
        """Return heaps without nodes."""
        count = fits * heap
        flags, whole = (np.zeros((4, count), dtype=bool), np.zeros((2, count), dtype=np.int64))
        left = np.zeros((count, size), dtype=bool)
        return cls(heap, flags[0], flags[1], whole[0], whole[1], left, flags[2], np.zeros(count))

    def keep(self, nodes: Ints, found: Splits, chosen: Flags) -> None:
        """Write the splits of ``nodes``, those that are chosen of what was found."""
        self.split[nodes] = True
        self.column[nodes], self.code[nodes] = found.column[chosen], found.code[chosen]
        self.left[nodes], self.missing_left[nodes] = found.left[chosen], found.missing_left[chosen]

    def tree(self, fit: int, columns: Sequence[CodedColumn]) -> Trees:
        """Return the tree of one fit, over codes."""
        own = slice(fit * self.heap, (fit + 1) * self.heap)
        nodes = np.flatnonzero(self.used[own])
        number = np.zeros(self.heap, dtype=np.int64)
        number[nodes] = np.arange(len(nodes))
        split, column = self.split[own][nodes], self.column[own][nodes]
        names = split & np.array([one.names for one in columns])[column]
        below = np.minimum(2 * nodes + 1, self.heap - 2)
        parts = (
            np.where(split, column, 0),
            np.where(split, number[below], number[nodes]),
            np.where(split, number[below + 1], number[nodes]),
            self.missing_left[own][nodes] & split,
            np.where(split & ~names, self.code[own][nodes], 0).astype(np.float64),
            np.where(split, 0.0, self.value[own][nodes]),
            np.where(names, names.cumsum() - 1, -1),
        )
        sets = bits_of(torch.from_numpy(self.left[own][nodes][names]))
        arrays = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
        feature, left, right, missing_left, threshold, value, members = arrays
        roots = torch.zeros(1, dtype=torch.int64)
        return Trees(feature, left, right, missing_left, threshold, value, members, sets, roots)


class Grower:
    """Rows as codes, laid out for histograms.

    Args:
        columns: F columns of N rows.
        inside: (P, N) which rows each fit sees; the others are only sent through its trees.
    """

    def __init__(self, columns: Sequence[CodedColumn], inside: Flags) -> None:
        self.fits, self.rows = inside.shape
        self.columns = columns
        self.inside = np.flatnonzero(inside.reshape(-1))
        self.size = max(one.size for one in columns)
        self.codes = np.stack([one.code for one in columns], axis=1).reshape(-1)
        self.first = np.tile(np.arange(self.rows) * len(columns), self.fits)  # place of a row's codes
        row = self.inside % self.rows
        self.cells = [(_cells([columns[at] for at in chosen])[row], chosen) for chosen in _together(columns)]
        self.bins = _Bins.of(columns)

    def grow(self, g: Floats, h: Floats, *, depth: int) -> tuple[Grown, Floats]:
        """Return one tree of each fit, and what it says of every row (P, N).

        Args:
            g: (P, N) gradients.
            h: (P, N) curvatures, > 0.
            depth: Most splits on the way to a leaf.
        """
        made = Grown.empty(self.fits, heap := 2 ** (depth + 1) - 1, self.size)
        place = np.repeat(level := np.arange(self.fits) * heap, self.rows)
        seen = np.stack([g.reshape(-1)[self.inside], h.reshape(-1)[self.inside]])
        sums = np.zeros((2, len(made.used)))
        for part, whole in zip(seen, sums, strict=True):
            whole[level] = np.bincount(self.inside // self.rows, weights=part, minlength=self.fits)
        made.used[level] = True
        for _ in range(depth):
            level = level[sums[1, level] >= 2 * FEWEST]
            if not len(level):
                break
            slot_of = np.full(len(made.used), -1)
            slot_of[level] = np.arange(len(level))
            slot = slot_of.take(place)
            found = self.bins.best(self._histograms(slot.take(self.inside), seen, len(level)), sums[:, level])
            chosen = found.gain > _LEAST_GAIN
            level, below = level[chosen], (level + level % heap + 1)  # the left child
            made.keep(level, found, chosen)
            sums[:, below[chosen]] = np.stack([found.g, found.h])[:, chosen]
            sums[:, below[chosen] + 1] = sums[:, level] - sums[:, below[chosen]]
            moved = np.flatnonzero(np.append(chosen, False).take(slot))  # −1 takes the last
            here = slot.take(moved)
            code = self.codes.take(self.first.take(moved) + found.column.take(here))
            place[moved] = below.take(here) + ~found.left.reshape(-1).take(here * self.size + code)
            level = np.concatenate([below[chosen], below[chosen] + 1])
            made.used[level] = True
        made.value[:] = -sums[0] / (sums[1] + RIDGE)
        return made, made.value.take(place).reshape(self.fits, self.rows)

    def _histograms(self, slot: Ints, seen: Floats, slots: int) -> Floats:
        """Return Σ g and Σ h (2, M, B) by node and code."""
        found = np.empty((2, slots, self.bins.count))
        rows = np.flatnonzero(slot >= 0) if bool((slot < 0).any()) else None
        if rows is not None:
            slot, seen = slot.take(rows), seen.take(rows, axis=1)
        for cells, chosen in self.cells:
            sizes = [self.columns[at].size for at in chosen]
            width = int(np.prod(sizes))
            index = slot * width + (cells if rows is None else cells.take(rows))
            for at in (0, 1):
                both = np.bincount(index, weights=seen[at], minlength=slots * width).reshape(slots, *sizes)
                for place, column in enumerate(chosen):
                    others = tuple(axis + 1 for axis in range(len(chosen)) if axis != place)
                    start = self.bins.start[column]
                    found[at, :, start : start + sizes[place]] = both.sum(axis=others)
        return found


@dataclass(frozen=True)
class _Bins:
    """The codes of all columns, one column after the other.

    Args:
        start: (F,) where each column's codes begin.
        owner: (B,) column of each code.
        code: (B,) the code itself.
        names: (B,) whether it is a category.
        split: (B,) whether the codes up to this one can go left.
        missing: (F,) place of the code of missing numbers, −1 where there is none.
        size: S.
    """

    start: Ints
    owner: Ints
    code: Ints
    names: Flags
    split: Flags
    missing: Ints
    size: int

    @classmethod
    def of(cls, columns: Sequence[CodedColumn]) -> "_Bins":
        sizes = np.array([one.size for one in columns])
        start = np.cumsum(sizes) - sizes
        owner = np.repeat(np.arange(len(columns)), sizes)
        code = np.arange(len(owner)) - start[owner]
        split = code < sizes[owner] - 1
        missing = np.array([start[at] + one.size - 1 if one.missing else -1 for at, one in enumerate(columns)])
        return cls(start, owner, code, np.array([one.names for one in columns])[owner], split, missing, int(max(sizes)))

    @property
    def count(self) -> int:
        """B."""
        return len(self.owner)

    def best(self, sums: Floats, total: Floats) -> Splits:
        """Return the best split of each node of the histograms (2, M, B) and sums (2, M)."""
        order = self._order(sums)
        below = np.take_along_axis(sums, order[None], axis=2).cumsum(axis=2)
        before = np.concatenate([np.zeros((2, len(order), 1)), below[:, :, :-1]], axis=2)
        below -= before[:, :, self.start[self.owner]]
        lost = np.where(self.missing[self.owner] >= 0, sums[:, :, self.missing[self.owner]], 0.0)
        gains = [_gain(below, total, self.split)]
        if bool((self.missing >= 0).any()):  # missing numbers to the left
            gains.append(
                _gain(below + lost, total, self.split & (self.missing[self.owner] > np.arange(self.count) + 1))
            )
        gain = np.stack(gains)
        flat = gain.transpose(1, 0, 2).reshape(len(order), -1)
        best = flat.argmax(axis=1)
        node, side, at = np.arange(len(order)), best // self.count, best % self.count
        went = below[:, node, at] + np.where(side, lost[:, node, at], 0.0)
        column = self.owner[at]
        left = np.zeros((len(order), self.size), dtype=bool)
        chosen = (self.owner == column[:, None]) & (np.arange(self.count) <= at[:, None])
        where = np.nonzero(chosen)
        left[where[0], self.code[order[where]]] = True
        heavy = 2 * went[1] > total[1]  # where none was missing, they go with most rows
        gap = self.missing[column]
        missing_left = np.where(gap >= 0, side == 1, heavy)
        held = np.flatnonzero(gap >= 0)
        left[held, self.code[gap[held]]] = missing_left[held]
        return Splits(flat[node, best], column, self.code[at], left, missing_left, went[0], went[1])

    def _order(self, sums: Floats) -> Ints:
        """Return the codes (M, B) in the order in which they go left: categories by the step they would take alone."""
        order = np.broadcast_to(np.arange(self.count), sums.shape[1:]).copy()
        places = np.flatnonzero(self.names)
        if len(places):
            step = sums[0][:, places] / (sums[1][:, places] + RIDGE)
            key = 3.0 * self.owner[places] + step / (1 + np.abs(step))
            order[:, places] = places[key.argsort(axis=1, kind="stable")]
        return order


def _gain(below: Floats, total: Floats, allowed: Flags) -> Floats:
    """Return what a split gains (M, B) where the sums ``below`` (2, M, B) go left; −inf where it may not be."""
    rest = total[:, :, None] - below
    gain = below[0] ** 2 / (below[1] + RIDGE) + rest[0] ** 2 / (rest[1] + RIDGE)
    gain -= (total[0] ** 2 / (total[1] + RIDGE))[:, None]
    return np.where(allowed & (below[1] >= FEWEST) & (rest[1] >= FEWEST), gain, -np.inf)


def _together(columns: Sequence[CodedColumn]) -> list[list[int]]:
    """Return which columns are counted together: as many as have few codes in all."""
    found: list[list[int]] = []
    width = _CELLS + 1
    for at in sorted(range(len(columns)), key=lambda at: columns[at].size):
        if width * columns[at].size > _CELLS:
            found.append([])
            width = 1
        found[-1].append(at)
        width *= columns[at].size
    return found


def _cells(columns: Sequence[CodedColumn]) -> Ints:
    """Return the code (N,) of each row in all of the columns at once."""
    found = columns[0].code
    for one in columns[1:]:
        found = found * one.size + one.code
    return found
