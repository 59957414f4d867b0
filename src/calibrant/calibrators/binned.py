"""Piecewise maps: histogram binning of the top label, isotonic regression, and Venn–Abers calibration.

Isotonic maps are fitted to the log-odds of each class against the rest. Venn–Abers calibration fits two maps per class, one for each
label that a new row can have.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._core.check import check_number
from calibrant._core.log_pairs import finite_floor
from calibrant._core.numerics import in_row_chunks, rank_in
from calibrant.binning import Binning, EqualMass, EqualWidth, as_binning
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.grids import check_weights_count
from calibrant.calibrators.one_vs_rest import OneVsRest, PooledScores, log_odds, pool_ties
from calibrant.rows import Batch, RowSource


class HistogramBinning(Calibrator):
    """Replaces each confidence with the accuracy in its bin on validation data (Zadrozny & Elkan 2001).

    The decision is made beforehand and does not change. In a bin without validation rows, the confidence does not change
    either. The new confidence can be the smallest probability of the row, so ``Predictions.calibrated_by`` stores the decision
    separately. The other classes share the remaining probability in their old proportions.

    Args:
        binning: ``EqualWidth(15)``, as in Wang et al. (2021), or ``EqualMass(…)``, whose edges come from the fitting data.
        floor: New confidences are clipped to [floor, 1 − floor], with floor in [0, 0.5). With 0, the log-loss can be +inf. A class
            whose logit is −inf keeps the probability 0, whatever the floor.

    Attributes:
        confidences: The new confidence of each bin (B,); −1 if the old confidence is kept.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> z, y = torch.tensor([[2.0, 0.0]] * 4 + [[0.5, 0.0]] * 2), torch.tensor([0, 0, 0, 1, 0, 1])
        >>> HistogramBinning(EqualWidth(5)).fit(z, y)(z[:1]).exp()
        tensor([[0.7500, 0.2500]])

    References:
        Zadrozny & Elkan 2001. Wang et al. 2021, Rethinking Calibration of Deep Neural Networks, §3.
    """

    top_label = True
    shows = ("confidences",)

    edges: Tensor
    confidences: Tensor

    def __init__(self, binning: Binning | int | None = None, *, floor: float = 0.0) -> None:
        super().__init__()
        self.binning = EqualWidth(15) if binning is None else as_binning(binning, name="binning")
        self.floor = check_number(floor, name="floor", low=0, high=0.5)

    def _fit(self, rows: RowSource) -> None:
        if rows.weighted:
            check_weights_count(self.binning)
        if isinstance(self.binning, EqualMass):
            self.edges = self.binning.edges(torch.cat(rows.collected(_confidences)))
        else:
            self.edges = self.binning.edges(torch.zeros(1, dtype=torch.float64, device=rows.device))
        count, right = rows.total(_bin_sums, self.edges)
        self.confidences = torch.where(count > 0, (right / count).clamp(self.floor, 1 - self.floor), -1.0)

    def _transform(self, logits: Tensor) -> Tensor:
        return in_row_chunks(self._transform_rows, logits)

    def _transform_rows(self, logits: Tensor) -> Tensor:
        confidence, decided = _confidence(logits)
        z = logits.double().T.contiguous()  # sums over few classes are fastest along the first dimension
        top = decided[None]
        below = z - z.gather(0, top)
        # the log-odds of the other classes together
        rest = torch.logsumexp(finite_floor(below.scatter(0, top, -torch.inf)), dim=0)
        target = self.confidences[_bin_between(confidence, self.edges)]
        kept = target < 0
        log_target = torch.where(kept, logsigmoid(-rest), target.clamp_min(0).log())
        log_others = torch.where(kept, logsigmoid(rest), torch.log1p(-torch.where(kept, 0.5, target)))
        answer = (below - rest + log_others).scatter(0, top, log_target[None])
        return answer.masked_fill(torch.isneginf(z), -torch.inf).T.to(logits.dtype).contiguous()


def _confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float64 confidence (N,) and the decided class (N,), computed in the same way for fitting and for applying."""
    z = logits.double()
    largest, decided = z.max(dim=1, keepdim=True)
    return torch.exp(z - largest).sum(dim=1).reciprocal(), decided[:, 0]


def _confidences(batch: Batch) -> Tensor:
    return _confidence(batch.logits)[0]


def _bin_between(confidence: Tensor, edges: Tensor) -> Tensor:
    """Return the index (N,) of the bin (lo, hi] that contains each confidence; values beyond the ends belong to the end bin."""
    return rank_in(edges[1:-1].to(confidence.device), confidence)


