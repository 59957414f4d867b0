"""Reads predictions from files and data frames, and saves them in open formats.

Either the user states what the columns contain, or the columns have one of these names; nothing else is inferred:

    scores     p_*, prob_*, probs_* (probabilities), logit_*, logits_* (logits): one column per class, where * is its
    name;
               p, prob (the probability of class 1); probs, logits (one list per row)
    label      label, labels, y, y_true, target
    others     weights, groups, split, decision, feature:*
    arrays     logits or probs, labels and the others, alone or with a split name as prefix: val_logits, test_labels
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from calibrant._core.check import as_tensor, check_labels, refuse
from calibrant._files import Array, as_path, check_source, pa, read_text, shown
from calibrant.data.labels import TRUTH, class_note, event_spellings, match_labels, name_spellings
from calibrant.data.mapping import Mapped
from calibrant.data.multilabel import MultiLabel
from calibrant.data.predictions import Predictions
from calibrant.data.record import FEATURE, stored_tensor
from calibrant.data.tables import (
    CLASS_NAMES,
    Arrays,
    Kind,
    Table,
    Texts,
    abridged,
    as_arrow,
    open_table,
    write_arrow,
    write_named,
)
from calibrant.errors import FileFormatError, InputError

__all__ = ["read", "save_predictions"]

Scores = Literal["logits", "probs"]
PREFIXES: dict[str, Scores] = {
    "p_": "probs", "prob_": "probs", "probs_": "probs", "logit_": "logits", "logits_": "logits",
}  # fmt: skip
WHOLE: dict[str, Scores] = {"p": "probs", "prob": "probs", "probs": "probs", "logits": "logits"}
LABELS = ("label", "labels", "y", "y_true", "target")
OTHERS: dict[str, Kind] = {"weights": "number", "groups": "any", "split": "text", "decision": "text"}
CALIBRATED = "calibrated_"  # prefix of columns that ``calibrant apply`` adds
UNNAMED = "all"  # name of the only split of a file without splits
SAVED = (".npz", ".safetensors", ".parquet", ".feather", ".arrow", ".csv", ".tsv", ".jsonl")
_LISTS = (".parquet", ".feather", ".arrow")  # formats in which a row's scores are saved as a list
_SUM = 1e-4  # sums of probabilities that differ less from 1 are not corrected


@dataclass
class Part:
    """The location of the scores in a table, or in the arrays of one split.

    Args:
        table: The table.
        columns: The score columns: one per class, or a single one.
        kind: Whether the scores are "logits" or "probs".
        spellings: Possible lists of class names; the first is used for display. Empty if the classes have no names.
        stem: The prefix of a split's arrays, such as ``val_``.
        shape: The shape of the scores, once they have been read.
        needed: The columns that were read.
    """

    table: Table
    columns: Sequence[str]
    kind: Scores
    spellings: Sequence[Sequence[str]] = ()
    stem: str = ""
    shape: tuple[int, ...] = ()
    needed: Sequence[str] = ()


@dataclass(frozen=True)
class Contents:
    """The content of a file.

    Args:
        splits: The predictions of each split by name; the name is "all" if there are no splits.
        parts: The location of each split's scores; a single part if the splits are named in a column.
        notes: Sentences on how the file was read.
    """

    splits: dict[str, Any] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, split: str | None) -> str:
        """Return the key of the named split, or of the only one.

        Raises:
            InputError: If there is no such split, or there are several and ``split`` is None.
        """
        if split is None and len(self.splits) == 1:
            return next(iter(self.splits))
        if split not in self.splits and UNNAMED in self.splits:
            raise InputError(f"{self.parts[0].table.name} has no splits; leave out --split")
        if split not in self.splits:
            lacking = "several splits" if split is None else f"no split {split!r}"
            known = abridged(sorted(self.splits))
            raise InputError(f"{self.parts[0].table.name} has {lacking}; name one of {known} with --split or split=")
        return split


def read(
    path_or_frame: Any,
    *,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    kind: Literal["logits", "probs"] | None = None,
    weights: str | None = None,
    groups: str | None = None,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    on: str | None = None,
    features: Sequence[str] = (),
    multilabel: bool = False,
) -> Predictions | MultiLabel:
    """Read predictions from a file or a data frame.

    Args:
        path_or_frame: A ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``, ``.feather``, ``.npz``, ``.safetensors``, ``.pt``
            or ``.npy`` file, or a frame from pandas, Polars or PyArrow.
        columns: The score columns, one per class: their names in order, or a pattern such as ``"p_*"``. Alternatively,
            a single column that holds lists or the probability of class 1, or the name of an array. Columns with the
            standard names are found without this argument.
        label: The label column or array: class names as in the column names, or integers from 0. With ``multilabel``, a
            pattern such as ``"y_*"``.
        kind: Whether the scores are "logits" or "probs".
        weights: The column with the row weights ≥ 0.
        groups: The column that identifies groups of dependent rows, such as patients.
        split: The split to read, if the file has several.
        class_names: The class names in the order of the scores, if labels are text and the scores have no names.
        labels: A file with the labels, in the same order or matched by the column ``on``.
        on: The column, present in both files, by which rows are matched; its values must be unique in the label file.
        features: Further columns to keep, for calibrators and metrics that use groups.
        multilabel: Whether each row has several labels, each 1, 0 or −1 (missing), with one score per label.

    Returns:
        The predictions; a ``MultiLabel`` if ``multilabel`` is set.

    Raises:
        FileFormatError: If the file is missing, broken or of another kind.
        InputError: If the content of the columns is invalid, or not clear from their names or the arguments.

    Examples:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "scores.csv")
        >>> _ = file.write_text("cat,dog,truth\\n0.9,0.1,cat\\n0.3,0.7,cat\\n")
        >>> read(file, columns="cat,dog", label="truth", kind="probs").correct
        tensor([ True, False])
    """
    mapped = Mapped(columns, label, kind, weights, groups, labels, on, class_names, tuple(features), multilabel)
    mapped.require_file_to_match()
    contents = read_contents(path_or_frame, mapped)
    found: Predictions | MultiLabel = contents.splits[contents.find(split)]
    return found


def read_contents(source: Any, mapped: Mapped | None = None, *, labelled: bool | None = None) -> Contents:
    """Return the rows of every split of a file or a data frame, with notes on how they were read.

    Args:
        source: A path, a frame, or an open table.
        mapped: The user's mapping of columns.
        labelled: Whether labels are required. None reads labels if there are any; False reads only scores, decisions
            and features, and all rows as one split.

    Raises:
        FileFormatError: As for ``read``.
        InputError: As for ``read``, or if labels are required and no label column is found.
    """
    mapped, found = mapped or Mapped(), Contents()
    table = source if isinstance(source, Table) else open_table(source)
    stems = [""]
    if isinstance(table, Arrays):  # the arrays of a split have its name as a prefix
        mapped = replace(mapped, columns="") if table.names == [""] else mapped
        keys = ("logits", "probs") if mapped.columns is None else (str(mapped.columns),)
        pairs = [(name, key) for name in table.names for key in keys if FEATURE not in name]
        stems = [name.removesuffix(key) for name, key in pairs if name == key or name.endswith(f"_{key}")] or stems
    for stem in dict.fromkeys(stems):
        part = _find_scores(table.under(stem) if isinstance(table, Arrays) else table, mapped)
        part.stem = stem
        found.parts.append(part)
        try:
            _read_part(part, mapped, labelled, found)
        except InputError as error:
            if error.got is None:  # from this module, so it names the file
                raise
            place = table.name if error.row is None else f"{table.name}, {table.place(error.row)}"
            raise InputError(error.expected, error.got, error.remedy, place=place) from error
    return found


def _find_scores(table: Table, mapped: Mapped) -> Part:
    """Return the location of the scores in a table, from the user's mapping or from the column names."""
    columns = mapped.columns
    if columns is None:
        there = [f"{key}*" for key in PREFIXES if _match_pattern(table, f"{key}*")]
        there += [key for key in WHOLE if key in table.places]
        if len(there) != 1:
            raise _cannot_tell(table, "which columns are scores")
        [columns] = there
    names = columns
    if isinstance(columns, str):
        names = [columns] if columns in table.places else next(csv.reader([columns], skipinitialspace=True), [])
    chosen = [name if name in table.places else name.strip() for name in names]
    spellings: list[Sequence[str]] = []
    if len(chosen) == 1 and "*" in chosen[0] and chosen[0] not in table.places:
        stars = _match_pattern(table, chosen[0])
        if not stars:
            raise InputError(f"{table.name}: no column matches {chosen[0]!r}. Columns: {abridged(table.names)}")
        chosen = list(stars.values())
        spellings = [[star.removeprefix(_prefix(star)) for star in stars]]
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"{table.name}: columns must name each score column once, got {columns!r}")
    bare = [name.removeprefix(CALIBRATED) for name in chosen]
    kinds = {mapped.kind or PREFIXES.get(_prefix(name)) or WHOLE.get(name) for name in bare}
    if len(kinds) > 1 or (kind := kinds.pop()) is None:
        raise _cannot_tell(table, "whether the scores are probabilities or logits")
    if mapped.class_names is not None:
        spellings = [mapped.class_names]
    elif len(chosen) > 1 or spellings:
        spellings += name_spellings(chosen)
    return Part(table, chosen, kind, spellings)


