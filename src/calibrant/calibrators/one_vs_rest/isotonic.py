"""Maps given by knots: a straight line between neighbours, constant outside."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.constraints import Bins, Number
from calibrant._core.numerics import rank_in
from calibrant.calibrators.one_vs_rest.maps import (
    LogOddsChunk,
    OneVsRest,
    PooledScores,
    fit_logistic,
    mean_bins,
    slope_and_one,
    summarised,
)
from calibrant.rows import RowSource


def padded(learned: Iterable[tuple[Any, ...]], device: torch.device) -> Iterator[Tensor]:
    """Yield each part of what the classes learned as one matrix (C, longest), short rows continued by their last entry."""
    for part in zip(*learned, strict=True):
        rows = [torch.as_tensor(row) for row in part]
        longest = max(map(len, rows))
        yield torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows]).to(device)


class PiecewiseOneVsRest(OneVsRest):
    """One vs rest by isotonic regression: subclasses define the knots that represent a pooled block."""

    places: Tensor
    values: Tensor
    share: Tensor

    def __init__(self, *, floor: Annotated[float, Number(0, 1, open_high=True)] | None = None) -> None:
        super().__init__()
        self.floor = floor

    @abstractmethod
    def _knots(self, scores: PooledScores, blocks: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return knots and their values from the scores, where their pooled blocks begin (and the end), and each score's value."""

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.map(LogOddsChunk.of), rows.mass
        from scipy.optimize import isotonic_regression

        learned = []
        for scores in summarised(log_odds):
            found = isotonic_regression(scores.mean, weights=scores.mass)
            learned.append(self._knots(scores, found.blocks, found.x))
        self.places, self.values = padded(learned, log_odds.device)
        share = 1 / (mass + 1) if self.floor is None else self.floor
        self.share = torch.tensor(share, dtype=torch.float64, device=log_odds.device)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        s = log_odds.T.contiguous()  # (C, N)
        right = rank_in(self.places, s).clamp_max(self.places.shape[1] - 1)
        left = (right - 1).clamp_min(0)
        x0, x1 = self.places.gather(1, left), self.places.gather(1, right)
        v0, v1 = self.values.gather(1, left), self.values.gather(1, right)
        # beyond the ends both knots are one: 0 / 1, and not 0 / 0, whatever the precision of the runtime that serves it
        width = torch.where(x1 > x0, x1 - x0, 1.0)
        part = ((s - x0) / width).clamp(0, 1)
        p = torch.lerp(v0, v1, part).clamp(0, 1)
        share = self.share / max(2, self.places.shape[0])
        hit, miss = (1 - self.share) * p + share, (1 - self.share) * (1 - p) + self.share - share
        return (hit.log() - miss.log()).T


# Isotonic calibration: the best map that never falls.


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

    def _knots(self, scores: PooledScores, blocks: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = np.stack([blocks[:-1], blocks[1:] - 1], axis=1).ravel()  # the first and the last place of each block
        return scores.places[ends], values[ends]


# Centred isotonic calibration: isotonic regression without its flat steps.


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

    def _knots(self, scores: PooledScores, blocks: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = blocks[:-1]
        centres = np.add.reduceat(scores.places * scores.mass, first) / np.add.reduceat(scores.mass, first)
        return centres, values[first]


class ScalingBinning(OneVsRest):
    """Platt scaling, then in each of ``bins`` bins of equal mass the mean of the scaled probabilities (Kumar et al. 2019).

    Few answers, each of which can be checked by counting, at less variance than histogram binning, since a bin's answer
    is a mean of scaled probabilities and not of labels. One map for two classes, one a class against the rest for more.

    Args:
        bins: How many, ≥ 1.

    Attributes:
        coefficients: (C, 2) slope and bias of the scaling.
        edges: (C, bins − 1) in scaled log-odds, a place on an edge belongs to the bin below.
        values: (C, bins) the log-odds answered.

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> ScalingBinning(2).fit(z, y).values.shape
        torch.Size([1, 2])

    References:
        Kumar, Liang, Ma 2019, Verified Uncertainty Calibration, §4, Algorithm 1 (all three steps on the same rows).
    """

    coefficients: Tensor
    edges: Tensor
    values: Tensor

    def __init__(self, bins: Bins = 10) -> None:
        super().__init__()
        self.bins = bins

    def _fit(self, rows: RowSource) -> None:
        log_odds, mass = rows.map(LogOddsChunk.of), rows.mass
        self.coefficients = fit_logistic(log_odds, mass, slope_and_one, ((1e-3, 1e-3), (1.0, 0.0)))
        edges, self.values = padded(map(self._bins_of, self.coefficients.cpu(), summarised(log_odds)), log_odds.device)
        self.edges = edges[:, :-1]

    def _bins_of(self, theta: Tensor, scores: PooledScores) -> tuple[Tensor, Tensor]:
        """Return the edges, +inf after them, and the log-odds of each bin of one class."""
        scaled = torch.from_numpy(scores.places) * theta[0] + theta[1]
        places, inverse = torch.unique(scaled, return_inverse=True)
        mass = torch.zeros_like(places).index_add_(0, inverse, torch.from_numpy(scores.mass))
        edges, means = mean_bins(places, torch.sigmoid(places), mass, bins=self.bins)
        return torch.cat([edges, edges.new_tensor([torch.inf])]), torch.logit(means)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        scaled = (log_odds * self.coefficients[:, 0] + self.coefficients[:, 1]).T.contiguous()
        return self.values.gather(1, rank_in(self.edges, scaled)).T
