"""Edges of bins of equal mass: from all confidences at once where they are few, exactly by counting passes beyond."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.binning import TIE, Binning, EqualMass, split_starts
from calibrant.rows import RowSource

HELD = 1 << 22  # confidences that are held at once
_DIGIT = 16  # bits of a float64 that one pass settles


@dataclass(frozen=True)
class TopChunk:
    """Confidence (n,) float64 of the decided class, whether it is right (n,), and the rows' weights (n,)."""

    confidence: Tensor
    correct: Tensor
    weight: Tensor


def edges_of(binning: Binning, tops: RowSource) -> Tensor:
    """Return the edges (B′ + 1,) that ``binning.edges`` gives for the confidences of all rows.

    Args:
        binning: The bins.
        tops: A source of ``TopChunk``.
    """
    if not isinstance(binning, EqualMass):
        return binning.edges(torch.zeros(1, dtype=torch.float64, device=tops.device))
    if tops.count <= HELD:
        return binning.edges(torch.cat(tops.collected(_confidences)))
    if binning.ties == "interpolated":
        at = torch.linspace(0, tops.count, binning.bins + 1, dtype=torch.float64)
        below = at.floor().long().clamp_max(tops.count - 1)
        above = (below + 1).clamp_max(tops.count - 1)
        low, high = order_statistics(tops, torch.cat([below, above])).split(len(below))
        cuts: Tensor = low + (at - below).clamp(0, 1) * (high - low)
        return cuts
    starts = split_starts(tops.count, binning.bins)[1:]
    places = order_statistics(tops, starts - 1) + TIE
    upper = tops.largest(_largest_in, places).cpu()
    upper = upper[upper >= 0]
    return torch.cat([upper.new_zeros(1), upper[:-1], upper.new_ones(1)]).to(tops.device)


def order_statistics(tops: RowSource, ranks: Tensor) -> Tensor:
    """Return the confidences (R,) of the given ranks (R,) from 0, exactly, in four counting passes.

    Positive float64 numbers are ordered as their bits are: each pass counts the next 16 of them.
    """
    prefix, left = torch.zeros_like(ranks), ranks.clone()
    for shift in (48, 32, 16, 0):
        known, code = torch.unique(prefix, return_inverse=True)
        below = tops.total(_digit_counts, known, shift).cpu().cumsum(dim=1)[code]  # (R, 65536)
        digit = torch.searchsorted(below, left[:, None], right=True)
        before = torch.where(digit > 0, below.gather(1, (digit - 1).clamp_min(0)), 0)
        prefix, left = (prefix << _DIGIT) | digit[:, 0], left - before[:, 0]
    return prefix.view(torch.float64)


def _digit_counts(chunk: TopChunk, known: Tensor, shift: int) -> Tensor:
    """Return how many values (U, 65536) have each next digit after each of the known prefixes (U,)."""
    bits = chunk.confidence.cpu().contiguous().view(torch.int64) >> shift
    digit, before = bits & ((1 << _DIGIT) - 1), bits >> _DIGIT
    place = torch.searchsorted(known, before).clamp_max(len(known) - 1)
    inside = known[place] == before
    size = len(known) << _DIGIT
    return torch.bincount((place[inside] << _DIGIT) | digit[inside], minlength=size).view(len(known), -1)


def _largest_in(chunk: TopChunk, places: Tensor) -> Tensor:
    index = torch.bucketize(chunk.confidence, places.to(chunk.confidence.device), right=False)
    upper = chunk.confidence.new_full((len(places) + 1,), -1.0)
    return upper.scatter_reduce_(0, index, chunk.confidence, reduce="amax")


def _confidences(chunk: TopChunk) -> Tensor:
    return chunk.confidence
