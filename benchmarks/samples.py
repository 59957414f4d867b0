"""Many samples of a population at once, and how often each metric's interval misses: by the library's own batched functions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.mechanisms import Floats, Ints, Population
from calibrant.binning import BinTable, EqualWidth
from calibrant.metrics.debiased import few_bins_decide, square_error
from calibrant.statistics.binned import chance_decides, corrected_error, interval_ends, squared_error, table_error
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.interval import share_interval
from calibrant.statistics.means import mean_interval

BINS = 15
DRAWS = 200  # outcome sets behind each sample's level if calibrated
Z = 1.959963984540054


@dataclass(frozen=True)
class Samples:
    """``replicates`` samples of a population: atom and label of every row (R, N), and counts by atom (R, M)."""

    population: Population
    atom: Ints
    label: Ints
    count: Floats
    right: Floats

    @classmethod
    def draw(cls, source: Population, rng: np.random.Generator, *, replicates: int, rows: int) -> "Samples":
        """Return samples of ``rows`` rows."""
        atom, label = source.draw(rng, samples=replicates, rows=rows)
        size = len(source.p)
        flat = (np.arange(replicates)[:, None] * size + atom).reshape(-1)
        right = (source.predicted[atom] == label).reshape(-1)
        counts = [
            np.bincount(flat, weights=w, minlength=replicates * size).reshape(replicates, size) for w in (None, right)
        ]
        return cls(source, atom, label, counts[0].astype(float), counts[1].astype(float))

    @property
    def rows(self) -> int:
        """N."""
        return self.atom.shape[1]

    @property
    def few(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(R,) whether fewer than ten decisions are wrong, or right."""
        right = self.right.sum(axis=1)
        return np.minimum(right, self.rows - right) < FEWEST


def figures(low: Floats, high: Floats, truth: Floats | float, refused: Any) -> dict[str, float]:
    """Return the share of all samples that were refused, those that miss below and above, and the mean length of the others."""
    kept = ~np.asarray(refused)
    return {
        "refused": round(float(1 - kept.mean()), 4),
        "too_high": round(float((kept & (low > truth + 1e-12)).mean()), 4),
        "too_low": round(float((kept & (high < truth - 1e-12)).mean()), 4),
        "length": round(float((high - low)[kept].mean()), 5) if kept.any() else 0.0,
    }


