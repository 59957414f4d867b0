"""Folds that depend on the rows' content alone: not on their order, on shards, or on how often a row stands there.

Where scores are tied (a forest's votes, rounded probabilities), a hash of row *and label* would put all rows of one score and one
label into one fold: what the others show of that score is then the opposite label, and every honest fit looks worse than
none. There folds go by the scores alone, and the rows of a score that many share are dealt out to all folds, label by label.
"""

import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant.data.leakage import odd_numbers
from calibrant.rows import Batch, RowSource

# Odd, so that multiplication modulo 2⁶⁴ maps no two keys to one: the multipliers of xorshift64* (Vigna 2016) and, less its top
# bit, which int64 cannot hold, of SplitMix64 (Steele et al. 2014).
_MIX = (0x2545F4914F6CDD1D, 0x1E3779B97F4A7C15)
_COMMON = 0.01  # part of the rows that share a score, above which it is no repetition of one row
_MOST_COMPARED = 1 << 24
_COLUMNS = 64  # that enter a hash


def fold_of(chunk: Batch, folds: int) -> Tensor:
    """Return the fold (n,) in [0, folds) of each row, by a hash of row and label; of the group, where there are groups."""
    return (_bits(chunk) % folds).to(chunk.labels.device)


def fold_by_scores(chunk: Batch, folds: int, codes: Tensor | None = None) -> Tensor:
    """Return the fold (n,) of each row by its scores and not its label; of the group, where there are groups.

    Args:
        chunk: The rows.
        folds: How many.
        codes: (n, C) whole numbers that tell rows of equal scores apart, or None.
    """
    if chunk.groups is not None:
        return fold_of(chunk, folds)
    key = hash_rows(chunk.logits)
    if codes is not None:
        for column in codes.cpu().long().unbind(dim=1):
            key = (key ^ column) * _MIX[0]
    bits = _scrambled(key)
    _, which, count = torch.unique(bits, return_inverse=True, return_counts=True)
    common = count[which] > max(len(chunk) * _COMMON, folds)
    if bool(common.any()):
        order = (which * chunk.logits.shape[1] + chunk.labels.cpu()).argsort(stable=True)
        start = (count.cumsum(0) - count)[which]
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        bits = torch.where(common, (bits >> 8) + place - start, bits)
    return (bits % folds).to(chunk.labels.device)


def tied(rows: RowSource) -> bool:
    """Return whether at least one row in a hundred has the scores of another; of too many rows that are elsewhere, no."""
    if rows.count > _MOST_COMPARED:
        return False
    keys = torch.cat(rows.collected(_hashes_of_scores))
    return bool(len(keys) - len(torch.unique(keys)) > _COMMON * len(keys))


def in_random_sample(chunk: Batch, rate: float) -> Tensor:
    """Return which rows (n,) belong to a random sample of about ``rate`` of them."""
    bits = (_bits(chunk) * _MIX[0]) >> 24 & ((1 << 32) - 1)
    return (bits < int(rate * (1 << 32))).to(chunk.labels.device)


def hash_rows(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return an int64 hash (N,) of each row of ``logits`` (N, K) as float32 bits, of at most 64 columns, evenly spaced.

    Args:
        logits: (N, K).
        labels: (N,) whose hash replaces the lowest 8 bits, or None to leave these 0.
    """
    picked = logits[:, :: -(-logits.shape[1] // _COLUMNS)]
    odd = odd_numbers(picked.shape[1]).numpy()
    hashes = []
    for rows in row_chunks(*picked.shape):
        bits = (picked[rows].cpu().float() + 0.0).contiguous().view(torch.int32).long()  # −0 is 0
        mixed = torch.from_numpy(bits.numpy() @ odd)
        # products carry upwards only: without the shift the low bits would depend on the low bits of the logits alone
        hashes.append(mixed ^ (mixed >> 29))
    found = torch.cat(hashes) >> 8 << 8
    return found if labels is None else found | ((labels.cpu().long() * _MIX[1]) >> 40 & 255)


def _bits(chunk: Batch) -> Tensor:
    return _scrambled(hash_rows(chunk.logits, chunk.labels) if chunk.groups is None else chunk.groups.cpu())


def _hashes_of_scores(chunk: Batch) -> Tensor:
    return hash_rows(chunk.logits)


def _scrambled(key: Tensor) -> Tensor:
    # A product's bit depends on lower bits only: each shift brings high bits down before the next product carries them up, and
    # the answer is taken from above bit 20. The mask also drops the sign, which >> extends.
    mixed = (key ^ (key >> 32)) * _MIX[1]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[0]
    return (mixed >> 20) & ((1 << 40) - 1)
