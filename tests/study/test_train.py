"""Training: repeatable, resumable, blind to test data; each field of the recipe does what it says; figures over the epochs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import needs
from tests.study.samples import by_hand, finish
from torch import Tensor, nn

from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, FitError
from calibrant.study import Recipe, Run, Training, training
from calibrant.study import train as module
from calibrant.study.build import make_optimizers
from calibrant.study.data import Fold, load_fold
from calibrant.study.measures import Measured
from calibrant.study.train import epoch_figures, learned_since, temperature_of_epoch, trajectory_entry

DATA = {"name": "digits", "train": 60, "validation": 60}
PLAN = Training(epochs=3, batch=20, lr=0.05, momentum=0.9, checkpoint_every=1)
RECIPE = Recipe(DATA, {"type": "MLP", "hidden": [8]}, {"type": "CrossEntropyLoss"}, PLAN)

pytestmark = needs("lightning")


def same(a: Run, b: Run) -> bool:
    return torch.equal(a.test.logits, b.test.logits) and torch.equal(a.validation.logits, b.validation.logits)


def test_the_same_recipe_gives_the_same_numbers_and_leaves_the_callers_alone() -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(5)
    first = finish(RECIPE)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert same(first, finish(RECIPE))
    assert not same(first, finish(replace(RECIPE, seed=1)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reduction": "sum", "clip": 2.0, "weight_decay": 1e-2},
        {"milestones": (1, 2), "step_first": True, "batch": 25},
        {"drop_last": True, "batch": 25, "schedule": "cosine", "loss_factor": 0.5},
        {"optimizer": "adam", "momentum": 0.0, "lr": 1e-3},
    ],
)
def test_a_training_equals_the_one_written_out_with_torch_alone(changes: dict[str, Any]) -> None:
    recipe = replace(RECIPE, training=replace(PLAN, **changes))
    assert torch.allclose(finish(recipe).test.logits, by_hand(recipe), atol=1e-5)


def test_a_training_stopped_between_epochs_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    for changes in ({}, {"select": "accuracy"}):
        recipe = replace(RECIPE, training=replace(PLAN, **changes))
        path = tmp_path / f"{recipe.fingerprint}.pt"
        whole = finish(recipe)
        broken = training(recipe, checkpoint=path, accelerator="cpu")
        assert [next(broken), next(broken)] == [1, 2]
        broken.close()
        assert path.exists()
        resumed = finish(recipe, checkpoint=path)
        assert same(whole, resumed)
        assert resumed.trajectory == whole.trajectory
        assert resumed.record["validation_uses"] == whole.record["validation_uses"]
        assert torch.equal(resumed.learned_epochs, whole.learned_epochs)


def test_a_checkpoint_that_does_not_serve_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(FileFormatError, match="expected a whole checkpoint, got a broken one"):
        finish(RECIPE, checkpoint=path)
    path.unlink()
    broken = training(RECIPE, checkpoint=path, accelerator="cpu")
    next(broken)
    broken.close()
    with pytest.raises(FileFormatError, match="belongs to another recipe"):
        finish(replace(RECIPE, seed=1), checkpoint=path)


class Following(nn.Module):
    """Cross-entropy whose weight follows the validation error: a loss that adapts."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.rows: list[int] = []

    def update(self, validation: Predictions) -> None:
        self.rows.append(len(validation))
        self.scale = 1 + (~validation.correct).float().mean()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.scale * nn.functional.cross_entropy(logits, labels)


def test_test_data_reach_neither_training_nor_adaptation_nor_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, select="accuracy")
    recipe = replace(RECIPE, training=plan, loss={"type": "mine:Following"})
    monkeypatch.setattr("calibrant._core.config.imported", lambda name: Following)
    honest = finish(recipe)

    def spoiled(*args: Any, **kwargs: Any) -> Fold:
        fold = load_fold(*args, **kwargs)
        bad = replace(fold.test, inputs=-fold.test.inputs, labels=9 - fold.test.labels)
        return replace(fold, test=bad)

    monkeypatch.setattr(module, "load_fold", spoiled)
    other = finish(recipe)
    assert torch.equal(honest.validation.logits, other.validation.logits)
    assert honest.record["epoch"] == other.record["epoch"]
    assert not torch.equal(honest.test.logits, other.test.logits)
    assert honest.record["validation_uses"] == {"adapt the loss": 3, "choose the epoch": 3}
    assert [e["loss_state"] for e in honest.trajectory] == [e["loss_state"] for e in other.trajectory]
    assert honest.trajectory[0]["loss_state"]["scale"] > 1


