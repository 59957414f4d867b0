"""Data sets of the studies, with the papers' splits; each is a class in its own file, whose fields are its options."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from calibrant._core.check import check_mapping, refuse, shown
from calibrant._core.constraints import Natural, Seed, checked
from calibrant.errors import InputError
from calibrant.study.data._split import DataSet, Fold, Split, TensorSplit
from calibrant.study.data.digits import Digits
from calibrant.study.data.features import ImageFeatures, TextFeatures
from calibrant.study.data.images import SOURCES, Images
from calibrant.study.data.ood import Outside, ood_splits, outside_of
from calibrant.study.data.own import Module, Own
from calibrant.study.data.text import Newsgroups, Treebank

__all__ = ["Fold", "Split", "TensorSplit", "data_set", "load_fold"]

DATA_SETS: Mapping[str, tuple[type[DataSet], Mapping[str, str]]] = {
    "digits": (Digits, {}),
    "sst": (Treebank, {}),
    "20news": (Newsgroups, {}),
    **{name: (Images, {"source": name}) for name in SOURCES},
    "features-cifar10": (ImageFeatures, {"source": "cifar10"}),
    "features-cifar100": (ImageFeatures, {"source": "cifar100"}),
    "features-20news": (TextFeatures, {}),
    "own": (Own, {}),
    "module": (Module, {}),
}


@checked
def data_set(data: Mapping[str, Any], *, fold: Natural = 0) -> tuple[DataSet, dict[str, Outside]]:
    """Return the data that ``{"name": …, option: value …}`` describes, and the out-of-distribution sets beside them, unread.

    Args:
        data: The name of a data set and its options; ``"ood": [name, {"name": …, option: value}]`` adds such sets.
        fold: Which fold is tested, from 0.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.

    Examples:
        >>> data_set({"name": "digits"})[0].sizes()
        {'classes': 10, 'inputs': 64}
    """
    options = dict(check_mapping(data, name="data", example="{'name': 'digits'}"))
    name, outside = options.pop("name", None), options.pop("ood", ())
    if not isinstance(name, str) or name not in DATA_SETS:
        raise InputError(f"a data set of {', '.join(DATA_SETS)}", shown(name), "choose one")
    make, fixed = DATA_SETS[name]
    if make is not Digits:
        options.pop("folds", None)  # others have one
    known = {item.name: item for item in fields(make) if item.name not in fixed}  # type: ignore[arg-type]
    if make is not Module and (unknown := [key for key in options if key not in known]):
        raise InputError(f"options {', '.join(known)} of data set {name!r}", f"{unknown[0]!r}", "correct it")
    needed = next(iter(known))  # fields without a default come first, and there is one at most
    if needed in ("folder", "files", "module") and known[needed].default is not None and needed not in options:
        remedy = "name it, or give --data" if needed == "folder" else "add it"
        raise InputError(f"the option {needed!r} of data set {name!r}", "none", remedy)
    made = make(**fixed, **options)
    if fold >= made.folds:
        raise refuse(f"fold in 0 … {made.folds - 1} of data set {name!r}", f"{fold}", "raise folds or lower it")
    return made, outside_of(outside, known=made.outside)


@checked
def load_fold(data: Mapping[str, Any], *, seed: Seed = 0, fold: Natural = 0) -> Fold:
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
