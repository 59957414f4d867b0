"""What to run, as plain frozen data: recipes of single trainings, and studies that hold many of them."""

import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from calibrant._check import check_choice, check_count
from calibrant._config import to_plain
from calibrant.errors import FileFormatError, InputError

__all__ = ["Cell", "Claim", "Objective", "Published", "Recipe", "Setting", "Study", "Training", "load_study", "presets"]

T = TypeVar("T")
Plain = Mapping[str, Any]
SCALES = ("cpu", "gpu", "paper")
MEASURES = ("error", "nll", "ece", "temperature", "nll_at_t", "ece_at_t")


@dataclass(frozen=True)
class Training:
    """How a network is trained. Every choice that changes a number is a field here, so it is seen.

    Args:
        epochs: Passes over the training data, ≥ 1.
        batch: Samples a step, over all devices together.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"adagrad"``.
        lr: Learning rate at the start.
        momentum: Of sgd.
        nesterov: Of sgd.
        weight_decay: As torch's optimiser means it.
        rates: Start of a parameter's name → a learning rate of its own.
        schedule: ``"steps"`` (× ``decay`` at each milestone) or ``"cosine"`` (to 0 after the last epoch).
        milestones: Epochs (counted from 0) from which the rate is lower.
        decay: Factor at a milestone.
        step_first: Lower the rate one epoch before each milestone, as code does that steps its scheduler before
            training (Mukhoti et al. 2020's; on torch ≥ 1.1).
        reduction: ``"mean"`` or ``"sum"`` of the loss over a batch.
        clip: Largest gradient norm, or None.
        drop_last: Leave out an incomplete last batch.
        select: The epoch kept: ``"last"``; ``"accuracy"``, the best on validation data; or ``"calibrated_nll"``, the
            best validation log-loss after temperature scaling (refine, then calibrate). Test data never choose.
        precision: Lightning Fabric's: ``"32-true"``, ``"bf16-mixed"`` …
        channels_last: Keep images as height × width × channels in memory, which tensor cores prefer.
        devices: Processes that share each batch (distributed data parallel).
        threads: Threads a process; sums keep their order only at a fixed number.
        measure_every: Epochs between entries of the trajectory.
        checkpoint_every: Epochs between checkpoints; 0 writes none.
    """

    epochs: int
    batch: int
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    rates: Plain = field(default_factory=dict)
    schedule: str = "steps"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    step_first: bool = False
    reduction: str = "mean"
    clip: float | None = None
    drop_last: bool = False
    select: str = "last"
    precision: str = "32-true"
    channels_last: bool = False
    devices: int = 1
    threads: int = 1
    measure_every: int = 1
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "devices", "threads", "measure_every"):
            check_count(getattr(self, name), name=name)
        check_choice(self.optimizer, name="optimizer", choices=("sgd", "adam", "adamw", "adagrad"))
        check_choice(self.schedule, name="schedule", choices=("steps", "cosine"))
        check_choice(self.reduction, name="reduction", choices=("mean", "sum"))
        check_choice(self.select, name="select", choices=("last", "accuracy", "calibrated_nll"))


