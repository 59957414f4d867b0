"""The studies' data sets, with the papers' splits. A data set is a class whose fields are its options.

A recipe names one with its options, such as ``data = { name = "cifar10", train = 10000, ood = ["svhn"] }``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from calibrant._core.check import check_choice
from calibrant.study.data._split import DataSet, Fold, Split, TensorSplit
from calibrant.study.data.arrays import Digits, Module
from calibrant.study.data.images import SOURCES, Images
from calibrant.study.data.ood import Outside, ood_splits, outside_of
from calibrant.study.data.text import Newsgroups, Treebank

__all__ = ["Fold", "Split", "TensorSplit", "data_set", "load_fold"]

DATA_SETS: Mapping[str, Callable[..., DataSet]] = {
    "digits": Digits,
    "sst": Treebank,
    "20news": Newsgroups,
    **{name: partial(Images, name) for name in SOURCES},
    "module": Module,
}


def data_set(data: Mapping[str, Any]) -> tuple[DataSet, dict[str, Outside]]:
    """Return the data set that ``{"name": …, option: value …}`` describes, without reading it.

    Args:
        data: The name of a data set and its options. ``"ood": [name, {"name": …, option: value}]`` adds out-of-distribution
            sets.

    Returns:
        The data set, and a dict from names to out-of-distribution sets.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.

    Examples:
        >>> data_set({"name": "digits"})[0].sizes()
        {'classes': 10, 'inputs': 64}
    """
    make = DATA_SETS[check_choice(data.get("name"), name="data set", choices=DATA_SETS)]
    made = make(**{key: value for key, value in data.items() if key not in ("name", "ood")})
    return made, outside_of(data.get("ood", ()), known=made.outside)


def load_fold(data: Mapping[str, Any], *, seed: int = 0, fold: int = 0) -> Fold:
    """Read the data set that ``{"name": …, option: value …}`` describes, and return its splits.

    Args:
        data: As in ``data_set``.
        seed: Seed for drawing samples, if the data set has more than are used.
        fold: Index of the fold that is the test set, from 0.

    Returns:
        The splits, with the out-of-distribution sets.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
        FileFormatError: If a folder is missing or does not contain the expected files.

    Examples:
        >>> len(load_fold({"name": "digits"}).test)
        360
    """
    made, outside = data_set(data)
    found = made.load(seed=seed, fold=fold)
    ood = ood_splits(outside, inside=found.test, seed=seed, folder=getattr(made, "folder", None))
    return replace(found, ood=ood)
