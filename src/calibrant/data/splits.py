"""Load and save the splits of prediction files (npz, safetensors, parquet; never pickle)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from calibrant._core.check import as_tensor, check_labels
from calibrant._core.files import Array, write_arrays
from calibrant._core.paths import as_path, shown
from calibrant.data.formats import Layout, read_named, two_columns
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.data.record import WEIGHT_NAMES, beside_stored, is_beside, stored_beside
from calibrant.errors import FileFormatError, InputError, Remedy

__all__ = ["load_predictions", "load_splits", "read", "save_predictions"]

UNNAMED = "all"
_KINDS = ("logits", "probs", "conf")
_STALE = [
    "logits",
    "probs",
    "conf",
    "pred",
    "confidence",
    "prediction",
    "predictions",
    "predicted",
    "correct",
    "decision",
]
_NAMELESS_WEIGHTS = {"weights", "weight", "sample_weight", "sample_weights"}  # frequency or sampling weights?
_SPELLINGS = {"validation": "val", "valid": "val"}
_SYNONYMS = (
    ("val", "dev", "calibration"),
    ("test", "eval", "holdout"),
)  # names for one purpose, which may also be distinct splits
_NAMES = {
    "labels": ("labels", "label", "label_ids"),
    "groups": ("groups", "group"),
    "pred": ("pred",),
    "decision": ("decision",),
    "weights": WEIGHT_NAMES,
}


def load_splits(
    path: str | os.PathLike[str], *, class_dim: int = 1, ignore_index: int | None = None
) -> dict[str, Predictions | BinaryPairs]:
    """Load every split of a file.

    Args:
        path: A file of any format that ``read`` takes, with ``logits`` or ``probs`` and ``labels``; or
            ``val_logits``, ``val_labels``, ``test_logits``, ``test_labels`` (any split name may stand before the
            underscore); or ``conf``, ``pred``, ``label``. Optional arrays are ``groups``, ``decision``,
            ``frequency_weights`` or ``sampling_weights``, and features named ``feature:region``. For other names see ``read``.
        class_dim: The class axis of logits or probabilities with more than two, such as (N, K, H, W) or (N, T, K);
            they are flattened to one row per position, and ``groups`` (N,) are repeated over the positions;
            without ``groups`` each sample becomes a group.
        ignore_index: Rows with this label are dropped; None keeps all.

    Returns:
        Split name → predictions; a split without a name is called "all".

    Raises:
        FileFormatError: If the file cannot be read, holds no predictions, or is ambiguous: a split with both ``logits`` and
            ``probs``, ``label`` and ``labels``, or two spellings of one split's name.
        InputError: If its arrays are not valid; the message names the split.
    """
    return splits_of(read_named(path).arrays, path, class_dim=class_dim, ignore_index=ignore_index)


def load_predictions(
    path: str | os.PathLike[str], split: str = "test", *, class_dim: int = 1, ignore_index: int | None = None
) -> Predictions | BinaryPairs:
    """Load one split of a file; the split of a file without split names is returned under any name.

    Args:
        path: As in ``load_splits``.
        split: Its name; "val" also finds "validation", "valid", "dev" or "calibration", and "test" also "eval" or
            "holdout", if the file has exactly one of them.
        class_dim: As in ``load_splits``.
        ignore_index: As in ``load_splits``.

    Returns:
        Predictions, or BinaryPairs for files that hold top-label confidences only.

    Raises:
        FileFormatError: If the file cannot be read or has no such split.
    """
    return pick_split(load_splits(path, class_dim=class_dim, ignore_index=ignore_index), split, path)


def read(
    path: str | os.PathLike[str] | None = None,
    *,
    logits: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    kind: str | None = None,
    split: str | None = None,
    normalize: bool = False,
    class_names: Sequence[str] | None = None,
    on: str | None = None,
    positive: str | float | None = None,
) -> Predictions | BinaryPairs:
    """Return the predictions in a file, whatever its format.

    Args:
        path: A ``.npz``, ``.safetensors``, ``.npy``, ``.pt``, ``.csv``, ``.tsv``, ``.jsonl``, ``.json``, ``.parquet``,
            ``.arrow`` or ``.feather`` file, or a folder of ``.npy`` files or of tables.
        logits: Instead of ``path``: a file that holds one array of logits; pass ``labels`` with it.
        labels: A file that holds the labels, if the file of the scores does not: ``.npy``, a table, or text, one label per line.
        columns: The class columns of a table: one name per class, or a pattern such as ``"p_*"`` in the order of the file;
            or one column that holds lists, or the probability of class 1.
        label: The column of the labels, if it is not called ``label``.
        kind: "logits" or "probs": what the columns, or an array whose name does not say it, hold.
        split: Which split; None requires that there is only one.
        normalize: Divide rows of rounded probabilities by their sums, which must lie within 0.05 of 1.
        class_names: The classes in the order of the scores, for labels that are text; not needed if columns are named after
            the classes.
        on: The column that names each row in both files, where ``labels`` is one; found if left out: rows are joined by a
            column that both have and that names each row once, and by position only where there is none.
        positive: The value of the label whose probability, or logit, one score a row is: ``"yes"``.

    Raises:
        FileFormatError: If the file cannot be read, or its names do not say what it holds; the message names the arguments
            to pass.
        InputError: If its arrays are not valid, or an argument has no effect on this file.

    Examples:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "scores.csv")
        >>> _ = file.write_text("p_cat,p_dog,truth\\n0.9,0.1,cat\\n0.3,0.7,cat\\n")
        >>> read(file, columns="p_*", label="truth", kind="probs").correct
        tensor([ True, False])
    """
    if (path is None) == (logits is None):
        raise InputError("a file as path, or logits=", "both or neither", "name one")
    if logits is not None:
        if kind not in (None, "logits"):
            raise InputError(f"logits in {shown(as_path(logits))}", f"kind={kind!r}", "pass it as path")
        path, kind = logits, "logits"
    layout = Layout.of(
        columns=columns,
        label=label,
        kind=kind,
        labels=labels,
        normalize=normalize,
        class_names=class_names,
        on=on,
        positive=positive,
    )
    place = as_path(path)
    splits = splits_of(read_named(place, layout).arrays, place)
    if split is None and len(splits) > 1:
        raise InputError(
            "one split",
            f"{sorted(splits)} in {shown(place)}",
            Remedy("name one by split", command="name one by --split"),
        )
    return next(iter(splits.values())) if split is None else pick_split(splits, split, place)


def pick_split(
    splits: Mapping[str, Predictions | BinaryPairs], split: str, path: str | os.PathLike[str]
) -> Predictions | BinaryPairs:
    """Return the split called ``split``, or the unnamed split.

    Raises:
        InputError: If ``split`` is not a string.
        FileFormatError: If there is no such split.
    """
    return splits[pick_name(splits, split, path)]


def pick_name(splits: Iterable[str], split: str, path: str | os.PathLike[str]) -> str:
    """Return which of the names ``splits`` matches ``split``, or the unnamed split's.

    Raises:
        InputError: If ``split`` is not a string.
        FileFormatError: If there is no such split.
    """
    if not isinstance(split, str):
        raise InputError("split as a name", f"{type(split).__name__}", f"name one of {sorted(splits)}")
    found = find_split(splits, split)
    if found is None:
        raise FileFormatError(f"the split {split!r}", f"only {sorted(splits)} in {shown(path)}", "name one of these")
    return found


def find_split(names: Iterable[str], split: str) -> str | None:
    """Return which of ``names`` matches ``split``: the name itself, another spelling, a synonym, or the unnamed one; or None.

    Raises:
        InputError: If ``split`` is not among them and two are synonyms of it.
    """
    known = {canonical_split(name): name for name in names}
    requested = canonical_split(split)
    if requested in known or UNNAMED in known:
        return known.get(requested, known.get(UNNAMED))
    synonyms = [known[name] for group in _SYNONYMS if requested in group for name in group if name in known]
    if len(synonyms) > 1:
        raise InputError(f"the split {split!r}", f"{' and '.join(map(repr, synonyms))}", "name the one that is meant")
    return synonyms[0] if synonyms else None


def canonical_split(name: str) -> str:
    """Return the canonical name of a split: "Validation", "valid" and "val" are one."""
    plain = name.strip().casefold()
    return _SPELLINGS.get(plain, plain)


def splits_of(
    arrays: Mapping[str, Array], path: str | os.PathLike[str], *, class_dim: int = 1, ignore_index: int | None = None
) -> dict[str, Predictions | BinaryPairs]:
    """Return the splits among the arrays of a file: ``load_splits`` for a file that has been read."""
    axes = {"class_dim": class_dim, "ignore_index": ignore_index}
    prefixes = split_prefixes(arrays, path)
    return {name: _load_split(arrays, prefix, path, axes) for name, prefix in prefixes.items()}


def split_prefixes(names: Iterable[str], path: str | os.PathLike[str]) -> dict[str, str]:
    """Return split name → prefix of its arrays' names, such as "val_" of "val_logits".

    Raises:
        FileFormatError: If there are no splits, or the names are ambiguous.
    """
    listed = list(names)
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for name in listed:
        if is_beside(name):
            continue
        stem, kind = _prefix_and_kind(name)
        if kind not in _KINDS or stem in spelled.values():
            continue
        split = stem.removesuffix("_") or UNNAMED
        one = canonical_split(split)
        if one in spelled:
            raise _ambiguous([spelled[one] + kind, name], path, "keep one spelling of each split")
        found[split], spelled[one] = stem, stem
        refuse_ambiguous(listed, stem, path)
    if not found:
        raise FileFormatError(
            "arrays named logits, probs or conf (val_logits, test_logits …)",
            f"{sorted(listed)} in {shown(path)}",
            "rename them",
        )
    return found


def stale_names(names: Iterable[str], prefix: str) -> list[str]:
    """Return the arrays of a split that calibration makes out of date: its scores, decisions and confidences."""
    return [name for name in names if name.startswith(prefix) and name.removeprefix(prefix) in _STALE]


def _prefix_and_kind(name: str) -> tuple[str, str]:
    """Return ("val_", "logits") for "val_logits", and ("", "logits") for "logits"."""
    stem, bar, kind = name.rpartition("_")
    return (stem + bar, kind) if stem else ("", name)


def refuse_ambiguous(names: Iterable[str], prefix: str, path: str | os.PathLike[str]) -> None:
    """Raise ``FileFormatError`` if a split has two arrays of one meaning, or weights whose name does not say of which kind."""
    fields = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    known = {one for meanings in (_KINDS, *_NAMES.values()) for one in meanings}
    for one in sorted(fields):
        if one not in known and one.casefold() in known & fields:
            raise _ambiguous([prefix + one.casefold(), prefix + one], path, "keep the one that is meant")
    close = {name.rstrip("s") for name in (*_NAMELESS_WEIGHTS, *WEIGHT_NAMES)}
    if nameless := sorted(one for one in fields if one.casefold().rstrip("s") in close and one not in WEIGHT_NAMES):
        raise FileFormatError(
            "weights named frequency_weights or sampling_weights",
            f"{prefix + nameless[0]} in {shown(path)}",
            (
                "name the array or column by what it holds, since intervals differ: counts of repeated rows, or "
                "inverse probabilities; or remove it"
            ),
        )
    for meanings in (_KINDS, *_NAMES.values()):
        if len(both := [prefix + one for one in meanings if one in fields]) > 1:
            raise _ambiguous(both, path, "keep the one that is meant")


def _ambiguous(names: Iterable[str], path: str | os.PathLike[str], remedy: str) -> FileFormatError:
    return FileFormatError("one array of each meaning", f"{' and '.join(names)} in {shown(path)}", remedy)


def save_predictions(path: str | os.PathLike[str], splits: Mapping[str, Predictions | BinaryPairs]) -> None:
    """Save splits in the layout that ``load_splits`` reads, atomically; the suffix names the format.

    Args:
        path: Ends in ``.npz``, ``.safetensors`` or ``.parquet`` (the last holds one unnamed split).
        splits: Split name → predictions; "all" is saved without a name.
    """
    as_path(path)
    if not isinstance(splits, Mapping) or not splits:
        raise InputError("splits as a dict of name → Predictions", f"{type(splits).__name__}", "pass {'test': data}")
    for name, data in splits.items():
        if not isinstance(name, str) or not name:
            raise InputError("the names of splits as text", f"{name!r}", "name each, as 'test'")
        if not isinstance(data, Predictions | BinaryPairs):
            raise InputError(
                f"Predictions for the split {name!r}", f"{type(data).__name__}", "make it with from_logits"
            )
    _refuse_spellings(splits)
    if str(path).endswith(".parquet") and set(splits) != {UNNAMED}:
        raise InputError("one unnamed split for parquet", f"{sorted(splits)}", "write .npz or .safetensors")
    arrays: dict[str, Array] = {}
    for name, data in splits.items():
        prefix = "" if name == UNNAMED else f"{name}_"
        for field, values in _columns(data, singular=str(path).endswith(".parquet")).items():
            arrays[prefix + field] = values.detach().cpu().contiguous().numpy()
        for field, column in stored_beside(data, text=not str(path).endswith(".safetensors")).items():
            arrays[prefix + field] = column
    write_arrays(path, arrays)


def _columns(data: Predictions | BinaryPairs, *, singular: bool) -> dict[str, torch.Tensor]:
    if isinstance(data, BinaryPairs):
        if data.predicted is None or data.labels is None:
            raise InputError("top-label pairs with classes", "bare pairs", "make them with from_top_label")
        columns = {"conf": data.p, "pred": data.predicted, "label": data.labels, "groups": data.groups}
    else:
        kind = "logits" if data.given_probs is None else "probs"
        values = data.logits if data.given_probs is None else data.given_probs
        values = values.float() if values.dtype == torch.bfloat16 else values
        label = "label" if singular else "labels"
        columns = {kind: values, label: data.labels, "groups": data.groups, "decision": data.decision}
    return {name: values for name, values in columns.items() if values is not None}


def _refuse_spellings(splits: Mapping[str, Any]) -> None:
    seen: dict[str, str] = {}
    for name in splits:
        other = seen.setdefault(canonical_split(name), name)
        if other != name:
            raise InputError("distinct splits", f"{other!r} and {name!r}, which are one", "rename one")


def _load_split(
    arrays: Mapping[str, Array], stem: str, path: str | os.PathLike[str], axes: Mapping[str, Any]
) -> Predictions | BinaryPairs:
    kind = next(kind for kind in _KINDS if stem + kind in arrays)

    def find(field: str) -> Array | None:
        return next((arrays[stem + name] for name in _NAMES[field] if stem + name in arrays), None)

    values, labels, groups, decision = arrays[stem + kind], find("labels"), find("groups"), find("decision")
    if groups is None and values.ndim > 2 and axes["class_dim"] != 0:
        groups = np.arange(values.shape[0])  # positions of one image or sequence do not vary independently
    prefix = stem.removesuffix("_")
    where = f"{shown(path)}, split {prefix!r}" if prefix else shown(path)
    try:
        beside = beside_stored(arrays, stem)
        if kind == "conf":
            return _pairs(stem, values, find("pred"), labels, groups, axes, beside)
        if values.ndim == 1:  # one number per row, without a class axis: that of class 1 of two
            if axes["class_dim"] not in (1, -1):
                raise InputError(
                    f"{kind} with a class axis",
                    "one number a row",
                    Remedy("leave class_dim out", command="leave --class-dim out"),
                )
            values = two_columns(values, kind)
        make = Predictions.from_probs if kind == "probs" else Predictions.from_logits
        made = make(values, labels, groups=groups, **axes, **beside)
        return _with_decision(made, decision, labels, axes["ignore_index"])
    except InputError as error:
        raise error.at(where) from error


def _pairs(
    stem: str,
    conf: Array,
    pred: Array | None,
    label: Array | None,
    groups: Array | None,
    axes: Mapping[str, Any],
    beside: dict[str, Any],
) -> BinaryPairs:
    if pred is None or label is None:
        raise InputError(f"{stem}pred and {stem}label beside {stem}conf", "neither or one", "add them")
    if axes["class_dim"] not in (1, -1):
        raise InputError("logits or probs for a class axis", "conf, which has none", "leave it out")
    if axes["ignore_index"] is not None and conf.shape == pred.shape == label.shape:
        kept = label != axes["ignore_index"]
        conf, pred, label = conf[kept], pred[kept], label[kept]
        groups = None if groups is None else groups[kept]
        if beside["weights"] is not None:
            beside["weights"] = beside["weights"][kept]
        beside["features"] = {name: values[kept] for name, values in (beside["features"] or {}).items()}
    return BinaryPairs.from_top_label(conf, pred, label, groups=groups, **beside)


def _with_decision(
    predictions: Predictions, decision: Array | None, labels: Array | None, ignore_index: int | None
) -> Predictions:
    if decision is None:
        return predictions
    flat = as_tensor(decision, name="decision").reshape(-1)
    if ignore_index is not None and labels is not None and labels.size == flat.numel():
        flat = flat[torch.from_numpy(labels.reshape(-1) != ignore_index)]
    checked = check_labels(flat, rows=len(predictions), classes=predictions.classes)
    return replace(predictions, decision=checked)
