"""Divides rows into groups by columns: by categories, bins of numbers, and combinations of several columns."""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.binning import EqualMass
from calibrant.data.checks import Data
from calibrant.data.record import Column, check_column

Names: TypeAlias = tuple[
    tuple[str, str], ...
]  # what the rows of a group have in common: column and category of each column
Partition: TypeAlias = tuple[NDArray[np.int64], list[Names]]  # number (N,) of each row's group, and the groups' names

_MAX_GROUPS = 2000
_MAX_WHOLE = 20  # distinct whole numbers, up to which they are categories


def groups_of(
    columns: Mapping[str, Column], *, depth: int, bins: int, weights: Tensor | None
) -> list[tuple[Names, NDArray[np.int64]]]:
    """Return names and row numbers of the groups by every column, and by every combination of up to ``depth`` columns.

    Args:
        columns: Columns (N,) by name.
        depth: Largest number of columns in a combination, ≥ 1.
        bins: Number of bins for a column of numbers.
        weights: (N,) weights, by which bins have equal mass, or None.

    Raises:
        InputError: If there are too many groups.
    """
    single = [_partition_by(name, column, bins=bins, weights=weights) for name, column in columns.items()]
    sizes = range(1, min(depth, len(single)) + 1)
    found = [reduce(_crossed, chosen) for size in sizes for chosen in combinations(single, size)]
    if (count := sum(len(names) for _, names in found)) > _MAX_GROUPS:
        raise refuse(f"at most {_MAX_GROUPS:,} groups", f"{count:,}", "name fewer columns, or lower depth or bins")
    return [(name, np.flatnonzero(code == at)) for code, names in found for at, name in enumerate(names)]


def feature_columns(data: Data, features: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Column]:
    """Return the columns that ``features`` names or contains; None means all columns of ``data``."""
    own = dict(data.features or {})
    if isinstance(features, str):
        raise refuse("features as names or a dict of columns", shown(features), 'write ["region", "age"]')
    if isinstance(features, Mapping):
        found = {
            str(name): check_column(values, name=f"the feature {name!r}", rows=len(data))
            for name, values in features.items()
        }
    else:
        names = list(own if features is None else features)
        if missing := [name for name in names if name not in own]:
            got = ", ".join(map(repr, sorted(own))) or "none"
            raise refuse(f"features out of those of the predictions for {missing[0]!r}", got, "pass a dict of columns")
        found = {name: own[name] for name in names}
    if not found:
        raise refuse("at least one column", "none", "pass features here, or when making the predictions")
    return found


def _partition_by(name: str, column: Column, *, bins: int, weights: Tensor | None) -> Partition:
    values = column.numpy() if isinstance(column, Tensor) else column
    real = values.dtype.kind == "f"
    missing = np.isnan(values) if real else np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "U" or len(np.unique(values[~missing])) <= (bins if real else _MAX_WHOLE):
        known, code = np.unique(np.where(missing, "missing", values.astype(str)), return_inverse=True)
        return code, [((name, str(value)),) for value in known]
    present = torch.from_numpy(~missing)
    # missing values are the part after the last bin
    code = np.full(len(values), bins, dtype=np.int64)
    held = None if weights is None else weights.cpu()[present]
    code[~missing] = EqualMass(bins).assign(torch.from_numpy(values)[present].double(), weight=held).numpy()
    kept, code = np.unique(code, return_inverse=True)
    ends = [f"{values[code == at].min():.6g} to {values[code == at].max():.6g}" for at in range(len(kept))]
    labels = ["missing" if part == bins else end for part, end in zip(kept, ends, strict=True)]
    return code, [((name, label),) for label in labels]


def _crossed(one: Partition, other: Partition) -> Partition:
    (code, names), (more, others) = one, other
    # renumbered after each column, so that the product of two counts cannot overflow
    kept, code = np.unique(code * len(others) + more, return_inverse=True)
    return code, [names[k // len(others)] + others[k % len(others)] for k in kept.tolist()]