def _prefix(name: str) -> str:
    return next((key for key in PREFIXES if name.startswith(key)), "")


def _match_pattern(table: Table, pattern: str) -> dict[str, str]:
    """Return the columns that match a pattern, keyed by the text that its star stands for.

    Columns whose keys are all numbers are sorted by them. Columns added by ``apply`` match only patterns that begin
    with their prefix.
    """
    front, _, back = pattern.partition("*")
    found = {}
    for name in table.names:
        if name.startswith(front) and name.endswith(back) and len(name) > len(front + back):
            if pattern.startswith(CALIBRATED) or not name.startswith(CALIBRATED):
                found[name[len(front) : len(name) - len(back)]] = name
    ends = {star: star.removeprefix(_prefix(star)) for star in found}
    if all(map(str.isdecimal, ends.values())):
        return {star: found[star] for star in sorted(found, key=lambda star: int(ends[star]))}  # p_10 follows p_9
    return found


def _cannot_tell(table: Table, what: str) -> InputError:
    named, held = abridged([name for name in table.names if name]), "Columns"
    if isinstance(table, Arrays):
        what, held = what.replace("column", "array"), "Arrays"
    listed = f"{held}: {named or 'one without a name'}. Use --columns A,B,… --label C --kind probs|logits"
    return InputError(f"{table.name}: cannot tell {what}. {listed}")


