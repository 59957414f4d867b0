"""CIFAR-10 and CIFAR-100 themselves, in the hub's layout: a cell is trained, and each is out-of-distribution for the other."""

from pathlib import Path

import pytest
from tests.conftest import needs
from tests.study.test_train import finish

from calibrant.metrics import ood_auroc
from calibrant.study import Training
from calibrant.study.data import load_fold
from calibrant.study.recipe import Recipe

pytestmark = needs("lightning", "datasets")

MODEL = {"type": "ThinResNet", "depth": 8, "widths": [4, 8, 16], "stride": 2}
PLAN = Training(epochs=1, batch=64, lr=0.05, momentum=0.9)


@pytest.mark.slow
def test_a_cell_of_cifar_100_is_trained_from_the_hubs_layout(data: Path) -> None:
    folder = data / "cifar100"
    if not folder.is_dir():
        pytest.skip("no CIFAR-100 in the real data")
    table = {"name": "cifar100", "folder": str(folder), "train": 300, "validation": 200, "test": 300, "augment": False}
    fold = load_fold(table)
    assert fold.sizes["classes"] == 100
    assert len(set(fold.test.labels.tolist())) > 80
    outcome = finish(Recipe(table, MODEL, {"type": "FocalLoss", "gamma": 3.0}, PLAN))
    assert outcome.test.logits.shape == (300, 100)


@pytest.mark.slow
def test_cifar_100_is_outside_of_cifar_10(data: Path) -> None:
    if not (data / "cifar100").is_dir() or not (data / "cifar10").is_dir():
        pytest.skip("no CIFAR-10 and CIFAR-100 in the real data")
    table = {"name": "cifar10", "folder": str(data / "cifar10"), "train": 300, "validation": 200, "test": 300,
            "augment": False, "ood": [{"name": "cifar100", "test": 300}, "gaussian-noise"]}  # fmt: skip
    outcome = finish(Recipe(table, MODEL, {"type": "AdaFocalLoss"}, PLAN))
    assert outcome.ood["cifar100"].logits.shape == (300, 10)
    assert 0.2 < ood_auroc(outcome.test, outcome.ood["cifar100"]) < 0.95
