"""What a user says about a file whose names do not say it: which columns, which label, which kind."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from calibrant._core.check import ROUNDING, refuse, shown
from calibrant._core.constraints import Text, checked
from calibrant._core.paths import as_path
from calibrant.errors import Remedy

A = TypeVar("A")
ARRAYS = (".npz", ".safetensors", ".npy", ".pt", ".pth")
BASES = (".db", ".sqlite", ".sqlite3")
FOREIGN = (".arff", ".orc", ".dta", ".sav", ".sas7bdat", ".xpt", ".ods", ".xls", *BASES)  # read, and not written
TABLES = (".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".json", ".xlsx", *FOREIGN)
TEXTS = (".csv", ".tsv", ".arff")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # around text: scores.csv.gz
_SYNONYMS = {".ndjson": ".jsonl", ".txt": ".csv", ".tab": ".tsv"}
READABLE = (*ARRAYS, *TABLES)
KINDS = ("logits", "probs")
REST = "one-vs-rest"  # the kind of scores between 0 and 1 of which each has a classifier of its own
SCORES = ("logits", "probs", "conf")
LABELS = ("labels", "label")
NAME_KIND = Remedy(
    "pass kind='probs', or kind='logits', to calibrant.read", command="add --kind probs, or --kind logits"
)
WEIGHTS = "weights"  # the array, or column, of how much each row counts
CLASS_NAMES = ("class_names", "classes")  # also with scikit-learn's mark of what was learned, classes_
SPLITS = {"train", "val", "valid", "validation", "dev", "calibration", "test", "eval", "holdout"}
TOLERANCE = ROUNDING  # of a row's sum, under normalize


class Reading(TypedDict, total=False):
    """What a user may say of a file: arguments of ``calibrant.read``, and options of every command that reads one."""

    columns: str | Sequence[str] | None
    label: Text | None
    kind: Literal["logits", "probs", "one-vs-rest"] | None
    labels: str | os.PathLike[str] | None
    normalize: bool
    class_names: Sequence[Text] | None
    on: Text | None
    positive: str | float | None
    missing: Literal["drop"] | None


@dataclass(frozen=True)
class Layout:
    """How to read a file whose names do not say all; the default reads the names that Calibrant writes.

    Args:
        columns: Patterns or names of a table's columns, one a class, in the order of the file; or the one column that
            holds a list, or the probability of class 1.
        label: The column, or array, of the labels.
        kind: "logits" or "probs": what the columns, or an array without a name that says so, hold.
        labels: A file that holds the labels of the rows.
        normalize: Divide each row of probabilities by its sum, which must lie within ``TOLERANCE`` of 1.
        class_names: Names of the classes in order, for labels that are text.
        on: The column that names each row in the file and in ``labels``; None finds it.
        positive: The value of the label that one score a row is the probability, or logit, of.
        missing: "drop" leaves out rows without a label, in ``labels`` or in the file itself; None refuses them.
        one_vs_rest: Whether ``normalize`` takes sums of any size, as scores of one-vs-rest classifiers have them.
    """

    columns: tuple[str, ...] = ()
    label: str | None = None
    kind: str | None = None
    labels: str | os.PathLike[str] | None = None
    normalize: bool = False
    class_names: tuple[str, ...] = ()
    on: str | None = None
    positive: str | None = None
    missing: str | None = None
    one_vs_rest: bool = False

    @staticmethod
    @checked
    def of(**said: Unpack[Reading]) -> "Layout":
        """Return the layout of what a user says; ``columns`` may be text with commas.

        Raises:
            InputError: For an argument of another type or value.
        """
        given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        if "on" in given and "labels" not in given:
            raise refuse("on beside labels in a file of their own", "no such file", "pass labels, or leave on out")
        if "labels" in given:
            as_path(given["labels"], name="labels")
        if "positive" in given:
            if not isinstance(given["positive"], str | int | float):
                raise refuse("positive as a value of the label", shown(given["positive"]), "name one, such as 'yes'")
            given["positive"] = str(given["positive"])
        for name in {"columns", "class_names"} & given.keys():
            given[name] = _names(given[name], name=name, split=name == "columns")
        if given.get("kind") == REST:
            given |= {"kind": "probs", "normalize": True, "one_vs_rest": True}
        return Layout(**given)

    def given(self) -> list[str]:
        """Return the names of what differs from the default."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


def _names(values: Any, *, name: str, split: bool = False) -> tuple[str, ...]:
    if isinstance(values, str) and split:
        values = [part.strip() for part in values.split(",")]
    listed = list(values) if isinstance(values, Sequence) and not isinstance(values, str | bytes) else []
    text = bool(listed) and all(isinstance(one, str) and one for one in listed)
    twice = [one for one, count in Counter(listed).items() if count > 1] if text else []
    if twice or not text:
        got = f"{twice[0]!r} twice" if twice else shown(values)
        raise refuse(f"{name} as a list of distinct names", got, "pass text, each name once")
    return tuple(listed)


def suffix_of(path: Path) -> str:
    """Return the suffix that says the format of a file, as ``.csv`` of ``scores.csv.gz``."""
    *others, last = [one.lower() for one in path.suffixes] or [""]
    inner = _SYNONYMS.get(others[-1], others[-1]) if others and last in COMPRESSED else ""
    return inner if inner in (*TEXTS, ".jsonl", ".json") else _SYNONYMS.get(last, last)


def sides_of(positive: str | None) -> tuple[str, ...]:
    """Return the names of what an event is not, and of the event; none where it has no name."""
    return () if positive is None else (f"not {positive}", positive)


def of_part(arrays: Mapping[str, A], stem: str, stems: Iterable[str]) -> dict[str, A]:
    """Return the arrays of the part whose names begin with ``stem`` under their own names; of "test_" and "test_b_" the longer
    takes what begins with both."""
    longer = tuple(one for one in stems if one != stem and one.startswith(stem))
    own = (name for name in arrays if name.startswith(stem) and not (longer and name.startswith(longer)))
    return {name.removeprefix(stem): arrays[name] for name in own}


def stem_and_name(name: str) -> tuple[str, str]:
    """Return ("val_", "logits") for "val_logits", and ("", "logits") for "logits"; ("", "label_ids") for that name."""
    if name == "label_ids":
        return "", name
    stem, bar, kind = name.rpartition("_")
    return (stem + bar, kind) if stem else ("", name)