def mean_hits(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the figures of accuracy, log-loss and Brier score."""
    source, few = samples.population, samples.few
    ends = {int(x): share_interval(int(x), samples.rows) for x in np.unique(samples.right.sum(axis=1))}
    of = [ends[int(x)] for x in samples.right.sum(axis=1)]
    low, high = np.array([e.low for e in of]), np.array([e.high for e in of])
    found = {"Accuracy": figures(low, high, float(source.accuracy.mean()), np.zeros(len(few), dtype=bool))}
    for name, values in (("NLL", source.nll), ("Brier", source.brier)):
        ends_of = np.zeros((2, len(few)))
        for at in np.flatnonzero(~few):
            one = mean_interval(torch.from_numpy(values[samples.atom[at], samples.label[at]]))
            ends_of[:, at] = one.low, one.high
        found[name] = figures(*ends_of, float((source.truth * values).sum(axis=1).mean()), few)
    return found


def binned_hits(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the figures of the binned errors that offer an interval, classwise only where it may be offered."""
    few = samples.few
    found = {}
    for name, table, delta, mass in binned_tables(samples):
        estimate, refused = estimate_of(name, samples, table)
        low, high = ends_of(table, estimate, refused)
        found[name] = figures(low, high, np.abs(delta).sum(axis=1), refused)
        if name == "ECE":
            square, error = squared_error(table), square_error(table)
            half = Z * error
            low, high = ((square + sign * half).clamp_min(0).sqrt().numpy() for sign in (-1, 1))
            true = np.sqrt((delta**2 / np.maximum(mass, 1e-300)).sum(axis=1))
            refused = few_bins_decide(table, square, error, level=0.95).numpy() | few
            found["DebiasedECE"] = figures(low, high, true, refused)
    found["ClasswiseECE"] = figures(*classwise_ends(samples))
    return found


def binned_tables(samples: Samples) -> Iterator[tuple[str, BinTable, Floats, Floats]]:
    """Yield each metric on bins with its tables, the bins' true weighted gaps and their true masses."""
    for name, index, bins in binnings(samples):
        yield (name, *tables_of(samples, index, bins))


def estimate_of(name: str, samples: Samples, table: BinTable) -> tuple[Any, Any]:
    """Return a binned error with its standard error, and (R,) for which samples its interval is refused."""
    corrected = corrected_error(table)
    estimate = replace(corrected, error=table_error(table))
    refused = chance_decides(table, estimate).numpy()
    if name == "TopLabelECE":
        wrong = samples.rows - samples.right.sum(axis=1)
        filled = (table.count > 0).sum(dim=1).numpy()
        refused = refused | samples.few | (np.minimum(wrong, samples.rows - wrong) < np.ceil(filled / 2))
    return estimate, refused


def binnings(samples: Samples) -> Iterator[tuple[str, Ints, int]]:
    source = samples.population
    width = EqualWidth(BINS).assign(torch.from_numpy(source.confidence)).numpy()
    yield "ECE", width, BINS
    yield "ECE, equal mass", _equal_mass(samples), BINS
    yield "TopLabelECE", source.predicted * BINS + width, BINS * source.classes


def _equal_mass(samples: Samples) -> Ints:
    """Return the bin (R, M) of each atom that ``EqualMass(15)`` makes of each sample."""
    values, home = np.unique(samples.population.confidence, return_inverse=True)
    counts = np.zeros((len(samples.count), len(values)))
    np.add.at(counts.T, home, samples.count.T)
    up_to = counts.cumsum(axis=1)
    size, larger = divmod(samples.rows, BINS)
    part, index = np.arange(1, BINS), np.zeros(counts.shape, dtype=np.int64)
    for start in part * size + np.minimum(part, larger):
        last_before = (up_to <= start - 1 + 1e-9).sum(axis=1)
        index += np.arange(len(values)) > last_before[:, None]
    return index[:, home]


def tables_of(samples: Samples, index: Ints, bins: int) -> tuple[BinTable, Floats, Floats]:
    """Return the samples' tables (R, B) of filled bins, and the population's weighted gaps and masses in these bins."""
    source, replicates = samples.population, len(samples.count)
    gap = (source.confidence - source.accuracy) / len(source.p)
    weights = [samples.count, samples.count * source.confidence, samples.right]
    if index.ndim == 1:
        used, place = np.unique(index, return_inverse=True)
        member = np.zeros((len(source.p), len(used)))
        member[np.arange(len(place)), place] = 1
        sums = [w @ member for w in weights]
        delta, mass = (gap @ member)[None], (member.mean(axis=0))[None]
    else:
        flat = (np.arange(replicates)[:, None] * bins + index).reshape(-1)
        rest = [np.broadcast_to(gap, index.shape), np.full(index.shape, 1 / len(source.p))]
        *sums, delta, mass = (
            np.bincount(flat, weights=np.ravel(w), minlength=replicates * bins).reshape(replicates, bins)
            for w in [*weights, *rest]
        )
    count, sum_p, sum_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in sums)
    return BinTable(count, sum_p, sum_y, samples.rows), delta, mass


