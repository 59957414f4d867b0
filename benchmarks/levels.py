"""How often a calibrated model exceeds its 97.5 % limit if calibrated, for binned errors and SmoothECE: rows, and rows in groups.

The limit of every sample is the second largest of 79 draws under calibration, which one calibrated sample in forty exceeds if the
draws are what they should be. They are those of ``null_draws``; errors of the same bins share them. Metrics that have no draws of
their own draw labels anew and measure, so that their draws and the sample are alike by construction.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks.groups import ATOMS, EFFECTS, SEED, SIZES, marginal, sigmoid
from benchmarks.mechanisms import Population
from benchmarks.samples import Samples
from calibrant import BinaryPairs, Decisions, Predictions
from calibrant.binning import EqualMass
from calibrant.metrics import (
    ACE,
    ECE,
    MCE,
    ClasswiseECE,
    DebiasedECE,
    Metric,
    SmoothECE,
    SquaredGaps,
    TopLabelECE,
)
from calibrant.metrics._base import BinnedMetric
from calibrant.statistics import null_draws

WIDTH: tuple[BinnedMetric, ...] = (ECE(), ECE(norm=2), ACE(), MCE(), DebiasedECE(), SquaredGaps())
BINNED: tuple[tuple[BinnedMetric, ...], ...] = (WIDTH, (ECE(EqualMass()),))
# of 80 exchangeable values each lies above the 78th of the 79 others, in ascending order, in 2.5 % of cases
DRAWS, PLACE = 79, 78
CLASSWISE, SMOOTH = 300, 100  # samples a cell of the two that take longest
SMOOTH_CLASSES, SLOW_ROWS = 10, 300  # it sees the confidences alone; the number of rows that both are tried with


@dataclass
class Shares:
    """For each metric, which samples lay above their limits, and its values."""

    above: dict[str, list[bool]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, metric: Metric, value: float, drawn: torch.Tensor) -> None:
        """Add a sample: the value of ``metric``, and those drawn under calibration (draws,)."""
        limit = float(drawn.sort().values[PLACE - 1])
        self.above.setdefault(repr(metric), []).append(value > limit + 1e-12)
        self.values.setdefault(repr(metric), []).append(value)

    def plain(self) -> dict[str, dict[str, float]]:
        """Return them for the record."""
        return {
            name: {
                "above": round(float(np.mean(above)), 5),
                "replicates": len(above),
                "mean": round(float(np.mean(self.values[name])), 5),
            }
            for name, above in self.above.items()
        }


def level_cells(source: Population, rows: int, replicates: int, seed: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield how often each metric of a calibrated ``source`` exceeds its limit at a number of ``rows``."""
    name = f"levels | {source.name} | n = {rows}"
    if name in done:
        return
    started, shares = time.process_time(), Shares()
    samples = Samples.draw(source, np.random.default_rng([seed, rows, 1]), replicates=replicates, rows=rows)
    for at in range(replicates):
        atom, label = samples.atom[at], samples.label[at]
        add_binned(shares, pairs_of(source, atom, label), seed=at)
        if rows == SLOW_ROWS and at < CLASSWISE:
            add_drawn(shares, ClasswiseECE(), Predictions.from_probs(source.p[atom], label), seed=at)
        if rows == SLOW_ROWS and source.classes == SMOOTH_CLASSES and at < SMOOTH:
            add_drawn(shares, SmoothECE(), pairs_of(source, atom, label), seed=at)
    yield _cell(name, replicates, shares, started)


def pairs_of(source: Population, atom: Any, label: Any) -> BinaryPairs:
    """Return confidences, correctness and decisions of rows."""
    predicted = source.predicted[atom]
    p, y = torch.from_numpy(source.confidence[atom]), torch.from_numpy((predicted == label).astype(float))
    return Decisions(p, y, decision=torch.from_numpy(predicted))


def group_level_cells(replicates: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield how often each binned metric of a calibrated model exceeds its limit, for rows in groups with effects."""
    for effect in EFFECTS:
        for groups, rows in SIZES:
            name = f"levels of groups | effects of sd {effect:g} | {groups} × {rows}"
            if name in done:
                continue
            started, shares, sample = time.process_time(), Shares(), grouped(groups, rows, effect)
            for at in range(replicates):
                data = sample(at)
                predicted = data.predicted
                pairs = Decisions(data.confidence, data.correct.double(), decision=predicted, groups=data.groups)
                add_binned(shares, pairs, seed=at)
                if at < CLASSWISE:
                    add_drawn(shares, ClasswiseECE(), data, seed=at)
            yield _cell(name, replicates, shares, started)


def add_binned(shares: Shares, data: BinaryPairs, *, seed: int) -> None:
    """Add the binned errors of a sample, those of the same bins from the same draws."""
    add_drawn(shares, TopLabelECE(), data, seed=seed)
    for metrics in BINNED:
        moments = metrics[0].moments(data)
        table, drawn = moments.table, moments.null(metrics[0], draws=DRAWS, seed=seed)
        for metric in metrics:
            shares.add(metric, float(metric.errors(table)), metric.errors(drawn))


def add_drawn(shares: Shares, metric: Metric, data: Any, *, seed: int) -> None:
    """Add the value of a sample by a metric that draws for itself."""
    shares.add(metric, metric(data), null_draws(metric, data, draws=DRAWS, seed=seed))


def grouped(groups: int, rows: int, effect: float) -> Callable[[int], Predictions]:
    """Return what draws the sample of a number: ``groups`` of ``rows``, with effects of a standard deviation on the log-odds."""
    base, truth = marginal(effect)
    seen, group = np.stack([truth, 1 - truth], axis=1), np.repeat(np.arange(groups), rows)

    def sample(at: int) -> Predictions:
        rng = np.random.default_rng([SEED, groups, rows, at])
        atom = rng.integers(ATOMS, size=groups * rows)
        lift = rng.normal(0, effect, groups)[group]
        wrong = (rng.random(groups * rows) > sigmoid(base[atom] + lift)).astype(np.int64)
        return Predictions.from_probs(seen[atom], wrong, groups=group)

    return sample


def _cell(name: str, replicates: int, shares: Shares, started: float) -> dict[str, Any]:
    spent = round(time.process_time() - started, 1)
    return {"cell": name, "replicates": replicates, "metrics": shares.plain(), "cpu_s": spent}
