"""Bounds on a probability and on a mean that are valid for every distribution and every number of rows.

For rows y ≥ −B and a bet t ≥ 0, exp(t y − ψ(tB) y² / B²) with ψ(u) = −log(1 − u) − u is at most 1 + t y (Fan, Grama & Liu
2015, lemma 4.1). If E y ≤ 0, the product over independent rows (an e-value) has expectation at most 1, so by Markov's
inequality it exceeds 1/α with probability at most α. Its logarithm needs only Σ y and Σ y². The e-values for a fixed grid of
bets are averaged, so that no bet depends on the data.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DEVIATIONS = np.array(
    [0.6, 0.45, 0.33, 0.24, 0.17, 0.12, 0.08, 0.05, 1e-300]
)  # standard deviations of y, with one bet for each; the last one stands for the largest bet
_STAKES = np.array([0.14] * 6 + [0.05, 0.05, 0.06])  # weights of the bets
_LARGEST = 0.9  # largest bet, as a fraction of 1/B; at 1/B, a single row could reduce the e-value to 0
_HALVINGS = 60


@dataclass(frozen=True)
class Line:
    """A value with bounds and, if it is compared with a limit, a verdict.

    Args:
        name: The name of the value, such as "ece ≤ 0.03" or "accuracy".
        value: The value on these rows, or its estimate.
        low: Lower bound.
        high: Upper bound.
        n: Number of rows.
        limit: The limit that the value is compared with, or None.
        verdict: What the bounds imply about the limit; empty without a limit.
        metric: The name of the metric alone, if there is a limit.
        kind: The kind of limit: "maximum", "minimum" or "no_worse".
        more_rows: About how many more rows would lead to a decision with probability .8, given these rows; None if the limit is
            decided, or if no number of rows would decide it.
        note: A remark for the reader.
    """

    name: str
    value: float
    low: float
    high: float
    n: int
    limit: float | None = None
    verdict: str = ""
    metric: str = ""
    kind: str = ""
    more_rows: int | None = None
    note: str = ""

    def __str__(self) -> str:
        verdict = f"{self.verdict} " if self.verdict else ""
        text = f"{self.name}: {verdict}({self.value:.4f}, between {self.low:.4f} and {self.high:.4f}, n = {self.n:,})"
        return "; ".join(part for part in (text, self.more, self.note) if part)

    @property
    def more(self) -> str:
        """How many more rows would lead to a decision, to two digits; empty if there is a decision already."""
        if self.verdict != "not enough evidence":
            return ""
        if self.more_rows is None:
            return "the value is too close to the limit for any number of rows to decide"
        rows = "row" if self.more_rows == 1 else "rows"
        return f"about {float(f'{self.more_rows:.2g}'):,.0f} more {rows} would decide"


def share_ends(successes: float, rows: float, *, alpha: float) -> tuple[float, float]:
    """Return the Clopper–Pearson bounds on a probability. Each bound is violated with probability at most ``alpha``.

    Examples:
        >>> low, high = share_ends(0, 100, alpha=0.025)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.036)
    """
    from scipy.special import betaincinv

    low = 0.0 if successes <= 0 else float(betaincinv(successes, rows - successes + 1, alpha))
    high = 1.0 if successes >= rows else float(betaincinv(successes + 1, rows - successes, 1 - alpha))
    return low, high


def mean_ends(rows: Floats, *, low: float, high: float, alpha: float) -> tuple[float, float]:
    """Return bounds on the mean of independent ``rows`` (N,) in [low, high], each violated with probability at most ``alpha``."""
    unit = (rows - low) / (high - low)
    least, most = _least_mean(unit, alpha=alpha), 1 - _least_mean(1 - unit, alpha=alpha)
    return low + (high - low) * least, low + (high - low) * most


def _least_mean(x: Floats, *, alpha: float) -> float:
    """Return the lower bound on the mean of ``x`` (N,) in [0, 1], the largest c for which "the mean is ≤ c" is rejected."""
    n, total, squares = len(x), float(x.sum()), float((x * x).sum())

    def rejected(c: float) -> bool:
        # y = x − c ≥ −c, so B = c
        bets = np.minimum(math.sqrt(2 * math.log(1 / alpha) / n) / _DEVIATIONS, _LARGEST / c)
        scale = (-np.log1p(-bets * c) - bets * c) / c**2
        logs = bets * (total - c * n) - scale * (squares - 2 * c * total + c * c * n)
        return float(np.logaddexp.reduce(logs + np.log(_STAKES))) >= math.log(1 / alpha)

    low, high = 0.0, total / n
    for _ in range(_HALVINGS if total > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
