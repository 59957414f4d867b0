"""Isotonic calibration: the best map that never falls."""

import numpy as np

from calibrant.calibrators._piecewise import PiecewiseOneVsRest

__all__ = ["IsotonicCalibration"]


class IsotonicCalibration(PiecewiseOneVsRest):
    """The non-decreasing map of the log-odds that fits best (pool adjacent violators), mixed with a floor.

    One map for two classes, one a class against the rest, then normalised, for more. Between pooled blocks the map is
    linear in the log-odds; equal log-odds are one place. Alone it answers 0 and 1, and its log-loss is infinite on most
    real sets: (1 − ε) p + ε / K keeps it finite.

    Args:
        floor: ε in [0, 1); None for 1 / (N + 1). With 0 probabilities of 0 are possible.

    Attributes:
        places: (C, B) the knots, in log-odds; shorter rows repeat their last.
        values: (C, B) the probability at each.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 0, 0])
        >>> IsotonicCalibration(floor=0.0).fit(z, y).values.tolist()
        [[0.0, 0.0, 1.0, 1.0]]

    References:
        Zadrozny, Elkan 2002, Transforming Classifier Scores into Accurate Multiclass Probability Estimates, §3, §5.
    """

    preserves_argmax = False

    def _knots(
        self, places: np.ndarray, mass: np.ndarray, blocks: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        ends = np.stack([blocks[:-1], blocks[1:] - 1], axis=1).ravel()  # the first and the last place of each block
        return places[ends], values[ends]
