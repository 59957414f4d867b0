"""Histogram binning of the top label: a bin's confidence becomes the accuracy seen in it."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from calibrant._core.constraints import Number
from calibrant._core.numerics import in_row_chunks, rank_in
from calibrant._objective.log_pairs import log_pair_of_top
from calibrant.binning import TIE, AnyBinning, Binning, EqualMass, EqualWidth, edges_of_largest, split_starts
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.grids import check_weights_count
from calibrant.rows import Batch, RowSource

# Edges of bins of equal mass: from all confidences at once where they are few, exactly by counting passes beyond.

HELD = 1 << 22  # confidences that are held at once
_DIGIT = 16  # bits of a float64 that one pass settles


@dataclass(frozen=True)
class TopChunk:
    """Confidence (n,) float64 of the decided class, whether it is right (n,), and the rows' weights (n,)."""

    confidence: Tensor
    correct: Tensor
    weight: Tensor

    def digit_counts(self, known: Tensor, shift: int) -> Tensor:
        """Return how many values (U, 65536) have each next digit after each of the known prefixes (U,)."""
        bits = self.confidence.cpu().contiguous().view(torch.int64) >> shift
        digit, before = bits & ((1 << _DIGIT) - 1), bits >> _DIGIT
        place = torch.searchsorted(known, before).clamp_max(len(known) - 1)
        inside = known[place] == before
        size = len(known) << _DIGIT
        return torch.bincount((place[inside] << _DIGIT) | digit[inside], minlength=size).view(len(known), -1)

    def largest_in(self, places: Tensor) -> Tensor:
        index = torch.bucketize(self.confidence, places.to(self.confidence.device), right=False)
        upper = self.confidence.new_full((len(places) + 1,), -1.0)
        return upper.scatter_reduce_(0, index, self.confidence, reduce="amax")

    def bin_sums(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight and the weight of right rows in each bin (B,)."""
        index, bins = _bin_of(self.confidence, edges), len(edges) - 1
        return (
            torch.bincount(index, weights=self.weight, minlength=bins),
            torch.bincount(index, weights=self.weight * self.correct, minlength=bins),
        )


def edges_of(binning: Binning, tops: RowSource) -> Tensor:
    """Return the edges (B′ + 1,) that ``binning.edges`` gives for the confidences of all rows.

    Args:
        binning: The bins.
        tops: A source of ``TopChunk``.
    """
    if not isinstance(binning, EqualMass):
        return binning.edges(torch.zeros(1, dtype=torch.float64, device=tops.device))
    if tops.count <= HELD:
        return binning.edges(torch.cat(tops.collected(_top_confidences)))
    if binning.ties == "interpolated":
        return binning.edges_between(tops.count, partial(order_statistics, tops), torch.device("cpu")).to(tops.device)
    starts = split_starts(tops.count, binning.bins)[1:]
    places = order_statistics(tops, starts - 1) + TIE
    return edges_of_largest(torch.stack(tops.collected(TopChunk.largest_in, places)).amax(dim=0)).to(tops.device)


def order_statistics(tops: RowSource, ranks: Tensor) -> Tensor:
    """Return the confidences (R,) of the given ranks (R,) from 0, exactly, in four counting passes.

    Positive float64 numbers are ordered as their bits are: each pass counts the next 16 of them.
    """
    prefix, left = torch.zeros_like(ranks), ranks.clone()
    for shift in (48, 32, 16, 0):
        known, code = torch.unique(prefix, return_inverse=True)
        below = tops.total(TopChunk.digit_counts, known, shift).cpu().cumsum(dim=1)[code]  # (R, 65536)
        digit = torch.searchsorted(below, left[:, None], right=True)
        before = torch.where(digit > 0, below.gather(1, (digit - 1).clamp_min(0)), 0)
        prefix, left = (prefix << _DIGIT) | digit[:, 0], left - before[:, 0]
    return prefix.view(torch.float64)


def _top_confidences(chunk: TopChunk) -> Tensor:
    return chunk.confidence


class HistogramBinning(Calibrator):
    """Replace the confidence of the decided class by the accuracy of its bin on validation data (Zadrozny & Elkan 2001).

    The decision is taken before and stays: the new confidence may be the smallest probability of the row, so
    ``Predictions.calibrated_by`` carries the decision along. The other classes share the rest in their old proportions.

    Args:
        binning: ``EqualWidth(15)`` (Wang et al. 2021) or ``EqualMass(…)``, whose edges are those of the fitting data.
        empty: What a bin without fitting rows gives: "identity" the old confidence, "midpoint" the middle of the bin,
            "nearest" the accuracy of the nearest filled bin, the lower of two.
        floor: New confidences stay within [floor, 1 − floor]; 0 allows a log-loss of +inf.

    Attributes:
        confidences: (B,) the new confidence of each bin; −1 where the old one is kept.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> z, y = torch.tensor([[2.0, 0.0]] * 4 + [[0.5, 0.0]] * 2), torch.tensor([0, 0, 0, 1, 0, 1])
        >>> HistogramBinning(EqualWidth(5)).fit(z, y)(z[:1]).exp()
        tensor([[0.7500, 0.2500]])

    References:
        Zadrozny & Elkan 2001. Wang et al. 2021, Rethinking Calibration of Deep Neural Networks, §3.
    """

    top_label = True

    edges: Tensor
    confidences: Tensor

    def __init__(
        self,
        binning: AnyBinning | None = None,
        *,
        empty: Literal["identity", "midpoint", "nearest"] = "identity",
        floor: Annotated[float, Number(0, 0.5)] = 0.0,
    ) -> None:
        super().__init__()
        self.binning = binning or EqualWidth(15)
        self.empty = empty
        self.floor = floor

    def learned(self) -> str:
        """Return how many bins hold fitting rows or a rule's value."""
        return f"filled={int((self.confidences >= 0).sum())} of {len(self.confidences)} bins"

    def _fit(self, rows: RowSource) -> None:
        if rows.weighted:
            check_weights_count(self.binning)
        tops = rows.map(_top_of)
        edges = edges_of(self.binning, tops)
        count, right = tops.total(TopChunk.bin_sums, edges)
        accuracy = torch.where(count > 0, (right / count).clamp(self.floor, 1 - self.floor), -1.0)
        self.edges, self.confidences = edges, self._filled(accuracy, edges)

    def _filled(self, accuracy: Tensor, edges: Tensor) -> Tensor:
        """Return ``accuracy`` (B,) with the −1 of empty bins replaced as ``empty`` says."""
        known = torch.nonzero(accuracy >= 0)[:, 0]
        if self.empty == "midpoint":
            return torch.where(accuracy >= 0, accuracy, (edges[1:] + edges[:-1]) / 2)
        if self.empty == "nearest":
            distance = (torch.arange(len(accuracy), device=accuracy.device)[:, None] - known).abs()
            return accuracy[known[distance.argmin(dim=1)]]
        return accuracy

    def _transform(self, logits: Tensor) -> Tensor:
        return in_row_chunks(self._transform_chunk, logits)

    def _transform_chunk(self, logits: Tensor) -> Tensor:
        log_q, log_rest, decided = log_pair_of_top(logits.double())
        log_top = log_q.gather(1, decided)
        target = self.confidences[_bin_of(_confidence(logits)[0], self.edges)][:, None]
        kept = target < 0
        log_target = torch.where(kept, log_top, target.clamp_min(0).log())
        log_others = torch.where(kept, log_rest, torch.log1p(-torch.where(kept, 0.5, target)))
        others = log_q - log_rest + log_others
        return others.scatter(1, decided, log_target).masked_fill(torch.isneginf(logits), -torch.inf).to(logits.dtype)


def _confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float64 confidence (N,) and the class decided (N,), in the one way that fitting and applying share."""
    z = logits.double()
    largest, decided = z.max(dim=1, keepdim=True)
    return torch.exp(z - largest).sum(dim=1).reciprocal(), decided[:, 0]


def _bin_of(confidence: Tensor, edges: Tensor) -> Tensor:
    """Return the index (N,) of the bin (lo, hi] that holds each confidence; beyond the ends, that of the end."""
    return rank_in(edges[1:-1].to(confidence.device), confidence)


def _top_of(chunk: Batch) -> TopChunk:
    confidence, decided = _confidence(chunk.logits)
    return TopChunk(confidence, decided == chunk.labels, chunk.row_weights)
