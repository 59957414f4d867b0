"""What lies beside the scores of each row: weights with their meaning, and named columns.

A row's weight says either how often the row occurred (``"frequency"``: whole numbers, held as int64) or how many rows of the
population it stands for (``"sampling"``: inverse probabilities up to a factor, held as float64). The two have the same
values and different uncertainty. So the kind is always named; inside, the dtype carries it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import as_array, as_tensor, check_choice, check_groups, check_labels, refuse, shown
from calibrant.errors import Remedy

WeightKind: TypeAlias = Literal["frequency", "sampling"]
Column: TypeAlias = Tensor | NDArray[np.str_]
Features: TypeAlias = Mapping[str, Column]
D = TypeVar("D")

_KINDS = ("frequency", "sampling")
WEIGHT_NAMES = ("frequency_weights", "sampling_weights")  # of arrays in files: the kind stands in the name
_MISSING = "convert it to numbers or text; give missing entries a name of their own"
FEATURE, _TEXT = "feature:", "feature_text:"
_MOST = 1 << 53  # beyond, float64 sums of whole numbers round


def keep(data: D, **known: object) -> D:
    """Return ``data``, a frozen dataclass, with further values: checked fields, or cached properties that are known already."""
    for name, value in known.items():
        object.__setattr__(data, name, value)  # where functools.cached_property looks first
    return data


def check_row_weights(weights: Any, kind: Any, *, rows: int, device: torch.device | None = None) -> Tensor | None:
    """Return weights (N,) as int64 for ``"frequency"`` and as float64 for ``"sampling"``, or None if there are none.

    Args:
        weights: (N,) numbers ≥ 0, not all 0, or None.
        kind: "frequency" or "sampling", named with weights and only then.
        rows: N.
        device: Where to put them.

    Raises:
        InputError: Naming what was expected, what was got and the remedy.
    """
    if weights is None:
        if kind is not None:
            raise refuse("weights beside weight_kind", "none", "pass weights too, or leave weight_kind out")
        return None
    if kind is None:
        remedy = 'pass weight_kind="frequency" for counts of repeated rows, or "sampling" for inverse probabilities'
        raise refuse("weight_kind beside weights", "none", remedy)
    check_choice(kind, name="weight_kind", choices=_KINDS)
    found = as_tensor(weights, name="weights").to(device)
    if found.dim() != 1 or found.shape[0] != rows:
        raise refuse(f"weights of shape ({rows},)", f"shape {tuple(found.shape)}", "pass one weight a row")
    wide = found.to(torch.float64)
    bad = ~(torch.isfinite(wide) & (wide >= 0))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        remedy = "leave out rows that must not count, or give them the weight 0"
        raise refuse("finite weights ≥ 0", f"{wide[row].item():.6g} in row {row}", remedy)
    return _counts(wide) if kind == "frequency" else _shares(wide)


def need_positive(weights: Any) -> Any:
    """Return raw weights, or None, if one of them at least is not 0.

    Raises:
        InputError: If all are 0.
    """
    if weights is not None:
        found = as_tensor(weights, name="weights")
        if found.numel() and not bool((found != 0).any()):
            raise refuse("a positive weight", f"{found.numel()} weights of 0", "check the column of weights")
    return weights


def _counts(wide: Tensor) -> Tensor:
    broken = wide != wide.round()
    if bool(broken.any()):
        row = int(torch.nonzero(broken)[0])
        remedy = Remedy(
            'pass counts, or weight_kind="sampling" for inverse probabilities (in a file: name the array sampling_weights)',
            command="give counts, or name the array sampling_weights if these are inverse probabilities",
        )
        raise refuse("whole numbers as frequency weights", f"{wide[row].item():.6g} in row {row}", remedy)
    if float(wide.sum()) >= _MOST:
        raise refuse("frequency weights with a sum below 2⁵³", f"{float(wide.sum()):.3g}", "check the column of counts")
    return wide.long()


def _shares(wide: Tensor) -> Tensor:
    square = float(wide.square().sum())
    if not 0 < square < float("inf") and bool((wide > 0).any()):
        low, high = float(wide[wide > 0].min()), float(wide.max())
        remedy = "divide them by their mean: their scale does not matter"
        raise refuse("sampling weights between 1e-150 and 1e150", f"{low:.3g} to {high:.3g}", remedy)
    return wide


def kind_of(weights: Tensor | None) -> WeightKind | None:
    """Return the kind of weights as ``check_row_weights`` returns them."""
    if weights is None:
        return None
    return "sampling" if weights.is_floating_point() else "frequency"


def labels_and_groups(matrix: Tensor, labels: Any, groups: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return checked labels (N,) and groups (N,) of scores ``matrix`` (N, K), or None where there are none."""
    rows, classes = matrix.shape
    if labels is not None:
        labels = check_labels(as_tensor(labels, name="labels").to(matrix.device), rows=rows, classes=classes)
    return labels, check_groups(groups, rows=rows)


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
        remedy = 'pass a dict such as {"age": ages}'
        raise refuse("features as a dict of name → column", shown(features), remedy)
    checked = {}
    for name, values in features.items():
        if not isinstance(name, str) or not name:
            raise refuse("the name of a feature as text", shown(name), "name each column")
        checked[name] = check_column(values, name=f"the feature {name!r}", rows=rows)
    return checked or None