def _read_part(part: Part, mapped: Mapped, labelled: bool | None, found: Contents) -> None:
    """Add the predictions of one part of a file to ``found``, by split."""
    table, several = part.table, mapped.multilabel
    labels = [] if labelled is False or mapped.labels is not None else _label_columns(part, mapped, labelled)
    if odd := [name for name in (*mapped.features, mapped.on) if name in (*part.columns, *labels)]:
        raise InputError(f"{table.name}: {odd[0]!r} holds scores or labels, so it is neither a feature nor an id")
    # a set, because rows may be matched by their group
    named = Counter([*part.columns, *labels, mapped.weights, *{mapped.groups, mapped.on}])
    if twice := [name for name, uses in named.items() if uses > 1 and name is not None]:
        raise InputError(f"{table.name}: {twice[0]!r} is named for two purposes; name another column for one of them")
    roles = ["decision"] if labelled is False else list(OTHERS)  # a decision is carried along with the scores
    said = {role: getattr(mapped, role, None) or role * (role in table.places and role not in named) for role in roles}
    features = {name: FEATURE + name if FEATURE + name in table.places else name for name in mapped.features}
    features |= {name.removeprefix(FEATURE): name for name in table.names if name.startswith(FEATURE)}
    wanted: dict[str, Kind] = dict.fromkeys(features.values(), "any")
    id_column = None if mapped.on is None else features.get(mapped.on, mapped.on)
    wanted |= {**dict.fromkeys(part.columns, "number"), **dict.fromkeys(labels, "number" if several else "text")}
    wanted |= {name: OTHERS[role] for role, name in said.items() if name}
    wanted |= {} if id_column is None else {id_column: "text"}  # ids such as 007 and 7 are different
    part.needed, held = list(wanted), table.read(wanted)

    scores = _scores_in(part, held)
    if part.kind == "probs" and scores.ndim == 2 and not several:
        scores = _divide_rounded(scores, part, found.notes)
    given: Any = None
    if mapped.labels is not None and labelled is not False:
        ids = None if id_column is None else held[id_column].array()
        given = _read_labels(mapped, table, ids, len(scores))
    elif labels:
        given = np.stack([held[name] for name in labels], axis=1) if len(labels) > 1 else held[labels[0]]

    def values_of(name: str) -> Any:
        return held[name].array() if isinstance(held[name], Texts) else held[name]

    columns: dict[str, Any] = {role: values_of(said[role]) for role in ("weights", "groups") if said.get(role)}
    columns["features"] = {name: values_of(column) for name, column in features.items()} or None
    if scores.ndim > 2:  # positions of one image or sequence are not independent
        columns.setdefault("groups", np.arange(len(scores)))
    names = mapped.class_names or table.class_names
    if several:
        make: Any = MultiLabel.from_logits if part.kind == "logits" else MultiLabel.from_probs
        whole = given is not None and bool((given == np.round(given)).all())
        columns["names"] = names or next(iter(part.spellings), None)
        made = make(scores.reshape(len(scores), -1), given.astype(np.int64) if whole else given, **columns)
    else:
        decision = held[said["decision"]] if said["decision"] else None
        made = _as_classes(part, mapped.label or "the label", names, scores, given, decision, columns, found.notes)
    added = [name for name in table.names if name.startswith(CALIBRATED)]
    if added and not part.columns[0].startswith(CALIBRATED):
        found.notes.append(f"{abridged(added)} are not read; --columns '{CALIBRATED}*' reads them")
    if not said.get("split"):
        found.splits[part.stem.removesuffix("_") or UNNAMED] = made
        return
    splits = np.char.strip(held[said["split"]].array())
    for split in np.unique(splits).tolist():
        found.splits[split] = made[splits == split]


