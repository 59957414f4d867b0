"""The groups that a monitor also watches separately: the values of named columns in its reference."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_sequence, refuse, shown
from calibrant.errors import Remedy
from calibrant.operate.rows import Data

__all__ = ["Group", "group_codes", "groups_in"]

Group = tuple[str, str]  # column and value
MOST = 100  # largest number of groups


def groups_in(reference: Data, by: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups in the columns ``by`` of the reference's features, in order of column and value.

    Raises:
        InputError: If a column is missing, or holds too many values.
    """
    names = check_sequence(by, name="by") if not isinstance(by, str) else [by]
    found: list[Group] = []
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise refuse("names of columns in by", shown(wrong[0]), "pass for example by=['region']")
    for name in dict.fromkeys(names):
        values = np.unique(_values(reference, name))
        found += [(name, str(value)) for value in values]
        if len(found) > MOST:
            raise refuse(
                f"at most {MOST} groups", f"{len(values):,} different values in {name}", "bin the column first"
            )
    return tuple(found)


def group_codes(data: Data, column: str, values: Sequence[str]) -> NDArray[np.int64]:
    """Return the index in ``values`` of each row's group (N,), or −1 for a group that is not among them."""
    own = _values(data, column)
    order = np.argsort(values)
    ranked = np.asarray(values)[order]
    at = np.minimum(np.searchsorted(ranked, own), len(ranked) - 1)
    return np.asarray(np.where(ranked[at] == own, order[at], -1))


def _values(data: Data, column: str) -> NDArray[np.str_]:
    """Return the values (N,) of a column as text, where 1 and 1.0 are the same group."""
    features = data.features or {}
    if column not in features:
        got = f"the features {', '.join(features)}" if features else "none"
        raise refuse(
            f"the feature {column!r} that groups are watched by",
            got,
            Remedy(f"pass features={{{column!r}: values}}", command=f"name a column feature:{column}"),
        )
    found = features[column]
    if not isinstance(found, torch.Tensor):
        return np.asarray(found)
    known, codes = np.unique(found.cpu().numpy(), return_inverse=True)
    return np.array([f"{float(value):.12g}" for value in known])[codes]
