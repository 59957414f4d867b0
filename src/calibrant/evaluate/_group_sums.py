"""Sums over groups of rows: their gaps, how these vary together if the model is calibrated, and the largest of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.binning import BinTable, EqualWidth
from calibrant.data.predictions import BinaryPairs
from calibrant.evaluate._partition import Parts

Floats = NDArray[np.float64]
BINS = 15


@dataclass(frozen=True)
class EventRows:
    """The event of every row, as arrays; ``share`` adds up to 1, and ``noise`` is its variance's part if calibrated."""

    p: Floats
    y: Floats
    share: Floats
    noise: Floats
    third: Floats
    times: Floats  # rows that each row stands for
    bin: NDArray[np.int64]
    cluster: NDArray[np.int64] | None
    weight: Tensor | None

    @classmethod
    def of(cls, pairs: BinaryPairs) -> "EventRows":
        """Return the rows of ``pairs``."""
        p, y = pairs.p.cpu().double().numpy(), pairs.y.cpu().double().numpy()
        weight = None if pairs.weights is None else pairs.weights.cpu()
        once = np.ones(len(p)) if weight is None else weight.double().numpy()
        sampled = pairs.weight_kind == "sampling"
        share, variance = once / once.sum(), p * (1 - p)
        noise = variance * (share**2 if sampled else once / once.sum() ** 2)
        third = variance * (1 - 2 * p) * (share**3 if sampled else once / once.sum() ** 3)
        cluster = None
        if pairs.groups is not None:
            cluster = np.unique(pairs.groups.cpu().numpy(), return_inverse=True)[1]
        index = EqualWidth(BINS).assign(pairs.p.cpu()).numpy()
        return cls(p, y, share, noise, third, np.ones(len(p)) if sampled else once, index, cluster, weight)

    @property
    def degrees(self) -> int | None:
        """Clusters less one; None where rows are independent."""
        return None if self.cluster is None else int(self.cluster.max())


@dataclass(frozen=True)
class GroupSums:
    """One group: where its rows are, and their sums."""

    parts: Parts
    at: int
    table: BinTable
    n: int
    mass: float
    gap: float  # Σ share (p − y), of all rows' mass
    noise: float
    third: float
    expected: float
    null: Floats  # (B,) variance of each bin's part of the gap, if calibrated

    @classmethod
    def of(cls, rows: EventRows, parts: Parts, at: int) -> "GroupSums":
        """Return the sums of part ``at`` of ``parts``."""
        inside = np.flatnonzero(parts.code == at)
        share, p, y, home = rows.share[inside], rows.p[inside], rows.y[inside], rows.bin[inside]
        weight = None if rows.weight is None else rows.weight[torch.from_numpy(inside)]
        table = BinTable.from_pairs(
            torch.from_numpy(home), torch.from_numpy(p), torch.from_numpy(y), bins=BINS, weight=weight
        )
        noise = rows.noise[inside]
        total, effective = float(noise.sum()), float((share * p * (1 - p)).sum()) ** 2
        return cls(
            parts,
            at,
            table,
            round(float(rows.times[inside].sum())),
            float(share.sum()),
            float((share * (p - y)).sum()),
            total,
            float(rows.third[inside].sum()),
            effective / total if total > 0 else 0.0,
            np.asarray(np.bincount(home, weights=noise, minlength=BINS), dtype=np.float64),
        )


def covariance_of(rows: EventRows, found: Sequence[GroupSums]) -> Floats:
    """Return the covariance (G, G) of the groups' Σ share (p − y) if calibrated: over rows, or over clusters."""
    partitions = list({id(one.parts): one.parts for one in found}.values())
    places = {id(parts): [(i, one.at) for i, one in enumerate(found) if one.parts is parts] for parts in partitions}
    if rows.cluster is not None:
        residual = rows.share * (rows.p - rows.y)
        count = int(rows.cluster.max()) + 1
        sums = np.zeros((count, len(found)))
        for i, one in enumerate(found):
            inside = one.parts.code == one.at
            sums[:, i] = np.bincount(rows.cluster[inside], weights=residual[inside], minlength=count)
            sums[:, i] -= (
                sums[:, i].sum()
                * np.bincount(rows.cluster[inside], weights=rows.share[inside], minlength=count)
                / one.mass
            )
        return _at_least_of_rows(sums.T @ sums * (count / (count - 1)), found)
    covariance = np.zeros((len(found), len(found)))
    for first in partitions:
        for second in partitions:
            size = len(second.names)
            both = np.bincount(first.code * size + second.code, weights=rows.noise, minlength=len(first.names) * size)
            table = both.reshape(len(first.names), size)
            for i, at in places[id(first)]:
                for j, other in places[id(second)]:
                    covariance[i, j] = table[at, other]
    return covariance


def _at_least_of_rows(covariance: Floats, found: Sequence[GroupSums]) -> Floats:
    """Return the covariance with each variance at least that of independent rows, and the same correlations.

    Where few clusters have the event, the estimated variance is small in just those samples that have too few of them, whose gap is
    large. Rows of a cluster vary together, so that the variance of independent rows, which is known if calibrated, is a lower end.
    """
    own = np.diag(covariance)
    least = np.maximum(own, [one.noise for one in found])
    factor = np.sqrt(least / np.where(own > 0, own, least.clip(min=1e-300)))
    raised = covariance * np.outer(factor, factor)
    np.fill_diagonal(raised, least)
    return np.asarray(raised)


def largest_drawn(covariance: Floats, *, degrees: int | None, draws: int, seed: int) -> Floats:
    """Return the largest |statistic| (draws,) over groups, in order of size: of Student's t with few clusters."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # the symmetric one, which rounding does not turn
    rng = np.random.default_rng(seed)
    found, step = np.empty(draws), max(1, (1 << 22) // len(spread))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        drawn = rng.standard_normal((size, len(spread))) @ root
        if degrees is not None:
            drawn /= np.sqrt(rng.chisquare(degrees, size=(size, 1)) / degrees)
        found[start : start + size] = np.abs(drawn).max(axis=1)
    return np.sort(found)


def gap_spread(group: GroupSums, rows: EventRows) -> tuple[float, float]:
    """Return the standard error of the gap, whether or not the group is calibrated, and the skewness to correct its interval for.

    The standard error is at least that of a calibrated group. The skewness is that of the rows' (or clusters') own contributions:
    few events make the gap skewed, so that a symmetric interval misses on one side. It is 0 where the symmetric interval covers
    better in simulation: for sampling weights, whose few large ones make the estimated skewness noise, and where the standard error
    is that of a calibrated group, which does not vary with the outcomes.
    """
    inside = group.parts.code == group.at
    share = rows.share[inside] / group.mass
    part = share * (rows.p[inside] - rows.y[inside] - group.gap / group.mass)
    sampled = rows.weight is not None and rows.weight.is_floating_point()
    times, factor = np.ones(1), 1.0
    if rows.cluster is not None:
        part = np.bincount(rows.cluster[inside], weights=part)
        factor = (rows.degrees + 1) / rows.degrees if rows.degrees else 0.0
    elif not sampled:
        times = rows.times[inside]
        part = part / times
    square, cube = (float((times * part**power).sum()) for power in (2, 3))
    error, calibrated = math.sqrt(square * factor), math.sqrt(group.noise) / group.mass
    skew = cube / square**1.5 if error > calibrated and not sampled else 0.0
    return max(error, calibrated), skew