@dataclass(frozen=True)
class Recipe:
    """One training, completely described.

    Args:
        data: ``{"name": …, …}``: a data set and its options.
        model: ``{"type": …, …}``: a class of ``study.models`` or ``"module:Class"``, and its arguments.
        loss: ``{"type": …, …}``: a class of ``calibrant.losses`` or ``"module:Class"``, and its arguments.
        training: How it is trained.
        seed: Of initial weights, order of the samples, augmentation, and samples drawn.
        fold: Which fold of the data is tested, from 0.

    Example:
        >>> recipe = Recipe({"name": "digits"}, {"type": "MLP"}, {"type": "CrossEntropyLoss"}, Training(1, 32))
        >>> len(recipe.fingerprint)
        16
    """

    data: Plain
    model: Plain
    loss: Plain
    training: Training
    seed: int = 0
    fold: int = 0

    def canonical(self) -> str:
        """Return the recipe as canonical JSON."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: the name of the run's folder.

        It is the hash of what decides the numbers: where the data lie does not, and a training field at its default
        says nothing, so that a new field leaves the runs of before their names.
        """
        plain = json.loads(self.canonical())
        plain["data"].pop("folder", None)
        usual = to_plain(Training(epochs=1, batch=1))
        plain["training"] = {
            key: value for key, value in plain["training"].items() if key in ("epochs", "batch") or value != usual[key]
        }
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Objective:
    """A loss under the name that tables show, with the training fields it needs changed.

    Args:
        label: The name.
        loss: ``{"type": …, …}``.
        training: Fields of ``Training`` that this loss needs changed.
    """

    label: str
    loss: Plain
    training: Plain = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A data set and a network under one name, with the training fields they need changed.

    Args:
        label: The name.
        data: ``{"name": …, …}``.
        model: ``{"type": …, …}``.
        training: Fields of ``Training`` that these need changed.
    """

    label: str
    data: Plain
    model: Plain
    training: Plain = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A figure that a paper printed, in the units of ours: fractions, not per cent.

    Args:
        objective: Label of the objective.
        measure: ``error``, ``nll``, ``ece``, ``temperature``, ``nll_at_t`` or ``ece_at_t``.
        value: The figure.
        setting: Label of the setting; empty for the only one.
    """

    objective: str
    measure: str
    value: float
    setting: str = ""


