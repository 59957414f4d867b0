"""Folds that depend on the rows and not on their order: what is equal stays together, so repeating a row changes nothing."""

import torch
from torch import Tensor

from calibrant._fence import hash_rows


def fold_of_rows(logits: Tensor, labels: Tensor, groups: Tensor | None, *, folds: int) -> Tensor:
    """Return the fold (N,) in [0, folds) of each row, balanced within each label; rows of one group share a fold."""
    if groups is not None:
        codes: Tensor = torch.unique(groups, return_inverse=True)[1]
        return codes % folds
    rows = torch.stack([labels.cpu(), hash_rows(logits)], dim=1)
    rank: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]  # by label, then by hash
    return rank % folds
