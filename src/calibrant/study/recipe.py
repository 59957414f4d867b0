"""Recipes of single trainings, and studies that consist of many of them, as plain frozen data."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant._core.arguments import check_kind, check_list_of, check_mapping
from calibrant._core.check import check_choice, check_count, check_flag, check_number, check_sequence, refuse, shown
from calibrant._core.config import to_plain
from calibrant.errors import InputError
from calibrant.study._checks import check_file_name, check_once, check_optimizer, check_seed_of_study
from calibrant.study._tables import from_table

__all__ = ["Cell", "Claim", "FigureSpec", "Objective", "Published", "Recipe", "Setting", "Study", "Training"]

Plain = Mapping[str, Any]
MOST_FOLDS = 10_000
FIGURE_KINDS = (
    "trajectory", "sweep", "best", "sizes", "reliability", "bins", "logits", "learned", "ood", "focal", "losses",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """The configuration of a training. Every choice that affects results is a field here.

    Args:
        epochs: Passes over the training data, ≥ 1.
        batch: Samples per step, over all devices together.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"adagrad"``.
        lr: Initial learning rate.
        momentum: Momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum.
        weight_decay: Weight decay as torch's optimiser defines it.
        rates: Prefix of parameter names → their own initial learning rate.
        plain: Prefixes of parameters that are updated by SGD without momentum or weight decay, at their rate in
            ``rates``; all others use ``optimizer`` (Mukhoti et al. train word vectors by SGD and the rest by AdaGrad).
        schedule: ``"steps"`` (× ``decay`` at each milestone) or ``"cosine"`` (to 0 after the last epoch).
        milestones: Epochs (counted from 0) from which the rate is lower.
        decay: Factor at a milestone.
        step_first: Lower the rate one epoch before each milestone, as in code that steps its scheduler before the
            training epoch (Mukhoti et al. 2020, on torch ≥ 1.1).
        reduction: ``"mean"`` or ``"sum"`` of the loss over a batch.
        loss_factor: Factor on the loss, > 0: with ``"sum"`` and 1 / 25, a sum over the nodes of 25 trees becomes a mean
            over trees.
        clip: Largest gradient norm, or None.
        drop_last: Leave out an incomplete last batch.
        select: The epoch whose weights are kept: ``"last"``; ``"accuracy"``, the best on validation data; or
            ``"calibrated_nll"``, the best validation log-loss after temperature scaling (refine, then calibrate). Test
            data are never used for selection.
        precision: Lightning Fabric's precision: ``"32-true"``, ``"bf16-mixed"`` …
        channels_last: Store images as height × width × channels, which tensor cores process faster.
        devices: Processes over which each batch is split (distributed data parallel).
        threads: Threads per process; results are reproducible for a fixed number only.
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
    plain: tuple[str, ...] = ()
    schedule: str = "steps"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    step_first: bool = False
    reduction: str = "mean"
    loss_factor: float = 1.0
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
        for name in ("lr", "weight_decay", "decay"):
            check_number(getattr(self, name), name=name, low=0)
        for name in ("nesterov", "step_first", "drop_last", "channels_last"):
            check_flag(getattr(self, name), name=name)
        for name in ("loss_factor", *(("clip",) if self.clip is not None else ())):
            check_number(getattr(self, name), name=name, low=0, open_low=True)
        for milestone in check_sequence(self.milestones, name="milestones"):
            check_count(milestone, name="each of milestones", low=0)
        check_count(self.checkpoint_every, name="checkpoint_every", low=0)
        check_mapping(self.rates, name="rates", example="{'embedding': 0.1}")
        check_optimizer(self)
        self._check_plain()

    def _check_plain(self) -> None:
        prefixes = check_sequence(self.plain, name="plain")
        for prefix in prefixes:
            if not isinstance(prefix, str) or prefix not in self.rates:
                raise refuse("a rate for each of plain", f"none for {shown(prefix)}", "add it to rates")
        if prefixes and (self.clip is not None or self.devices > 1):
            raise InputError("plain without clip on one device", "either", "leave one of them out")


