"""A registry of populations with known truths, and how often each promise of the library breaks on them.

    python -m benchmarks.populations interval-ece --n 1000,5000 --replicates 1000 --only "two points" --record record.jsonl

A population stands for a mechanism: its rows are drawn from finitely many kinds, each with the model's probabilities and the
true ones, so that accuracy, log-loss, Brier score and ECE are exact sums. Cells that the record already holds are skipped.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.mechanisms import population
from calibrant import Predictions
from calibrant.binning import Binning, EqualMass
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    HistogramBinning,
    IsotonicCalibration,
    KernelScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.errors import CalibrantError
from calibrant.evaluate import compare, subgroups
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, TopLabelECE
from calibrant.operate import Monitor, check, estimate
from calibrant.operate.estimate import Estimate, Figure, Strata, correctness, loss, projected
from calibrant.statistics import interval, null_band
from calibrant.statistics.null import null_draws

Floats = NDArray[np.float64]
Sizes = Callable[[np.random.Generator], int]

BINS = 15
ALLOWED = {"gate": 0.025, "no": 0.025, "limit": 0.025}  # how often a promise may be broken, 5 % for the others
GATED = {"accuracy": "minimum", "brier": "maximum", "ece": "maximum", "event-ece": "maximum"}
NO_WORSE = ("brier", "ece", "event-ece", "nll")


@dataclass(frozen=True, eq=False)
class Population:
    """M kinds of rows with the model's probabilities ``p`` (M, K), the true ones ``truth`` (M, K) and masses ``mass`` (M,).

    Args:
        name: What is particular about it.
        p: Probabilities of the model.
        truth: Probabilities of the labels.
        mass: Frequency of each kind, summing to 1.
        group_size: Draws the number of rows of a group. In half of the groups the decision is right less often, in the other
            half more often, by the same amount, so that the population's truth is unchanged.
        weight: (M, 2): a row's sampling weight is one of two, equally likely; every figure is weighted.
    """

    name: str
    p: Floats
    truth: Floats
    mass: Floats
    group_size: Sizes | None = None
    weight: Floats | None = None

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(M,) decided class."""
        return self.p.argmax(axis=1)

    @cached_property
    def right(self) -> Floats:
        """(M,) how often the decision is right."""
        return self.truth[np.arange(len(self.p)), self.predicted]

    @cached_property
    def share(self) -> Floats:
        """(M,) what each kind contributes to a weighted mean."""
        share = self.mass if self.weight is None else self.mass * self.weight.mean(axis=1)
        return np.asarray(share / share.sum())

    @property
    def accuracy(self) -> float:
        """Probability that the decision is right."""
        return float(self.share @ self.right)

    @property
    def nll(self) -> float:
        """Mean of −log p of the label."""
        logs = np.log(self.p, where=self.p > 0, out=np.full_like(self.p, -np.inf))
        return -float(self.share @ np.where(self.truth > 0, self.truth * logs, 0.0).sum(axis=1))

    @property
    def brier(self) -> float:
        """Mean of Σ_j (p_j − y_j)²."""
        return float(self.share @ ((self.p**2).sum(axis=1) - 2 * (self.p * self.truth).sum(axis=1) + 1))

    @property
    def ece(self) -> float:
        """Σ_b |E (confidence − correct) 1_b| over 15 bins of equal width."""
        return self._binned(self.p.max(axis=1), self.right)

    @property
    def event_ece(self) -> float:
        """The ECE of the probabilities of class 1, of two."""
        return self._binned(self.p[:, 1], self.truth[:, 1])

    @property
    def classwise(self) -> float:
        """(1/K) Σ_k Σ_b |E (p_k − y_k) 1_b| over 15 bins of equal width of each class."""
        return sum(self._binned(self.p[:, k], self.truth[:, k]) for k in range(self.p.shape[1])) / self.p.shape[1]

    @property
    def toplabel(self) -> float:
        """The ECE's sum over the bins of each decided class."""
        return self._binned(self.p.max(axis=1), self.right, self.predicted)

    @property
    def debiased(self) -> float:
        """√ Σ_b m_b (E [confidence − correct | b])² over 15 bins of equal width, each of mass m_b."""
        index = self._home(self.p.max(axis=1))
        mass = np.bincount(index, self.share, minlength=BINS)
        part = np.bincount(index, self.share * (self.p.max(axis=1) - self.right), minlength=BINS)
        return float(np.sqrt((part[mass > 0] ** 2 / mass[mass > 0]).sum()))

    def ece_in(self, binning: Binning) -> float:
        """The ECE in bins that a sample decided."""
        top = self.p.max(axis=1)
        index = binning.assign(torch.from_numpy(top)).numpy()
        return float(np.abs(np.bincount(index, self.share * (top - self.right))).sum())

    def value(self, figure: str) -> float:
        """The true value of a figure, by the name that the gate knows."""
        return float(getattr(self, figure.replace("-", "_")))

    def _binned(self, p: Floats, truth: Floats, part: NDArray[np.int64] | int = 0) -> float:
        index = self._home(p)
        return float(np.abs(np.bincount(index + BINS * part, self.share * (p - truth))).sum())

    @staticmethod
    def _home(p: Floats) -> NDArray[np.int64]:
        return np.clip(np.searchsorted(np.arange(BINS + 1) / BINS, p, side="left") - 1, 0, BINS - 1)

    def applies(self, promise: str) -> bool:
        """Return whether ``promise`` says anything about this population."""
        independent = self.group_size is None and self.weight is None
        if promise.endswith("event-ece") and self.p.shape[1] != 2:
            return False
        if promise.startswith(("gate", "no-worse", "monitor", "estimate", "power")):
            return independent
        return bool(np.isfinite(self.nll)) or not promise.endswith("nll")

    @cached_property
    def calibrated(self) -> "Population":
        """The same model on labels that follow its probabilities."""
        return replace(self, truth=self.p)

    def sampled(
        self, n: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None, np.random.Generator]:
        """Return kinds and labels (n,) of rows, their groups, and the generator."""
        rng = np.random.default_rng([seed, n, len(self.name)])
        kind = rng.choice(len(self.mass), size=n, p=self.mass)
        truth, groups = self.truth[kind], None
        if self.group_size is not None:
            sizes = []
            while sum(sizes) < n:
                sizes.append(self.group_size(rng))
            groups = np.repeat(np.arange(len(sizes)), sizes)[:n]
            truth = truth + self._group_shift(kind, groups, rng)
        level = truth.cumsum(axis=1)
        labels = (rng.random((n, 1)) * level[:, -1:] > level).sum(axis=1).clip(max=truth.shape[1] - 1)
        return kind, labels, groups, rng

    @lru_cache(maxsize=1)  # noqa: B019  # promises of one figure each take the same sample
    def draw(self, n: int, seed: int) -> Predictions:
        """Return ``n`` rows: independent ones, or whole groups up to the last, which may be cut."""
        return self.drawn(n, seed)[0]

    def drawn(self, n: int, seed: int, *, with_p: Floats | None = None) -> tuple[Predictions, Predictions]:
        """Return ``n`` rows with this model's probabilities, and the same rows with those of another, ``with_p`` (M, K)."""
        kind, labels, groups, rng = self.sampled(n, seed)
        weights = None if self.weight is None else self.weight[kind, rng.integers(2, size=n)]
        beside = {
            "groups": None if groups is None else torch.from_numpy(groups),
            "weights": None if weights is None else torch.from_numpy(weights),
            "weight_kind": None if weights is None else "sampling",
        }
        both = (self.p[kind], (self.p if with_p is None else with_p)[kind])
        made = [Predictions.from_probs(torch.from_numpy(p), torch.from_numpy(labels), **beside) for p in both]  # type: ignore[arg-type]
        return made[0], made[1]

    def _group_shift(self, kind: NDArray[np.int64], groups: NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Return (N, K): how much likelier each label is in a row's group; the other classes share what the decided one gains."""
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

    @cache  # noqa: B019  # populations live as long as the program
    def changed(self, change: float) -> "Population":
        """Return the same model where decisions are right more often by ``change``; the other labels keep their proportions."""
        at = np.arange(len(self.p)), self.predicted
        others = self.truth.copy()
        others[at] = 0
        total = others.sum(axis=1, keepdims=True)
        others = np.where(total > 0, others / np.where(total > 0, total, 1), 1 / (others.shape[1] - 1))
        others[at] = 0
        right = np.clip(self.right + change, 0, 1)
        truth = others * ((1 - right) / others.sum(axis=1).clip(1e-300))[:, None]
        truth[at] = right
        return replace(self, truth=truth)

    def sharpened(self, power: float) -> Floats:
        """Return (M, K) probabilities ∝ p^power of another model with the same decisions."""
        logs = np.log(self.p.clip(1e-300)) * power
        raised = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def swapped(self) -> tuple["Population", Floats]:
        """Return this population with a noisy model, and a second model: each row has the noise of one and of the other by chance.

        The two are exchangeable, so that they are equal in every figure.
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
        """Return an over-confident and an under-confident model with equal ``figure``, or None if there are none."""

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


def binary(
    name: str, confidence: Floats | list[float], right: Floats | list[float] | float, mass: object = None
) -> Population:
    """Return a population of two classes from top confidences and how often each is right."""
    top = np.asarray(confidence, dtype=float)
    right = np.broadcast_to(np.asarray(right, dtype=float), top.shape)
    share = np.full(len(top), 1.0) if mass is None else np.asarray(mass, dtype=float)
    return Population(name, np.stack([1 - top, top], 1), np.stack([1 - right, right], 1), share / share.sum())


def events(name: str, p: Floats, truth: Floats, mass: object = None) -> Population:
    """Return a population of two classes from the probabilities of the second."""
    share = np.full(len(p), 1.0) if mass is None else np.asarray(mass, dtype=float)
    return Population(name, np.stack([1 - p, p], 1), np.stack([1 - truth, truth], 1), share / share.sum())


def _of(classes: int, accuracy: float, mechanism: str) -> Population:
    source = population(classes, accuracy, mechanism, atoms=400)
    return Population(source.name, source.p, source.truth, np.full(len(source.p), 1 / len(source.p)))


def _shifted(source: Population, name: str, shift: Floats) -> Population:
    logits = np.log(source.p.clip(1e-300)) + shift
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return replace(source, name=name, p=raised / raised.sum(axis=1, keepdims=True))


def _spread(low: float, high: float, count: int = 200) -> Floats:
    return low + (high - low) * (np.arange(count) + 0.5) / count


def _lognormal(median: float, sd: float) -> Sizes:
    return lambda rng: max(1, round(median * float(np.exp(sd * rng.standard_normal()))))


def _point_masses() -> Iterator[Population]:
    yield binary("one point .9", [0.9], 0.9)
    yield binary("one point .999", [0.999], 0.999)
    for right in (0.999, 0.9999):
        yield binary(f"two points, 6 % at .51, accuracy {right}", [0.51, 0.999], right, [0.06, 0.94])
    yield binary("two points, .935 and .999, accuracy .9999", [0.935, 0.999], 0.9999)
    yield binary("three points in one bin", [0.94, 0.97, 0.999], [0.99, 0.96, 0.95])
    yield binary("few saturated wrong: 1 % at .95, right in .05", [0.95, 0.999], [0.05, 0.999], [0.01, 0.99])
    yield binary("saturated rare event: 3 % at .99, right in .3", [0.99, 0.98], [0.3, 0.985], [0.03, 0.97])


def _spreads() -> Iterator[Population]:
    yield binary("U(.5, 1), accuracy .995", _spread(0.5, 1), 0.995)
    yield binary("U(.935, .999), accuracy .999", _spread(0.935, 0.999), 0.999)
    yield binary("U(.81, .999), accuracy .995", _spread(0.81, 0.999), 0.995)
    yield binary("U(.5, 1), calibrated", _spread(0.5, 1), _spread(0.5, 1))
    yield binary("U(.5, 1), right in reverse order", _spread(0.5, 1), 1.5 - _spread(0.5, 1))
    wide = _spread(0, 1)
    yield events(
        "U-shaped events", wide, np.clip(wide + 0.1 * np.sin(8 * np.pi * wide), 0, 1), (wide * (1 - wide)) ** -0.8
    )
    yield events("rare events, one in 100", 0.05 * wide**4, 0.05 * wide**4)
    yield events("rare events, one in 1000, twice too high", 0.01 * wide**4, 0.005 * wide**4)
    votes = np.arange(1, 20) / 20
    yield events("scores of 20 trees", votes, votes + 0.6 * votes * (1 - votes) * (votes - 0.5))
    exact = np.concatenate([[0.0, 1.0], wide])
    yield events("exact zeros and ones, all right", exact, exact, [50, 50, *np.ones(200)])
    yield events("exact zeros and ones, .993 right", exact, np.clip(exact, 0.007, 0.993), [50, 50, *np.ones(200)])


def _mechanisms() -> Iterator[Population]:
    for mechanism in ("calibrated", "over-confident", "under-confident", "oscillating", "tied"):
        yield _of(10, 0.9, mechanism)
    for classes in (2, 3, 100):
        yield _of(classes, 0.8, "over-confident")
    for accuracy in (0.6, 0.99, 0.999):
        yield _of(10, accuracy, "over-confident")
    yield _of(10, 0.95, "under-confident")
    base = _of(10, 0.85, "calibrated")
    rng = np.random.default_rng(7)
    yield replace(base, name="labels replaced at random in 10 %", truth=0.9 * base.truth + 0.1 / 10)
    yield _shifted(base, "one class favoured", 1.5 * (np.arange(10) == 3))
    yield _shifted(base, "other priors", rng.normal(0, 1, 10))
    yield _shifted(base, "noise on every logit", rng.normal(0, 1, base.p.shape))
    hard = base.p.max(axis=1) < 0.7
    yield replace(base, name="hard rows guessed", truth=np.where(hard[:, None], 0.5 * base.truth + 0.05, base.truth))
    yield _of(100, 0.7, "calibrated")


def _grouped() -> Iterator[Population]:
    base = binary("", _spread(0.6, 0.95, 60), _spread(0.6, 0.95, 60) - 0.05)
    sizes: dict[str, Sizes] = {
        "equal groups of 20": lambda rng: 20,
        "lognormal groups, sd 1": _lognormal(20, 1.0),
        "lognormal groups, sd 1.5": _lognormal(12, 1.5),
        "Pareto groups, index 1.5": lambda rng: round(7 * (1 + float(rng.pareto(1.5)))),
        "Pareto groups, index 3": lambda rng: round(14 * (1 + float(rng.pareto(3)))),
        "pairs and groups of 100": lambda rng: int(rng.choice([2, 100], p=[0.8, 0.2])),
    }
    for name, size in sizes.items():
        yield replace(base, name=name, group_size=size)


def _weighted() -> Iterator[Population]:
    base = _of(10, 0.85, "over-confident")
    even = np.ones((len(base.p), 1))
    for low, high in ((0.8, 1.2), (0.2, 1.8), (0.05, 1.95)):
        yield replace(base, name=f"weights {low} and {high}", weight=even * [low, high])
    yield replace(base, name="hard rows weigh more", weight=(1.2 - base.p.max(axis=1))[:, None] * [1.0, 1.0])


def _by_chance() -> Iterator[Population]:
    """Yield ten populations that nobody chose: classes, confidences, tilts and label noise are drawn."""
    rng = np.random.default_rng(20261125)
    for number in range(10):
        classes = int(rng.choice([2, 2, 3, 5, 10, 30]))
        spread = float(np.exp(rng.uniform(np.log(0.05), np.log(2))))
        p = rng.dirichlet(np.full(classes, spread), 150).clip(1e-9)
        p /= p.sum(axis=1, keepdims=True)
        truth = p ** np.exp(rng.normal(0, 0.4)) * np.exp(rng.normal(0, 0.5, classes))
        noise = rng.uniform(0, 0.3) ** 2
        truth = (1 - noise) * truth / truth.sum(axis=1, keepdims=True) + noise / classes
        yield Population(f"by chance {number}: K = {classes}", p, truth, rng.dirichlet(np.full(150, 0.5)))


def _unread() -> Iterator[Population]:
    """Yield populations of deployed classifiers, written by somebody who had not read the library's source."""
    rng = np.random.default_rng(404)
    rate = np.exp(np.log(0.003) + 1.2 * np.linspace(-2.5, 2.5, 80))
    bell = np.exp(-0.5 * np.linspace(-2.5, 2.5, 80) ** 2)
    hot = np.concatenate([0.99 * bell, 0.01 * bell])
    yield events(
        "clicks, 1 % of rows 20 times likelier",
        np.tile(rate, 2),
        np.concatenate([rate, (20 * rate).clip(max=0.9)]),
        hot,
    )
    score = np.append(np.geomspace(1e-5, 0.9, 60), 1e-6)
    often = np.append(score[:60] ** -0.5, 0.0)
    often[-1] = often.sum() / 999
    yield events("fraud ring: 1 in 1000 at 1e-6, all events", score, np.append(score[:60], 1.0), often)
    sure = np.repeat(np.linspace(0.9, 0.999, 30)[:, None], 5, axis=1)
    sure[:, :4] = (1 - sure[:, :4]) / 4
    p = np.concatenate([sure, np.full((1, 5), 0.2)])
    truth = np.concatenate([sure, [[0.04, 0.3, 0.3, 0.3, 0.06]]])
    yield Population("abstains: 30 % uniform over 5, seldom the first", p, truth, np.append(np.full(30, 0.7 / 30), 0.3))
    level = np.arange(128, 255)
    sign = np.where(np.ceil(level / 17) % 2 == 0, 1, -1)  # of the bin, to whose upper edge multiples of 17 belong
    at_edge = np.where(level % 17 == 0, 12.0, 1.0)
    yield binary("scores j / 255, 40 % on edges of bins", level / 255, (level / 255 + 0.06 * sign).clip(max=1), at_edge)
    easy = np.repeat((1 - np.geomspace(1e-4, 0.02, 20))[:, None], 8, axis=1)
    easy[:, 1:] = (1 - easy[:, 1:]) / 7
    hard = rng.dirichlet(np.full(8, 0.2), 40).clip(1e-4)
    hard /= hard.sum(axis=1, keepdims=True)
    fooled = 0.5 * hard + 0.5 * np.eye(8)[hard.argmin(axis=1)]
    mass = np.append(np.full(20, 0.96 / 20), np.full(40, 0.04 / 40))
    cascade = np.concatenate([easy, hard]), np.concatenate([easy, fooled])
    yield Population("cascade: 4 % hard, half of them unthinkable", *cascade, mass)
    told, held = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0], [0.45, 0.5, 0.66, 0.6, 0.8, 0.87, 0.9, 0.94]
    yield binary("judge says 1.0 in 40 %, .94 right", told, held, [1, 2, 4, 12, 15, 16, 10, 40])
    main = np.repeat((1 - np.geomspace(1e-4, 0.05, 20))[:, None], 50, axis=1)
    main[:, 1:] = (1 - main[:, 1:]) / 49
    rare = np.full((48, 50), 0.05 / 48)
    rare[np.arange(48), np.arange(48) + 1], rare[np.arange(48), (np.arange(48) ^ 1) + 1] = 0.7, 0.25
    twins = np.concatenate([main, 0.4 * rare + 0.6 * rare[np.arange(48) ^ 1]])
    zipf = 1 / np.arange(1, 49)
    mass = np.append(np.full(20, 0.97 / 20), 0.03 * zipf / zipf.sum())
    yield Population("50 classes, one in .97, rare twins swapped", np.concatenate([main, rare]), twins, mass)
    users = binary("Zipf users up to 2000 rows, accuracy .97", _spread(0.9, 0.999, 60), 0.97)
    yield replace(users, group_size=lambda rng: min(2000, int(rng.zipf(1.7))))
    audit = binary(
        "audit: .3 % errors weigh 100, 15 % weigh 1", [0.99, 0.6, 0.75, 0.9], [0.997, 0.8, 0.85, 0.9], [3, 2, 3, 2]
    )
    yield replace(audit, weight=np.array([[100.0, 100.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]))
    power = np.geomspace(0.1, 6, 120)[:, None]
    rank = rng.permuted(np.tile(np.arange(1.0, 65), (120, 1)), axis=1)
    token, drawn = rank**-power, rank ** (-0.7 * power)
    p, truth = (each / each.sum(axis=1, keepdims=True) for each in (token, drawn))
    yield Population("tokens: Zipf over 64, truth heavier", p, truth, np.full(120, 1 / 120))
    # two more, since comparisons of the audit fail: rows at exactly .5 are wrong often, which hides that the others seldom are
    yield binary("half at .5 exactly, half at .9999, right .998", [0.5, 0.9999], [0.5, 0.998])
    yield binary("95 % at .5 exactly, 5 % at .99, right .997", [0.5, 0.99], [0.5, 0.997], [95, 5])


POPULATIONS = (*_point_masses(), *_spreads(), *_mechanisms(), *_grouped(), *_weighted(), *_by_chance(), *_unread())

METRICS: dict[str, Metric] = {"accuracy": Accuracy(), "nll": NLL(), "brier": Brier(), "ece": ECE()}
METRICS |= {"classwise": ClasswiseECE(), "toplabel": TopLabelECE(), "debiased": DebiasedECE(), "mce": MCE()}
FITTED: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "vector": VectorScaling,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
    "kernel": KernelScaling,
    "auto": AutoCalibrator,
}
METRICS |= {"mass": ECE(EqualMass(BINS))}
INTERVALS = ("accuracy", "nll", "brier", "ece", "mass", "debiased", "classwise", "toplabel")


