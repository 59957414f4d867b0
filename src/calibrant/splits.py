"""Predictions in files: the splits a file holds, loaded and saved (npz, safetensors, parquet; never pickle)."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from calibrant._check import as_tensor, check_labels
from calibrant._files import Array, read_arrays, write_arrays
from calibrant.errors import FileFormatError, InputError
from calibrant.predictions import BinaryPairs, Predictions

__all__ = ["load_predictions", "load_splits", "save_predictions"]

UNNAMED = "all"
_KINDS = ("logits", "probs", "conf")
_NAMES = {"labels": ("labels", "label"), "groups": ("groups", "group"), "pred": ("pred",), "decision": ("decision",)}


def load_splits(
    path: str | os.PathLike[str], *, class_dim: int = 1, ignore_index: int | None = None
) -> dict[str, Predictions | BinaryPairs]:
    """Load every split of a file.

    Args:
        path: A ``.npz``, ``.safetensors`` or ``.parquet`` file with ``logits`` or ``probs`` and ``labels``; or
            ``val_logits``, ``val_labels``, ``test_logits``, ``test_labels`` (any split name may stand before the
            underscore); or ``conf``, ``pred``, ``label``. ``groups`` and ``decision`` may be beside them.
        class_dim: The class axis of logits or probabilities with more than two, such as (N, K, H, W) or (N, T, K);
            they are flattened to one row a position, and ``groups`` (N,) repeated over the positions;
            where there are none, each sample is a group.
        ignore_index: Rows with this label are dropped; None keeps all.

    Returns:
        Split name → predictions; a file's one unnamed split is called "all".

    Raises:
        FileFormatError: If the file cannot be read or holds no predictions.
        InputError: If what it holds is not valid; the split is named.
    """
    arrays = read_arrays(path)
    axes = {"class_dim": class_dim, "ignore_index": ignore_index}
    splits: dict[str, Predictions | BinaryPairs] = {}
    for name in arrays:
        prefix, _, kind = name.rpartition("_")
        if kind in _KINDS and (prefix or name in _KINDS):
            splits[prefix or UNNAMED] = _load_split(arrays, prefix, kind, path, axes)
    if not splits:
        raise FileFormatError(
            f"expected arrays named logits, probs or conf (val_logits, test_logits …), got {sorted(arrays)} in {path}; "
            "rename them"
        )
    return splits


def load_predictions(
    path: str | os.PathLike[str], split: str = "test", *, class_dim: int = 1, ignore_index: int | None = None
) -> Predictions | BinaryPairs:
    """Load one split of a file; a file's one unnamed split is whichever is asked for.

    Args:
        path: As in ``load_splits``.
        split: Its name.
        class_dim: As in ``load_splits``.
        ignore_index: As in ``load_splits``.

    Returns:
        Predictions, or BinaryPairs for files that hold top-label confidences only.

    Raises:
        FileFormatError: If the file cannot be read or has no such split.
    """
    splits = load_splits(path, class_dim=class_dim, ignore_index=ignore_index)
    chosen = splits.get(split, splits.get(UNNAMED))
    if chosen is None:
        raise FileFormatError(f"expected the split {split!r}, got only {sorted(splits)} in {path}; name one of these")
    return chosen


def save_predictions(path: str | os.PathLike[str], splits: Mapping[str, Predictions | BinaryPairs]) -> None:
    """Save splits in the layout that ``load_splits`` reads, atomically; the suffix names the format.

    Args:
        path: Ends in ``.npz``, ``.safetensors`` or ``.parquet`` (the last holds one unnamed split).
        splits: Split name → predictions; "all" is saved without a name.
    """
    if str(path).endswith(".parquet") and set(splits) != {UNNAMED}:
        raise InputError(f"expected one unnamed split for parquet, got {sorted(splits)}; write .npz or .safetensors")
    arrays: dict[str, Array] = {}
    for name, data in splits.items():
        prefix = "" if name == UNNAMED else f"{name}_"
        for field, values in _columns(data, singular=str(path).endswith(".parquet")).items():
            arrays[prefix + field] = values.detach().cpu().contiguous().numpy()
    write_arrays(path, arrays)


def _columns(data: Predictions | BinaryPairs, *, singular: bool) -> dict[str, torch.Tensor]:
    if isinstance(data, BinaryPairs):
        if data.predicted is None or data.labels is None:
            raise InputError("expected top-label pairs with classes, got bare pairs; make them with from_top_label")
        columns = {"conf": data.p, "pred": data.predicted, "label": data.labels, "groups": data.groups}
    else:
        kind = "logits" if data.probs is None else "probs"
        values = data.logits if data.probs is None else data.probs
        values = values.float() if values.dtype == torch.bfloat16 else values
        label = "label" if singular else "labels"
        columns = {kind: values, label: data.labels, "groups": data.groups, "decision": data.decision}
    return {name: values for name, values in columns.items() if values is not None}


def _load_split(
    arrays: Mapping[str, Array], prefix: str, kind: str, path: str | os.PathLike[str], axes: Mapping[str, Any]
) -> Predictions | BinaryPairs:
    stem = f"{prefix}_" if prefix else ""

    def find(field: str) -> Array | None:
        return next((arrays[stem + name] for name in _NAMES[field] if stem + name in arrays), None)

    values, labels, groups = arrays[stem + kind], find("labels"), find("groups")
    if groups is None and values.ndim > 2 and axes["class_dim"] != 0:
        groups = np.arange(values.shape[0])  # positions of one image or sequence do not vary independently
    try:
        if kind == "conf":
            predicted = find("pred")
            if predicted is None or labels is None:
                raise InputError(f"expected {stem}pred and {stem}label beside {stem}conf, got neither or one; add them")
            return BinaryPairs.from_top_label(values, predicted, labels, groups=groups)
        if kind == "probs":
            return Predictions.from_probs(values, labels, groups=groups, **axes)
        found = Predictions.from_logits(values, labels, groups=groups, **axes)
        return _with_decision(found, find("decision"))
    except InputError as error:
        where = f"{path}, split {prefix!r}" if prefix else f"{path}"
        raise InputError(f"{where}: {error}") from error


def _with_decision(predictions: Predictions, decision: Array | None) -> Predictions:
    if decision is None:
        return predictions
    checked = check_labels(as_tensor(decision, name="decision"), rows=len(predictions), classes=predictions.classes)
    return Predictions(predictions.logits, predictions.labels, predictions.groups, checked)
