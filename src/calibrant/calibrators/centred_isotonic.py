"""Centred isotonic calibration: isotonic regression without its flat steps."""

import numpy as np

from calibrant.calibrators._piecewise import PiecewiseOneVsRest

__all__ = ["CentredIsotonic"]


class CentredIsotonic(PiecewiseOneVsRest):
    """Isotonic regression interpolated linearly between the centres of the pooled blocks.

    A step of isotonic regression is an artefact of few data: the centred map rises strictly between the centres of the
    first and the last block, so it keeps the order of rows where isotonic regression ties them.

    Args:
        floor: ε in [0, 1) of (1 − ε) p + ε / K; None for 1 / (N + 1). With 0 probabilities of 0 are possible.

    Attributes:
        places: (C, B) the centres, in log-odds; shorter rows repeat their last.
        values: (C, B) the probability at each.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 0, 0])
        >>> CentredIsotonic(floor=0.0).fit(z, y).places.tolist()
        [[-0.6666666666666666, 2.0]]

    References:
        Oron, Flournoy 2017, Centered Isotonic Regression, §2.2.
    """

    preserves_argmax = False

    def _knots(
        self, places: np.ndarray, mass: np.ndarray, blocks: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        first = blocks[:-1]
        centres = np.add.reduceat(places * mass, first) / np.add.reduceat(mass, first)
        return centres, values[first]