def need_features(data: Any) -> Features:
    """Return the features of ``data``, for a calibrator that goes by them.

    Raises:
        InputError: If there are none.
    """
    if data.features is None:
        remedy = Remedy(
            "pass features={name: column} when making the predictions (in a file: name the columns feature:NAME)",
            command="name the columns feature:NAME",
        )
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
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise refuse(f"{name} below 2⁶³", str(int(array.max())), "pass names, or smaller numbers")
    wide = array if array.dtype.kind == "b" else array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.ascontiguousarray(wide).copy())


def _array_of(values: Any, *, name: str) -> Any:
    """Return ``values`` as an array; a list of names with anything else in it is refused, which NumPy would call "nan" or "3"."""
    array = as_array(values, name=name)
    if array.dtype.kind in "US" and isinstance(values, list | tuple):
        odd = [one for one in values if not isinstance(one, str | bytes | list | tuple)]
        if odd and not isinstance(odd[0], np.ndarray):
            raise refuse(f"{name} as numbers or names", f"names and {shown(odd[0])}", _MISSING)
    return array


def taken(column: Column, rows: Any) -> Column:
    """Return the selected rows of a column: a slice, a mask or indices."""
    if isinstance(column, Tensor):
        return column[rows.to(column.device) if isinstance(rows, Tensor) else rows]
    chosen: NDArray[np.str_] = column[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
    return chosen


def taken_or_none(values: Tensor | None, rows: Any) -> Any:
    """Return the selected rows of a tensor (N, …), or None."""
    return None if values is None else values[rows]


def weights_and_features(data: Any, rows: Any) -> dict[str, Any]:
    """Return the fields ``weights``, ``weight_kind`` and ``features`` of the selected rows of ``data``.

    A selection of rows that all have the weight 0 keeps them: every metric refuses it with a sentence of its own.
    """
    found: dict[str, Any] = {"weights": None, "weight_kind": data.weight_kind, "features": None}
    if data.weights is not None:
        found["weights"] = taken(data.weights, rows)
    if data.features is not None:
        found["features"] = {name: taken(column, rows) for name, column in data.features.items()}
    return found


def joined_fields(parts: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the fields ``names``, ``weight_kind`` and ``features`` of all ``parts``, rows one after another.

    Raises:
        InputError: If there are no parts, or they differ in classes, in the kind of weights or in what they have.
    """
    if not parts:
        raise refuse("at least one part", "none", "pass the parts as a list")
    if len({part.logits.shape[1] for part in parts}) > 1:
        raise refuse("parts with equally many classes", "different ones", "concatenate predictions of one model")
    kinds = {part.weight_kind for part in parts}
    if len(kinds) > 1:
        raise refuse("weights of one kind in all parts or in none", "different ones", "drop or add weights")
    beside = {name: _joined([getattr(part, name) for part in parts], name=name) for name in names}
    return {**beside, "weight_kind": kinds.pop(), "features": joined_features([part.features for part in parts])}


def _joined(columns: Sequence[Any], *, name: str) -> Any:
    if all(column is None for column in columns):
        return None
    if any(column is None for column in columns):
        raise refuse(f"{name} in all parts or in none", "both", f"drop or add {name}")
    return torch.cat(list(columns))


def joined_features(parts: Sequence[Features | None]) -> dict[str, Column] | None:
    """Return the columns of all parts in order, or None if no part has any.

    Raises:
        InputError: If the parts have different columns, or one of numbers in one part and of names in another.
    """
    names = [list(part or {}) for part in parts]  # in the first one's order: trees break ties by it
    if any(sorted(part) != sorted(names[0]) for part in names):
        raise refuse("the same features in all parts", f"{sorted(names[0])} and others", "drop or add columns")
    return {name: join_columns([part[name] for part in parts if part], name=name) for name in names[0]} or None


def join_columns(columns: Sequence[Column], *, name: str) -> Column:
    """Return the entries of all columns in order."""
    tensors = [column for column in columns if isinstance(column, Tensor)]
    texts = [column for column in columns if not isinstance(column, Tensor)]
    if tensors and texts:
        raise refuse(f"the feature {name!r} as numbers or as names", "both", "convert one of them")
    return torch.cat(tensors) if tensors else np.concatenate(texts)


def normalise_beside(made: Any, *, rows: int, device: torch.device) -> None:
    """Check the fields ``weights``, ``weight_kind`` and ``features`` of a frozen record, and put them in their dtypes."""
    weights = check_row_weights(made.weights, made.weight_kind, rows=rows, device=device)
    keep(made, weights=weights, features=check_features(made.features, rows=rows))


def spread_beside(
    values: Any, labels: Any, class_dim: Any, ignore_index: Any, *, weights: Any, features: Any
) -> dict[str, Any]:
    """Return weights and features beside scores of shape (N, K) or (N, K, d1, …) as one entry a row that is kept.

    Raises:
        InputError: If all weights are 0.
    """
    if need_positive(weights) is None and features is None:
        return {"weights": None, "features": None}
    tensor = as_tensor(values, name="the scores")
    leading = tuple(tensor.shape[:1])
    if isinstance(class_dim, int) and -tensor.dim() <= class_dim < tensor.dim():
        leading = tuple(tensor.movedim(class_dim, -1).shape[:-1])
    kept = None
    if ignore_index is not None and labels is not None:
        kept = (as_tensor(labels, name="labels").reshape(-1) != ignore_index).cpu()
    if features is not None and not isinstance(features, Mapping):
        remedy = 'pass a dict such as {"age": ages}'
        raise refuse("features as a dict of name → column", shown(features), remedy)
    columns = {name: _spread(column, leading, kept, name=str(name)) for name, column in (features or {}).items()}
    return {"weights": _spread(weights, leading, kept, name="weights"), "features": columns or None}


def _spread(values: Any, leading: tuple[int, ...], kept: Tensor | None, *, name: str) -> Any:
    """Return a column (N,), repeated over the inner axes, or of the shape ``leading``, as one entry a kept position."""
    if values is None:
        return None
    array = _array_of(values, name=name)
    if len(leading) > 1:
        if array.shape == leading[:1]:
            array = np.repeat(array, int(np.prod(leading[1:])))
        array = array.reshape(-1)
    return array if kept is None or array.shape != tuple(kept.shape) else array[kept.numpy()]


def fitting_weights(weights: Tensor | None) -> Tensor | None:
    """Return weights (N,) for a fit, or None: counts as they are, others with the mean 1 over rows that count.

    So the scale of sampling weights does not change what a ridge or a prior weighs against the rows.
    """
    if weights is None or not weights.is_floating_point():
        return None if weights is None else weights.double()
    return weights * (float((weights > 0).sum()) / float(weights.sum()))


def stored_beside(data: Any, *, text: bool) -> dict[str, Any]:
    """Return weights and features as arrays under the names that files have for them.

    Args:
        data: Predictions or pairs.
        text: Whether the format holds text; where not, names are stored as the code points of their letters, (N, letters).
    """
    found: dict[str, Any] = {}
    if data.weights is not None:
        found[f"{data.weight_kind}_weights"] = data.weights.detach().cpu().contiguous().numpy()
    for name, column in (data.features or {}).items():
        if isinstance(column, Tensor):
            found[FEATURE + name] = column.detach().cpu().contiguous().numpy()
        elif text:
            found[FEATURE + name] = column
        else:
            wide = column.astype(f"<U{max(1, column.dtype.itemsize // 4)}")
            found[_TEXT + name] = wide.view(np.int32).reshape(len(wide), -1)
    return found


def beside_stored(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the arguments ``weights``, ``weight_kind`` and ``features`` out of the arrays of a file whose names start with ``prefix``."""
    found: dict[str, Any] = {"weights": None, "weight_kind": None, "features": {}}
    for name in WEIGHT_NAMES:
        if prefix + name in arrays:
            found["weights"], found["weight_kind"] = arrays[prefix + name], name.removesuffix("_weights")
    for name, values in arrays.items():
        if name.startswith(prefix + FEATURE):
            found["features"][name.removeprefix(prefix + FEATURE)] = values
        elif name.startswith(prefix + _TEXT):
            codes = np.ascontiguousarray(values, dtype=np.int32)
            found["features"][name.removeprefix(prefix + _TEXT)] = codes.view(f"<U{codes.shape[1]}")[:, 0]
    found["features"] = found["features"] or None
    return found


def is_beside(name: str) -> bool:
    """Return whether an array of a file is a feature, whatever its own name says."""
    return FEATURE in name or _TEXT in name