@dataclass(frozen=True)
class Recipe:
    """One training, completely described.

    Args:
        data: ``{"name": …, …}``: a data set and its options.
        model: ``{"type": …, …}``: a class of ``study.models`` or ``"module:Class"``, and its arguments.
        loss: ``{"type": …, …}``: a class of ``calibrant.losses`` or ``"module:Class"``, and its arguments.
        training: Configuration of the training.
        seed: Seed of initial weights, order of the samples, augmentation, and sampling.
        fold: Index of the test fold, from 0.

    Examples:
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

    def __post_init__(self) -> None:
        for name in ("data", "model", "loss"):
            if not isinstance(getattr(self, name), Mapping):
                raise refuse(f"{name} as a table", shown(getattr(self, name)), "write {'type': …} and its arguments")
        check_kind(self.training, Training, name="training", remedy="pass Training(epochs, batch)")
        check_seed_of_study(self.seed)
        check_count(self.fold, name="fold", low=0)

    def canonical(self) -> str:
        """Return the recipe as canonical JSON."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: the name of the run's folder.

        It is a hash of everything that affects results. Paths of data are not part of it, nor are training fields at their
        defaults, so that adding a field does not change the fingerprints of existing runs.
        """
        plain = json.loads(self.canonical())
        for name in ("folder", "cache"):
            plain["data"].pop(name, None)
        for table, name in (("data", "glove"), ("data", "tokenizer"), ("data", "files"), ("model", "weights")):
            if isinstance(plain[table].get(name), str):
                plain[table][name] = Path(plain[table][name]).name
        usual = to_plain(Training(epochs=1, batch=1))
        plain["training"] = {
            key: value for key, value in plain["training"].items() if key in ("epochs", "batch") or value != usual[key]
        }
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Objective:
    """A loss with its label in tables and the training fields that differ for it.

    Args:
        label: Its label.
        loss: ``{"type": …, …}``.
        training: Fields of ``Training`` that differ for this loss.
    """

    label: str
    loss: Plain
    training: Plain = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A data set and a network with a label and the training fields that differ for them.

    Args:
        label: Its label.
        data: ``{"name": …, …}``.
        model: ``{"type": …, …}``.
        training: Fields of ``Training`` that differ for this setting.
        losses: Label of an objective → fields of its loss that differ here, such as a coefficient tuned per data set.
        trainings: Label of an objective → fields of ``Training`` that differ here, such as the number of epochs.
        like: Label of the paper's setting to compare with, if it is not ``label``.
    """

    label: str
    data: Plain
    model: Plain
    training: Plain = field(default_factory=dict)
    losses: Plain = field(default_factory=dict)
    like: str = ""
    trainings: Plain = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A figure printed in a paper; percentages as fractions.

    Args:
        objective: Label of the objective.
        measure: A key of ``measures.MEASURES``: ``error``, ``ece``, ``temperature``, ``ece_at_t`` …
        value: The figure.
        setting: Label of the setting; empty for the only one.
    """

    objective: str
    measure: str
    value: float
    setting: str = ""


@dataclass(frozen=True)
class Claim:
    """An ordering reported by a paper: ``measure`` decreases from each objective of ``falls`` to the next.

    Args:
        text: The claim as text.
        source: Paper, table or section.
        measure: As in ``Published``.
        falls: Labels of objectives, the one with the largest value first.
        but: Labels of settings for which the paper does not report it.
    """

    text: str
    source: str
    measure: str
    falls: tuple[str, ...]
    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a study, drawn from its stored runs.

    Args:
        name: File name, without suffix.
        title: Its heading.
        kind: A key of ``study.figures.KINDS``.
        source: The figure of a paper that it reproduces.
        panels: Content of each panel: keys of a trajectory (``"test.nll_wrong"``) or measures (``"ece_at_t"``).
        objectives: Labels of the objectives drawn; empty for all.
        setting: Label of the setting drawn; empty for each with runs.
        sweep: Loss parameters on the horizontal axis, each ``[class, field]``, or ``[class, field, "-"]`` for the negative
            of the parameter.
        bins: Indices of the bins that a figure of kind ``"bins"`` shows, from 0.
    """

    name: str
    title: str
    kind: str
    source: str = ""
    panels: tuple[tuple[str, ...], ...] = ()
    objectives: tuple[str, ...] = ()
    setting: str = ""
    sweep: tuple[tuple[str, ...], ...] = ()
    bins: tuple[int, ...] = (0, 7, 14)

    def __post_init__(self) -> None:
        check_file_name(self.name, name="the name of a figure")