def _interval(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    data, metric = population.draw(n, seed), METRICS[figure]
    binned = figure in ("ece", "mass", "classwise", "toplabel")
    if figure == "mass":
        truth = population.ece_in(metric.in_fixed_bins(metric.state(data)).binning)
    else:
        truth = getattr(population, figure)
    null = null_draws(metric, data, draws=200, seed=seed) if binned else None
    found = interval(metric, data, draws=200, seed=seed, null=null)
    missed = not found.low - 1e-9 <= truth <= found.high + 1e-9
    told = {"shown": 1.0, "broken": float(missed), "length": found.high - found.low}
    return told if null is None else {**told, "expected": float(null.mean())}


def _gate(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """A limit that the population meets exactly: either decision is wrong, with at most 2.5 % each."""
    limits = {GATED[figure]: {figure: min(max(population.value(figure), 0.0), 1.0)}}
    verdict = check(population.draw(n, seed), **limits).verdict  # type: ignore[arg-type]
    return {
        "shown": float(verdict != "not enough evidence"),
        "broken": float(verdict == "fail"),
        "passed": float(verdict == "pass"),
    }


def _no_worse(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """A model that is worse than its baseline by exactly the margin: a pass is wrong, with at most 2.5 %."""
    sharp = population.sharpened(1.6)
    margin = replace(population, p=sharp).value(figure) - population.value(figure)
    if not 0 <= margin <= 1:
        return {}
    new, old = population.drawn(n, seed, with_p=sharp)[::-1]
    verdict = check(new, baseline=old, no_worse={figure: margin}).verdict
    return {
        "shown": float(verdict != "not enough evidence"),
        "broken": float(verdict == "pass"),
        "failed": float(verdict == "fail"),
    }


def _compare(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """An over- and an under-confident model that are equally good: 5 % are told apart."""
    rivals = population.rivals(figure)
    if rivals is None:
        return {}
    a, b = replace(population, p=rivals[0]).drawn(n, seed, with_p=rivals[1])
    row = compare(a, b, metrics=[METRICS[figure]]).rows[0]
    return {"shown": float(row.p_value is not None), "broken": float(row.winner is not None)}


def _exchangeable(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """Two models that are equal in every figure: any of the five is told apart in 5 %."""
    del figure
    source, other = population.swapped()
    a, b = source.drawn(n, seed, with_p=other)
    rows = compare(a, b).rows
    return {
        "shown": float(np.mean([row.p_value is not None for row in rows])),
        "broken": float(any(row.winner for row in rows)),
    }


def _worst_group(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """Groups that meet the limit exactly: failing one, or passing all, is wrong with at most 2.5 %."""
    data, limit = population.draw(n, seed), min(max(population.value(figure), 0.0), 1.0)
    features = {"part": np.random.default_rng([seed, n]).integers(4, size=n)}
    verdict = check(data, features=features, **{GATED[figure]: {f"worst-group-{figure}": limit}}).verdict  # type: ignore[arg-type]
    shown, failed, passed = (float(held) for held in (verdict[0] != "n", verdict == "fail", verdict == "pass"))
    return {"shown": shown, "broken": failed, "passed": passed}


def _subgroups(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """A calibrated model is off in no group, whatever its probabilities: any is found in at most 5 %."""
    del figure
    data = population.calibrated.draw(n, seed)
    rng = np.random.default_rng([seed, n])
    features = {"even": rng.integers(4, size=n), "skewed": rng.geometric(0.4, size=n).clip(max=6)}
    found = subgroups(data, features, draws=2000, seed=seed)
    return {"shown": float(bool(found.rows)), "broken": float(found.p_value < 0.05)}


def _limit(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """A calibrated model exceeds its 97.5 % limit in at most 2.5 %."""
    data = population.calibrated.draw(n, seed)
    band = null_band(METRICS[figure], data, draws=1000, seed=seed)  # of 400, as formerly, 2.7 % are exceeded
    return {"shown": 1.0, "broken": float(METRICS[figure](data) > band.high + 1e-12)}


def _monitor(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """Labels that follow the reference's law never alarm, in at least 95 % of runs."""
    del figure
    both = population.draw(n + 1000, seed)
    return _watched(Monitor(both[:1000]), both[1000:])


def _watched(monitor: Monitor, rows: Predictions) -> dict[str, float]:
    """Look at ``rows`` in 20 batches, or in batches of 500 rows."""
    step = max(500, len(rows) // 20)
    for start in range(0, len(rows), step):
        batch = rows[start : start + step]  # with ids, since batches of one point mass may be equal
        monitor.update(batch, ids=range(start, start + len(batch)))
    return {"shown": 1.0, "broken": float(monitor.alarm)}


def _monitor_of_pairs(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """As ``_monitor``, of top-label pairs in 20 batches: rows of one kind are counted, so that their number costs nothing."""
    from benchmarks.monitor import Counts  # here, since it needs this commit's ``src`` (``POWERS``)

    del figure
    kind, labels, _, _ = population.sampled(n + 1000, seed)
    right, kinds = labels == population.predicted[kind], len(population.mass)

    def counted(rows: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.bincount(kind[rows], minlength=kinds), np.bincount(kind[rows][right[rows]], minlength=kinds)

    monitor, ends = Counts(population.p.max(axis=1), counted(slice(1000))), np.linspace(1000, n + 1000, 21, dtype=int)
    alarms = [monitor.update(counted(slice(*pair))) for pair in itertools.pairwise(ends)]
    return {"shown": 1.0, "broken": float(any(alarms))}


def _monitor_fitted(method: type[Calibrator]) -> "Trial":
    """Return the trial of a monitor whose reference are 300 rows that ``method`` was fitted on."""

    def trial(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
        del figure
        both = population.draw(n + 300, seed)
        fitted = method().fit(both[:300])
        rows = both[300:].calibrated_by(fitted, allow_fit_rows=True)
        return _watched(Monitor.from_fit(fitted, both[:300]), rows)

    return trial


@cache
def _figures(population: Population) -> tuple[Figure, Figure]:
    """Return correctness and log-loss of each kind of row."""
    kinds = Predictions.from_probs(torch.from_numpy(population.p))
    return correctness(kinds), loss(kinds)


def _estimate_by_kind(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """The interval holds what the window's labels say: ``estimate``'s own sums, of kinds instead of rows."""
    kind, labels, _, _ = population.sampled(n + 1000, seed)
    right, lost = _figures(population)
    with np.errstate(divide="ignore"):
        losses = -np.log(population.p[kind, labels])
    seen = losses if figure == "nll" else (labels == population.predicted[kind]).astype(float)
    if figure == "nll" and (np.isinf(seen[n:]).any() or (population.p[kind[:n]] == 0).any()):  # refused
        return {"shown": 0.0}
    of, event = (right, 1.0) if figure == "accuracy" else (lost, np.asarray(lost.event)[kind[n:]])
    window = Figure(of.expected[kind[:n]], of.variance[kind[:n]])
    reference = Figure(of.expected[kind[n:]], of.variance[kind[n:]], seen[n:], event)
    strata = Strata.of(right.expected[kind[:n]], right.expected[kind[n:]])
    found = projected(window, reference, strata, step=float(figure == "accuracy"))
    low, high = max(found.low, 0.0), min(found.high, 1.0 if figure == "accuracy" else np.inf)
    missed = not low - 1e-9 <= seen[:n].mean() <= high + 1e-9
    return {"shown": 1.0, "broken": float(missed), "length": high - low}


@lru_cache(maxsize=1)
def _estimated(population: Population, n: int, seed: int, change: float) -> tuple[Predictions, Estimate]:
    """Return a window and its estimate from 1,000 reference rows."""
    both = population.draw(n + 1000, seed)
    window, reference = both[:n], both[n:]
    if change:  # in every row, by as much as its probabilities allow
        window = population.changed(change if seed % 2 else -change).draw(n, seed + 10**6)
    unlabelled = Predictions.from_logits(window.logits, unchecked_kind=True)
    return window, estimate(unlabelled, reference=reference, sensitivity=change)


def _estimate(population: Population, figure: str, n: int, seed: int, *, change: float = 0.0) -> dict[str, float]:
    """The interval holds what the window's labels say, with labels given scores as in the reference, or off by ``change``."""
    window, found = _estimated(population, n, seed, change)
    shown = found if found.changed is None else found.changed
    ends = {"accuracy": shown.accuracy, "nll": shown.nll}[figure]
    if ends is None:
        return {"shown": 0.0}
    seen = float(METRICS[figure](window))
    missed = not ends.low - 1e-9 <= seen <= ends.high + 1e-9
    return {"shown": 1.0, "broken": float(missed), "length": ends.high - ends.low}


def _told_apart(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """A model and its over-confident copy: the more often they are told apart the better."""
    row = compare(*population.drawn(n, seed, with_p=population.sharpened(1.6)), metrics=[METRICS[figure]]).rows[0]
    return {"shown": float(row.p_value is not None), "rejected": float(row.winner is not None)}


def _labels_to_alarm(population: Population, figure: str, n: int, seed: int) -> dict[str, float]:
    """Decisions are right less often by 5 points: how many labels until the alarm, ``n`` if there is none."""
    del figure
    monitor, rows = Monitor(population.draw(1000, seed)), population.changed(-0.05).draw(n, seed)
    for start in range(0, n, n // 20):
        batch = rows[start : start + n // 20]
        if monitor.update(batch, ids=range(start, start + len(batch))).verdict == "alarm":
            return {"shown": 1.0, "labels": start + len(batch)}
    return {"shown": 0.0, "labels": n}


Trial = Callable[[Population, str, int, int], dict[str, float]]
# not promised: what a method finds, to be compared with another commit's (its ``src`` before this one's in PYTHONPATH)
POWERS: dict[str, tuple[Trial, str]] = {
    **{f"power-{figure}": (_told_apart, figure) for figure in ("accuracy", "nll", "brier")},
    "power-monitor": (_labels_to_alarm, "accuracy"),
}
PROMISES: dict[str, tuple[Trial, str]] = {
    **{f"interval-{figure}": (_interval, figure) for figure in INTERVALS},
    **{f"gate-{figure}": (_gate, figure) for figure in GATED},
    **{f"gate-worst-{figure}": (_worst_group, figure) for figure in GATED},
    **{f"no-worse-{figure}": (_no_worse, figure) for figure in NO_WORSE},
    **{f"compare-{figure}": (_compare, figure) for figure in ("nll", "brier")},
    "compare-all": (_exchangeable, "nll"),
    **{f"limit-{figure}": (_limit, figure) for figure in ("ece", "mass", "classwise", "toplabel", "debiased", "mce")},
    "subgroups": (_subgroups, "ece"),
    "monitor": (_monitor, "ece"),
    "monitor-pairs": (_monitor_of_pairs, "ece"),
    **{f"monitor-{name}": (_monitor_fitted(method), "ece") for name, method in FITTED.items()},
    **{f"estimate-{figure}": (_estimate_by_kind, figure) for figure in ("accuracy", "nll")},
    **{f"estimate-changed-{figure}": (partial(_estimate, change=0.05), figure) for figure in ("accuracy", "nll")},
}


def cells(
    promises: Sequence[str], source: Population, n: int, *, replicates: int, seed: int
) -> Iterator[dict[str, object]]:
    """Yield for each promise the means of every figure of ``replicates`` trials; nothing where it says nothing."""
    found: dict[str, list[dict[str, float]]] = {promise: [] for promise in promises}
    seconds = dict.fromkeys(promises, 0.0)
    for at in range(replicates):
        for promise in promises:  # one after the other, since they share the sample
            trial, figure = (PROMISES | POWERS)[promise]
            began = time.perf_counter()
            try:
                found[promise].append(trial(source, figure, n, seed + at))
            except CalibrantError:  # refused, which breaks no promise
                found[promise].append({"shown": 0.0})
            seconds[promise] += time.perf_counter() - began
    for promise, each in found.items():
        if names := dict.fromkeys(name for one in each for name in one):
            means = {name: float(np.mean([one[name] for one in each if name in one])) for name in names}
            # a broken promise is counted among all samples; a length is a mean, or median, over those that show one
            means |= (
                {"median": float(np.median([one["length"] for one in each if "length" in one]))}
                if "length" in names
                else {}
            )
            means["broken"] = sum(one.get("broken", 0.0) for one in each) / replicates
            where = {"promise": promise, "population": source.name, "n": n, "replicates": replicates, "seed": seed}
            yield {**where, **{k: round(v, 6) for k, v in means.items()}, "seconds": round(seconds[promise], 2)}


def run(
    promises: Sequence[str], ns: list[int], *, replicates: int, only: str, record: Path | None, seed: int = 1
) -> None:
    """Simulate each population to which a promise applies, and append a line to the record; what it holds is skipped."""
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    done = {(x["promise"], x["population"], x["n"], x["replicates"], x["seed"]) for x in map(json.loads, lines)}
    warnings.simplefilter("ignore")
    chosen = [source for source in POPULATIONS if any(part in source.name for part in only.split("|"))]
    for n, source in itertools.product(ns, chosen):
        left = [
            promise
            for promise in promises
            if source.applies(promise) and (promise, source.name, n, replicates, seed) not in done
        ]
        for line in cells(left, source, n, replicates=replicates, seed=seed):
            print(json.dumps(line), flush=True)
            if record is not None:
                with record.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def pooled(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the cells of a record; samples of one cell from several seeds count together."""
    cells: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in map(json.loads, lines):
        cell = cells.setdefault((line["promise"], line["population"], line["n"]), line)
        if cell is not line:
            before, more = cell["replicates"], line["replicates"]
            for name in {"shown", "broken", "passed"} & set(cell):
                cell[name] = (before * cell[name] + more * line[name]) / (before + more)
            cell["replicates"] = before + more
    return list(cells.values())


def table(lines: Iterable[str]) -> str:
    """Return a record as a table: for each promise its cells, how often it shows something, and where it breaks most."""
    cells = pooled(lines)
    rows = ["| promise | cells | shown | broken in | worst cell | beyond + 2 s.e. | + 3 s.e. |", "|" + " --- |" * 7]
    for promise in dict.fromkeys(one["promise"] for one in cells):
        mine = [one for one in cells if one["promise"] == promise]
        allowed = ALLOWED.get(promise.split("-")[0], 0.05)
        for one in mine:  # of a gate, either decision is wrong
            one["broken"] = max(one["broken"], one.get("passed", 0.0))
        error = [(allowed * (1 - allowed) / one["replicates"]) ** 0.5 for one in mine]
        beyond = [sum(one["broken"] > allowed + k * e for one, e in zip(mine, error, strict=True)) for k in (2, 3)]
        worst = max(mine, key=lambda one: one["broken"])
        shown, broken = (float(np.mean([one[key] for one in mine])) for key in ("shown", "broken"))
        place = f"{100 * worst['broken']:.1f} %: {worst['population']}, n = {worst['n']:,}"
        rows.append(
            f"| {promise} | {len(mine)} | {100 * shown:.0f} % | {100 * broken:.1f} % | {place} | {beyond[0]} | {beyond[1]} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "promise",
        nargs="+",
        choices=[*sorted(PROMISES | POWERS), "table"],
        help="what to simulate, or the record as a table",
    )
    parser.add_argument("--n", default="300,5000", help="numbers of rows, separated by commas")
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first sample; other samples of a cell count with it"
    )
    parser.add_argument("--only", default="", help="parts of the names of populations, separated by |")
    parser.add_argument("--record", type=Path, help="file of JSON lines, which a later run continues")
    chosen = parser.parse_args()
    if chosen.promise == ["table"]:
        print(table(chosen.record.read_text().splitlines()))
        return
    ns = [int(n) for n in chosen.n.split(",")]
    run(chosen.promise, ns, replicates=chosen.replicates, only=chosen.only, record=chosen.record, seed=chosen.seed)


if __name__ == "__main__":
    main()
