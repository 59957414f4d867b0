"""Studies from TOML files: the package's presets, at one of their scales, and the user's own files."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from calibrant._core.check import check_choice, refuse, shown
from calibrant._files import error_boundary, read_text
from calibrant.errors import InputError
from calibrant.study.measures import MEASURES
from calibrant.study.recipe import MeasureName, Published, Study, resource
from calibrant.study.record import Real, Text, check_once, naming, record

SCALES = ("cpu", "gpu", "paper")
Tables = Mapping[str, Any]


def presets() -> list[str]:
    """Return the names of the studies included in the package."""
    found = resources.files("calibrant.study").joinpath("presets").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml"))


def load_study(name: str | Path, *, scale: str | None = "cpu") -> Study:
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
    return StudyFile.read(name).study(scale)


@dataclass(frozen=True)
class StudyFile:
    """The tables of a study's file.

    Args:
        name: Name of a preset, or the path.
        tables: What it holds, without ``[scales]``.
        scales: Scale → the tables that override them; a file may have none.
    """

    name: str
    tables: Tables
    scales: Mapping[str, Tables]

    @classmethod
    def read(cls, name: str | Path) -> "StudyFile":
        """Return the tables of a preset or a file, of which nothing is checked but the kinds of what is merged here."""
        where, remedy = str(name), "compare it with a preset"
        if not where.endswith(".toml") and where not in presets():
            raise refuse(f"a study of {', '.join(presets())} or a .toml file", shown(name), "choose one")
        text = read_text(name) if where.endswith(".toml") else resource("presets", f"{name}.toml")
        deep = f"values nested hundreds of levels deep in {name}"
        with (
            error_boundary("a study's tables", deep, remedy, caught=RecursionError),
            error_boundary(
                "a TOML file", where, "correct it there", caught=ValueError
            ),  # or a number of too many digits
        ):
            tables = tomllib.loads(text)
        scales = tables.pop("scales", {})
        with naming(where):
            if not isinstance(scales, Mapping) or not all(isinstance(part, Mapping) for part in scales.values()):
                raise refuse("scales as tables", shown(scales), "write them under [scales.cpu]")
            for given in scales:
                check_choice(given, name="scales", choices=SCALES)
            for part in (tables, *scales.values()):
                if isinstance(part.get("objectives"), list):
                    part["objectives"] = [_objective(entry) for entry in part["objectives"]]
        return cls(where, tables, scales)

    def study(self, scale: str | None) -> Study:
        """Return the study at a scale; any will do for a file that has none."""
        wanted, got = "a study's tables as the presets have them", f"a value of another kind in {self.name}"
        with naming(self.name), error_boundary(wanted, got, "compare it with a preset", kind=InputError):
            if self.scales and scale is not None and scale not in self.scales:
                raise InputError(f"scale to be one of {', '.join(self.scales)}", f"{scale!r}", "choose one")
            study = _study({**self.tables, **_overlay(self.tables, self.scales.get(scale or "", {}))})
            _check_names(study, objectives=self._labels("objectives"), settings=self._labels("settings"))
        return study

    def _labels(self, family: str) -> set[Any]:
        """Return the labels that the file has at any scale."""
        return {entry.get("label") for part in (self.tables, *self.scales.values()) for entry in part.get(family, ())}


def _overlay(tables: Tables, scale: Tables) -> dict[str, Any]:
    """Return the entries of ``scale``, its tables merged into those of the file, and ``keep`` lists resolved to entries."""
    merged: dict[str, Any] = {}
    for key, value in scale.items():
        if key in ("keep_objectives", "keep_settings"):
            family = key.removeprefix("keep_")
            known = [entry.get("label") for entry in tables[family]]
            for label in value:
                check_choice(label, name=key, choices=known)
            merged[family] = [entry for entry in tables[family] if entry.get("label") in value]
        else:
            merged[key] = {**tables.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged


def _study(tables: Tables) -> Study:
    values = {"title": tables.get("name", ""), "about": "", **tables}
    # [data] and [model] are what all settings share; a setting's own entries override them
    shared = {"data": values.pop("data", {}), "model": values.pop("model", {})}
    if "module" in shared["data"]:
        shared["data"] = {"name": "module", **shared["data"]}
    settings = values.pop("settings", None) or [{"label": str(values.get("name", ""))}]
    values["settings"] = [
        {**entry, **{key: {**shared[key], **entry.get(key, {})} for key in shared}} for entry in settings
    ]
    printed = [figure for entry in values.pop("printed", ()) for figure in Printed(**entry).figures()]
    values["published"] = [*values.get("published", ()), *map(asdict, printed)]
    study = Study(**values)
    for required in ("seeds", "objectives"):
        if not getattr(study, required):
            raise InputError(f"at least one entry in {required}", "none", "add one")
    first = replace(study, seeds=study.seeds[:1])  # seeds differ in no choice that could be wrong
    if not {cell.recipe.fingerprint for cell in first.cells()}:  # constructs its recipes
        raise InputError("at least one training", "none", "raise folds to 1 or more")
    return study


def _objective(entry: Any) -> Any:
    """Return the table of an objective, of which a label of ``objectives.toml`` stands for the whole or for what is left out."""
    given = {"label": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or "loss" in given:
        return entry
    check_choice(given.get("label"), name="an objective without a loss", choices=_known_objectives())
    return {**_known_objectives()[given["label"]], **given}


@cache
def _known_objectives() -> dict[str, Tables]:
    return {item["label"]: item for item in tomllib.loads(resource("objectives.toml"))["objectives"]}


@record
class Printed:
    """A paper's table as printed: one row per setting, one group of numbers per objective, percentages in per cent.

    Args:
        source: Table of a paper.
        measures: Measure of each number in a group.
        objectives: Label of each group.
        rows: Label of a setting (or "") → groups; an empty group is a cell that is missing or illegible in the paper.
        spreads: The standard deviations, in the same way; rows without any are left out.
    """

    source: Text
    measures: tuple[MeasureName, ...]
    objectives: tuple[Text, ...]
    rows: dict[str, tuple[tuple[Real, ...], ...]]
    spreads: dict[str, tuple[tuple[Real, ...], ...]] = field(default_factory=dict)

    def figures(self) -> list[Published]:
        """Return every printed number, percentages as fractions.

        Raises:
            InputError: If a row does not have one group per objective, each of one number per measure or of none.
        """
        found = []
        for setting, groups in self.rows.items():
            spreads = self.spreads.get(setting, ((),) * len(groups))
            for table in (groups, spreads):
                if len(table) != len(self.objectives) or {*map(len, table)} - {0, len(self.measures)}:
                    wanted = f"{len(self.objectives)} groups of {len(self.measures)} numbers in row {setting!r} of {self.source}"
                    raise refuse(wanted, shown([list(group) for group in table]), "write [] for a missing one")
            for objective, group, spread in zip(self.objectives, groups, spreads, strict=True):
                for measure, value, deviation in zip(self.measures, group, spread or [None] * len(group), strict=False):
                    scale = 100 if MEASURES[measure].percent else 1
                    own = None if deviation is None else round(deviation / scale, 8)
                    found.append(Published(objective, measure, round(value / scale, 8), setting, own))
        return found


def _check_names(study: Study, *, objectives: set[Any], settings: set[Any]) -> None:
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
            wanted = f"data with ood sets for the figure {figure.name!r}"
            raise refuse(wanted, "none", 'write ood = ["gaussian-noise"] under data')
        if figure.kind == "sweep" and not figure.sweep:
            raise refuse(f"sweep of the figure {figure.name!r}", "none", 'write sweep = [["FocalLoss", "gamma"]]')
    named = [p.objective for p in study.published] + [name for claim in study.claims for name in claim.falls]
    named += [name for figure in study.figures for name in figure.objectives]
    named += [name for setting in study.settings for name in (*setting.losses, *setting.trainings)]
    like = {s.like for s in study.settings}
    for name in like - {"", *settings} - {p.setting for p in study.published}:
        raise InputError("like as a setting with published figures", f"{name!r}", "correct it")
    places = [p.setting for p in study.published] + [name for claim in study.claims for name in claim.but]
    places += [figure.setting for figure in study.figures]
    known = {
        "an objective": (named, objectives | {objective.label for objective in study.objectives}),
        "a setting": (places, settings | like | {"", *(s.label for s in study.settings)}),
    }
    for what, (names, there) in known.items():
        for name in names:
            check_choice(name, name=what, choices=sorted(there, key=str))
