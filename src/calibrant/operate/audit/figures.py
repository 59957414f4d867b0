"""The figures an audit estimates: the value of each row for each possible label, and what the probabilities expect of it.

A figure is the mean over the pool of f(x, y), such as whether the decision is correct. Only f of the labelled rows is known;
of every row the probabilities p(· | x) give the expectation m(x) = Σ_k p_k f(x, k) and the standard deviation s(x). The first
is the control variate of the estimate, the second says where labels are worth most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_choice, refuse, shown
from calibrant._core.numerics import row_chunks
from calibrant.data.checks import Data
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import InputError

__all__ = ["AIMS", "FIGURES", "Outlook", "Pool", "figure_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FIGURES = ("accuracy", "error", "nll", "brier", "cost", "ece")
AIMS = (*FIGURES, "worst group")
_SYNONYMS = {
    "log-loss": "nll",
    "log_loss": "nll",
    "worst_group": "worst group",
    "gate": "accuracy",
    "difference": "accuracy",
}
_OF_CLASSES = ("nll", "brier", "cost")
# A class that the probabilities hold for less likely than this bounds no loss: its value would be that of a label that
# nobody expects once in a thousand rows, and one such row in the pool would widen every interval.
_UNLIKELY = 1e-3
_FACTOR, _STEPS = 1.05, 40  # temperatures from 1.05^-40 = .14 to 7


def figure_of(name: Any, *, argument: str, choices: Sequence[str] = FIGURES) -> str:
    """Return the canonical name of a figure or aim.

    Raises:
        InputError: If there is none of that name.
    """
    if not isinstance(name, str):
        raise refuse(f"{argument} as a name", shown(name), f"name one of {', '.join(choices)}")
    return check_choice(_SYNONYMS.get(name.lower(), name.lower()), name=argument, choices=choices)


@dataclass(frozen=True)
class Outlook:
    """What is known of a figure f before labels: for each of N rows.

    Args:
        mean: (N,) m(x).
        spread: (N,) s(x).
        low: (N,) smallest value of f over the labels that are possible.
        high: (N,) largest.
    """

    mean: Floats
    spread: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Pool:
    """Rows without labels: the model that is audited, and optionally a second one that it is compared with.

    Args:
        model: The rows; their labels, if any, are not read.
        other: The second model's predictions of the same rows, or None. A figure is then that of ``model`` minus its.
        costs: costs[label][action], for the figure "cost"; None makes each error cost 1.
    """

    model: Data
    other: Data | None = None
    costs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.model)

    def outlook(self, figure: str, *, temperature: float = 1.0, rows: Integers | None = None) -> Outlook:
        """Return what the probabilities expect of ``figure``; their log-odds are divided by ``temperature``.

        The temperature changes what is expected, not the figure: it is that of the rows as they were given.

        Args:
            figure: One of ``FIGURES``.
            temperature: Above 0.
            rows: Only these rows; None takes all.

        Raises:
            InputError: If the figure needs probabilities of all classes and there are none, or is infinite for some label.
        """
        pool = self if rows is None else self.select(rows)
        parts = [pool._outlook(figure, part, temperature) for part in row_chunks(len(pool), pool._width)]
        return Outlook(*(np.concatenate([part[at] for part in parts]) for at in range(4)))

    def select(self, rows: Integers) -> "Pool":
        """Return the pool of some rows."""
        chosen = torch.from_numpy(rows)
        return replace(self, model=self.model[chosen], other=None if self.other is None else self.other[chosen])

    def digest(self) -> str:
        """Return 32 hexadecimal digits that change when a score changes."""
        found = blake2b(digest_size=16)
        for data in (self.model, self.other):
            if data is not None:
                scores = _scores(data)
                found.update(repr(tuple(scores.shape)).encode())
                for part in row_chunks(len(scores), self._width):
                    found.update(scores[part].detach().cpu().float().contiguous().numpy().tobytes())
        return found.hexdigest()

    def fitted_temperature(self, rows: Integers, labels: Integers) -> float:
        """Return the temperature at which the labels of ``rows`` are likeliest, with a weak prior for 1.

        It is one number from a grid of factors 1.05: it sharpens what is expected of the other rows, and no more is needed.
        """
        model = replace(self, other=None).select(rows)
        at = torch.from_numpy(labels)[:, None]
        at = model._hit(slice(None), at) if isinstance(self.model, BinaryPairs) else at
        exponents = np.arange(-_STEPS, _STEPS + 1) * math.log(_FACTOR)
        losses = [
            float(-_probs(model.model, math.exp(t)).gather(1, at).clamp_min(1e-30).log().sum()) + 2 * t * t
            for t in exponents
        ]
        return float(math.exp(exponents[int(np.argmin(losses))]))

    def values(self, figure: str, rows: Integers, labels: Integers) -> Floats:
        """Return f(x, y) of the labelled ``rows``."""
        chosen = self.select(rows)
        found = self._values(chosen.model, figure)
        if chosen.other is not None:
            found = found - self._values(chosen.other, figure)
        at = torch.from_numpy(labels)[:, None]
        if isinstance(self.model, BinaryPairs):
            at = chosen._hit(slice(None), at)
        if not torch.isfinite(picked := found.gather(1, at)[:, 0]).all():
            raise _infinite(figure)
        return np.asarray(picked.numpy())

    @property
    def _width(self) -> int:
        return self.model.classes if isinstance(self.model, Predictions) else 2

    def _hit(self, rows: slice, labels: Tensor) -> Tensor:
        """Return whether top-label pairs' decisions are the labels, or the outcomes themselves where there are no classes."""
        predicted = self.model.predicted
        return labels if predicted is None else (predicted.cpu()[rows][:, None] == labels).long()

    def _outlook(self, figure: str, part: slice, temperature: float) -> tuple[Floats, ...]:
        data = self.model[part]
        values = self._values(data, figure)
        probs = _probs(data, temperature)
        if self.other is not None:
            other = self.other[part]
            values = values - self._values(other, figure)
            probs = (probs + _probs(other, temperature)) / 2
        possible = probs > 0
        if not torch.isfinite(values[possible]).all():
            raise _infinite(figure)
        known = torch.where(possible, values, torch.zeros_like(values))
        mean = (probs * known).sum(dim=1)
        spread = (probs * (known - mean[:, None]).square()).sum(dim=1).sqrt()
        low, high = values.amin(dim=1), values.amax(dim=1)
        if figure == "nll":  # unbounded: what the model holds for possible bounds it
            likely = possible & (probs >= torch.minimum(torch.tensor(_UNLIKELY), probs.topk(2, dim=1).values[:, 1:]))
            low = torch.where(likely, values, torch.inf).amin(dim=1)
            high = torch.where(likely, values, -torch.inf).amax(dim=1)
        return tuple(np.asarray(one.numpy()) for one in (mean, spread, low, high))

    def _values(self, data: Data, figure: str) -> Tensor:
        """Return f(x, k) of every row and label (n, K); for pairs the columns are wrong and correct."""
        if isinstance(data, BinaryPairs):
            if figure in _OF_CLASSES:
                raise refuse(
                    f"probabilities of all classes for {figure}", "top-label confidences", "audit the accuracy"
                )
            hits = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(data), 2)
            return 1 - hits if figure == "error" else hits
        if figure == "nll":
            return -data.logits.detach().cpu().double().log_softmax(dim=1)
        if figure == "brier":
            probs = _probs(data, 1.0)
            return probs.square().sum(dim=1, keepdim=True) - 2 * probs + 1
        hits = torch.nn.functional.one_hot(data.predicted.cpu(), data.classes).double()
        if figure == "cost" and self.costs is not None:
            action = (_probs(data, 1.0) @ self.costs).argmin(dim=1)
            return self.costs.T[action]
        return 1 - hits if figure in ("error", "cost") else hits


def _scores(data: Data) -> Tensor:
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
