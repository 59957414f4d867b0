"""Checks of the options of data sets, before a file is read."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from calibrant._core.arguments import check_seed, check_text
from calibrant._core.check import check_choice, check_count, check_flag, check_number, shown
from calibrant._core.paths import as_path
from calibrant._core.paths import shown as shown_path
from calibrant.errors import FileFormatError, InputError

Record = TypeVar("Record")

MOST = 1 << 24  # samples, words or pixels
MOST_SPLIT_SEED = 2**32 - 1  # largest seed of NumPy's legacy generator, which draws the papers' splits


def _count(low: int = 1) -> Callable[[Any, str], Any]:
    return lambda value, name: check_count(value, name=name, low=low, high=MOST)


CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("train", "validation", "test", "vocabulary", "size", "workers", "patches", "pool"), _count()),
    "length": _count(),
    "folds": _count(2),
    "fold": _count(0),
    "seed": lambda value, name: check_seed(value, name=name),
    "split_seed": lambda value, name: check_count(value, name=name, low=0, high=MOST_SPLIT_SEED),
    "noise": lambda value, name: check_number(value, name=name, low=0),
    "deviation": lambda value, name: check_number(value, name=name, low=0),
    "mean": lambda value, name: check_number(value, name=name),
    **dict.fromkeys(("augment", "headers"), lambda value, name: check_flag(value, name=name)),
    "classes": lambda value, name: check_choice(str(check_count(value, name=name)), name=name, choices=("2", "3")),
    **dict.fromkeys(("folder", "cache", "glove"), lambda value, name: as_path(value, name=name)),
    "files": lambda value, name: value if isinstance(value, Mapping) else as_path(value, name=name),
    "keep": lambda value, name: check_choice(value, name=name, choices=("first", "last")),
    "kind": lambda value, name: check_choice(value, name=name, choices=("tfidf", "hashed")),
    "tokenizer": lambda value, name: check_text(value, name=name),
}
OPTIONAL = ("train", "validation", "test", "folder", "cache", "glove")  # None: all samples, the hub, no word vectors


def check_options(options: Mapping[str, Any], *, of: str = "") -> None:
    """Raise if an option has an impossible value; options that are not in ``CHECKS`` are checked by their data set.

    Args:
        options: Options by name; None stands for the default, if there is one.
        of: Text after the option's name in messages, such as ``" of data set 'digits'"``.

    Raises:
        InputError: With the first such option.

    Examples:
        >>> check_options({"train": 100, "noise": 0.2, "folder": None})
    """
    for name, value in options.items():
        if name in CHECKS and not (value is None and name in OPTIONAL):
            CHECKS[name](value, name + of)


def options_from(record: type[Record], options: Mapping[str, Any], *, name: str) -> Record:
    """Return the dataclass ``record`` made of ``options``.

    Args:
        record: The dataclass of a data set's options.
        options: The given options, by name.
        name: Name of the data set.

    Raises:
        InputError: If the data set does not have one of them.
    """
    known = [item.name for item in fields(cast(Any, record))]
    if unknown := [key for key in options if key not in known]:
        raise InputError(f"options {', '.join(known)} of data set {name!r}", f"{unknown[0]!r}", "correct it")
    needed = [item.name for item in fields(cast(Any, record)) if item.default is item.default_factory is MISSING]
    if missing := [key for key in needed if key not in options]:
        raise InputError(f"{missing[0]} of data set {name!r}", "none", f"pass {missing[0]}")
    return record(**options)


def check_only_fold(fold: int) -> None:
    """Raise unless ``fold`` is 0, for data sets with a fixed test set."""
    if fold:
        raise InputError("fold 0 of data with a test set of their own", f"{fold}", "leave folds out")


def data_folder(folder: Any, *, name: str) -> Path:
    """Return the folder of the data set ``name``.

    Raises:
        InputError: If ``folder`` is not a path.
        FileFormatError: If there is no such folder.
    """
    place = as_path(folder, name="folder")
    if not place.is_dir():
        raise FileFormatError(f"the folder of {name}", f"no such folder: {shown_path(place)}", "check the path")
    return place


def check_name(name: Any, known: Mapping[str, Any]) -> str:
    """Return ``name`` if it is the name of a data set among ``known``."""
    if not isinstance(name, str) or name not in known:
        raise InputError(f"a data set of {', '.join(known)}", f"{shown(name)}", "choose one")
    return name
