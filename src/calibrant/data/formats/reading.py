"""Any file as arrays under the names that say what they hold: ``logits`` or ``probs``, ``labels``, ``conf``, ``pred``."""

import json
import math
import os
import re
import shlex
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import Array, pa, read_metadata, read_text, refuse_beyond_memory
from calibrant._core.paths import as_path, check_source, shown
from calibrant.data.formats import advice, proposal
from calibrant.data.formats.cells import plain_cells
from calibrant.data.formats.columns import (
    Classes,
    arrays_of_table,
    folded,
    is_string,
    is_text,
    numbers_of,
    score_columns,
)
from calibrant.data.formats.evidence import Columns, codes_of, label_among
from calibrant.data.formats.kinds import are_percentages, of_one_event, one_hot, refuse_other_kinds, same_scores, within
from calibrant.data.formats.labels import (
    Labels,
    align,
    encode_labels,
    encode_pair,
    encode_positive,
    integers,
    is_one_hot,
    is_single,
    names_of_decisions,
    refuse_contradictions,
    refuse_strangers,
    refuse_unnamed_positive,
)
from calibrant.data.formats.layout import (
    ARRAYS,
    CLASS_NAMES,
    KINDS,
    LABELS,
    READABLE,
    SCORES,
    SPLITS,
    TABLES,
    TOLERANCE,
    Layout,
    of_part,
    sides_of,
    stem_and_name,
    suffix_of,
)
from calibrant.data.formats.roles import called, is_decided
from calibrant.data.formats.tables import batches_of, has_suffix, other_suffix, read_table, renamed
from calibrant.data.formats.tensors import read_npy, read_tensors
from calibrant.data.formats.text import FASTTEXT
from calibrant.data.frames import Frame, arrow_of
from calibrant.errors import CalibrantError, FileFormatError, InputError, Remedy

SPLIT = "split"
RECEIPT = "calibrant.receipt"  # of a file that convert wrote: how its labels were matched
_TOGETHER = "rows of all values of {} measured together; call that column split to part them"
_ENOUGH = 20  # rows of two models, of which labels in the same order are no chance
FEATURE, ROW = "feature:", "row of the table"  # the first as ``data.record`` has it, which needs PyTorch


