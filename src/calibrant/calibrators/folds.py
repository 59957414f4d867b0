"""Folds and samples that depend only on the scores of the rows, and not on their order or on repeated rows.

The hash must not include the label. With tied scores (the votes of a random forest, or rounded probabilities) such a hash would put
all rows with the same score and label into one fold. The other folds would then show only the opposite label for this score, and every
honest fit would look harmful. Rows whose score many others share are distributed over all folds, separately for each label.
"""

import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant.data.leakage import odd_numbers
from calibrant.rows import Batch

# Odd numbers, so that multiplication modulo 2⁶⁴ is injective: the multipliers of xorshift64* (Vigna 2016) and of SplitMix64 (Steele
# et al. 2014), the latter without its top bit, which does not fit into int64.
_MIX = (0x2545F4914F6CDD1D, 0x1E3779B97F4A7C15)
_COMMON = 0.01  # a score that a larger fraction of the rows share does not come from repetitions of one row
_COLUMNS = 64  # largest number of columns that enter a hash


def fold_by_scores(batch: Batch, folds: int, codes: Tensor | None = None) -> Tensor:
    """Return the fold (n,) in [0, folds) of each row, determined by its scores or, if there are groups, by its group.

    Args:
        batch: The rows.
        folds: Number of folds.
        codes: Whole numbers (n, C) that distinguish rows with equal scores, or None.

    Returns:
        The folds as int64.
    """
    if batch.groups is not None:
        return (_scrambled(batch.groups.cpu()) % folds).to(batch.labels.device)
    key = hash_rows(batch.logits)
    for column in () if codes is None else codes.cpu().long().unbind(dim=1):
        key = (key ^ column) * _MIX[0]
    bits = _scrambled(key)
    _, score, count = torch.unique(bits, return_inverse=True, return_counts=True)
    common = count[score] > max(len(batch) * _COMMON, folds)
    # sorted by score and label, so that rows with the same score are dealt out to the folds in turn; the score determines the first
    order = (score * batch.logits.shape[1] + batch.labels.cpu()).argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    dealt = (bits >> 8) + place - (count.cumsum(0) - count)[score]
    return (torch.where(common, dealt, bits) % folds).to(batch.labels.device)


def in_random_sample(batch: Batch, rate: float) -> Batch:
    """Return a random sample of about ``rate`` of the rows."""
    bits = (_scrambled(hash_rows(batch.logits)) * _MIX[0]) >> 24 & ((1 << 32) - 1)
    return batch.selected((bits < int(rate * (1 << 32))).to(batch.labels.device))


def hash_rows(logits: Tensor) -> Tensor:
    """Return an int64 hash (N,) of each row of ``logits`` (N, K), from the float32 bits of at most 64 evenly spaced columns."""
    picked = logits[:, :: -(-logits.shape[1] // _COLUMNS)]
    odd = odd_numbers(picked.shape[1]).numpy()
    hashes = []
    for rows in row_chunks(*picked.shape):
        bits = (picked[rows].cpu().float() + 0.0).contiguous().view(torch.int32).long()  # −0 is 0
        hashes.append(torch.from_numpy(bits.numpy() @ odd))
    return torch.cat(hashes)


def _scrambled(key: Tensor) -> Tensor:
    # Each bit of a product depends only on lower bits. Each shift therefore brings high bits down before the next product carries
    # them up, and the answer is taken from above bit 20. The mask also drops the sign, which >> extends.
    mixed = (key ^ (key >> 32)) * _MIX[1]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[0]
    return (mixed >> 20) & ((1 << 40) - 1)
