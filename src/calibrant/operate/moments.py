"""Sums of rows by bin, from which every bound of ``operate`` is computed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Sums of rows x by bin, which can be added over batches and machines.

    Args:
        count: (…, B) number of rows.
        total: (…, B) Σ x.
        squares: (…, B) Σ x².
    """

    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, x: Floats, index: NDArray[np.int64] | None = None, *, bins: int = 1) -> "Moments":
        """Return the sums of ``x`` (N,) by bin ``index`` (N,), or of one bin."""
        where = np.zeros(len(x), dtype=np.int64) if index is None else index
        sums = [np.bincount(where, weights=w, minlength=bins).astype(float) for w in (np.ones(len(x)), x, x * x)]
        return cls(*sums)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)
