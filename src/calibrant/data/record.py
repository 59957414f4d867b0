"""The columns that accompany the scores of each row: labels, groups, weights, decisions, and named columns (features).

``Record`` selects and joins rows for every kind of scores; ``Predictions``, ``Pairs`` and ``MultiLabel`` add the
scores.

A row's weight determines, up to a common factor, how much the row counts in means and fits. If the weights are inverse
sampling probabilities, each row represents that many rows of the population. Intervals use the robust (sandwich)
variance. A row that really occurred w times should be repeated instead of weighted.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import ADD_LABELS, as_array, as_tensor, check_groups, refuse, shown
from calibrant._core.notebook import to_html

Column: TypeAlias = Tensor | NDArray[np.str_]
Features: TypeAlias = Mapping[str, Column]

FEATURE = "feature:"  # prefix of feature names in files
_MISSING = "convert it to numbers or text; give missing entries a name of their own"


class ColumnOptions(TypedDict, total=False):
    """The optional columns that every constructor of a record accepts besides scores and labels."""

    groups: Any
    weights: Any
    features: Mapping[str, Any] | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Record(ABC):
    """N rows, each with the same columns.

    Args:
        labels: (N,) int64, or (N, L) if each row has several labels; or None.
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        decision: (N,) int64 predicted class, or None.
        weights: (N,) float64 ≥ 0, not all 0, or None: how much each row counts, up to a common factor. Rows of weight 0
            are left out.
        features: Named columns (N,): numbers as tensors on the CPU, text as NumPy arrays; or None.
    """

    labels: Tensor | None = None
    groups: Tensor | None = None
    decision: Tensor | None = None
    weights: Tensor | None = None
    features: Features | None = None

    names_alike: ClassVar[str] = "class_names"  # the field that must be equal in all parts to be joined

    _repr_html_ = to_html

    @property
    @abstractmethod
    def scores(self) -> Tensor:
        """The logits or probabilities, (N,) or (N, K)."""

    @abstractmethod
    def _about(self) -> list[str]:
        """Return the facts about scores and labels that the repr shows."""

    def __post_init__(self) -> None:
        """Check that every column has one entry per row. The constructors check the values."""
        if not isinstance(self.scores, Tensor) or not self.scores.is_floating_point():
            remedy = "create them with from_logits, from_probs or another constructor"
            raise refuse("a floating-point tensor of scores", shown(self.scores), remedy)
        columns: dict[str, Any] = {**self._columns(), **(self.features or {})}
        for name, column in columns.items():
            if name != "features" and len(column) != len(self):
                raise refuse(f"{len(self)} entries in {name}", str(len(column)), "pass one entry per row")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: Any) -> Self:
        """Return the selected rows.

        Args:
            rows: A slice, a boolean mask (N,) or row numbers (n,).

        Returns:
            A record of the same class with these rows.

        Raises:
            InputError: If ``rows`` is a single number.
            IndexError: If a mask has another length, or a number is out of range.
        """
        if not isinstance(rows, slice):
            index = np.arange(len(self))[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
            if index.ndim != 1:  # a single number would remove the row axis
                raise refuse("a slice, a mask or a list of row numbers", shown(rows), "pass [row] for a single row")
            rows = torch.from_numpy(index)
        return replace(self, **{name: taken(column, rows) for name, column in self._columns().items()})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all ``parts`` in order.

        Raises:
            InputError: If there are no parts, or they differ in their classes or columns.
        """
        parts = list(parts)
        if not parts or not all(isinstance(part, cls) for part in parts):
            raise refuse(f"a list of {cls.__name__}, at least one part", shown(parts), "pass the parts as a list")
        # columns that one part lacks are not filled in: a weight of 1, or one group per row, would be a guess
        alike: dict[str, set[Any]] = {
            "classes": {part.scores.shape[1:] for part in parts},
            cls.names_alike: {getattr(part, cls.names_alike, None) for part in parts},
            "columns": {frozenset(part._columns()) for part in parts},
            "features": {frozenset((name, type(one)) for name, one in (part.features or {}).items()) for part in parts},
        }
        for what, found in alike.items():
            if len(found) > 1:
                raise refuse(f"the same {what} in all parts", "different ones", f"give all parts the same {what}")
        held = parts[0]._columns()
        columns: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in held.keys() - {"features"}
        }
        if "features" in held:
            columns["features"] = joined_features([part.features or {} for part in parts])
        return replace(parts[0], **columns)

    def _columns(self) -> dict[str, Any]:
        """Return all fields that have one entry per row, by name: the tensors and the features."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: one for name, one in values.items() if isinstance(one, Tensor) or (name == "features" and one)}

    def __repr__(self) -> str:
        held, words = self._columns(), {"given_probs": "probs", "features": "features " + "·".join(self.features or ())}
        shown_names = ("groups", "decision", "given_probs", "weights", "features")
        facts = [words.get(name, name) for name in shown_names if name in held]
        return f"{type(self).__name__}({', '.join([f'{len(self)} rows', *self._about(), *facts])})"

    def require_labels(self) -> Tensor:
        """Return the labels.

        Raises:
            InputError: If the rows have no labels.
        """
        if self.labels is None:
            raise refuse("labelled predictions", "unlabelled ones", ADD_LABELS)
        return self.labels

    @property
    def columns(self) -> dict[str, Any]:
        """The fields without the scores, to combine with other scores of the same rows."""
        return {one.name: getattr(self, one.name) for one in fields(Record)}

    @property
    def row_weights(self) -> Tensor:
        """The weights as float64 (N,); all 1 if the rows are not weighted."""
        if self.weights is not None:
            return self.weights
        return torch.ones(len(self), dtype=torch.float64, device=self.scores.device)

    @property
    def count(self) -> int:
        """The number of rows with positive weight."""
        return len(self) if self.weights is None else int((self.weights > 0).sum())

    @property
    def effective_count(self) -> float:
        """The effective sample size (Σw)² / Σw² (Kish 1965); 0 if all rows have weight 0.

        This many rows of equal weight would have the same variance.
        """
        w = self.row_weights
        return float(w.sum().square() / w.square().sum().clamp_min(1e-300))

    @property
    def counted(self) -> Self:
        """The rows with positive weight."""
        return self if self.weights is None or bool((self.weights > 0).all()) else self._positive

    @cached_property
    def _positive(self) -> Self:
        assert self.weights is not None
        return self[self.weights > 0]

    def stored(self) -> dict[str, Any]:
        """Return the columns as arrays, by the names that they have in files."""
        stored = {name: getattr(self, name) for name in ("labels", "groups", "decision", "weights")}
        stored |= {FEATURE + name: column for name, column in (self.features or {}).items()}
        tensors = {name: one for name, one in stored.items() if one is not None}
        return {name: stored_tensor(one) if isinstance(one, Tensor) else one for name, one in tensors.items()}


def stored_tensor(values: Tensor) -> Any:
    """Return a tensor as the array that files store; bfloat16 becomes float32."""
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().contiguous().numpy()


def checked_columns(scores: Tensor, *, groups: Any = None, weights: Any = None, features: Any = None) -> dict[str, Any]:
    """Check groups, weights and features for rows with these scores (N, …), and return them as a record stores them.

    Raises:
        InputError: If a column is invalid.
    """
    rows = len(scores)
    return {
        "groups": None if groups is None else check_groups(groups, rows=rows),
        "weights": None if weights is None else check_weights(weights, rows=rows, device=scores.device),
        "features": None if features is None else check_features(features, rows=rows),
    }


def flatten_rows(
    scores: Tensor, labels: Tensor | None, columns: Mapping[str, Any], *, class_dim: int, ignore_index: int | None
) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Flatten scores to (N · positions, K), with matching labels and columns, and drop rows labelled ``ignore_index``.

    Args:
        scores: (N, K), or (N, K, d1, …), or any layout whose class axis is ``class_dim``.
        labels: (N,) or (N, d1, …), or None.
        columns: Groups and weights, either (N,), which is repeated over the inner axes, or of the labels' shape; and
            features, a dict of such columns.
        class_dim: The class axis.
        ignore_index: The label of rows to drop; None keeps all rows.

    Returns:
        The scores, the labels and the columns.

    Raises:
        InputError: If the axes of the labels do not match those of the scores.
    """
    scores = scores.movedim(class_dim, -1)
    kept: Any = slice(None)
    positions = tuple(scores.shape[:-1])
    scores = scores.reshape(-1, scores.shape[-1])
    if labels is not None:
        if labels.shape != positions:
            raise refuse(f"labels of shape {positions}", f"{tuple(labels.shape)}", "name the class axis with class_dim")
        labels = labels.reshape(-1)
    if labels is not None and ignore_index is not None:
        mask = labels != ignore_index
        scores, labels, kept = scores[mask], labels[mask], mask.cpu().numpy()

    def spread(column: Any, name: str) -> Any:
        if isinstance(column, Mapping):
            return {key: spread(one, f"the feature {key!r}") for key, one in column.items()}
        array = _array_of(column, name=name)
        if len(positions) > 1:
            array = np.repeat(array, math.prod(positions[1:])) if array.shape == positions[:1] else array.reshape(-1)
        return array[kept]

    return scores, labels, {name: spread(one, name) for name, one in columns.items() if one is not None}


