"""The record of what lies beside the scores of each row: labels, weights with their meaning, groups, features, a decision.

It is checked, sliced, joined and written here, as one value. What holds it adds scores: ``Predictions``, ``Pairs``,
``MultiLabel``, and the chunk of a row source.

A row's weight says how much it counts in means and fits, up to a factor: with inverse probabilities of being drawn it stands
for so many rows of the population. Intervals have the robust (sandwich) variance. A row that occurred w times is repeated.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import (
    ADD_LABELS,
    as_array,
    as_tensor,
    check_groups,
    check_row_tensor,
    refuse,
    shown,
)
from calibrant._core.constraints import LARGEST, Integer, PublicCalls
from calibrant._core.notebook import to_html

Column: TypeAlias = Tensor | NDArray[np.str_]
Features: TypeAlias = Mapping[str, Column]

_COLUMNS = 'pass a dict such as {"age": ages}'
_MISSING = "convert it to numbers or text; give missing entries a name of their own"
# which axis holds the classes; whether there is such an axis depends on the scores
Axis: TypeAlias = Annotated[int, Integer(-LARGEST)]
Ignored: TypeAlias = Annotated[int, Integer(-LARGEST - 1)] | None  # a label that marks rows to leave out
WEIGHTS = "weights"  # the array, or column, of how much each row counts
FEATURE, FEATURE_TEXT = "feature:", "feature_text:"


class Beside(TypedDict, total=False):
    """What every constructor of a record takes beside scores and labels, each None if there is none."""

    groups: Any
    weights: Any
    features: Mapping[str, Any] | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Columns(metaclass=PublicCalls):
    """N rows whose tensors and features have one entry a row, so that rows are selected and joined alike, whatever they hold.

    Args:
        labels: (N,) int64, or (N, L) where a row has several; or None.
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        features: Named columns beside the rows: (N,) numbers as tensors on the CPU, names as arrays of text; or None.
    """

    labels: Tensor | None = None
    groups: Tensor | None = None
    features: Features | None = None

    # Names of tensors → number of their axes, the scores first; those with two axes have as many columns as the scores.
    axes: ClassVar[Mapping[str, int]] = {}
    alike: ClassVar[
        Mapping[str, str]
    ] = {}  # further fields that joined parts have in common → the remedy where they do not

    @property
    @abstractmethod
    def scores(self) -> Tensor:
        """(N,) or (N, K): what the record lies beside."""

    def __len__(self) -> int:
        return int(self.scores.shape[0])

    def __getitem__(self, rows: Any) -> Self:
        """Return the selected rows (a slice, a boolean mask or row numbers)."""
        return self.selected(check_selection(rows, count=len(self)))

    def selected(self, rows: Any) -> Self:
        """Return the rows of a slice, a mask or indices that are known to fit.

        A selection of rows that all have the weight 0 keeps them: every metric refuses it with a sentence of its own.
        """
        return replace(self, **{name: taken(values, rows) for name, values in self._columns()})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all ``parts`` in order.

        Raises:
            InputError: If there are none, or they differ in classes or in what they have.
        """
        listed = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, Columns | Tensor) else [parts]
        if wrong := [type(part).__name__ for part in listed if not isinstance(part, cls)]:
            raise refuse(f"a list of {cls.__name__}", f"{wrong[0]} in it", "make each with from_logits or a sibling")
        if not listed:
            raise refuse("at least one part", "none", "pass the parts as a list")
        first = listed[0]
        if len({part.scores.shape[1:] for part in listed}) > 1:
            raise refuse("parts with equally many classes", "different ones", "concatenate predictions of one model")
        for name, remedy in cls.alike.items():
            if any(getattr(part, name) != getattr(first, name) for part in listed):
                raise refuse(f"the same {name} in all parts", "different ones", remedy)
        held = [dict(part._columns()) for part in listed]
        columns: dict[str, Any] = {}
        for name in dict.fromkeys(name for one in held for name in one):
            # what one part lacks is not filled in: a weight of 1, or a group a row, would be a guess
            if any(name not in one for one in held):
                raise refuse(f"{name} in all parts or in none", "both", f"drop or add {name}")
            values = [one[name] for one in held]
            columns[name] = joined_features(values) if name == "features" else torch.cat(values)
        return replace(first, **columns)

    def _columns(self) -> Iterable[tuple[str, Any]]:
        """Yield name and value of every field that has an entry a row: the tensors, and the features."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Tensor) or (one.name == "features" and value is not None):
                yield one.name, value

    def __repr__(self) -> str:
        words = {
            "groups": "groups",
            "decision": "decision",
            "given_probs": "probs",
            "weights": "weights",
            "features": "features " + "·".join(self.features or ()),
        }
        held = dict(self._columns())
        facts = [f"{len(self)} rows", *self._about(), *(word for name, word in words.items() if name in held)]
        return f"{type(self).__name__}({', '.join(facts)})"

    @abstractmethod
    def _about(self) -> list[str]:
        """Return what the repr says of the scores and labels."""

    def need_labels(self) -> Tensor:
        """Return the labels.

        Raises:
            InputError: If there are none.
        """
        if self.labels is None:
            raise refuse("labelled predictions", "unlabelled ones", ADD_LABELS)
        return self.labels


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Record(Columns):
    """Rows as they are measured: with the decision, where one was taken, and weights.

    Args:
        labels: As in ``Columns``.
        groups: As there.
        features: As there.
        decision: (N,) int64 class decided, or None.
        weights: (N,) float64 ≥ 0, not all 0, or None: how much each row counts, up to a factor; one of 0 is left out.
    """

    decision: Tensor | None = None
    weights: Tensor | None = None

    _repr_html_ = to_html

    def check(self) -> None:
        """Refuse tensors and columns of other shapes or dtypes than the record holds; their values are not read."""
        scores = self.scores
        check_row_tensor(scores, name=next(iter(self.axes)), dims=max(self.axes.values()), floating=True)
        for name, axes in ({"labels": 1, "groups": 1, "decision": 1, "weights": 1} | dict(self.axes)).items():
            if (values := getattr(self, name)) is None:
                continue
            check_row_tensor(values, name=name, dims=axes, rows=scores.shape[0], floating=name.endswith("probs"))
            if axes == 2 and values.shape[1] != scores.shape[1]:
                wanted = f"({scores.shape[0]}, {scores.shape[1]})"
                raise refuse(f"{name} of shape {wanted}", f"shape {tuple(values.shape)}", "pass one column a score")
        if self.weights is not None and self.weights.dtype != torch.float64:
            raise refuse("weights of float64", str(self.weights.dtype), "pass them to from_logits or a sibling")
        if not isinstance(self.features, Mapping | None):
            raise refuse("features as a dict of name → column", shown(self.features), _COLUMNS)
        for name, column in (self.features or {}).items():
            if not isinstance(column, Tensor | np.ndarray) or column.shape != scores.shape[:1]:
                raise refuse(f"{scores.shape[0]} entries of the feature {name!r}", shown(column), "pass one a row")

    @property
    def beside(self) -> dict[str, Any]:
        """The fields of the record alone, to pass on to other scores of the same rows."""
        return {one.name: getattr(self, one.name) for one in fields(Record)}

    @property
    def row_weights(self) -> Tensor:
        """(N,) float64: the weights, 1 each if there are none."""
        if self.weights is not None:
            return self.weights
        return torch.ones(len(self), dtype=torch.float64, device=self.scores.device)

    @property
    def count(self) -> int:
        """The rows of positive weight."""
        return len(self) if self.weights is None else int((self.weights > 0).sum())

    @property
    def effective_count(self) -> float:
        """The rows of equal weight that would vary as much: (Σw)² / Σw² (Kish 1965)."""
        if self.weights is None:
            return float(len(self))
        # clamped, since a selection may hold rows of weight 0 alone: these are 0 rows, not NaN
        return float(self.weights.sum().square() / self.weights.square().sum().clamp_min(1e-300))

    @cached_property
    def _positive(self) -> Self | None:
        # None stands for all rows: data that held itself would only be freed by the garbage collector
        positive = None if self.weights is None else self.weights > 0
        return None if positive is None or bool(positive.all()) else self.selected(positive)

    @property
    def counted(self) -> Self:
        """The rows whose weight is not 0; the selection is made once."""
        return self if self._positive is None else self._positive

    def stored(self, *, text: bool) -> dict[str, Any]:
        """Return the record as arrays under the names that files have for them.

        Args:
            text: Whether the format holds text; where not, names are stored as the code points of their letters, (N, letters).
        """
        tensors = {"labels": self.labels, "groups": self.groups, "decision": self.decision}
        tensors[WEIGHTS] = self.weights
        found = {name: stored_tensor(values) for name, values in tensors.items() if values is not None}
        for name, column in (self.features or {}).items():
            if isinstance(column, Tensor):
                found[FEATURE + name] = stored_tensor(column)
            elif text:
                found[FEATURE + name] = column
            else:
                # NumPy keeps text as four bytes a letter, filled up with 0, so that the same bytes are code points;
                # little-endian, whatever machine writes the file
                wide = column.astype(f"<U{max(1, column.dtype.itemsize // 4)}")
                found[FEATURE_TEXT + name] = wide.view(np.int32).reshape(len(wide), -1)
        return found


def stored_tensor(values: Tensor) -> Any:
    """Return a tensor as a file holds it: an array, bfloat16 as float32."""
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().contiguous().numpy()


def checked_beside(scores: Tensor, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ``beside`` gives to rows with these scores (N, …), as the record holds them.

    Raises:
        InputError: Naming what was expected, what was got and the remedy.
    """
    rows, weights = int(scores.shape[0]), beside.get("weights")
    return {
        "groups": check_groups(beside.get("groups"), rows=rows),
        "weights": None if weights is None else check_weights(weights, rows=rows, device=scores.device),
        "features": check_features(beside.get("features"), rows=rows),
    }


