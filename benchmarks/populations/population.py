"""Populations of finitely many kinds of rows, so that accuracy, log-loss, Brier score and ECE are exact sums."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant import Predictions

Floats = NDArray[np.float64]
Sizes = Callable[[np.random.Generator, int], list[int]]
BINS = 15


@dataclass(frozen=True, eq=False)
class Population:
    """M kinds of rows with the model's probabilities ``p`` (M, K), the true ones ``truth`` (M, K) and masses ``mass`` (M,).

    Args:
        name: A short description.
        p: The model's probabilities.
        truth: The true probabilities of the labels.
        mass: Frequency of each kind of rows; the frequencies sum to 1.
        group_sizes: Function that draws the sizes of the groups of n rows. The decision is correct less often in half of the
            groups, and more often by the same amount in the other half, so that the population's true values do not change.
        weight: (M, 2) the two possible sampling weights of a row, which are equally likely; every figure is weighted.
        later: (T, M) the masses of later batches. The distribution of the scores changes, but that of labels given scores does not.
        new: (M, K) the probabilities of another model, which is meant to replace this one.
    """

    name: str
    p: Floats
    truth: Floats
    mass: Floats
    group_sizes: Sizes | None = None
    weight: Floats | None = None
    later: Floats | None = None
    new: Floats | None = None

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(M,) the predicted class."""
        return self.p.argmax(axis=1)

    @cached_property
    def right(self) -> Floats:
        """(M,) the probability that the decision is correct."""
        return self.truth[np.arange(len(self.p)), self.predicted]

    @cached_property
    def share(self) -> Floats:
        """(M,) the share of each kind in a weighted mean."""
        share = self.mass if self.weight is None else self.mass * self.weight.mean(axis=1)
        return np.asarray(share / share.sum())

    @property
    def independent(self) -> bool:
        """Whether rows are independent and have equal weights."""
        return self.group_sizes is None and self.weight is None

    @property
    def accuracy(self) -> float:
        """The probability that the decision is correct."""
        return float(self.share @ self.right)

    @property
    def nll(self) -> float:
        """The mean of −log p of the label."""
        logs = np.log(self.p, where=self.p > 0, out=np.full_like(self.p, -np.inf))
        return -float(self.share @ np.where(self.truth > 0, self.truth * logs, 0.0).sum(axis=1))

    @property
    def brier(self) -> float:
        """The mean of Σ_j (p_j − y_j)²."""
        return float(self.share @ ((self.p**2).sum(axis=1) - 2 * (self.p * self.truth).sum(axis=1) + 1))

    @property
    def ece(self) -> float:
        """Σ_b |E (confidence − correct) 1_b| over 15 bins of equal width."""
        return self._binned(self.p.max(axis=1), self.right)

    @property
    def event_ece(self) -> float:
        """The ECE of the probabilities of class 1 in a population with two classes."""
        return self._binned(self.p[:, 1], self.truth[:, 1])

    @property
    def classwise(self) -> float:
        """(1/K) Σ_k Σ_b |E (p_k − y_k) 1_b| over 15 bins of equal width of each class."""
        return sum(self._binned(self.p[:, k], self.truth[:, k]) for k in range(self.p.shape[1])) / self.p.shape[1]

    @property
    def toplabel(self) -> float:
        """The sum of the ECE over bins of each predicted class."""
        return self._binned(self.p.max(axis=1), self.right, self.predicted)

    @property
    def debiased(self) -> float:
        """√ Σ_b m_b (E [confidence − correct | b])² over 15 bins of equal width, each of mass m_b."""
        index = self._home(self.p.max(axis=1))
        mass = np.bincount(index, self.share, minlength=BINS)
        part = np.bincount(index, self.share * (self.p.max(axis=1) - self.right), minlength=BINS)
        return float(np.sqrt((part[mass > 0] ** 2 / mass[mass > 0]).sum()))

    def ece_between(self, edges: Floats) -> float:
        """The ECE in the bins (lo, hi] between ``edges`` (B + 1,)."""
        top = self.p.max(axis=1)
        index = np.searchsorted(edges[1:-1], top, side="left")
        return float(np.abs(np.bincount(index, self.share * (top - self.right))).sum())

    def value(self, figure: str) -> float:
        """Return the true value of a metric, given its name in ``check``."""
        return float(getattr(self, figure.replace("-", "_")))

    def _binned(self, p: Floats, truth: Floats, part: NDArray[np.int64] | int = 0) -> float:
        index = self._home(p)
        return float(np.abs(np.bincount(index + BINS * part, self.share * (p - truth))).sum())

    @staticmethod
    def _home(p: Floats) -> NDArray[np.int64]:
        return np.clip(np.searchsorted(np.arange(BINS + 1) / BINS, p, side="left") - 1, 0, BINS - 1)

    @cached_property
    def calibrated(self) -> "Population":
        """Return the same model with labels that follow its probabilities."""
        return replace(self, truth=self.p)

    def sampled(
        self, n: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None, np.random.Generator]:
        """Return the kinds (n,) and labels (n,) of rows, their groups, and the generator."""
        rng = np.random.default_rng([seed, n, len(self.name)])
        kind = rng.choice(len(self.mass), size=n, p=self.mass)
        truth, groups = self.truth[kind], None
        if self.group_sizes is not None:
            sizes = self.group_sizes(rng, n)
            groups = np.repeat(np.arange(len(sizes)), sizes)[:n]
            truth = truth + self._group_shift(kind, groups, rng)
        level = truth.cumsum(axis=1)
        labels = (rng.random((n, 1)) * level[:, -1:] > level).sum(axis=1).clip(max=truth.shape[1] - 1)
        return kind, labels, groups, rng

    @lru_cache(maxsize=1)  # noqa: B019  # promises of one figure each take the same sample
    def draw(self, n: int, seed: int) -> Predictions:
        """Return ``n`` rows, which are independent or form groups; the last group may be incomplete."""
        return self.drawn(n, seed)[0]

    def drawn(self, n: int, seed: int, *, with_p: Floats | None = None) -> tuple[Predictions, Predictions]:
        """Return ``n`` rows with this model's probabilities, and the same rows with those of another model, ``with_p`` (M, K)."""
        kind, labels, groups, rng = self.sampled(n, seed)
        weights = None if self.weight is None else self.weight[kind, rng.integers(2, size=n)]
        beside = {
            "groups": None if groups is None else torch.from_numpy(groups),
            "weights": None if weights is None else torch.from_numpy(weights),
        }
        both = (self.p[kind], (self.p if with_p is None else with_p)[kind])
        made = [Predictions.from_probs(torch.from_numpy(p), torch.from_numpy(labels), **beside) for p in both]  # type: ignore[arg-type]
        return made[0], made[1]

    def _group_shift(self, kind: NDArray[np.int64], groups: NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Return the changes (N, K) of the label probabilities in each row's group.

        What the predicted class gains is divided among the other classes."""
        sign = rng.choice([-1.0, 1.0], size=int(groups.max()) + 1)[groups]
        right, top = self.right[kind], self.predicted[kind]
        shift = sign * 0.6 * np.minimum(right, 1 - right)
        classes = self.p.shape[1]
        rest = self.truth[kind].copy()
        rest[np.arange(len(kind)), top] = 0.0
        total = rest.sum(axis=1, keepdims=True)
        rest = np.where(total > 0, rest / np.where(total > 0, total, 1), 1 / (classes - 1))
        change = -shift[:, None] * rest
        change[np.arange(len(kind)), top] = shift
        return change

    def sharpened(self, power: float) -> Floats:
        """Return the probabilities (M, K), proportional to p^power, of another model with the same decisions."""
        logs = np.log(self.p.clip(1e-300)) * power
        raised = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def swapped(self) -> tuple["Population", Floats]:
        """Return this population with a noisy model, and a second noisy model.

        Two kinds of noise are assigned to the two models at random in each row. The models are therefore exchangeable, and equal
        in every metric.
        """
        noise = np.random.default_rng(len(self.name)).normal(0, 0.7, (2, *self.p.shape))
        raised = self.p.clip(1e-300) * np.exp(noise)
        first, second = raised / raised.sum(axis=2, keepdims=True)
        weight = None if self.weight is None else np.concatenate([self.weight, self.weight])
        both = np.concatenate([self.truth, self.truth])
        halves = np.concatenate([self.mass, self.mass]) / 2
        found = replace(self, p=np.concatenate([first, second]), truth=both, mass=halves, weight=weight)
        return found, np.concatenate([second, first])

    @cache  # noqa: B019  # populations live as long as the program
    def rivals(self, figure: str) -> tuple[Floats, Floats] | None:
        """Return an over-confident and an under-confident model with equal values of ``figure``, or None if there are none."""

        def value(power: float) -> float:
            return float(getattr(replace(self, p=self.sharpened(power)), figure))

        powers = np.geomspace(0.05, 20, 200)
        values = np.array([value(power) for power in powers])
        best = int(values.argmin())
        for factor in (1.6, 1.3, 1.1):
            sharp = powers[best] * factor
            low, high = powers[0], powers[best]
            if not np.isfinite(value(sharp)) or value(low) < value(sharp) or best == 0:
                continue
            for _ in range(60):
                middle = np.sqrt(low * high)
                low, high = (middle, high) if value(middle) > value(sharp) else (low, middle)
            if np.isclose(value(float(high)), value(sharp), rtol=1e-9):
                return self.sharpened(float(sharp)), self.sharpened(float(high))
        return None
