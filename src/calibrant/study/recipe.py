"""What to run, as plain frozen data: recipes of single trainings, and studies that hold many of them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant._arguments import check_kind, check_list_of, check_mapping
from calibrant._check import check_choice, check_count, check_flag, check_number, check_sequence, refuse, shown
from calibrant._plain import to_plain
from calibrant.errors import InputError
from calibrant.study._tables import from_table

__all__ = ["Cell", "Claim", "FigureSpec", "Objective", "Published", "Recipe", "Setting", "Study", "Training"]

Plain = Mapping[str, Any]
MOST_SEED = 2**63 - 1  # what NumPy's and torch's generators both take
MOST_FOLDS = 10_000
FIGURE_KINDS = (
    "trajectory", "sweep", "best", "sizes", "reliability", "bins", "logits", "learned", "ood", "focal", "losses",
)  # fmt: skip


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
        plain: Starts of names of parameters that plain gradient descent moves at their rate of ``rates``, without
            momentum or decay, beside ``optimizer`` for the rest (Mukhoti et al.'s word vectors beside AdaGrad).
        schedule: ``"steps"`` (× ``decay`` at each milestone) or ``"cosine"`` (to 0 after the last epoch).
        milestones: Epochs (counted from 0) from which the rate is lower.
        decay: Factor at a milestone.
        step_first: Lower the rate one epoch before each milestone, as code does that steps its scheduler before
            training (Mukhoti et al. 2020's; on torch ≥ 1.1).
        reduction: ``"mean"`` or ``"sum"`` of the loss over a batch.
        loss_factor: The loss is multiplied by this, > 0: with ``"sum"`` and 1 / 25 a sum over the nodes of 25 trees is a
            mean over trees.
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
        for name in ("lr", "momentum", "weight_decay", "decay"):
            check_number(getattr(self, name), name=name, low=0)
        for name in ("nesterov", "step_first", "drop_last", "channels_last"):
            check_flag(getattr(self, name), name=name)
        for name in ("loss_factor", *(("clip",) if self.clip is not None else ())):
            check_number(getattr(self, name), name=name, low=0, open_low=True)
        for milestone in check_sequence(self.milestones, name="milestones"):
            check_count(milestone, name="each of milestones", low=0)
        check_count(self.checkpoint_every, name="checkpoint_every", low=0)
        check_mapping(self.rates, name="rates", example="{'embedding': 0.1}")
        self._check_plain()

    def _check_plain(self) -> None:
        for prefix in check_sequence(self.plain, name="plain"):
            if not isinstance(prefix, str) or prefix not in self.rates:
                raise refuse("a rate for each of plain", f"none for {shown(prefix)}", "add it to rates")
        if self.plain and (self.clip is not None or self.devices > 1):
            raise InputError("expected plain without clip on one device, got either; leave one of them out")


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
        _check_seed(self.seed)
        check_count(self.fold, name="fold", low=0)

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
        for table, name in (("data", "glove"), ("data", "tokenizer"), ("model", "weights")):
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
        losses: Label of an objective → fields of its loss that are others here, as a coefficient chosen for each data set.
        trainings: Label of an objective → fields of ``Training`` that are others here, as a length of its own.
        like: Label of the paper's setting whose figures stand beside this one's, where that is not ``label``.
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
    """A figure that a paper printed, in the units of ours: fractions, not per cent.

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
    """An ordering a paper reports: ``measure`` falls from each objective of ``falls`` to the next.

    Args:
        text: The claim in words.
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
        name: Of the file.
        title: Its heading.
        kind: A key of ``study.figures.KINDS``.
        source: The figure of a paper that it stands for.
        panels: What each panel shows: places in a trajectory (``"test.nll_wrong"``) or measures (``"ece_at_t"``).
        objectives: Labels of those drawn; empty for all.
        setting: Label of the one drawn; empty for each that has runs.
        sweep: Losses along whose number the figure goes, each ``[class, field]`` or ``[class, field, "-"]`` where the
            axis is the number's negative.
        bins: Which bins a figure of bins shows, from 0.
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
        columns: Which tables are shown unless others are asked for: ``"main"``, ``"calibrators"``, ``"errors"``.
        figures: What can be drawn.
        papers: Keys of ``study/authors.toml``: whose choices ``describe`` puts beside ours.
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
            _check_seed(seed)
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
        for name, values in {"seeds": list(self.seeds), **labels}.items():
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise InputError(f"expected each of {name} once, got {twice!r} twice; leave one out or rename it")

    def cells(self) -> Iterator[Cell]:
        """Yield every training, all objectives of one seed before the next seed."""
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


def check_study_kind(study: Any) -> Study:
    """Return ``study`` if it is a study."""
    return check_kind(study, Study, name="study", remedy="load one with load_study")


def check_recipe(recipe: Any) -> Recipe:
    """Return ``recipe`` if it is a recipe."""
    return check_kind(recipe, Recipe, name="recipe", remedy="make one, or take that of a study's cells")


def _check_seed(seed: int) -> None:
    """Refuse what no generator takes as a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
        raise InputError(f"expected seeds in 0 … 2⁶³ − 1, got {shown(seed)}; choose another")


def _folds(setting: Setting) -> int:
    """Return how many folds of a setting's data are tested, one training each."""
    folds = setting.data.get("folds", 1)
    if isinstance(folds, bool) or not isinstance(folds, int) or not 0 <= folds <= MOST_FOLDS:
        raise InputError(
            f"expected folds in 1 … {MOST_FOLDS} in the data of setting {setting.label!r}, got {folds!r}; choose another"
        )
    return folds
