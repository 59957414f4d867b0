"""Recipes for single training runs, and studies that consist of many of them: frozen data, validated by pydantic."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from calibrant._core.check import check_choice, refuse, shown
from calibrant._core.config import to_plain
from calibrant.errors import InputError, optional
from calibrant.study.measures import MEASURES
from calibrant.study.record import (
    Count,
    Flag,
    Natural,
    NonNegative,
    Positive,
    Real,
    Seed,
    Table,
    Text,
    naming,
    record,
    require_once,
)

with optional("pydantic", extra="study"):
    from pydantic import AfterValidator, Field, model_validator

MeasureName = Annotated[Text, AfterValidator(lambda name: check_choice(name, name="a measure", choices=MEASURES))]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]  # of Lightning Fabric
# the keys of papers/authors.toml in the repository
Paper = Literal["mukhoti", "komisarenko", "wang", "adafocal", "report"]
FigureKind = Literal[
    "trajectory", "sweep", "best", "sizes", "reliability", "bins", "logits", "learned", "ood", "focal", "losses"
]  # fmt: skip


@record
class Training:
    """The configuration of a training run. Every choice that affects results is a field.

    Args:
        epochs: Number of passes over the training data, ≥ 1.
        batch: Number of samples per step, over all devices together.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"adagrad"``.
        lr: Initial learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay, as PyTorch's optimiser defines it.
        rates: Dict from prefixes of parameter names to initial learning rates that replace ``lr``.
        plain: Prefixes of parameters that are updated by SGD without momentum or weight decay, at their rate in ``rates``.
            All other parameters use ``optimizer`` (Mukhoti et al. train word vectors by SGD and the rest by AdaGrad).
        schedule: ``"steps"`` (× 0.1 at each milestone) or ``"cosine"`` (to 0 after the last epoch).
        milestones: Epochs, counted from 0, at which the learning rate is lowered.
        step_first: Whether to lower the rate one epoch before each milestone, as in code that steps its scheduler before
            the training epoch (Mukhoti et al. 2020, on PyTorch ≥ 1.1).
        reduction: ``"mean"`` or ``"sum"`` of the loss over a batch.
        loss_factor: Factor on the loss, > 0. With reduction ``"sum"``, a factor of 1 / 25 turns a sum over the nodes of 25
            trees into a mean over trees.
        clip: Largest gradient norm, or None.
        drop_last: Whether to leave out an incomplete last batch.
        select: The epoch whose weights are kept: ``"last"``, or ``"accuracy"`` for the epoch with the best validation
            accuracy. Test data are never used for selection.
        precision: Lightning Fabric's precision: ``"32-true"``, ``"bf16-mixed"`` …
        channels_last: Whether to store images as height × width × channels, which tensor cores process faster.
        devices: Number of processes over which each batch is split (distributed data parallel).
        threads: Number of threads per process; results are reproducible only for a fixed number.
        measure_every: Number of epochs between entries of the trajectory.
        checkpoint_every: Number of epochs between checkpoints; 0 writes none.

    Raises:
        InputError: If a field is outside its range, or fields contradict each other.

    Examples:
        >>> Training(epochs=10, batch=32, milestones=(5,)).optimizer
        'sgd'
    """

    epochs: Count
    batch: Count
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = "sgd"
    lr: NonNegative = 0.1
    momentum: Annotated[NonNegative, Field(lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    rates: dict[str, NonNegative] = field(default_factory=dict)
    plain: tuple[Text, ...] = ()
    schedule: Literal["steps", "cosine"] = "steps"
    milestones: tuple[Natural, ...] = ()
    step_first: Flag = False
    reduction: Literal["mean", "sum"] = "mean"
    loss_factor: Positive = 1.0
    clip: Positive | None = None
    drop_last: Flag = False
    select: Literal["last", "accuracy"] = "last"
    precision: Precision = "32-true"
    channels_last: Flag = False
    devices: Count = 1
    threads: Count = 1
    measure_every: Count = 1
    checkpoint_every: Natural = 10

    @model_validator(mode="after")
    def _check(self) -> "Training":
        if self.optimizer != "sgd" and self.momentum:
            raise InputError("the optimizer 'sgd' for momentum", repr(self.optimizer), "leave momentum out")
        if without := [prefix for prefix in self.plain if prefix not in self.rates]:
            raise refuse("a rate for each prefix in plain", f"none for {shown(without[0])}", "add it to rates")
        if self.plain and (self.clip is not None or self.devices > 1):
            wanted = "plain to be used without clip and on one device"
            raise InputError(wanted, "clip or several devices", "leave one of them out")
        return self


@record
class Recipe:
    """The complete description of one training run.

    Args:
        data: ``{"name": …, …}``, a data set and its options.
        model: ``{"type": …, …}``, the name of a class in ``study.models`` or ``"module:Class"``, and its arguments.
        loss: ``{"type": …, …}``, the name of a class in ``calibrant.losses`` or ``"module:Class"``, and its arguments.
        training: Configuration of the training run.
        seed: Seed for the initial weights, the order of the samples, augmentation and sampling.
        fold: Index of the test fold, from 0.

    Examples:
        >>> recipe = Recipe({"name": "digits"}, {"type": "MLP"}, {"type": "CrossEntropyLoss"}, Training(1, 32))
        >>> len(recipe.fingerprint)
        16
    """

    data: Table
    model: Table
    loss: Table
    training: Training
    seed: Seed = 0
    fold: Natural = 0

    def canonical(self) -> str:
        """Return the recipe as canonical JSON."""
        # sorted, because the order of keys in a file must not change the recipe
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def fingerprint(self) -> str:
        """The name of the run's folder, 16 hexadecimal digits.

        The fingerprint is a hash of everything that affects results. Data paths, and training fields that have their
        default values, are left out, so that neither moving data nor adding a field to ``Training`` changes the
        fingerprints of existing runs.
        """
        plain = json.loads(self.canonical())
        # where the data are does not affect results
        plain["data"].pop("folder", None)
        # only the name of a file with weights or vectors counts, so that moving the file gives the same run
        for table, name in (("data", "glove"), ("data", "tokenizer"), ("model", "weights")):
            if isinstance(plain[table].get(name), str):
                plain[table][name] = Path(plain[table][name]).name
        usual = to_plain(Training(epochs=1, batch=1))
        kept = {"epochs", "batch"} | {key for key, value in plain["training"].items() if value != usual[key]}
        plain["training"] = {key: plain["training"][key] for key in kept}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@record
class Objective:
    """A loss, its label in tables, and the training fields that differ for this loss.

    Args:
        label: The label in tables.
        loss: ``{"type": …, …}``, as in ``Recipe``.
        training: Fields of ``Training`` that differ for this loss.

    Examples:
        >>> Objective("focal", {"type": "FocalLoss", "gamma": 3.0}).label
        'focal'
    """

    label: Text
    loss: Table
    training: Table = field(default_factory=dict)


@record
class Setting:
    """A data set and a network, their label in tables, and the training fields that differ for them.

    Args:
        label: The label in tables.
        data: ``{"name": …, …}``, as in ``Recipe``.
        model: ``{"type": …, …}``, as in ``Recipe``.
        training: Fields of ``Training`` that differ for this setting.
        losses: Dict from objective labels to fields of the loss that differ in this setting (such as a coefficient tuned
            per data set).
        trainings: Dict from objective labels to fields of ``Training`` that differ in this setting (such as the number of
            epochs).
        like: Label of the paper's setting to compare with, if it is not ``label``.

    Examples:
        >>> Setting("digits", {"name": "digits"}, {"type": "MLP"}, training={"epochs": 20}).training
        {'epochs': 20}
    """

    label: Text
    data: Table
    model: Table
    training: Table = field(default_factory=dict)
    losses: Table = field(default_factory=dict)
    like: Text = ""
    trainings: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A number printed in a paper, with percentages as fractions.

    Args:
        objective: Label of the objective.
        measure: A key of ``measures.MEASURES``: ``error``, ``ece``, ``temperature``, ``ece_at_t`` …
        value: The number.
        setting: Label of the setting; may be empty if there is only one.
        spread: The printed standard deviation over seeds, in the unit of ``value``, or NaN if none is printed.
    """

    objective: str
    measure: str
    value: float
    setting: str
    spread: float


