"""Studies from TOML files: the package's presets, at one of their scales, and the user's own files."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from calibrant._core.check import check_choice, check_number, refuse, shown
from calibrant._core.constraints import Kind, OneOf, PublicCalls, Text, checked
from calibrant._files import error_boundary, read_text
from calibrant.errors import InputError
from calibrant.study._checks import Fields, check_once, naming, record_of_table
from calibrant.study.measures import MEASURES, MeasureName
from calibrant.study.recipe import Plain, Published, Study, resource

SCALES = ("cpu", "gpu", "paper")
Scale = Annotated[str, OneOf(SCALES)]
StudyName = Annotated[
    str | Path, Kind((str, os.PathLike), "name one of presets(), or a .toml file", "a study's name or file")
]


@checked
def presets() -> list[str]:
    """Return the names of the studies included in the package."""
    found = resources.files("calibrant.study").joinpath("presets").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml"))


@checked
def load_study(name: StudyName, *, scale: Scale | None = "cpu") -> Study:
    """Return a study by the name of a preset or by the path of a TOML file.

    Args:
        name: One of ``presets()``, or a path that ends in ``.toml``.
        scale: ``"cpu"``, ``"gpu"`` or ``"paper"``: the ``[scales.…]`` table whose entries override the file's; None: none.

    Raises:
        InputError: If there is no such study or scale, or the recipe is invalid.
        FileFormatError: If the file cannot be read as TOML.

    Examples:
        >>> load_study("digits").name
        'digits'
    """
    text = _study_text(name)
    deep, remedy = f"values nested hundreds of levels deep in {name}", "compare it with a preset"
    with (
        error_boundary("a study's tables", deep, remedy, caught=RecursionError),
        error_boundary(
            "a TOML file", f"{name}", "correct it there", caught=ValueError
        ),  # or a number of too many digits
    ):
        table = tomllib.loads(text)
    wanted, got = "a study's tables as the presets have them", f"a value of another kind in {name}"
    with naming(str(name)), error_boundary(wanted, got, remedy, kind=InputError):
        return _laid_over(table, name, scale=scale)


def scales_of(name: str | Path) -> tuple[str, ...]:
    """Return the scales of a study's file, of which there may be none.

    Args:
        name: As in ``load_study``.

    Examples:
        >>> scales_of("digits")
        ()
    """
    load_study(name, scale=None)  # raises for an invalid file
    return tuple(tomllib.loads(_study_text(name)).get("scales", {}))


def _laid_over(table: dict[str, Any], name: str | Path, *, scale: str | None) -> Study:
    """Return the study of a file's table with the entries of one of its scales, with every recipe constructed once."""
    scales = table.pop("scales", {})
    for part in (table, *(scales.values() if isinstance(scales, Mapping) else ())):
        if isinstance(part.get("objectives"), list):
            part["objectives"] = [_objective(entry) for entry in part["objectives"]]
    for given in scales:
        check_choice(given, name=f"scales of {name}", choices=SCALES)
    if scales and scale is not None and scale not in scales:
        raise InputError(f"scale to be one of {', '.join(scales)} for {name}", f"{scale!r}", "choose one")
    study = _study({**table, **_overlay(table, scales.get(scale or "", {}))}, where=str(name))
    _check_names(study, _labels(table, scales, "objectives"), _labels(table, scales, "settings"), where=str(name))
    return study


def _labels(table: Plain, scales: Plain, family: str) -> set[Any]:
    """Return the labels that the file has at any scale."""
    return {entry.get("label") for part in (table, *scales.values()) for entry in part.get(family, ())}


def _study_text(name: str | Path) -> str:
    if str(name).endswith(".toml"):
        return read_text(name)
    if str(name) not in presets():
        wanted = f"a study of {', '.join(presets())} or a .toml file"
        raise refuse(wanted, shown(name), "choose one")
    return resource("presets", f"{name}.toml")


def _overlay(table: Plain, scale: Plain) -> dict[str, Any]:
    """Return the entries of ``scale``, its tables merged into those of ``table``, and ``keep`` lists resolved to entries."""
    merged: dict[str, Any] = {}
    for key, value in scale.items():
        if key in ("keep_objectives", "keep_settings"):
            family = key.removeprefix("keep_")
            known = [entry.get("label") for entry in table[family]]
            for label in value:
                check_choice(label, name=key, choices=known)
            merged[family] = [entry for entry in table[family] if entry.get("label") in value]
        elif isinstance(value, Mapping):
            merged[key] = {**table.get(key, {}), **value}
        else:
            merged[key] = value
    return merged


