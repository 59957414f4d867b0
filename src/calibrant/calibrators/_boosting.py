"""Boosting of logits by shallow trees over feature columns, stopped by the log-loss of rows that it has not seen.

Every block of trees is a damped Newton step of the log-loss in function space: with p the probabilities of the logits so far,
scikit-learn's ``HistGradientBoostingRegressor`` fits (y_k − p_k) / h_k with weights h_k = p_k (1 − p_k), a class at a time (for two
classes one is enough), and its trees, shrunk by the rate, are added to the logits (Friedman, Hastie & Tibshirani 2000; Friedman 2001).
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._trees import Trees, joined
from calibrant.errors import MissingExtraError

BLOCK = 10  # trees between two looks at the log-loss's derivatives
RATE = 0.05
RIDGE = 1.0  # Σ h that holds a leaf at 0
FEWEST_IN_LEAF = 20
PATIENCE = 2  # blocks without a lower held-out log-loss
# Σ h of sure rows is tiny, and a step over it would be as large as it is uncertain
_LEAST_CURVATURE = 1e-3
_PARTS = 255  # of a column of numbers
_FARTHEST = 30.0  # log-odds, beyond which they are not told apart


@dataclass(frozen=True)
class BoostRows:
    """Rows to boost on.

    Args:
        x: (N, K) float64 finite logits to start from.
        columns: (N, F) float64 codes.
        odds: (N, C) float64 codes of the log-odds of the classes that have trees.
        known: (N,) bool rows that trees may change.
        labels: (N,) int64.
        weight: (N,) float64.
    """

    x: Tensor
    columns: Tensor
    odds: Tensor
    known: Tensor
    labels: Tensor
    weight: Tensor

    def where(self, rows: Tensor) -> "BoostRows":
        """Return the selected rows."""
        parts = (self.x, self.columns, self.odds, self.known, self.labels, self.weight)
        return BoostRows(*(part[rows] for part in parts))

    def inputs(self, at: int) -> Tensor:
        """Return what the trees of class ``at`` read (N, F + 1)."""
        return torch.cat([self.columns, self.odds[:, at : at + 1]], dim=1)

    def losses(self, change: Tensor) -> Tensor:
        """Return the log-loss (N,) with ``change`` (N, C) added to the logits."""
        return -torch.log_softmax(add(self.x, change), dim=1).gather(1, self.labels[:, None])[:, 0]


@dataclass(frozen=True)
class Settings:
    """How to boost.

    Args:
        depth: Of a tree.
        most: Trees a class.
        categories: (F,) categories of each column, 0 of one of numbers.
    """

    depth: int
    most: int
    categories: tuple[int, ...]


def log_odds(x: Tensor) -> Tensor:
    """Return the log-odds (N, C) of the classes that have trees: of the second of two, or of all."""
    log_p = torch.log_softmax(x, dim=1)
    chosen = log_p[:, 1:] if x.shape[1] == 2 else log_p
    return (chosen - torch.log(-torch.expm1(chosen.clamp_max(-1e-13)))).clamp(-_FARTHEST, _FARTHEST)


def add(x: Tensor, change: Tensor) -> Tensor:
    """Return logits (N, K) with ``change`` (N, C) added to the classes that have trees."""
    return x + change if change.shape[1] == x.shape[1] else torch.cat([x[:, :1], x[:, 1:] + change], dim=1)


class Codes:
    """Columns cut into at most 255 parts once, so that every fit of trees finds its bins made.

    Args:
        columns: (N, F) float64 of numbers; NaN stays.
        text: (F,) which columns hold codes already.
    """

    def __init__(self, columns: Tensor, text: Sequence[bool]) -> None:
        self.edges = [None if names else _edges(column) for column, names in zip(columns.T, text, strict=True)]

    def of(self, columns: Tensor) -> Tensor:
        """Return the codes (N, F) float64."""
        parts = [
            column if edges is None else _coded(column, edges)
            for column, edges in zip(columns.T, self.edges, strict=True)
        ]
        return torch.stack(parts, dim=1)

    def with_last(self, edges: Tensor | None) -> "Codes":
        """Return these columns' parts with those of one more column."""
        both = copy(self)
        both.edges = [*self.edges, edges]
        return both

    def decoded(self, trees: Trees) -> Trees:
        """Return trees over codes as trees over numbers: a code is at most k where the number is at most the k-th edge."""
        threshold = trees.threshold.clone()
        for at, edges in enumerate(self.edges):
            if edges is not None and len(edges):
                here = trees.feature == at
                place = trees.threshold[here].floor().long().clamp(0, len(edges) - 1)
                threshold[here] = edges[place]
        return replace(trees, threshold=threshold)


def _edges(column: Tensor) -> Tensor:
    """Return ascending upper edges of the parts of a column but the last: between its values, or at its quantiles."""
    present = column[~torch.isnan(column)].numpy()
    values = np.unique(present)
    if len(values) > _PARTS:
        values = np.unique(np.quantile(present, np.arange(1, _PARTS) / _PARTS, method="lower"))
        return torch.from_numpy(values)
    return torch.from_numpy((values[:-1] + values[1:]) / 2)


def _coded(column: Tensor, edges: Tensor) -> Tensor:
    code = torch.searchsorted(edges, column.contiguous()).double()
    return torch.where(torch.isnan(column), torch.nan, code)


