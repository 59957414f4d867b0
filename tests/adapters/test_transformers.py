"""The Hugging Face hooks in a real Trainer: the loss is ours, and a resumed run has the loss's state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters.counting import Counting
from tests.conftest import late, needs
from torch import nn

from calibrant import Predictions, losses
from calibrant.errors import InputError

hf, adapter = late("transformers"), late("calibrant.adapters.transformers")
pytestmark = [
    *needs("transformers"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": (self.x[index, 0] > 0).long()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(x)}


def trainer(folder: Path, loss: Any, epochs: int, **more: Any) -> Any:
    arguments = hf.TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=8, save_strategy="epoch",
        eval_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip
    return hf.Trainer(
        model=Net(), args=arguments, train_dataset=Data(), eval_dataset=Data(), compute_loss_func=adapter.compute_loss_with(loss),
        compute_metrics=adapter.compute_metrics_with(), **more,
    )  # fmt: skip


def validation() -> Predictions:
    data = Data()
    return Predictions.from_logits(torch.zeros(48, 3), (data.x[:, 0] > 0).long())


def test_a_resumed_run_has_the_losss_state(tmp_path: Path) -> None:
    loss = Counting()
    run = trainer(tmp_path, loss, 2, callbacks=[adapter.CalibrationCallback(loss, predict=validation)])
    run.train()
    assert loss.updates == 2
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    assert all((folder / adapter.STATE_FILE).exists() for folder in checkpoints)
    fresh = Counting()
    trainer(tmp_path, fresh, 3, callbacks=[adapter.CalibrationCallback(fresh, predict=validation)]).train(
        resume_from_checkpoint=str(checkpoints[-1])
    )
    assert fresh.updates == 3


def test_a_training_without_an_update_ends_in_an_error(tmp_path: Path) -> None:
    loss = losses.AdaFocalLoss()
    with pytest.raises(InputError, match=r"AdaFocalLoss.update once an epoch, got none in the whole training; give"):
        trainer(tmp_path, loss, 1, callbacks=[adapter.CalibrationCallback(loss)]).train()


def test_the_panel_is_reported_at_evaluation(tmp_path: Path) -> None:
    figures = trainer(tmp_path, losses.FocalLoss(3.0), 1).evaluate()
    assert {"eval_ECE", "eval_NLL", "eval_Accuracy", "eval_temperature"} <= figures.keys()
    assert figures["eval_refinement"] <= figures["eval_NLL"] + 1e-9


def test_accumulated_batches_weigh_by_their_samples() -> None:
    loss = losses.FocalLoss(2.0)
    hook = adapter.compute_loss_with(loss)
    logits = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(10) % 3
    parts = hook({"logits": logits[:7]}, labels[:7], 10) + hook({"logits": logits[7:]}, labels[7:], 10)
    assert parts.item() == pytest.approx(loss(logits, labels).item(), rel=1e-6)
    tokens = hook({"logits": logits.reshape(2, 5, 3)}, labels.reshape(2, 5))
    assert tokens.item() == pytest.approx(loss(logits, labels).item(), rel=1e-6)


def test_predictions_for_a_loss_that_does_not_adapt_are_refused() -> None:
    with pytest.raises(InputError, match="an adaptive loss with predict"):
        adapter.CalibrationCallback(losses.FocalLoss(3.0), predict=validation)
