"""The γ at which the gradients of focal loss and of cross-entropy are equal at a given probability."""

import math
from typing import Annotated

from calibrant._core.constraints import Number, checked
from calibrant._core.numerics import increasing_root

__all__ = ["gamma_from_threshold"]


@checked
def gamma_from_threshold(p0: Annotated[float, Number(0, 0.5, open_low=True, open_high=True)]) -> float:
    """Return the γ > 0 at which focal loss and cross-entropy have equal gradients at p_y = p₀: (1 − p₀)^γ (1 + γ u(p₀)) = 1.

    For p_y < p₀ the gradient of this focal loss is larger than that of cross-entropy, for p_y > p₀ smaller. FLSD-53
    rounds γ(0.2) = 4.85 to 5 and γ(0.25) = 3.07 to 3.

    Args:
        p0: Probability in (0, 1/2); for p_y ≥ 1/2 focal loss has the smaller gradient for every γ > 0.

    Returns:
        γ.

    Raises:
        InputError: If ``p0`` lies outside (0, 1/2).

    Examples:
        >>> round(gamma_from_threshold(0.2), 4)
        4.8506

    References:
        Mukhoti et al. 2020, §5 of the conference version (sample-dependent γ), solved there with Lambert's W.
    """
    fall, rise = math.log1p(-p0), -p0 * math.log(p0) / (1 - p0)

    def excess(gamma: float) -> tuple[float, float]:
        # −log of the ratio of the gradients: convex in γ, 0 at γ = 0, and increasing beyond its minimum ``lowest``
        return -gamma * fall - math.log1p(gamma * rise), -fall - rise / (1 + gamma * rise)

    lowest = -1 / fall - 1 / rise
    high = 2 * lowest
    while excess(high)[0] <= 0:
        high *= 2
    return increasing_root(excess, low=lowest, high=high, start=high, tolerance=1e-13 * high, max_step=high).x
