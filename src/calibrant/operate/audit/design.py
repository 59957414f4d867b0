"""Which rows to label: a sample of fixed size with unequal probabilities, spread evenly over decisions and expectations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.operate.audit.figures import Outlook
from calibrant.statistics.labelled import Floats, Integers

Scores = NDArray[np.float32] | Floats

# Where the probabilities are right, no doubt would be best; where they are wrong, a row that was thought certain has at least
# √(doubt / (1 + doubt)) of the mean row's probability. Chosen on half of the sets of benchmarks/auditor.py.
_DOUBT, _DOUBT_UNBOUNDED = 0.1, 0.3
# Of the log-loss' variance, that is taken under flatter probabilities: before and after labels have taught a temperature.
_FLAT_PART, _FLAT_PART_TAUGHT = 0.25, 0.1
_BLOCK = 1 << 20  # rows decided at once, a power of 2 so that the same rows meet whatever it is
_A_CLASS = 10  # draws for each class, below which strata by class would leave none by expectation


def scores_of(outlook: Outlook, groups: Integers | None = None, *, taught: bool = False) -> Floats:
    """Return what rows are drawn in proportion to: their standard deviations, with doubt of the probabilities.

    Every variance is taken as larger by a part of the mean variance. The log-loss has no bound, and a few surprising rows make
    it up: before labels teach, its doubt is larger, and a quarter of the variance is that under flatter probabilities.

    Args:
        outlook: What is expected of the figure; its spreads are overwritten.
        groups: (N,) the group of each row; each group is then drawn from equally often.
        taught: Whether the temperature is one that labels have taught.
    """
    score = np.square(
        outlook.spread, out=outlook.spread
    )  # in place, as a pool of millions of rows leaves no room for copies
    doubt = _DOUBT if outlook.flat is None or taught else _DOUBT_UNBOUNDED
    if outlook.flat is not None:
        flat, part = np.square(outlook.flat, out=outlook.flat), _FLAT_PART_TAUGHT if taught else _FLAT_PART
        flat *= part * score.mean() / max(flat.mean(), 1e-300)
        score *= 1 - part
        score += flat
    if groups is None:
        score += doubt * score.mean()
        return np.sqrt(score, out=score)
    counts = np.bincount(groups)
    mean = np.bincount(groups, score) / counts
    each = mean[groups]
    score = np.sqrt(np.where(each > 0, score + doubt * each, 1.0))
    return np.asarray(score / np.bincount(groups, score)[groups])


def order_of(outlook: Outlook, count: int) -> Scores:
    """Return what rows are sorted by before ``count`` are drawn: the decided class, where there are few, and the expectation.

    Every second class is in falling order, so that neighbours are alike where one class ends and the next begins.
    """
    decided = outlook.decided
    if decided is None or int(decided.max()) >= count / _A_CLASS:
        return outlook.mean
    order = outlook.mean.astype(np.float32)  # and in place, to save memory
    order /= 1 + np.abs(order)  # in (−1, 1), whatever the figure
    np.negative(order, out=order, where=(decided & 1).astype(bool))
    order += decided
    order += decided
    return order


def inclusion_probabilities(score: Floats, count: int) -> Floats:
    """Return the probability of each row to be drawn: proportional to its score, at most 1.

    Args:
        score: (N,) ≥ 0; all 0 draws evenly.
        count: Rows to draw, at most N; the probabilities sum to it.

    Examples:
        >>> import numpy as np
        >>> inclusion_probabilities(np.array([1.0, 1.0, 2.0, 9.0]), 2).round(3).tolist()
        [0.25, 0.25, 0.5, 1.0]
    """
    total = score.sum()
    found: Floats = score * (count / total) if total > 0 else np.full_like(score, count / len(score))
    np.minimum(found, 1.0, out=found)
    # Rows that would be drawn with a probability above 1 are drawn for sure; the others share what is left, as before.
    for _ in range(len(found)):
        if found.max() < 1:
            break
        free = found < 1
        left = count - (len(found) - free.sum())
        scaled = found[free] * (left / found[free].sum()) if free.any() else found[free]
        found[free] = np.minimum(scaled, 1.0)
        if not (scaled > 1).any():
            break
    found[found > 1 - 1e-12] = 1.0  # but for rounding drawn for sure: such a row has no sampling error
    return found


def draw(inclusion: Floats, order: Scores, rng: np.random.Generator) -> Integers:
    """Return the rows of a sample, ascending, by the pivotal method among neighbours.

    Of two neighbours in ``order`` one is decided, drawn or not, and the other gets what is left of both probabilities and meets the
    next undecided one. So in each stretch of rows the number drawn is close to the sum of its probabilities, as if each
    were a stratum, and every row is drawn exactly as often as its probability says.

    Args:
        inclusion: (N,) probabilities, whose sum is a whole number n.
        order: (N,) what the rows are sorted by.
        rng: The source of chance.

    References:
        Deville and Tillé 1998, Unequal probability sampling without replacement through a splitting method.
    """
    numbers = np.int32 if len(order) < 1 << 31 else np.int64
    rows: NDArray[np.integer[Any]] = np.argsort(order, kind="stable").astype(numbers)
    drawn, left, chances = [], [], []
    for part in (rows[at : at + _BLOCK] for at in range(0, len(rows), _BLOCK)):
        taken, last, chance = _decided(part, inclusion[part], rng)
        drawn.append(taken)
        left.append(last)
        chances.append(chance)
    taken, last, chance = _decided(np.concatenate(left), np.concatenate(chances), rng)
    return np.sort(np.concatenate([*drawn, taken, last[chance > 0.5]]).astype(np.int64))  # 0 or 1 but for rounding


def _decided(rows: NDArray[Any], chance: Floats, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], Floats]:
    """Return the rows that are drawn, and the last one that is undecided, if any, with its probability."""
    certain = chance >= 1
    drawn = [rows[certain]]
    rows, chance = rows[~certain], chance[~certain]
    while len(rows) > 1:
        even = len(rows) // 2 * 2  # an odd one out waits for the next round
        first, second = chance[:even:2], chance[1:even:2]
        both = first + second
        one = both >= 1  # one of the two is drawn; else one of them is not
        point = rng.random(len(both))
        of_first = np.where(one, point * (2 - both) < 1 - second, point * both < first)
        drawn.append(np.where(of_first, rows[:even:2], rows[1:even:2])[one])
        rows = np.append(np.where(of_first ^ one, rows[:even:2], rows[1:even:2]), rows[even:])
        chance = np.append(both - one, chance[even:])
    return np.concatenate(drawn), rows, chance
