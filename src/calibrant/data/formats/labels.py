"""Labels that are text, or numbers of columns, as class indices: by name, never by the order of the alphabet alone.

What a file says twice, as decisions or whether they were right, is checked against the reading.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.columns import Classes, folded, is_text
from calibrant.data.formats.kinds import as_probs, is_whole
from calibrant.data.formats.layout import KINDS, LABELS, SCORES, Layout, stem_and_name
from calibrant.data.formats.roles import called, is_decided
from calibrant.errors import FileFormatError, InputError, Remedy

# Share of rows that must agree. Decisions among three classes or more are the largest score but for ties; of two classes they
# may be taken at any threshold, so only a reversed reading is told from them.
_AGREE = {True: 0.5, False: 0.95}
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_OPPOSITES = {"false": "true", "0": "1", "no": "yes", "f": "t", "n": "y", "neg": "pos", "negative": "positive"}


def encode_labels(labels: Array, layout: Layout, classes: Classes, path: Path, *, scores: Array | None = None) -> Array:
    """Return labels as integers: text by the names of the classes, numbers by the columns' where those do not count from 0.

    Text without such names is refused with the order that ``scores`` (N, K) suggest.

    Raises:
        InputError: For text that names no class, or text without names to match it to.
    """
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and is_one_hot(labels):
        return np.asarray(labels.argmax(axis=1), dtype=np.int64)
    if is_text(labels):
        texts = labels.astype(str)
        found = texts.reshape(-1).tolist()
        if layout.class_names or classes.spelling(found) or not all(map(_INTEGER.fullmatch, found)):
            return _by_name(texts, layout, classes, path, scores)
        labels = texts.astype(np.int64)  # "0" and "2", or "001" beside prob_001: numbers that a file keeps as text
    if labels.dtype == bool:
        return _of_booleans(labels, layout, classes)
    labels = as_whole(labels)
    # classes called "-1" and "1", or "10" and "2": such labels name a column and do not count the columns
    if labels.dtype.kind in "iu":
        for names in (layout.class_names, *(() if classes.numbers else classes.spellings)):
            if names and (signed := integers(names)) and (not classes.numbers or set(np.unique(labels)) <= {*signed}):
                return _by_number(labels, signed, path)
    if classes.numbers and classes.numbers != tuple(range(len(classes.numbers))) and labels.dtype.kind in "iu":
        return _by_number(labels, classes.numbers, path)
    if not classes.ordered and not classes.numbers and classes.spellings and labels.dtype.kind in "iu":
        return _by_order(labels, layout, classes, path)
    return labels


def _by_order(labels: Array, layout: Layout, classes: Classes, path: Path) -> Array:
    """Return the places of classes that the labels number, where the file has the classes in no order but that of their names.

    Raises:
        InputError: If they are not two opposites, and no class names say what the numbers mean.
    """
    own = classes.spelling(layout.class_names) if layout.class_names else ()
    low = sorted(classes.spellings[-1], key=lambda name: (name.casefold() not in _OPPOSITES, name))
    if [_OPPOSITES.get(low[0].casefold())] == [name.casefold() for name in low[1:]]:
        own, names = classes.spellings[-1], tuple(low)
    else:
        names = layout.class_names
    if len(own) == len(names) > int(labels.max(initial=0)) and labels.min(initial=0) >= 0:
        return np.array([own.index(name) for name in names])[labels]
    raise InputError(
        f"labels that are names, as the classes {', '.join(classes.spellings[0][:8])} are",
        f"numbers in {shown(path)}, whose order is not in the file",
        Remedy(
            "pass class_names, in the order in which the labels count them",
            command="write them to names.txt, one a line in the order in which the labels count them, and add --class-names names.txt",
        ),
    )


def as_whole(values: Array) -> Array:
    """Return whole numbers that a table with gaps, or R, keeps as decimals as integers, and anything else as it is."""
    return values.astype(np.int64) if is_whole(values) else values


def is_one_hot(labels: Array) -> bool:
    """Say whether each row (K > 1) has a single 1 and zeros, as Keras keeps labels."""
    return labels.shape[1] > 1 and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def encode_positive(labels: Array, positive: str, path: Path) -> Array:
    """Return 1 where a label is ``positive``, as text or as a number, and 0 for the one other value.

    Raises:
        InputError: If no label is, or there are more than two values.
    """
    texts = np.array([spelled(one) for one in labels.reshape(-1).tolist()]).reshape(labels.shape)
    values = sorted(set(texts.reshape(-1).tolist()))
    # as it is written before any other case: "Yes" and "yes" may be the two values
    wanted = next((one for one in values if one == positive), None)
    wanted = next((one for one in values if one.casefold() == positive.casefold()), None) if wanted is None else wanted
    if wanted is None or len(values) > 2:
        raise InputError(
            f"labels of two values, {positive!r} one of them",
            f"{', '.join(repr(one[:40]) for one in values[:4])} in {shown(path)}",
            "name the positive one of two",
        )
    coded: Array = (texts == wanted).astype(np.int64)
    return coded


def refuse_unnamed_positive(labels: Array, scores: Array, layout: Layout, path: Path) -> None:
    """Refuse labels that are text beside one score a row: which of the two the score speaks of is not in the file.

    Raises:
        InputError: Always, naming the two values, and first the one whose rows have larger scores.
    """
    likely, texts = likely_positive(labels, scores), np.unique(labels.astype(str))
    got = f"labels {', '.join(repr(one[:40]) for one in texts[:4].tolist())} in {shown(path)}"
    if len(texts) > 2:
        raise InputError("labels of two values beside one score a row", got, "name the columns of all classes")
    unsure = f"if {' '.join([*layout.columns, 'speaks of']) if layout.columns else 'it is'} {likely!r}, "
    remedy = Remedy.read(positive=likely).after(unsure)
    raise InputError("the label that the one score a row is the probability of", got, remedy)


def likely_positive(labels: Array, scores: Array) -> str:
    """Return the label that is text whose rows have the larger scores in the mean; the first of the alphabet where they tie."""
    texts = labels.astype(str).reshape(-1)
    if len(texts) != scores.size:  # rows with empty cells were left out
        return str(np.unique(texts)[0])
    return str(max(np.unique(texts), key=lambda one: float(scores.reshape(-1)[texts == one].mean())))


def is_single(scores: Array) -> bool:
    """Say whether scores are one a row."""
    return scores.ndim == 1 or (scores.ndim == 2 and scores.shape[1] == 1)


def can_label(values: Array, scores: Array, pred: Array | None, layout: Layout, classes: Classes) -> bool:
    """Say whether every value of a column (N,) names a class of scores (N, K) or (N,), as ``encode_labels`` matches them.

    Beside decisions ``pred``, whose confidences the scores are, it shares a value with them.
    """
    values = as_whole(values)
    if values.shape != scores.shape[:1] or not len(values) or values.dtype.kind not in "biuOUS":
        return False
    if any(isinstance(one, dict | list | np.ndarray) for one in values.tolist()):  # several things name no class
        return False
    width = 2 if is_single(scores) else scores.shape[1]
    if pred is None and len(set(values[:1000].tolist())) > width:  # ids: the first rows say so
        return False
    found = set(values.tolist())
    if None in found:
        return False
    if pred is not None:
        return is_text(values) == is_text(pred) and not found.isdisjoint(pred.tolist())
    if is_text(values):
        names = {str(one) for one in found}
        if is_single(scores):
            return len(names) == 2 and "" not in names and layout.positive in (None, *names)
        return bool(classes.spelling(names, given=layout.class_names))
    # of one value alone anything could be said: a constant column of 0 is no sign of labels
    signed = next(filter(None, map(integers, (layout.class_names, *classes.spellings))), ())
    known = classes.numbers or signed or range(width)
    return len(found) > 1 and (values.dtype.kind == "b" or found <= set(known))


def spelled(value: object) -> str:
    """Return a label as a person types it: a column with gaps turns 1 into 1.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _of_booleans(labels: Array, layout: Layout, classes: Classes) -> Array:
    """Return boolean labels by the columns' names, as ``p_True, p_False`` have them; without such names True is class 1."""
    for names in (layout.class_names, *classes.spellings):
        index = {name.casefold(): place for place, name in enumerate(names)}
        for no, yes in _OPPOSITES.items():
            if {no, yes} == index.keys():
                return np.where(labels, index[yes], index[no]).astype(np.int64)
    return labels.astype(np.int64)


