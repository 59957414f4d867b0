"""Boosting of logits by shallow trees over feature columns, stopped by the log-loss of rows that it has not seen.

Every tree is a damped Newton step of the log-loss in function space: with p the probabilities of the logits so far, g = p_k − y_k and
h = p_k (1 − p_k), a class at a time (for two classes one is enough), shrunk by the rate and added to the logits (Friedman, Hastie &
Tibshirani 2000; Friedman 2001). The fits that leave a fold out each grow side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._growing import CodedColumn, Flags, Grower
from calibrant.calibrators._trees import Trees, joined

RATE = 0.15
PATIENCE = 6  # trees without a lower held-out log-loss
# Σ h of sure rows is tiny, and a step over it would be as large as it is uncertain
_LEAST_CURVATURE = 1e-3
_PARTS = 255  # of a column of numbers
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


def log_odds(x: Tensor) -> Tensor:
    """Return the log-odds (N, C) of the classes that have trees: of the second of two, or of all."""
    log_p = torch.log_softmax(x, dim=1)
    chosen = log_p[:, 1:] if x.shape[1] == 2 else log_p
    return (chosen - torch.log(-torch.expm1(chosen.clamp_max(-1e-13)))).clamp(-_FARTHEST, _FARTHEST)


def add(x: Tensor, change: Tensor) -> Tensor:
    """Return logits (…, K) with ``change`` (…, C) added to the classes that have trees."""
    return x + change if change.shape[-1] == x.shape[-1] else torch.cat([x[..., :1], x[..., 1:] + change], dim=-1)


def edges_of(column: Tensor) -> Tensor:
    """Return ascending upper edges of the at most 255 parts of a column but the last: between its values, or at its quantiles."""
    present = column[~torch.isnan(column)].numpy()
    values = np.unique(present)
    if len(values) > _PARTS:
        values = np.unique(np.quantile(present, np.arange(1, _PARTS) / _PARTS, method="lower"))
        return torch.from_numpy(values)
    return torch.from_numpy((values[:-1] + values[1:]) / 2)


def coded(column: Tensor, edges: Tensor) -> CodedColumn:
    """Return a column (N,) of numbers by the part of each; NaN is a part of its own."""
    missing = torch.isnan(column)
    code = torch.where(missing, len(edges) + 1, torch.searchsorted(edges, column.contiguous()))
    gaps = bool(missing.any())
    return CodedColumn(code.numpy(), len(edges) + 1 + gaps, names=False, missing=gaps)


def decoded(trees: Trees, edges: Sequence[Tensor | None]) -> Trees:
    """Return trees over codes as trees over numbers: a code is at most k where the number is at most the k-th edge.

    Args:
        trees: Over codes.
        edges: Of each column; None of one of names.
    """
    threshold = trees.threshold.clone()
    for at, ends in enumerate(edges):
        if ends is not None:
            here = trees.feature == at
            threshold[here] = torch.cat([ends, ends.new_full((1,), math.inf)])[trees.threshold[here].long()]
    return replace(trees, threshold=threshold)


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
        return [joined(trees[:count]) for trees in self.trees]


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
        """Return how many trees gain most; 0 where that gain is less than its standard error."""
        at = int(self.gain.argmax())
        error = math.sqrt(max(float(self.square[at] - self.gain[at] ** 2 / self.mass), 0.0))
        return at + 1 if float(self.gain[at]) > error else 0


def boost(rows: BoostRows, fold: Tensor, *, depth: int, most: int, folds: int, rough: bool) -> tuple[list[Trees], Path]:
    """Return trees over codes, class by class and equally many, and how rows that were held out gained.

    Args:
        rows: All rows.
        fold: (N,) of each row.
        depth: Of a tree.
        most: Trees a class.
        folds: How many; the number of trees is the one with the least log-loss over all rows, each held out once.
        rough: Hold one fold out only, and leave it out of the fit too.
    """
    held = fold.numpy() == np.arange(1 if rough else folds)[:, None]
    held = held[held.any(axis=1) & ~held.all(axis=1)]
    if not len(held):
        return [Trees.none() for _ in rows.odds], Path(torch.zeros(1).double(), torch.ones(1).double(), 1.0)
    size = max(1, _AT_ONCE // rows.x.numel())
    runs = [Boosting(rows, ~part, depth) for part in np.split(held, range(size, len(held), size))]
    path = _stopped(runs, held, most, keep=rough)
    count = path.best()
    if not count:
        return [Trees.none() for _ in rows.odds], path
    if rough:
        return runs[0].found(count), path
    whole = Boosting(rows, np.ones((1, len(fold)), dtype=bool), depth)
    for _ in range(count):
        whole.step(keep=True)
    return whole.found(count), path


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
        gain = torch.log_softmax(add(x, change), dim=1).gather(1, label)[:, 0] - before
        gains.append(float(weight @ gain))
        squares.append(float(weight @ gain.square()))
        if len(gains) - 1 - int(np.argmax(gains)) >= PATIENCE:
            break
    return Path(torch.tensor(gains).double(), torch.tensor(squares).double(), float(weight.sum()))