def check_weights(weights: Any, *, rows: int, device: torch.device | None = None) -> Tensor:
    """Return ``weights`` (N,) as float64 on ``device``, after checking that they are finite, ≥ 0 and not all 0.

    Raises:
        InputError: If the shape is wrong or a weight is invalid.
    """
    wide = as_tensor(weights, name="weights").to(device, torch.float64)
    if wide.shape != (rows,):
        raise refuse(f"weights of shape ({rows},)", f"shape {tuple(wide.shape)}", "pass one weight per row")
    if len(bad := torch.nonzero(~(torch.isfinite(wide) & (wide >= 0)))):
        remedy = "leave out rows that must not count, or give them weight 0"
        raise refuse("finite weights ≥ 0", f"{wide[bad[0]].item():.6g}", remedy, row=int(bad[0]))
    # effective sample sizes and variances divide by Σw², which leaves the range of float64 long before the weights do
    if rows and not 0 < float(wide.square().sum()) < float("inf"):
        remedy = "check their column, or divide them by their mean, since their scale does not matter"
        raise refuse("weights up to 1e150, not all 0", f"{wide.min():.3g} to {wide.max():.3g}", remedy)
    return wide


def fitting_weights(weights: Tensor | None) -> Tensor | None:
    """Return weights (N,) whose mean over rows of positive weight is 1, or None for None.

    Without this, the scale of the weights would change the strength of a ridge penalty.
    """
    return None if weights is None else weights * (float((weights > 0).sum()) / float(weights.sum()))


