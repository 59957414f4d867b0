"""Predictions of several labels a row in files: arrays (N, L), or tables of one column of scores and one of labels for each label.

In ``.npz`` and ``.safetensors`` files lie ``logits`` or ``probs`` (N, L), ``labels`` (N, L) of 1, 0 and -1 (missing), and ``label_names``;
``val_logits`` and so on in files of several splits. Tables have columns ``logits:cat`` or ``probs:cat`` and ``labels:cat``. Groups, weights
and features are named as for one class a row.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import as_tensor, check_choice, refuse, shown
from calibrant._core.files import Array, write_arrays
from calibrant._core.paths import as_path
from calibrant._core.paths import shown as printed
from calibrant.data.formats import TABLES, write_named
from calibrant.data.formats.columns import column_array, match_columns
from calibrant.data.formats.tables import batches_of, read_table, table_files
from calibrant.data.formats.tensors import read_tensors
from calibrant.data.multilabel import MultiLabelPredictions
from calibrant.data.record import beside_stored, stored_beside
from calibrant.data.splits import pick_name, refuse_ambiguous, split_prefixes
from calibrant.errors import FileFormatError, InputError, Remedy

__all__ = ["load_multilabel", "multilabel_batches", "read_multilabel", "save_multilabel"]

_NAMES, _CODES = "label_names", "label_names_json"  # the second in formats of numbers alone: UTF-8 bytes
_WRITABLE = (".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl")


def load_multilabel(
    path: str | os.PathLike[str], *, columns: str | None = None, label: str | None = None, kind: str | None = None
) -> dict[str, MultiLabelPredictions]:
    """Load every split of a file of predictions with several labels a row.

    Args:
        path: A file of arrays or a table, or a folder of ``.npy`` files or of tables, as the head of this module describes them.
        columns: A pattern of a table's columns of scores, one a label, such as ``"p_*"``.
        label: A pattern of its columns of labels, such as ``"y_*"``; what stands for ``*`` must be the same names.
        kind: "logits" or "probs": what those columns hold.

    Returns:
        Split name → predictions; a file's one unnamed split is called "all".

    Raises:
        FileFormatError: If the file cannot be read or holds no such predictions.
        InputError: If what it holds is not valid; the split is named.
    """
    place = as_path(path)
    _check_options(columns, label, kind)
    if not (place.is_dir() and any(place.glob("*.npy"))) and (place.is_dir() or place.suffix.lower() in TABLES):
        return {"all": _of_table(read_table(place), place, columns, label, kind)}
    if columns is not None or label is not None or kind is not None:
        raise refuse(
            "columns, label and kind for a table", printed(place), "leave them out, or name the file of a table"
        )
    arrays = read_tensors(place)
    prefixes = split_prefixes(arrays, place)
    return {name: _of_arrays(arrays, prefix, place) for name, prefix in prefixes.items()}


def read_multilabel(
    path: str | os.PathLike[str],
    *,
    columns: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    split: str | None = None,
) -> MultiLabelPredictions:
    """Return the predictions with several labels a row that a file holds.

    Args:
        path: As in ``load_multilabel``.
        columns: As there.
        label: As there.
        kind: As there.
        split: Which split; None takes the one there is.

    Raises:
        FileFormatError: If the file cannot be read, or has no such split.
        InputError: If what it holds is not valid, or there are several splits and none is named.

    Examples:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "scores.csv")
        >>> _ = file.write_text("p_cat,p_dog,y_cat,y_dog\\n0.9,0.4,1,0\\n0.2,0.7,0,-1\\n")
        >>> read_multilabel(file, columns="p_*", label="y_*", kind="probs")
        MultiLabelPredictions(2 rows, 2 labels, labelled, 1 missing, probs)
    """
    splits = load_multilabel(path, columns=columns, label=label, kind=kind)
    if split is None and len(splits) > 1:
        raise refuse(
            "one split",
            f"{sorted(splits)} in {printed(as_path(path))}",
            Remedy("name one by split", command="name one by --split"),
        )
    return next(iter(splits.values())) if split is None else splits[pick_name(splits, split, path)]


def multilabel_batches(
    path: str | os.PathLike[str], *, columns: str | None = None, label: str | None = None, kind: str | None = None
) -> Iterator[MultiLabelPredictions]:
    """Yield the rows of a table, or of a folder of tables, in batches: any number of rows, in bounded memory.

    Args:
        path: A file or a folder of tables, not ``.json``.
        columns: As in ``load_multilabel``.
        label: As there.
        kind: As there.

    Raises:
        FileFormatError: If a file cannot be read or holds no such predictions.
        InputError: If what it holds is not valid.
    """
    import pyarrow as pa

    place = as_path(path)
    _check_options(columns, label, kind)
    names: tuple[str, ...] | None = None
    for file in table_files(place):
        for batch in batches_of(file):
            if not batch.num_rows:
                continue
            data = _of_table(pa.Table.from_batches([batch]), file, columns, label, kind)
            if names is not None and data.names != names:
                raise FileFormatError("the same labels in every file", f"others in {printed(file)}", "read them apart")
            names = data.names
            yield data


def save_multilabel(path: str | os.PathLike[str], splits: Mapping[str, MultiLabelPredictions]) -> None:
    """Save splits in the layout that ``load_multilabel`` reads, atomically; the suffix names the format.

    Args:
        path: Ends in ``.npz`` or ``.safetensors``, or in a table's suffix, which holds one split called "all".
        splits: Split name → predictions.

    Raises:
        InputError: If the splits are no predictions, or a table would hold several.
    """
    place = as_path(path)
    if not isinstance(splits, Mapping) or not splits:
        raise refuse("splits as a dict of name → predictions", type(splits).__name__, "pass {'test': data}")
    for name, data in splits.items():
        if not isinstance(name, str) or not name or not isinstance(data, MultiLabelPredictions):
            remedy = "make each with MultiLabelPredictions.from_logits"
            raise refuse("MultiLabelPredictions for each name of a split", f"{type(data).__name__}", remedy)
    suffix = place.suffix.lower()
    if suffix not in _WRITABLE:
        raise refuse(f"a path that ends in {', '.join(_WRITABLE)}", printed(place.name), "rename it")
    if suffix in TABLES:
        if set(splits) != {"all"}:
            raise refuse(f"one split called 'all' for {suffix}", str(sorted(splits)), "write .npz or .safetensors")
        write_named(place, _table_columns(splits["all"]))
        return
    arrays: dict[str, Array] = {}
    for name, data in splits.items():
        prefix = "" if name == "all" else f"{name}_"
        arrays |= {prefix + key: values for key, values in _arrays(data, text=suffix == ".npz").items()}
    write_arrays(place, arrays)


def _check_options(columns: Any, label: Any, kind: Any) -> None:
    for name, value in (("columns", columns), ("label", label)):
        if value is not None and (not isinstance(value, str) or not value):
            raise refuse(f"{name} as a pattern such as 'p_*'", shown(value), "name the columns by one")
    if kind is not None:
        check_choice(kind, name="kind", choices=("logits", "probs"))
    if columns is not None and kind is None:
        raise refuse(
            "the kind of the columns",
            "none",
            Remedy(
                "pass kind='probs', or kind='logits', to calibrant.read", command="add --kind probs, or --kind logits"
            ),
        )
    if columns is None and (label is not None or kind is not None):
        raise refuse("columns beside label and kind", "none", "name the columns of scores, such as columns='p_*'")


def _of_table(
    table: Any, place: Path, columns: str | None, label: str | None, kind: str | None
) -> MultiLabelPredictions:
    """Return the predictions of an Arrow table."""
    names = list(table.column_names)
    refuse_ambiguous(names, "", place)
    if columns is None:
        found = next(
            (one for one in ("logits", "probs") if any(name == one or name.startswith(one + ":") for name in names)),
            None,
        )
        if found is None:
            got = ", ".join(map(str, names[:8]))
            remedy = Remedy(
                "pass columns, label and kind: columns='p_*', label='y_*', kind='probs'",
                command="add --columns 'p_*' --label 'y_*' --kind probs",
            )
            raise FileFormatError(f"columns such as logits:cat and labels:cat in {printed(place)}", got, remedy)
        kind, columns, label = found, f"{found}:*", "labels:*"
        label = label if any(name.startswith("labels:") for name in names) else None
    arrays: dict[str, Array] = {str(kind): _matrix(table, str(kind), columns, names, place)}
    chosen, parts = (["x"], ("label 0",)) if kind in names else match_columns([columns], names, place)
    lists = next((name for name in ("labels", "label") if name in names and kind in names), None)
    if lists is not None:  # one number a row, of one class, is refused with the rest
        arrays["labels"] = column_array(table.column(lists), lists, place)
    elif label is not None:
        held, own = match_columns([label], names, place)
        if sorted(own) != sorted(parts) or len(held) != len(chosen):
            got = f"{', '.join(parts[:6])} and {', '.join(own[:6])}"
            raise InputError(
                "a column of labels for each of scores", f"{got} in {printed(place)}", "rename the columns"
            )
        held = [held[own.index(part)] for part in parts]
        arrays["labels"] = np.stack([column_array(table.column(name), name, place) for name in held], axis=1)
    for name in names:
        if name.startswith("feature:") or name in ("groups", "group", "frequency_weights", "sampling_weights"):
            arrays[name] = column_array(table.column(name), name, place)
    if kind not in names:
        arrays[_NAMES] = np.array(parts)
    return _of_arrays(arrays, "", place)


def _matrix(table: Any, kind: str, columns: str, names: Iterable[str], place: Path) -> Array:
    """Return scores (N, L): of a column of lists called as their kind, or of one column a label."""
    if kind in names:
        return column_array(table.column(kind), kind, place)
    chosen, _ = match_columns([columns], list(names), place)
    parts = [column_array(table.column(name), name, place) for name in chosen]
    wrong = next((name for name, part in zip(chosen, parts, strict=True) if part.dtype.kind not in "fiu"), None)
    if wrong is not None:
        raise InputError("numbers in the columns of scores", f"text in {wrong!r} of {printed(place)}", "name others")
    return np.stack(parts, axis=1).astype(np.float64)


def _of_arrays(arrays: Mapping[str, Array], prefix: str, place: Path) -> MultiLabelPredictions:
    """Return the predictions of one split among named arrays."""
    kind = next((one for one in ("logits", "probs") if prefix + one in arrays), None)
    split = prefix.removesuffix("_")
    where = f"{printed(place)}, split {split!r}" if split else printed(place)
    if kind is None:
        raise FileFormatError("logits or probs (N, L)", "top-label confidences", "save the model's logits", place=where)
    try:
        names = _names_of(arrays, prefix)
        labels = next((arrays[prefix + one] for one in ("labels", "label") if prefix + one in arrays), None)
        groups = next((arrays[prefix + one] for one in ("groups", "group") if prefix + one in arrays), None)
        if labels is not None and labels.dtype.kind == "f" and np.array_equal(labels, np.trunc(labels)):
            labels = labels.astype(np.int64)  # what a table with gaps makes of integers
        if labels is not None and labels.dtype == object:
            raise refuse("labels as integers", "text or empty cells", "code them 1, 0, or -1 where missing")
        values = as_tensor(arrays[prefix + kind], name=kind)
        make = MultiLabelPredictions.from_logits if kind == "logits" else MultiLabelPredictions.from_probs
        return make(values, labels, names=names, groups=groups, **beside_stored(arrays, prefix))
    except FileFormatError:
        raise
    except InputError as error:
        raise error.at(where) from error


def _names_of(arrays: Mapping[str, Array], prefix: str) -> list[str] | None:
    for start in (prefix, ""):
        if start + _NAMES in arrays:
            return [str(name) for name in arrays[start + _NAMES].tolist()]
        if start + _CODES in arrays:
            try:
                found = json.loads(bytes(arrays[start + _CODES].astype(np.uint8).tolist()))
            except ValueError as error:
                raise refuse("names of labels as JSON", "others", "save the file again") from error
            return [str(name) for name in found] if isinstance(found, list) else None
    return None


def _arrays(data: MultiLabelPredictions, *, text: bool) -> dict[str, Array]:
    found = _scores_and_labels(data) | stored_beside(data, text=text)
    if data.groups is not None:
        found["groups"] = data.groups.cpu().numpy()
    if text:
        return found | {_NAMES: np.array(data.names)}
    return found | {_CODES: np.frombuffer(json.dumps(data.names).encode(), dtype=np.uint8).copy()}


def _scores_and_labels(data: MultiLabelPredictions) -> dict[str, Array]:
    kind, values = ("logits", data.logits) if data.given_probs is None else ("probs", data.given_probs)
    values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    found: dict[str, Array] = {kind: values.detach().cpu().contiguous().numpy()}
    if data.labels is not None:
        found["labels"] = data.labels.to("cpu").contiguous().numpy().astype(np.int8)
    return found


def _table_columns(data: MultiLabelPredictions) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for kind, values in _scores_and_labels(data).items():
        found |= {f"{kind}:{name}": np.ascontiguousarray(values[:, at]) for at, name in enumerate(data.names)}
    if data.groups is not None:
        found["groups"] = data.groups.cpu().numpy()
    return found | stored_beside(data, text=True)
