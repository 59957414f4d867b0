"""Trajectories: figures worked out by hand, and learned epochs as the paper's vector has them."""

import math
from typing import Any

import pytest
import torch

from calibrant.data.predictions import Predictions
from calibrant.study.measures import Measured, Run
from calibrant.study.train import epoch_figures, learned_since, temperature_of_epoch, trajectory_entry


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
