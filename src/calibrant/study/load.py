"""Loads studies from TOML files, the package's presets or the user's own files, each at one of its scales."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from calibrant._core.check import check_choice, refuse, shown
from calibrant._files import error_boundary, read_text
from calibrant.errors import InputError
from calibrant.study.recipe import Study
from calibrant.study.record import naming

SCALES = ("cpu", "gpu", "paper")
FOLDER = resources.files("calibrant.study")
Tables = Mapping[str, Any]


def presets() -> list[str]:
    """Return the names of the studies that are included in the package, for ``load_study``.

    Returns:
        The names, in alphabetical order.

    Examples:
        >>> "digits" in presets()
        True
    """
    found = (entry.name for entry in FOLDER.joinpath("presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def load_study(name: str | Path, *, scale: str | None = "cpu") -> Study:
    """Return the study with the given name, or read one from a TOML file.

    Args:
        name: One of ``presets()``, or a path that ends in ``.toml``.
        scale: ``"cpu"``, ``"gpu"`` or ``"paper"``, the ``[scales.…]`` table whose entries override those of the file. None
            overrides nothing.

    Returns:
        The study.

    Raises:
        InputError: If there is no such study or scale, or the recipe is invalid.
        FileFormatError: If the file cannot be read as TOML.

    Examples:
        >>> load_study("digits").name
        'digits'
    """
    # errors of merging, for example a number where a table is expected, are a user's mistakes
    wanted, got = "a study whose tables are like those of the presets", "a value of another kind"
    with naming(str(name)), error_boundary(wanted, got, "compare it with a preset", kind=InputError):
        tables, scales = read_tables(name)
        if scales and scale is not None and scale not in scales:
            raise InputError(f"scale to be one of {', '.join(scales)}", f"{scale!r}", "choose one")
        study = _study({**tables, **_overlay(tables, scales.get(scale or "", {}))})
        _check_names(study, (tables, *scales.values()))
    return study


def read_tables(name: str | Path) -> tuple[dict[str, Any], Mapping[str, Tables]]:
    """Return the tables of a preset or a file, checked only as far as merging them requires.

    Args:
        name: As in ``load_study``.

    Returns:
        The tables without ``[scales]``, and a dict from each scale to the tables that override them.
    """
    where = str(name)
    if where.endswith(".toml"):
        text = read_text(name)
    elif where in presets():
        text = FOLDER.joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise refuse(f"a study among {', '.join(presets())} or a .toml file", shown(name), "choose one")
    with error_boundary("a TOML file", where, "correct it there", caught=(ValueError, RecursionError)):
        tables = tomllib.loads(text)
    scales = tables.pop("scales", {})
    for given in scales:
        check_choice(given, name="scales", choices=SCALES)
    for part in (tables, *scales.values()):
        if "objectives" in part:
            part["objectives"] = [_objective(entry) for entry in part["objectives"]]
    return tables, scales


def _overlay(tables: Tables, scale: Tables) -> dict[str, Any]:
    """Return the entries of ``scale``, with its tables merged into the file's.

    The lists ``keep_objectives`` and ``keep_settings`` are replaced with the entries that they name.
    """
    merged: dict[str, Any] = {}
    for key, value in scale.items():
        if key in ("keep_objectives", "keep_settings"):
            entries = {entry["label"]: entry for entry in tables[key.removeprefix("keep_")]}
            for label in value:
                check_choice(label, name=key, choices=list(entries))
            merged[key.removeprefix("keep_")] = [entry for label, entry in entries.items() if label in value]
        else:
            merged[key] = {**tables.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged


def _study(tables: Tables) -> Study:
    """Return the study that the tables of a file describe."""
    values = {"title": tables.get("name", ""), "about": "", **tables}
    # [data] and [model] are what all settings share; a setting's own entries override them
    shared = {"data": values.pop("data", {}), "model": values.pop("model", {})}
    if "module" in shared["data"]:
        shared["data"] = {"name": "module", **shared["data"]}
    settings = values.pop("settings", None) or [{"label": str(values.get("name", ""))}]
    values["settings"] = [
        {**entry, **{key: {**shared[key], **entry.get(key, {})} for key in shared}} for entry in settings
    ]
    study = Study(**values)
    # constructing every recipe of the first seed is sufficient, because nothing that could be wrong depends on the seed
    if not list(replace(study, seeds=study.seeds[:1]).cells()):
        raise InputError("at least one training run", "none", "name seeds and objectives, and raise folds to 1 or more")
    return study


def _objective(entry: Any) -> Any:
    """Return the complete table of an objective; a label without a loss is looked up in ``objectives.toml``."""
    given = {"label": entry} if isinstance(entry, str) else entry
    if "loss" in given:
        return given
    check_choice(given.get("label"), name="an objective without a loss", choices=_known_objectives())
    return {**_known_objectives()[given["label"]], **given}


@cache
def _known_objectives() -> dict[str, Tables]:
    """Return the objectives of ``objectives.toml`` by their labels."""
    text = FOLDER.joinpath("objectives.toml").read_text(encoding="utf-8")
    return {item["label"]: item for item in tomllib.loads(text)["objectives"]}


def _check_names(study: Study, parts: Sequence[Tables]) -> None:
    """Raise an error if published figures, claims, plots or settings name objectives that no part of the file has."""
    known = sorted({one["label"] for part in parts for one in part.get("objectives", ())})
    named = [
        *(figure.objective for figure in study.published),
        *(name for claim in study.claims for name in claim.falls),
        *(name for figure in study.figures for name in figure.objectives),
        *(name for one in study.settings for name in (*one.losses, *one.trainings)),
    ]
    for name in named:
        check_choice(name, name="an objective", choices=known)
