"""The leakage guard: compares hashes of the rows that a calibrator was fitted on with the rows to evaluate on.

Before a row is hashed together with its label, its largest logit is subtracted and the differences are rounded. The
same row is therefore recognised in another order, in another dtype, after a log-softmax, or with a constant added to
its logits. Different examples can have identical outputs if the model is saturated. Therefore only outputs that
occurred exactly once among the fitted rows count as evidence, each of them counts once, and as many matches as chance
explains are allowed (Good 1953).

If there are more than 65,536 rows, 65,536 evenly spaced ones are hashed. If the rows come in several parts, the 65,536
smallest hashes are kept, which are a random sample of all hashes. A leak among millions of rows is therefore found as
long as more than one in a hundred fitted rows is hashed.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from calibrant.errors import LeakError

_KEPT = 1 << 16  # number of hashes kept at each resolution, and largest number of rows hashed
_BLOCK = 1 << 13  # number of rows hashed at a time, so that intermediate results stay in the cache
_COLUMNS = 8  # number of evenly spaced columns in a hash; more would seldom all survive rounding to 16 bits
# Cells per nat, in bits. A float16 logit of size 8 is off by 2⁻⁸, so most of eight cells of width 2⁻⁶ stay the same.
# With only one or two numbers per row, finer cells are needed to tell rows apart. Two classes use both: fine cells for
# many rows, coarse ones for float16.
_BITS, _BITS_OF_FEW = (6,), {2: (20, 11), 3: (8,)}
_FARTHEST = -(2.0**40)  # position of excluded classes, in cells
_LABEL_BITS = 8  # the lowest bits of a hash, which hold the label
_SHARE, _FEWEST = 0.01, 8  # a leak is more than one row in a hundred, and at least eight rows
_UNSEEN = 3  # number of outputs that may occur twice although none did (the rule of three)
_HEADER = 4  # numbers before a block: its largest hash, its rows, its outputs that occurred twice, its entries


@dataclass(frozen=True, eq=False)
class KeptHashes:
    """The hashes kept from some fitted rows. The hashes of several parts can be added.

    Args:
        kept: For each resolution, the distinct hashes in ascending order, and the number of times that each occurred.
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
    """Return int64 hashes (R, n) of n ≤ 65,536 rows of ``logits`` (N, K) at R resolutions.

    The lowest byte of a hash holds the label; it is 0 without ``labels``.
    """
    spaced = slice(None, None, -(-len(logits) // _KEPT) or 1)
    bare = torch.cat([_unlabelled_hashes(some) for some in logits[spaced].split(_BLOCK)], dim=1)
    if labels is None:
        return bare
    return bare | ((labels[spaced].cpu().long() * odd_numbers(1)) >> 40 & ((1 << _LABEL_BITS) - 1))


def _unlabelled_hashes(logits: Tensor) -> Tensor:
    step = -(-logits.shape[1] // _COLUMNS)
    top = logits.amax(dim=1, keepdim=True)
    below = (logits[:, ::step].double() - top).nan_to_num_(nan=0.0, neginf=-torch.inf)
    factors, sizes = odd_numbers(below.shape[1]).to(below.device), _BITS_OF_FEW.get(logits.shape[1], _BITS)
    cells = [(below * 2.0**bits).round_().clamp_min_(_FARTHEST).long() for bits in sizes]
    mixed = torch.stack([(one * factors).sum(dim=1) for one in cells]).cpu()
    # products carry only upwards: without the shift the lower bits would depend only on the lower bits of the cells
    return ((mixed ^ (mixed >> 29)) * odd_numbers(1)) >> _LABEL_BITS << _LABEL_BITS


def part_of(logits: Tensor, labels: Tensor | None = None) -> KeptHashes:
    """Return the hashes to keep from fitted rows ``logits`` (N, K), with or without ``labels`` (N,)."""
    found = (torch.unique(one, return_counts=True) for one in row_hashes(logits, labels))
    return KeptHashes(tuple((values[:_KEPT], times[:_KEPT]) for values, times in found))


def sketch_of(part: KeptHashes, rows: int) -> Tensor:
    """Return the int64 sketch for ``Calibrator.fit_rows``: the number of fitted ``rows`` and their hashes ``part``."""
    blocks = [torch.tensor([rows])]
    for values, times in part.kept:
        single, last = values[times == 1], values[-1] if len(values) == _KEPT else torch.iinfo(torch.int64).max
        header = torch.tensor([int(last), int(times.sum()), int((times == 2).sum()), len(single)])
        blocks += [header, single]
    return torch.cat(blocks)


def rows_in_sketch(sketch: Tensor) -> int:
    """Return the number of fitted rows that a sketch describes; 0 for an empty sketch."""
    return int(sketch[0]) if len(sketch) else 0


def check_not_fitted_on(logits: Tensor, sketch: Tensor, labels: Tensor | None = None) -> None:
    """Raise an error if the sketch contains more than 1 % of the rows, and more rows than could match by chance.

    Args:
        logits: (N, K) rows to evaluate on.
        sketch: The sketch of the fitted rows, as in ``Calibrator.fit_rows``.
        labels: (N,) or None. A row with another label is another example.

    Raises:
        LeakError: If so many rows were used for fitting.
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
            got = f"{hits} of {len(seen)} rows that were"
            remedy = "evaluate on other rows (in Python, allow_fit_rows=True allows these)"
            raise LeakError("data that were not used for fitting", got, remedy)


@cache
def odd_numbers(count: int) -> Tensor:
    """Return the same odd int64 factors (count,) in every call; they spread a row over all 64 bits."""
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) * 2 + 1