def _by_name(labels: Array, layout: Layout, classes: Classes, path: Path, scores: Array | None) -> Array:
    if names := classes.spelling(labels.reshape(-1).tolist(), given=layout.class_names):
        return _coded(labels, {name: place for place, name in enumerate(names)})
    known = layout.class_names or next(iter(classes.spellings), ())
    texts = sorted(set(labels.reshape(-1).tolist()))
    strange = ", ".join(repr(one[:40]) for one in [one for one in texts if one not in known][:3])
    # of columns that are called as no label is, the order of the labels is open
    remedy = None if layout.class_names or not {*known}.isdisjoint(texts) else _named_in_order(labels, scores)
    if known:
        expected, got = f"labels among the classes {', '.join(known[:8])}{' …' if len(known) > 8 else ''}", strange
        words = "name the columns as the labels are, or pass {}"
        usual = Remedy(words.format("class_names"), command=words.format("--class-names"))
    else:
        expected, got = "names of the classes beside labels that are text", f"none for {strange}"
        usual = Remedy(
            "pass class_names, one name a class in the order of the scores",
            command="write them to names.txt, one a line in the order of the scores, and add --class-names names.txt",
        )
    raise InputError(expected, f"{got} in {shown(path)}", remedy or usual)


def _named_in_order(labels: Array, scores: Array | None) -> Remedy | None:
    """Return the remedy to name the classes of labels (N,) that are text, in the order that scores (N, K) suggest or a person knows.

    None for more labels than classes.
    """
    names = sorted(set(labels.reshape(-1).tolist()))
    if scores is None or labels.ndim > 1 or scores.ndim != 2 or len(names) > scores.shape[1]:
        return None
    few = f"{', '.join(names[:4])}{' …' if names[4:] else ''}"
    words = f"write {few} in the order of the columns, one a line, into names.txt and "
    return in_order(labels, scores) or _in_file(repr(names), words)


