"""What the tests of studies share: a small study as a file, images as arrays, and texts as the hub has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibrant.study import train, training
from calibrant.study.build import make_model
from calibrant.study.data import load_fold
from calibrant.study.measures import Run
from calibrant.study.recipe import Recipe
from calibrant.study.train import rate_factor


def study_text(
    losses: Mapping[str, str],
    *,
    data: str,
    training: str,
    seeds: str = "[0, 1]",
    model: str = 'type = "MLP", hidden = [8]',
) -> str:
    """A study of digits as TOML; ``losses`` holds the table of each objective's loss by its label."""
    text = f'name = "small"\ntitle = "t"\nabout = "a"\nseeds = {seeds}\ndata = {{ name = "digits", {data} }}\n'
    text += f"model = {{ {model} }}\ntraining = {{ {training} }}\n"
    return text + "".join(
        f'[[objectives]]\nlabel = "{label}"\nloss = {{ type = {loss} }}\n' for label, loss in losses.items()
    )


def write_images(
    folder: Path, *, train: tuple[int, ...] = (30,), test: int = 12, side: int = 32, seed: int = 0
) -> dict[str, np.ndarray]:
    """Write parts of so many random images each, and return them by the names of their files."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    counts = {**{f"train-{part}": count for part, count in enumerate(train)}, "test-0": test}
    made = {name: rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8) for name, count in counts.items()}
    for name, pixels in made.items():
        np.savez(folder / f"{name}.npz", images=pixels, labels=np.arange(len(pixels)) % 10)
    return made


def write_texts(folder: Path, names: tuple[str, ...] = ("train", "test"), **columns: Any) -> None:
    """Write the same columns as training and as test texts."""
    pa = pytest.importorskip("pyarrow", reason="optional package 'pyarrow' is not installed")
    import pyarrow.parquet

    for name in names:
        pyarrow.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")


SMALL = study_text(
    {"CE": '"CrossEntropyLoss"', "F": '"FocalLoss", gamma = 1'},
    data="folds = 2",
    model='type = "MLP"',
    training="epochs = 3, batch = 10",
)
SMALL += "training = { lr = 0.5 }\n"

FOLDS = study_text(
    {"CE": '"CrossEntropyLoss"', "Focal": '"FocalLoss", gamma = 3.0'},
    data="folds = 2, train = 40, validation = 60",
    training="epochs = 2, batch = 20, lr = 0.05",
)


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def finish(recipe: Recipe, *, checkpoint: Path | None = None) -> Run:
    pytest.importorskip("lightning", reason="optional package 'lightning' is not installed")
    run = training(recipe, checkpoint=checkpoint, accelerator="cpu")
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value


def by_hand(recipe: Recipe) -> Tensor:
    """Return test logits of the same training by cross-entropy, written out with torch alone: the oracle."""
    plan, fold = recipe.training, load_fold(recipe.data, seed=recipe.seed, fold=recipe.fold)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = make_model(recipe.model, sizes=fold.sizes)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=plan.lr)
    if plan.optimizer == "sgd":
        options = {"momentum": plan.momentum, "weight_decay": plan.weight_decay}
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr, **options)
    for epoch in range(plan.epochs):
        optimizer.param_groups[0]["lr"] = plan.lr * rate_factor(plan, epoch)
        seed = train._mix(recipe.seed, epoch, "order")
        order = torch.randperm(len(fold.train), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(plan.batch):
            if plan.drop_last and len(rows) < plan.batch:
                continue
            inputs, labels = fold.train.batch(rows)
            optimizer.zero_grad()
            value = nn.functional.cross_entropy(model(inputs), labels, reduction=plan.reduction)
            (value * plan.loss_factor).backward()
            if plan.clip:
                nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optimizer.step()
    return model(fold.test.batch(torch.arange(len(fold.test)))[0]).detach()
