"""The leakage guard: a sketch of the rows a calibrator was fitted on, and what it says about rows to evaluate on.

Of up to 65,536 rows the sketch holds one hash a row, in order. Of more it holds a sample of bounded size (half a MiB): of
every 32 rows the stretch of 16 that begins with the smallest hash (winnowing: Schleimer, Wilkerson, Aiken 2003), of these
the smallest hashes, and the smallest hashes of single rows with how often each occurred. Sketches of parts join in
order, so that a stream gives the sketch of the same rows in memory.

Rows enter less their largest logit and rounded: a run of the same rows is known in another dtype or file, with constants added
or through a log-softmax, single rows where their numbers are the same. Rows that were rounded to 16 bits are others.

Outputs of a saturated model coincide without being the same example. So labels enter the hashes, a run counts only if it
holds 8 distinct rows, and single rows count only beyond the number that repetitions within the fitting rows let expect.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant._core.warn import warn_user
from calibrant._kernels import cpu
from calibrant.errors import DuplicateRowsWarning, LeakError, Remedy

OTHER_ROWS = Remedy(
    "evaluate on other data, or pass allow_fit_rows=True",
    command="evaluate on other data, on rows that it was not fitted on",
)
RUN = 32  # consecutive fitting rows that cannot be chance
WHOLE = 1 << 16  # rows up to which every hash is kept
_GRAM = 16  # rows in one hash of a sample: 17 such stretches lie in a run
_DISTINCT = 8  # rows of a run that must differ: saturated models repeat a few outputs in any order
_GRAMS, _SINGLES = 3 << 14, 1 << 14  # entries of a sample
_COLUMNS = 64  # columns that enter a hash: real logits that agree in 64 places to the bit are the same row
_CENTRED_COLUMNS = 32  # the same of rounded differences, each of which a log-softmax may move over the edge of a cell
_COARSE, _FINE = (
    2.0**10,
    2.0**20,
)  # cells a nat: a float32 log-softmax is off by 1e-6, which moves one value in a thousand
_FARTHEST = -(2.0**30)  # in cells; beyond it, as for an excluded class, all is one
_LABEL_BITS, _FINE_BITS = 8, 28  # the lowest bits of a row's number, and those above them of the finer cells
_SPREAD = 0x1E3779B97F4A7C15  # odd
_MARK = 0x5CA1AB1E0002  # opens a sketch of exact rows; version 0.1.0 stored bare hashes, without labels
_CENTRED = 0x5CA1AB1E0003  # opens one of centred rows
_UNSEEN = 3  # outputs that may occur twice though none did: the rule of three
_PLACE = (1 << 32) - 1  # lower half of a number, which holds the place of a row beside the upper half of its hash
_HEADER = 4  # mark, rows, entries of grams, threshold below which every single row's hash is held

Part = tuple[Tensor, ...]


def hash_rows(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return one int64 hash (N,) of each row of ``logits`` (N, K) as float32 bits; from at most 64 columns, evenly spaced.

    Args:
        logits: (N, K).
        labels: (N,) whose hash replaces the lowest 8 bits, or None to leave these 0.
    """
    step = -(-logits.shape[1] // _COLUMNS)
    picked = logits[:, ::step]
    odd = _odd_numbers(picked.shape[1]).to(logits.device)
    if cpu.serves(logits, work=4):
        return _mixed_with_labels(cpu.row_hashes(logits, odd, step=step), labels)
    hashes = []
    for chunk in row_chunks(*picked.shape, device=picked.device):
        bits = (picked[chunk].float() + 0.0).contiguous().view(torch.int32).long()  # −0 is 0
        if bits.device.type == "cpu":  # NumPy multiplies integer matrices without writing all products down first
            mixed = torch.from_numpy(bits.numpy() @ odd.numpy())
        else:
            mixed = (bits * odd).sum(dim=1)
        # products carry upwards only: without the shift the low bits would depend on the low bits of the logits alone
        hashes.append(mixed ^ (mixed >> 29))
    return _mixed_with_labels(torch.cat(hashes).cpu(), labels)


def centred_marks(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return one int64 mark (N,) of each row of ``logits`` (N, K) less its largest: 28 bits of cells of 2⁻¹⁰, 28 of cells of 2⁻²⁰.

    Args:
        logits: (N, K), of which at most 32 columns count, evenly spaced.
        labels: (N,) whose hash is the lowest 8 bits, or None to leave these 0.
    """
    step = -(-logits.shape[1] // _CENTRED_COLUMNS)
    odd = _odd_numbers(-(-logits.shape[1] // step)).to(logits.device)
    if cpu.serves(logits, work=4):
        return _mixed_with_labels(cpu.row_hashes(logits, odd, step=step, centred=True), labels)
    marks = []
    for chunk in row_chunks(len(logits), len(odd), device=logits.device):
        z = logits[chunk, ::step].to(torch.promote_types(logits.dtype, torch.float32))
        top = z.amax(dim=1, keepdim=True)
        below = (z - torch.where(torch.isneginf(top), 0.0, top)).float()
        coarse, fine = (
            ((below * cells).clamp_min(_FARTHEST).round().long() * odd).sum(dim=1) for cells in (_COARSE, _FINE)
        )
        upper, lower = (mixed ^ (mixed >> 29) for mixed in (coarse, fine))
        marks.append((upper >> 36 << 36) | ((lower >> 36) & ((1 << _FINE_BITS) - 1)) << _LABEL_BITS)
    return _mixed_with_labels(torch.cat(marks).cpu(), labels)


def part_of(hashes: Tensor, *, centred: bool = False) -> Part:
    """Return the sketch's part of consecutive rows with ``hashes`` (n,): rows, first and last, grams, singles and their counts.

    Args:
        hashes: Of ``hash_rows``.
        centred: They are of ``centred_marks``.
    """
    edge = min(len(hashes), RUN - 1)
    single, count = _smallest(hashes)
    size = torch.tensor([len(hashes)])
    bare = _of_runs(hashes, _CENTRED if centred else _MARK)
    return size, bare[:edge], bare[len(bare) - edge :], _sampled_grams(bare), single, count


def join_parts(left: Part, right: Part) -> Part:
    """Return the part of the rows of ``left`` followed by those of ``right``."""
    across = torch.cat([left[2], right[1]])
    grams = _distinct_with_counts(torch.cat([left[3], right[3], _sampled_grams(across)]), runs=True)[0][:_GRAMS]
    single = _distinct_with_counts(torch.cat([left[4], right[4]]), runs=True)[0]
    count = torch.zeros_like(single)
    for values, counts in (left[4:], right[4:]):
        count[torch.searchsorted(single, values)] += counts
    first = torch.cat([left[1], right[1]])[: RUN - 1] if len(left[1]) < RUN - 1 else left[1]
    last = torch.cat([left[2], right[2]])[-(RUN - 1) :] if len(right[2]) < RUN - 1 else right[2]
    return left[0] + right[0], first, last, grams, single[:_SINGLES], count[:_SINGLES]


def sketch_of_hashes(hashes: Tensor, *, centred: bool = False) -> Tensor:
    """Return the sketch (int64) that holds ``hashes`` (N,) of all rows in order: for at most 65,536 of them."""
    return torch.cat([torch.tensor([_CENTRED if centred else _MARK, len(hashes), -1, 0]), hashes])


def sketch_of_part(part: Part, *, centred: bool = False) -> Tensor:
    """Return the sketch (int64, at most 82,000 entries) of ``part``, which covers all rows."""
    rows, _, _, grams, single, count = part
    threshold = single[-1:] if len(single) == _SINGLES else torch.tensor([torch.iinfo(torch.int64).max])
    header = torch.cat([torch.tensor([_CENTRED if centred else _MARK]), rows, torch.tensor([len(grams)]), threshold])
    return torch.cat([header, grams, single, count])


def rows_in_sketch(sketch: Tensor) -> int:
    """Return how many rows a sketch is of; 0 where none was kept."""
    return int(sketch[1]) if _is_marked(sketch) else len(sketch)


def check_not_fitted_on(
    logits: Tensor,
    sketch: Tensor,
    labels: Tensor | None = None,
    *,
    remedy: str | Remedy = OTHER_ROWS,
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
    check = LeakCheck(sketch, remedy=remedy)
    check.see(logits, labels)
    check.end()


class LeakCheck:
    """The check of ``check_not_fitted_on`` on rows that come in parts; a run of fitting rows may lie across parts.

    Args:
        sketch: As ``Calibrator.fit_rows``.
        remedy: What the reader can do.
    """

    def __init__(self, sketch: Tensor, *, remedy: str | Remedy = OTHER_ROWS) -> None:
        self._sketch, self._remedy = sketch, remedy
        self._known: _Known | None = None
        self._last = torch.zeros(0, dtype=torch.int64)  # hashes of rows whose run may go on in the next part
        self._rows = self._seen = self._hits = 0

    def see(self, logits: Tensor, labels: Tensor | None = None) -> None:
        """Check the next rows, and note how many coincide.

        Args:
            logits: (N, K).
            labels: (N,), or None in every part.

        Raises:
            LeakError: If consecutive fitting rows are found.
        """
        if not rows_in_sketch(self._sketch):
            return
        if self._known is None:
            self._known = _decode_sketch(self._sketch, labelled=labels is not None)
        known = self._known
        hashes = centred_marks if known.mark == _CENTRED else hash_rows
        rows = hashes(logits, labels if _is_marked(self._sketch) else None)
        stretch = torch.cat([self._last, _of_runs(rows, known.mark)])
        windows, at = _windows(stretch, known.length)
        matched = _occur_in(windows, known.stretches)
        if bool(matched.any()):
            first = self._rows - len(self._last) + int(at[torch.nonzero(matched)[0]])
            raise LeakError(
                "data that were not fitted on",
                f"{known.length} or more consecutive rows of the fitting data in their order, from row {first}",
                self._remedy,
            )
        self._last = stretch[max(0, len(stretch) - known.length + 1) :]
        self._rows += len(rows)
        # rows that a sample cannot hold are not counted as seen either: they could never be found
        rows = rows if known.threshold is None else rows[rows <= known.threshold]
        self._seen += len(rows)
        # outputs that the fitting rows repeat will occur among new rows too: they are no evidence
        self._hits += int(_occur_in(rows, known.single[known.count == 1]).sum())

    def end(self) -> None:
        """Give a ``DuplicateRowsWarning`` if more rows coincide than repeated outputs explain."""
        if self._known is None or self._hits <= _most_by_chance(self._known, rows_in_sketch(self._sketch), self._seen):
            return
        share = self._hits / max(self._seen, 1)
        warn_user(
            f"expected data that were not fitted on, got {self._hits} of {self._seen} rows ({share:.2%}) that also occur in "
            "the fitting data; check that the splits are distinct",
            DuplicateRowsWarning,
        )


@dataclass(frozen=True)
class _Known:
    """What a sketch holds, ready to be compared with.

    Args:
        mark: What opens it: which numbers the rows have.
        length: Rows in a stretch: 32, or 16 of a sample.
        stretches: Hashes of stretches of so many rows, ascending.
        single: Distinct hashes of single rows, ascending.
        count: How often each occurred.
        threshold: Largest hash of a single row that a sample holds, or None where all are held.
    """

    mark: int
    length: int
    stretches: Tensor
    single: Tensor
    count: Tensor
    threshold: Tensor | None


def _decode_sketch(sketch: Tensor, *, labelled: bool) -> _Known:
    mark = int(sketch[0]) if _is_marked(sketch) else _MARK
    if not _is_marked(sketch) or int(sketch[2]) < 0:
        hashes = sketch[_HEADER:] if _is_marked(sketch) else sketch
        hashes = hashes if labelled and _is_marked(sketch) else _without_labels(hashes)
        stretches = _distinct_with_counts(_windows(_of_runs(hashes, mark), RUN)[0])[0]
        return _Known(mark, RUN, stretches, *_distinct_with_counts(hashes), None)
    grams = int(sketch[2])
    singles = (len(sketch) - _HEADER - grams) // 2
    stretches, single, count = sketch[_HEADER:].split([grams, singles, singles])
    return _Known(mark, _GRAM, stretches, single if labelled else _without_labels(single), count, sketch[3])


def _most_by_chance(known: _Known, fitted: int, seen: int) -> float:
    """Return how many of ``seen`` rows may equal one that was fitted on once without a warning.

    What occurred once is expected among new rows with the probability 2 n₂ / N, n₂ being how many outputs occurred twice
    (Good 1953, equation 2). Three more are counted: none seen leaves up to three possible at 95 %.
    """
    chance = 2 * float((known.count == 2).sum()) / fitted * seen + 2 * _UNSEEN * min(1.0, seen / fitted)
    return chance + 4 * math.sqrt(chance)


def _occur_in(values: Tensor, ordered: Tensor) -> Tensor:
    """Return which ``values`` (n,) occur in ``ordered``, ascending."""
    if not len(ordered):
        return torch.zeros(len(values), dtype=torch.bool)
    at = torch.searchsorted(ordered, values).clamp_max_(len(ordered) - 1)
    return ordered[at] == values


def _without_labels(hashes: Tensor) -> Tensor:
    """Return the hashes without what their labels put in."""
    return (hashes >> _LABEL_BITS).bitwise_left_shift_(_LABEL_BITS)


def _of_runs(hashes: Tensor, mark: int) -> Tensor:
    """Return what a run of rows compares of ``hashes``: all but the labels' bits, of centred rows the coarse cells alone."""
    if mark == _MARK:
        return _without_labels(hashes)
    # 28 bits of a row, spread over all 64: sums of 16 rows would otherwise have no more than 28 either
    return (hashes >> _LABEL_BITS + _FINE_BITS).mul_(_SPREAD)


def _mixed_with_labels(mixed: Tensor, labels: Tensor | None) -> Tensor:
    """Return hashes of rows with those of their labels in the lowest 8 bits, or 0 there."""
    rows = _without_labels(mixed)
    return rows if labels is None else rows.bitwise_or_(_label_bits(labels.cpu()))


def _windows(rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the hashes of ``length`` consecutive rows of which 8 differ, and where each begins."""
    if len(rows) < length:
        return rows.new_empty(0), rows.new_empty(0)
    varied = _varied(rows, length)
    at = torch.arange(len(rows) - length + 1) if varied is None else torch.nonzero(varied)[:, 0]
    return _hashed(rows, at, length), at


def _hashed(rows: Tensor, at: Tensor, length: int) -> Tensor:
    """Return the hashes of the ``length`` consecutive rows from each place ``at`` on."""
    mixed = torch.zeros(len(at), dtype=torch.int64)
    everywhere = len(at) == len(rows) - length + 1
    for place, odd in enumerate(_odd_numbers(length).tolist()):
        mixed.add_(rows[place : place + len(at)] if everywhere else rows[at + place], alpha=odd)
    return mixed.bitwise_xor_(mixed >> 31)


def _varied(rows: Tensor, length: int) -> Tensor | None:
    """Return whether 8 of the ``length`` rows from each place on differ (n − length + 1,), or None where all do."""
    # fewer than 8 distinct rows repeat one within 8: only what holds such a pair has to be counted
    near = torch.zeros(len(rows), dtype=torch.bool)
    for step in range(1, min(_DISTINCT, len(rows))):
        near[step:] |= rows[step:] == rows[:-step]
    if not bool(near.any()):
        return None
    views = rows.unfold(0, length, 1)
    varied = torch.ones(len(views), dtype=torch.bool)
    doubtful = torch.nonzero(near.unfold(0, length, 1).any(dim=1))[:, 0]
    ordered = views[doubtful].sort(dim=1).values
    varied[doubtful] = (ordered[:, 1:] != ordered[:, :-1]).sum(dim=1) + 1 >= _DISTINCT
    return varied


def _sampled_grams(rows: Tensor) -> Tensor:
    """Return, ascending, a gram of every 32 rows, the one whose first row's hash is smallest; at most as many as a sample holds."""
    if len(rows) < RUN:
        return rows.new_empty(0)
    grams = cpu.winnowed(rows, _odd_numbers(_GRAM), width=RUN - _GRAM + 1, distinct=_DISTINCT)
    return _distinct_with_counts(_chosen_hashes(rows) if grams is None else grams)[0][:_GRAMS]


def _chosen_hashes(rows: Tensor) -> Tensor:
    """Return the hashes of the chosen grams, in order."""
    last, most = len(rows) - _GRAM + 1, torch.iinfo(torch.int64).max
    order = (rows[:last] & ~_PLACE).bitwise_or_(torch.arange(last))  # its place decides between equal ones
    varied = _varied(rows, _GRAM)
    if varied is not None:
        order[~varied] = most
    least = _sliding_minimum(order, RUN - _GRAM + 1)
    chosen = torch.cat([least[:1], least[1:][least[1:] != least[:-1]]])  # one in nine places on average
    at = chosen[chosen < most] & _PLACE
    return _hashed(rows, at, _GRAM)


def _sliding_minimum(values: Tensor, width: int) -> Tensor:
    """Return the smallest of every ``width`` consecutive ``values``, in steps that double the width."""
    reach = 1
    while reach < width:
        step = min(reach, width - reach)
        values = torch.minimum(values[:-step], values[step:])
        reach += step
    return values


def _distinct_with_counts(values: Tensor, *, runs: bool = False) -> tuple[Tensor, Tensor]:
    """Return the distinct ``values`` (M,) ascending and how often each occurs; numpy sorts integers many times faster than torch.

    ``runs`` says that long runs of them are in order already, which a stable sort merges.
    """
    ordered = torch.from_numpy(np.sort(values.numpy(), kind="stable" if runs else "quicksort"))
    changes = torch.nonzero(ordered[1:] != ordered[:-1])[:, 0] + 1
    starts = torch.cat([changes.new_zeros(min(1, len(ordered))), changes])
    return ordered[starts], torch.diff(starts, append=changes.new_tensor([len(ordered)]))


def _smallest(hashes: Tensor) -> Part:
    """Return the 16,384 smallest distinct ``hashes`` (n,) ascending and how often each occurs; all where there are fewer."""
    if len(hashes) >= 4 * _SINGLES:  # hashes are spread evenly over [0, 2⁶³): below this bound lie about twice as many
        bound = (2 * _SINGLES << 63) // len(hashes)
        single, count = _distinct_with_counts(hashes[hashes < bound])
        if len(single) >= _SINGLES:
            return single[:_SINGLES], count[:_SINGLES]
    single, count = _distinct_with_counts(hashes)
    return single[:_SINGLES], count[:_SINGLES]


def _is_marked(sketch: Tensor) -> bool:
    return len(sketch) >= _HEADER and int(sketch[0]) in (_MARK, _CENTRED)


def _label_bits(labels: Tensor) -> Tensor:
    mixed = labels.long() * _SPREAD
    return mixed.bitwise_right_shift_(40).bitwise_and_((1 << _LABEL_BITS) - 1)


@cache
def _odd_numbers(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) * 2 + 1
