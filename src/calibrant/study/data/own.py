"""Data of one's own: tables or arrays in files, or what a function returns, as the splits of a study."""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_list_of
from calibrant._core.config import imported
from calibrant._core.constraints import Fits, Seed, Text
from calibrant._core.files import Array
from calibrant._core.paths import as_path, shown
from calibrant.data.formats.columns import column_array, is_text, match_columns
from calibrant.data.formats.layout import ARRAYS
from calibrant.data.formats.roles import has_role
from calibrant.data.formats.tables import read_table
from calibrant.data.formats.tensors import read_tensors
from calibrant.errors import FileFormatError, InputError
from calibrant.study._checks import Size
from calibrant.study.data._split import DataSet, Fold, TensorSplit

PARTS = ("train", "val", "test")
HELD = 0.2  # of the rows of one file, for validation and for the test each
_SPELLED = {"val": ("val", "validation", "valid", "dev")}
_SPLIT_SEED = 20261123  # of the draw of the splits of one file: the test rows are the same for every seed of a study

Part = tuple[Array, Array]  # features (N, …) and labels (N,)


def _files(value: Any, *, name: str) -> dict[str, Path] | Path:
    """Return a path, or paths of train, val and test."""
    if not isinstance(value, Mapping):
        return as_path(value, name=name)
    if "train" not in value or set(value) - set(PARTS):
        raise InputError("files as a path, or as train, val and test", f"{value!r}", "name the file of train at least")
    return {part: as_path(one, name=f"files.{part}") for part, one in value.items()}


def _patterns(value: Any, *, name: str) -> tuple[str, ...]:
    """Return patterns of columns."""
    return tuple(check_list_of([value] if isinstance(value, str) else value, str, name=name, remedy="name columns"))


@dataclass(frozen=True)
class Own(DataSet):
    """Data of one's own in files. Splits that are not given are drawn from the training rows.

    Args:
        files: A file or folder, or a table of them called train, val and test. Tables have a column of labels and columns of
            numbers; ``.npz`` and ``.safetensors`` hold ``features`` (or ``inputs``) and ``labels``, or ``train_features``,
            ``val_features`` …, and possibly ``test`` (N,): 1 for test rows.
        label: A table's column of labels.
        columns: Patterns of a table's columns of features; None takes every column of numbers but the label, and those called as
            ids, decisions or parts are, such as ``row_id``.
        train: Number of training rows to use; None is all that are left.
        validation: Rows to draw for validation; None draws a fifth.
        test: Rows to draw for the test; None draws a fifth.
        split_seed: Of that draw.
        redraw: Whether every seed of a study draws its own rows, so that a difference over seeds holds beyond one test set.
        standardize: Divide features by their deviation over the training rows, around their mean.
    """

    files: Annotated[Any, Fits(_files, "a path, or a table of paths")]
    label: Text = "label"
    columns: Annotated[Any, Fits(_patterns, "names or patterns")] = None
    train: Size | None = None
    validation: Size | None = None
    test: Size | None = None
    split_seed: Seed = _SPLIT_SEED
    redraw: bool = False
    standardize: bool = True

    def sizes(self) -> dict[str, Any]:
        """Return the sizes; the data are read, once."""
        return dict(self.load(seed=0, fold=0).sizes)

    def sample(self) -> Tensor:
        """Return two samples."""
        found = self.load(seed=0, fold=0).train
        assert isinstance(found, TensorSplit)
        return torch.empty_like(found.inputs[:2], device="meta")

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the splits.

        Raises:
            InputError: If the files name no training rows, or their parts do not fit together.
            FileFormatError: If a file cannot be read.
        """
        places = self._places()
        named = [file for place in places.values() for file in (sorted(place.rglob("*")) or [place])]
        stamps = tuple((str(file), file.stat().st_mtime_ns) for file in named if file.is_file())
        parts, digest = _splits_of_files(tuple(places.items()), self.label, self.columns, stamps)
        rng = np.random.default_rng([self.split_seed, seed] if self.redraw else self.split_seed)
        counts = {"test": self.test, "val": self.validation}
        found = own_fold(parts, counts=counts, rng=rng, train=self.train, standardize=self.standardize)
        return replace(found, digest=digest)

    def _places(self) -> dict[str, Path]:
        """Return split name → file or folder; "train" for a file of all."""
        if isinstance(self.files, dict):
            return dict(self.files)
        inner = {child.name: child for child in self.files.iterdir() if child.is_dir()} if self.files.is_dir() else {}
        found = {name: inner[one] for name in PARTS for one in _SPELLED.get(name, (name,)) if one in inner}
        return found or {"train": self.files}


@dataclass(frozen=True, init=False)
class Module(DataSet):
    """What a function of one's own returns for the other options of the recipe's data.

    Args:
        module: ``"module:function"``; it returns a ``Fold``, {"train": (x, y), "val": …, "test": …} of arrays or of Datasets, or
            inputs and labels of training, validation and test rows: three pairs. It is given ``seed`` and ``fold`` if it has
            such arguments.
        options: Passed on.
    """

    module: str
    options: dict[str, Any]

    def __init__(self, module: Text, **options: Any) -> None:
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "options", options)

    def sizes(self) -> dict[str, Any]:
        """Return none: they are known when the function is called."""
        return {}

    def sample(self) -> None:
        """Return None."""

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return what the function returns.

        Raises:
            InputError: If it cannot be imported, or returns something else.
        """
        function = imported(self.module)
        accepted = inspect.signature(function).parameters
        every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
        taken = {name: value for name, value in (("seed", seed), ("fold", fold)) if every or name in accepted}
        found = function(**taken, **self.options)
        if isinstance(found, Fold):
            return found
        three = isinstance(found, list | tuple) and len(found) == len(PARTS)
        parts = found if isinstance(found, Mapping) else dict(zip(PARTS, found, strict=True)) if three else {}
        if "train" not in parts or set(parts) - set(PARTS):
            wanted = f'a Fold or three pairs of inputs and labels, or {{"train": (x, y), …}}, from {self.module!r}'
            got = f"{sorted(found)}" if isinstance(found, Mapping) else type(found).__name__
            raise InputError(wanted, got, "return them")
        rng = np.random.default_rng(_SPLIT_SEED)
        pairs = {name: _part_of_module(part, self.module) for name, part in parts.items()}
        return own_fold(pairs, counts={"test": None, "val": None}, rng=rng)