def _in_file(names: str, words: str, *, command: str = "", **said: str | bool) -> Remedy:
    """Return the remedy to name the classes, in Python by ``names``, on the command line by a file that ``command`` makes."""
    found = Remedy.read(**said, class_names="names.txt").after(words)
    return replace(found, python=found.python.replace("'names.txt'", names), command=command)


def _by_number(labels: Array, numbers: Sequence[int], path: Path) -> Array:
    """Return the place of each label among the columns' numbers: with p1 … p10 the label 10 is the last class."""
    strange = np.setdiff1d(labels, np.array(numbers))
    if strange.size:
        remedy = from_zero(labels, numbers) or "rename the columns to count from 0 if the labels do"
        expected = f"labels among the numbers of the columns, {numbers[0]} … {numbers[-1]}"
        raise InputError(expected, f"{int(strange[0])} in {shown(path)}", remedy)
    return _coded(labels, {number: place for place, number in enumerate(numbers)})


def from_zero(labels: Array, numbers: Sequence[int]) -> Remedy | None:
    """Return the remedy for labels that can only count numbered columns from 0, V1, V2 and a label 0; None for any others."""
    whole = labels.dtype.kind in "iu" or is_whole(labels)
    if (
        not labels.size
        or not whole
        or labels.min() < 0
        or labels.max() >= len(numbers)
        or np.isin(labels, numbers).all()
    ):
        return None
    words, last = "if the labels count the columns from 0, ", len(numbers) - 1
    return _in_file(f"[str(k) for k in range({last + 1})]", words, command=f"run: seq 0 {last} > names.txt")