class Boosting:
    """Trees of every class, and what they add to the rows they are fitted on and to rows held out.

    Args:
        rows: To fit on.
        held: To look at, or None.
        settings: How.
    """

    def __init__(self, rows: BoostRows, held: BoostRows | None, settings: Settings) -> None:
        self.settings = settings
        self.places = [one for one in (rows, held) if one is not None]
        self.change = [torch.zeros_like(one.odds) for one in self.places]
        self.trees: list[list[Trees]] = [[] for _ in range(rows.odds.shape[1])]

    def block(self, count: int) -> Tensor:
        """Add ``count`` trees a class; return the changes (count, n, C) of the held-out rows after each."""
        rows, p = self.places[0], torch.softmax(add(self.places[0].x, self.change[0]), dim=1)
        p = p[:, 1:] if p.shape[1] == 2 else p
        hit = (rows.labels[:, None] == torch.arange(p.shape[1]) + (rows.x.shape[1] == 2)).double()
        path = []
        for at in range(p.shape[1]):
            curvature = (p[:, at] * (1 - p[:, at])).clamp_min(_LEAST_CURVATURE)
            target, weight = (hit[:, at] - p[:, at]) / curvature, rows.weight * curvature
            grown = self._grown(at, target, weight, count)
            self.trees[at].append(grown)
            steps = [grown.values(one.inputs(at), self.settings.depth) * one.known[:, None] for one in self.places]
            path.append(self.change[-1][:, at] + steps[-1].cumsum(dim=1).T)  # (count, n)
            for change, step in zip(self.change, steps, strict=True):
                change[:, at] += step.sum(dim=1)
        return torch.stack(path, dim=2)

    def _grown(self, at: int, target: Tensor, weight: Tensor, count: int) -> Trees:
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError as error:
            raise MissingExtraError("scikit-learn", extra="sklearn") from error
        depth = self.settings.depth
        model = HistGradientBoostingRegressor(
            max_iter=count,
            learning_rate=RATE,
            max_depth=depth,
            max_leaf_nodes=2**depth,
            min_samples_leaf=FEWEST_IN_LEAF,
            l2_regularization=RIDGE,
            categorical_features=None,
            early_stopping=False,
            random_state=0,
        )
        rows = self.places[0]
        inputs = rows.inputs(at)
        ranks = self._ranks(inputs, target * weight, weight)
        for place, rank in enumerate(ranks):
            if rank is not None:
                inputs[:, place] = rank[inputs[:, place].long()]
        chosen = rows.known
        model.fit(inputs[chosen].numpy(), target[chosen].numpy(), sample_weight=weight[chosen].numpy())
        return Trees.of_boosting(model, ranks)

    def _ranks(self, inputs: Tensor, gradient: Tensor, curvature: Tensor) -> list[Tensor | None]:
        """Return the rank of each category by the step it would take alone, as the best split of one column has it (Fisher 1958)."""
        ranks: list[Tensor | None] = [None] * inputs.shape[1]
        for place, categories in enumerate(self.settings.categories):
            if categories:
                code = inputs[:, place].long()
                step, size = (
                    torch.bincount(code, weights=part, minlength=categories) for part in (gradient, curvature)
                )
                ranks[place] = (step / (size + RIDGE)).argsort(stable=True).argsort().double()
        return ranks

    def found(self) -> list[Trees]:
        """Return the trees, class by class."""
        return [joined(blocks) for blocks in self.trees]


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


def boost(rows: BoostRows, fold: Tensor, settings: Settings, *, folds: int, rough: bool) -> tuple[list[Trees], Path]:
    """Return trees, class by class and equally many, and how rows that were held out gained.

    Args:
        rows: All rows.
        fold: (N,) of each row.
        settings: How.
        folds: How many; the number of trees is the one with the least log-loss over all rows, each held out once.
        rough: Hold one fold out only, and leave it out of the fit too.
    """
    runs = []
    for number in range(1 if rough else folds):
        inside = fold == number
        if bool(inside.any()) and not bool(inside.all()):
            runs.append((Boosting(rows.where(~inside), held := rows.where(inside), settings), held))
    classes = 1 if rows.x.shape[1] == 2 else rows.x.shape[1]
    path = _stopped(runs, settings) if runs else Path(torch.zeros(1).double(), torch.ones(1).double(), 1.0)
    count = path.best()
    if not count:
        return [Trees.none() for _ in range(classes)], path
    if rough:
        return [one.first(count) for one in runs[0][0].found()], path
    whole = Boosting(rows, None, settings)
    for size in _sizes(count):
        whole.block(size)
    return whole.found(), path


def _stopped(runs: Sequence[tuple[Boosting, BoostRows]], settings: Settings) -> Path:
    """Boost in all runs at once, until the log-loss of the rows held out has not fallen for a while."""
    plain = [held.losses(torch.zeros_like(run.change[-1])) for run, held in runs]
    gains: list[Tensor] = []
    squares: list[Tensor] = []
    for size in _sizes(settings.most):
        sums = np.zeros((2, size))
        for (run, held), before in zip(runs, plain, strict=True):
            for at, change in enumerate(run.block(size)):
                gain = before - held.losses(change)
                sums[:, at] += [float(held.weight @ gain), float(held.weight @ gain.square())]
        gains.append(torch.from_numpy(sums[0]))
        squares.append(torch.from_numpy(sums[1]))
        if len(gains) - 1 - int(torch.stack([one.max() for one in gains]).argmax()) >= PATIENCE:
            break
    mass = sum(float(held.weight.sum()) for _, held in runs)
    return Path(torch.cat(gains), torch.cat(squares), mass)


def _sizes(count: int) -> Iterator[int]:
    """Yield the sizes of blocks that make ``count`` trees."""
    for start in range(0, count, BLOCK):
        yield min(BLOCK, count - start)
