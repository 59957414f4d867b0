"""Finds the groups of rows, or the labels, for which a model is miscalibrated, and tests the worst of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.errors import InputError, NoIntervalError
from calibrant.evaluate import label_table, subgroups
from calibrant.evaluate.subgroups import Subgroup, Subgroups
from calibrant.report.model import Model

MINIMUM = 100  # smallest number of rows of a group
MOST_NAMES = 200  # a text column with more categories (names, addresses) is left out unless it is requested


@dataclass(frozen=True)
class Audit:
    """The groups of a model's rows, or its labels, before and after calibration.

    Args:
        columns: Names of the columns that define the groups; empty for labels.
        before: The groups before calibration, or None if there was no test.
        after: The groups after calibration, or None.
        notes: Sentences on columns that were left out, and on why there was no test.
        off_by: The columns whose groups are still miscalibrated after calibration.
    """

    columns: tuple[str, ...]
    before: Subgroups | None
    after: Subgroups | None = None
    notes: tuple[str, ...] = ()
    off_by: tuple[str, ...] = ()

    @property
    def last(self) -> Subgroups | None:
        """The groups after calibration, or before calibration if there is no calibrator."""
        return self.after or self.before

    @property
    def worst(self) -> Subgroup | None:
        """The significant group with the largest mean gap before calibration, or None if no group is significant."""
        return max(off_in(self.before), key=lambda part: abs(part.gap), default=None)


def off_in(found: Subgroups | None) -> list[Subgroup]:
    """Return the groups that are significantly miscalibrated, by a test that accounts for the number of groups."""
    if found is None:
        return []
    return [part for part in found.rows if part.p_adjusted is not None and part.p_adjusted < 1 - found.level]


def audit_of(model: Model) -> Audit | None:
    """Audit a model's labels, or the groups that ``model.by`` or all features define; None if there are none.

    Raises:
        InputError: If a column in ``model.by`` is missing, has another length, or has too many categories.
    """
    if isinstance(model.before, MultiLabel):
        after = label_table(model.after) if isinstance(model.after, MultiLabel) else None
        return Audit((), label_table(model.before), after)
    columns: Any = dict(model.before.features or {}) if model.by is None else model.by
    if not len(columns):
        return None
    return audit_groups(model.before, model.after, columns, named=model.by is not None)  # type: ignore[arg-type]


def audit_groups(before: Data, after: Data | None, columns: Any, *, named: bool = False) -> Audit:
    """Audit the groups of rows that ``columns`` define, before and after calibration.

    Args:
        before: The rows.
        after: The same rows after calibration, or None.
        columns: Names of features, or a dict from names to columns (N,).
        named: Whether the user named these columns; errors about them are then raised. Otherwise text columns with more
            than 200 categories are left out, and an error becomes a note that explains why there is no test.

    Raises:
        InputError: If ``named`` is set and a column is missing, has another length, or has too many categories.
    """
    notes: tuple[str, ...] = ()
    if not named:  # a text column with a different value in each row is an identifier, not a group
        text = {name: values for name, values in columns.items() if not isinstance(values, Tensor)}
        left = [name for name, values in text.items() if len(np.unique(values)) > MOST_NAMES]
        columns = {name: values for name, values in columns.items() if name not in left}
        notes = (f"Left out for more than {MOST_NAMES} categories: {', '.join(left)}.",) if left else ()
    names = tuple(map(str, columns))
    if not names:
        return Audit(names, None, notes=notes)
    try:
        first = subgroups(before, columns, minimum=MINIMUM)
        second = None if after is None else subgroups(after, columns, minimum=MINIMUM)
    except (NoIntervalError, InputError) as error:
        if named and isinstance(error, InputError):
            raise
        return Audit(names, None, notes=(*notes, f"Groups are not tested: {error}."))
    off_by = dict.fromkeys(name for row in off_in(second) for name, _ in row.columns)
    return Audit(names, first, second, notes, tuple(off_by))


def correction_by(columns: Sequence[str], features: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of a calibrator that corrects the groups that ``columns`` define, and the columns that it uses.

    Args:
        columns: Names of columns whose groups are miscalibrated.
        features: The columns (N,) by name.
    """
    # a column with fractional numbers does not contain categories
    arrays = {name: np.asarray(features[name]) for name in columns}
    whole = [name for name, x in arrays.items() if x.dtype.kind != "f" or bool((x == np.rint(x)).all())]
    return ("GroupScaling", whole) if whole else ("FeatureScaling", list(columns))