@record
class Printed:
    """A paper's table as printed, with one row per setting and one group of numbers per objective.

    Percentages are from 0 to 100.

    Args:
        source: The paper and the number of the table.
        measures: The measure of each number in a group, a key of ``measures.MEASURES``.
        objectives: The label of each group.
        rows: Dict from setting labels (or "") to the groups of a row; an empty group is missing or illegible in the paper.
        spreads: The standard deviations in the same form, without the rows that have none.

    Raises:
        InputError: If a row does not have one group per objective, or a non-empty group does not have one number per
            measure.

    Examples:
        >>> table = Printed("a paper, Table 1", ("ece",), ("cross-entropy", "focal"), {"": ((4.35,), (1.45,))})
        >>> [figure.value for figure in table.figures()]
        [0.0435, 0.0145]
    """

    source: Text
    measures: tuple[MeasureName, ...]
    objectives: tuple[Text, ...]
    rows: dict[str, tuple[tuple[Real, ...], ...]]
    spreads: dict[str, tuple[tuple[Real, ...], ...]] = field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> "Printed":
        for setting, groups in (*self.rows.items(), *self.spreads.items()):
            if len(groups) != len(self.objectives) or {*map(len, groups)} - {0, len(self.measures)}:
                wanted = (
                    f"{len(self.objectives)} groups of {len(self.measures)} numbers in row {setting!r} of {self.source}"
                )
                raise refuse(wanted, shown([list(group) for group in groups]), "write [] for a missing one")
        return self

    def figures(self) -> Iterator[Published]:
        """Yield every printed number, with percentages as fractions."""
        for setting, groups in self.rows.items():
            spreads = self.spreads.get(setting, ((),) * len(groups))
            for objective, group, spread in zip(self.objectives, groups, spreads, strict=True):
                triples = zip(self.measures, group, spread or (math.nan,) * len(group), strict=False)
                for measure, value, deviation in triples:
                    scale = 100 if MEASURES[measure].percent else 1
                    yield Published(objective, measure, round(value / scale, 8), setting, round(deviation / scale, 8))


