"""The figures an audit estimates: the value of each row for each possible label, and what the probabilities expect of it.

A figure is the mean over the pool of f(x, y), such as whether the decision is correct, or is made of such means. Only f of the
labelled rows is known; of every row the probabilities p(· | x) give the expectation m(x) = Σ_k p_k f(x, k) and the standard
deviation s(x). The first is the control variate of the estimate, the second says where labels are worth most.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_choice, refuse, shown
from calibrant._core.numerics import row_chunks
from calibrant.data.checks import Data
from calibrant.data.predictions import BinaryPairs, Events, Predictions
from calibrant.errors import InputError
from calibrant.statistics.labelled import Floats, Integers

MEANS = ("accuracy", "error", "nll", "brier", "cost", "aurc")
BINNED = ("ece", "event-ece", "classwise-ece")
ABSOLUTE = ("cost-gap", *BINNED)  # of means of all rows, or of those of each bin
FIGURES = (*MEANS, *ABSOLUTE)
AIMS = (*FIGURES, "worst group")
_SYNONYMS = {
    "log-loss": "nll",
    "log_loss": "nll",
    "worst_group": "worst group",
    "gate": "accuracy",
    "difference": "accuracy",
}
_OF_CLASSES = ("nll", "brier", "cost", "cost-gap", "classwise-ece", "event-ece")
_MOST_CLASSES = 100  # of which each takes two passes over the pool
_LABEL = "label "  # the mean of whether the label is the class of that number
# A class that the probabilities hold for less likely than this bounds no loss: its value would be that of a label that
# nobody expects once in a thousand rows, and one such row in the pool would widen every interval.
_UNLIKELY = 1e-3
_FLATTER = 4.0  # the temperature, on top of that of the probabilities, at which the log-loss spreads if they are wrong
_FACTOR, _STEPS = 1.05, 40  # temperatures from 1.05^-40 = .14 to 7, and some steps beyond where these are the best


def figure_of(name: Any, *, argument: str, choices: Sequence[str] = FIGURES) -> str:
    """Return the canonical name of a figure or aim.

    Raises:
        InputError: If there is none of that name.
    """
    if not isinstance(name, str):
        raise refuse(f"{argument} as a name", shown(name), f"name one of {', '.join(choices)}")
    return check_choice(_SYNONYMS.get(name.lower(), name.lower()), name=argument, choices=choices)


@runtime_checkable
class InShards(Protocol):
    """Rows larger than memory, such as ``calibrant.scale.rows.ParquetRows``; a test against a protocol is slow: ask for ``Data``."""

    shards: Any
    classes: int

    @property
    def rows(self) -> int:
        """N."""

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""

    def pieces(self, shard: Any, *, share: int = 1) -> Iterator[tuple[Any, Predictions]]:
        """Yield the rows of a shard in order, in pieces that fit in memory."""


def pieces_of(model: InShards, rows: Integers) -> Iterator[tuple[Integers, Integers, Any, Predictions]]:
    """Yield of each piece that holds some of ``rows``: their places among ``rows``, their numbers in it, its batch and predictions.

    A shard that holds a row is read once, others are not.
    """
    order, first = np.argsort(rows, kind="stable"), 0
    ascending = rows[order]
    for shard in model.shards:
        low, high = np.searchsorted(ascending, [first, first + shard.rows])
        at = first
        for batch, piece in model.pieces(shard) if low < high else ():
            start, end = np.searchsorted(ascending, [at, at + len(piece)])
            if start < end:
                yield order[start:end], ascending[start:end] - at, batch, piece
            at += len(piece)
        first += shard.rows


@dataclass(frozen=True)
class Outlook:
    """What is known of a figure f before labels: for each of N rows.

    Args:
        mean: (N,) m(x).
        spread: (N,) s(x).
        decided: (N,) the predicted class; None for pairs without classes, and for two models.
        flat: (N,) s(x) under much flatter probabilities, of the log-loss where a draw is to be designed.
    """

    mean: Floats
    spread: Floats
    decided: NDArray[np.int32] | None = None
    flat: Floats | None = None


@dataclass(frozen=True)
class Pool:
    """Rows without labels: the model that is audited, and optionally a second one that it is compared with.

    Args:
        model: The rows, in memory or streamed from Parquet files; their labels, if any, are not read.
        other: The second model's predictions of the same rows, or None. A figure is then that of ``model`` minus its.
        costs: costs[label][action], for the figure "cost"; None makes each error cost 1.
        others: Name → predictions of several models; an audit compares ``model`` with each.
        risks: Of each model (N,) what an error of each row adds to N times its area under the risk–coverage curve, for "aurc".
    """

    model: Data | InShards
    other: Data | None = None
    costs: Tensor | None = None
    others: Mapping[str, Data] = field(default_factory=dict)
    risks: tuple[Floats, ...] = ()

    def __len__(self) -> int:
        return self.model.rows if not isinstance(self.model, Data) else len(self.model)

    @property
    def compared(self) -> dict[str, "Pool"]:
        """The pool of each comparison, by what is put after a figure's name."""
        each = {f" minus {name}": replace(self, other=one, others={}) for name, one in self.others.items()}
        return each or {"": self}

    @property
    def alone(self) -> tuple["Pool", ...]:
        """The pool of each of its models by itself."""
        second = () if self.other is None else (replace(self, model=self.other, other=None),)
        return replace(self, other=None), *second

    def ranked(self, members: NDArray[np.bool_] | None = None) -> "Pool":
        """Return the pool with the ``risks`` of ``members``, a mask (N,), or of all rows."""
        among = np.ones(len(self), bool) if members is None else members
        risks = tuple(np.zeros(len(self)) for _ in self.alone)
        for found, model in zip(risks, self.alone, strict=True):
            confidence = np.concatenate([piece.held.confidence.cpu().double().numpy() for piece in model._pieces()])
            found[among] = _risks(confidence[among])
        return replace(self, risks=risks)

    @property
    def classes(self) -> int | None:
        """K; 2 where the labels are whether an answer is right, None for top-label pairs, whose labels are any class."""
        if isinstance(self.model, BinaryPairs):
            return 2 if self.model.predicted is None else None
        return self.model.classes

    def means(self, figure: str) -> list[str]:
        """Return the means that a figure is made of, for ``outlook``, ``values`` and ``bounds``: itself, or of each class one.

        Raises:
            InputError: If the figure needs classes that the rows do not have.
        """
        model = self.model
        if isinstance(model, BinaryPairs):
            events = isinstance(model, Events)
            if events and figure != "event-ece":
                remedy = "audit the event-ece, or make pairs of decisions by BinaryPairs.from_decisions"
                raise refuse(f"decisions, right or wrong, for {figure}", "events with probabilities", remedy)
            if figure in _OF_CLASSES and not events:
                expected = f"probabilities of all classes for {figure}"
                raise refuse(expected, "top-label confidences", "audit the accuracy")
        elif figure == "event-ece" and model.classes != 2:
            remedy = "audit the ece, of the decision's confidence, or the classwise-ece"
            raise refuse("two classes for event-ece", str(model.classes), remedy)
        elif figure == "classwise-ece":
            if model.classes > _MOST_CLASSES:
                raise refuse(f"at most {_MOST_CLASSES} classes for {figure}", str(model.classes), "audit the ece")
            return [f"{_LABEL}{number}" for number in range(model.classes)]
        return [{"ece": "accuracy", "event-ece": f"{_LABEL}1"}.get(figure, figure)]

    def outlook(self, figure: str, *, temperature: float = 1.0, design: bool = False) -> Outlook:
        """Return what the probabilities expect of ``figure``; their log-odds are divided by ``temperature``.

        The temperature changes what is expected, not the figure: it is that of the rows as they were given.

        Args:
            figure: One of ``means``.
            temperature: Above 0.
            design: Whether a draw is designed by it.

        Raises:
            InputError: If the figure is infinite for some label.
        """
        count, at = len(self), 0
        decided = None if self.other is not None or isinstance(self.model, BinaryPairs) else np.empty(count, np.int32)
        flat = np.empty(count) if design and figure == "nll" else None
        whole = Outlook(np.empty(count), np.empty(count), decided, flat)
        for pool in self._pieces():
            part = slice(at, at := at + len(pool))
            whole.mean[part], whole.spread[part] = pool._moments(figure, temperature)
            if flat is not None:
                flat[part] = pool._moments(figure, _FLATTER * temperature)[1]
            if decided is not None and (predicted := pool.held.predicted) is not None:
                decided[part] = predicted.cpu().numpy()
        if figure == "nll" and self.other is None and not whole.mean.any():  # what is certain of every row
            raise _infinite(figure)
        return whole

    def bounds(self, figure: str, rows: Integers, *, temperature: float = 1.0) -> tuple[Floats, Floats]:
        """Return the smallest and the largest value of ``figure`` over the possible labels of ``rows``."""
        values, probs, possible = self.select(rows)._table(figure, temperature)
        low, high = values.amin(dim=1), values.amax(dim=1)
        if figure == "nll":  # unbounded: what the model holds for possible bounds it
            likely = possible & (probs >= torch.minimum(torch.tensor(_UNLIKELY), probs.topk(2, dim=1).values[:, 1:]))
            low = torch.where(likely, values, torch.inf).amin(dim=1)
            high = torch.where(likely, values, -torch.inf).amax(dim=1)
        return np.asarray(low.numpy()), np.asarray(high.numpy())

    def simulated(self, figure: str, rows: Integers, rng: np.random.Generator) -> Floats:
        """Return f of ``rows`` for labels drawn from their probabilities."""
        values, probs, _ = self.select(rows)._table(figure, 1.0)
        ends = probs.cumsum(dim=1)
        picked = torch.searchsorted(ends, torch.from_numpy(rng.random(len(rows)))[:, None] * ends[:, -1:], right=True)
        return np.asarray(values.gather(1, picked.clamp_max(values.shape[1] - 1))[:, 0].numpy())

    def select(self, rows: Integers) -> "Pool":
        """Return the pool of some rows, in memory and in this order."""
        if isinstance(self.model, Data):
            return self._part(self.model[torch.from_numpy(rows)], rows)
        found = [(places, piece[torch.from_numpy(inside)]) for places, inside, _, piece in pieces_of(self.model, rows)]
        back = np.argsort(np.concatenate([places for places, _ in found]))
        return self._part(Predictions.cat([part for _, part in found])[torch.from_numpy(back)], rows)

    def _part(self, model: Data, rows: slice | Integers) -> "Pool":
        """Return the pool of some rows, which are ``model`` of the first model."""
        at = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        other = None if self.other is None else self.other[at]
        return replace(self, model=model, other=other, risks=tuple(one[rows] for one in self.risks))

    def feature(self, name: str) -> NDArray[Any] | None:
        """Return a feature of every row; None if the pool has none of that name."""
        parts = [(piece.held.features or {}).get(name) for piece in self._pieces()]
        return None if any(part is None for part in parts) else np.concatenate([np.asarray(part) for part in parts])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of its features."""
        return tuple(next(self._pieces()).held.features or ())

    def digest(self) -> str:
        """Return 32 hexadecimal digits that change when a score changes."""
        found = blake2b(digest_size=16)
        for pool in self.alone:
            found.update(repr((len(self), self._width)).encode())
            for piece in pool._pieces():
                found.update(_probs_or_logits(piece.held).detach().cpu().float().contiguous().numpy().tobytes())
        return found.hexdigest()

    def fitted_temperature(self, rows: Integers, labels: Integers) -> float:
        """Return the temperature at which the labels of ``rows`` are likeliest, with a weak prior for 1.

        It is one number from a grid of factors 1.05: it sharpens what is expected of the other rows, and no more is needed.
        """
        model = self.alone[0].select(rows)
        at = model._places(labels)

        def loss(step: int) -> float:
            t = step * math.log(_FACTOR)
            return float(-_probs(model.held, math.exp(t)).gather(1, at).clamp_min(1e-30).log().sum()) + 2 * t * t

        # The log-loss is convex in the inverse temperature: a coarse grid brackets the best step, finer ones find it.
        best = 0
        for width, stride in ((_STEPS, 8), (6, 2), (1, 1)):
            best = min((at_step for at_step in range(best - width, best + width + 1, stride)), key=loss)
        return float(_FACTOR**best)

    def values(self, figure: str, rows: Integers, labels: Integers) -> Floats:
        """Return f(x, y) of the labelled ``rows``."""
        chosen = self.select(rows)
        found = chosen._values(figure)
        if not torch.isfinite(picked := found.gather(1, chosen._places(labels))[:, 0]).all():
            raise _infinite(figure)
        return np.asarray(picked.numpy())

    @property
    def held(self) -> Data:
        """The model's rows, of a pool in memory."""
        assert isinstance(self.model, Data)
        return self.model

    @property
    def _width(self) -> int:
        return self.model.classes if not isinstance(self.model, Data) else int(_probs_or_logits(self.model).shape[1])

    def _pieces(self) -> Iterator["Pool"]:
        """Yield the pool in parts whose scores are few enough to work on in float64."""
        if not isinstance(self.model, Data):
            # a quarter of a piece at a time, as float64 tables of it are made
            at, pieces = 0, (piece for shard in self.model.shards for _, piece in self.model.pieces(shard, share=4))
            for piece in pieces:
                yield self._part(piece, slice(at, at := at + len(piece)))
            return
        for part in row_chunks(len(self), max(self._width, 2)):
            yield self._part(self.model[part], part)

    def _places(self, labels: Integers) -> Tensor:
        """Return the columns (n, 1) of labels: of top-label pairs of classes, whether the decision is the label."""
        found = torch.from_numpy(labels)[:, None]
        predicted = self.held.predicted if isinstance(self.model, BinaryPairs) else None
        return found if predicted is None else (predicted.cpu()[:, None] == found).long()

    def _moments(self, figure: str, temperature: float) -> tuple[Tensor, Tensor]:
        """Return m(x) and s(x) of rows in memory."""
        values, probs, possible = self._table(figure, temperature)
        known = torch.where(possible, values, torch.zeros_like(values))
        mean = (probs * known).sum(dim=1)
        return mean, (probs * (known - mean[:, None]).square()).sum(dim=1).sqrt()

    def _table(self, figure: str, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return f(x, k), p(k | x) and whether a label is possible, each (n, K), of rows in memory.

        Raises:
            InputError: If a possible value is infinite.
        """
        values, probs = self._values(figure), _probs(self.held, temperature)
        if self.other is not None:
            probs = (probs + _probs(self.other, temperature)) / 2
        possible = probs > 0
        if not torch.isfinite(values[possible]).all():
            raise _infinite(figure)
        return values, probs, possible

    def _values(self, figure: str) -> Tensor:
        """Return f(x, k) of every row and label (n, K), of two models their difference."""
        first, *second = (self._values_of(one.held, "error" if figure == "aurc" else figure) for one in self.alone)
        if figure == "aurc":
            first, *second = (torch.from_numpy(risk)[:, None] * errors
                              for risk, errors in zip(self.risks, (first, *second), strict=True))  # fmt: skip
        return first - second[0] if second else first

    def _values_of(self, data: Data, figure: str) -> Tensor:
        """Return f(x, k) of one model; for pairs the columns are wrong and correct."""
        if isinstance(data, BinaryPairs):
            hits = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(data), 2)
            return 1 - hits if figure == "error" else hits
        if figure == "nll":
            return -data.logits.detach().cpu().double().log_softmax(dim=1)
        if figure == "brier":
            probs = _probs(data, 1.0)
            return probs.square().sum(dim=1, keepdim=True) - 2 * probs + 1
        if figure.startswith(_LABEL):
            label = int(figure.removeprefix(_LABEL))
            return torch.eye(data.classes, dtype=torch.float64)[label].expand(len(data), data.classes)
        if figure == "cost-gap":
            costs = self._values_of(data, "cost")
            return costs - (_probs(data, 1.0) * costs).sum(dim=1, keepdim=True)
        if figure == "cost" and self.costs is not None:
            action = (_probs(data, 1.0) @ self.costs).argmin(dim=1)
            return self.costs.T[action]
        hits = torch.nn.functional.one_hot(data.predicted.cpu(), data.classes).double()
        return 1 - hits if figure in ("error", "cost") else hits


def _risks(confidence: Floats) -> Floats:
    """Return (N,) what an error of each row adds to the risks Σ_k r_k, with r_k the error among the k most confident rows.

    An error at rank j is part of r_k for all k ≥ j, with 1 / k. Of n equal confidences after a others the orders are averaged: the
    k-th row, a < k ≤ a + n, has (k − a) / n of each of them before it.
    """
    _, tied, n = np.unique(-confidence, return_inverse=True, return_counts=True)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(confidence) + 1))])
    last = np.cumsum(n)
    a = last - n
    return np.asarray((1 - a / n * (harmonic[last] - harmonic[a]) + harmonic[-1] - harmonic[last])[tied])


def _probs_or_logits(data: Data) -> Tensor:
    if isinstance(data, BinaryPairs):
        return data.p[:, None]
    return data.logits if data.given_probs is None else data.given_probs


def _probs(data: Data, temperature: float) -> Tensor:
    """Return the probabilities (n, K) with log-odds divided by ``temperature``; for pairs those of wrong and correct."""
    if isinstance(data, BinaryPairs):
        p = data.p.detach().cpu().double()
        if temperature != 1.0:
            p = (p.logit() / temperature).sigmoid()
        return torch.stack([1 - p, p], dim=1)
    if data.given_probs is not None and temperature == 1.0:
        return data.given_probs.detach().cpu().double()
    return (data.logits.detach().cpu().double() / temperature).softmax(dim=1)


def _infinite(figure: str) -> InputError:
    return InputError(
        f"a finite {figure} of every row", "probabilities of 0", "audit the accuracy, or floor the probabilities"
    )
