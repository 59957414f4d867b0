"""Data of one's own: tables or arrays in files, or what a function returns, as the splits of a study."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.files import Array
from calibrant._core.paths import as_path, shown
from calibrant.data.formats import ARRAYS
from calibrant.data.formats.columns import column_array, is_text, match_columns
from calibrant.data.formats.tables import read_table
from calibrant.data.formats.tensors import read_tensors
from calibrant.errors import FileFormatError, InputError
from calibrant.study.data._requests import options_from
from calibrant.study.data._split import Fold, TensorSplit

PARTS = ("train", "val", "test")
HELD = 0.2  # of the rows of one file, for validation and for the test each
_SPELLED = {"val": ("val", "validation", "valid", "dev")}
_SPLIT_SEED = 20261123  # of the draw of the splits of one file: the test rows are the same for every seed of a study

Part = tuple[Array, Array]  # features (N, …) and labels (N,)


@dataclass(frozen=True)
class Own:
    """Where one's own data are, and how they are split.

    Args:
        files: A file or folder, or a table of them called train, val and test. Tables have a column of labels and columns of
            numbers; ``.npz`` and ``.safetensors`` hold ``features`` and ``labels``, or ``train_features``, ``val_features`` ….
        label: A table's column of labels.
        columns: Patterns of a table's columns of features; None takes every column of numbers but the label.
        validation: Rows to draw for validation; None draws a fifth.
        test: Rows to draw for the test; None draws a fifth.
        split_seed: Of that draw.
        standardize: Divide features by their deviation over the training rows, around their mean.
        content: A digest of the files, so that runs on changed files are not mistaken for those on others.
    """

    files: Any
    label: str = "label"
    columns: Any = None
    validation: int | None = None
    test: int | None = None
    split_seed: int = _SPLIT_SEED
    standardize: bool = True
    content: str = ""


def own(*, seed: int, fold: int, **options: Any) -> Fold:
    """Return the splits of files; those that are not given are drawn from the training rows.

    Args:
        seed: Has no effect: every seed of a study has the same rows in each split.
        fold: 0.
        options: The fields of ``Own``.

    Raises:
        InputError: If the files name no training rows, or their parts do not fit together.
        FileFormatError: If a file cannot be read.
    """
    given = options_from(Own, options, name="own")
    told = {name: getattr(given, name) for name in ("files", "label", "columns", "content")}
    parts = dict(_parts(json.dumps(told, sort_keys=True, default=str)))
    counts = {"test": given.test, "val": given.validation}
    return fold_of(parts, counts=counts, split_seed=given.split_seed, standardize=given.standardize)


def fold_of(
    parts: Mapping[str, Part],
    *,
    counts: Mapping[str, int | None],
    split_seed: int = _SPLIT_SEED,
    standardize: bool = False,
) -> Fold:
    """Return splits of their features and labels; what is left out is drawn from the training rows.

    Args:
        parts: Features (N, …) and labels (N,) of "train" (or "all"), and possibly of "val" and "test".
        counts: Rows to draw for "test" and "val"; None draws a fifth.
        split_seed: Of that draw.
        standardize: As in ``own``.
    """
    parts = {"train" if name == "all" else name: part for name, part in parts.items()}
    rng = np.random.default_rng(split_seed)
    fifth = max(1, round(HELD * len(parts["train"][1])))
    for name, count in counts.items():
        if name not in parts:
            parts["train"], parts[name] = _drawn(parts["train"], fifth if count is None else count, rng, name=name)
    names, coded = _coded({name: part[1] for name, part in parts.items()})
    inputs = {name: _floats(part[0], name) for name, part in parts.items()}
    if standardize and inputs["train"].is_floating_point():
        deviation, mean = torch.std_mean(inputs["train"], dim=0, correction=0)
        inputs = {name: (values - mean) / deviation.clamp_min(1e-12) for name, values in inputs.items()}
    shapes = {tuple(values.shape[1:]) for values in inputs.values()}
    if len(shapes) != 1:
        raise InputError("features of one shape in every split", f"{sorted(shapes)}", "correct the files")
    train, held, tested = (TensorSplit(inputs[name], coded[name]) for name in PARTS)
    sizes = {"classes": len(names), "inputs": int(np.prod(next(iter(shapes))))}
    return Fold(train=train, validation=held, test=tested, sizes=sizes)


def sizes_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the sizes that a network needs, and the shape of one sample; the data are read, once."""
    found = own(seed=0, fold=0, **options)
    assert isinstance(found.train, TensorSplit)
    return dict(found.sizes), tuple(found.train.inputs.shape[1:])


