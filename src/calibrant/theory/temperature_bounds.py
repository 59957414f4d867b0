"""Temperature scalings that bound the focal calibration map (Proposition 3, corrected), and the scaling nearest to the map.

For two classes, the map is close to a temperature scaling with 1/T between γ + 1 − ½ ln(γ + 1) and γ + 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number
from calibrant.theory.focal_map import focal_logit, focal_map

SLOPE_BOUND_LIMIT = 5.635379950946468  # γ at which the third derivative of logit FC at 0 changes sign
# Half-width and step of the grid of logits per class. For 2 and 3 classes, the grids are those of Komisarenko & Kull, except that the
# step for 3 classes is 0.05 instead of 0.01, which changes no printed digit. The paper states no grid for 4 classes; with steps above
# 0.125, the fitted line depends on the step.
_GRIDS = {2: (10.0, 0.001), 3: (5.0, 0.05), 4: (5.0, 0.125)}
_TOLERANCE = 1e-5  # tolerance in 1/T


@dataclass(frozen=True)
class TemperatureBounds:
    """Temperatures low ≤ high whose scalings bound the focal calibration map at every logit.

    Args:
        low: The temperature with a higher confidence than the map, 1/(γ + 1), which the map approaches at large logits.
        high: The temperature with a lower confidence than the map.

    Examples:
        >>> TemperatureBounds(0.2, 0.2178).width
        0.0178
    """

    low: float
    high: float

    @property
    def width(self) -> float:
        """The difference high − low."""
        return round(self.high - self.low, 12)


def temperature_bounds(gamma: float, *, tight: bool = False) -> TemperatureBounds:
    """Return temperatures with σ(s/high) ≤ FC(s) ≤ σ(s/low) for s ≥ 0, where FC is the focal calibration map for two classes.

    For s ≤ 0, the inequalities are reversed; for γ > 0, they are equalities only at s = 0. The printed proposition divides the
    logit by γ + 1, whereas it must be multiplied by γ + 1, and is false for every s > 0.

    Args:
        gamma: γ ≥ 0.
        tight: Whether ``high`` is the best possible bound, 1/κ(γ), where κ = 1 + γ − γ (2 ln 2 − 1)/(1 + γ ln 2) is the slope
            d logit FC(s)/ds of the map at s = 0. This is a bound only for γ ≤ 5.6354; for larger γ, the logit of the map falls
            below κ s.

    Returns:
        The bounds low = 1/(γ + 1) and high = 1/(γ + 1 − ½ ln(γ + 1)), or high = 1/κ(γ) if ``tight``.

    Raises:
        InputError: If γ < 0, or γ > 5.6354 with ``tight``.

    Examples:
        >>> temperature_bounds(4.0), temperature_bounds(4.0, tight=True).high
        (TemperatureBounds(low=0.2, high=0.23836305352698955), 0.21784499720811604)

    References:
        Komisarenko & Kull 2024, Proposition 3, whose numerical T = 0.218 at γ = 4 is 1/κ(4).
    """
    if tight:
        check_number(gamma, name="gamma (of the tight bound)", low=0, high=SLOPE_BOUND_LIMIT)
        inverse = 1 + gamma - gamma * (2 * math.log(2) - 1) / (1 + gamma * math.log(2))
    else:
        check_number(gamma, name="gamma", low=0)
        inverse = gamma + 1 - math.log1p(gamma) / 2
    return TemperatureBounds(1 / (gamma + 1), 1 / inverse)


def measured_temperature_bounds(gamma: float, *, reach: float = 20.0, step: float = 1e-3) -> TemperatureBounds:
    """Return the tightest bounds on a grid of logits from −reach to reach, the extremes of s / logit FC(s).

    Args:
        gamma: γ > −1.
        reach: Largest logit, > 0; ``low`` approaches 1/(γ + 1) as it grows.
        step: Spacing of the grid, in (0, reach].

    Returns:
        The tightest bounds.

    Raises:
        InputError: If ``step`` lies outside its range.
        RangeError: If γ ≤ −1.

    Examples:
        >>> found = measured_temperature_bounds(4.0)
        >>> round(found.low, 4), round(found.high, 4)
        (0.2033, 0.2178)

    References:
        Komisarenko & Kull 2024, Figure 3, which gives low = 0.206 at γ = 4, the value for a reach of about 11.
    """
    check_number(step, name="step", low=0, high=reach, open_low=True)
    s = torch.arange(step, reach + step / 2, step, dtype=torch.float64)
    temperature = s / focal_logit(s, gamma)
    return TemperatureBounds(float(temperature.min()), float(temperature.max()))


@dataclass(frozen=True)
class TemperatureFit:
    """For each γ, the 1/T that minimises the largest difference from the focal map, and the line through these points.

    Args:
        classes: The number of classes K.
        gammas: Values of γ (G,), increasing.
        inverse_temperatures: The 1/T for each γ (G,).
        errors: The largest difference between the probabilities of the map and of the temperature scaling, for each γ (G,).

    Examples:
        >>> TemperatureFit(2, (0.0, 1.0), (1.0, 1.8), (0.0, 0.001)).line()
        (0.8, 1.0)
    """

    classes: int
    gammas: tuple[float, ...]
    inverse_temperatures: tuple[float, ...]
    errors: tuple[float, ...]

    def line(self) -> tuple[float, float]:
        """Return the slope and intercept of the least-squares line of 1/T on γ."""
        slope, intercept = np.polyfit(self.gammas, self.inverse_temperatures, 1)
        return round(float(slope), 12), round(float(intercept), 12)


def fit_temperatures(classes: int, gammas: Sequence[float]) -> TemperatureFit:
    """Return, for each γ, the temperature scaling whose largest difference from the focal calibration map is smallest.

    With four classes, the fit takes about half a second per γ on one core; with fewer classes, it takes a tenth of that.

    Args:
        classes: 2, 3 or 4. The differences are computed on the grids of Komisarenko & Kull: [−20, 20] in steps of 0.001 for
            the difference between the logits of two classes, [−5, 5]³ in steps of 0.05, and [−5, 5]⁴ in steps of 0.125. Shifts
            and the order of the classes have no effect on the differences, so only logits 0 = z₁ ≥ z₂ ≥ … are visited: 20,301
            rows for three classes, and 91,881 for four.
        gammas: Values of γ > −1; at least two for a line.

    Returns:
        The fit.

    Raises:
        InputError: If ``classes`` is not 2, 3 or 4.
        RangeError: If γ ≤ −1.

    Examples:
        >>> fit = fit_temperatures(2, [1.0, 3.0])
        >>> [round(1 / a, 4) for a in fit.inverse_temperatures], [f"{e:.1e}" for e in fit.errors]
        ([0.5615, 0.2759], ['7.9e-04', '6.6e-05'])

    References:
        Komisarenko & Kull 2024, §3.2 and §3.3, Figures 2 and 6.
    """
    log_q = torch.log_softmax(_logits_on_grid(classes), dim=1)
    inverse, errors = zip(*(_nearest(log_q, gamma) for gamma in gammas), strict=True)
    return TemperatureFit(classes, tuple(gammas), inverse, errors)


def nearest_temperature(classes: int, gamma: float) -> float:
    """Return the temperature whose scaling is nearest to the focal calibration map, as defined by ``fit_temperatures``.

    Args:
        classes: 2, 3 or 4.
        gamma: γ > −1.

    Returns:
        The temperature T > 0.

    Raises:
        InputError: If ``classes`` is not 2, 3 or 4.
        RangeError: If γ ≤ −1.

    Examples:
        >>> round(nearest_temperature(3, 1.0), 3)
        0.658
    """
    return 1 / fit_temperatures(classes, [gamma]).inverse_temperatures[0]


def _logits_on_grid(classes: int) -> Tensor:
    """Return the logits (N, K) with 0 = z₁ ≥ z₂ ≥ … ≥ −2·half-width on the grid for this number of classes."""
    half, step = _GRIDS[check_choice(classes, name="classes", choices=_GRIDS)]
    levels = -torch.arange(0, 2 * half + step / 2, step, dtype=torch.float64)
    rows = torch.combinations(torch.arange(len(levels)), classes - 1, with_replacement=True)
    return torch.cat([torch.zeros(len(rows), 1, dtype=torch.float64), levels[rows]], dim=1)


def _nearest(log_q: Tensor, gamma: float) -> tuple[float, float]:
    """Return the best 1/T and the largest difference over the rows (N, K); this difference is unimodal in 1/T."""
    from scipy.optimize import minimize_scalar

    target = torch.exp(focal_map(log_q, gamma))

    def error(a: float) -> float:
        return float((torch.softmax(a * log_q, dim=1) - target).abs().max())

    # for γ < 0, the slope of the map at small logits is above γ + 1: as γ → −1, the best 1/T tends to 1.2, and not to 0
    ends = 0.25 * (gamma + 1), max(1.05 * (gamma + 1), 1.5)
    found = minimize_scalar(error, bounds=ends, method="bounded", options={"xatol": _TOLERANCE})
    return float(found.x), float(found.fun)
