"""Logits moved by shallow trees over features, as far as rows that were held out gain by it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Count, Integer
from calibrant.calibrators.affine.fit import keep_excluded, lift_excluded
from calibrant.calibrators.base.calibrator import ByFeatures
from calibrant.calibrators.base.folds import fold_by_scores
from calibrant.calibrators.features.columns import (
    KnownColumn,
    Names,
    columns_from_json,
    from_bytes,
    known_columns,
    names_of,
    to_buffer,
)
from calibrant.calibrators.features.group_scaling import fit_everyone, surely_gains
from calibrant.data.record import Features
from calibrant.rows import Chunk, RowSource

# Regression trees as plain arrays, applied in PyTorch: nothing is pickled.
_PLACES_AT_ONCE = 1 << 17  # places in trees that rows hold at once: what stays in the cache
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
    def none(cls) -> "Trees":
        """Return no trees."""
        whole, number = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        flags, bits = torch.empty(0, dtype=torch.bool), torch.empty(0, _WORDS, dtype=torch.int64)
        return cls(whole, whole, whole, flags, number, number, whole, bits, whole)

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
        if torch.compiler.is_compiling():  # rows are a symbol there, and parts of them no loop
            return self._values(columns, depth)
        found = columns.new_empty(columns.shape[0], len(self), dtype=torch.float64)
        step = max(1, _PLACES_AT_ONCE // max(1, len(self)))
        for start in range(0, columns.shape[0], step):
            found[start : start + step] = self._values(columns[start : start + step], depth)
        return found

    def _values(self, rows: Tensor, depth: int) -> Tensor:
        node = self.roots.expand(rows.shape[0], -1)
        for _ in range(depth):
            node = self._next(rows, node)
        return self.value[node]

    def _next(self, rows: Tensor, node: Tensor) -> Tensor:
        x = rows.gather(1, self.feature[node])
        low = x <= self.threshold[node]
        if len(self.bits):
            members, code = self.members[node], torch.nan_to_num(x).clamp(0, 32 * _WORDS - 1).long()
            word = self.bits[members.clamp_min(0), code >> 5]
            low = _chosen(members >= 0, (torch.bitwise_right_shift(word, code & 31) & 1).bool(), low)
        low = _chosen(torch.isnan(x), self.missing_left[node], low)
        return torch.where(low, self.left[node], self.right[node])

    def decoded(self, edges: Sequence[Tensor | None]) -> "Trees":
        """Return trees over codes as trees over numbers: a code is at most k where the number is at most the k-th edge.

        Args:
            edges: Of each column; None of one of names.
        """
        threshold = self.threshold.clone()
        for at, ends in enumerate(edges):
            if ends is not None:
                here = self.feature == at
                threshold[here] = torch.cat([ends, ends.new_full((1,), math.inf)])[self.threshold[here].long()]
        return replace(self, threshold=threshold)


def _chosen(where: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return ``torch.where`` of flags, which onnxruntime has for numbers alone."""
    return (where & yes) | (~where & no)


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
        replace(
            part,
            left=part.left + at,
            right=part.right + at,
            members=torch.where(part.members >= 0, part.members + first, -1),
            roots=part.roots + at,
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

RIDGE = 10.0  # λ, in units of Σ h: a leaf, or a category, with Σ h = λ takes half its Newton step
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
        return Trees(*arrays, *[sets, torch.zeros(1, dtype=torch.int64)])


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
        self.cells = [(_joint_code([columns[at] for at in chosen])[row], chosen) for chosen in _together(columns)]
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


def _joint_code(columns: Sequence[CodedColumn]) -> Ints:
    """Return the code (N,) of each row in all of the columns at once."""
    found = columns[0].code
    for one in columns[1:]:
        found = found * one.size + one.code
    return found


# Boosting of logits by shallow trees over feature columns, stopped by the log-loss of rows that it has not seen.
#
# Every tree is a damped Newton step of the log-loss in function space: with p the probabilities of the logits so far, g = p_k − y_k and
# h = p_k (1 − p_k), a class at a time (for two classes one is enough), shrunk by the rate and added to the logits (Friedman, Hastie &
# Tibshirani 2000; Friedman 2001). The fits that leave a fold out each grow side by side.

RATE = 0.15
PATIENCE = 6  # trees without a lower held-out log-loss
# Σ h of sure rows is tiny, and a step over it would be as large as it is uncertain
_LEAST_CURVATURE = 1e-3
_EDGE_PARTS = 255  # of a column of numbers
_FARTHEST = 30.0  # log-odds, beyond which they are not told apart
_AT_ONCE = 1 << 23  # probabilities of all fits that are held


@dataclass(frozen=True)
class BoostRows:
    """Rows to boost on.

    Args:
        x: (N, K) float64 finite logits to start from.
        columns: Feature columns.
        odds: The log-odds of each class that has trees.
        labels: (N,) int64.
        weight: (N,) float64.
    """

    x: Tensor
    columns: tuple[CodedColumn, ...]
    odds: tuple[CodedColumn, ...]
    labels: Tensor
    weight: Tensor

    def inputs(self, at: int) -> list[CodedColumn]:
        """Return what the trees of class ``at`` read."""
        return [*self.columns, self.odds[at]]

    def boost(self, fold: Tensor, *, depth: int, most: int, folds: int, rough: bool) -> "tuple[list[Trees], Path]":
        """Return trees over codes, class by class and equally many, and how rows that were held out gained.

        Args:
            fold: (N,) of each row.
            depth: Of a tree.
            most: Trees a class.
            folds: How many; the number of trees is the one with the least log-loss over all rows, each held out once.
            rough: Hold one fold out only, and leave it out of the fit too.
        """
        held = fold.numpy() == np.arange(1 if rough else folds)[:, None]
        held = held[held.any(axis=1) & ~held.all(axis=1)]
        if not len(held):
            return [Trees.none() for _ in self.odds], Path(torch.zeros(1).double(), torch.ones(1).double(), 1.0)
        size = max(1, _AT_ONCE // self.x.numel())
        runs = [Boosting(self, ~part, depth) for part in np.split(held, range(size, len(held), size))]
        path = _stopped(runs, held, most, keep=rough)
        count = path.best()
        if not count:
            return [Trees.none() for _ in self.odds], path
        if rough:
            return runs[0].found(count), path
        whole = Boosting(self, np.ones((1, len(fold)), dtype=bool), depth)
        for _ in range(count):
            whole.step(keep=True)
        return whole.found(count), path


def class_log_odds(x: Tensor) -> Tensor:
    """Return the log-odds (N, C) of the classes that have trees: of the second of two, or of all."""
    log_p = torch.log_softmax(x, dim=1)
    chosen = log_p[:, 1:] if x.shape[1] == 2 else log_p
    return (chosen - torch.log(-torch.expm1(chosen.clamp_max(-1e-13)))).clamp(-_FARTHEST, _FARTHEST)


def with_change(x: Tensor, change: Tensor) -> Tensor:
    """Return logits (…, K) with ``change`` (…, C) added to the classes that have trees."""
    return x + change if change.shape[-1] == x.shape[-1] else torch.cat([x[..., :1], x[..., 1:] + change], dim=-1)


def part_edges(column: Tensor) -> Tensor:
    """Return ascending upper edges of the at most 255 parts of a column but the last: between its values, or those at its quantiles.

    Never at a value: rounding in another program would send a row of the fit to the other side.
    """
    present = column[~torch.isnan(column)].numpy()
    values = np.unique(present)
    below = np.arange(len(values) - 1)
    if len(values) > _EDGE_PARTS:
        cuts = np.quantile(present, np.arange(1, _EDGE_PARTS) / _EDGE_PARTS, method="lower")
        below = np.unique(np.searchsorted(values, cuts).clip(max=len(values) - 2))
    return torch.from_numpy((values[below] + values[below + 1]) / 2)


def coded_by_part(column: Tensor, edges: Tensor) -> CodedColumn:
    """Return a column (N,) of numbers by the part of each; NaN is a part of its own."""
    missing = torch.isnan(column)
    code = torch.where(missing, len(edges) + 1, torch.searchsorted(edges, column.contiguous()))
    gaps = bool(missing.any())
    return CodedColumn(code.numpy(), len(edges) + 1 + gaps, names=False, missing=gaps)


class Boosting:
    """Fits that grow side by side: what their trees add to all rows.

    Args:
        rows: All rows.
        inside: (P, N) which of them each fit sees.
        depth: Of a tree.
    """

    def __init__(self, rows: BoostRows, inside: Flags, depth: int) -> None:
        self.rows, self.depth = rows, depth
        self.change = torch.zeros(*inside.shape, len(rows.odds), dtype=torch.float64)
        self.growers = [Grower(rows.inputs(at), inside) for at in range(len(rows.odds))]
        self.hit = (rows.labels[:, None] == torch.arange(len(rows.odds)) + (rows.x.shape[1] == 2)).double()
        self.trees: list[list[Trees]] = [[] for _ in rows.odds]

    def step(self, *, keep: bool = False) -> None:
        """Add a tree a class to each fit, and keep those of the first if it is asked."""
        p = self._probabilities()
        for at, grower in enumerate(self.growers):
            error = (p[:, :, at] - self.hit[:, at]) * self.rows.weight
            curvature = (p[:, :, at] * (1 - p[:, :, at])).clamp_min(_LEAST_CURVATURE) * self.rows.weight
            grown, step = grower.grow(error.numpy(), curvature.numpy(), depth=self.depth)
            self.change[:, :, at] += RATE * torch.from_numpy(step)
            if keep:
                tree = grown.tree(0, grower.columns)
                self.trees[at].append(replace(tree, value=RATE * tree.value))

    def _probabilities(self) -> Tensor:
        """Return those of the classes that have trees (P, N, C)."""
        x = self.rows.x
        if x.shape[1] == 2:
            return torch.sigmoid(self.change + (x[:, 1:] - x[:, :1]))
        return torch.softmax(x + self.change, dim=2)

    def found(self, count: int) -> list[Trees]:
        """Return the first ``count`` trees that were kept, class by class."""
        return [joined_trees(trees[:count]) for trees in self.trees]


@dataclass(frozen=True)
class Path:
    """Held-out gain in log-loss after every tree.

    Args:
        gain: (T,) Σ w gain.
        square: (T,) Σ w gain².
        mass: Σ w.
    """

    gain: Tensor
    square: Tensor
    mass: float

    def best(self) -> int:
        """Return how many trees gain most; 0 where that gain is less than two standard errors."""
        at = int(self.gain.argmax())
        return at + 1 if surely_gains(float(self.gain[at]), float(self.square[at]), self.mass) else 0


def _stopped(runs: Sequence[Boosting], held: Flags, most: int, *, keep: bool) -> Path:
    """Add trees to all fits until the log-loss of the rows held out has not fallen for a while."""
    rows = runs[0].rows
    fit, place = np.nonzero(held)
    label, weight = rows.labels[place][:, None], rows.weight[place]
    x = rows.x[place]
    before = torch.log_softmax(x, dim=1).gather(1, label)[:, 0]
    gains: list[float] = []
    squares: list[float] = []
    for _ in range(most):
        for run in runs:
            run.step(keep=keep)
        change = torch.cat([run.change for run in runs])[fit, place]
        gain = torch.log_softmax(with_change(x, change), dim=1).gather(1, label)[:, 0] - before
        gains.append(float(weight @ gain))
        squares.append(float(weight @ gain.square()))
        if len(gains) - 1 - int(np.argmax(gains)) >= PATIENCE:
            break
    return Path(torch.tensor(gains).double(), torch.tensor(squares).double(), float(weight.sum()))


# Feature columns as trees read them: names by the code of their category, numbers as they are.

MOST_CATEGORIES = 255  # of one column: what a tree's split can part


def tree_columns(rows: RowSource, names: Sequence[str]) -> list[KnownColumn]:
    """Return the columns ``names`` of the rows, with the categories of those that hold names.

    Raises:
        InputError: If a column is missing or has too many categories.
    """
    made = known_columns(rows, names, whole=False)
    for one in made:
        if len(one) > MOST_CATEGORIES:
            remedy = "merge rare ones, leave that column out, or pass a number in its place"
            raise refuse(f"at most {MOST_CATEGORIES} names in the feature {one.name!r}", f"{len(one)}", remedy)
    return made


def tree_inputs(columns: Sequence[KnownColumn], features: Features, rows: int) -> tuple[Tensor, Tensor]:
    """Return the columns (N, F) float64, names by their codes, and the rows (N,) of which every name was in the fit."""
    values, seen = [], torch.ones(rows, dtype=torch.bool)
    for one in columns:
        if one.values is None:
            values.append(one.numbers(features, rows, missing=True).cpu())
        else:
            code = one.codes(features, rows)
            seen &= code < len(one)
            values.append(code.clamp_max(len(one) - 1).double())
    return torch.stack(values, dim=1), seen


_MOST_CLASSES = 50  # each has trees of its own
_DEEPEST = 8
_MANY = 20_000  # rows, beyond which three folds say how many trees gain


class BoostedScaling(ByFeatures):
    """softmax(x + Σ_t f_t), x = z/T + b: one temperature and bias for all, moved by shallow trees f over features and scores.

    The trees part rows by feature columns and by the class's own log-odds, so that what is wrong in an intersection of groups, along
    a number, or in a group at some confidences alone, is found without being named. T and b are fitted on
    all rows first: neither, T, both, or both with a T of each class, whatever gains 4 nats a parameter. Trees
    are Newton steps of the log-loss, shrunk to 15 %; their number is the one with the least log-loss on rows that
    a fit has not seen, and where that gains no more than two standard errors there are none (``trees`` is 0).

    Columns of names are categories; numbers are cut at thresholds, and NaN is missing. Rows with a name that the fit has not
    seen, and rows without features, get the global fit. All rows are needed in memory at once.

    Args:
        columns: Names of the feature columns; None takes all.
        depth: Of a tree, 1 to 8: how many columns may act together.
        most_trees: Of a class, at which growing ends in any case.
        folds: Of the choice, ≥ 2; None takes 5, and 3 beyond 20,000 rows. A row's fold depends on its content alone, and rows of one
            cluster share it.

    Attributes:
        temperature: The global T, of the mean slope where classes have their own.
        trees: Trees a class.
        gain: Mean log-loss that rows gained from the trees of a fit that had not seen them, in nats.

    Examples:
        >>> import numpy as np
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import NLL
        >>> rng = np.random.default_rng(0)
        >>> z, age, site = rng.normal(size=2000), rng.uniform(20, 80, 2000), rng.choice(["a", "b"], 2000)
        >>> chance = 1 / (1 + np.exp(-z - 3 * ((age > 50) & (site == "b"))))
        >>> y = (rng.random(2000) < chance).astype(int)
        >>> data = Predictions.from_binary_logits(z, y, features={"age": age, "site": site})
        >>> fitted = BoostedScaling(folds=2).fit(data[:1000])
        >>> bool(NLL()(data[1000:].calibrated_by(fitted)) < NLL()(data[1000:]) - 0.02)
        True

    References:
        Friedman 2001 (gradient boosting); Friedman, Hastie & Tibshirani 2000 (Newton steps); Hébert-Johnson et al. 2018,
        Multicalibration; Tax et al. 2025 (boosting with the score as a feature).
    """

    slope: Tensor
    bias: Tensor
    columns_: Tensor
    held_out_gain: Tensor

    def __init__(
        self,
        columns: Names | None = None,
        *,
        depth: Annotated[int, Integer(1, _DEEPEST)] = 5,
        most_trees: Count = 300,
        folds: Annotated[int, Integer(2)] | None = None,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.depth = depth
        self.most_trees = most_trees
        self.folds = folds
        self._keep(Trees.none())
        self._trees, self._steps = Trees.none(), 0

    def _keep(self, trees: Trees) -> None:
        for name in BUFFERS:
            self.register_buffer(f"tree_{name}", getattr(trees, name))

    def _learned_columns(self) -> list[KnownColumn]:
        return columns_from_json(from_bytes(self.columns_))

    def _update_facts(self) -> None:
        super()._update_facts()
        self._trees = Trees(*(getattr(self, f"tree_{name}") for name in BUFFERS))
        self._steps = self._trees.depth()
        classes = 1 if self._columns == 2 else self._columns
        if self._steps > self.depth or (self.fitted and len(self._trees) % classes):
            raise ValueError("trees that are deeper than was said, or not equally many for every class")
        if len(self._trees) and int(self._trees.feature.max()) > len(self._known):
            raise ValueError("trees over a column that is not there")

    @property
    def temperature(self) -> float:
        """The global T; NaN before ``fit``."""
        return 1 / float(self.slope.mean()) if self.fitted else math.nan

    @property
    def trees(self) -> int:
        """Trees a class; 0 before ``fit``."""
        return len(self._trees) // (1 if self._columns == 2 else self._columns) if self.fitted else 0

    @property
    def gain(self) -> float:
        """Mean held-out gain of the trees in nats, 0 without trees; NaN before ``fit``."""
        return float(self.held_out_gain) if self.fitted else math.nan

    def learned(self) -> str:
        """Return the global temperature, and how many trees there are for what gain."""
        return f"temperature={self.temperature:.4g}, trees={self.trees}, gain={self.gain:.2g}"

    def _fit(self, rows: RowSource) -> None:
        if rows.classes > _MOST_CLASSES:
            remedy = "use GroupScaling, which pools the groups"
            raise refuse(f"at most {_MOST_CLASSES} classes for trees of each class", str(rows.classes), remedy)
        names = self.columns if self.columns is not None else names_of(rows)
        known = tree_columns(rows, names) if names else []
        slope, bias, _ = fit_everyone(rows, rows.mass, biased=True)
        of_class, gain = [Trees.none()], 0.0
        if known:
            chunk = rows.gathered(why="trees over features")
            of_class, gain = self._grown(chunk, known, slope, bias, rough=rows.rough)
        self.slope, self.bias = slope, bias
        self.columns_ = to_buffer(known if len(of_class[0]) else []).to(rows.device)
        self.held_out_gain = torch.tensor(gain, dtype=torch.float64, device=rows.device)
        whole = joined_trees(of_class)
        for name in BUFFERS:
            setattr(self, f"tree_{name}", getattr(whole, name).to(rows.device))

    def _grown(
        self, chunk: Chunk, known: Sequence[KnownColumn], slope: Tensor, bias: Tensor, *, rough: bool
    ) -> tuple[list[Trees], float]:
        """Return the trees of each class, and their mean held-out gain."""
        columns, _ = tree_inputs(known, chunk.features, len(chunk))
        x = (lift_excluded(chunk.logits.double()) * slope + bias).cpu()
        odds = class_log_odds(x)
        edges = [
            part_edges(column) if one.values is None else None for one, column in zip(known, columns.T, strict=True)
        ]
        cuts = [part_edges(column) for column in odds.T]
        rows = BoostRows(
            x,
            tuple(
                CodedColumn(column.long().numpy(), len(one), names=True)
                if ends is None
                else coded_by_part(column, ends)
                for one, column, ends in zip(known, columns.T, edges, strict=True)
            ),
            tuple(coded_by_part(column, ends) for column, ends in zip(odds.T, cuts, strict=True)),
            chunk.labels.cpu(),
            chunk.weights.cpu(),
        )
        codes = torch.stack([torch.from_numpy(one.code) for one in rows.columns], dim=1)
        folds = self.folds or (5 if len(chunk) <= _MANY else 3)
        fold = fold_by_scores(chunk, folds, codes).cpu()
        of_class, path = rows.boost(fold, depth=self.depth, most=self.most_trees, folds=folds, rough=rough)
        made = [trees.decoded([*edges, cuts[at]]) for at, trees in enumerate(of_class)]
        return made, float(path.gain.max()) / path.mass if len(made[0]) else 0.0

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        # of the fit for all rows, in float64: trees part rows by them
        x = lift_excluded(logits.double()) * self.slope + self.bias
        if features is not None and self._known:
            columns, seen = (part.to(x.device) for part in tree_inputs(self._known, features, x.shape[0]))
            x = with_change(x, self._change(columns, class_log_odds(x)) * seen[:, None])
        return keep_excluded(x, logits)

    def _change(self, columns: Tensor, odds: Tensor) -> Tensor:
        """Return what the trees add (N, C)."""
        change, each = torch.zeros_like(odds), self.trees
        for at in range(odds.shape[1]):
            own = self._trees.roots[at * each : (at + 1) * each]
            inputs = torch.cat([columns, odds[:, at : at + 1]], dim=1)
            change[:, at] = replace(self._trees, roots=own).values(inputs, self._steps).sum(dim=1)
        return change