def _as_classes(
    part: Part,
    label: str,
    names: Sequence[str] | None,
    scores: Array,
    labels: Texts | None,
    decision: Texts | None,
    columns: dict[str, Any],
    notes: list[str],
) -> Predictions:
    """Return predictions with one class per row, after matching the labels with the class names."""
    table, classes, alone = part.table, scores.shape[1] if scores.ndim > 1 else 2, scores.ndim == 1 and names is None
    spellings = part.spellings if names is None else [names]
    event = spellings[0][0] if alone and spellings else None

    def codes_of(texts: Texts, what: str) -> tuple[Any, Sequence[str] | None]:
        known = event_spellings(texts, event) if alone else spellings
        first, column = len(part.columns) == 1 and not alone, f"{table.name}: {what}"
        return match_labels(texts, known, classes, numbers_first=first, column=column, place=table.place)

    codes, spelled = (None, None) if labels is None else codes_of(labels, label)
    if event and (spelled is None or spelled in TRUTH):
        names = (f"not {event}", event)
    else:
        names = spelled or (None if alone or not spellings else spellings[0])
    note = "" if labels is None else class_note(spelled, names, classes)
    notes += [note] if note and note not in notes else []
    if names is not None and list(names) == [str(k) for k in range(classes)]:
        names = None
    kind = part.kind if scores.ndim > 1 else f"binary_{part.kind}"
    made: Predictions = getattr(Predictions, f"from_{kind}")(scores, codes, class_names=names, **columns)
    if decision is None:
        return made
    flat = as_tensor(codes_of(decision, "decision")[0], name="decision").reshape(-1)
    return replace(made, decision=check_labels(flat, rows=len(made), classes=made.classes))


