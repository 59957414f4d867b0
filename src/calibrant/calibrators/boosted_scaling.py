"""Logits moved by shallow trees over features, as far as rows that were held out gain by it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calibrant._core.check import check_count, refuse
from calibrant.calibrators._affine import keep_excluded, lift_excluded
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._boosting import BoostRows, add, boost, coded, decoded, edges_of, log_odds
from calibrant.calibrators._chunks import check_label_logits
from calibrant.calibrators._folds import fold_by_scores
from calibrant.calibrators._global_fit import fit_everyone
from calibrant.calibrators._groups import check_names, feature_names, same_names
from calibrant.calibrators._growing import CodedColumn
from calibrant.calibrators._tree_columns import TreeColumn, from_buffer, read_columns, to_buffer, tree_columns
from calibrant.calibrators._trees import BUFFERS, Trees, joined
from calibrant.data.record import Features
from calibrant.rows import Chunk, RowSource

__all__ = ["BoostedScaling"]

_MOST_CLASSES = 50  # each has trees of its own
_DEEPEST = 8
_MANY = 20_000  # rows, beyond which three folds say how many trees gain


class BoostedScaling(Calibrator):
    """softmax(x + Σ_t f_t), x = z/T + b: one temperature and bias for all, moved by shallow trees f over features and scores.

    The trees part rows by feature columns and by the class's own log-odds, so that what is wrong in an intersection of groups, along
    a number, or in a group at some confidences alone, is found without being named. T and b are fitted on
    all rows first: neither, T, both, or both with a T of each class, whatever gains 2 nats a parameter. Trees
    are Newton steps of the log-loss, shrunk to 15 %; their number is the one with the least log-loss on rows that
    a fit has not seen, and where that gains no more than its standard error there are none (``trees`` is 0).

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

    preserves_argmax = False
    needs_features = True

    slope: Tensor
    bias: Tensor
    columns_: Tensor
    held_out_gain: Tensor

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        *,
        depth: int = 5,
        most_trees: int = 300,
        folds: int | None = None,
    ) -> None:
        super().__init__()
        self.columns = check_names(columns)
        self.depth = check_count(depth, name="depth", high=_DEEPEST)
        self.most_trees = check_count(most_trees, name="most_trees")
        self.folds = None if folds is None else check_count(folds, name="folds", low=2)
        self._declare("slope", "bias", "held_out_gain")
        self.register_buffer("columns_", torch.empty(0, dtype=torch.uint8))
        self._keep(Trees.none())
        self._known: tuple[TreeColumn, ...] = ()
        self._trees, self._steps = Trees.none(), 0

    def _keep(self, trees: Trees) -> None:
        for name in BUFFERS:
            self.register_buffer(f"tree_{name}", getattr(trees, name))

    def _update_facts(self) -> None:
        self._known = from_buffer(self.columns_)
        self.needs_features = bool(self._known) or not self.fitted
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
        rows.total(_checked)
        if rows.classes > _MOST_CLASSES:
            remedy = "use GroupScaling, which pools the groups"
            raise refuse(f"at most {_MOST_CLASSES} classes for trees of each class", str(rows.classes), remedy)
        names = self.columns if self.columns is not None else rows.fold(feature_names, same_names)
        known = tree_columns(rows, names) if names else ()
        slope, bias, _ = fit_everyone(rows, rows.mass, biased=True)
        of_class, gain = [Trees.none()], 0.0
        if known:
            chunk = rows.gathered(why="trees over features")
            of_class, gain = self._grown(chunk, known, slope, bias, rough=rows.rough)
        self.slope, self.bias = slope, bias
        self.columns_ = to_buffer(known if len(of_class[0]) else ()).to(rows.device)
        self.held_out_gain = torch.tensor(gain, dtype=torch.float64, device=rows.device)
        whole = joined(of_class)
        for name in BUFFERS:
            setattr(self, f"tree_{name}", getattr(whole, name).to(rows.device))

    def _grown(
        self, chunk: Chunk, known: Sequence[TreeColumn], slope: Tensor, bias: Tensor, *, rough: bool
    ) -> tuple[list[Trees], float]:
        """Return the trees of each class, and their mean held-out gain."""
        columns, _ = read_columns(known, chunk.features)
        x = (lift_excluded(chunk.logits.double()) * slope + bias).cpu()
        odds = log_odds(x)
        edges = [edges_of(column) if one.values is None else None for one, column in zip(known, columns.T, strict=True)]
        cuts = [edges_of(column) for column in odds.T]
        rows = BoostRows(
            x,
            tuple(_coded(*parts) for parts in zip(known, columns.T, edges, strict=True)),
            tuple(coded(column, ends) for column, ends in zip(odds.T, cuts, strict=True)),
            chunk.labels.cpu(),
            chunk.weights.cpu(),
        )
        codes = torch.stack([torch.from_numpy(one.code) for one in rows.columns], dim=1)
        folds = self.folds or (5 if len(chunk) <= _MANY else 3)
        fold = fold_by_scores(chunk, folds, codes).cpu()
        of_class, path = boost(rows, fold, depth=self.depth, most=self.most_trees, folds=folds, rough=rough)
        made = [decoded(trees, [*edges, cuts[at]]) for at, trees in enumerate(of_class)]
        return made, float(path.gain.max()) / path.mass if len(made[0]) else 0.0

    def _transform(self, logits: Tensor) -> Tensor:
        return keep_excluded(self._pooled(logits), logits)

    def _transform_with(self, logits: Tensor, features: Features) -> Tensor:
        x = self._pooled(logits)
        if self._known:
            columns, seen = (part.to(x.device) for part in read_columns(self._known, features))
            if len(columns) != len(x):
                raise refuse(f"features of {len(x)} rows", str(len(columns)), "pass the features of the same rows")
            x = add(x, self._change(columns, log_odds(x)) * seen[:, None])
        return keep_excluded(x, logits)

    def _pooled(self, logits: Tensor) -> Tensor:
        """Return the logits (N, K) of the global fit, in float64: trees part rows by them."""
        return lift_excluded(logits.double()) * self.slope + self.bias

    def _change(self, columns: Tensor, odds: Tensor) -> Tensor:
        """Return what the trees add (N, C)."""
        change, each = torch.zeros_like(odds), self.trees
        for at in range(odds.shape[1]):
            own = self._trees.roots[at * each : (at + 1) * each]
            inputs = torch.cat([columns, odds[:, at : at + 1]], dim=1)
            change[:, at] = replace(self._trees, roots=own).values(inputs, self._steps).sum(dim=1)
        return change


def _coded(known: TreeColumn, column: Tensor, edges: Tensor | None) -> CodedColumn:
    """Return a column as codes: of a category its number, of a number the part that it is in."""
    if edges is not None:
        return coded(column, edges)
    return CodedColumn(column.long().numpy(), len(known.values or ()), names=True)


def _checked(chunk: Chunk) -> Tensor:
    check_label_logits(chunk)
    return torch.zeros((), dtype=torch.float64)