@dataclass(frozen=True)
class Receipt:
    """How labels were matched: how often each class's name stood among labels that are text, and how two files were joined."""

    matched: Mapping[str, int] = field(default_factory=dict)
    joined: str = ""

    @property
    def written(self) -> str:
        """As JSON, in which a file keeps it."""
        return json.dumps({"matched": dict(self.matched), "joined": self.joined}, ensure_ascii=False)

    @classmethod
    def of(cls, text: str | bytes | None) -> "Receipt":
        """Return what a file keeps; anything else is none."""
        try:
            found = json.loads(text or "{}")
            return cls({str(name): int(count) for name, count in found["matched"].items()}, str(found["joined"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            # whatever stands there: a receipt is a note on the way, and a broken one refuses no data that are whole
            return cls()


@dataclass(frozen=True)
class Named:
    """What a file holds, under names that say it, and what was done to it on the way.

    Args:
        arrays: Name → array; in a file of several splits ``val_logits``, ``test_labels`` and so on.
        off: How far the sums of rows were from 1 at most before ``normalize`` divided by them; None without it.
        class_names: The names of the classes, where the file or the layout gives them.
        matched: Whether labels were matched to names, by their text or by the order that names gave.
        respelled: Which labels name a class in another case or with other spaces, in words; or nothing.
        parted: By what rows were parted that are predictions of several models, in words; or nothing.
        receipt: How labels were matched to names and to another file's rows, now or when the file was written.
        joined: Whether another file's labels were laid beside the rows just now.
        proposed: As what a file is read whose names are not Calibrant's own, in words; empty for others.
        frame: The table, and where the scores stand in it, if they are one group of its columns.
        add_label: The arguments that seem to name the labels of scores without any; None without such a column.
        positive: The label that one score a row is the probability of, where the file or the layout names it.
    """

    arrays: dict[str, Array]
    off: float | None = None
    class_names: tuple[str, ...] = ()
    matched: bool = False
    proposed: str = ""
    respelled: str = ""
    parted: str = ""
    receipt: Receipt = field(default_factory=Receipt)
    joined: bool = False
    frame: Frame | None = None
    add_label: Remedy | None = None
    positive: str | None = None

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of the classes; of an event and what it is not, where that is all that is known."""
        return self.class_names or sides_of(self.positive)

    def beside(self, split: str) -> dict[str, Array]:
        """Return what lies beside the scores and labels of ``split`` by its own names: ``region`` of ``test_region``.

        Scores and labels are nothing to go by: a calibrator by the labels would be right on every row that has one.
        """
        stems = {stem for stem, kind in map(stem_and_name, self.arrays) if kind in SCORES}
        parts = tuple(stem for stem in stems if stem)
        whole = {name: values for name, values in self.arrays.items() if not name.startswith(parts or (" ",))}
        own = whole | of_part(self.arrays, f"{split}_", stems)
        return {name: values for name, values in own.items() if name not in (*SCORES, *LABELS)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what was changed, and on how two files were joined."""
        off = "" if self.off is None else normalized_note(self.off)
        joined = self.receipt.joined if self.joined else ""
        return tuple(filter(None, (self.proposed, self.respelled, self.parted, off, joined)))


def normalized_note(off: float) -> str:
    """Return what ``normalize`` did, in words."""
    if math.isnan(off):  # of one event, which has no sums
        return "normalized: percentages divided by 100"
    return f"normalized: sums of rows differed from 1 by up to {off:.2g} (at most {TOLERANCE} is accepted)"


def read_named(path: Any, layout: Layout | None = None, *, numbered: bool = False) -> Named:
    """Return the arrays of a file, or of a folder of ``.npy`` files or of tables, under names that say what they hold.

    Args:
        path: Ends in one of ``READABLE``; or a frame of pandas, Polars or Arrow.
        layout: What the user says of it; None reads the names that are there.
        numbered: Whether the numbers of a table's rows are returned as the feature ``ROW``.

    Raises:
        FileFormatError: If the file is missing, broken, of another kind, or its names do not say what it holds.
        InputError: If the layout names what is not there, or has no effect.
    """
    layout = Layout() if layout is None else layout
    if not isinstance(path, str | os.PathLike):
        return read_or_refused_table(arrow_of(path), layout, Path("the frame"), given=path, numbered=numbered)
    place = as_path(path)
    if parts := parts_in(place):
        return _joined({name: read_named(part, layout) for name, part in parts.items()})
    if place.is_dir() or place.suffix.lower() not in (".npz", ".safetensors"):
        place = _checked(place, layout)
    if place.suffix.lower() in ARRAYS if not place.is_dir() else any(place.glob("*.npy")):
        arrays = read_tensors(place)
        if layout.columns and (len(layout.columns) > 1 or layout.columns[0] not in arrays):
            got = f"{', '.join(sorted(arrays)[:12])} in {shown(place)}"
            remedy = "leave {}columns out, or name the one array of the scores"
            raise InputError("a table for columns", got, Remedy(remedy.format(""), command=remedy.format("--")))
        arrays = arrays if _stems(arrays) else _splits_first(arrays)
        if layout.label is None and layout.labels is None and (stems := _stems(arrays)):
            own = [name.removeprefix(stem) for stem in stems[-1:] for name in arrays if name.startswith(stem)]
            beside = list(arrays) if len(stems) == 1 else []  # pred_probs beside given_labels
            layout = replace(layout, label=label_among(own, ()) or label_among(beside, ()))
        stored = arrays.pop(RECEIPT, None)
        kept = Receipt.of(str(stored) if stored is not None else _kept_in(place))
        said = layout.kind is not None or any(stem_and_name(name)[1] in KINDS for name in arrays)
        if not said and (named := _by_their_names(arrays, layout, place, kept)):
            return named
        return _read_or_refused_once(lambda said: named_of(place, arrays, Classes(), said, kept), layout, place)
    return read_or_refused_table(read_table(place), layout, place, numbered=numbered)


def _read_or_refused_once(read: Callable[[Layout], Named], layout: Layout, place: Path) -> Named:
    """Return what is read by a layout; a refusal names at once what following it would be refused for."""
    try:
        return read(layout)
    except (FileFormatError, InputError) as error:
        remedy = error.remedy if isinstance(error.remedy, Remedy) else Remedy("")
        said: dict[str, Any] = dict(remedy.reading)
        # names.txt is to be written first, and what is said already does not help
        if not said or said.keys() & {"class_names", "multilabel"} or said.keys() <= {*layout.given()}:
            raise
        more: str | Remedy | None
        try:
            found = _read_or_refused_once(read, replace(layout, **_given(Layout.of(**said))), place)
            more = found.add_label
        except (FileFormatError, InputError) as other:
            more = other.remedy
            if not isinstance(more, Remedy):  # the command would not help
                raise other from error
        if not isinstance(more, Remedy) or not (more.reading or more.instead):
            raise
        whole = remedy.then(more)
        raise type(error)(error.expected, error.got, whole, argument=error.argument, place=error.place) from error


def _given(layout: Layout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in layout.given()}


def read_or_refused_table(
    table: Any, layout: Layout, place: Path, *, given: Any = None, numbered: bool = False
) -> Named:
    """Return the arrays of an Arrow table; a refusal names at once what following it would be refused for.

    Args:
        table: The table.
        layout: As in ``read_named``.
        place: What messages call it.
        given: The frame that it was made of; None is the table itself.
        numbered: As there.

    Raises:
        FileFormatError: As there.
        InputError: As there.
    """
    frame = table if given is None else given
    return _read_or_refused_once(lambda said: _of_table(table, said, place, frame, numbered), layout, place)


def _of_table(whole: Any, layout: Layout, place: Path, given: Any, numbered: bool) -> Named:
    """Return the arrays of an Arrow table of what was ``given``, and if ``numbered`` the number of each row among them."""
    table, understood, words = understand(whole, layout, place)
    opened, classes = arrays_of_table(table, understood, place)
    columns = score_columns(table.column_names, understood, place)
    # a table that was reshaped on the way (a row for each class) cannot take calibrated columns back
    same = columns is not None and len(table) == len(whole)
    if same and numbered:
        opened[FEATURE + ROW] = np.arange(len(whole), dtype=np.int64)
    found = named_of(
        place, opened, classes, understood, Receipt.of((whole.schema.metadata or {}).get(RECEIPT.encode()))
    )
    if columns is not None and not layout.columns:  # proposed, not stated
        refuse_strangers(
            found.arrays,
            columns,
            lambda kept: advice.Proposal(replace(understood, columns=tuple(kept)), Columns(table)).remedy,
            place,
        )
    frame = frame_of(whole, opened, found.arrays, classes, understood, columns) if same else None
    return replace(found, proposed=words, frame=frame and replace(frame, table=given))


def _by_their_names(arrays: dict[str, Array], layout: Layout, place: Path, kept: Receipt) -> Named | None:
    """Return what arrays of rows hold where their names say it as those of a table's columns do; else None."""
    rows = max((len(one) for one in arrays.values() if one.ndim), default=0)
    plain = {name: one for name, one in arrays.items() if one.ndim in (1, 2) and one.dtype.kind in "fiubU"}
    columns = {name: one for name, one in plain.items() if len(one) == rows and one.size}
    made = {name: pa.array(np.ravel(one)) for name, one in columns.items()}
    for name, one in columns.items():
        made[name] = made[name] if one.ndim == 1 else pa.FixedSizeListArray.from_arrays(made[name], one.shape[1])
    found = proposal.propose(pa.table(made), layout) if made else None
    if found is None or not found.certain:
        return None
    opened, classes = arrays_of_table(found.table, found.layout, place)
    others = {name: one for name, one in arrays.items() if name not in columns}
    return replace(named_of(place, others | opened, classes, found.layout, kept), proposed=found.words)


def frame_of(
    table: Any,
    opened: Mapping[str, Array],
    arrays: Mapping[str, Array],
    classes: Classes,
    layout: Layout,
    columns: tuple[str, ...] | None,
) -> Frame | None:
    """Return a table with where its scores stand, and the names of its classes; None where they are not one group of columns.

    Args:
        table: As it was read.
        opened: Its columns as arrays, with the numbers that it has.
        arrays: These under the names that say what they hold.
        classes: What the columns say of the classes.
        layout: How they were read.
        columns: Those of the scores, or None.
    """
    scores = [(kind, arrays[name]) for kind in KINDS for name in arrays if stem_and_name(name)[1] == kind]
    if columns is None or not scores or scores[0][1].ndim > 2:
        return None
    kind, values = scores[0]
    width = values.shape[1] if values.ndim == 2 else 2
    numbers = tuple(map(str, classes.numbers or (numbers_of(columns) if len(columns) == width else ())))
    named = _class_names(dict(arrays), layout, classes)
    known = (named, next(iter(classes.spellings), ()), numbers, tuple(map(str, range(width))))
    names = next(one for one in known if len(one) == width)
    keys = classes.spellings[-1] if len(columns) == 1 and not classes.ordered else ()
    percentage = _percentage_in(table, columns[0], opened.get("probs") if kind == "probs" else None)
    return Frame(table, kind, columns, values.ndim == 1, names, keys=keys, percentage=percentage)


def _percentage_in(table: Any, first: str, probs: Array | None) -> str | None:
    """Return how the scores of a table are written as percentages: as ``Frame.percentage``, by the first of their columns."""
    if first in table.column_names and is_string(table.schema.field(first).type):
        text = next((one for one in table.column(first).to_pylist() if one), "")
        return text if text.strip().endswith("%") else None
    percent = probs is not None and (are_percentages(probs) or of_one_event(probs))
    return "" if percent else None


def understand(table: Any, layout: Layout, place: Path) -> tuple[Any, Layout, str]:
    """Return a table as columns that can be read, the layout that reads it, and what that is in words; "" for the layout given.

    Raises:
        FileFormatError: If neither names nor the layout say what the columns hold, with the arguments that would.
    """
    # first of all: a log's columns of numbers would be proposed as scores
    proposal.refuse_log(table, layout, place)
    table = proposal.shortened(plain_cells(table), {layout.label, *layout.columns, *table.column_names})
    found = proposal.propose(table, layout)
    what = ", ".join(table.column_names[:12])
    if found is None:
        remedy = None if layout.given() or proposal.opened(table) is table else _several_labels(table, place)
        if remedy is None:
            return table, layout, ""
    elif found.certain:
        return found.table, found.layout, "" if layout.columns else found.words
    elif found.layout.one_vs_rest:
        several = None if proposal.one_hot_of(found) else _several_labels(table, place)
        # columns of 1 and 0 that names pair with the scores are all labels, and none of them is the one of a row
        alone = found.remedy.after("add --multilabel if a row may have several labels; else ")
        raise FileFormatError(
            "logits, or probabilities that sum to 1 in a row",
            f"scores between 0 and 1 with other sums in {shown(place)}, as one-vs-rest classifiers have them",
            several or alone,
        )
    else:
        remedy = found.remedy
    raise FileFormatError(
        "columns that say what they hold (logits, probs, probs_0 …)", f"{what} in {shown(place)}", remedy
    )


def _several_labels(table: Any, place: Path) -> Remedy | None:
    """Return the arguments that read a table as one of several labels a row, or None where names do not pair these with scores."""
    said = proposal.several_labels(table)
    if said is None:
        return None
    remedy = Remedy.read(multilabel=True, **said).after("if a row may have several labels, ")
    typed = shlex.join(["calibrant", "evaluate", shown(place), *remedy.options])
    return replace(
        remedy, python=Remedy.read(**said).python.replace("calibrant.read", "calibrant.read_multilabel"), command=typed
    )


def _kept_in(place: Path) -> str | None:
    return read_metadata(place).get(RECEIPT) if place.suffix.lower() == ".safetensors" else None


def named_of(
    place: Path, arrays: dict[str, Array], classes: Classes, layout: Layout, kept: Receipt | None = None
) -> Named:
    """Return the arrays of a file under the names that say what they hold; as ``read_named``, of what was opened."""
    # In this order: labels are found by the stems of the scores; the kind is judged on the values as the file has
    # them, which ``normalize`` would make look right; and text is matched while it still is text.
    names = _class_names(arrays, layout, classes)
    arrays = _without_softmax(_with_scores(arrays, layout, place))
    names = names or (() if classes.spellings or classes.numbers else names_of_decisions(arrays))
    refuse_other_kinds(arrays, layout, place)
    arrays, joined = _with_labels(arrays, layout, place)
    text = [arrays[name] for name in _labels_of(arrays) if is_text(arrays[name])] if layout.positive is None else []
    _check_count(names if text else (), arrays, place)
    matched = (
        classes.spelling({one for values in text for one in values.reshape(-1).tolist()}, given=names) if text else ()
    )
    arrays = _encoded(arrays, replace(layout, class_names=names), classes, place)
    if layout.columns:  # their order is open to doubt, that of an array's axis is not
        refuse_contradictions(arrays, classes, names, place)
    strange = sorted({one for values in text for one in values.reshape(-1).tolist()} - set(matched)) if matched else []
    alike = [name for name in matched if strange and folded(name) == folded(strange[0])]
    respelled = f"labels such as {strange[0]!r} taken as {alike[0]!r}" if alike else ""
    receipt = Receipt(_counts(text, arrays, matched), joined)
    receipt = receipt if receipt.matched or joined or kept is None else kept
    arrays, off = _normalized(arrays, layout, place)
    add_label = advice.unnamed_labels(arrays, replace(layout, class_names=names), classes)
    models, same = ("", False) if SPLIT in arrays else _several_models(arrays)
    parted = f"rows parted by {models}, since it names models of the same rows" if same else ""
    if models and not same:
        parted = _TOGETHER.format(models)
    elif not same and (part := _unnamed_split(arrays)):
        parted = _TOGETHER.format(part)
    # parted last: up to here one array of each meaning stands for the rows of all splits
    return Named(
        by_split(arrays | {SPLIT: arrays[models].astype(str)} if same else arrays),
        off,
        names or matched,
        bool(text) or bool(names and (not classes.ordered or integers(names))),
        respelled=respelled,
        parted=parted,
        receipt=receipt,
        joined=bool(joined),
        add_label=add_label,
        positive=layout.positive,
    )


def read_columns(named: Named, names: Sequence[str], *, split: str, file: str) -> dict[str, Array]:
    """Return the columns ``names`` (N,) beside the rows of ``split``: ``test_region`` or ``region`` for "region".

    Args:
        named: What a file holds.
        names: Of the columns.
        split: Whose rows.
        file: What messages call the file.

    Raises:
        InputError: If one is missing.
    """
    held = named.beside(split)
    for name in names:
        if name not in held:
            got, remedy = (
                ", ".join(sorted(held)) or "scores and labels alone",
                "name one of these" if held else "add it",
            )
            raise InputError(f"the column {name!r} in {file}", got, remedy)
    return {name: held[name] for name in names}


def parts_in(place: Path) -> dict[str, Path]:
    """Return split name → file or folder, where a folder's files, or its folders, are called as splits are; else nothing."""
    if not place.is_dir() or any(place.glob("*.npy")):
        return {}
    inside = sorted(one for one in place.iterdir() if one.is_dir() or suffix_of(one) in READABLE)
    stems = [one.name if one.is_dir() else one.stem for one in inside]
    known = [stem.strip().casefold() in SPLITS for stem in stems]
    # val.csv beside val.npz are two files of one split: no folder of splits
    return dict(zip(stems, inside, strict=True)) if inside and all(known) and len(set(stems)) == len(stems) else {}


def _joined(parts: dict[str, Named]) -> Named:
    arrays = {f"{split}_{name}": values for split, named in parts.items() for name, values in named.arrays.items()}
    first = next(iter(parts.values()))
    offs = [named.off for named in parts.values() if named.off is not None]
    matched = any(named.matched for named in parts.values())
    off = max(offs, default=None)
    return replace(first, arrays=arrays, off=off, matched=matched, proposed="", frame=None)


def _splits_first(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return ``arrays`` with the names of splits before the others, test_probs and test_y, where scores have them behind: probs_test."""
    ends = {name.rpartition("_")[2] for name in arrays if name.rpartition("_")[0] in SCORES} & SPLITS
    parts = {name: name.rpartition("_") for name in arrays}
    return {f"{end}_{own}" if end in ends and own else name: arrays[name] for name, (own, _, end) in parts.items()}


def is_array_folder(path: str | os.PathLike[str]) -> bool:
    """Say whether ``path`` is a folder that is read whole: of ``.npy`` files, of tables other than Parquet, or of splits."""
    place = Path(path)
    # folders of Parquet are streamed instead: their rows need not fit in memory
    if not place.is_dir() or any(place.glob("*.parquet")) or any(place.glob("*/*.parquet")):
        return False
    suffixes = {suffix_of(file) for file in place.iterdir()}
    return ".npy" in suffixes or bool(suffixes & set(TABLES)) or bool(parts_in(place))


def hold_labels_alone(place: Path) -> bool:
    """Say whether a file holds labels and can hold no scores: no decimals, and no rows of more than one number, as its first rows show."""
    suffix = suffix_of(place)
    if place.is_dir() or not place.is_file() or suffix in (".pt", ".pth"):
        return False
    try:
        if suffix in (".npz", ".safetensors", ".npy"):
            arrays = read_tensors(place)
            return all(one.dtype.kind in "iubUO" or (one.ndim == 2 and is_one_hot(one)) for one in arrays.values())
        if suffix not in TABLES:
            return False
        batch = next((one for one in batches_of(place) if one.num_rows), None)
    except CalibrantError:  # which is said where the file is read
        return False
    if batch is None:
        return False
    plain = plain_cells(pa.Table.from_batches([batch]))
    return not any(
        pa.types.is_floating(one.type) or pa.types.is_decimal(one.type) or pa.types.is_nested(one.type)
        for one in plain.schema
    )


def _checked(place: Path, layout: Layout | None = None) -> Path:
    if place.is_dir():
        return place
    # else a mistyped folder, said below
    if not has_suffix(place, READABLE) and (place.suffix or place.exists()):
        error = other_suffix(place, READABLE)
        raise error if layout is None else _with_reading(error, place, layout)
    return check_source(place)


def _with_reading(error: FileFormatError, place: Path, layout: Layout) -> FileFormatError:
    """Return the refusal of a file's name with the arguments that read what its command makes, where it makes a copy of it."""
    new = renamed(place)
    if new is None or not isinstance(error.remedy, Remedy):
        return error
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder, new.name)
        if place.suffix.lower() == ".zip":
            with zipfile.ZipFile(place) as archive:
                inside = str(new.relative_to(place.parent))
                refuse_beyond_memory(archive.getinfo(inside).file_size, place)
                twin.write_bytes(archive.read(inside))
        else:
            twin.symlink_to(place.absolute())
        try:
            read_named(twin, layout)
        except CalibrantError as other:
            if isinstance(other.remedy, Remedy) and other.remedy.reading and not other.remedy.instead:
                return FileFormatError(error.expected, str(error.got), error.remedy.then(other.remedy))
    return error


def _with_scores(arrays: dict[str, Array], layout: Layout, place: Path) -> dict[str, Array]:
    """Return ``arrays`` with the scores under the name of their kind."""
    arrays = _without_stem(arrays, layout)
    if not _stems(arrays) and _from_trainer(arrays):  # transformers.Trainer.predict: predictions are the model's logits
        if twice := [name for name in LABELS if name in arrays]:
            got = f"{twice[0]} and label_ids in {shown(place)}"
            raise FileFormatError("one array of each meaning", got, "keep the one that is meant")
        arrays = _renamed(arrays, {"predictions": "logits", "label_ids": "labels"})
    if layout.kind is None:
        if not _stems(arrays) and (remedy := advice.for_arrays(arrays)) and suffix_of(place) not in TABLES:
            raise FileFormatError(
                "arrays named logits, probs or conf (val_logits, test_logits …)",
                f"{sorted(arrays)} in {shown(place)}",
                remedy,
            )
        return arrays
    other = "probs" if layout.kind == "logits" else "logits"
    stems = _stems(arrays)
    if stems:
        if not any(stem + layout.kind in arrays for stem in stems):
            remedy = Remedy("leave kind out, or rename the array", command="leave --kind out, or rename the array")
            got = f"{', '.join(sorted(_names_of_scores(arrays)))} in {shown(place)}"
            raise InputError(f"{layout.kind}, as kind says", got, remedy)
        return {name: values for name, values in arrays.items() if stem_and_name(name)[1] != other}
    found = list(layout.columns) or advice.candidates(arrays)
    if len(found) != 1:
        raise InputError(
            f"one array of {layout.kind}",
            f"{', '.join(found) or 'none'} in {shown(place)}",
            f"name the one that is meant {layout.kind}",
        )
    return _renamed(arrays, {found[0]: layout.kind})


def _without_stem(arrays: dict[str, Array], layout: Layout) -> dict[str, Array]:
    """Return ``arrays`` with the one array of scores, pred_probs, under its own name where the labels of its rows have no stem."""
    labels = [name for name in (layout.label, *LABELS) if name in arrays]
    stems = [stem for stem in _stems(arrays) if stem]
    if len(stems) != 1 or not labels or "" in _stems(arrays) or stems[0].strip("_").casefold() in SPLITS:
        return arrays
    scores = {name: name.removeprefix(stems[0]) for name in _names_of_scores(arrays)}
    rows = {len(arrays[name]) for name in (*scores, labels[0]) if arrays[name].ndim}
    return _renamed(arrays, scores) if len(rows) == 1 and not {*scores.values()} & arrays.keys() else arrays


def _with_labels(arrays: dict[str, Array], layout: Layout, place: Path) -> tuple[dict[str, Array], str]:
    """Return ``arrays`` with the labels that the layout names under the name of labels, and how another file's were joined."""
    if layout.label is not None and layout.labels is None:  # else it is a column of that file
        stems = [stem for stem in ("", *_stems(arrays)) if stem + layout.label in arrays]
        if not stems:
            raise InputError(
                f"the label {layout.label!r}",
                f"{', '.join(sorted(arrays)[:20])} in {shown(place)}",
                "name one of these",
            )
        kept = {
            n: v for n, v in arrays.items() if stem_and_name(n)[1] not in (*LABELS, "label_ids") or n == layout.label
        }
        arrays = _renamed(kept, {stem + layout.label: stem + "labels" for stem in stems})
    if layout.labels is not None:
        there = [name for name in arrays if stem_and_name(name)[1] in (*LABELS, "label_ids") and not is_decided(name)]
        if there or len(_stems(arrays)) > 1:
            got = f"{', '.join(there)} in {shown(place)} too" if there else f"several splits in {shown(place)}"
            raise InputError("one place of the labels", f"{got}", "leave one out")
        stem = next(iter(_stems(arrays)), "")
        labels = _read_labels(as_path(layout.labels), layout)
        values, joined, found = align(arrays, labels, layout, path=place)
        if found is not None:
            rows = len(found)
            arrays = {name: one[found] if one.shape[:1] == (rows,) else one for name, one in arrays.items()}
        return {**arrays, stem + "labels": values}, joined
    return (arrays, "") if layout.missing is None else _without_unlabelled(arrays)


def _without_softmax(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return ``arrays`` without probabilities that lie beside their own logits."""
    twice = {stem + "probs" for stem in _stems(arrays) if {stem + one for one in KINDS} <= arrays.keys()}
    own = {name for name in twice if same_scores(arrays[name.removesuffix("probs") + "logits"], arrays[name])}
    return {name: values for name, values in arrays.items() if name not in own}


def _without_unlabelled(arrays: dict[str, Array]) -> tuple[dict[str, Array], str]:
    """Return ``arrays`` without the rows whose label is empty, and how many these were in words."""
    found, dropped, rows = dict(arrays), 0, 0
    for name in _labels_of(arrays):
        stem, values = stem_and_name(name)[0], arrays[name]
        kept = np.array([one is not None and one == one for one in values.tolist()])  # NaN is not itself
        if values.ndim != 1 or not kept.any():  # labels of positions, or none at all: no rows of a table with gaps
            continue
        dropped, rows = dropped + int((~kept).sum()), rows + len(kept)
        # what beside text holds an empty cell is an array of objects, which has a type of its own again without it
        found[name] = values[kept] if is_text(values[kept]) else np.array(values[kept].tolist())
        for other, one in arrays.items():
            if other != name and other.startswith(stem) and one.shape[:1] == kept.shape:
                found[other] = one[kept]
    return found, f"{dropped:,} of {rows:,} rows without a label dropped" if rows else ""


def _read_labels(place: Path, layout: Layout) -> Labels:
    """Return the labels in a file of their own: an array, a column with the other columns beside it, or a line of text a row."""
    suffix = place.suffix.lower()
    bare = suffix == ".txt" or suffix_of(place) not in READABLE  # a label a line
    if layout.label is not None and (suffix == ".npy" or bare):
        got = f"{shown(place)}, which holds one column"
        raise InputError("a table of labels beside label", got, _without("label"))
    if suffix == ".npy":
        return Labels(read_npy(place), {}, place)
    if bare:
        lines = [line.strip() for line in read_text(place).split("\n") if line.strip()]
        sign = next((one for one in "\t,; " if all(re.match(rf"\d+{one}+[-+\d]", line) for line in lines)), "")
        if (
            sign and len({line.count(sign) for line in lines}) == 1 and ":" not in lines[0]
        ):  # as LightGBM and XGBoost train on
            new = str(place.with_name(place.stem + "-labels.txt"))
            delimiter = "" if sign == "\t" else f" -d {shlex.quote(sign)}"
            command = f"cut{delimiter} -f 1 {shlex.quote(str(place))} > {shlex.quote(new)}"
            remedy = Remedy.making(command, shown(place), new).after("if the first holds the labels, ")
            raise FileFormatError("a label a line", f"{lines[0].count(sign) + 1} columns in {shown(place)}", remedy)
        # before the text of each row in fastText's files, before the features in LIBSVM's
        if all(line.startswith(FASTTEXT) or re.match(r"\S+ +\d+:\S", line) for line in lines):
            lines = [line.split()[0].removeprefix(FASTTEXT).removeprefix("+") for line in lines]
        numbers = all(re.fullmatch(r"-?[0-9]{1,18}", line) for line in lines)  # 18 digits fit in int64
        return Labels(np.array(lines, dtype=np.int64 if numbers else None), {}, place)
    place = _checked(place)
    held = place.suffix.lower() in ARRAYS
    arrays = read_tensors(place) if held else arrays_of_table(read_table(place), Layout(), place)[0]
    wanted = [layout.label] if layout.label else [*LABELS, "label_ids"]
    named = [name for name in wanted if name in arrays]
    if not named and not layout.label:
        truth = label_among(list(arrays), ())
        others = [name for name in arrays if name != layout.on and not called(name, "key")]
        named = [truth] if truth else others or list(arrays)
    columns = {name: arrays[name] for name in named if arrays[name].dtype.kind in "biuf" and arrays[name].ndim == 1}
    if len(columns) > 1 and not layout.label and (true := one_hot(columns)):
        return Labels(np.array(true, dtype=object), arrays, place)
    if len(named) != 1:
        counts = {
            name: len(set(arrays[name].tolist()))
            for name in named
            if arrays[name].dtype.kind in "biUO" and arrays[name].ndim == 1
        }
        few = [name for name, count in counts.items() if 1 < count <= len(arrays[name]) // 2]
        remedy = Remedy.read(label=few[0]).after(f"if {few[0]} holds them, ") if few else Remedy("name it label")
        raise InputError("one column of labels", f"{', '.join(sorted(arrays))} in {shown(place)}", remedy)
    return Labels(arrays[named[0]], {name: one for name, one in arrays.items() if name != named[0]}, place)


def _encoded(arrays: dict[str, Array], layout: Layout, classes: Classes, place: Path) -> dict[str, Array]:
    """Return ``arrays`` with labels as class indices."""
    found = dict(arrays)
    if layout.positive is not None:
        _refuse_positive_of_several(arrays, place)
    for name in _labels_of(arrays):
        stem, values = stem_and_name(name)[0], arrays[name]
        scores = next((arrays[stem + kind] for kind in KINDS if stem + kind in arrays), None)
        pred = stem + "pred"
        if pred in arrays and stem + "conf" in arrays and (is_text(values) or is_text(arrays[pred])):
            found[pred], found[name] = encode_pair(arrays[pred], values, layout)
        elif layout.positive is not None:
            found[name] = encode_positive(values, layout.positive, place)
        elif scores is not None and is_single(scores) and is_text(values) and not layout.class_names:
            refuse_unnamed_positive(values, scores, layout, place)
        elif stem + "conf" not in arrays:
            two = scores is not None and (is_single(scores) or classes.numbers == (0, 1))
            signed = two and values.dtype.kind in "if" and set(np.unique(values).tolist()) == {-1, 1}
            found[name] = (
                (values > 0).astype(np.int64)
                if signed
                else encode_labels(values, layout, classes, place, scores=scores)
            )
    # one sigmoid a row, (N, 1) as Keras has it, is what (N,) is, and labels likewise
    one = [name for name in _labels_of(arrays) if found[name].shape[1:] == (1,)]
    scored = [name for name in found if stem_and_name(name)[1] in KINDS]
    one += scored if all(found[name].shape[1:] == (1,) for name in scored) else []
    return found | {name: found[name][:, 0] for name in one}


def _counts(text: list[Array], arrays: dict[str, Array], names: tuple[str, ...]) -> dict[str, int]:
    """Return how many labels were matched to each class's name."""
    coded = [arrays[name] for name in _labels_of(arrays)] if text and names else []
    if not coded or any(values.dtype.kind not in "iu" for values in coded):
        return {}
    counts = sum(np.bincount(values.reshape(-1), minlength=len(names)) for values in coded)
    return dict(zip(names, np.asarray(counts).tolist(), strict=True))


def _refuse_positive_of_several(arrays: dict[str, Array], place: Path) -> None:
    own = any(
        stem_and_name(name)[1] in KINDS for name in arrays
    )  # beside them confidences are refused for what they are
    for name, values in arrays.items():
        kind = stem_and_name(name)[1]
        if (kind == "conf" and not own) or (kind in KINDS and not is_single(values)):
            got = f"{name} of shape {values.shape} in {shown(place)}"
            raise InputError("one score a row beside positive", got, _without("positive"))


def _without(name: str) -> Remedy:
    return Remedy(f"leave {name} out", command=f"leave --{name} out")


def _labels_of(arrays: dict[str, Array]) -> list[str]:
    """Return the names of the arrays that are labels of a split."""
    stems = {"", *_stems(arrays)}
    return [name for name in arrays if stem_and_name(name)[1] in LABELS and stem_and_name(name)[0] in stems]


def _class_names(arrays: dict[str, Array], layout: Layout, classes: Classes) -> tuple[str, ...]:
    """Return the names of the classes: the layout's, the file's own list, or none."""
    if layout.class_names:
        return layout.class_names
    held = [(name, arrays[name]) for name in arrays if name.rstrip("_") in CLASS_NAMES]
    names = (
        one for name, one in held if one.ndim == 1 and (is_text(one) or (name[-1] == "_" and one.dtype.kind in "iu"))
    )
    return next((tuple(one.astype(str).tolist()) for one in names), ())


def _check_count(names: tuple[str, ...], arrays: dict[str, Array], place: Path) -> None:
    """Refuse names that are not as many as the classes of the scores."""
    for name, values in arrays.items():
        if stem_and_name(name)[1] not in ("logits", "probs") or values.ndim > 2 or not names:
            continue
        classes = values.shape[1] if values.ndim == 2 else 2
        if len(names) != classes:
            raise InputError(
                f"class_names for {classes} classes",
                f"{len(names)} for {shown(place)}",
                "name each class once, in the order of the scores",
                argument="class_names",
            )


def _normalized(arrays: dict[str, Array], layout: Layout, place: Path) -> tuple[dict[str, Array], float | None]:
    """Return ``arrays`` with rows of probabilities divided by their sums, and how far these were from 1."""
    if not layout.normalize:
        return arrays, None
    names = [name for name in arrays if stem_and_name(name)[1] == "probs"]
    percent = {name: arrays[name] / 100 for name in names if of_one_event(arrays[name])}
    if percent:
        return arrays | percent, math.nan
    flat = next((arrays[name].shape for name in names if arrays[name].ndim != 2), None)
    if not names or flat is not None:
        expected, got = ("to normalize", "none") if flat is None else ("(N, K) to normalize", f"shape {flat}")
        raise InputError(f"probabilities {expected}", f"{got} in {shown(place)}", _without("normalize"))
    worst, found = 0.0, dict(arrays)
    for name in names:
        values = arrays[name].astype(np.float64) / (100 if are_percentages(arrays[name]) else 1)
        sums = values.sum(axis=1, keepdims=True)
        off = np.abs(sums - 1)
        # p_k / Σ p, as scikit-learn's OneVsRestClassifier has it, whatever the sums
        free = layout.one_vs_rest and within(values) and bool((sums > 0).all())
        if not free and not bool((off <= TOLERANCE).all()):
            row = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
            raise InputError(
                f"rows that sum to 1 within {TOLERANCE} to normalize",
                f"{float(sums[row, 0]):.4g} in row {row} of {shown(place)}",
                "check that these are probabilities of all classes",
            )
        worst = max(worst, float(off.max(initial=0.0)))
        found[name] = values / sums
    return found, worst


def _several_models(arrays: dict[str, Array]) -> tuple[str, bool]:
    """Return the column that names models, or nothing, and whether their predictions of the same rows stand in it.

    Then a key names each row once for every model, and always with the same label; without a key every model has as many rows,
    whose labels come in the same order.
    """
    labels = next((arrays[name] for name in _labels_of(arrays) if arrays[name].ndim == 1), np.empty(0))
    flat = {name: one for name, one in arrays.items() if one.shape == labels.shape and one.dtype.kind in "iuOUS"}
    keys = [name for name in flat if called(name, "key") and not called(name, "model")]
    models = {name: codes_of(flat[name]) for name in flat if called(name, "model")}
    models = {name: one for name, one in models.items() if 1 < len(one[1]) <= len(labels) / 2}
    truth, classes = codes_of(labels)
    for name, (told, known) in models.items():
        for key in keys:
            code, _ = codes_of(flat[key])
            once = (np.bincount(code) == len(known)).all() and len(np.unique(code * len(known) + told)) == len(labels)
            if once and len(np.unique(code * len(classes) + truth)) == len(labels) / len(known):
                return name, True
        if not keys:
            each = [labels[told == one] for one in range(len(known))]
            return name, len(each[0]) >= _ENOUGH and all(np.array_equal(one, each[0]) for one in each)
    return "", False


def _unnamed_split(arrays: dict[str, Array]) -> str:
    """Return the column of text whose values are called as splits are, train and test, and which is called otherwise; or nothing."""
    for name, values in arrays.items():
        if values.ndim == 1 and name != SPLIT and is_text(values):
            known = {one.strip().casefold() for one in map(str, codes_of(values)[1])}
            if len(known) > 1 and known <= SPLITS | {"training", "testing"}:
                return name
    return ""


def by_split(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return ``arrays`` parted by the names in the column ``split``, if there is one of text."""
    column = arrays.get(SPLIT)
    if column is None or column.ndim != 1 or not is_text(column):
        return arrays
    found: dict[str, Array] = {}
    for name in dict.fromkeys(column.astype(str).tolist()):
        rows = column == name
        found |= {f"{name}_{one}": values[rows] for one, values in arrays.items() if one != SPLIT}
    return found


def _from_trainer(arrays: dict[str, Array]) -> bool:
    return {"predictions", "label_ids"} <= arrays.keys() and arrays["predictions"].ndim > 1


def _renamed(arrays: dict[str, Array], names: dict[str, str]) -> dict[str, Array]:
    return {names.get(name, name): values for name, values in arrays.items()}


def _names_of_scores(arrays: dict[str, Array]) -> list[str]:
    return [name for name in arrays if stem_and_name(name)[1] in SCORES]


def _stems(arrays: dict[str, Array]) -> list[str]:
    return list(dict.fromkeys(stem_and_name(name)[0] for name in _names_of_scores(arrays)))