def own_fold(
    parts: Mapping[str, Part],
    *,
    counts: Mapping[str, int | None],
    rng: np.random.Generator,
    train: int | None = None,
    standardize: bool = False,
) -> Fold:
    """Return splits of their features and labels; what is left out is drawn from the training rows.

    Args:
        parts: Features (N, …) and labels (N,) of "train", and possibly of "val" and "test".
        counts: Rows to draw for "test" and "val"; None draws a fifth.
        rng: Draws them.
        train: Number of training rows to draw; None takes all.
        standardize: As in ``Own``.
    """
    parts = dict(parts)
    fifth = max(1, round(HELD * len(parts["train"][1])))
    for name, count in counts.items():
        if name not in parts:
            parts["train"], parts[name] = _split_at_random(
                parts["train"], fifth if count is None else count, rng, name=name
            )
    if train is not None:
        _, parts["train"] = _split_at_random(parts["train"], train, rng, name="train", whole=True)
    names, coded = _classes_and_indices({name: part[1] for name, part in parts.items()})
    inputs = {name: _feature_tensor(part[0], name) for name, part in parts.items()}
    if standardize and inputs["train"].is_floating_point():
        deviation, mean = torch.std_mean(inputs["train"], dim=0, correction=0)
        # a constant column has the deviation 0, and becomes 0
        inputs = {name: (values - mean) / deviation.clamp_min(1e-12) for name, values in inputs.items()}
    shapes = {tuple(values.shape[1:]) for values in inputs.values()}
    if len(shapes) != 1:
        raise InputError("features of one shape in every split", f"{sorted(shapes)}", "correct the files")
    sizes = {"classes": len(names), "inputs": int(np.prod(next(iter(shapes))))}
    fit, held, tested = (TensorSplit(inputs[name], coded[name]) for name in PARTS)
    return Fold(fit, held, tested, sizes)


@lru_cache(maxsize=4)
def _splits_of_files(
    places: tuple[tuple[str, Path], ...], label: str, columns: tuple[str, ...] | None, stamps: tuple[Any, ...]
) -> tuple[dict[str, Part], str]:
    """Return the features and labels of each split, and the digest of the files, whose ``stamps`` name them in the cache."""
    found: dict[str, Part] = {}
    for name, place in places:
        if place.suffix.lower() in ARRAYS:
            arrays = read_tensors(place)
            prefixes = {one: f"{one}_" for one in PARTS if f"{one}_features" in arrays} or {name: ""}
            found |= {one: _of_arrays(arrays, prefix, place) for one, prefix in prefixes.items()}
            if name == "train" and "test" in arrays and "test" not in found:
                (x, y), test = found["train"], np.asarray(arrays["test"]).astype(bool)
                if test.shape != y.shape[:1]:
                    raise FileFormatError(f"test {y.shape[:1]} in {shown(place)}", f"{test.shape}", "mark every row")
                found["train"], found["test"] = (x[~test], y[~test]), (x[test], y[test])
        else:
            found[name] = _part_of_table(place, label, columns)
    # of the content: a copy is the same data, an edited file is not
    digest = hashlib.sha256(b"".join(Path(name).read_bytes() for name, _ in stamps)).hexdigest()
    return found, digest


