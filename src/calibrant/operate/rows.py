"""What every part of ``operate`` needs of its rows: labels where they are counted, no weights, one row of each group."""

import torch
from torch import Tensor

from calibrant._check import refuse
from calibrant._data import need_unweighted
from calibrant.errors import InputError
from calibrant.predictions import BinaryPairs, Predictions

__all__ = ["Data", "confidence_of", "need_independent"]

Data = Predictions | BinaryPairs


def need_independent(data: Data, *, name: str) -> None:
    """Refuse unlabelled or weighted rows, and several of one group.

    Raises:
        InputError: If ``data`` are such.
    """
    if not isinstance(data, Predictions | BinaryPairs):
        raise refuse(f"{name} as Predictions", type(data).__name__, "make them with Predictions.from_logits")
    if isinstance(data, Predictions):
        data.need_labels()
    need_unweighted(data, what=name)
    if data.groups is not None and len(data.groups.unique()) < len(data):
        raise InputError(
            f"expected independent rows in {name}, got {len(data):,} rows of {len(data.groups.unique()):,} groups; keep one "
            "row of each group"
        )


def confidence_of(data: Data) -> Tensor:
    """Return the confidence (N,) float64 of the decisions, computed as a deployed module computes it."""
    if isinstance(data, BinaryPairs) or data.given_probs is not None:
        return data.confidence.double()
    p = torch.softmax(data.logits.double(), dim=1)
    return p.gather(1, data.predicted[:, None])[:, 0]
