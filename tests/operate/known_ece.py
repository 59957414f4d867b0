"""Models of two classes whose ECE is known exactly."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 15


def models() -> dict[str, tuple[Floats, Floats]]:
    """Return name → confidences and their probabilities."""
    wide, middle = (np.arange(60) + 0.5) / 60, np.linspace(0.3, 0.999, 60)
    sharp, sure = np.linspace(0.3, 0.9995, 120), np.linspace(0.99, 0.9999, 30)
    peaked = np.exp((sharp - 1) / 0.1)
    return {
        "confidences 0 to 1": (wide, np.full(60, 1 / 60)),
        "confidences 0.3 to 1": (middle, np.full(60, 1 / 60)),
        "mean confidence 0.90": (sharp, peaked / peaked.sum()),
        "one error in 200": (sure, np.full(30, 1 / 30)),
    }


def broken(p: Floats, mass: Floats, ece: float, shape: str) -> Floats:
    """Return the probabilities of being right at which the ECE in 15 bins is exactly ``ece``."""
    index = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    sign = np.where(index % 2 == 0, 1.0, -1.0) if shape == "alternating" else np.ones_like(p)
    if shape == "few bins":
        room = np.bincount(index, mass * p, minlength=BINS)
        order = np.argsort(-room)
        filled = int(np.searchsorted(np.cumsum(room[order]), ece))
        before = np.isin(index, order[:filled])  # wrong throughout; the next bin takes the rest of the gap
        rest = _shifted(np.where(index == order[filled], p, 0.0), mass, index, sign, ece - room[order[:filled]].sum())
        return np.where(before, 0.0, np.where(index == order[filled], rest, p))
    return _shifted(p, mass, index, sign, ece)


def _shifted(p: Floats, mass: Floats, index: NDArray[np.int64], sign: Floats, ece: float) -> Floats:
    """Return ``p`` moved against ``sign`` by the one amount at which the ECE is ``ece``."""
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        gaps = np.bincount(index, mass * (p - np.clip(p - sign * middle, 0, 1)))
        low, high = (middle, high) if np.abs(gaps).sum() < ece else (low, middle)
    return np.clip(p - sign * high, 0, 1)
