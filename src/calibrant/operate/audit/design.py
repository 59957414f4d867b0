"""Which rows to label: systematic sampling of fixed size with unequal probabilities."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOOR", "draw", "inclusion_probabilities"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# The part of the labels that is spread evenly over the pool. Where the confidences are right, 0 would be best; where they are
# wrong it bounds the weight of a row that was thought certain to 1 / FLOOR times that of a simple random sample.
FLOOR = 0.3
_BLOCK = 10  # draws of a block: fewer stratify more finely, but leave the sample to less chance


def inclusion_probabilities(score: Floats, count: int) -> Floats:
    """Return the probability of each row to be drawn: proportional to FLOOR + (1 − FLOOR) score / mean score, at most 1.

    Args:
        score: (N,) ≥ 0; all 0 draws evenly.
        count: Rows to draw, at most N; the probabilities sum to it.

    Examples:
        >>> import numpy as np
        >>> inclusion_probabilities(np.array([0.0, 1.0, 1.0, 2.0]), 2).round(3).tolist()
        [0.15, 0.5, 0.5, 0.85]
    """
    mean = score.mean()
    size = FLOOR + (1 - FLOOR) * (score / mean if mean > 0 else np.ones_like(score))
    found: Floats = np.minimum(size * (count / size.sum()), 1.0)
    # Rows that would be drawn with a probability above 1 are drawn for sure; the others share what is left, as before.
    for _ in range(len(size)):
        free = found < 1
        left = count - (len(size) - free.sum())
        scaled = size[free] * (left / size[free].sum()) if free.any() else size[free]
        found[free] = np.minimum(scaled, 1.0)
        if not (scaled > 1).any():
            break
    return found


def draw(inclusion: Floats, order: Floats, rng: np.random.Generator) -> Integers:
    """Return the rows of a systematic sample, ascending.

    The rows are sorted by ``order`` and shuffled within blocks that hold about ten draws each; in this order each is as long as its
    probability, and equidistant points with one random start pick rows. The blocks make it a stratification by ``order``. Without
    the shuffle one random number would choose among few samples, and a pattern in the rows could agree with the points.

    Args:
        inclusion: (N,) probabilities, whose sum is a whole number n.
        order: (N,) what the rows are sorted by.
        rng: The source of chance.

    References:
        Madow 1949, On the theory of systematic sampling, II.
    """
    chance = rng.random(len(order))
    ranked = np.argsort(order, kind="stable")
    block = np.floor(np.cumsum(inclusion[ranked]) / _BLOCK)
    ranked = ranked[np.lexsort((chance, block))]
    ends = np.cumsum(inclusion[ranked])
    count = round(float(ends[-1]))
    points = (rng.random() + np.arange(count)) * (ends[-1] / count)
    picked = ranked[np.minimum(np.searchsorted(ends, points, side="right"), len(ranked) - 1)]
    return np.sort(picked.astype(np.int64))