def _study(table: Plain, *, where: str) -> Study:
    values = {"title": table.get("name", ""), "about": "", **table}
    shared = {"data": _with_kind_of_data(values.pop("data", {})), "model": values.pop("model", {})}
    settings = values.pop("settings", None) or [{"label": str(values.get("name", ""))}]
    # [data] and [model] are what all settings share; a setting's own entries override them
    values["settings"] = [
        {**entry, **{key: {**shared[key], **entry.get(key, {})} for key in shared}} for entry in settings
    ]
    printed = [record_of_table(Printed, entry, where=f"printed of {where}") for entry in values.pop("printed", ())]
    published = [{**vars(figure)} for grid in printed for figure in grid.figures(where=where)]
    values["published"] = [*values.get("published", ()), *published]
    study = record_of_table(Study, values, where=where)
    for required in ("seeds", "objectives"):
        if not getattr(study, required):
            raise InputError(f"at least one entry in {required} of {where}", "none", "add one")
    first = replace(study, seeds=study.seeds[:1])  # seeds differ in no choice that could be wrong
    if not {cell.recipe.fingerprint for cell in first.cells()}:  # constructs its recipes
        raise InputError(f"at least one training in {where}", "none", "raise folds to 1 or more")
    return study


def _objective(entry: Any) -> Any:
    """Return the table of an objective, of which a label of ``objectives.toml`` stands for the whole or for what is left out."""
    given = {"label": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or "loss" in given:
        return entry
    check_choice(given.get("label"), name="an objective without a loss", choices=_known_objectives())
    return {**_known_objectives()[given["label"]], **given}


@cache
def _known_objectives() -> dict[str, Plain]:
    return {item["label"]: item for item in tomllib.loads(resource("objectives.toml"))["objectives"]}


def _with_kind_of_data(data: Plain) -> Plain:
    """Return the table [data], with the name of its kind where it has ``module`` instead of a name."""
    return {"name": "module", **data} if "module" in data and "name" not in data else data


@dataclass(frozen=True)
class Printed(metaclass=PublicCalls):
    """A paper's table as printed: one row per setting, one group of numbers per objective, percentages in per cent.

    Args:
        source: Table of a paper.
        measures: Measure of each number in a group.
        objectives: Label of each group.
        rows: Label of a setting (or "") → groups; an empty group is a cell that is missing or illegible in the paper.
    """

    source: Text
    measures: tuple[MeasureName, ...]
    objectives: tuple[Text, ...]
    rows: Fields

    def figures(self, *, where: str) -> Iterator[Published]:
        """Yield every printed number, percentages as fractions.

        Raises:
            InputError: If a row does not have one group per objective, each of one number per measure or of none.
        """
        for setting, groups in self.rows.items():
            if len(groups) != len(self.objectives) or {*map(len, groups)} - {0, len(self.measures)}:
                counts = f"{len(self.objectives)} groups of {len(self.measures)} numbers"
                wanted = f"{counts} in row {setting!r} of {self.source} in {where}"
                raise refuse(wanted, shown(list(groups)), "write [] for a missing one")
            for objective, group in zip(self.objectives, groups, strict=True):
                for measure, value in zip(self.measures, group, strict=False):
                    check_number(value, name=f"{measure} of {objective!r} in row {setting!r} of {self.source}")
                    scale = 100 if MEASURES[measure].percent else 1
                    yield Published(objective, measure, round(value / scale, 8), setting)


def _check_names(study: Study, objectives: set[Any], settings: set[Any], *, where: str) -> None:
    """Raise if published figures, claims or plots refer to objectives or settings that the file does not have at any scale."""
    for claim in study.claims:
        if len(set(claim.falls)) < max(2, len(claim.falls)):
            wanted = f"two or more different objectives in falls of the claim {claim.text!r}"
            raise refuse(wanted, shown(list(claim.falls)), "name them")
    for one in study.published:
        if MEASURES[one.measure].percent and not 0 <= one.value <= 1:
            wanted = f"the published {one.measure} of {one.objective!r} as a fraction in [0, 1]"
            raise refuse(wanted, f"{one.value:g}", "divide percentages by 100, or use [[printed]]")
    check_once([(p.setting, p.objective, p.measure) for p in study.published], name="the published figures")
    for figure in study.figures:
        drawn = [setting for setting in study.settings if figure.setting in ("", setting.label)]
        if figure.kind == "ood" and drawn and not any(setting.data.get("ood") for setting in drawn):
            wanted, remedy = (
                f"data with ood sets for the figure {figure.name!r}",
                'write ood = ["gaussian-noise"] under data',
            )
            raise refuse(wanted, "none", remedy)
        if figure.kind == "sweep" and not figure.sweep:
            raise refuse(f"sweep of the figure {figure.name!r}", "none", 'write sweep = [["FocalLoss", "gamma"]]')
    objectives = objectives | {objective.label for objective in study.objectives}
    named = [p.objective for p in study.published] + [name for claim in study.claims for name in claim.falls]
    named += [name for figure in study.figures for name in figure.objectives]
    named += [name for setting in study.settings for name in (*setting.losses, *setting.trainings)]
    like = {s.like for s in study.settings}
    for name in like - {"", *settings} - {p.setting for p in study.published}:
        raise InputError(f"like of {where} as a setting with published figures", f"{name!r}", "correct it")
    settings = settings | like | {"", *(s.label for s in study.settings)}
    places = [p.setting for p in study.published] + [name for claim in study.claims for name in claim.but]
    places += [figure.setting for figure in study.figures]
    for what, names, known in (("an objective", named, objectives), ("a setting", places, settings)):
        for name in names:
            check_choice(name, name=f"{what} of {where}", choices=sorted(known, key=str))
