"""The choices of a study compared with the papers' text and with their authors' code."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from calibrant._core.constraints import checked
from calibrant.errors import MissingExtraError
from calibrant.study.data import data_set
from calibrant.study.data.digits import Digits
from calibrant.study.data.images import PAD, SOURCES, Images
from calibrant.study.recipe import AnyStudy, Cell, Study, Training, known_papers
from calibrant.study.resolve import make_model
from calibrant.study.train import rate_factor

IMAGES = {  # for training and for tests
    "cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032), "tiny-imagenet": (100_000, 10_000),
    "imagenet": (1_281_167, 50_000),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One choice of an experiment.

    Args:
        name: Name of the choice.
        paper: The choice in the paper's text; empty if it is not stated.
        code: The choice in the authors' code; empty if there is none, or none was available.
        here: The choice in the study, generated from it.
        source: Page or file of the paper and the code.
        whose: Title of the paper; empty for a choice that no paper states.
    """

    name: str
    paper: str
    code: str
    here: str
    source: str
    whose: str = ""


@checked
def describe(study: AnyStudy) -> list[Choice]:
    """Return every choice of a study beside that of the papers and of their code; ours are generated from the study.

    Args:
        study: The study, loaded at the scale to describe.

    Examples:
        >>> from calibrant.study import load_study
        >>> found = {choice.name: choice.here for choice in describe(load_study("mukhoti-table1", scale="paper"))}
        >>> found["clipping"]
        'gradient norm 2; SST Tree-LSTM: none'
    """
    known = known_papers()
    cells = {(cell.setting, cell.objective): cell for cell in reversed(list(study.cells()))}
    here = {name: say(study, list(reversed(cells.values()))) for name, say in HERE.items()}
    found = []
    for paper in study.papers:
        for entry in known[paper]["choices"]:
            ours = here.get(entry["choice"], "")
            found.append(
                Choice(entry["choice"], entry["paper"], entry["code"], ours, entry["source"], known[paper]["title"])
            )
    named = {choice.name for choice in found}
    return found + [Choice(name, "", "", ours, "") for name, ours in here.items() if name not in named and ours]


def _grouped(cells: Sequence[Cell], say: Callable[[Cell], str]) -> str:
    """Return the most common text, followed by the settings and objectives with other texts."""
    texts = {(cell.setting, cell.objective): say(cell) for cell in cells}
    values = list(texts.values())
    common = max(dict.fromkeys(values), key=values.count)
    settings, objectives = ({key[i]: None for key in texts} for i in (0, 1))
    parts: list[tuple[str, str]] = []
    others = {key: value for key, value in texts.items() if value != common}
    # a setting, or else an objective, all of whose trainings share another text is named once
    for i, labels in ((0, settings), (1, objectives)):
        for label in labels:
            own = {value for key, value in others.items() if key[i] == label}
            complete = sum(key[i] == label for key in texts) == sum(key[i] == label for key in others)
            if len(own) == 1 and complete:
                parts.append((label, own.pop()))
                others = {key: value for key, value in others.items() if key[i] != label}
    places: dict[tuple[str, str], list[str]] = {}
    for (setting, objective), value in others.items():
        places.setdefault((objective, value), []).append(setting)
    for (objective, value), where in places.items():
        most = len(where) > len(settings) / 2
        parts.append((f"{objective} ({'most networks' if most else ', '.join(where)})", value))
    merged: dict[str, list[str]] = {}
    for place, value in parts:
        merged.setdefault(value, []).append(place)
    return "; ".join([common, *(f"{', '.join(labels)}: {value}" for value, labels in merged.items())])


def _split_in_words(cell: Cell) -> str:
    name, found = str(cell.recipe.data["name"]), data_set(cell.recipe.data)[0]
    if isinstance(found, Digits):
        return f"digits, {found.train} / {found.validation} / all once over {found.folds} folds"
    if not isinstance(found, Images):
        return {"sst": "6,920 / 872 / 1,821", "20news": "by date, 900 for validation"}.get(name, name)
    whole, tested = IMAGES[name]
    held, rule = int(found.validation or 0), found.split
    each = f", {held // SOURCES[name].classes} a class" if rule == "per-class" else ""
    sizes = f"{found.train or whole - held:,} / {held:,} / {found.test or tested:,}"
    return f"{name} {sizes}, rule {rule!r}{each}, seed {found.split_seed}"


def _network(cell: Cell) -> str:
    """Return class and arguments, and the numbers of parameters and batch norms."""
    recipe = cell.recipe
    arguments = ", ".join(f"{key} {value}" for key, value in recipe.model.items() if key not in ("type", "init"))
    text = f"{recipe.model['type']}({arguments})"
    if recipe.model.get("weights") is not None:
        return text
    counted = _network_size(json.dumps([dict(recipe.model), dict(recipe.data)], default=str, sort_keys=True))
    return f"{text}: {counted}" if counted else text


