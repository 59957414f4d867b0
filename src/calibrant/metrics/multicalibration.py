"""The multicalibration error: the largest Kuiper error of a segment relative to its standard deviation if calibrated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import IS_TEXT, Count, Each, Integer, Natural
from calibrant.data.checks import Data, Rows
from calibrant.data.predictions import BinaryPairs
from calibrant.data.record import Column
from calibrant.metrics._base import Metric

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_FEW = 1 << 16  # codes below this fit uint16, for which numpy's stable sort is a radix sort


@dataclass(frozen=True)
class MulticalibrationError(Metric):
    """max_s (K_s / σ_s) · σ over segments s of the features: K_s the Kuiper error, σ_s its scale if calibrated, σ that of all rows.

    K_s is the range of Σ_{p_i ≤ v} (y_i − p_i) / N_s over v, σ_s = √Σ p_i (1 − p_i) / N_s. Segments are all rows, the values of each
    feature, and intersections of up to ``depth`` features; numbers are split at quantiles, and rare names are merged. The event is
    class 1 of two classes, a correct decision for more classes, and for pairs their outcome. Without features it is the Kuiper
    error. Being a maximum over segments, it increases with their number by chance alone: compare models on the same rows and
    segments. ``evaluate.subgroups`` lists the groups that are miscalibrated.

    Args:
        columns: Names of features, or None for all.
        depth: Largest number of features that define a segment.
        values: Largest number of parts of a feature.
        minimum: Segments with fewer rows are left out.
        most: After this many segments no further ones are formed.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> pairs = BinaryPairs.from_probs(
        ...     [0.5] * 40, [1] * 15 + [0] * 5 + [1] * 5 + [0] * 15, features={"site": [0] * 20 + [1] * 20}
        ... )
        >>> MulticalibrationError(depth=0)(pairs), round(MulticalibrationError()(pairs), 4)
        (0.0, 0.1768)

    References:
        Guy et al. 2025, Measuring multi-calibration; Arrieta-Ibarra et al. 2022.
    """

    columns: Annotated[tuple[str, ...], Each(IS_TEXT, least=1)] | None = None
    depth: Natural = 3
    values: Annotated[int, Integer(2)] = 3
    minimum: Count = 10
    most: Count = 1000

    bounds = (0.0, math.inf)
    notion = "multicalibration"
    cite = "Guy et al. 2025"

    def __call__(self, data: Rows) -> float:
        """Return the error, on the scale of probabilities; +inf if a segment has σ_s = 0 and a wrong probability of 0 or 1."""
        pairs = (
            data if isinstance(data, BinaryPairs) else (data.one_vs_rest(1) if data.classes == 2 else data.top_label())
        )
        columns = (pairs.p, pairs.y, pairs.row_weights, pairs.row_weights.square())
        p, y, once, square = (part.cpu().double().numpy() for part in columns)
        order = np.argsort(p, kind="stable")
        p, y, once, square = (part[order] for part in (p, y, once, square))
        noise = square * p * (1 - p)
        codes = [_part_of_rows(column, self.values)[order] for column in self._chosen(data)]
        scale, worst, seen = math.sqrt(float(noise.sum())) / float(once.sum()), 0.0, 0
        for code in _partitions(codes, self.depth, len(p)):
            if seen >= self.most:
                break
            count = np.bincount(code)
            kept = count >= min(self.minimum, len(p))
            seen += int(kept.sum())
            error = _ranges(code, p, once * (y - p))
            spread = np.sqrt(np.bincount(code, weights=noise))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(spread > 0, error / spread, np.where(error > 0, np.inf, 0.0))
            worst = max(worst, float(ratio[kept].max(initial=0.0)))
        return worst * scale if math.isfinite(worst) else math.inf

    def _chosen(self, data: Data) -> list[Column]:
        own = data.features or {}
        names = list(own) if self.columns is None else list(self.columns)
        if missing := [name for name in names if name not in own]:
            got = ", ".join(map(repr, sorted(own))) or "none"
            raise refuse(f"the feature {missing[0]!r}", got, "pass it when making the predictions")
        return [own[name] for name in names]


def _part_of_rows(column: Column, values: int) -> Codes:
    """Return the part (N,) of each row: one for all rare names, numbers between quantiles, one for NaN."""
    if isinstance(column, Tensor):
        numbers = column.cpu().double().numpy()
        missing = np.isnan(numbers)
        code = np.unique(numbers, return_inverse=True)[1]
        present = numbers[~missing]
        if len(np.unique(present)) > values:
            edges = np.unique(np.quantile(present, np.linspace(0, 1, values + 1)))
            code = np.searchsorted(edges[1:-1], numbers, side="left")
            code[missing] = len(edges)
        return code.astype(np.int64)
    names, code, count = np.unique(column, return_inverse=True, return_counts=True)
    if len(names) > values:
        order = np.argsort(-count, kind="stable")
        place = np.empty(len(names), dtype=np.int64)
        place[order] = np.arange(len(names)).clip(max=values - 1)
        code = place[code]
    return code.astype(np.int64)


def _partitions(codes: Sequence[Codes], depth: int, rows: int) -> Iterator[Codes]:
    """Yield the segment (N,) of each row: one for all rows, then by each feature, by each pair of features …"""
    yield np.zeros(rows, dtype=np.int64)
    for size in range(1, min(depth, len(codes)) + 1):
        for chosen in combinations(codes, size):
            code = chosen[0]
            # mixed radix: (a, b) → a · (max b + 1) + b is one number per combination
            for other in chosen[1:]:
                code = code * (int(other.max()) + 1) + other
            small = int(code.max()) < _FEW  # then empty codes cost less than removing them
            yield code if small else np.unique(code, return_inverse=True)[1].astype(np.int64)


def _ranges(code: Codes, p: Floats, residual: Floats) -> Floats:
    """Return the range (G,) of each segment's residuals, summed in ascending order of probability; ties are one step."""
    order = np.argsort(code.astype(np.uint16) if code.max() < _FEW else code, kind="stable")  # a radix sort of few bits
    code, p = code[order], p[order]
    start = np.flatnonzero(np.r_[True, np.diff(code) > 0])
    # one cumulative sum for all segments: what stood before a segment's start is subtracted, and the range of the path within
    # it is max − min, 0 included, where the path starts
    path = np.cumsum(residual[order])
    before = np.r_[0.0, path[start[1:] - 1]]
    path -= np.repeat(before, np.diff(np.r_[start, len(code)]))
    inside = np.r_[(np.diff(code) == 0) & (np.diff(p) == 0), False]  # more rows of the same probability follow
    path[inside] = np.nan
    top, low = np.fmax.reduceat(path, start), np.fmin.reduceat(path, start)
    spread: Floats = np.maximum(top, 0.0) - np.minimum(low, 0.0)
    found = np.zeros(int(code[-1]) + 1)
    found[code[start]] = spread
    return found