def _scores_in(part: Part, held: Mapping[str, Any]) -> Array:
    """Return the scores (N, K), or (N,) with one number per row, from the columns that were read."""
    table, columns = part.table, [held[name] for name in part.columns]
    if len(columns) > 1 and any(column.ndim > 1 for column in columns):
        raise InputError(f"{table.name}: columns must name one column of lists, or several columns of numbers")
    values: Array = np.stack(columns, axis=1) if len(columns) > 1 else columns[0]
    part.shape = values.shape
    if values.size and np.isnan(values.min()):
        row, *place = np.argwhere(np.isnan(values))[0].tolist()
        name = part.stem + part.columns[place[0] if len(columns) > 1 else 0]
        raise InputError(f"{table.name}, {table.place(row)}: the score in {name!r} is missing or NaN")
    return values


def _divide_rounded(probs: Array, part: Part, notes: list[str]) -> Array:
    """Return probabilities whose rows sum to 1; rounded rows are divided by their sums, and a note is added.

    A row's sum may differ from 1 by half a unit of the last decimal per class, or by 1e-4 if that is more.

    Raises:
        InputError: If a sum differs by more.
    """
    sums = probs.sum(axis=1, dtype=np.float64)
    off = np.abs(sums - 1)
    if not (off > _SUM).any() or not np.isfinite(sums).all() or (probs < 0).any():  # later checks refuse the rest
        return probs
    digits = next((d for d in range(8) if (np.abs(np.round(probs, d) - probs) < 1e-9).all()), None)
    limit = max(_SUM, probs.shape[1] / 2 * 10.0**-digits if digits else 0) + 1e-9
    if off.max() > limit:
        row = int(np.argmax(off > limit))
        where = f"{part.table.name}, {part.table.place(row)}: {abridged(part.columns)}"
        remedy = "the probabilities of a row must sum to 1"
        if abs(np.median(sums) - 100) < 2:
            remedy = "these look like percentages; divide by 100"
        raise InputError(f"{where} sum to {sums[row]:.6g}; {remedy}")
    count = f"{int((off > _SUM).sum()):,} rows"
    notes.append(
        f"{count} of rounded probabilities are divided by their sums, which differ from 1 by up to {off.max():.2g}"
    )
    return np.where(off[:, None] > _SUM, probs / sums[:, None], probs)


def _label_columns(part: Part, mapped: Mapped, labelled: bool | None) -> list[str]:
    """Return the label columns, in the order of the scores if there are several; empty if labels are not needed."""
    table, said = part.table, mapped.label
    if mapped.multilabel:
        for pattern in ["label_*", "labels_*"] if said is None else [said] * ("*" in said):
            stars = _match_pattern(table, pattern)
            for names in part.spellings:
                if all(name in stars for name in names):
                    return [stars[name] for name in names]
            if said is not None and stars and part.spellings:
                scores, labels = abridged(part.spellings[0]), abridged(list(stars))
                raise InputError(
                    f"{table.name}: the scores are of {scores}, but {said!r} matches labels of {labels}; these names must agree"
                )
    found = [name for name in LABELS if name in table.places and name not in part.columns]
    if said is not None:
        found = [] if mapped.multilabel and "*" in said else [said]
    if len(found) > 1 or (not found and (labelled or said is not None)):
        raise _cannot_tell(table, f"which {'columns hold' if mapped.multilabel else 'column holds'} the labels")
    return found


def _read_labels(mapped: Mapped, table: Table, ids: Array | None, rows: int) -> Any:
    """Return the labels from a separate file, in the order of the rows or matched by the ``ids`` of the rows."""
    if not isinstance(mapped.labels, str | os.PathLike):
        remedy = "add the labels to the frame as a column, and name it with label="
        raise refuse("labels as the path of a file", type(mapped.labels).__name__, remedy)
    path = check_source(mapped.labels)
    if path.suffix.lower() == ".txt":  # one label per line, without a header
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        other: Table = Arrays(shown(path.name), {"": np.array(lines)})
    else:
        other = open_table(path)
    names = [name for name in other.names if name != mapped.on]
    if mapped.label in names:
        names = [mapped.label]
    elif len(names) > 1:
        names = [name for name in names if name in LABELS]
    if len(names) != 1:
        raise _cannot_tell(other, "which column holds the labels")
    found = other.read({names[0]: "number" if mapped.multilabel else "text"})[names[0]]
    codes = found.codes if isinstance(found, Texts) else found
    if mapped.on is not None and ids is not None:
        keys = other.read({mapped.on: "text"})[mapped.on].array()
        codes = codes[find_rows(ids, keys, on=mapped.on, name=other.name)]
    elif len(codes) != rows:
        held = f"{other.name} has {len(codes):,} labels for {rows:,} rows"
        raise InputError(f"{held}; match them by a column of both files, with --on or on=")
    else:
        refuse_other_rows(table, other, scores=names)
    return found._replace(codes=codes) if isinstance(found, Texts) else codes