def ends_of(table: BinTable, found: Any, refused: Any) -> tuple[Floats, Floats]:
    """Return both ends (R,); the level if calibrated is drawn where it matters: where the plug-in lies above its mean."""
    gate = torch.full_like(found.plug_in, torch.inf)
    matters = np.flatnonzero((found.corrected > Z * found.error).numpy() & ~refused)
    p = (table.sum_p / table.count.clamp_min(1)).clamp(0, 1).numpy()
    rng = np.random.default_rng(1)
    for at in np.array_split(matters, max(1, len(matters) // 50)):
        if len(at):
            n = table.count[at].numpy().astype(np.int64)
            y = rng.binomial(n[:, None], p[at][:, None], size=(len(at), DRAWS, n.shape[1]))
            error = np.abs(table.sum_p[at].numpy()[:, None] - y).sum(axis=2) / table.total
            gate[at] = torch.from_numpy(np.quantile(error, 0.975, axis=1))
    low, high = interval_ends(found, gate)
    return low.numpy(), high.clamp_max(1).numpy()


def classwise_ends(samples: Samples) -> tuple[Floats, Floats, Any, Any]:
    """Return both ends (R,) of the interval of ``ClasswiseECE``, the truth, and for which samples it is refused."""
    return two_class_ends(samples) if samples.population.classes == 2 else all_class_ends(samples, ~samples.few)


def all_class_ends(samples: Samples, tried: Any, *, refuse: bool = True) -> tuple[Floats, Floats, float, Any]:
    """Return the same of the bins of all classes as one table, for the samples (R,) that are tried; the others are refused.

    Without ``refuse`` no sample is refused for its chance, as version 0.1.0 refused none.
    """
    source, classes = samples.population, samples.population.classes
    cell = EqualWidth(BINS).assign(torch.from_numpy(source.p.reshape(-1))).numpy().reshape(source.p.shape)
    cell = cell + np.arange(classes) * BINS
    used, cell = np.unique(cell, return_inverse=True)
    cell, size = cell.reshape(source.p.shape), len(used)
    atoms = np.repeat(np.arange(len(source.p)), classes)
    member, mass = np.zeros((len(source.p), size)), np.zeros((len(source.p), size))
    member[atoms, cell.reshape(-1)] = 1
    mass[atoms, cell.reshape(-1)] = source.p.reshape(-1)
    delta = np.bincount(cell.reshape(-1), weights=(source.p - source.truth).reshape(-1) / len(source.p), minlength=size)
    truth, kept = float(np.abs(delta).sum()) / classes, np.flatnonzero(tried)
    low, high, refused = np.zeros(len(tried)), np.zeros(len(tried)), ~np.asarray(tried)
    for block in np.array_split(kept, max(1, len(kept) // 50)):
        if not len(block):
            continue
        hit = cell[samples.atom[block], samples.label[block]]
        flat = (np.arange(len(block))[:, None] * size + hit).reshape(-1)
        sum_y = np.bincount(flat, minlength=len(block) * size).reshape(len(block), size).astype(float)
        counts = samples.count[block]
        parts = (torch.from_numpy(part) for part in (counts @ member, counts @ mass, sum_y))
        table = BinTable(*parts, samples.rows)
        sign = np.sign(table.gap.numpy())
        by_atom = sign @ mass.T
        signed = np.take_along_axis(by_atom, samples.atom[block], 1) - np.take_along_axis(sign, hit, 1)
        error = torch.from_numpy(signed.std(axis=1) / np.sqrt(samples.rows))
        found = corrected_error(table)
        found = replace(found, error=error)
        refused[block] = refuse & chance_decides(table, found).numpy()
        ends = ends_of(table, found, refused[block])
        low[block], high[block] = (end / classes for end in ends)
    return low, high, truth, refused


def two_class_ends(samples: Samples) -> tuple[Floats, Floats, Floats, Any]:
    """Return the same for two classes: the interval is that of the one class's binary ECE."""
    source = samples.population
    p, truth = np.ascontiguousarray(source.p[:, 1]), source.truth[:, 1]
    size = len(p)
    flat = (np.arange(len(samples.count))[:, None] * size + samples.atom).reshape(-1)
    hits = np.bincount(flat, weights=(samples.label == 1).reshape(-1), minlength=len(samples.count) * size)
    binary = replace(
        samples,
        population=SimpleNamespace(p=source.p, confidence=p, accuracy=truth),
        right=hits.reshape(len(samples.count), size).astype(float),
    )
    index = EqualWidth(BINS).assign(torch.from_numpy(p)).numpy()
    table, delta, _ = tables_of(binary, index, BINS)
    found = corrected_error(table)
    found = replace(found, error=table_error(table))
    refused = chance_decides(table, found).numpy() | samples.few
    return *ends_of(table, found, refused), np.abs(delta).sum(axis=1), refused