@dataclass(frozen=True)
class Cell:
    """One training of a study with its row labels in the table.

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
    """A study: settings × objectives × seeds × folds, with the papers' printed figures and claims.

    Args:
        name: Short name.
        title: Heading of its table.
        about: Description.
        seeds: Seeds, one training each.
        training: Fields of ``Training``.
        settings: Data sets with networks.
        objectives: Losses.
        published: Figures printed in papers.
        claims: Orderings reported by papers.
        columns: Tables shown by default: ``"main"``, ``"calibrators"``, ``"errors"``.
        figures: Figures that can be drawn.
        papers: Keys of ``study/authors.toml``: the papers whose choices ``describe`` compares with ours.
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
    columns: tuple[str, ...] = ("main",)
    figures: tuple[FigureSpec, ...] = ()
    papers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for seed in check_sequence(self.seeds, name="seeds"):
            check_seed_of_study(seed)
        check_file_name(self.name, name="the name of a study")
        for name in ("columns", "papers"):
            check_list_of(getattr(self, name), str, name=name, remedy="name them in a list")
        if not list(self.columns):
            raise refuse("at least one of columns", "none", 'write columns = ["main"]')
        kinds = {
            "settings": Setting,
            "objectives": Objective,
            "figures": FigureSpec,
            "published": Published,
            "claims": Claim,
        }
        for name, kind in kinds.items():
            check_list_of(getattr(self, name), kind, name=name, remedy="load a study with load_study")
        labels = {name: [item.label for item in getattr(self, name)] for name in ("settings", "objectives")}
        labels["figures"] = [figure.name for figure in self.figures]
        labels |= {"columns": list(self.columns), "papers": list(self.papers)}
        for name, values in {"seeds": list(self.seeds), **labels}.items():
            check_once(values, name=name)

    def cells(self) -> Iterator[Cell]:
        """Yield every training, with all objectives of one seed before the next seed."""
        for setting in self.settings:
            for seed in self.seeds:
                for objective in self.objectives:
                    own = setting.trainings.get(objective.label, {})
                    table = {**self.training, **setting.training, **objective.training, **own}
                    training = from_table(Training, table, where=f"training of {objective.label!r}")
                    for fold in range(_folds(setting)):
                        loss = {**objective.loss, **setting.losses.get(objective.label, {})}
                        recipe = Recipe(setting.data, setting.model, loss, training, seed, fold)
                        yield Cell(setting.label, objective.label, recipe)

    def with_data_from(self, folder: Path) -> "Study":
        """Return the study with each data set read from its subfolder of ``folder``, where there is one.

        Paths do not change a recipe's fingerprint.
        """
        settings = []
        for setting in self.settings:
            place = folder / str(setting.data.get("name", "")).removeprefix("features-")
            found = (
                {**setting.data, "folder": str(place)} if "name" in setting.data and place.is_dir() else setting.data
            )
            settings.append(replace(setting, data=found))
        return replace(self, settings=tuple(settings))

    def restricted(self, *, objectives: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> "Study":
        """Return the study with the given objectives and seeds only."""
        kept = tuple(o for o in self.objectives if objectives is None or o.label in objectives)
        return replace(self, objectives=kept, seeds=self.seeds if seeds is None else tuple(seeds))


def check_study_kind(study: Any) -> Study:
    """Return ``study`` if it is a study."""
    return check_kind(study, Study, name="study", remedy="load one with load_study")


def check_recipe(recipe: Any) -> Recipe:
    """Return ``recipe`` if it is a recipe."""
    return check_kind(recipe, Recipe, name="recipe", remedy="make one, or take that of a study's cells")


def _folds(setting: Setting) -> int:
    """Return the number of folds of a setting's data, one training each."""
    folds = setting.data.get("folds", 1)
    if isinstance(folds, bool) or not isinstance(folds, int) or not 0 <= folds <= MOST_FOLDS:
        raise InputError(
            f"folds in 1 … {MOST_FOLDS} in the data of setting {setting.label!r}", f"{folds!r}", "choose another"
        )
    return folds