def in_order(labels: Array, scores: Array, **said: str | bool) -> Remedy | None:
    """Return the remedy, with the arguments ``said``, that names the classes of scores (N, K) as labels that are text suggest.

    Each label is the class whose score exceeds its mean most in the label's rows; None where two labels are the same.
    """
    texts = sorted(set(labels.tolist()))
    if scores.shape != (len(labels), len(texts)) or not 1 < len(texts) <= 100:
        return None
    over = scores - scores.mean(axis=0)
    best = {one: int(over[labels == one].mean(axis=0).argmax()) for one in texts}
    if len({*best.values()}) < len(texts):
        return None
    names = sorted(texts, key=best.__getitem__)
    few = ", ".join(names if len(names) < 7 else [*names[:3], "…", names[-1]])
    words, command = (
        f"if the scores are of {few} in this order, ",
        f"run: printf '%s\\n' {shlex.join(names)} > names.txt",
    )
    return _in_file(repr(names), words, command=command, **said)


def integers(names: Sequence[str]) -> tuple[int, ...]:
    """Return names such as "-1", "1" or "10", "2" as numbers, or nothing if one is none."""
    numbers = tuple(int(name) for name in names if _INTEGER.fullmatch(name))
    return numbers if len(set(numbers)) == len(names) else ()


def encode_pair(pred: Array, labels: Array, layout: Layout) -> tuple[Array, Array]:
    """Return predicted and true classes that are text as integers; only their being equal matters where no names are given."""
    both = np.concatenate([pred.astype(str), labels.astype(str)])
    names = layout.class_names or tuple(sorted(set(both.tolist())))
    strange = sorted(set(both.tolist()) - set(names))[:3]
    if strange:
        raise InputError("classes among class_names", f"{', '.join(map(repr, strange))}", "add them to the names")
    index = {name: place for place, name in enumerate(names)}
    return _coded(pred.astype(str), index), _coded(labels.astype(str), index)


def _coded(labels: Array, index: Mapping[Any, int]) -> Array:
    alike = {folded(name): place for name, place in index.items() if isinstance(name, str)}
    coded = [index[one] if one in index else alike[folded(one)] for one in labels.reshape(-1).tolist()]
    return np.array(coded, dtype=np.int64).reshape(labels.shape)


def _of_classes(arrays: Mapping[str, Array]) -> list[Array]:
    """Return the scores (N, K) of two classes or more."""
    return [arrays[kind] for kind in KINDS if kind in arrays and arrays[kind].ndim == 2 and arrays[kind].shape[1] > 1]


