"""Resampled means, for all bootstraps of this package."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import NoIntervalError

Floats: TypeAlias = NDArray[np.float64]

BLOCKS = 20_000  # with more than three times as many units, random blocks are drawn: the same limit in bounded time
_CHUNK = 1 << 18  # counts that fit the second-level cache


def units_of(
    columns: Tensor, groups: Tensor | None, *, seed: int, weight: Tensor | None = None
) -> tuple[Floats, Floats]:
    """Return the sums (U, C) of ``columns`` (N, C) over the resampling units, and the size (U,) of each.

    A unit is a group; without groups a row, of which its weight is the size. More than
    ``3 * BLOCKS`` units are put together into random blocks.
    """
    values: Floats = columns.detach().cpu().double().numpy()
    sizes: Floats = np.ones(len(values))
    if weight is not None:
        sizes = weight.cpu().double().numpy()
        values = values * sizes[:, None]
    if groups is not None:
        _, codes = np.unique(groups.cpu().numpy(), return_inverse=True)
        values = _sum_by(codes, values, int(codes.max()) + 1)
        sizes = np.asarray(np.bincount(codes, weights=sizes), dtype=np.float64)
    if values.shape[0] > 3 * BLOCKS:
        order = np.random.default_rng(seed).permutation(values.shape[0])
        codes = np.empty_like(order)
        codes[order] = np.arange(order.shape[0]) % BLOCKS
        values = _sum_by(codes, values, BLOCKS)
        sizes = np.asarray(np.bincount(codes, weights=sizes))
    return values, sizes


def count_units(rows: Tensor, groups: Tensor | None) -> int:
    """Return the number of independent units among rows (N, …): rows, or groups."""
    return int(rows.shape[0] if groups is None else groups.unique().shape[0])


def _sum_by(codes: NDArray[np.int64], values: Floats, units: int) -> Floats:
    columns = [np.bincount(codes, weights=column, minlength=units) for column in values.T]
    return np.stack(columns, axis=1)


def resampled_means(
    columns: Tensor, *, groups: Tensor | None, draws: int, seed: int, weight: Tensor | None = None
) -> Floats:
    """Return the means (draws, C) of ``columns`` (N, C) over rows drawn with replacement, the same rows for all columns.

    Raises:
        NoIntervalError: For a single row or group.
    """
    if count_units(columns, groups) < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to resample", "one", "measure on more data")
    values, sizes = units_of(columns, groups, seed=seed, weight=weight)
    centre = values.sum(axis=0) / sizes.sum()
    values = values - sizes[:, None] * centre  # centred, so that the product below does not lose digits
    table = np.concatenate([values, sizes[:, None]], axis=1)
    drawn = np.concatenate([counts @ table for counts in _draw_counts(draws, values.shape[0], seed)])
    means: Floats = centre + drawn[:, :-1] / drawn[:, -1:]
    return means


def _draw_counts(draws: int, units: int, seed: int) -> Iterator[Floats]:
    """Yield blocks (d, units) of multinomial counts: how often each unit is drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // units)
    for start in range(0, draws, step):
        block = min(step, draws - start)
        chosen = rng.integers(units, size=(block, units), dtype=np.uint32).astype(np.int64)
        chosen += np.arange(block)[:, None] * units
        counts = np.bincount(chosen.reshape(-1), minlength=block * units)
        yield counts.reshape(block, units).astype(np.float64)


def quantiles(values: Floats, *, level: float) -> tuple[float, float]:
    """Return the quantiles that leave (1 − level) / 2 on either side."""
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