@record
class Claim:
    """An ordering reported by a paper: the measure decreases from each objective in ``falls`` to the next.

    Args:
        text: The claim as a sentence.
        source: The paper with its table or section.
        measure: A key of ``measures.MEASURES``, as in ``Printed``.
        falls: Labels of objectives, from the largest value to the smallest.
        but: Labels of settings for which the paper does not report the ordering.

    Examples:
        >>> Claim("focal loss has a lower ECE", "a paper, Table 1", "ece", ("cross-entropy", "focal")).falls
        ('cross-entropy', 'focal')
    """

    text: Text
    source: Text
    measure: MeasureName
    falls: Annotated[tuple[Text, ...], Field(min_length=2)]
    but: tuple[Text, ...] = ()


@record
class FigureSpec:
    """A figure of a study, drawn from its stored runs.

    Args:
        name: File name, without suffix.
        title: The heading.
        kind: A key of ``study.figures.KINDS``.
        source: The figure of a paper that this figure reproduces.
        panels: For each panel, keys of a trajectory (``"test.nll_wrong"``) or measures (``"ece_at_t"``).
        objectives: Labels of the objectives to draw; empty for all.
        sweep: Loss parameters on the horizontal axis, each ``[class, field]``, or ``[class, field, "-"]`` for the negative
            of the parameter. ``["Training", field]`` is a field of the training configuration.

    Examples:
        >>> FigureSpec("ece", "ECE by epoch", "trajectory", panels=(("test.ece",),)).kind
        'trajectory'
    """

    name: Text
    title: Text
    kind: FigureKind
    source: Text = ""
    panels: tuple[tuple[Text, ...], ...] = ()
    objectives: tuple[Text, ...] = ()
    sweep: tuple[tuple[Text, ...], ...] = ()