def names_of_decisions(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the names of classes that nothing else names, where decisions in text say them: one and the same for each largest score.

    Nothing unless every class is decided in some row.
    """
    for scores in _of_classes(arrays):
        best = scores.argmax(axis=1)
        for name, values in arrays.items():
            if values.shape == best.shape and is_decided(name, own=True) and is_text(values):
                pairs = dict(zip(best.tolist(), values.tolist(), strict=True))
                distinct = len(pairs) == len(set(pairs.values())) == scores.shape[1]
                if distinct and all(pairs[at] == one for at, one in zip(best.tolist(), values.tolist(), strict=True)):
                    return tuple(pairs[at] for at in range(len(pairs)))
    return ()


def refuse_contradictions(arrays: Mapping[str, Array], classes: Classes, names: tuple[str, ...], path: Path) -> None:
    """Refuse a reading that the decisions, or their being right, in the same file contradict.

    Args:
        arrays: As they are read: scores, labels as class indices, and everything else in the file.
        classes: What the columns say of the classes.
        names: The names of the classes that were stated, or none.
        path: The file.

    Raises:
        InputError: If too few rows agree, with how many do.
    """
    for scores in _of_classes(arrays):
        best, top = scores.argmax(axis=1), scores.max(axis=1)
        label = next((arrays[name] for name in LABELS if name in arrays), None)
        for name, values in arrays.items():
            agreed, what = None, ""
            if values.shape != best.shape or stem_and_name(name)[1] in (*LABELS, *KINDS):
                continue
            if (
                is_decided(name, own=True)
                and (coded := decisions_as_indices(values, classes, names, scores.shape[1])) is not None
            ):
                agreed, what = scores[np.arange(len(best)), coded] >= top, "the class of the largest score"
            elif called(name, "right") and label is not None and label.shape == best.shape:
                if values.dtype.kind in "biuf" and set(np.unique(values).tolist()) <= {0, 1}:
                    agreed, what = (best == label) == values.astype(bool), "whether the largest score is the label"
            if agreed is not None and (share := float(agreed.mean())) < _AGREE[scores.shape[1] == 2]:
                remedy = "check the order of the classes and the column of the labels; rename that column if it is of another model"
                raise InputError(f"{name!r} as {what} in {shown(path)}", f"agreement in {share:.1%} of rows", remedy)


def refuse_strangers(
    arrays: Mapping[str, Array], names: Sequence[str], remedy: Callable[[list[str]], Remedy], path: Path
) -> None:
    """Refuse logits some of which are no class: an energy or a novelty that is called as the logits are.

    A calibrated model leaves a class to which its softmax gives m rows without a label with a probability of at most e^−m. From
    m = log(20 K) on, one of K classes is left so in fewer than one of twenty tables.

    Args:
        arrays: As they are read: logits, and labels as class indices.
        names: The columns of the logits.
        remedy: Of the columns that are left: reads these alone.
        path: The file.

    Raises:
        FileFormatError: Naming the columns that no label names.
    """
    for name, logits in arrays.items():
        stem, kind = stem_and_name(name)
        labels = next((arrays[stem + one] for one in LABELS if stem + one in arrays), np.empty(0))
        if kind != "logits" or logits.shape != (len(labels), len(names)) or labels.dtype.kind not in "iu":
            continue
        unseen = ~np.isin(np.arange(len(names)), labels)
        if not unseen.any():
            continue
        with np.errstate(invalid="ignore"):  # what is not finite is refused where predictions are made
            rows = as_probs("logits", logits.astype(np.float64)).sum(axis=0)
        strange = unseen & (rows >= np.log(20 * len(names)))
        if strange.any() and (~strange).sum() > 1:
            more = ", ".join(np.array(names)[strange][:4])
            expected = f"logits of classes that some label names in {shown(path)}"
            raise FileFormatError(expected, f"no label of {more}", remedy(np.array(names)[~strange].tolist()))


def decisions_as_indices(values: Array, classes: Classes, names: tuple[str, ...], count: int) -> Array | None:
    """Return decisions as class indices, or None where they are of other names."""
    index: dict[Any, int]
    if is_text(values):
        index = {name: at for at, name in enumerate(classes.spelling(values.tolist(), given=names))}
    else:
        index = {number: at for at, number in enumerate(classes.numbers or range(count))}
    known = is_text(values) or (values.dtype.kind in "iuf" and set(np.unique(values).tolist()) <= index.keys())
    return _coded(values, index) if index and known else None


# Labels of one file laid beside the scores of another: by a column that names each row in both, else by position.


@dataclass(frozen=True)
class Labels:
    """The labels in a file of their own, the other columns of that file, and its path."""

    values: Array
    columns: Mapping[str, Array]
    path: Path


def align(
    arrays: Mapping[str, Array], labels: Labels, layout: Layout, *, path: Path
) -> tuple[Array, str, NDArray[np.bool_] | None]:
    """Return the labels in the order of the scores, how that order was found in words, and which rows have one (None: all).

    Args:
        arrays: The file of the scores.
        labels: The file of the labels.
        layout: The column that names each row in both (``on``; None finds it), and whether rows without a label are dropped.
        path: The file of the scores, for messages.

    Raises:
        InputError: If ``on`` is missing or repeats itself, rows of the scores have no label and are not to be dropped, or a
            column that both files have and that seems to name rows does not.
    """
    rows = next((len(values) for name, values in arrays.items() if stem_and_name(name)[1] in SCORES), None)
    key = _key(arrays, labels, layout.on, path, rows)
    if key is None:
        said = f"labels of {shown(labels.path)} taken by position: the two files share no column that names rows"
        return labels.values, said, None
    ours, theirs = _texts(arrays[key]), _texts(labels.columns[key])
    place = {name: row for row, name in enumerate(theirs)}
    missing = [name for name in ours if name not in place]
    if missing and (layout.missing is None or len(missing) == len(ours)):
        remedy = Remedy.read(missing="drop").after("add them, or leave these rows out: ")
        if len(missing) == len(ours):  # no two rows are the same: it is not the key of both
            remedy = Remedy("name the column that both share as on", command="name the column that both share by --on")
        got = f"none for {len(missing):,} of {len(ours):,} rows ({missing[0]!r}) in {shown(labels.path)}"
        raise InputError(f"a label for every {key!r} of {shown(path)}", got, remedy)
    spare = len(theirs) - len(ours) + len(missing)
    notes = [f"; {spare:,} of its rows have no scores"] if spare else []
    notes += [f"; {len(missing):,} of {len(ours):,} rows without a label dropped"] if missing else []
    said = f"labels of {shown(labels.path)} joined on {key!r}{''.join(notes)}"
    kept = np.array([name in place for name in ours]) if missing else None
    return labels.values[[place[name] for name in ours if name in place]], said, kept


def _key(arrays: Mapping[str, Array], labels: Labels, on: str | None, path: Path, rows: int | None) -> str | None:
    """Return the column that names each row once in both files, or None where no column can."""
    if on is not None:
        for columns, file in ((arrays, path), (labels.columns, labels.path)):
            if on not in columns:
                raise InputError(
                    f"the column {on!r} in {shown(file)}",
                    f"{', '.join(sorted(columns)[:12]) or 'none'}",
                    "name a column that both files have as on",
                )
            _refuse_repeats(columns[on], on, file)
        return on
    shared = [
        name
        for name, values in arrays.items()
        if name in labels.columns
        and stem_and_name(name)[1] not in (*SCORES, *LABELS)
        and _names_rows(values, rows)
        and _names_rows(labels.columns[name], len(labels.values))
    ]
    # a column called id goes before a text that happens to be distinct; the sort keeps the file's order otherwise
    shared.sort(key=lambda name: not called(name, "key"))
    for name in shared:
        if _all_distinct(arrays[name]) and _all_distinct(labels.columns[name]):
            return name
    for name in shared:  # a key that repeats itself: position would join rows of different names
        if called(name, "key") and _texts(arrays[name]) != _texts(labels.columns[name]):
            _refuse_repeats(arrays[name], name, path)
            _refuse_repeats(labels.columns[name], name, labels.path)
    return None


def _names_rows(values: Array, rows: int | None) -> bool:
    # no floats, unless ``on`` names them: a score that both files hold would join their rows
    return values.ndim == 1 and values.dtype.kind in "iuUSOM" and (rows is None or len(values) == rows)


def _all_distinct(values: Array) -> bool:
    return len(set(_texts(values))) == len(values)


def _refuse_repeats(values: Array, name: str, path: Path) -> None:
    counts = Counter(_texts(values))
    twice = [one for one, count in counts.items() if count > 1]
    if twice:
        raise InputError(
            f"each {name!r} once in {shown(path)}",
            f"{len(twice):,} that occur more than once ({twice[0]!r})",
            "name a column that is distinct as on, or remove the repeated rows",
        )


def _texts(values: Array) -> list[str]:
    """Return keys as text: whole numbers that a table with gaps keeps as floats are written without ``.0``."""
    return [str(one) for one in as_whole(values).tolist()]