def refuse_other_rows(table: Table, other: Table, *, scores: Collection[str]) -> None:
    """Check that two tables agree in all common columns except ``scores``.

    Raises:
        InputError: If a column differs in some row.
    """
    if isinstance(table, Arrays) or isinstance(other, Arrays):
        return  # arrays have no columns that identify rows
    theirs = {name.casefold(): name for name in other.names if name not in scores}
    for name in (name for name in table.names if name not in scores and name.casefold() in theirs):
        columns = ((table, name), (other, theirs[name.casefold()]))
        one, two = (each.read({column: "text"})[column].array() for each, column in columns)
        differ = np.flatnonzero(one != two) if len(one) == len(two) else [min(len(one), len(two))]
        if len(differ):
            row = int(differ[0])
            first, second = (repr(str(column[row])) if row < len(column) else "missing" for column in (one, two))
            rows = f"{other.name} has other rows than {table.name}, or another order"
            raise InputError(
                f"{rows}: {name} in row {row} is {second}, not {first}; match rows by a column of both files, with --on or on="
            )


def find_rows(wanted: Array, keys: Array, *, on: str, name: str) -> Array:
    """Return the index in ``keys`` of each value of ``wanted``.

    Args:
        wanted: Values of a column.
        keys: Unique values of the column of the same name in another file.
        on: Name of the column, for the error.
        name: Name of the other file, for the error.

    Raises:
        InputError: If a key occurs twice, or a wanted value is missing.
    """
    names, first, counts = np.unique(keys, return_index=True, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{name}: {on!r} is {str(names[np.argmax(counts > 1)])!r} twice; it must identify each row")
    places = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    if (lacking := np.flatnonzero(names[places] != wanted)).size:
        rows = f"{lacking.size:,} rows, such as the one" if lacking.size > 1 else "the row"
        raise InputError(f"{name} lacks {rows} whose {on} is {str(wanted[lacking[0]])!r}")
    found: Array = first[places]
    return found


def calibrated_columns(part: Part, data: Any, prefix: str = CALIBRATED) -> dict[str, Array]:
    """Return the scores and decisions of predictions as the columns or arrays to write to their file.

    Args:
        part: The location of the original scores in the file.
        data: The predictions for the rows of the part.
        prefix: The prefix of the new columns; "" replaces the original scores.

    Raises:
        InputError: If the table already has a column of this name.
    """
    values: Array = (data.logits if part.kind == "logits" else data.probs).detach().cpu().numpy()
    scores = {name: values[:, at] for at, name in enumerate(part.columns)}
    if len(part.columns) == 1:
        if len(part.shape) == 1:
            values = values[:, 1] - values[:, 0] if part.kind == "logits" and values.shape[1] == 2 else values[:, -1]
        elif len(part.shape) > 2:
            values = np.moveaxis(values.reshape(part.shape[0], *part.shape[2:], -1), -1, 1)
        scores = {part.columns[0]: values}
    if prefix and (there := [prefix + name for name in scores if prefix + name in part.table.places]):
        raise InputError(f"{part.table.name} already has a column {there[0]!r}; name a file without it")
    columns = {part.stem + prefix + name: column for name, column in scores.items()}
    if data.decision is not None:
        codes = data.decision.cpu().numpy().reshape(part.shape[0], *part.shape[2:])
        spread = data.class_names is not None and len(part.columns) > 1  # otherwise labels are indices
        columns[f"{part.stem}decision"] = np.array(data.class_names)[codes] if spread else codes
    return columns


def save_predictions(path: str | os.PathLike[str], data: Any) -> None:
    """Save predictions to a file that ``read`` can read without further arguments.

    The file is written atomically.

    Args:
        path: The file. Its suffix determines the format: ``.npz``, ``.safetensors`` (which cannot hold text features),
            ``.parquet``, ``.feather``, ``.csv``, ``.tsv`` or ``.jsonl``.
        data: Predictions, or a dict from split names to predictions.

    Raises:
        InputError: If ``data`` are not predictions, or a class name cannot be used in a table.
        FileFormatError: If the suffix is not one of these, or the file cannot be written.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant import Predictions
        >>> file = pathlib.Path(tempfile.mkdtemp(), "scores.csv")
        >>> save_predictions(file, Predictions.from_probs([[0.9, 0.1]], [0], class_names=["cat", "dog"]))
        >>> file.read_text().splitlines()
        ['"probs_cat","probs_dog","label"', '0.9,0.1,"cat"']
    """
    place = as_path(path)
    suffix = place.suffix.lower()
    if suffix not in SAVED:
        raise FileFormatError(f"{shown(place.name)!r} must end in one of {', '.join(SAVED)}")
    splits = data if isinstance(data, Mapping) else {UNNAMED: data}
    if odd := [type(one).__name__ for one in splits.values() if not isinstance(one, Predictions | MultiLabel)]:
        raise InputError(f"expected predictions, or a dict of split → predictions, got {odd[0]}")
    known = {one.names if isinstance(one, MultiLabel) else one.class_names for one in splits.values()}
    if len(known) != 1:
        raise InputError("expected splits with the same classes; save each split to a separate file")
    [names] = known
    for text in names or ():
        if text != text.strip() or text in ("", "*"):
            raise InputError(f"{text!r} cannot name a class in a file; give it another name")
    if suffix in (".npz", ".safetensors"):
        arrays = dict[str, Array]()
        for split, one in splits.items():
            stem = "" if split == UNNAMED else f"{split}_"
            kind, values = _scores_of(one)
            arrays |= {stem + key: column for key, column in ({kind: values} | one.stored()).items()}
        if suffix == ".safetensors" and (texts := [key for key, one in arrays.items() if one.dtype.kind == "U"]):
            raise InputError(f"{texts[0]!r} is text, but .safetensors holds only numbers; write .npz")
        write_named(place, arrays, names)
        return
    named = list(splits) != [UNNAMED]
    tables = [_as_table(one, names, suffix, split if named else None) for split, one in splits.items()]
    metadata = {CLASS_NAMES: json.dumps(names)} if names is not None and suffix in _LISTS else None
    write_arrow(place, pa.concat_tables(tables, promote_options="default").replace_schema_metadata(metadata))


def _scores_of(data: Any) -> tuple[Scores, Array]:
    """Return the kind of the scores and the scores themselves, as they were passed in."""
    if data.given_probs is None:
        return "logits", stored_tensor(data.logits)
    return "probs", stored_tensor(data.given_probs)


def _as_table(data: Any, names: Sequence[str] | None, suffix: str, split: str | None) -> Any:
    """Return predictions as an Arrow table.

    Scores are lists for ``.parquet`` and ``.feather``; for other formats there is one column per class.
    """
    (kind, values), several = _scores_of(data), isinstance(data, MultiLabel)
    lists, arrays = suffix in _LISTS and not several, data.stored()
    ends = names or [str(k) for k in range(values.shape[1])]
    wide = values if suffix in _LISTS else values.astype(np.float64)  # readers parse the text of a float32 as a float64
    columns: dict[str, Array] = {f"{kind}_{end}": wide[:, k] for k, end in enumerate(ends)}
    if lists:
        columns = {kind: values}
    for role in ("labels", "decision"):
        codes = arrays.pop(role, None)
        if codes is not None and several:
            columns |= {f"{role}_{end}": codes[:, k] for k, end in enumerate(ends)}
        elif codes is not None:
            columns[role.removesuffix("s")] = codes if lists or names is None else np.array(names)[codes]
    columns |= arrays | ({} if split is None else {"split": np.full(len(values), split)})
    return pa.table({name: as_arrow(column) for name, column in columns.items()})
