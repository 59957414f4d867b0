"""Data sets of the studies, with the papers' splits; each is a function in its own file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from calibrant.errors import InputError
from calibrant.study.data._split import Fold, Split, TensorSplit
from calibrant.study.data.digits import digits
from calibrant.study.data.imagenet import imagenet
from calibrant.study.data.images import SOURCES, images
from calibrant.study.data.ood import ood_splits
from calibrant.study.data.text import newsgroups, sst
from calibrant.study.data.tokens import newsgroups_tokens, sst_tokens

__all__ = [
    "Fold",
    "Split",
    "TensorSplit",
    "digits",
    "imagenet",
    "images",
    "load_fold",
    "newsgroups",
    "newsgroups_tokens",
    "sst",
    "sst_tokens",
]

DATA_SETS: Mapping[str, Callable[..., Fold]] = {
    "digits": digits,
    "sst": sst,
    "20news": newsgroups,
    "imagenet": imagenet,
    **{name: partial(images, name) for name in SOURCES},
}
TOKENISED: Mapping[str, Callable[..., Fold]] = {"sst": sst_tokens, "20news": newsgroups_tokens}


def load_fold(data: Mapping[str, Any], *, seed: int = 0, fold: int = 0) -> Fold:
    """Return the splits that ``{"name": …, option: value …}`` describes.

    ``"ood": [name, {"name": …, option: value}]`` adds out-of-distribution sets, see ``study/data/ood.py``.

    Args:
        data: The name of a data set and its options.
        seed: Draws samples where the data set leaves a choice.
        fold: Which fold is tested, from 0.

    Raises:
        InputError: If the name or an option is unknown, or a folder is missing.

    Examples:
        >>> len(load_fold({"name": "digits"}).test)
        360
    """
    options = {key: value for key, value in data.items() if key != "folds" or data.get("name") == "digits"}
    name, outside = options.pop("name", None), options.pop("ood", ())
    if name not in DATA_SETS:
        raise InputError(f"expected a data set of {', '.join(DATA_SETS)}, got {name!r}; choose one")
    try:
        found = (TOKENISED if "tokenizer" in options and name in TOKENISED else DATA_SETS)[name](
            seed=seed, fold=fold, **options
        )
    except TypeError as error:
        raise InputError(f"expected options of data set {name!r}, got {options} ({error}); correct them") from error
    if not isinstance(outside, list | tuple):
        raise InputError(f"expected a list of ood sets, got {outside!r}; write it in brackets")
    return replace(found, ood=ood_splits(outside, inside=found.test, seed=seed, folder=options.get("folder")))
