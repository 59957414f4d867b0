"""The leakage guard: a sketch of the rows a calibrator was fitted on, and what it says about rows to evaluate on.

Of up to 65,536 rows the sketch holds one hash a row, in order. Of more it holds a sample of bounded size (half a MiB): the
smallest hashes of 16 consecutive rows among those that are the smallest within every 32 rows (winnowing: Schleimer,
Wilkerson, Aiken 2003), and the smallest hashes of single rows with how often each occurred. Sketches of parts join in
order, so that a stream gives the sketch of the same rows in memory.

Outputs of a saturated model coincide without being the same example. So labels enter the hashes, a run counts only if it
holds 8 distinct rows, and single rows count only beyond the number that repetitions within the fitting rows let expect.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant._warn import warn_user
from calibrant.errors import DuplicateRowsWarning, LeakError

RUN = 32  # consecutive fitting rows that cannot be chance
WHOLE = 1 << 16  # rows up to which every hash is kept
_GRAM = 16  # rows in one hash of a sample: 17 such stretches lie in a run
_DISTINCT = 8  # rows of a run that must differ: saturated models repeat a few outputs in any order
_GRAMS, _SINGLES = 3 << 14, 1 << 14  # entries of a sample
_COLUMNS = 64  # columns that enter a hash: real logits that agree in 64 places to the bit are the same row
_LABEL_BITS = 8
_MARK = 0x5CA1AB1E0002  # opens a sketch; version 0.1.0 stored bare hashes, without labels
_UNSEEN = 3  # outputs that may occur twice though none did: the rule of three
_HEADER = 4  # mark, rows, entries of grams, threshold below which every single row's hash is held

Part = tuple[Tensor, ...]


def hash_rows(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return one int64 hash (N,) of each row of ``logits`` (N, K) as float32 bits; from at most 64 columns, evenly spaced.

    Args:
        logits: (N, K).
        labels: (N,) whose hash replaces the lowest 8 bits, or None to leave these 0.
    """
    picked = logits[:, :: -(-logits.shape[1] // _COLUMNS)]
    odd = _odd_numbers(picked.shape[1]).to(logits.device)
    hashes = []
    for chunk in row_chunks(*picked.shape, device=picked.device):
        bits = (picked[chunk].float() + 0.0).contiguous().view(torch.int32).long()  # −0 is 0
        if bits.device.type == "cpu":  # NumPy multiplies integer matrices without writing all products down first
            mixed = torch.from_numpy(bits.numpy() @ odd.numpy())
        else:
            mixed = (bits * odd).sum(dim=1)
        hashes.append(mixed ^ (mixed >> 29))
    rows = torch.cat(hashes).cpu() >> _LABEL_BITS << _LABEL_BITS
    return rows if labels is None else rows | _label_bits(labels.cpu())


def part_of(hashes: Tensor) -> Part:
    """Return the sketch's part of consecutive rows with ``hashes`` (n,): rows, first and last, grams, singles and their counts."""
    edge = min(len(hashes), RUN - 1)
    single, count = _smallest(hashes)
    size = torch.tensor([len(hashes)])
    bare = _bare(hashes)
    return size, bare[:edge], bare[len(bare) - edge :], _winnowed(bare), single, count


def joined(left: Part, right: Part) -> Part:
    """Return the part of the rows of ``left`` followed by those of ``right``."""
    across = torch.cat([left[2], right[1]])
    grams = _distinct(torch.cat([left[3], right[3], _winnowed(across)]))[0][:_GRAMS]
    single = _distinct(torch.cat([left[4], right[4]]))[0]
    count = torch.zeros_like(single)
    for values, counts in (left[4:], right[4:]):
        count[torch.searchsorted(single, values)] += counts
    first = torch.cat([left[1], right[1]])[: RUN - 1] if len(left[1]) < RUN - 1 else left[1]
    last = torch.cat([left[2], right[2]])[-(RUN - 1) :] if len(right[2]) < RUN - 1 else right[2]
    return left[0] + right[0], first, last, grams, single[:_SINGLES], count[:_SINGLES]


def sketch_of_hashes(hashes: Tensor) -> Tensor:
    """Return the sketch (int64) that holds ``hashes`` (N,) of all rows in order: for at most 65,536 of them."""
    return torch.cat([torch.tensor([_MARK, len(hashes), -1, 0]), hashes])


def sketch_of_part(part: Part) -> Tensor:
    """Return the sketch (int64, at most 82,000 entries) of ``part``, which covers all rows."""
    rows, _, _, grams, single, count = part
    threshold = single[-1:] if len(single) == _SINGLES else torch.tensor([torch.iinfo(torch.int64).max])
    header = torch.cat([torch.tensor([_MARK]), rows, torch.tensor([len(grams)]), threshold])
    return torch.cat([header, grams, single, count])


def rows_of(sketch: Tensor) -> int:
    """Return how many rows a sketch is of; 0 where none was kept."""
    return int(sketch[1]) if _is_marked(sketch) else len(sketch)


def smallest_leak(sketch: Tensor, *, probability: float = 0.95) -> int:
    """Return how many consecutive fitting rows are found with at least ``probability``: 32, unless the sketch is a sample.

    A sample of G of the about 2 N / 18 winnowed stretches misses a run that holds s of them with probability (1 − G / s_N)^s.

    Args:
        sketch: As ``Calibrator.fit_rows``.
        probability: In (0, 1).
    """
    if not _is_marked(sketch) or int(sketch[2]) < _GRAMS:
        return RUN
    stretches = 2 / (RUN - _GRAM + 2)
    kept = int(sketch[2]) / (stretches * rows_of(sketch))
    if kept >= 1:
        return RUN
    return max(RUN, RUN + math.ceil(math.log1p(-probability) / math.log1p(-kept) / stretches))


def check_not_fitted_on(
    logits: Tensor,
    sketch: Tensor,
    labels: Tensor | None = None,
    *,
    remedy: str = "evaluate on other data, or pass allow_fit_rows=True",
) -> None:
    """Refuse ``logits`` (N, K) that hold consecutive fitting rows in fitting order: 32, or 16 where the sketch is a sample.

    Args:
        logits: Rows to evaluate on.
        sketch: As ``Calibrator.fit_rows``.
        labels: (N,) or None. A row that coincides under another label is another example.
        remedy: What the reader can do.

    Raises:
        LeakError: If they do. More single rows that coincide than repeated outputs explain give a ``DuplicateRowsWarning``.
    """
    if not rows_of(sketch):
        return
    rows, known = _comparable(logits, sketch, labels)
    whole = len(known) == 1
    found = _first_run(_bare(rows), _bare(known[0])) if whole else _first_gram(_bare(rows), known[0])
    if found is not None:
        least = RUN if whole else _GRAM
        raise LeakError(
            f"expected data that were not fitted on, got {least} or more consecutive rows of the fitting data in their "
            f"order, from row {found}; {remedy}"
        )
    hits, seen, chance = _coincidences(rows, known, rows_of(sketch))
    if hits > chance + 4 * math.sqrt(chance):
        warn_user(
            f"expected data that were not fitted on, got {hits} of {seen} rows ({hits / seen:.2%}) that also occur in the "
            "fitting data; check that the splits are distinct",
            DuplicateRowsWarning,
        )


def _comparable(logits: Tensor, sketch: Tensor, labels: Tensor | None) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the rows' hashes, and the sketch's hashes (whole) or its grams, singles, counts and threshold (sample)."""
    if not _is_marked(sketch):
        return hash_rows(logits), [_bare(sketch)]
    rows = hash_rows(logits, labels)
    grams = int(sketch[2])
    if grams < 0:
        return rows, [sketch[_HEADER:] if labels is not None else _bare(sketch[_HEADER:])]
    singles = (len(sketch) - _HEADER - grams) // 2
    winnowed, single, count = sketch[_HEADER:].split([grams, singles, singles])
    return rows, [winnowed, single if labels is not None else _bare(single), count, sketch[3]]


def _bare(hashes: Tensor) -> Tensor:
    """Return the hashes without what their labels put in."""
    return hashes >> _LABEL_BITS << _LABEL_BITS


def _first_run(rows: Tensor, known: Tensor) -> int | None:
    windows, at = _windows(rows, RUN)
    matched = torch.isin(windows, _windows(known, RUN)[0])
    return int(at[torch.nonzero(matched)[0]]) if bool(matched.any()) else None


def _first_gram(rows: Tensor, grams: Tensor) -> int | None:
    windows, at = _windows(rows, _GRAM)
    matched = torch.isin(windows, grams)
    return int(at[torch.nonzero(matched)[0]]) if bool(matched.any()) else None


def _coincidences(rows: Tensor, known: Sequence[Tensor], fitted: int) -> tuple[int, int, float]:
    """Return how many rows equal one that was fitted on once, of how many, and how many that are chance.

    What occurred once is expected among new rows with the probability 2 n₂ / N, n₂ being how many outputs occurred twice
    (Good 1953, equation 2). Three more are counted: none seen leaves up to three possible at 95 %.
    """
    if len(known) == 1:
        single, count = _distinct(known[0])
        seen = len(rows)
    else:
        _, single, count, threshold = known
        rows = rows[rows <= threshold]
        seen = len(rows)
    hits = int(torch.isin(rows, single[count == 1]).sum())
    chance = 2 * float((count == 2).sum()) / fitted * seen + 2 * _UNSEEN * min(1.0, seen / fitted)
    return hits, max(seen, 1), chance


def _windows(rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the hashes of ``length`` consecutive rows of which 8 differ, and where each begins."""
    if len(rows) < length:
        return rows.new_empty(0), rows.new_empty(0)
    views = rows.unfold(0, length, 1)
    varied = torch.ones(len(views), dtype=torch.bool)
    # fewer than 8 distinct rows repeat one within 8: only what holds such a pair has to be counted
    near = torch.zeros(len(rows), dtype=torch.bool)
    for step in range(1, _DISTINCT):
        near[step:] |= rows[step:] == rows[:-step]
    if bool(near.any()):
        doubtful = torch.nonzero(near.unfold(0, length, 1).any(dim=1))[:, 0]
        ordered = views[doubtful].sort(dim=1).values
        varied[doubtful] = (ordered[:, 1:] != ordered[:, :-1]).sum(dim=1) + 1 >= _DISTINCT
    mixed = torch.zeros(len(views), dtype=torch.int64)
    for place, odd in enumerate(_odd_numbers(length).tolist()):
        mixed.add_(rows[place : place + len(views)], alpha=odd)
    mixed ^= mixed >> 31
    at = torch.nonzero(varied)[:, 0]
    return mixed[at], at


def _winnowed(rows: Tensor) -> Tensor:
    """Return, ascending, the smallest gram within every 32 rows; at most as many as a sample holds."""
    if len(rows) < RUN:
        return rows.new_empty(0)
    grams, at = _windows(rows, _GRAM)
    every = torch.full((len(rows) - _GRAM + 1,), torch.iinfo(torch.int64).max)
    every[at] = grams
    least = _sliding_minimum(every, RUN - _GRAM + 1)
    least = torch.cat([least[:1], least[1:][least[1:] != least[:-1]]])  # one is the smallest of nine windows on average
    kept: Tensor = _distinct(least[least < torch.iinfo(torch.int64).max])[0][:_GRAMS]
    return kept


def _sliding_minimum(values: Tensor, width: int) -> Tensor:
    """Return the smallest of every ``width`` consecutive ``values``, in steps that double the width."""
    reach = 1
    while reach < width:
        step = min(reach, width - reach)
        values = torch.minimum(values[:-step], values[step:])
        reach += step
    return values


def _distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct ``values`` (M,) ascending and how often each occurs; numpy sorts integers many times faster than torch."""
    ordered = torch.from_numpy(np.sort(values.numpy(), kind="stable"))  # which merges runs that are in order already
    changes = torch.nonzero(ordered[1:] != ordered[:-1])[:, 0] + 1
    starts = torch.cat([changes.new_zeros(min(1, len(ordered))), changes])
    return ordered[starts], torch.diff(starts, append=changes.new_tensor([len(ordered)]))


def _smallest(hashes: Tensor) -> Part:
    """Return the 16,384 smallest distinct ``hashes`` (n,) ascending and how often each occurs; all where there are fewer."""
    if len(hashes) >= 8 * _SINGLES:  # hashes are spread evenly over [0, 2⁶³): below this bound lie about twice as many
        bound = (2 * _SINGLES << 63) // len(hashes)
        single, count = _distinct(hashes[hashes < bound])
        if len(single) >= _SINGLES:
            return single[:_SINGLES], count[:_SINGLES]
    single, count = _distinct(hashes)
    return single[:_SINGLES], count[:_SINGLES]


def _is_marked(sketch: Tensor) -> bool:
    return len(sketch) >= _HEADER and int(sketch[0]) == _MARK


def _label_bits(labels: Tensor) -> Tensor:
    mixed = labels.long() * 0x1E3779B97F4A7C15
    return (mixed >> 40) & ((1 << _LABEL_BITS) - 1)


def _odd_numbers(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) * 2 + 1
