"""Load and save the splits of prediction files (npz, safetensors, parquet; never pickle)."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np
import torch

from calibrant._core.check import as_tensor, check_labels, refuse
from calibrant._core.constraints import Text, checked
from calibrant._core.files import Array, pa
from calibrant._core.paths import as_path, shown
from calibrant.data.formats.columns import arrays_of_table, column_array, match_columns
from calibrant.data.formats.kinds import two_columns
from calibrant.data.formats.labels import as_whole
from calibrant.data.formats.layout import NAME_KIND, TABLES, WEIGHTS, Layout, Reading, stem_and_name, suffix_of
from calibrant.data.formats.proposal import opened, several_labels
from calibrant.data.formats.reading import ROW, SPLIT, by_split, read_named
from calibrant.data.formats.tables import batches_of, read_table, table_files
from calibrant.data.formats.tensors import read_tensors
from calibrant.data.formats.writing import write_named
from calibrant.data.frames import Frame
from calibrant.data.multilabel import MISSING, MultiLabelPredictions, check_label_probs, check_sigmoid_logits
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.data.record import beside_stored, is_beside, stored_tensor, taken
from calibrant.errors import FileFormatError, InputError, Remedy

__all__ = [
    "load_multilabel",
    "load_predictions",
    "load_splits",
    "read",
    "read_multilabel",
    "save_multilabel",
    "save_predictions",
]

R = TypeVar("R")

UNNAMED = "all"
LABEL_NAMES, LABEL_CODES = "label_names", "label_names_json"  # the second in formats of numbers alone: UTF-8 bytes
LABEL_SUFFIXES = (".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl")
_KINDS = ("logits", "probs", "conf")
_STALE = {*_KINDS, "pred", "predicted", "prediction", "predictions", "confidence", "correct", "decision"}
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
    "weights": (WEIGHTS,),
}


@checked
def load_splits(
    path: str | os.PathLike[str], *, class_dim: int = 1, ignore_index: int | None = None
) -> dict[str, Predictions | BinaryPairs]:
    """Load every split of a file.

    Args:
        path: A file of any format that ``read`` takes, with ``logits`` or ``probs`` and ``labels``; or
            ``val_logits``, ``val_labels``, ``test_logits``, ``test_labels`` (any split name may stand before the
            underscore); or ``conf``, ``pred``, ``label``. Optional arrays are ``groups``, ``decision``,
            ``weights``, and features named ``feature:region``. For other names see ``read``.
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


@checked
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


