"""A study on a Ray cluster gives what it gives in turn; a killed worker is a training tried again."""

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
from calibrant.study.run import run_study, run_study_on_ray

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


@pytest.mark.slow
def test_a_study_gives_what_it_gives_in_turn_though_a_worker_is_killed(ray: Any, tmp_path: Path) -> None:
    marker, calm = tmp_path / "killed", tmp_path / "calm"
    calm.touch()
    model = '{ type = "tests.study.test_run:Mortal", marker = "PLACE", store = "none" }'
    text = TEXT.replace('{ type = "MLP", hidden = [8] }', model)
    study = study_of(tmp_path, text.replace("PLACE", str(marker)))
    undisturbed = study_of(tmp_path, text.replace("PLACE", str(calm)))
    cluster, alone = Store(tmp_path / "cluster"), Store(tmp_path / "alone")
    news = list(run_study_on_ray(study, cluster, accelerator="cpu"))
    assert [(step.done, step.total) for step in news] == [(n, 4) for n in range(1, 5)]
    assert marker.exists()
    list(run_study(undisturbed, alone, accelerator="cpu"))
    for cell, other in zip(study.cells(), undisturbed.cells(), strict=True):
        first, second = cluster.load(cell.recipe), alone.load(other.recipe)
        assert first.trajectory == second.trajectory
        assert torch.equal(first.test.logits, second.test.logits)
        assert torch.equal(first.validation.logits, second.validation.logits)
        same = ("epoch", "validation_uses", "device", "versions")
        assert [first.record[key] for key in same] == [second.record[key] for key in same]
    assert list(run_study_on_ray(study, cluster, accelerator="cpu")) == []
    broken = study_of(tmp_path, TEXT.replace('"FocalLoss", gamma = 3.0', '"NoLoss"'))
    with pytest.raises(InputError, match="expected type to be one of"):
        list(run_study_on_ray(broken, cluster, accelerator="cpu"))


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        next(run_study_on_ray(study_of(tmp_path, TEXT), Store(tmp_path / "runs")))