@dataclass(frozen=True)
class Cell:
    """One training run of a study, with its row labels in the table.

    Args:
        setting: Label of the setting.
        objective: Label of the objective.
        recipe: The recipe of the training run.
    """

    setting: str
    objective: str
    recipe: Recipe


@record
class Study:
    """A study: settings × objectives × seeds × folds, with the papers' printed figures and claims.

    Args:
        name: Short name.
        title: Heading of the study's table.
        about: Description.
        seeds: Seeds; each is used for one training run per setting, objective and fold.
        training: Fields of ``Training`` that all training runs share.
        settings: Data sets with networks.
        objectives: Losses.
        printed: Tables printed in papers.
        claims: Orderings reported by papers.
        columns: Tables shown by default: ``"main"``, ``"calibrators"``, ``"errors"``.
        figures: Figures that can be drawn.
        papers: Keys of the papers that the study reproduces: ``"mukhoti"``, ``"komisarenko"``, ``"wang"``, ``"adafocal"``,
            ``"report"``.

    Examples:
        >>> from calibrant.study import load_study
        >>> study = load_study("digits")
        >>> study.name, len(list(study.cells())) > 0
        ('digits', True)
    """

    name: Text
    title: Text
    about: Text
    seeds: tuple[Seed, ...]
    training: Table
    settings: tuple[Setting, ...]
    objectives: tuple[Objective, ...]
    printed: tuple[Printed, ...] = ()
    claims: tuple[Claim, ...] = ()
    columns: Annotated[tuple[Literal["main", "calibrators", "errors"], ...], Field(min_length=1)] = ("main",)
    figures: tuple[FigureSpec, ...] = ()
    papers: tuple[Paper, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "Study":
        for name in ("settings", "objectives"):
            require_once([item.label for item in getattr(self, name)], name=name)
        require_once([figure.name for figure in self.figures], name="figures")
        require_once(self.seeds, name="seeds")
        return self

    @property
    def published(self) -> list[Published]:
        """All numbers in the printed tables."""
        return [figure for table in self.printed for figure in table.figures()]

    def cells(self) -> Iterator[Cell]:
        """Yield every training run; all objectives of one seed come before the next seed."""
        for setting in self.settings:
            for seed in self.seeds:
                for objective in self.objectives:
                    # later tables override earlier ones: study, setting, objective, objective in this setting
                    own = setting.trainings.get(objective.label, {})
                    table = {**self.training, **setting.training, **objective.training, **own}
                    with naming(f"training of {objective.label!r}"):
                        training = Training(**table)
                    for fold in range(setting.data.get("folds", 1)):
                        loss = {**objective.loss, **setting.losses.get(objective.label, {})}
                        recipe = Recipe(setting.data, setting.model, loss, training, seed, fold)
                        yield Cell(setting.label, objective.label, recipe)

    def with_data_from(self, folder: Path) -> "Study":
        """Return a study that reads each data set from its subfolder of ``folder``, if there is one.

        Paths do not change a recipe's fingerprint.
        """
        settings = []
        for setting in self.settings:
            place = folder / str(setting.data.get("name", "."))
            moved = {"folder": str(place)} if "name" in setting.data and place.is_dir() else {}
            settings.append(replace(setting, data={**setting.data, **moved}))
        return replace(self, settings=tuple(settings))

    def restricted(self, *, objectives: Sequence[str] = (), settings: Sequence[str] = ()) -> "Study":
        """Return the study with only the given objectives and settings; an empty sequence keeps all."""
        kept = tuple(one for one in self.objectives if not objectives or one.label in objectives)
        where = tuple(one for one in self.settings if not settings or one.label in settings)
        return replace(self, objectives=kept, settings=where)