def _bin_sums(batch: Batch, edges: Tensor) -> Tensor:
    """Return the total weight of all rows and of the correct rows in each bin (2, B)."""
    confidence, decided = _confidence(batch.logits)
    index, weights = _bin_between(confidence, edges), batch.row_weights
    columns = (weights, weights * (decided == batch.labels))
    return torch.stack([torch.bincount(index, weights=one, minlength=len(edges) - 1) for one in columns])


class _Piecewise(OneVsRest):
    """One-vs-rest isotonic regression. Subclasses choose the knots, between which the probability is linear in the log-odds."""

    places: Tensor
    values: Tensor
    share: Tensor

    def __init__(self, *, floor: float | None = None) -> None:
        super().__init__()
        self.floor = None if floor is None else check_number(floor, name="floor", low=0, high=1, open_high=True)

    @abstractmethod
    def _knots(self, scores: PooledScores, blocks: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the knots and their values.

        Args:
            scores: The distinct scores.
            blocks: The start of each pooled block, followed by the end of the last.
            values: The isotonic value of each score.
        """

    def _fit(self, rows: RowSource) -> None:
        from scipy.optimize import isotonic_regression

        learned = []
        for scores in pool_ties(*self._scores(rows)):
            found = isotonic_regression(scores.mean, weights=scores.mass)
            learned.append(self._knots(scores, found.blocks, found.x))
        self.places, self.values = padded(learned, rows.device)
        share = 1 / (rows.mass + 1) if self.floor is None else self.floor
        self.share = torch.tensor(share, dtype=torch.float64, device=rows.device)

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        right = rank_in(self.places, log_odds).clamp_max(self.places.shape[1] - 1)
        left = (right - 1).clamp_min(0)
        x0, x1 = self.places.gather(1, left), self.places.gather(1, right)
        # beyond the ends, both knots coincide; dividing by 1 then gives 0 / 1 instead of 0 / 0 in every precision
        part = ((log_odds - x0) / torch.where(x1 > x0, x1 - x0, 1.0)).clamp(0, 1)
        p = torch.lerp(self.values.gather(1, left), self.values.gather(1, right), part).clamp(0, 1)
        share = self.share / max(2, self.places.shape[0])
        hit, miss = (1 - self.share) * p + share, (1 - self.share) * (1 - p) + self.share - share
        return hit.log() - miss.log()


def padded(learned: Iterable[tuple[Any, ...]], device: torch.device) -> Iterator[Tensor]:
    """Yield the learned parts of all classes as matrices (C, longest); short rows are padded with their last entry."""
    for part in zip(*learned, strict=True):
        longest = max(map(len, part))
        rows = [np.pad(row, (0, longest - len(row)), mode="edge") for row in part]
        yield torch.from_numpy(np.stack(rows)).to(device)


class IsotonicCalibration(_Piecewise):
    """Isotonic regression: the best non-decreasing map of the log-odds (pool adjacent violators), mixed with a uniform floor.

    Two classes share one map. With more classes, each class has its own map against the rest, and the results are normalised.
    Between pooled blocks, the map is linear in the log-odds. Isotonic regression alone returns probabilities of 0 and 1, and
    therefore an infinite log-loss on most real data; (1 − ε) p + ε / K keeps the log-loss finite, unless the logit of a true class
    is −inf. With more than two classes, such a class keeps the probability 0, whatever the floor.

    Args:
        floor: ε in [0, 1); None for 1 / (N + 1). With 0, probabilities of 0 are possible.

    Attributes:
        places: The knots (C, B), in log-odds; shorter rows repeat their last entry.
        values: The probability at each knot (C, B).

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


class CentredIsotonic(_Piecewise):
    """Isotonic regression that is interpolated linearly between the centres of the pooled blocks.

    The steps of isotonic regression are artefacts of limited data. The centred map increases strictly between the centres of
    the first and the last block, so it preserves the order of rows that isotonic regression would tie.

    Args:
        floor: The ε in (1 − ε) p + ε / K, in [0, 1); None for 1 / (N + 1). With 0, probabilities of 0 are possible.

    Attributes:
        places: The centres (C, B), in log-odds; shorter rows repeat their last entry.
        values: The probability at each centre (C, B).

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


class VennAbers(OneVsRest):
    """Inductive Venn–Abers calibration: p = p₁ / (1 − p₀ + p₁), where p_y is the isotonic fit with the new row added as label y.

    If the rows are exchangeable, one of p₀ and p₁ is perfectly calibrated, and the distance between them shows how uncertain
    the probability is given the data. Both are exact: they are step functions with steps at the fitting rows, each computed in
    one pass. Two classes share one pair of maps. With more classes, each class has its own pair against the rest, and the
    results are normalised. The result p is never 0 or 1, except that with more than two classes, a class whose logit is −inf keeps
    the probability 0.

    Attributes:
        places: The distinct log-odds of the fitting rows (C, M); shorter rows repeat their last entry.
        lower: Values of p₀ at and between these log-odds (C, M + 1).
        upper: Values of p₁ at and between these log-odds (C, M + 1).

    Examples:
        >>> z, y = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([1, 0, 1, 0])
        >>> p0, p1 = VennAbers().fit(z, y).interval(torch.tensor([[0.0, 1.5]]))
        >>> round(float(p0[0, 1]), 4), round(float(p1[0, 1]), 4)
        (0.5, 1.0)

    References:
        Vovk, Petej, Fedorova 2015, Large-Scale Probabilistic Predictors with and without Guarantees of Validity.
    """

    places: Tensor
    lower: Tensor
    upper: Tensor

    def interval(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (p₀, p₁), each (N, K): the two probabilities of each class against the rest.

        Args:
            logits: Floating logits (N, K), with the same K as in ``fit``.

        Returns:
            p₀ and p₁, float64.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If K is not that of the data passed to ``fit``.
        """
        self.check_input(logits)
        low, high = (bound.T for bound in self._bounds(log_odds(logits)))
        if logits.shape[1] == 2:  # the bounds of the other class are the complements, in reverse order
            low, high = torch.cat([1 - high, low], dim=1), torch.cat([1 - low, high], dim=1)
        return low, high

    def _fit(self, rows: RowSource) -> None:
        self.places, self.lower, self.upper = padded(map(_maps, pool_ties(*self._scores(rows))), rows.device)

    def _bounds(self, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        # A row between two places has the p₀ of the lower and the p₁ of the upper place. The tolerance keeps a fitting row at its
        # place, whichever library computes its log-odds in float64.
        near = 1e-10 * (1 + log_odds.abs().clamp(max=1e6))
        low = self.lower.gather(1, rank_in(self.places, log_odds + near, right=True))
        high = self.upper.gather(1, rank_in(self.places, log_odds - near))
        return low, high

    def _calibrated_log_odds(self, log_odds: Tensor) -> Tensor:
        low, high = self._bounds(log_odds)
        return high.log() - (1 - low).log()


def _maps(scores: PooledScores) -> tuple[np.ndarray, ...]:
    """Return the places, p₀ and p₁ for one class."""
    upper = _with_one_more(scores.mean, scores.mass)
    # adding label 0 is adding label 1 with labels and order reversed
    lower = 1 - _with_one_more(1 - scores.mean[::-1], scores.mass[::-1])[::-1]
    return scores.places, np.r_[0.0, lower], np.r_[upper, 1.0]


def _with_one_more(mean: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return, for each place, the isotonic value there after a row with weight 1 and label 1 is added at this place.

    The added row is pooled only with neighbouring blocks, from the places before and after it, so each place takes a few steps.
    """
    before, after = _blocks(mean, mass), _blocks(1 - mean[::-1], mass[::-1])[::-1]  # the latter from the other end
    answer = np.empty_like(mean)
    for i, (value, weight) in enumerate(zip(mean.tolist(), mass.tolist(), strict=True)):
        left, right = before[i], after[i + 1]
        total, weight = value * weight + 1, weight + 1
        while True:
            if right and 1 - right[0] <= total / weight:
                other, more, right = right
                total, weight = total + (1 - other) * more, weight + more
            elif left and left[0] >= total / weight:
                other, more, left = left
                total, weight = total + other * more, weight + more
            else:
                break
        answer[i] = total / weight
    return answer


def _blocks(mean: np.ndarray, mass: np.ndarray) -> list[Any]:
    """Return the pooled blocks of the first 0, 1, 2 … places, as linked lists.

    A list is (value, weight, list of earlier blocks) and starts with the last block; an empty list is None.
    """
    blocks: Any = None
    found = [blocks]
    for value, weight in zip(mean.tolist(), mass.tolist(), strict=True):
        total = value * weight
        while blocks and blocks[0] >= total / weight:
            other, more, blocks = blocks
            total, weight = total + other * more, weight + more
        blocks = (total / weight, weight, blocks)
        found.append(blocks)
    return found