@lru_cache(maxsize=256)
def _network_size(recipe: str) -> str:
    """Return the numbers of parameters and batch norms of a network, from its model's and data's tables as JSON."""
    model, data = json.loads(recipe)
    try:
        with torch.device("meta"):
            network = make_model(model, sizes=data_set(data)[0].sizes())
    except MissingExtraError:
        return ""
    norms = sum(isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) for module in network.modules())
    # word vectors are left out, as in the papers' counts: they grow with the vocabulary of the data
    counted = sum(p.numel() for name, p in network.named_parameters() if not name.startswith("embedding"))
    words = " besides the word vectors" if hasattr(network, "embedding") else ""
    return f"{counted:,} parameters{words}, {norms} batch norms"


def _initialisation(cell: Cell) -> str:
    model = cell.recipe.model
    after = model.get("type") == "WideResNet" and model.get("norm", "after") == "after"
    if after or model.get("init") == "normal":
        return "normal, variance 2 / (k²·outputs)"
    return "normal, variance 2 / inputs" if model.get("type") == "ThinResNet" else "torch's"


def _optimiser(plan: Training) -> str:
    momentum = [f"momentum {plan.momentum:g}"] if plan.optimizer == "sgd" else []
    nesterov = ["Nesterov"] if plan.nesterov else []
    plain = [f"{name} by plain gradient descent" for name in plan.plain]
    return ", ".join([plan.optimizer, *momentum, *nesterov, f"weight decay {plan.weight_decay:g}", *plain])


def _falls(plan: Training) -> str:
    """Return the epochs (from 0) at which the learning rate changes, computed from the rates themselves."""
    if plan.schedule == "cosine":
        return f"cosine to 0 over {plan.epochs} epochs"
    # from the rates themselves, so that what is shown is what is trained with
    rates = [rate_factor(plan, epoch) for epoch in range(plan.epochs)]
    falls = [f"{epoch}" for epoch in range(1, plan.epochs) if rates[epoch] != rates[epoch - 1]]
    return f"× {plan.decay:g} at epochs {', '.join(falls)}" if falls else "never"


CROPS = f"crop after padding by {PAD}, mirror images"
GRID = "T by log-loss, solved exactly; T by ECE on .01 … 10 in steps of .01, both on validation data"
KEPT = {"last": "the last", "accuracy": "best validation accuracy", "calibrated_nll": "best validation log-loss at T"}
PLAN: Mapping[str, Callable[[Training], str]] = {
    "optimiser": _optimiser,
    "learning rate": lambda plan: ", ".join(
        [f"{plan.lr:g}", *(f"{name} {rate:g}" for name, rate in plan.rates.items())]
    ),
    "rate falls": _falls,
    "epochs": lambda plan: f"{plan.epochs}",
    "batch": lambda plan: f"{plan.batch}{', last incomplete one left out' if plan.drop_last else ''}",
    "loss over a batch": lambda plan: plan.reduction + ("" if plan.loss_factor == 1 else f" × {plan.loss_factor:g}"),
    "clipping": lambda plan: "none" if plan.clip is None else f"gradient norm {plan.clip:g}",
    "epoch kept": lambda plan: KEPT[plan.select],
    "learned epochs": lambda plan: f"counted every {plan.measure_every} epochs",
}


def _objectives(study: Study, cells: Sequence[Cell]) -> str:
    texts = []
    for objective in study.objectives:
        loss = objective.loss
        focal = str(loss.get("type")) in ("FocalLoss", "InverseFocalLoss")
        place = "outside" if loss.get("detach_weight") else "inside"
        texts.append(f"{objective.label} (weight {place} the gradient)" if focal else objective.label)
    return ", ".join(texts)


def _coefficients(study: Study, cells: Sequence[Cell]) -> str:
    """Return the numbers of each objective's loss, and the settings that have others."""
    texts = []
    for label in dict.fromkeys(cell.objective for cell in cells):
        own = [cell for cell in cells if cell.objective == label]
        said = _grouped(
            own, lambda cell: ", ".join(f"{k} {v:g}" for k, v in cell.recipe.loss.items() if type(v) in (int, float))
        )
        if said:
            texts.append(f"{label}: {said.replace('; ', ' | ')}")
    return "; ".join(texts) + ("; not chosen on test data here" if texts else "")


def _each(say: Callable[[Cell], str]) -> Callable[[Study, Sequence[Cell]], str]:
    return lambda study, cells: _grouped(cells, say)


def _of_plan(say: Callable[[Training], str]) -> Callable[[Study, Sequence[Cell]], str]:
    return _each(lambda cell: say(cell.recipe.training))


HERE: Mapping[str, Callable[[Study, Sequence[Cell]], str]] = {
    "split": _each(_split_in_words),
    "statistics": _each(lambda cell: str(getattr(data_set(cell.recipe.data)[0], "statistics", "none"))),
    "augmentation": _each(
        lambda cell: CROPS if getattr(data_set(cell.recipe.data)[0], "augment", False) else "none",
    ),
    "network": _each(_network),
    "initialisation": _each(_initialisation),
    "objectives": _objectives,
    "coefficients": _coefficients,
    **{name: _of_plan(say) for name, say in PLAN.items()},
    "grid of T": lambda study, cells: GRID,
    "bins": lambda study, cells: "15 of equal width, and 15 of equal mass",
    "seeds": lambda study, cells: ", ".join(map(str, study.seeds)),
}