def _of_arrays(arrays: Mapping[str, Array], prefix: str, place: Path) -> Part:
    inputs = next((prefix + name for name in ("features", "inputs") if prefix + name in arrays), None)
    if inputs is None or prefix + "labels" not in arrays:
        got = f"{', '.join(sorted(arrays))} in {shown(place)}"
        raise FileFormatError("arrays named features and labels (train_features …)", got, "rename them")
    return arrays[inputs], arrays[prefix + "labels"]


def _part_of_table(place: Path, label: str, columns: tuple[str, ...] | None) -> Part:
    import pyarrow as pa

    table = read_table(place)
    names = list(table.column_names)
    if label not in names:
        raise InputError(f"the label {label!r} in {shown(place)}", ", ".join(names[:12]), 'write label = "…" in [data]')
    if columns is None:
        numbers = [one.name for one in table.schema if pa.types.is_floating(one.type) or pa.types.is_integer(one.type)]
        chosen = [name for name in numbers if name != label and not has_role(name)]
    else:
        chosen, _ = match_columns(list(columns), names, place)
    if not chosen:
        raise InputError(f"columns of numbers in {shown(place)}", ", ".join(names[:12]), "name them by columns")
    parts = [column_array(table.column(name), name, place) for name in chosen]
    if wrong := next((name for name, part in zip(chosen, parts, strict=True) if part.dtype.kind not in "fiub"), None):
        raise InputError(f"numbers in the features of {shown(place)}", f"text in {wrong!r}", "name others by columns")
    return np.stack(parts, axis=1).astype(np.float32), column_array(table.column(label), label, place)


def _part_of_module(part: Any, module: str) -> Part:
    if not isinstance(part, Sequence) or len(part) != 2 or isinstance(part, torch.utils.data.Dataset):
        items = [part[index] for index in range(len(part))]  # a Dataset of (x, y)
        part = torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])
    x, y = (np.asarray(one) for one in part)
    if x.ndim < 2 or y.shape != x.shape[:1]:
        got = f"shapes {x.shape} and {y.shape}"
        raise InputError(f"x (N, …) and y (N,) from {module}", got, "correct the function")
    return x, y


def _split_at_random(
    part: Part, count: int, rng: np.random.Generator, *, name: str, whole: bool = False
) -> tuple[Part, Part]:
    """Return a part without, and with, rows that are drawn at random; ``whole`` if all may be."""
    rows = len(part[1])
    if count > rows or (count == rows and not whole):
        got = f"{count}"
        raise InputError(f"fewer than {rows + whole} rows for {name}", got, "ask for fewer, or name a file of its own")
    # sorted: the rows of either part keep the order of the file
    order = rng.permutation(rows)
    keep, taken = np.sort(order[count:]), np.sort(order[:count])
    return (part[0][keep], part[1][keep]), (part[0][taken], part[1][taken])


def _classes_and_indices(labels: Mapping[str, Array]) -> tuple[list[str], dict[str, Tensor]]:
    """Return the classes, in order, and every split's labels as their indices."""
    for name, values in labels.items():
        whole = values.dtype.kind in "iub" or is_text(values) or (values.dtype.kind == "f" and (values % 1 == 0).all())
        if values.ndim != 1 or not whole:
            raise InputError(f"labels (N,) as whole numbers or names in {name}", f"{values.dtype}", "correct them")
    classes: NDArray[Any] = np.unique(np.concatenate([np.asarray(values) for values in labels.values()]))
    if len(classes) < 2:
        raise InputError("labels of two classes at least", f"{len(classes)}", "check the column of labels")
    return list(map(str, classes)), {
        name: torch.from_numpy(np.searchsorted(classes, values)) for name, values in labels.items()
    }


def _feature_tensor(values: Array, name: str) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise InputError(f"features of numbers in {name}", f"{values.dtype}", "convert them")
    found = torch.from_numpy(np.array(values))
    found = found if found.dtype == torch.int64 else found.to(torch.float32)  # int64: tokens
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise InputError(f"finite features in {name}", "NaN or infinity", "fill or drop them")
    return found
