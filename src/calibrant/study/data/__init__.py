"""Data sets of the studies, with the papers' splits; each is a function in its own file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from calibrant._core.arguments import check_mapping
from calibrant.study.data._requests import check_name, check_options
from calibrant.study.data._split import Fold, Split, TensorSplit
from calibrant.study.data.digits import digits
from calibrant.study.data.features import array_features, image_features, own_data, text_features
from calibrant.study.data.imagenet import imagenet
from calibrant.study.data.images import SOURCES, images
from calibrant.study.data.ood import ood_splits
from calibrant.study.data.own import own
from calibrant.study.data.preview import preview
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
    "own": own,
    **{name: partial(images, name) for name in SOURCES},
    "features-cifar10": partial(image_features, "cifar10"),
    "features-cifar100": partial(image_features, "cifar100"),
    "features-20news": text_features,
    "files": array_features,
    "module": own_data,
}
TOKENISED: Mapping[str, Callable[..., Fold]] = {"sst": sst_tokens, "20news": newsgroups_tokens}


def load_fold(data: Mapping[str, Any], *, seed: int = 0, fold: int = 0) -> Fold:
    """Return the splits described by ``{"name": …, option: value …}``.

    ``"ood": [name, {"name": …, option: value}]`` adds out-of-distribution sets, see ``study/data/ood.py``.

    Args:
        data: The name of a data set and its options.
        seed: Draws samples where the data set leaves a choice.
        fold: Which fold is tested, from 0.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
        FileFormatError: If a folder is missing, or contains other files.

    Examples:
        >>> len(load_fold({"name": "digits"}).test)
        360
    """
    data = check_mapping(data, name="data", example="{'name': 'digits'}")
    check_options({"seed": seed, "fold": fold})
    preview(data, makers=DATA_SETS, tokenised=TOKENISED, fold=fold)
    options = {key: value for key, value in data.items() if key != "folds" or data.get("name") == "digits"}
    name, outside = check_name(options.pop("name", None), DATA_SETS), options.pop("ood", ())
    maker = (TOKENISED if "tokenizer" in options and name in TOKENISED else DATA_SETS)[name]
    found = maker(seed=seed, fold=fold, **options)
    return replace(found, ood=ood_splits(outside, inside=found.test, seed=seed, folder=options.get("folder")))
