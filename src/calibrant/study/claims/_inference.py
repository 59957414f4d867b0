"""Tests of paired differences over seeds or over clusters of sets, and the correction for the number of tests."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

LEVEL = 0.05  # of the false discovery rate, and of the detectable effect's test
POWER = 0.8


def paired_p(differences: Sequence[float], *, above: float | None = None, rows: float = 0.0) -> float:
    """Return the p-value of the t-test that the mean difference is 0, or that it is at most ``above``.

    Equal differences have no t-statistic, a single one neither; the exact sign-change test is then used.

    Args:
        differences: One per seed.
        above: If given, the one-sided test of a mean of at most this.
        rows: Standard deviation of the mean over test sets, of the part that all seeds have in common because they share test
            rows: no number of seeds averages it out. Its square is added to the squared standard error.

    Examples:
        >>> round(paired_p([0.05, 0.06, 0.04]), 3)
        0.013
        >>> paired_p([0.05])
        1.0
    """
    if len(differences) < 2 or (np.ptp(differences) == 0 and not rows):
        value, sides = differences[0] - (above or 0.0), 2 if above is None else 1
        beyond = value != 0 if above is None else value > 0
        return sides * 0.5 ** len(differences) if beyond else 1.0  # of 2ⁿ sign patterns only these are as extreme
    from scipy.stats import t

    # n − 1 degrees of freedom: Welch–Satterthwaite's are more, so that the test stays on the safe side
    statistic = (float(np.mean(differences)) - (above or 0.0)) / standard_error(differences, rows=rows)
    n = len(differences)
    return float(2 * t.sf(abs(statistic), n - 1) if above is None else t.sf(statistic, n - 1))


def over_shared_units(figures: Sequence[Mapping[Any, float]]) -> list[dict[Any, float]]:
    """Return unit → figure of each, of the units that all of them have, in order; of all units if they have none in common.

    Means over the same units are not shifted by one that is missing.
    """
    shared = sorted(set.intersection(*map(set, figures)))
    return [{unit: found[unit] for unit in shared} if shared else dict(found) for found in figures]


def standard_error(differences: Sequence[float], *, rows: float = 0.0) -> float:
    """Return the standard error of the mean of two differences or more, with what their test rows add."""
    return math.hypot(float(np.std(differences, ddof=1)) / math.sqrt(len(differences)), rows)


def interval(differences: Sequence[float], *, exact: bool = False, rows: float = 0.0) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean difference, or None for fewer than two units.

    Args:
        differences: One per independent unit.
        exact: Whether to invert the sign-change test; six units are the fewest that allow 95 %.
        rows: As for ``paired_p``.

    Examples:
        >>> [round(end, 3) for end in interval([0.05, 0.06, 0.04]) or ()]
        [0.025, 0.075]
    """
    n = len(differences)
    if n < (6 if exact else 2):
        return None
    mean = float(np.mean(differences))
    if exact:
        return _end(differences), -_end([-value for value in differences])
    from scipy.stats import t

    half = float(t.ppf(1 - LEVEL / 2, n - 1)) * standard_error(differences, rows=rows)
    return mean - half, mean + half


def _end(differences: Sequence[float]) -> float:
    """Return the largest centre that the one-sided sign-change test rejects at half the level."""
    from scipy.optimize import brentq

    def excess(centre: float) -> float:
        return sign_change_p(differences, above=centre) - LEVEL / 2

    # a step function of the centre: brentq finds its jump between the least difference and the mean
    return float(brentq(excess, min(differences) - 1e-9, max(differences), xtol=1e-9))


def sign_change_p(differences: Sequence[float], *, above: float | None = None) -> float:
    """Return the p-value of the exact sign-change test of one difference per cluster.

    Under the hypothesis each difference is as likely as its negative. All 2ⁿ sign patterns are compared with the one seen, so
    that n clusters allow no two-sided p below 2¹⁻ⁿ.

    Args:
        differences: One per independent unit, at most 20.
        above: If given, the one-sided test of a centre of at most this.

    Examples:
        >>> sign_change_p([0.1, 0.2, 0.3])
        0.25

    References:
        Fisher 1935, The Design of Experiments, §21.
    """
    values = np.asarray(differences, dtype=np.float64) - (above or 0.0)
    signs = np.array(list(product((1.0, -1.0), repeat=len(values))))  # (2ⁿ, n)
    sums, seen = signs @ values, float(values.sum())
    slack = 1e-12 * float(np.abs(values).sum())  # sums of the same numbers in another order are equal
    extreme = np.abs(sums) >= abs(seen) - slack if above is None else sums >= seen - slack
    return float(extreme.mean())


def equivalence_p(differences: Sequence[float], *, margin: float, exact: bool, rows: float = 0.0) -> float:
    """Return the p-value of two one-sided tests that the mean difference lies within ±``margin``.

    Args:
        differences: One per independent unit.
        margin: Chosen before the runs, > 0.
        exact: Whether to use the sign-change test.
        rows: As for ``paired_p``.

    References:
        Schuirmann 1987.
    """
    mirrored = [-value for value in differences]
    if exact:
        return max(sign_change_p(values, above=-margin) for values in (differences, mirrored))
    return max(paired_p(values, above=-margin, rows=rows) for values in (differences, mirrored))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that rejecting those below α keeps the false discovery rate at α.

    Examples:
        >>> benjamini_hochberg([0.01, 0.04, 0.03])
        [0.03, 0.04, 0.04]

    References:
        Benjamini & Hochberg 1995; for tests that share data, Benjamini & Yekutieli 2001, §3 (positive dependence).
    """
    from scipy.stats import false_discovery_control

    return [float(p) for p in false_discovery_control(list(p_values))]


def detectable(differences: Sequence[float], *, rows: float = 0.0) -> float | None:
    """Return the mean difference that a t-test at .05 over as many units would find with probability .8.

    Args:
        differences: One per unit; their standard deviation is taken as known.
        rows: As for ``paired_p``.

    Returns:
        The effect, or None for fewer than two units, whose spread is unknown.
    """
    if len(differences) < 2:
        return None
    return _noncentrality(len(differences)) * standard_error(differences, rows=rows)


def units_needed(differences: Sequence[float], *, effect: float, rows: float = 0.0, most: int = 1000) -> int | None:
    """Return how many units would find ``effect`` with probability .8; None if ``most`` on the same test rows would not."""
    spread = float(np.std(differences, ddof=1))

    def found(units: int) -> bool:
        return _noncentrality(units) * math.hypot(spread / math.sqrt(units), rows) <= effect

    if rows and not found(most):
        return None
    return bisect_left(range(most), True, lo=2, key=found)


@cache  # each takes a dozen noncentral tails, and every line of the index asks for the same few
def _noncentrality(units: int) -> float:
    """Return δ with P(|t| > its critical value) = .8 for a noncentral t with parameter δ."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    limit = float(t.ppf(1 - LEVEL / 2, units - 1))
    # The lower tail adds less than 1e-3 to a power of .8; 4 × limit bounds δ also for two units.
    return float(brentq(lambda delta: float(nct.sf(limit, units - 1, delta)) - POWER, 0.1, 4 * limit + 4))