@checked
def read(
    path: Any = None,
    *,
    logits: str | os.PathLike[str] | None = None,
    split: str | None = None,
    **said: Unpack[Reading],
) -> Predictions | BinaryPairs:
    """Return the predictions in a file, whatever its format.

    Args:
        path: A ``.npz``, ``.safetensors``, ``.npy``, ``.pt``, ``.csv``, ``.tsv``, ``.jsonl``, ``.json``, ``.parquet``,
            ``.arrow`` or ``.feather`` file, or a folder of ``.npy`` files or of tables; or a frame of pandas, Polars or Arrow,
            which ``Predictions.to_frame`` gives back with calibrated columns.
        logits: Instead of ``path``: a file that holds one array of logits; pass ``labels`` with it.
        split: Which split; None requires that there is only one.
        labels: A file that holds the labels, if the file of the scores does not: ``.npy``, a table, or text, one label per line.
        columns: The class columns of a table: one name per class, or a pattern such as ``"p_*"`` in the order of the file;
            or one column that holds lists, or the probability of class 1.
        label: The column of the labels, if it is not called ``label``.
        kind: "logits" or "probs": what the columns, or an array whose name does not say it, hold; "one-vs-rest": scores between
            0 and 1 of which each has a classifier of its own, divided by their sums.
        normalize: Divide rows of rounded probabilities by their sums, which must lie within 0.05 of 1.
        class_names: The classes in the order of the scores, for labels that are text; not needed if columns are named after
            the classes.
        on: The column that names each row in both files, where ``labels`` is one; found if left out: rows are joined by a
            column that both have and that names each row once, and by position only where there is none.
        positive: The value of the label whose probability, or logit, one score a row is: ``"yes"``.
        missing: "drop" leaves out rows without a label, in ``labels`` or in the file, and says how many; None refuses them.

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
        if said.get("kind") not in (None, "logits"):
            raise InputError(f"logits in {shown(as_path(logits))}", f"kind={said['kind']!r}", "pass it as path")
        path, said["kind"] = logits, "logits"
    named = read_named(path, Layout.of(**said), numbered=True)
    place = as_path(path) if isinstance(path, str | os.PathLike) else Path("the frame")
    found: Predictions | BinaryPairs = _one_split(splits_of(named.arrays, place), split, place)
    features = dict(found.features or {})
    rows = features.pop(ROW, None)
    found = replace(found, features=features or None)
    if isinstance(found, BinaryPairs):
        return found
    frame = None if named.frame is None or rows is None else named.frame[np.asarray(rows)]
    names = named.sides or (frame.names if frame is not None else ())
    return with_names(replace(found, frame=frame), names)


def with_names(rows: R, names: Sequence[str]) -> R:
    """Return rows with the names of their classes, where these are as many as their scores; others as they are."""
    if not isinstance(rows, Predictions) or len(names) != rows.classes:
        return rows
    return replace(rows, class_names=tuple(names))


class Several(TypedDict, total=False):
    """What a user may say of a table with several labels a row."""

    columns: Text | None
    label: Text | None
    kind: Literal["logits", "probs"] | None


@checked
def load_multilabel(path: str | os.PathLike[str], **said: Unpack[Several]) -> dict[str, MultiLabelPredictions]:
    """Load every split of a file of predictions with several labels a row.

    Files of arrays hold ``logits`` or ``probs`` (N, L), ``labels`` (N, L) of 1, 0 and -1 (missing), and ``label_names``;
    ``val_logits`` and so on in files of several splits. Tables have columns ``logits:cat`` or ``probs:cat`` and ``labels:cat``.
    Groups, weights and features are named as for one class a row.

    Args:
        path: A file of arrays or a table, or a folder of ``.npy`` files or of tables.
        columns: A pattern of a table's columns of scores, one a label, such as ``"p_*"``.
        label: A pattern of its columns of labels, such as ``"y_*"``; what stands for ``*`` must be the same names.
        kind: "logits" or "probs": what those columns hold.

    Returns:
        Split name → predictions; a file's one unnamed split is called "all".

    Raises:
        FileFormatError: If the file cannot be read or holds no such predictions.
        InputError: If what it holds is not valid; the split is named.
    """
    return splits_of(arrays_of_labels(path, **said), path, several=True)


def arrays_of_labels(path: str | os.PathLike[str], **said: Unpack[Several]) -> dict[str, Array]:
    """Return the arrays of a file with several labels a row, those of a table parted by its column ``split``.

    Args:
        path: As in ``load_multilabel``.
        columns: As there.
        label: As there.
        kind: As there.

    Raises:
        FileFormatError: As there.
        InputError: As there.
    """
    place = as_path(path)
    layout = LabelColumns(**said)
    if not (place.is_dir() and any(place.glob("*.npy"))) and (place.is_dir() or suffix_of(place) in TABLES):
        arrays = layout.arrays(read_table(place), place)
        names = {name: arrays.pop(name) for name in [LABEL_NAMES] if name in arrays}  # of labels, not of rows
        return by_split(arrays) | names
    if layout != LabelColumns():
        raise refuse("columns, label and kind for a table", shown(place), "leave them out, or name the file of a table")
    return read_tensors(place)


def read_label_table(path: Path, **said: Unpack[Several]) -> tuple[Frame, dict[str, Array]]:
    """Return a table with where the scores of several labels a row stand, and these.

    Labels are not read: rows without them are calibrated as others are.

    Args:
        path: The file of a table.
        columns: As in ``load_multilabel``.
        label: As there.
        kind: As there.

    Raises:
        FileFormatError: If the file is broken, or names do not say which columns are the scores.
        InputError: If the scores cannot be read as stated.
    """
    layout, table = LabelColumns(**said), read_table(path)
    kind, columns, names = layout.scores_in(table, path)
    return Frame(table, kind, columns, False, names), layout.arrays(table, path, labelled=False)


@checked
def read_multilabel(
    path: str | os.PathLike[str], *, split: str | None = None, **said: Unpack[Several]
) -> MultiLabelPredictions:
    """Return the predictions with several labels a row that a file holds.

    Args:
        path: As in ``load_multilabel``.
        split: Which split; None takes the one there is.
        columns: As in ``load_multilabel``.
        label: As there.
        kind: As there.

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
    return _one_split(load_multilabel(path, **said), split, path)


