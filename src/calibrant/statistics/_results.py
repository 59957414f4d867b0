"""Results of intervals and tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Args:
        estimate: The value of the metric.
        low: Lower end.
        high: Upper end.
        level: Nominal coverage in (0, 1).
        method: Name of the method.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class PairedTest:
    """A difference between two models on the same rows.

    Args:
        difference: Mean of a − b.
        low: Lower end of its interval.
        high: Upper end.
        p_value: Two-sided, of the hypothesis that the difference is 0.
    """

    difference: float
    low: float
    high: float
    p_value: float
