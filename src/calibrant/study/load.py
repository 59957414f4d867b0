"""Loads studies from TOML files, the package's presets or the user's own files, each at one of its scales."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from calibrant._core.check import check_choice, refuse, shown
from calibrant._files import error_boundary, read_text
from calibrant.errors import InputError
from calibrant.study.recipe import Study
from calibrant.study.record import naming, require_once

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
    return StudyFile.read(name).study(scale)


@dataclass(frozen=True)
class StudyFile:
    """The tables of a study file.

    Args:
        name: Name of the preset, or path of the file.
        tables: The file's tables, without ``[scales]``.
        scales: Dict from each scale to the tables that override those of the file; empty if the file has no scales.
    """

    name: str
    tables: Tables
    scales: Mapping[str, Tables]

    @classmethod
    def read(cls, name: str | Path) -> "StudyFile":
        """Return the tables of a preset or a file, checked only as far as merging them requires."""
        where = str(name)
        if not where.endswith(".toml") and where not in presets():
            raise refuse(f"a study among {', '.join(presets())} or a .toml file", shown(name), "choose one")
        own = where.endswith(".toml")
        text = read_text(name) if own else FOLDER.joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
        with error_boundary("a TOML file", where, "correct it there", caught=(ValueError, RecursionError)):
            tables = tomllib.loads(text)
        with naming(where), _as_presets_have_them():
            scales = tables.pop("scales", {})
            for given in scales:
                check_choice(given, name="scales", choices=SCALES)
            for part in (tables, *scales.values()):
                if "objectives" in part:
                    part["objectives"] = [_objective(entry) for entry in part["objectives"]]
        return cls(where, tables, scales)

    def study(self, scale: str | None) -> Study:
        """Return the study at a scale; the scale has no effect if the file has none."""
        with naming(self.name), _as_presets_have_them():
            if self.scales and scale is not None and scale not in self.scales:
                raise InputError(f"scale to be one of {', '.join(self.scales)}", f"{scale!r}", "choose one")
            study = _study({**self.tables, **_overlay(self.tables, self.scales.get(scale or "", {}))})
            objectives, settings = (
                {one.label for one in getattr(study, family)}
                | {one.get("label") for part in (self.tables, *self.scales.values()) for one in part.get(family, ())}
                for family in ("objectives", "settings")
            )
            _check_names(study, objectives=objectives, settings=settings)
        return study


def _as_presets_have_them() -> Any:
    """Turn errors of merging (for example a number where a table is expected) into an ``InputError``."""
    wanted, got = "a study whose tables are like those of the presets", "a value of another kind"
    return error_boundary(wanted, got, "compare it with a preset", kind=InputError)


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


def _check_names(study: Study, *, objectives: set[Any], settings: set[Any]) -> None:
    """Raise an error if published figures, claims or plots name objectives or settings that the file has at no scale."""
    require_once([(p.setting, p.objective, p.measure) for p in study.published], name="the published figures")
    like = {setting.like for setting in study.settings}
    published = {figure.setting for figure in study.published}
    figures, claims = study.figures, study.claims
    named = [
        *(("an objective", figure.objective, objectives) for figure in study.published),
        *(("an objective", name, objectives) for claim in claims for name in claim.falls),
        *(("an objective", name, objectives) for figure in figures for name in figure.objectives),
        *(("an objective", name, objectives) for one in study.settings for name in (*one.losses, *one.trainings)),
        *(("a setting", name, settings | like) for name in published | {figure.setting for figure in figures}),
        *(("a setting", name, settings | like) for claim in claims for name in claim.but),
        *(("like", name, settings | published) for name in like),
    ]
    for what, name, known in named:
        if name:
            check_choice(name, name=what, choices=sorted(known, key=str))