def _one_split(splits: Mapping[str, R], split: str | None, path: str | os.PathLike[str]) -> R:
    """Return the split that is named, or the only one."""
    if split is None and len(splits) > 1:
        remedy = Remedy("name one by split", command="name one by --split")
        raise InputError("one split", f"{sorted(splits)} in {shown(as_path(path))}", remedy)
    return next(iter(splits.values())) if split is None else pick_split(splits, split, path)


@checked
def multilabel_batches(path: str | os.PathLike[str], **said: Unpack[Several]) -> Iterator[MultiLabelPredictions]:
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
    place = as_path(path)
    layout, first = LabelColumns(**said), None
    doubt: InputError | None = None
    sure = False  # that scores are of the kind that is stated: all rows say it together, few can look like another by chance
    for file in table_files(place):
        for batch in batches_of(file):
            if not batch.num_rows:
                continue
            arrays = layout.arrays(pa.Table.from_batches([batch]), file)
            [data] = splits_of(arrays, file, several=True, whole=False).values()
            first = data if first is None else first
            if data.names != first.names:
                raise FileFormatError("the same labels in every file", f"others in {shown(file)}", "read them apart")
            if (data.weights is None) != (first.weights is None):
                held, got = ("no weights" if one.weights is None else "weights" for one in (first, data))
                raise FileFormatError(
                    f"{held} as in the first file", f"{got} in {shown(file)}", "give all files the same columns"
                )
            found = None if sure else _doubt_of(data, file)
            sure, doubt = sure or found is None, doubt or found
            yield data
    if doubt is not None and not sure:
        raise doubt


def _doubt_of(data: MultiLabelPredictions, file: Path) -> InputError | None:
    """Return why the scores of some rows of ``file`` look like another kind than is stated, or None."""
    try:
        if data.given_probs is None:
            check_sigmoid_logits(data.logits, unchecked_kind=False)
        else:  # twice, since a single row that sums to 1 is not refused
            check_label_probs(data.given_probs.repeat(2, 1), unchecked_kind=False)
    except InputError as error:
        return error.at(shown(file))
    return None


