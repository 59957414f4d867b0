"""Checks three conditions on a true-class score φ: −φ′ > 0, strict convexity, and −φ′(p) → ∞ as p → 0.

These conditions determine whether the score's calibration map exists and has an inverse. They are checked numerically, at thousands
of probabilities.
"""

from collections.abc import Hashable
from dataclasses import dataclass, is_dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.errors import RangeError
from calibrant.scores import TrueClassScore

# Logits at which φ is checked. Beyond 14 (1 − p < 1e-6), rounding errors hide a curvature that tends to 0 as p → 1.
_LOW, _HIGH, _STEP = -40.0, 14.0, 1 / 64
_FLAT = 1e-9  # a relative curvature −d log(−φ′)/d log p below this value counts as 0
_TINY_P = (-300.0, -600.0)  # two values of log p between which −φ′ must increase
_GROWTH = 1e-3  # smallest increase of log(−φ′) between them; even the slow −φ′ = log(−log p) increases by 0.11


@dataclass(frozen=True)
class Validity:
    """Which of the conditions φ satisfies, and the smallest probability at which a condition fails.

    Args:
        decreasing: Whether −φ′ > 0 on (0, 1).
        convex: Whether φ is strictly convex on (0, 1).
        steep: Whether −φ′(p) → ∞ as p → 0, so that no minimiser has a probability of 0.
        argument: Why the map is a bijection although φ is not convex, if the score states a reason; else None.
        fails_at: The smallest checked probability at which φ does not decrease or is not convex, or None.

    Examples:
        >>> from calibrant.scores import InverseFocalScore
        >>> validity(InverseFocalScore(2.0)).convex
        False
    """

    decreasing: bool
    convex: bool
    steep: bool
    argument: str | None
    fails_at: float | None

    @property
    def convex_range(self) -> bool:
        """Whether φ decreases, is strictly convex and is steep, which suffices for every result in this package."""
        return self.decreasing and self.convex and self.steep

    @property
    def bijective(self) -> bool:
        """Whether the calibration map is a bijection, because of ``convex_range`` or for the reason that the score states."""
        return self.convex_range or (self.decreasing and self.steep and self.argument is not None)

    def reason(self) -> str:
        """Return, as text, which condition fails."""
        at = "" if self.fails_at is None else f" at p = {self.fails_at:.4g}"
        if not self.decreasing:
            return f"φ does not decrease{at}"
        return f"φ is not strictly convex{at}" if not self.convex else "−φ′(p) stays finite as p → 0"


def validity(score: TrueClassScore) -> Validity:
    """Check numerically which conditions φ satisfies.

    Slope and curvature are checked at 3,457 probabilities from 4e-18 to 1 − 8e-7, and steepness is checked down to p = e^−600.

    Args:
        score: Any true-class score; its derivatives are computed from ``log_slope`` by automatic differentiation.

    Returns:
        The result of the numerical check. It is no proof: a violation that is narrower than 1/64 in the logit, or smaller than
        rounding errors, is not detected.

    Examples:
        >>> from calibrant.scores import FocalScore
        >>> validity(FocalScore(3.0)).convex_range
        True
        >>> validity(FocalScore(-0.5)).convex_range, validity(FocalScore(-0.5)).bijective
        (False, True)

    References:
        Reid & Williamson 2011 for composite binary losses. In the multiclass form, the Lagrange condition
        η_j φ′(q_j) = const has exactly one solution on the simplex.
    """
    # frozen scores are immutable, so results are cached, because ProperFocalLoss needs one in every training step
    frozen = is_dataclass(score) and score.__dataclass_params__.frozen
    return _examine(score) if frozen and isinstance(score, Hashable) else _examine.__wrapped__(score)


@lru_cache(maxsize=256)
def _examine(score: TrueClassScore) -> Validity:
    s = torch.arange(_LOW, _HIGH + _STEP, _STEP, dtype=torch.float64)
    decreasing = score.slope(F.logsigmoid(s), F.logsigmoid(-s)) > 0
    elasticity = log_h(score, s)[1] / torch.sigmoid(-s)  # with respect to log p: d log p / ds = 1 − p
    # for small p, the relative curvature can be of the order of p, so only a concavity above rounding errors counts there
    convex = elasticity > torch.where(s > -_HIGH, _FLAT, -_FLAT)
    at_tiny_p, _ = log_h(score, torch.tensor(_TINY_P, dtype=torch.float64))
    failing = torch.nonzero(~convex if bool(decreasing.all()) else ~decreasing)
    return Validity(
        decreasing=bool(decreasing.all()),
        convex=bool(convex.all()),
        steep=bool(at_tiny_p[0] - at_tiny_p[1] > _GROWTH),
        argument=score.bijection_argument(),
        fails_at=torch.sigmoid(s[failing[0, 0]]).item() if len(failing) else None,
    )


def require_map(score: TrueClassScore, what: str, *, inverse: bool) -> None:
    """Raise ``RangeError`` if ``score`` has no calibration map or, with ``inverse``, if its map has no inverse.

    Without convexity, the map exists but has no inverse. ``what`` is the name of the requested map in the error message.
    """
    found = validity(score)
    if found.bijective if inverse else found.decreasing and found.steep:
        return
    convex, otherwise = (" and strictly convex", ", or use minimiser, which needs no map") if inverse else ("", "")
    raise RangeError(
        f"a score inside the range of {what} (φ decreasing{convex}, −φ′(p) → ∞ as p → 0)",
        f"{score}, where {found.reason()}",
        f"choose a parameter inside the range{otherwise}",
    )


def log_h(score: TrueClassScore, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return log h = −log(−φ′) at p = σ(s), and its derivative by s, which is positive exactly where φ is convex."""
    with torch.no_grad():
        log_p, log_not_p = F.logsigmoid(s), F.logsigmoid(-s)
        return log_p - score.log_slope(log_p, log_not_p), score.map_rate(log_p, log_not_p)