def in_rows(
    values: Any, labels: Any, beside: Mapping[str, Any], *, class_dim: int, ignore_index: int | None, name: str
) -> tuple[Tensor, Any, dict[str, Any]]:
    """Return scores of any layout as (N·positions, K), with labels and what lies beside them to match, ignored rows left out.

    Args:
        values: (N, K), or (N, K, d1, …) or any layout whose class axis is ``class_dim``.
        labels: (N,) or (N, d1, …), or None.
        beside: Groups, weights and features: (N,), repeated over the inner axes, or as the labels.
        class_dim: The class axis.
        ignore_index: Rows whose label is this number are dropped; None keeps all.
        name: What messages call the scores.

    Raises:
        InputError: If the layout has no such axis, or labels have another.
    """
    tensor = as_tensor(values, name=name)
    leading = tuple(tensor.shape[:1])
    labels = None if labels is None else as_tensor(labels, name="labels")
    if tensor.dim() > 2 or (tensor.dim() == 2 and class_dim not in (1, -1)):
        if not -tensor.dim() <= class_dim < tensor.dim():
            raise refuse(f"class_dim in [0, {tensor.dim()})", shown(class_dim), "name the axis that holds the classes")
        tensor = tensor.movedim(class_dim, -1)
        leading = tuple(tensor.shape[:-1])
        if labels is not None and labels.shape != leading:
            shape = tuple(values.shape)
            axes = [axis for axis in range(1, len(shape)) if shape[:axis] + shape[axis + 1 :] == tuple(labels.shape)]
            remedy = f"pass class_dim={axes[0]}" if len(axes) == 1 else "check class_dim"
            raise refuse(f"labels of shape {leading}", f"{tuple(labels.shape)}", remedy)
        labels = None if labels is None else labels.reshape(-1)
        tensor = tensor.reshape(-1, tensor.shape[-1])
    # labels of another shape mask nothing here: they are refused where rows are checked, with their shape
    kept = None
    if ignore_index is not None and labels is not None and labels.shape == tensor.shape[:1]:
        mask = labels != ignore_index
        tensor, labels, kept = tensor[mask], labels[mask], mask.cpu().numpy()

    def spread(column: Any, name: str) -> Any:
        if column is None:
            return None
        array = _array_of(column, name=name)
        if len(leading) > 1:
            array = (np.repeat(array, math.prod(leading[1:])) if array.shape == leading[:1] else array).reshape(-1)
        return array if kept is None or array.shape != kept.shape else array[kept]

    made = {name: spread(beside.get(name), name) for name in ("groups", "weights")}
    features = beside.get("features")
    if isinstance(features, Mapping):  # anything else is refused with the rest
        features = {name: spread(column, str(name)) for name, column in features.items()}
    return tensor, labels, made | {"features": features}


