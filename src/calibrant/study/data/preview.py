"""What can be said of a data set before its files are read: whether its options fit, and what a network must know."""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from calibrant._check import check_choice, check_count
from calibrant.errors import InputError
from calibrant.study.data._papers import RULES
from calibrant.study.data.images import SOURCES, STATISTICS, Options
from calibrant.study.data.ood import MAKERS

__all__ = ["preview"]

TEXT_VOCABULARY = 8  # stands for the words of a text that has not been read
COUNTS = ("train", "test", "validation", "length", "vocabulary", "folds", "size", "workers")


def preview(
    data: Mapping[str, Any], *, makers: Mapping[str, Any], tokenised: Mapping[str, Any], fold: int = 0
) -> dict[str, Any]:
    """Return what a network must know of a data set (``classes``, ``inputs`` …), without reading a file.

    Args:
        data: The name of a data set and its options.
        makers: Data sets by name.
        tokenised: Those that a tokenizer makes otherwise.
        fold: Which fold is tested.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
    """
    options = {key: value for key, value in data.items() if key != "folds" or data.get("name") == "digits"}
    name, outside = options.pop("name", None), options.pop("ood", ())
    if name not in makers:
        raise InputError(f"expected a data set of {', '.join(makers)}, got {name!r}; choose one")
    maker = tokenised[name] if "tokenizer" in options and name in tokenised else makers[name]
    _check_options(name, maker, options)
    for key in COUNTS:
        if options.get(key) is not None:
            check_count(options[key], name=f"{key} of data set {name!r}")
    _check_outside(outside, text=name in ("sst", "20news"), numbers=name == "digits")
    folds = options.get("folds", 5) if name == "digits" else 1
    if not 0 <= fold < folds:
        raise InputError(f"expected fold in 0 … {folds - 1} of data set {name!r}, got {fold}; lower it")
    return _sizes(name, options)


def _check_options(name: str, maker: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that the data set does not have, lacks, or that name no rule or statistics."""
    if name in SOURCES:
        known = dict.fromkeys((item.name for item in fields(Options)), False)
    else:
        parameters = inspect.signature(maker).parameters
        known = {
            key: item.default is inspect.Parameter.empty
            for key, item in parameters.items()
            if key not in ("seed", "fold", "name")
        }
    unknown = [key for key in options if key not in known]
    if unknown:
        raise InputError(f"expected options {', '.join(known)} of data set {name!r}, got {unknown[0]!r}; correct it")
    missing = [key for key, required in known.items() if required and key not in options]
    if missing:
        remedy = "name it, or give --data" if missing[0] == "folder" else "add it"
        raise InputError(f"expected the option {missing[0]!r} of data set {name!r}, got none; {remedy}")
    if name in SOURCES:
        for key, choices in (("split", RULES), ("statistics", STATISTICS)):
            if options.get(key) is not None:
                check_choice(options[key], name=f"{key} of data set {name!r}", choices=tuple(choices))
    if name == "sst" and "classes" in options:
        check_choice(str(options["classes"]), name="classes of data set 'sst'", choices=("2", "3"))


def _check_outside(outside: Any, *, text: bool, numbers: bool) -> None:
    """Refuse out-of-distribution sets that are unknown, come twice, or do not go with the data."""
    if not isinstance(outside, list | tuple):
        raise InputError(f"expected a list of ood sets, got {outside!r}; write it in brackets")
    names = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in outside]
    known = [*MAKERS, *([] if numbers else SOURCES)]
    for name in names:
        if text:
            raise InputError(f"expected images beside the ood set {name!r}, got text; leave ood out")
        if name not in known:
            raise InputError(f"expected ood sets of {', '.join(known)}, got {name!r}; choose among these")
        if names.count(name) > 1:
            raise InputError(f"expected each ood set once, got {name!r} twice; leave one out")


def _sizes(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if name in SOURCES:
        return {"classes": SOURCES[name].classes, "inputs": 3 * SOURCES[name].size ** 2}
    if name == "digits":
        return {"classes": 10, "inputs": 64}
    if name == "imagenet":
        return {"classes": 1000, "inputs": 3 * options.get("size", 224) ** 2}
    classes = options.get("classes", 2) if name == "sst" else 20
    return {"classes": classes, "vocabulary": options.get("vocabulary", TEXT_VOCABULARY)}
