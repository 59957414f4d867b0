"""The isotonic (CORP) reliability diagram: the isotonic regression, its consistency band, and the Brier decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.constraints import Count, Level, Seed, checked
from calibrant.binning import EqualMass
from calibrant.plot.arguments import PlainRows
from calibrant.plot.diagrams import event_pairs, to_cpu

__all__ = ["IsotonicDiagram", "isotonic_diagram", "isotonic_of_cells"]

Floats = NDArray[np.float64]
_CELLS = 1000  # largest number of values of p at which the band is simulated: more would change it by less than a line's width


@dataclass(frozen=True)
class IsotonicDiagram:
    """An isotonic reliability diagram as numbers.

    Args:
        p: Probabilities at the knots of the curve, increasing.
        recalibrated: The event's frequency by isotonic regression at each.
        band_p: Probabilities at which the band is given.
        band_low: A calibrated model's curve lies below this in (1 − level) / 2 of samples.
        band_high: A calibrated model's curve lies above this in (1 − level) / 2 of samples.
        miscalibration: Mean Brier score minus that of the recalibrated probabilities, ≥ 0.
        discrimination: Brier score of the base rate minus that of the recalibrated probabilities, ≥ 0.
        uncertainty: Brier score of the base rate.
        n: Rows.
    """

    p: Sequence[float]
    recalibrated: Sequence[float]
    band_p: Sequence[float]
    band_low: Sequence[float]
    band_high: Sequence[float]
    miscalibration: float
    discrimination: float
    uncertainty: float
    n: int


@checked
def isotonic_diagram(data: PlainRows, *, draws: Count = 200, level: Level = 0.95, seed: Seed = 0) -> IsotonicDiagram:
    """Return the isotonic diagram of an event's probability, with its consistency band.

    Isotonic regression determines the bins. The band is simulated: labels are drawn with the predicted probabilities and
    the regression is repeated on each draw. With more than 1,000 distinct probabilities, the band (not the curve) uses
    1,000 cells of equal mass.

    Args:
        data: Two-class predictions (probability of class 1), pairs, or predictions (confidence of the top label).
        draws: Label sets for the band, ≥ 1.
        level: Coverage of the band, point by point, in (0, 1).
        seed: Same seed, same band.

    Raises:
        InputError: If there are no rows.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> diagram = isotonic_diagram(BinaryPairs.from_probs([0.1, 0.4, 0.8, 0.9], [0, 1, 0, 1]))
        >>> diagram.recalibrated
        [0.0, 0.5, 0.5, 1.0]

    References:
        Dimitriadis, Gneiting & Jordan 2021, Stable reliability diagrams for probabilistic classifiers, PNAS.
    """
    p, y = (column.numpy() for column in to_cpu(event_pairs(data)))
    table = EqualMass(_CELLS).table(torch.from_numpy(p), torch.zeros(len(p), dtype=torch.float64))
    kept = table.count > 0
    cells = (table.count[kept].numpy().astype(np.float64), table.sum_p[kept].numpy())
    brier = float(np.mean((p - y) ** 2))
    return isotonic_of_cells(*_distinct(p, y), brier, band=cells, draws=draws, level=level, seed=seed)


def isotonic_of_cells(
    places: Floats,
    count: Floats,
    hits: Floats,
    brier: float,
    *,
    band: tuple[Floats, Floats],
    draws: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> IsotonicDiagram:
    """Return the isotonic diagram of rows that were summed by their probability.

    Args:
        places: (C,) probabilities, increasing.
        count: (C,) rows at each.
        hits: (C,) events among them.
        brier: Mean (p − y)² of the rows.
        band: (B,) counts and (B,) sums of p of the cells in which the band is drawn.
        draws: As in ``isotonic_diagram``.
        level: As there.
        seed: As there.
    """
    fitted, rows = _isotonic(hits / count, count), float(count.sum())
    knots, base = _ends_of_blocks(fitted), float(hits.sum()) / rows
    # Σ (m − y)² / N for y in {0, 1} is Σ (n m² − 2 m Σy + Σy) / N
    after = float((count * fitted**2 - 2 * fitted * hits + hits).sum()) / rows
    rest = base * (1 - base)
    band_p, low, high = _band(*band, draws=draws, level=level, seed=seed)
    return IsotonicDiagram(
        p=places[knots].tolist(),
        recalibrated=fitted[knots].tolist(),
        band_p=band_p.tolist(),
        band_low=low.tolist(),
        band_high=high.tolist(),
        miscalibration=max(brier - after, 0.0),
        discrimination=max(rest - after, 0.0),
        uncertainty=rest,
        n=round(rows),
    )


def _distinct(p: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the distinct values of p in increasing order, with the number of rows and of events at each."""
    places, code, count = np.unique(p, return_inverse=True, return_counts=True)
    hits: Floats = np.bincount(code, weights=y, minlength=len(places)).astype(np.float64)
    return places, count.astype(np.float64), hits


def _isotonic(values: Floats, weights: Floats) -> Floats:
    from scipy.optimize import isotonic_regression

    fitted: Floats = np.clip(isotonic_regression(values, weights=weights).x, 0.0, 1.0)
    return fitted


def _ends_of_blocks(fitted: Floats) -> NDArray[np.int64]:
    """Return the first and last index of every run of equal values."""
    change = np.flatnonzero(np.diff(fitted)) + 1
    starts, ends = np.concatenate([[0], change]), np.concatenate([change, [len(fitted)]]) - 1
    return np.unique(np.stack([starts, ends], axis=1).ravel()).astype(np.int64)


def _band(count: Floats, sum_p: Floats, *, draws: int, level: float, seed: int) -> tuple[Floats, Floats, Floats]:
    mean = np.clip(sum_p / count, 0.0, 1.0)
    drawn = np.random.default_rng(seed).binomial(count.astype(np.int64), mean, size=(draws, len(count)))
    curves = np.stack([_isotonic(hits / count, count) for hits in drawn])
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return mean, low, high
