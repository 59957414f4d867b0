"""Conversion of pandas, polars and Arrow tables to predictions, and of predictions to Arrow."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from calibrant._core.check import check_sequence, refuse, shown
from calibrant._core.constraints import Kind, Text, checked
from calibrant.data.frames import table_of_rows
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

__all__ = ["from_table", "to_table"]

OfRows = Annotated[Predictions, Kind(Predictions, "make them by Predictions.from_logits or from_probs")]


@checked
def from_table(
    table: Any,
    *,
    columns: Sequence[str],
    label: Text | None = None,
    group: Text | None = None,
    kind: Literal["logits", "probs"] = "logits",
    weight: Text | None = None,
    features: Sequence[Text] = (),
) -> Predictions:
    """Return predictions from a pandas, polars or Arrow table with one column per class.

    Args:
        table: The table; its columns are read by ``table[name]``.
        columns: The K columns of logits or probabilities, in the order of the classes.
        label: Column of class indices, or of names in ``columns``; None for unlabelled data.
        group: Column of groups, or None.
        kind: ``"logits"`` or ``"probs"``.
        weight: Column of weights, or None.
        features: Columns of numbers or names to keep as features.

    Raises:
        InputError: If a column is missing or a label is not in ``columns``.

    Examples:
        >>> import pyarrow as pa
        >>> table = pa.table({"cat": [0.9, 0.2], "dog": [0.1, 0.8], "truth": ["cat", "cat"]})
        >>> from_table(table, columns=["cat", "dog"], label="truth", kind="probs").correct
        tensor([ True, False])
    """
    columns = check_sequence(columns, name="columns")
    if not columns:
        raise InputError("the columns of the classes", "none", "name one per class")
    known = _column_names(table)
    beside = [name for name in (label, group, weight) if name is not None]
    if missing := [name for name in (*columns, *beside, *features) if name not in known]:
        raise InputError(f"columns {shown(missing)}", f"only {shown(known, most=200)}", "rename them")
    values = np.stack([_column(table, name) for name in columns], axis=1)
    labels, groups, weights = (None if name is None else _column(table, name) for name in (label, group, weight))
    labels = None if labels is None else _label_codes(labels, columns)
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
    kept = {name: _column(table, name) for name in features} or None
    return make(values, labels, groups=groups, weights=weights, features=kept)


@checked
def to_table(predictions: OfRows, *, columns: Sequence[Text] | None = None) -> Any:
    """Return probabilities, predicted class, confidence, label, weights and features as an Arrow table.

    Convert it with ``.to_pandas()`` or ``polars.from_arrow``.

    Args:
        predictions: N rows over K classes.
        columns: K names; None is ``p0`` … ``p{K-1}``.
    """
    return table_of_rows(predictions, columns)


def _column_names(table: Any) -> list[Any]:
    names = getattr(table, "column_names", None)
    names = getattr(table, "columns", None) if names is None else names
    if names is None or callable(names) or not hasattr(type(table), "__getitem__"):
        raise refuse(
            "a pandas, polars or Arrow table", shown(table), "pass one, or use calibrant.Predictions.from_logits"
        )
    return list(names)


def _column(table: Any, name: str) -> Any:
    return np.asarray(table[name].to_numpy())


def _label_codes(labels: Any, columns: Sequence[str]) -> Any:
    if labels.dtype.kind in "iu":
        return labels
    # labels by name: the class is the position of its column
    index = {name: code for code, name in enumerate(columns)}
    unknown = sorted({str(name) for name in labels} - set(index))
    if unknown:
        raise InputError(f"labels among {list(columns)}", f"{unknown[:3]}", "check the label column")
    return np.array([index[str(name)] for name in labels])