def check_features(features: Any, *, rows: int) -> dict[str, Column] | None:
    """Return columns (N,) by name: numbers as int64, float64 or bool tensors on the CPU, text as NumPy arrays.

    Raises:
        InputError: If a column's name is not text, or a column does not have one number or text per row.
    """
    if not isinstance(features, Mapping) or not all(isinstance(name, str) and name for name in features):
        raise refuse("features as a dict of name → column", shown(features), 'pass a dict such as {"age": ages}')
    return {name: check_column(one, name=f"the feature {name!r}", rows=rows) for name, one in features.items()} or None


def check_column(values: Any, *, name: str, rows: int | None = None) -> Column:
    """Return one column (N,) of numbers or text; ``name`` is its name in error messages."""
    array = _array_of(values, name=name)
    if array.ndim != 1 or (rows is not None and len(array) != rows):
        raise refuse(f"{name} of shape ({rows or 'N'},)", f"shape {array.shape}", "pass one entry per row")
    if array.dtype.kind in "US" or (array.dtype.kind == "O" and all(isinstance(entry, str) for entry in array)):
        return np.array(array.astype(str))
    if array.dtype.kind not in "biuf":
        raise refuse(f"{name} as numbers or names", f"dtype {array.dtype}", _MISSING)
    tensor = as_tensor(array, name=name)
    wide = torch.float64 if tensor.is_floating_point() else torch.bool if tensor.dtype == torch.bool else torch.int64
    return tensor.to(wide, copy=True)  # the record is frozen, but the array that was passed is not


def _array_of(values: Any, *, name: str) -> Any:
    """Return ``values`` as an array.

    A list that mixes text with other values is refused, because NumPy would turn these into text such as "nan" or "3".
    """
    array = as_array(values, name=name)
    if array.dtype.kind in "US" and isinstance(values, list | tuple):
        odd = [one for one in values if not isinstance(one, str | bytes | list | tuple | np.ndarray)]
        if odd:
            raise refuse(f"{name} as numbers or names", f"names and {shown(odd[0])}", _MISSING)
    return array


def taken(values: Any, rows: Any) -> Any:
    """Return the rows of a tensor (N, …), a column, or a dict of columns that a slice, a mask or indices select."""
    if isinstance(values, Mapping):
        return {name: taken(column, rows) for name, column in values.items()}
    if isinstance(rows, Tensor):
        rows = rows.to(values.device) if isinstance(values, Tensor) else rows.cpu().numpy()
    return values[rows]


def joined_features(parts: Sequence[Features]) -> dict[str, Column]:
    """Return the joined columns of all parts, which must have columns of the same names."""
    joined: dict[str, Column] = {}
    for name in parts[0]:
        columns: list[Any] = [part[name] for part in parts]
        joined[name] = torch.cat(columns) if isinstance(columns[0], Tensor) else np.concatenate(columns)
    return joined
