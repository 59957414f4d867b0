"""What a case of the corpus is: the files that a producer wrote, the words that name them, and the truth."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
NAMES = ("cat", "dog", "eel")


@dataclass(frozen=True)
class Truth:
    """Probabilities (N, K) and the column (N,) of each row's class; or confidences (N,) and whether they were right."""

    probs: Array
    labels: Array


@dataclass(frozen=True)
class Case:
    """Files of one producer.

    Args:
        name: What they are.
        write: Writes them into a folder and returns the truth.
        words: What a person types after the command.
        says: Whether names, or a producer's mark, say what the numbers are, and which column is the truth.
    """

    name: str
    write: Callable[[Path], Truth]
    words: tuple[str, ...]
    says: bool


@dataclass
class Corpus:
    """Cases in the order of their definition."""

    cases: list[Case] = field(default_factory=list)

    def add(self, *words: str, says: bool = True) -> Callable[[Callable[[Path], Truth]], Callable[[Path], Truth]]:
        """Return a decorator that makes a case of a function; its docstring is the name."""

        def keep(write: Callable[[Path], Truth]) -> Callable[[Path], Truth]:
            self.cases.append(Case(str(write.__doc__).strip().rstrip("."), write, words, says))
            return write

        return keep


def softmax(logits: Array) -> Array:
    """Return probabilities (N, K)."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def some(seed: int, *, rows: int = 160, classes: int = 3) -> tuple[Array, Array]:
    """Return logits (N, K) that are over-confident and labels (N,), with classes of different frequency."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 1.4 + np.linspace(0.8, 0, classes)
    labels = (softmax(true).cumsum(1) < rng.random((rows, 1))).sum(1).clip(0, classes - 1)
    return 2 * true, labels


def whole(logits: Array, labels: Array) -> Truth:
    """Return the truth of a file that holds all of them."""
    return Truth(softmax(logits), labels)


def event(seed: int) -> tuple[Array, Array]:
    """Return probabilities (N,) of an event, and whether it happened (N,)."""
    logits, labels = some(seed, classes=2)
    return softmax(logits)[:, 1], labels


def of_event(p: Array, labels: Array) -> Truth:
    """Return the truth of one probability a row."""
    return Truth(np.stack([1 - p, p], 1), labels)


def ids(rows: int, *, seed: int = 0) -> list[str]:
    """Return distinct ids with leading zeros."""
    return [f"{one:06d}" for one in np.random.default_rng(seed).permutation(rows * 7)[:rows]]


def named(labels: Array) -> Array:
    """Return the classes' names."""
    return np.array(NAMES)[labels]
