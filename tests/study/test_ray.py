"""A study on a Ray cluster gives what it gives in turn; a killed worker is a training tried again."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import needs
from tests.study.samples import FOLDS

from calibrant.errors import InputError, MissingExtraError
from calibrant.study import Store, Study, load_study
from calibrant.study.ray import run_study_on_ray
from calibrant.study.recipe import Recipe
from calibrant.study.run import run_study

pytestmark = [
    *needs("lightning", "ray"),
    *(pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Future", "Resource")),  # Ray's own
]

TEXT = FOLDS.replace("folds = 2, ", "").replace("epochs = 2,", "epochs = 3, checkpoint_every = 1,")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray with two workers on this machine, which import what this process can."""
    module = pytest.importorskip("ray", reason="optional package 'ray' is not installed")
    root = Path(__file__).parents[2]
    module.shutdown()  # of what an earlier test of this process started
    paths = os.pathsep.join(map(str, (root / "src", root)))
    module.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield module
    module.shutdown()


def study_of(folder: Path, text: str) -> Study:
    path = folder / "small.toml"
    path.write_text(text)
    return load_study(path)


def lasting(store: Store, recipe: Recipe) -> dict[str, Any]:
    """Return a run's record without what a clock measured."""
    record = json.loads((store.folder(recipe) / "record.json").read_text())
    return {key: value for key, value in record.items() if key != "seconds"}


@pytest.mark.slow
def test_24_runs_of_digits_give_the_records_of_24_in_turn(ray: Any, tmp_path: Path) -> None:
    text = TEXT.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3]").replace('"digits",', '"digits", folds = 3,')
    study = study_of(tmp_path, text.replace("epochs = 3", "epochs = 2"))
    alone, cluster = Store(tmp_path / "alone"), Store(tmp_path / "cluster")
    list(run_study(study, alone, accelerator="cpu"))
    news = list(run_study_on_ray(study, cluster, accelerator="cpu"))
    assert [(step.done, step.total) for step in news] == [(n, 24) for n in range(1, 25)]
    for cell in study.cells():
        assert lasting(alone, cell.recipe) == lasting(cluster, cell.recipe)
        assert alone.trajectory(cell.recipe) == cluster.trajectory(cell.recipe)
        first, second = alone.load(cell.recipe), cluster.load(cell.recipe)
        assert torch.equal(first.test.logits, second.test.logits)
        assert torch.equal(first.validation.logits, second.validation.logits)
    assert list(run_study_on_ray(study, cluster, accelerator="cpu")) == []


@pytest.mark.slow
def test_a_killed_worker_is_a_training_tried_again_and_its_error_is_the_users(ray: Any, tmp_path: Path) -> None:
    marker, calm = tmp_path / "killed", tmp_path / "calm"
    calm.touch()
    model = '{ type = "tests.study.test_run:Mortal", marker = "PLACE", store = "none" }'
    text = TEXT.replace("seeds = [0, 1]", "seeds = [0]").replace('{ type = "MLP", hidden = [8] }', model)
    study = study_of(tmp_path, text.replace("PLACE", str(marker)))
    undisturbed = study_of(tmp_path, text.replace("PLACE", str(calm)))
    store, whole = Store(tmp_path / "runs"), Store(tmp_path / "whole")
    assert len(list(run_study_on_ray(study, store, accelerator="cpu"))) == 2
    assert marker.exists()
    list(run_study(undisturbed, whole, accelerator="cpu"))
    for cell, other in zip(study.cells(), undisturbed.cells(), strict=True):
        assert torch.equal(store.load(cell.recipe).test.logits, whole.load(other.recipe).test.logits)
    broken = study_of(tmp_path, TEXT.replace('"FocalLoss", gamma = 3.0', '"NoLoss"'))
    with pytest.raises(InputError, match="expected type to be one of"):
        list(run_study_on_ray(broken, store, accelerator="cpu"))


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        next(run_study_on_ray(study_of(tmp_path, TEXT), Store(tmp_path / "runs")))
