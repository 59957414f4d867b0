"""Tests of paired differences over seeds or over clusters of sets, and the correction for the number of tests."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

LEVEL = 0.05  # of the false discovery rate, and of the detectable effect's test
POWER = 0.8


def paired_p(differences: Sequence[float], *, above: float | None = None) -> float:
    """Return the p-value of the t-test that the mean difference is 0, or that it is at most ``above``.

    Equal differences have no t-statistic, a single one neither; the exact sign-change test is then used.

    Args:
        differences: One per seed.
        above: If given, the one-sided test of a mean of at most this.

    Examples:
        >>> round(paired_p([0.05, 0.06, 0.04]), 3)
        0.013
        >>> paired_p([0.05])
        1.0
    """
    if len(differences) < 2 or np.ptp(differences) == 0:
        value, sides = differences[0] - (above or 0.0), 2 if above is None else 1
        beyond = value != 0 if above is None else value > 0
        return sides * 0.5 ** len(differences) if beyond else 1.0  # of 2ⁿ sign patterns only these are as extreme
    from scipy.stats import ttest_1samp

    side = "two-sided" if above is None else "greater"
    return float(ttest_1samp(differences, above or 0.0, alternative=side).pvalue)


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


def equivalence_p(differences: Sequence[float], *, margin: float, exact: bool) -> float:
    """Return the p-value of two one-sided tests that the mean difference lies within ±``margin``.

    Args:
        differences: One per independent unit.
        margin: Chosen before the runs, > 0.
        exact: Whether to use the sign-change test.

    References:
        Schuirmann 1987.
    """
    test = sign_change_p if exact else paired_p
    return max(test(differences, above=-margin), test([-value for value in differences], above=-margin))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that rejecting those below α keeps the false discovery rate at α.

    Examples:
        >>> benjamini_hochberg([0.01, 0.04, 0.03])
        [0.03, 0.04, 0.04]

    References:
        Benjamini & Hochberg 1995; for tests that share data, Benjamini & Yekutieli 2001, §3 (positive dependence).
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    adjusted, least = [0.0] * len(p_values), 1.0
    for rank, index in zip(range(len(p_values), 0, -1), order, strict=True):
        least = min(
            least, p_values[index] * len(p_values) / rank
        )  # the running minimum keeps the order of the p-values
        adjusted[index] = least
    return adjusted


def detectable(differences: Sequence[float]) -> float | None:
    """Return the mean difference that a t-test at .05 over as many units would find with probability .8.

    Args:
        differences: One per unit; their standard deviation is taken as known.

    Returns:
        The effect, or None for fewer than two units, whose spread is unknown.
    """
    if len(differences) < 2:
        return None
    return _noncentrality(len(differences)) * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def units_needed(differences: Sequence[float], *, effect: float, most: int = 1000) -> int:
    """Return how many units would find ``effect`` with probability .8, up to ``most``."""
    spread = float(np.std(differences, ddof=1))
    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        if _noncentrality(middle) * spread / math.sqrt(middle) <= effect:
            high = middle
        else:
            low = middle + 1
    return low


@cache  # each takes a dozen noncentral tails, and every line of the index asks for the same few
def _noncentrality(units: int) -> float:
    """Return δ with P(|t| > its critical value) = .8 for a noncentral t with parameter δ."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    limit = float(t.ppf(1 - LEVEL / 2, units - 1))
    # The lower tail adds less than 1e-3 to a power of .8; 4 × limit bounds δ also for two units.
    return float(brentq(lambda delta: float(nct.sf(limit, units - 1, delta)) - POWER, 0.1, 4 * limit + 4))
