"""Groups of rows: the categories of columns, quantile bins of numbers, and their intersections up to a depth."""

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

MOST_GROUPS = 2000
_MOST_WHOLE = 20  # distinct whole numbers, up to which they are categories


@dataclass(frozen=True)
class Parts:
    """One way to part the rows: by a column, or by the intersections of several.

    Args:
        code: (N,) int64 part of each row.
        names: (G,) of each part, one (column, category) a column.
    """

    code: NDArray[np.int64]
    names: tuple[tuple[tuple[str, str], ...], ...]


def parts_of(columns: Mapping[str, Column], data: Data, *, depth: int, bins: int) -> list[Parts]:
    """Return the partitions by every column, and by every set of up to ``depth`` columns; parts without rows are left out.

    Raises:
        InputError: If a column has too many categories, or there are too many groups.
    """
    single = [_parts(name, column, data, bins=bins) for name, column in columns.items()]
    found = [
        _crossed(chosen) for size in range(1, min(depth, len(single)) + 1) for chosen in combinations(single, size)
    ]
    if (count := sum(len(parts.names) for parts in found)) > MOST_GROUPS:
        raise refuse(f"at most {MOST_GROUPS:,} groups", f"{count:,}", "name fewer columns, or lower depth or bins")
    return found


def columns_of(data: Data, features: Any) -> dict[str, Column]:
    """Return the columns that ``features`` names or holds; None stands for all that ``data`` has."""
    own = dict(data.features or {})
    if features is None:
        if not own:
            raise refuse("features", "none", "pass them here, or when making the predictions")
        return own
    if isinstance(features, Mapping):
        named = {
            str(name): check_column(values, name=f"the feature {name!r}", rows=len(data))
            for name, values in features.items()
        }
        if not named:
            raise refuse("at least one column", "none", "name the columns to part the rows by")
        return named
    if isinstance(features, str) or not isinstance(features, Sequence) or not features:
        raise refuse("features as names or a dict of columns", shown(features), 'write ["region", "age"]')
    if wrong := [name for name in features if not isinstance(name, str)]:
        raise refuse("each of features as a name", shown(wrong[0]), 'write ["region", "age"]')
    missing = [name for name in features if name not in own]
    if missing:
        got = ", ".join(map(repr, sorted(own))) or "none"
        raise refuse(f"features out of those of the predictions for {missing[0]!r}", got, "pass a dict of columns")
    return {name: own[name] for name in features}


def _parts(name: str, column: Column, data: Data, *, bins: int) -> Parts:
    if not isinstance(column, Tensor):
        return _categories(name, column)
    values = column.cpu().numpy()
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    distinct = np.unique(values[~missing])
    whole = values.dtype.kind != "f"
    if len(distinct) <= (_MOST_WHOLE if whole else bins):
        return _categories(name, np.where(missing, "missing", values.astype(str)) if missing.any() else values)
    weight = None if data.weights is None else data.weights.cpu()[torch.from_numpy(~missing)]
    code = np.full(len(values), bins, dtype=np.int64)
    present = torch.from_numpy(values[~missing].astype(np.float64))
    code[~missing] = EqualMass(bins).assign(present, weight=weight).numpy()
    kept, code = np.unique(code, return_inverse=True)
    labels = [
        "missing" if part == bins else f"{_number(values[code == at].min())} to {_number(values[code == at].max())}"
        for at, part in enumerate(kept.tolist())
    ]
    return Parts(code, tuple(((name, label),) for label in labels))


def _categories(name: str, values: NDArray[Any]) -> Parts:
    known, code = _coded(values)
    if len(known) > MOST_GROUPS:
        raise refuse(f"at most {MOST_GROUPS:,} categories in {name!r}", f"{len(known):,}", "group them first")
    return Parts(code, tuple(((name, str(value)),) for value in known.tolist()))


def _coded(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct values in order and the number (N,) of each row's; Arrow hashes names, which NumPy would sort."""
    if values.dtype.kind not in "UO":
        known, code = np.unique(values, return_inverse=True)
        return known, code.astype(np.int64)
    import pyarrow as pa

    try:
        found = pa.array(values.tolist(), type=pa.large_string()).dictionary_encode()
    except UnicodeEncodeError:  # half a character, which Arrow's text cannot hold
        known, code = np.unique(values, return_inverse=True)
        return known, code.astype(np.int64)
    known, place = np.unique(np.array(found.dictionary.to_pylist(), dtype=object), return_inverse=True)
    return known, place[found.indices.to_numpy()].astype(np.int64)


def _crossed(chosen: Sequence[Parts]) -> Parts:
    code = chosen[0].code
    names = chosen[0].names
    for other in chosen[1:]:
        kept, code = np.unique(code * len(other.names) + other.code, return_inverse=True)
        names = tuple(names[k // len(other.names)] + other.names[k % len(other.names)] for k in kept.tolist())
    return Parts(code.astype(np.int64), names)


def _number(value: Any) -> str:
    return f"{value:.6g}"
