"""Populations with a known truth, and their samples: what the simulations of coverage and size draw from.

A population has finitely many kinds of row (atoms), each with the model's probabilities and with the true ones, so that
every population figure is exact, and a sample of any size is a table of counts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ATOMS = 2000
MECHANISMS = ("calibrated", "over-confident", "under-confident", "oscillating", "tied")
TEMPERATURES = {"over-confident": 0.6, "under-confident": 1.6}  # of the truth, seen from the model
TIED_ATOMS = 8
WAVES = 60  # half waves of the oscillation over [0, 1]: four in every one of 15 bins


@dataclass(frozen=True)
class Population:
    """Equally likely atoms with the model's probabilities ``p`` (M, K) and the true ones ``truth`` (M, K)."""

    name: str
    p: Floats
    truth: Floats

    @property
    def classes(self) -> int:
        """K."""
        return self.p.shape[1]

    @cached_property
    def predicted(self) -> Ints:
        """(M,) decided class."""
        return self.p.argmax(axis=1)

    @cached_property
    def confidence(self) -> Floats:
        """(M,) its probability."""
        return self.p.max(axis=1)

    @cached_property
    def accuracy(self) -> Floats:
        """(M,) how often the decision is right."""
        return self.truth[np.arange(len(self.p)), self.predicted]

    @cached_property
    def nll(self) -> Floats:
        """(M, K) −log p of each label."""
        return -np.log(self.p)

    @cached_property
    def brier(self) -> Floats:
        """(M, K) Σ_j (p_j − y_j)² for each label."""
        return (self.p**2).sum(axis=1, keepdims=True) - 2 * self.p + 1

    def draw(self, rng: np.random.Generator, *, samples: int, rows: int) -> tuple[Ints, Ints]:
        """Return atoms and labels (samples, rows)."""
        cumulative = np.cumsum(self.truth.reshape(-1)) / self.truth.sum()
        cell = np.searchsorted(cumulative, rng.random(samples * rows)).clip(max=cumulative.size - 1)
        atom, label = np.divmod(cell.reshape(samples, rows), self.classes)
        return atom, label


def population(classes: int, accuracy: float, mechanism: str, *, seed: int = 0, atoms: int = ATOMS) -> Population:
    """Return a population of about the ``accuracy``, seen by a model with the ``mechanism``.

    With two classes one is rare; with 100 the classes' frequencies fall as 1/k; else they are alike.
    """
    rng = np.random.default_rng([seed, classes, round(1000 * accuracy)])
    atoms = TIED_ATOMS * max(1, classes // 5) if mechanism == "tied" else atoms
    frequency = 1 / np.arange(1, classes + 1) if classes == 100 else np.full(classes, 1.0)
    frequency = np.array([1.0, 0.0]) if classes == 2 else frequency / frequency.sum()
    noise = (0.7 if classes == 2 else 1.2) * rng.standard_normal((atoms, classes))
    winner = np.eye(classes)[rng.choice(classes, size=atoms, p=frequency)]

    def truth(margin: float) -> Floats:
        return _softmax(noise + margin * winner)

    low, high = -10.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        chosen = truth(middle)[np.arange(atoms), winner.argmax(axis=1)].mean()
        low, high = (middle, high) if chosen < accuracy else (low, middle)
    true = truth(high)
    name = f"K = {classes}, accuracy {accuracy:g}, {mechanism}"
    if mechanism == "oscillating":
        return Population(name, true, _oscillating(true))
    heat = TEMPERATURES.get(mechanism, 0.8 if mechanism == "tied" else 1.0)
    seen = _softmax(np.log(true.clip(1e-300)) / heat)
    order = np.argsort(seen.max(axis=1), kind="stable")
    return Population(name, seen[order], true[order])


def _oscillating(p: Floats) -> Floats:
    """Return truths that swing around the confidence inside every bin; the other classes share what is left."""
    chosen, rows = p.argmax(axis=1), np.arange(len(p))
    top = p[rows, chosen]
    sign = np.where(np.floor(top * WAVES).astype(int) % 2 == 0, 1.0, -1.0)
    moved = top + sign * 0.8 * np.minimum(1 - top, 0.25)
    truth = p * ((1 - moved) / np.maximum(1 - top, 1e-300))[:, None]
    truth[rows, chosen] = moved
    return truth


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return result


def constant(confidence: float, accuracy: float) -> Population:
    """Return a model of two classes that always has the same confidence."""
    p = np.array([[confidence, 1 - confidence]])
    return Population(f"confidence {confidence:g}, accuracy {accuracy:g}", p, np.array([[accuracy, 1 - accuracy]]))
