"""Data sets of the studies, with the papers' splits; each is a class in its own file, whose fields are its options."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from calibrant._core.check import check_choice, refuse
from calibrant.errors import InputError
from calibrant.study.data._split import DataSet, Fold, Outside, Split, TensorSplit
from calibrant.study.data.digits import Digits
from calibrant.study.data.images import SOURCES, Images
from calibrant.study.data.module import Module
from calibrant.study.data.ood import ood_splits, outside_of
from calibrant.study.data.text import Newsgroups, Treebank

__all__ = ["Fold", "Split", "TensorSplit", "data_set", "load_fold"]

DATA_SETS: Mapping[str, type[DataSet]] = {
    "digits": Digits,
    "sst": Treebank,
    "20news": Newsgroups,
    **dict.fromkeys(SOURCES, Images),
    "module": Module,
}


def data_set(data: Mapping[str, Any], *, fold: int = 0) -> tuple[DataSet, dict[str, Outside]]:
    """Return the data that ``{"name": …, option: value …}`` describes, and the out-of-distribution sets to predict with them, unread.

    Args:
        data: The name of a data set and its options; ``"ood": [name, {"name": …, option: value}]`` adds such sets.
        fold: Which fold is tested, from 0.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.

    Examples:
        >>> data_set({"name": "digits"})[0].sizes()
        {'classes': 10, 'inputs': 64}
    """
    name = check_choice(data.get("name"), name="data set", choices=DATA_SETS)
    make = DATA_SETS[name]
    known = {item.name: item for item in fields(make)}  # type: ignore[arg-type]
    # one class serves several names, which it then takes; the number of folds is only the digits' to choose
    left_out = {"ood", "name", "folds"} - known.keys()
    options = {key: value for key, value in data.items() if key not in left_out}
    if "folder" in known and known["folder"].default is MISSING and "folder" not in options:
        raise InputError(f"the option 'folder' of data set {name!r}", "none", "name it, or give --data")
    made = make(**options)
    if fold >= made.folds:
        raise refuse(f"fold in 0 … {made.folds - 1} of data set {name!r}", f"{fold}", "raise folds or lower it")
    return made, outside_of(data.get("ood", ()), known=made.outside)


def load_fold(data: Mapping[str, Any], *, seed: int = 0, fold: int = 0) -> Fold:
    """Return the splits described by ``{"name": …, option: value …}``.

    Args:
        data: As for ``data_set``.
        seed: Draws samples where the data set leaves a choice.
        fold: Which fold is tested, from 0.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
        FileFormatError: If a folder is missing, or contains other files.

    Examples:
        >>> len(load_fold({"name": "digits"}).test)
        360
    """
    made, outside = data_set(data, fold=fold)
    found = made.load(seed=seed, fold=fold)
    ood = ood_splits(outside, inside=found.test, seed=seed, folder=getattr(made, "folder", None))
    return replace(found, ood=ood)