def check_weights(weights: Any, *, rows: int, device: torch.device | None = None, name: str = "weights") -> Tensor:
    """Return weights (N,), finite, ≥ 0 and not all 0, as float64.

    Args:
        weights: As they were passed.
        rows: N.
        device: Where to put them.
        name: What messages call them.

    Raises:
        InputError: Naming what was expected, what was got and the remedy.
    """
    wide = as_tensor(weights, name=name).to(device, torch.float64)
    if wide.shape != (rows,):
        raise refuse(f"{name} of shape ({rows},)", f"shape {tuple(wide.shape)}", "pass one weight a row")
    bad = ~(torch.isfinite(wide) & (wide >= 0))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        remedy = "leave out rows that must not count, or give them the weight 0"
        raise refuse(f"finite {name} ≥ 0", f"{wide[row].item():.6g} in row {row}", remedy)
    need_positive(wide)
    # effective rows and variances divide by Σw², which leaves float64's range long before the weights do
    if rows and not 0 < float(wide.square().sum()) < float("inf"):
        low, high = float(wide[wide > 0].min()), float(wide.max())
        remedy = "divide them by their mean: their scale does not matter"
        raise refuse(f"{name} between 1e-150 and 1e150", f"{low:.3g} to {high:.3g}", remedy)
    return wide


