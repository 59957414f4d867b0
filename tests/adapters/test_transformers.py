"""The Hugging Face hooks in a real Trainer: the loss is ours, and a resumed run has the loss's state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters.counting import Counting
from tests.conftest import late, needs
from torch import nn

from calibrant import Predictions, losses, metrics
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


def trainer(folder: Path, loss: Any, epochs: int, *, batch: int = 8, steps: int = 1, **more: Any) -> Any:
    arguments = hf.TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=batch, save_strategy="epoch",
        gradient_accumulation_steps=steps,
        eval_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip
    return hf.Trainer(
        model=Net(), args=arguments, train_dataset=Data(), eval_dataset=Data(), compute_loss_func=adapter.loss_for_trainer(loss),
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


LOGITS = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(12) % 3
CUTS = ((0, 7), (7, 8), (8, 12))


def accumulated(hook: Any, logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return value and gradient of batches that the trainer accumulates, with the count that it passes."""
    leaf = logits.clone().requires_grad_()
    count = labels.ne(-100).sum()
    total = sum(hook({"logits": leaf[a:b]}, labels[a:b], count) for a, b in CUTS)
    total.backward()
    return float(total), leaf.grad


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 5.0])])
def test_accumulated_batches_are_the_whole_batch_also_where_one_has_ignored_labels_alone(weight: Any) -> None:
    labels = LABELS.clone()
    labels[[1, 7]] = -100  # the second batch is row 7 alone
    value, grad = accumulated(adapter.loss_for_trainer(losses.FocalLoss(2.0, weight=weight)), LOGITS, labels)
    whole = LOGITS.clone().requires_grad_()
    expected = losses.FocalLoss(2.0, weight=weight, reduction="sum")(whole, labels) / 10
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(grad, whole.grad, atol=1e-7)
    tokens = adapter.loss_for_trainer(losses.FocalLoss(2.0))({"logits": LOGITS.reshape(2, 6, 3)}, LABELS.reshape(2, 6))
    assert tokens.item() == pytest.approx(losses.FocalLoss(2.0)(LOGITS, LABELS).item(), rel=1e-6)


def test_target_probabilities_and_several_labels_count_as_the_trainer_counts_them() -> None:
    soft = torch.softmax(LOGITS.flip(0), dim=1)
    value, _ = accumulated(adapter.loss_for_trainer(losses.CrossEntropyLoss()), LOGITS, soft)
    assert value == pytest.approx(losses.CrossEntropyLoss()(LOGITS, soft).item(), rel=1e-6)
    several = (LOGITS > 0.3).float()
    several[0, 1] = several[7] = -100
    value, grad = accumulated(adapter.loss_for_trainer(losses.BinaryFocalLoss(2.0)), LOGITS, several)
    known = torch.where(several == -100, -1, several)
    assert value == pytest.approx(losses.BinaryFocalLoss(2.0)(LOGITS, known).item(), rel=1e-6)
    assert float(grad[7].abs().max()) == 0


def test_a_causal_models_logits_belong_to_the_next_label() -> None:
    tokens = torch.tensor([[0, 1, 2, 0, 1], [2, 1, 0, -100, -100]])
    logits = 8 * torch.nn.functional.one_hot(tokens.roll(-1, dims=1).clamp_min(0), 3).float()
    loss = adapter.loss_for_trainer(losses.CrossEntropyLoss(), shift=True)({"logits": logits}, tokens)
    assert loss.item() < 0.01
    evaluation = hf.EvalPrediction(predictions=logits.numpy(), label_ids=tokens.numpy())
    assert adapter.compute_metrics_with(shift=True)(evaluation)["Accuracy"] == 1
    assert adapter.compute_metrics_with()(evaluation)["Accuracy"] < 0.5


def test_metrics_of_one_class_have_names_of_their_own() -> None:
    evaluation = hf.EvalPrediction(predictions=LOGITS.numpy(), label_ids=LABELS.numpy())
    found = adapter.compute_metrics_with([metrics.ECE(), metrics.ECE(5), metrics.NLL()])(evaluation)
    assert {repr(metrics.ECE()), repr(metrics.ECE(5)), "NLL"} < found.keys()


def test_a_loss_of_terms_is_refused() -> None:
    with pytest.raises(InputError, match="with the reduction 'mean' or 'sum'"):
        adapter.loss_for_trainer(losses.FocalLoss(2.0, reduction="none"))


def test_predictions_for_a_loss_that_does_not_adapt_are_refused() -> None:
    with pytest.raises(InputError, match="an adaptive loss with predict"):
        adapter.CalibrationCallback(losses.FocalLoss(3.0), predict=validation)
