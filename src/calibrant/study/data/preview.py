"""Checks of a data set's options, and its sizes, before its files are read."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import torch

from calibrant._core.arguments import check_mapping, check_text
from calibrant._core.check import check_choice
from calibrant.errors import InputError
from calibrant.study.data._papers import RULES
from calibrant.study.data._requests import check_name, check_options
from calibrant.study.data.digits import DigitOptions, check_digits
from calibrant.study.data.features import ImageOptions, TextOptions, array_features
from calibrant.study.data.imagenet import ImageNetOptions
from calibrant.study.data.images import SOURCES, STATISTICS, Options
from calibrant.study.data.ood import MAKERS
from calibrant.study.data.own import Own, sizes_of
from calibrant.study.data.text import WordOptions

__all__ = ["example_batch", "preview"]

FEATURES = {
    "features-cifar10": (10, 512),
    "features-cifar100": (100, 512),
    "features-20news": (20, 300),
}  # K, default size
RECORDS: Mapping[str, Any] = {
    **dict.fromkeys(SOURCES, Options),
    "digits": DigitOptions,
    "imagenet": ImageNetOptions,
    "20news": WordOptions,
    "features-cifar10": ImageOptions,
    "features-cifar100": ImageOptions,
    "features-20news": TextOptions,
    "own": Own,
}
TEXT_VOCABULARY = 8  # placeholder for the vocabulary size of texts that have not been read


def preview(
    data: Mapping[str, Any], *, makers: Mapping[str, Any], tokenised: Mapping[str, Any], fold: int = 0
) -> dict[str, Any]:
    """Return the sizes of a data set that a network needs (``classes``, ``inputs`` …), without reading a file.

    Args:
        data: The name of a data set and its options.
        makers: Data sets by name.
        tokenised: Data sets that have another function if the option ``tokenizer`` is given.
        fold: Index of the test fold.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
    """
    data = check_mapping(data, name="data", example="{'name': 'digits'}")
    options = {key: value for key, value in data.items() if key != "folds" or data.get("name") == "digits"}
    name, outside = check_name(options.pop("name", None), makers), options.pop("ood", ())
    maker = tokenised[name] if "tokenizer" in options and name in tokenised else makers[name]
    if name == "module":  # a function of the user's own checks its options when it is called
        check_text(options.get("module"), name="module")
        return {}
    _check_options(name, maker, options)
    given = {key: value for key, value in options.items() if value is not None or name not in SOURCES}
    check_options({**given, "fold": fold}, of=f" of data set {name!r}")
    _check_outside(outside, text=name in ("sst", "20news"), numbers=name in ("digits", "files", "own", *FEATURES))
    if name == "digits":
        check_digits(options, fold=fold)
    elif fold:
        raise InputError(f"fold in 0 … 0 of data set {name!r}", f"{fold}", "lower it")
    return sizes_of(options)[0] if name == "own" else _sizes(name, options)


def example_batch(data: Mapping[str, Any]) -> torch.Tensor | None:
    """Return a batch of two samples on the meta device (without values); None for trees.

    Args:
        data: The name of a data set and its options, checked by ``preview``.
    """
    name = data["name"]
    if name == "digits":
        return torch.empty(2, 64, device="meta")
    if name == "own":
        shape = sizes_of({key: value for key, value in data.items() if key not in ("name", "folds", "ood")})[1]
        return torch.empty(2, *shape, device="meta")
    if name in FEATURES or name == "files":
        return torch.empty(2, _sizes(name, {k: v for k, v in data.items() if k != "name"})["inputs"], device="meta")
    if name in SOURCES or name == "imagenet":
        side = SOURCES[name].size if name in SOURCES else data.get("size", 224)
        return torch.empty(2, 3, side, side, device="meta")
    if name == "sst" and "tokenizer" not in data:
        return None
    length = data.get("length", 300 if "tokenizer" not in data else 128)
    return torch.empty(2, length, dtype=torch.int64, device="meta")


def _check_options(name: str, maker: Any, options: Mapping[str, Any]) -> None:
    """Raise for unknown or missing options of a data set, and for unknown names of rules and statistics."""
    if "tokenizer" not in options and (record := RECORDS.get(name)) is not None:
        known = {item.name: item.default is MISSING for item in fields(record)}
    else:
        parameters = inspect.signature(maker).parameters
        known = {
            key: item.default is inspect.Parameter.empty
            for key, item in parameters.items()
            if key not in ("seed", "fold", "name")
        }
    unknown = [key for key in options if key not in known]
    if unknown:
        raise InputError(f"options {', '.join(known)} of data set {name!r}", f"{unknown[0]!r}", "correct it")
    missing = [key for key, required in known.items() if required and key not in options]
    if missing:
        remedy = "name it, or give --data" if missing[0] == "folder" else "add it"
        raise InputError(f"the option {missing[0]!r} of data set {name!r}", "none", remedy)
    if name in SOURCES or name.endswith("20news"):
        rules = RULES if name in SOURCES else ("random", "date")
        for key, choices in (("split", rules), ("statistics", STATISTICS)):
            if options.get(key) is not None:
                check_choice(options[key], name=f"{key} of data set {name!r}", choices=tuple(choices))


def _check_outside(outside: Any, *, text: bool, numbers: bool) -> None:
    """Raise for out-of-distribution sets that are unknown, named twice, or not available for the data."""
    if not isinstance(outside, list | tuple):
        raise InputError("a list of ood sets", f"{outside!r}", "write it in brackets")
    names = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in outside]
    known = [*MAKERS, *([] if numbers else SOURCES)]
    for name in names:
        if text:
            raise InputError(f"images beside the ood set {name!r}", "text", "leave ood out")
        if name not in known:
            raise InputError(f"ood sets of {', '.join(known)}", f"{name!r}", "choose among these")
        if names.count(name) > 1:
            raise InputError("each ood set once", f"{name!r} twice", "leave one out")
    for entry in outside:
        if isinstance(entry, Mapping):
            _check_outside_options(entry)


def _check_outside_options(entry: Mapping[str, Any]) -> None:
    """Raise for unknown options of an out-of-distribution set, and for impossible values."""
    name = entry["name"]
    known = ["test"]
    if name in MAKERS:
        known = [key for key in inspect.signature(MAKERS[name]).parameters if key not in ("inside", "seed")]
    unknown = [key for key in entry if key not in ("name", *known)]
    if unknown:
        raise InputError(f"options {', '.join(known)} of ood set {name!r}", f"{unknown[0]!r}", "correct it")
    check_options({key: value for key, value in entry.items() if key != "name"}, of=f" of ood set {name!r}")


def _sizes(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if name in SOURCES:
        return {"classes": SOURCES[name].classes, "inputs": 3 * SOURCES[name].size ** 2}
    if name == "files":
        return dict(array_features(seed=0, fold=0, **options).sizes)
    if name in FEATURES:
        return {"classes": FEATURES[name][0], "inputs": options.get("size", FEATURES[name][1])}
    if name == "digits":
        return {"classes": 10, "inputs": 64}
    if name == "imagenet":
        return {"classes": 1000, "inputs": 3 * options.get("size", 224) ** 2}
    classes = options.get("classes", 2) if name == "sst" else 20
    return {"classes": classes, "vocabulary": options.get("vocabulary", TEXT_VOCABULARY)}
