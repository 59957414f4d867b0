"""Temperatures that bound the binary focal calibration map: Proposition 3, corrected and tightened."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from calibrant._core.check import refuse
from calibrant._core.constraints import NonNegative, Number, Positive, checked
from calibrant.theory.focal_map import focal_logit

__all__ = [
    "SLOPE_BOUND_LIMIT",
    "TemperatureBounds",
    "measured_temperature_bounds",
    "small_logit_slope",
    "temperature_bounds",
]

SLOPE_BOUND_LIMIT = 5.635379950946468  # γ at which the third derivative of logit FC at 0 changes sign
_MOST_LOGITS = 10_000_000  # 80 MB each of the few arrays that hold them


AboveMinusOne = Annotated[float, Number(-1, open_low=True)]


@dataclass(frozen=True)
class TemperatureBounds:
    """Temperatures low ≤ high whose scalings bound the focal calibration map at every logit.

    Args:
        low: Bound on the side of higher confidence, 1/(γ + 1); the map approaches it at large logits.
        high: Bound on the side of lower confidence.

    Examples:
        >>> TemperatureBounds(0.2, 0.2178).width
        0.0178
    """

    low: float
    high: float

    @property
    def width(self) -> float:
        """Return high − low."""
        return round(self.high - self.low, 12)


@checked
def temperature_bounds(gamma: NonNegative, *, tight: bool = False) -> TemperatureBounds:
    """Return T with σ(s/high) ≤ FC(s) ≤ σ(s/low) for s ≥ 0, reversed for s ≤ 0, equal at s = 0 only (for γ > 0).

    The printed proposition divides the logit by γ + 1 where it must be multiplied; as printed it is false for every s > 0.

    Args:
        gamma: γ ≥ 0.
        tight: Use 1/κ(γ) for ``high`` (``small_logit_slope``), the best possible, since κ is the map's slope at 0. It
            holds for γ ≤ 5.6354 only: for larger γ the map's logit falls below κ s.

    Returns:
        low = 1/(γ + 1); high = 1/(γ + 1 − ½ ln(γ + 1)), or 1/κ(γ) if ``tight``.

    Raises:
        InputError: If γ < 0, or γ > 5.6354 with ``tight``.

    Examples:
        >>> temperature_bounds(4.0), temperature_bounds(4.0, tight=True).high
        (TemperatureBounds(low=0.2, high=0.23836305352698955), 0.21784499720811604)

    References:
        Komisarenko & Kull 2024, Proposition 3, whose numerical T = 0.218 at γ = 4 is 1/κ(4).
    """
    if tight:
        Number(0, SLOPE_BOUND_LIMIT).check(gamma, "gamma (of the tight bound)", None)
    loosest = gamma + 1 - math.log1p(gamma) / 2
    return TemperatureBounds(1 / (gamma + 1), 1 / (small_logit_slope(gamma) if tight else loosest))


@checked
def small_logit_slope(gamma: AboveMinusOne) -> float:
    """Return κ(γ) = d logit FC(s)/ds at s = 0, which is 1 + γ − γ (2 ln 2 − 1)/(1 + γ ln 2).

    Args:
        gamma: γ > −1.

    Returns:
        κ(γ) > 0.

    Raises:
        InputError: If γ ≤ −1.

    Examples:
        >>> small_logit_slope(4.0)
        4.590419852720602
    """
    return 1 + gamma - gamma * (2 * math.log(2) - 1) / (1 + gamma * math.log(2))


@checked
def measured_temperature_bounds(
    gamma: AboveMinusOne, *, reach: Positive = 20.0, step: Positive = 1e-3
) -> TemperatureBounds:
    """Return the tightest bounds on the grid of logits −reach, −reach + step, …: the extremes of s / logit FC(s).

    Args:
        gamma: γ > −1.
        reach: Largest logit; ``low`` approaches 1/(γ + 1) as it grows.
        step: Spacing of the grid.

    Returns:
        The bounds.

    Raises:
        InputError: If γ ≤ −1 or ``reach`` or ``step`` is not positive.

    Examples:
        >>> found = measured_temperature_bounds(4.0)
        >>> round(found.low, 4), round(found.high, 4)
        (0.2033, 0.2178)

    References:
        Komisarenko & Kull 2024, Figure 3, which reads 0.206 for low at γ = 4; that belongs to |s| of about 11.
    """
    step = Number(0, reach, open_low=True).check(step, "step", None)
    if reach / step > _MOST_LOGITS:
        raise refuse(f"at most {_MOST_LOGITS:,} logits", f"reach / step = {reach / step:.3g}", "take a larger step")
    s = torch.arange(step, reach + step / 2, step, dtype=torch.float64)
    temperature = s / focal_logit(s, gamma)
    return TemperatureBounds(float(temperature.min()), float(temperature.max()))