@dataclass(frozen=True)
class Claim:
    """An ordering a paper reports: ``measure`` falls from each objective of ``falls`` to the next.

    Args:
        text: The claim in words.
        source: Paper, table or section.
        measure: As in ``Published``.
        falls: Labels of objectives, the one with the largest value first.
    """

    text: str
    source: str
    measure: str
    falls: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One training of a study and where it stands in the table.

    Args:
        setting: Label of its setting.
        objective: Label of its objective.
        recipe: The training.
    """

    setting: str
    objective: str
    recipe: Recipe


@dataclass(frozen=True)
class Study:
    """Settings × objectives × seeds × folds, what the papers printed, and what they claim.

    Args:
        name: Short name.
        title: Heading of its table.
        about: What it shows, for people.
        seeds: One training each.
        training: Fields of ``Training``.
        settings: Data sets with networks.
        objectives: Losses.
        published: Figures of papers.
        claims: Orderings of papers.
    """

    name: str
    title: str
    about: str
    seeds: tuple[int, ...]
    training: Plain
    settings: tuple[Setting, ...]
    objectives: tuple[Objective, ...]
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()

    def cells(self) -> Iterator[Cell]:
        """Yield every training, all objectives of one seed before the next seed."""
        for setting in self.settings:
            for seed in self.seeds:
                for objective in self.objectives:
                    table = {**self.training, **setting.training, **objective.training}
                    training = from_table(Training, table, where=f"training of {objective.label!r}")
                    for fold in range(int(setting.data.get("folds", 1))):
                        recipe = Recipe(setting.data, setting.model, objective.loss, training, seed, fold)
                        yield Cell(setting.label, objective.label, recipe)

    def with_data_from(self, folder: Path) -> "Study":
        """Return the study with each data set read from the folder of its name below ``folder``, where there is one.

        The place is not part of what is run: it does not change a recipe's fingerprint.
        """
        settings = [
            replace(setting, data={**setting.data, "folder": str(folder / str(setting.data["name"]))})
            if (folder / str(setting.data["name"])).is_dir()
            else setting
            for setting in self.settings
        ]
        return replace(self, settings=tuple(settings))

    def restricted(self, *, objectives: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> "Study":
        """Return the study with only the objectives and seeds named."""
        kept = tuple(o for o in self.objectives if objectives is None or o.label in objectives)
        return replace(self, objectives=kept, seeds=self.seeds if seeds is None else tuple(seeds))


def presets() -> list[str]:
    """Return the names of the studies that come with the package."""
    found = resources.files("calibrant.study").joinpath("presets").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml"))


def load_study(name: str | Path, *, scale: str | None = "cpu") -> Study:
    """Return a study by the name of a preset or by the path of a TOML file.

    Args:
        name: One of ``presets()``, or a path that ends in ``.toml``.
        scale: ``"cpu"``, ``"gpu"`` or ``"paper"``: which of the file's ``[scales.…]`` tables to lay over it; None: none.

    Raises:
        InputError: If there is no such study or scale, or the recipe is broken.
        FileFormatError: If the file cannot be read as TOML.

    Example:
        >>> load_study("digits").name
        'digits'
    """
    if scale is not None:
        check_choice(scale, name="scale", choices=SCALES)
    try:
        table = tomllib.loads(_read(name))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileFormatError(f"expected a TOML file, got {name} ({error}); correct it there") from error
    scales = table.pop("scales", {})
    if scales and scale is not None and scale not in scales:
        raise InputError(f"expected scale to be one of {', '.join(scales)} for {name}, got {scale!r}; choose one")
    study = _study({**table, **_overlay(table, scales.get(scale or "", {}))}, where=str(name))
    _check_names(study, {entry.get("label") for entry in table.get("objectives", ())}, where=str(name))
    return study


def _read(name: str | Path) -> str:
    if str(name).endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise FileFormatError(f"expected a study's TOML file, got no such file: {path}; check the path")
        return path.read_text(encoding="utf-8")
    if str(name) not in presets():
        raise InputError(f"expected a study of {', '.join(presets())} or a .toml file, got {str(name)!r}; choose one")
    return resources.files("calibrant.study").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")


def _overlay(table: Plain, scale: Plain) -> dict[str, Any]:
    """Return ``scale`` with its tables laid over those of ``table``, and ``keep`` lists resolved to entries."""
    merged: dict[str, Any] = {}
    for key, value in scale.items():
        if key in ("keep_objectives", "keep_settings"):
            family = key.removeprefix("keep_")
            merged[family] = [entry for entry in table[family] if entry.get("label") in value]
        elif isinstance(value, Mapping):
            merged[key] = {**table.get(key, {}), **value}
        else:
            merged[key] = value
    return merged


def _study(table: Plain, *, where: str) -> Study:
    values = dict(table)
    shared = {"data": values.pop("data", {}), "model": values.pop("model", {})}
    settings = values.pop("settings", None) or [{"label": values.get("name", "")}]
    values["settings"] = [
        {**entry, **{key: {**shared[key], **entry.get(key, {})} for key in shared}} for entry in settings
    ]
    study = from_table(Study, values, where=where)
    for required in ("seeds", "objectives"):
        if not getattr(study, required):
            raise InputError(f"expected at least one entry in {required} of {where}, got none; add one")
    if not list(study.cells()):
        raise InputError(f"expected at least one training in {where}, got none; raise folds to 1 or more")
    return study


def _check_names(study: Study, labels: set[Any], *, where: str) -> None:
    """Refuse published figures and claims about measures or objectives that the file does not have at any scale."""
    for measure in [p.measure for p in study.published] + [claim.measure for claim in study.claims]:
        check_choice(measure, name="measure", choices=MEASURES)
    labels = labels | {objective.label for objective in study.objectives}
    for name in [p.objective for p in study.published] + [name for claim in study.claims for name in claim.falls]:
        if name not in labels:
            raise InputError(f"expected an objective of {where}, got {name!r}; add it or correct the name")


def from_table(cls: type[T], table: Plain, *, where: str) -> T:
    """Return a dataclass from a TOML table, checking names and types.

    Raises:
        InputError: Naming the place, what it may hold, and what it holds.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    unknown = set(table) - set(known)
    if unknown:
        raise InputError(f"expected {', '.join(known)} in {where}, got {', '.join(sorted(unknown))}; correct the name")
    hints = typing.get_type_hints(cls)
    values = {key: _typed(value, hints[key], where=f"{key} of {where}") for key, value in table.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise InputError(f"expected a whole table for {where}, got one that lacks some ({error}); add them") from error


def _typed(value: Any, hint: Any, *, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _typed(value, inner[0], where=where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"expected a list for {where}, got {value!r}; write it in brackets")
        return tuple(_typed(item, inner[0], where=where) for item in value)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return from_table(hint, value, where=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = Mapping if origin is not None else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"expected {getattr(wanted, '__name__', wanted)} for {where}, got {value!r}; correct it")
    return value
