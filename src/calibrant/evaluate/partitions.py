"""How columns part rows into groups: categories, bins of numbers, and intersections of several columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.binning import EqualMass
from calibrant.data.checks import Data
from calibrant.data.record import Column, check_column

_MAX_GROUPS = 2000
_MAX_WHOLE = 20  # distinct whole numbers, up to which they are categories


@dataclass(frozen=True)
class Partition:
    """One way to part the rows: by a column, or by the intersections of several.

    Args:
        code: (N,) int64 part of each row.
        names: (G,) of each part, one (column, category) a column.
    """

    code: NDArray[np.int64]
    names: tuple[tuple[tuple[str, str], ...], ...]


def partitions_of(columns: Mapping[str, Column], data: Data, *, depth: int, bins: int) -> list[Partition]:
    """Return the partitions by every column, and by every set of up to ``depth`` columns; parts without rows are left out.

    Raises:
        InputError: If there are too many groups.
    """
    single = [_partition_by(name, column, data, bins=bins) for name, column in columns.items()]
    sizes = range(1, min(depth, len(single)) + 1)
    found = [_crossed(chosen) for size in sizes for chosen in combinations(single, size)]
    if (count := sum(len(one.names) for one in found)) > _MAX_GROUPS:
        raise refuse(f"at most {_MAX_GROUPS:,} groups", f"{count:,}", "name fewer columns, or lower depth or bins")
    return found


def feature_columns(data: Data, features: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Column]:
    """Return the columns that ``features`` names or holds; None stands for all that ``data`` has."""
    own = dict(data.features or {})
    if isinstance(features, Mapping):
        found = {
            str(name): check_column(values, name=f"the feature {name!r}", rows=len(data))
            for name, values in features.items()
        }
    else:
        if isinstance(features, str):
            raise refuse("features as names or a dict of columns", shown(features), 'write ["region", "age"]')
        names = list(own if features is None else features)
        if missing := [name for name in names if name not in own]:
            got = ", ".join(map(repr, sorted(own))) or "none"
            raise refuse(f"features out of those of the predictions for {missing[0]!r}", got, "pass a dict of columns")
        found = {name: own[name] for name in names}
    if not found:
        raise refuse("at least one column", "none", "pass features here, or when making the predictions")
    return found


def _partition_by(name: str, column: Column, data: Data, *, bins: int) -> Partition:
    if not isinstance(column, Tensor):
        return _by_category(name, column)
    values = column.cpu().numpy()
    real = values.dtype.kind == "f"
    missing = np.isnan(values) if real else np.zeros(len(values), dtype=bool)
    if len(np.unique(values[~missing])) <= (bins if real else _MAX_WHOLE):
        return _by_category(name, np.where(missing, "missing", values.astype(str)) if missing.any() else values)
    present = torch.from_numpy(~missing)
    weight = None if data.weights is None else data.weights.cpu()[present]
    # missing values are the part after the last bin
    code = np.full(len(values), bins, dtype=np.int64)
    code[~missing] = EqualMass(bins).assign(column.cpu()[present].double(), weight=weight).numpy()
    kept, code = np.unique(code, return_inverse=True)
    inside = [values[code == at] for at in range(len(kept))]
    labels = [
        "missing" if part == bins else f"{own.min():.6g} to {own.max():.6g}"
        for part, own in zip(kept, inside, strict=True)
    ]
    return Partition(code, tuple(((name, label),) for label in labels))


def _by_category(name: str, values: NDArray[Any]) -> Partition:
    known, code = np.unique(values, return_inverse=True)
    if len(known) > _MAX_GROUPS:
        raise refuse(f"at most {_MAX_GROUPS:,} categories in {name!r}", f"{len(known):,}", "group them first")
    return Partition(code, tuple(((name, str(value)),) for value in known.tolist()))


def _crossed(chosen: Sequence[Partition]) -> Partition:
    code, names = chosen[0].code, chosen[0].names
    for other in chosen[1:]:
        # renumbered after each column, so that the product of two counts cannot overflow
        kept, code = np.unique(code * len(other.names) + other.code, return_inverse=True)
        names = tuple(names[k // len(other.names)] + other.names[k % len(other.names)] for k in kept.tolist())
    return Partition(code, names)