@lru_cache(maxsize=4)
def _parts(options: str) -> tuple[tuple[str, Part], ...]:
    """Return split name → features and labels; "all" where a file is one split."""
    given = json.loads(options)
    files = given["files"]
    if isinstance(files, str):
        place = as_path(files, name="files")
        inner = {child.name: child for child in place.iterdir() if child.is_dir()} if place.is_dir() else {}
        found = {name: inner[one] for name in PARTS for one in _SPELLED.get(name, (name,)) if one in inner}
        return tuple(_read_all(found or {"all": place}, given).items())
    if not isinstance(files, Mapping) or "train" not in files or set(files) - set(PARTS):
        raise InputError("files as a path, or as train, val and test", f"{files!r}", "name the file of train at least")
    return tuple(_read_all({name: as_path(one, name=f"files.{name}") for name, one in files.items()}, given).items())


def _read_all(files: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for name, place in files.items():
        if place.suffix.lower() in ARRAYS:
            arrays = read_tensors(place)
            prefixes = {one: f"{one}_" for one in PARTS if f"{one}_features" in arrays} or {name: ""}
            found |= {one: _of_arrays(arrays, prefix, place) for one, prefix in prefixes.items()}
        else:
            found[name] = _of_table(place, given["label"], given["columns"])
    return found


def _of_arrays(arrays: Mapping[str, Array], prefix: str, place: Path) -> Part:
    missing = [prefix + name for name in ("features", "labels") if prefix + name not in arrays]
    if missing:
        got = f"{', '.join(sorted(arrays))} in {shown(place)}"
        raise FileFormatError("arrays named features and labels (train_features …)", got, "rename them")
    return arrays[prefix + "features"], arrays[prefix + "labels"]


def _of_table(place: Path, label: str, columns: Any) -> Part:
    import pyarrow as pa

    table = read_table(place)
    names = list(table.column_names)
    if label not in names:
        raise InputError(f"the label {label!r} in {shown(place)}", ", ".join(names[:12]), 'write label = "…" in [data]')
    if columns is None:
        numbers = [one.name for one in table.schema if pa.types.is_floating(one.type) or pa.types.is_integer(one.type)]
        chosen = [name for name in numbers if name != label]
    else:
        chosen, _ = match_columns([columns] if isinstance(columns, str) else list(columns), names, place)
    if not chosen:
        raise InputError(f"columns of numbers in {shown(place)}", ", ".join(names[:12]), "name them by columns")
    parts = [column_array(table.column(name), name, place) for name in chosen]
    if wrong := next((name for name, part in zip(chosen, parts, strict=True) if part.dtype.kind not in "fiub"), None):
        raise InputError(f"numbers in the features of {shown(place)}", f"text in {wrong!r}", "name others by columns")
    return np.stack(parts, axis=1).astype(np.float32), column_array(table.column(label), label, place)


def own_names(path: str) -> bool:
    """Say whether a file of arrays has the names that are read here: features, or train_features."""
    place = Path(path)
    return place.is_file() and not {"features", "train_features"}.isdisjoint(read_tensors(place))


def fold_of_function(found: Mapping[str, Any], module: str) -> Fold:
    """Return the splits of what a function returned: {"train": (x, y), "val": …, "test": …} of arrays or of Datasets.

    Raises:
        InputError: If it is another dict, or its parts do not fit together.
    """
    if "train" not in found or set(found) - set(PARTS):
        wanted = f'{{"train": (x, y), "val": …, "test": …}} from {module}'
        raise InputError(wanted, f"{sorted(found)}", "return such a dict")
    return fold_of({name: _pair(part, module) for name, part in found.items()}, counts={"test": None, "val": None})


def _pair(part: Any, module: str) -> Part:
    if not isinstance(part, Sequence) or len(part) != 2 or isinstance(part, torch.utils.data.Dataset):
        items = [part[index] for index in range(len(part))]  # a Dataset of (x, y)
        part = torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])
    x, y = (np.asarray(one) for one in part)
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise InputError(
            f"x (N, …) and y (N,) from {module}", f"shapes {x.shape} and {y.shape}", "correct the function"
        )
    return x, y


def _drawn(part: Part, count: int, rng: np.random.Generator, *, name: str) -> tuple[Part, Part]:
    """Return a part without, and with, rows that are drawn at random."""
    rows = len(part[1])
    if count >= rows:
        raise InputError(f"fewer than {rows} rows for {name}", f"{count}", "ask for fewer, or name a file of its own")
    order = rng.permutation(rows)
    keep, taken = np.sort(order[count:]), np.sort(order[:count])
    return (part[0][keep], part[1][keep]), (part[0][taken], part[1][taken])


def _coded(labels: Mapping[str, Array]) -> tuple[list[str], dict[str, Tensor]]:
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


def _floats(values: Array, name: str) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise InputError(f"features of numbers in {name}", f"{values.dtype}", "convert them")
    found = torch.from_numpy(np.array(values))
    found = found if found.dtype == torch.int64 else found.to(torch.float32)  # int64: tokens
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise InputError(f"finite features in {name}", "NaN or infinity", "fill or drop them")
    return found
