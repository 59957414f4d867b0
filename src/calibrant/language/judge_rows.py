"""Which of a judge's rows people shall label: those whose human label the recalibrated judge leaves most open."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant._core.check import check_count
from calibrant._core.constraints import Count, Seed, checked
from calibrant.language.judging import (
    LEARN,
    inclusion_of,
    judge_matrix,
    log_odds_of_orders,
    mean_of_people,
    numbered_systems,
    recalibrated,
)
from calibrant.operate.audit.design import draw, inclusion_probabilities, order_of, scores_of
from calibrant.operate.audit.figures import Outlook
from calibrant.statistics.labelled import Floats, Integers


@checked
def judge_rows(
    judge: Any, count: Count = 100, *, human: Any = None, systems: Any = None, inclusion: Any = None, swapped: Any = None,
    seed: Seed = 0,
) -> tuple[Integers, Floats]:  # fmt: skip
    """Choose further rows for people to label.

    With fewer than 30 labels rows are drawn evenly over the judge's scores, as its own confidence may be wrong: draw about 60, label
    them, and draw the others. Each is then drawn in proportion to the standard deviation that the judge, recalibrated by the labels,
    leaves to its label; each system equally often. So rows are looked at in which the judge is often wrong, which evenly drawn ones
    hardly hold, and the half-width can fall below √(1 − ρ²) of that of the labels alone.

    Args:
        judge: As in ``judge_audit``.
        count: Rows to draw, among those without a label.
        human: As there; None before the first label.
        systems: As there.
        inclusion: (N,) what this function returned when the labelled rows were drawn; None: they were drawn evenly within each system.
        swapped: As in ``judge_audit``.
        seed: Same seed, same rows.

    Returns:
        The rows (count,), ascending, and the probability (N,) of every row to have been drawn now or before, with which ``judge_audit``
        takes the labels of all batches together.

    Raises:
        InputError: If fewer rows are left, or an argument is none of ``judge_audit``.

    Examples:
        >>> import numpy as np
        >>> judge = np.repeat([1.0, 0.0], [900, 100])
        >>> human = np.full(1000, -1)
        >>> human[::20] = 1
        >>> human[905::20] = [1, 0, 1, 0, 1]  # people say yes to half of what the judge refuses
        >>> rows, inclusion = judge_rows(judge, 100, human=human)
        >>> bool((rows >= 900).mean() > 0.2), len(inclusion)
        (True, 1000)
    """
    scores = judge_matrix(judge, "judge")
    rows = len(scores)
    labels = np.full((rows, 1), -1.0) if human is None else judge_matrix(human, "human", missing=True, rows=rows)
    value, given = mean_of_people(labels)
    seen = np.asarray(given.any(axis=1))
    check_count(count, name="count", high=int((~seen).sum()))
    code = _code_of(systems, rows)
    before = inclusion_of(inclusion, np.ones(rows, bool))
    if before is None:
        before = even_before(seen, systems)
    other = None if swapped is None else judge_matrix(swapped, "swapped", rows=rows)
    p = recalibrated(log_odds_of_orders(scores, other), value, seen)[1]
    outlook = Outlook(p, np.sqrt(p * (1 - p)) if seen.sum() >= LEARN else np.ones(rows), code.astype(np.int32))
    order = order_of(outlook, count)
    score = scores_of(outlook, code, taught=True)
    left = np.flatnonzero(~seen)
    now = inclusion_probabilities(score[left], count)
    # What this draw would have given to the labelled rows, had they been left: the same multiple of their scores.
    free = now < 1
    multiple = float((now[free] / score[left][free]).max()) if free.any() else np.inf
    either = 1 - (1 - before) * (1 - np.minimum(score * multiple, 1.0))
    picked = draw(now, order[left], np.random.default_rng([seed, int(seen.sum())]))
    return left[picked], either


def even_before(seen: NDArray[np.bool_], systems: Any) -> Floats:
    """Return the probability (N,) of rows to have been labelled, if those ``seen`` (N,) were drawn evenly within each system."""
    code = _code_of(systems, len(seen))
    share: Floats = (np.bincount(code, seen) / np.bincount(code))[code]
    return share


def _code_of(systems: Any, rows: int) -> NDArray[np.int64]:
    parts = numbered_systems(systems, rows)[1]
    # a comparison is of two systems, and all count alike
    return parts[0] if len(parts) == 1 else np.zeros(rows, np.int64)