def need_positive(weights: Tensor | None) -> Tensor | None:
    """Return weights (N,), or None, if one of them at least is not 0.

    Raises:
        InputError: If all are 0.
    """
    if weights is not None and len(weights) and not bool((weights != 0).any()):
        raise refuse("a positive weight", f"{len(weights)} weights of 0", "check the column of weights")
    return weights


def check_features(features: Any, *, rows: int) -> dict[str, Column] | None:
    """Return named columns: numbers as int64, float64 or bool tensors (N,) on the CPU, names as arrays of text (N,).

    Args:
        features: Name → column (N,) of numbers or names, or None.
        rows: N.

    Raises:
        InputError: If a name is no text, or a column is not of one number or name a row.
    """
    if features is None:
        return None
    if not isinstance(features, Mapping):
        raise refuse("features as a dict of name → column", shown(features), _COLUMNS)
    if unnamed := [name for name in features if not isinstance(name, str) or not name]:
        raise refuse("the name of a feature as text", shown(unnamed[0]), "name each column")
    checked = {name: check_column(one, name=f"the feature {name!r}", rows=rows) for name, one in features.items()}
    return checked or None


def need_features(data: Any) -> Features:
    """Return the features of ``data``, for a calibrator that goes by them.

    Raises:
        InputError: If there are none.
    """
    if data.features is None:
        remedy = "pass features={name: column} when making the predictions; in a file name the columns feature:NAME"
        raise refuse("predictions with features for this calibrator", "none", remedy)
    found: Features = data.features
    return found


def check_column(values: Any, *, name: str, rows: int | None = None) -> Column:
    """Return one column (N,) of numbers or names; ``name`` is what messages call it."""
    array = _array_of(values, name=name)
    if array.ndim != 1 or (rows is not None and array.shape[0] != rows):
        wanted = "(N,)" if rows is None else f"({rows},)"
        raise refuse(f"{name} of shape {wanted}", f"shape {array.shape}", "pass one entry a row")
    if array.dtype.kind == "O" and all(isinstance(entry, str) for entry in array):
        array = array.astype(str)
    if array.dtype.kind in "US":
        return np.array(array.astype(str))
    if array.dtype.kind not in "biuf":
        raise refuse(f"{name} as numbers or names", f"dtype {array.dtype}", _MISSING)
    # as int64 they would turn negative without a word
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise refuse(f"{name} below 2⁶³", str(int(array.max())), "pass names, or smaller numbers")
    wide = array if array.dtype.kind == "b" else array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    # a copy: the record is frozen, the array that was passed is not
    return torch.from_numpy(np.ascontiguousarray(wide).copy())


