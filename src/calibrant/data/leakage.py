"""The leakage guard: hashes of the rows that a calibrator was fitted on, compared with the rows to evaluate on.

A row enters less its largest logit and rounded, with its label, so that the same row is known in another order, another dtype,
after a log-softmax or with constants added. Outputs of a saturated model coincide without being the same example. So only outputs that
occurred once among the fitted rows are evidence, each counts once, and as many as chance explains are allowed (Good 1953).

Of more than 65,536 rows as many, evenly spaced, are hashed; of several parts the 65,536 smallest hashes are kept, which are a random
sample of all. So of millions of rows a leak is found where these are more than one in a hundred of the fitted rows.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from calibrant.errors import LeakError

_KEPT = 1 << 16  # hashes of each resolution, and rows that are hashed at once
_COLUMNS = 8  # that enter a hash, evenly spaced; more would seldom all survive rounding to 16 bits
# Cells a nat, in bits. A float16 logit of size 8 is off by 2⁻⁸, so that most of eight cells of 2⁻⁶ stay the same. One or two numbers
# need finer cells to tell rows apart, and two classes both: fine cells for many rows, coarse ones for float16.
_BITS, _BITS_OF_FEW = (6,), {2: (20, 11), 3: (8,)}
_FARTHEST = -(2.0**40)  # in cells: excluded classes lie there
_LABEL_BITS = 8  # the lowest bits of a hash
_SHARE, _FEWEST = 0.01, 8  # a leak is more than one row in a hundred, and eight rows at least
_UNSEEN = 3  # outputs that may occur twice though none did: the rule of three
_HEADER = 4  # of a resolution's block: largest hash, rows and twice-seen outputs up to it, entries that follow


@dataclass(frozen=True, eq=False)
class KeptHashes:
    """What is kept of some fitted rows; parts add.

    Args:
        kept: Of each resolution distinct hashes, ascending, and how often each occurred.
    """

    kept: tuple[tuple[Tensor, Tensor], ...]

    def __add__(self, other: "KeptHashes") -> "KeptHashes":
        joined = []
        for (a, times_a), (b, times_b) in zip(self.kept, other.kept, strict=True):
            values, index = torch.unique(torch.cat([a, b]), return_inverse=True)
            times = torch.zeros_like(values).index_add_(0, index, torch.cat([times_a, times_b]))
            joined.append((values[:_KEPT], times[:_KEPT]))
        return KeptHashes(tuple(joined))


def row_hashes(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return int64 hashes (R, n) of rows of ``logits`` (N, K), n ≤ 65,536, at R resolutions; without ``labels`` the lowest byte is 0."""
    spaced = slice(None, None, -(-len(logits) // _KEPT) or 1)
    logits, labels = logits[spaced], None if labels is None else labels[spaced]
    step = -(-logits.shape[1] // _COLUMNS)
    top = logits.amax(dim=1, keepdim=True).double()
    below = (logits[:, ::step].double() - top).nan_to_num(nan=0.0, neginf=-torch.inf)
    factors, sizes = odd_numbers(below.shape[1]).to(below.device), _BITS_OF_FEW.get(logits.shape[1], _BITS)
    cells = [(below * 2.0**bits).round().clamp_min(_FARTHEST).long() for bits in sizes]
    mixed = torch.stack([(one * factors).sum(dim=1) for one in cells]).cpu()
    # products carry upwards only: without the shift the lower bits would depend on the lower bits of the cells alone
    bare = ((mixed ^ (mixed >> 29)) * odd_numbers(1)) >> _LABEL_BITS << _LABEL_BITS
    return bare if labels is None else bare | ((labels.cpu().long() * odd_numbers(1)) >> 40 & ((1 << _LABEL_BITS) - 1))


def part_of(logits: Tensor, labels: Tensor | None = None) -> KeptHashes:
    """Return what is kept of fitted rows ``logits`` (N, K) with ``labels`` (N,) or without."""
    found = (torch.unique(one, return_counts=True) for one in row_hashes(logits, labels))
    return KeptHashes(tuple((values[:_KEPT], times[:_KEPT]) for values, times in found))


def sketch_of(part: KeptHashes, rows: int) -> Tensor:
    """Return the sketch (int64), as ``Calibrator.fit_rows``, of so many fitted rows of which ``part`` was kept."""
    blocks = [torch.tensor([rows])]
    for values, times in part.kept:
        single, last = values[times == 1], values[-1] if len(values) == _KEPT else torch.iinfo(torch.int64).max
        header = torch.tensor([int(last), int(times.sum()), int((times == 2).sum()), len(single)])
        blocks += [header, single]
    return torch.cat(blocks)


def rows_in_sketch(sketch: Tensor) -> int:
    """Return how many rows a sketch is of; 0 where there is none."""
    return int(sketch[0]) if len(sketch) else 0


def check_not_fitted_on(logits: Tensor, sketch: Tensor, labels: Tensor | None = None) -> None:
    """Refuse ``logits`` (N, K) of which more than 1 % of the rows, and more than chance explains, are in the sketch.

    Args:
        logits: Rows to evaluate on.
        sketch: As ``Calibrator.fit_rows``.
        labels: (N,) or None. A row under another label is another example.

    Raises:
        LeakError: Then.
    """
    if not len(sketch):
        return
    at, shift = 1, _LABEL_BITS if labels is None else 0
    for hashes in row_hashes(logits, labels):
        last, fitted, twice, count = sketch[at : at + _HEADER].tolist()
        known = sketch[at + _HEADER : (at := at + _HEADER + count)].cpu() >> shift
        seen = hashes[hashes <= last]
        hits = int(torch.isin(torch.unique(seen >> shift), known).sum())
        # an output that occurred once is expected again with the probability 2 n₂ / n (Good 1953, equation 2)
        chance = (2 * twice / max(fitted, 1)) * len(seen) + 2 * _UNSEEN * min(1.0, len(seen) / max(fitted, 1))
        if hits >= _FEWEST and hits > max(_SHARE * len(seen), chance + 4 * math.sqrt(chance)):
            got = f"{hits} of {len(seen)} rows that also occur among the fitting rows"
            remedy = "evaluate on rows that it was not fitted on, or pass allow_fit_rows=True"
            raise LeakError("data that were not fitted on", got, remedy)


@cache
def odd_numbers(count: int) -> Tensor:
    """Return odd factors (count,) int64, always the same: they spread a row over all 64 bits."""
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) * 2 + 1