@dataclass(frozen=True)
class LabelColumns:
    """Which columns of a table hold the scores and labels of several labels a row.

    Args:
        columns: A pattern of the columns of scores, one a label, such as ``"p_*"``; None for ``logits:*`` or ``probs:*``.
        label: A pattern of the columns of labels, such as ``"y_*"``.
        kind: "logits" or "probs": what the columns of scores hold.
    """

    columns: str | None = None
    label: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None and self.kind is None:
            raise refuse("the kind of the columns", "none", NAME_KIND)
        if self.columns is None and (self.label is not None or self.kind is not None):
            raise refuse("columns beside label and kind", "none", "name the columns of scores, such as columns='p_*'")

    def arrays(self, table: Any, place: Path, *, labelled: bool = True) -> dict[str, Array]:
        """Return scores and labels (N, L) of an Arrow table, and what lies beside them, under the names that say what they are."""
        table = opened(table)
        names = list(table.column_names)
        refuse_ambiguous(names, "", place)
        kind, chosen, parts = self.scores_in(table, place)
        scores = arrays_of_table(table.select(chosen), Layout(columns=chosen, kind=kind), place)[0][kind]
        listed = len(chosen) == 1 and (scores.ndim == 2 or chosen == (kind,))
        arrays: dict[str, Array] = {kind: scores if listed else scores.reshape(len(scores), -1).astype(np.float64)}
        label = self._label_among(names) if labelled else None
        possible = (label, *_NAMES["labels"]) if listed and labelled else ()
        lists = next((name for name in possible if name in names), None)
        if lists is not None:  # one number a row, of one class, is refused with the rest
            arrays["labels"] = column_array(table.column(lists), lists, place)
        elif label is not None:
            held, own = match_columns([label], names, place)
            if label == "*":  # of labels that stand under their own names
                held = [name for name in held if name in parts]
                own = tuple(held)
            if sorted(own) != sorted(parts) or len(held) != len(chosen):
                got = f"{', '.join(parts[:6])} and {', '.join(own[:6])} in {shown(place)}"
                raise InputError("a column of labels for each of scores", got, "rename the columns")
            held = [held[own.index(part)] for part in parts]
            arrays["labels"] = np.stack([column_array(table.column(name), name, place) for name in held], axis=1)
        beside = [name for name in names if is_beside(name) or name in (*_NAMES["groups"], WEIGHTS, SPLIT)]
        beside = beside if labelled else []
        arrays |= {name: column_array(table.column(name), name, place) for name in beside}
        return arrays if listed else arrays | {LABEL_NAMES: np.array(parts)}

    def _label_among(self, names: Sequence[str]) -> str | None:
        """Return the pattern of the columns of labels, those that ``save_multilabel`` calls so where none is stated."""
        return "labels:*" if self.columns is None and any(name.startswith("labels:") for name in names) else self.label

    def scores_in(self, table: Any, place: Path) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return the kind of the scores, their columns, and the labels' names.

        Raises:
            FileFormatError: If neither the layout nor names, as ``save_multilabel`` has them, say which they are.
        """
        table = opened(table)
        names = list(table.column_names)
        kinds = [self.kind] if self.columns is not None else ["logits", "probs"]
        for kind in filter(None, kinds):
            if kind in names:
                return kind, (kind,), ("",)
            if self.columns is not None or any(name.startswith(kind + ":") for name in names):
                columns, parts = match_columns([self.columns or f"{kind}:*"], names, place)
                return kind, tuple(columns), parts
        remedy = Remedy(
            "pass columns, label and kind: columns='p_*', label='y_*', kind='probs'",
            command="add --columns 'p_*' --label 'y_*' --kind probs",
        )
        if (said := several_labels(table)) is not None:
            remedy = Remedy.read(**said)
        got = ", ".join(map(str, names[:8]))
        raise FileFormatError(f"columns such as logits:cat and labels:cat in {shown(place)}", got, remedy)


def pick_split(splits: Mapping[str, R], split: str, path: str | os.PathLike[str]) -> R:
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
    arrays: Mapping[str, Array], path: str | os.PathLike[str], *, several: bool = False, **axes: Any
) -> dict[str, Any]:
    """Return the splits among the arrays of a file that has been read: ``load_splits``, or ``load_multilabel`` if ``several``."""
    prefixes = split_prefixes(arrays, path)
    return {name: rows_in(arrays, prefix, path, several=several, **axes) for name, prefix in prefixes.items()}


def split_prefixes(names: Iterable[str], path: str | os.PathLike[str]) -> dict[str, str]:
    """Return split name → prefix of its arrays' names, such as "val_" of "val_logits".

    Raises:
        FileFormatError: If there are no splits, or the names are ambiguous.
    """
    listed = list(names)
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for name in listed:
        # a feature may be called feature:val_logits: what stands behind the colon names no split
        if is_beside(name):
            continue
        stem, kind = stem_and_name(name)
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


def refuse_ambiguous(names: Iterable[str], prefix: str, path: str | os.PathLike[str]) -> None:
    """Raise ``FileFormatError`` if a split has two arrays of one meaning."""
    fields = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    known = {one for meanings in (_KINDS, *_NAMES.values()) for one in meanings}
    for one in sorted(fields):
        if one not in known and one.casefold() in known & fields:
            raise _ambiguous([prefix + one.casefold(), prefix + one], path, "keep the one that is meant")
    for meanings in (_KINDS, *_NAMES.values()):
        if len(both := [prefix + one for one in meanings if one in fields]) > 1:
            raise _ambiguous(both, path, "keep the one that is meant")


def _ambiguous(names: Iterable[str], path: str | os.PathLike[str], remedy: str) -> FileFormatError:
    return FileFormatError("one array of each meaning", f"{' and '.join(names)} in {shown(path)}", remedy)


@checked
def save_predictions(path: str | os.PathLike[str], splits: Mapping[str, Predictions | BinaryPairs]) -> None:
    """Save splits in the layout that ``load_splits`` reads, atomically; the suffix names the format.

    Args:
        path: Ends in ``.npz``, ``.safetensors`` or ``.parquet`` (the last holds one unnamed split).
        splits: Split name → predictions; "all" is saved without a name.
    """
    _save(path, splits, (".npz", ".safetensors", ".parquet"), (Predictions, BinaryPairs))


@checked
def save_multilabel(path: str | os.PathLike[str], splits: Mapping[str, MultiLabelPredictions]) -> None:
    """Save splits in the layout that ``load_multilabel`` reads, atomically; the suffix names the format.

    Args:
        path: Ends in ``.npz`` or ``.safetensors``, or in a table's suffix, which holds one split called "all".
        splits: Split name → predictions.

    Raises:
        InputError: If the splits are no predictions, or a table would hold several.
    """
    _save(path, splits, LABEL_SUFFIXES, (MultiLabelPredictions,))


def _save(path: str | os.PathLike[str], splits: Any, suffixes: Sequence[str], kinds: tuple[type, ...]) -> None:
    place = as_path(path)
    if place.suffix.lower() not in suffixes:
        expected = f"a file named {', '.join('*' + one for one in suffixes)}"
        raise FileFormatError(expected, f"{shown(place.name)!r}", "name it so")
    write_named(place, _stored(splits, place, kinds))


def _stored(splits: Any, place: Path, kinds: tuple[type, ...]) -> dict[str, Array]:
    """Return the arrays, or columns, of splits: those of "all" without a prefix."""
    held = splits.items() if isinstance(splits, Mapping) else ()
    wrong = [one for one in held if not isinstance(one[0], str) or not one[0] or not isinstance(one[1], kinds)]
    if wrong or not held:
        expected = f"splits as a dict of name → {' or '.join(kind.__name__ for kind in kinds)}"
        got = f"{wrong[0][0]!r} → {type(wrong[0][1]).__name__}" if wrong else type(splits).__name__
        raise refuse(expected, got, "pass {'test': data}, made with from_logits or a sibling")
    spelled: dict[str, str] = {}
    for name in splits:
        # saved as two, "val" and "validation" would be refused as ambiguous by every reader of the file
        if (other := spelled.setdefault(canonical_split(name), name)) != name:
            raise InputError("distinct splits", f"{other!r} and {name!r}, which are one", "rename one")
    suffix = place.suffix.lower()
    if suffix in TABLES and set(splits) != {UNNAMED}:
        raise InputError(f"one split called 'all' for {suffix}", f"{sorted(splits)}", "write .npz or .safetensors")
    found: dict[str, Array] = {}
    for name, data in splits.items():
        prefix = "" if name == UNNAMED else f"{name}_"
        found |= {prefix + key: values for key, values in _arrays(data, suffix).items()}
    return found


def _arrays(data: Predictions | BinaryPairs | MultiLabelPredictions, suffix: str) -> dict[str, Array]:
    """Return one split as the arrays of a file, or as the columns of a table."""
    text = suffix != ".safetensors"
    if isinstance(data, BinaryPairs):
        if data.decision is None or data.labels is None:
            raise InputError("top-label pairs with classes", "bare pairs", "make them with from_top_label")
        found = {"conf": stored_tensor(data.p)} | data.stored(text=text, label="label")
        found["pred"] = found.pop("decision")
        return found
    kind, values = ("logits", data.logits) if data.given_probs is None else ("probs", data.given_probs)
    label = "label" if suffix == ".parquet" and isinstance(data, Predictions) else "labels"
    found = {kind: stored_tensor(values)} | data.stored(text=text, label=label)
    if isinstance(data, Predictions):
        return found
    if data.labels is not None:
        # −1, 0 or 1 for every score: as int64 the labels would be twice the size of float32 scores
        found["labels"] = found["labels"].astype(np.int8)
    if suffix in TABLES:  # one column of scores and one of labels for each label
        for name in {kind, "labels"} & found.keys():
            columns = found.pop(name)
            found |= {f"{name}:{one}": np.ascontiguousarray(columns[:, at]) for at, one in enumerate(data.names)}
    elif text:
        found[LABEL_NAMES] = np.array(data.names)
    else:
        found[LABEL_CODES] = np.frombuffer(json.dumps(data.names).encode(), dtype=np.uint8).copy()
    return found


def _class_names_of(arrays: Mapping[str, Array], prefix: str) -> list[str] | None:
    """Return the names of labels that a file holds, for one split or for all."""
    for start in (prefix, ""):
        if start + LABEL_NAMES in arrays:
            return [str(name) for name in arrays[start + LABEL_NAMES].tolist()]
        if start + LABEL_CODES in arrays:
            try:
                found = json.loads(bytes(arrays[start + LABEL_CODES].astype(np.uint8).tolist()))
            except ValueError as error:
                raise refuse("names of labels as JSON", "others", "save the file again") from error
            return [str(name) for name in found] if isinstance(found, list) else None
    return None


def rows_in(
    arrays: Mapping[str, Array],
    stem: str,
    path: str | os.PathLike[str],
    *,
    several: bool = False,
    whole: bool = True,
    class_dim: int = 1,
    ignore_index: int | None = None,
) -> Any:
    """Return the rows of one split, or of one batch, whose arrays' names begin with ``stem``.

    Args:
        arrays: Those of a file, or of a part of it.
        stem: "val_", or nothing.
        path: What messages call the file.
        several: Whether rows have several labels.
        whole: Whether these are all rows: some of several labels may all lack labels or have the weight 0.
        class_dim: As in ``load_splits``.
        ignore_index: As there.

    Raises:
        InputError: If they are not valid; the message names the split.
    """
    kind = next(kind for kind in _KINDS if stem + kind in arrays)

    def find(field: str) -> Array | None:
        return next((arrays[stem + name] for name in _NAMES[field] if stem + name in arrays), None)

    values, labels, groups, decision = arrays[stem + kind], find("labels"), find("groups"), find("decision")
    if groups is None and values.ndim > 2 and class_dim != 0:
        groups = np.arange(values.shape[0])  # positions of one image or sequence do not vary independently
    prefix = stem.removesuffix("_")
    where = f"{shown(path)}, split {prefix!r}" if prefix else shown(path)
    try:
        beside = beside_stored(arrays, stem) | {"groups": groups}
        if several:
            return _with_several_labels(
                kind, values, labels, whole=whole, names=_class_names_of(arrays, stem), **beside
            )
        if values.ndim == 1 and class_dim not in (1, -1):
            remedy = Remedy("leave class_dim out", command="leave --class-dim out")
            raise InputError("logits or probs with a class axis", f"{kind}, which has none", remedy)
        if kind == "conf":
            return _pairs_of_split(stem, values, find("pred"), labels, ignore_index, beside)
        if values.ndim == 1:  # one number per row: that of class 1 of two
            values = two_columns(values, kind)
        make = Predictions.from_probs if kind == "probs" else Predictions.from_logits
        made = make(values, labels, class_dim=class_dim, ignore_index=ignore_index, **beside)
        return _with_decision(made, decision, labels, ignore_index)
    except (InputError, FileFormatError) as error:
        raise error.at(where) from error


def _with_several_labels(
    kind: str, values: Array, labels: Array | None, *, whole: bool, **beside: Any
) -> MultiLabelPredictions:
    if kind == "conf":
        raise FileFormatError("logits or probs (N, L)", "top-label confidences", "save the model's logits")
    labels = labels if labels is None else as_whole(labels)
    if labels is not None and labels.dtype == object:
        raise refuse("labels as integers", "text or empty cells", "code them 1, 0, or -1 where missing")
    make = MultiLabelPredictions.from_logits if kind == "logits" else MultiLabelPredictions.from_probs
    scores, weights = as_tensor(values, name=kind), beside["weights"]
    if whole:
        return make(scores, labels, **beside)
    unknown = labels is not None and labels.shape == values.shape and bool((labels == MISSING).all())
    unweighted = weights is not None and weights.shape == values.shape[:1] and not weights.any()
    if unweighted:
        beside["weights"] = np.ones_like(weights)
    made = make(scores, None if unknown else labels, **beside, unchecked_kind=True)
    if unknown:
        made = replace(made, labels=torch.full(made.logits.shape, MISSING))
    return made if not unweighted or made.weights is None else replace(made, weights=torch.zeros_like(made.weights))


def _pairs_of_split(
    stem: str,
    conf: Array,
    pred: Array | None,
    label: Array | None,
    ignore_index: int | None,
    beside: dict[str, Any],
) -> BinaryPairs:
    if pred is None or label is None:
        raise InputError(f"{stem}pred and {stem}label beside {stem}conf", "neither or one", "add them")
    if ignore_index is not None and conf.shape == pred.shape == label.shape:
        kept = label != ignore_index
        conf, pred, label = conf[kept], pred[kept], label[kept]
        columns = {name: beside[name] for name in ("groups", "weights", "features") if beside[name] is not None}
        beside |= taken(columns, torch.from_numpy(kept))
    return BinaryPairs.from_top_label(conf, pred, label, **beside)


def _with_decision(
    predictions: Predictions, decision: Array | None, labels: Array | None, ignore_index: int | None
) -> Predictions:
    if decision is None:
        return predictions
    # a decision has the axes of the labels, and loses the rows that they lose
    flat = as_tensor(decision, name="decision").reshape(-1)
    if ignore_index is not None and labels is not None and labels.size == flat.numel():
        flat = flat[torch.from_numpy(labels.reshape(-1) != ignore_index)]
    checked = check_labels(flat, rows=len(predictions), classes=predictions.classes)
    return replace(predictions, decision=checked)