def _array_of(values: Any, *, name: str) -> Any:
    """Return ``values`` as an array; a list of names with anything else in it is refused, which NumPy would call "nan" or "3"."""
    array = as_array(values, name=name)
    if array.dtype.kind in "US" and isinstance(values, list | tuple):
        odd = [one for one in values if not isinstance(one, str | bytes | list | tuple)]
        if odd and not isinstance(odd[0], np.ndarray):
            raise refuse(f"{name} as numbers or names", f"names and {shown(odd[0])}", _MISSING)
    return array


def taken(values: Any, rows: Any) -> Any:
    """Return the selected rows of a tensor (N, …), a column, a frame, or a dictionary of columns: a slice, a mask or indices."""
    if isinstance(values, Mapping):
        return {name: taken(column, rows) for name, column in values.items()}
    if isinstance(values, Tensor):
        return values[rows.to(values.device) if isinstance(rows, Tensor) else rows]
    return values[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]


def joined_features(parts: Sequence[Features]) -> dict[str, Column]:
    """Return the columns of all parts in order.

    Raises:
        InputError: If the parts have different columns, or one of numbers in one part and of names in another.
    """
    first = list(parts[0])  # its order: trees break ties by it
    if any(sorted(part) != sorted(first) for part in parts):
        raise refuse("the same features in all parts", f"{sorted(first)} and others", "drop or add columns")
    return {name: join_columns([part[name] for part in parts], name=name) for name in first}


def join_columns(columns: Sequence[Column], *, name: str) -> Column:
    """Return the entries of all columns in order."""
    tensors = [column for column in columns if isinstance(column, Tensor)]
    texts = [column for column in columns if not isinstance(column, Tensor)]
    if tensors and texts:
        raise refuse(f"the feature {name!r} as numbers or as names", "both", "convert one of them")
    return torch.cat(tensors) if tensors else np.concatenate(texts)


def fitting_weights(weights: Tensor | None) -> Tensor | None:
    """Return weights (N,) with the mean 1 over rows that count, or None: their scale must not move a ridge against the rows."""
    return None if weights is None else weights * (float((weights > 0).sum()) / float(weights.sum()))


def check_selection(rows: Any, *, count: int) -> Any:
    """Return ``rows`` if it selects some of ``count`` rows: a slice, a mask, or indices.

    Raises:
        InputError: For a single row's number, a mask of another length, or an index out of range.
    """
    expected = f"a slice, a mask of {count} or row numbers in [{-count}, {count})"
    if isinstance(rows, slice):
        try:
            places = range(count)[rows]
        except (TypeError, ValueError) as error:  # a step of 0
            raise refuse(expected, f"{rows!r}", "slice by integers, in steps of 1 or more") from error
        # tensors know no negative steps
        return rows if places.step > 0 else torch.tensor([*places], dtype=torch.int64)
    # a tensor loses its axis of rows to a single number, and what lies beside it would not fit any more
    if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
        remedy = f"pass [{rows}:{rows + 1 or ''}] for one row" if -count <= rows < count else "pass one of these"
        raise refuse(expected, f"the single number {shown(rows)}", remedy)
    if not isinstance(rows, list | range | np.ndarray | Tensor) or getattr(rows, "ndim", 1) == 0:
        raise refuse(expected, shown(rows), "pass one of these")
    picked = as_tensor(rows, name="the rows")
    picked = picked if picked.numel() else picked.long()  # an empty list would become floats, which are no row numbers
    if picked.dim() != 1 or picked.is_floating_point():
        raise refuse(expected, f"{picked.dtype} {tuple(picked.shape)}", "pass one of these")
    if picked.dtype == torch.bool:
        if len(picked) != count:
            raise refuse(expected, f"a mask of {len(picked)}", "pass one entry a row")
        return picked
    picked = picked.long()
    if len(picked) and not all(-count <= int(end) < count for end in picked.aminmax()):
        raise refuse(expected, f"{[int(end) for end in picked.aminmax()]}", "number rows from 0")
    return picked