def test_the_epoch_kept_is_the_best_on_validation_data() -> None:
    plan = replace(PLAN, epochs=8, lr=2.0, select="accuracy")  # too large a rate: the last epoch is not the best
    outcome = finish(replace(RECIPE, training=plan))
    errors = [entry["validation"]["error"] for entry in outcome.trajectory]
    assert outcome.record["epoch"] == errors.index(min(errors)) + 1
    assert float((~outcome.validation.correct).double().mean()) == min(errors)


def test_a_trajectory_has_an_entry_every_so_many_epochs_and_the_last() -> None:
    outcome = finish(replace(RECIPE, training=replace(PLAN, measure_every=2)))
    assert [entry["epoch"] for entry in outcome.trajectory] == [2, 3]
    assert outcome.record["validation_uses"] == {}
    last = outcome.trajectory[-1]
    assert last["test"]["nll"] == pytest.approx(float(outcome.test.nll.mean()))
    assert last["classifier_norm"] > 0


def test_a_loss_that_diverges_is_an_error() -> None:
    with pytest.raises(FitError, match="expected a finite loss"):
        finish(replace(RECIPE, training=replace(PLAN, lr=1e30)))


def test_a_part_of_the_network_may_have_a_rate_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    (main,) = make_optimizers(model, Training(1, 1, lr=0.5, rates={"0.": 0.1}, optimizer="adagrad"))
    groups = main.param_groups
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    assert [len(group["params"]) for group in groups] == [2, 2]


def test_learned_epochs_are_those_of_the_vector(vectors: dict[str, dict[str, Any]]) -> None:
    vector = vectors["learned_epoch"]
    history = torch.tensor(vector["inputs"]["correct_by_epoch"]).bool()  # (samples, epochs)
    since = torch.zeros(len(history), dtype=torch.int64)
    for epoch, correct in enumerate(history.T, start=1):
        since = learned_since(since, correct, epoch=epoch)
    assert since.tolist() == [expected or 0 for expected in vector["expected"]["learned"]]


@pytest.mark.parametrize(
    ("epochs", "gap"),
    [
        ([1, 2, 3, 9], 1.0 - 7.0),  # early: up to epoch 3
        ([10, 10, 20, 0], 0.5 - (2 + 7) / 2),  # looked at every 10 epochs: early are those right at the first look
        ([10, 10, 10, 10], math.nan),
        ([0, 0, 0, 0], math.nan),
    ],
)
def test_the_logits_of_samples_learned_early_are_compared_with_those_of_the_others(
    epochs: list[int], gap: float
) -> None:
    none = Predictions.from_logits([[0.0, 0.0]], [0])
    logits = torch.tensor([0.0, 1.0, 2.0, 7.0])
    run = Run(none, none, learned_epochs=torch.tensor(epochs), max_logits=logits)
    assert Measured([run]).value("logit_gap") == pytest.approx(gap, nan_ok=True)


def test_figures_of_right_and_wrong_samples_are_those_worked_out_by_hand() -> None:
    figures = epoch_figures(Predictions.from_logits([[math.log(3), 0.0], [math.log(3), 0.0]], [0, 1]))
    assert figures["nll_correct"] == pytest.approx(-math.log(0.75))
    assert figures["nll_wrong"] == pytest.approx(-math.log(0.25))
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert figures["entropy"] == pytest.approx(entropy)
    assert figures["entropy_wrong"] == pytest.approx(entropy)
    assert figures["ece"] == pytest.approx(0.25)
    right = Predictions.from_logits([[3.0, 0.0], [0.0, 3.0]], [0, 1])
    assert epoch_figures(right)["nll_wrong"] is None
    assert temperature_of_epoch(right).temperature < 0.01
    masked = Predictions.from_logits([[0.0, -math.inf, 0.0]], [0])
    assert epoch_figures(masked)["entropy"] == pytest.approx(math.log(2))


def test_the_optimal_ece_is_the_least_that_a_temperature_reaches_on_the_test_rows() -> None:
    # 8 of 10 right at one confidence: p = .8, ECE 0, at T = margin / log 4 = 2
    test = Predictions.from_logits([[2 * math.log(4), 0.0]] * 10, [0] * 8 + [1] * 2)
    network, loss = torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss()
    entry = trajectory_entry({"train": test, "validation": test, "test": test}, model=network, loss=loss)
    assert entry["test"]["optimal_ece"] == pytest.approx(0.0, abs=1e-12)
    assert entry["test"]["optimal_temperature"] == pytest.approx(2.0)
    assert "optimal_ece" not in entry["validation"]
