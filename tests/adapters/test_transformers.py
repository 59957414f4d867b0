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


def trainer(folder: Path, loss: Any, epochs: int, **more: Any) -> Any:
    arguments = hf.TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=8, save_strategy="epoch",
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
    with pytest.raises(InputError, match="update once per epoch, got no call in the whole training run; give"):
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


HEAVY, ZERO = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 0.0, 5.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda how: losses.FocalLoss(2.0, reduction=how),
        lambda how: losses.FocalLoss(2.0, weight=ZERO, reduction=how),  # the label of row 7
        lambda how: losses.EntropyRegularizedLoss(0.1, base=losses.FocalLoss(2.0, weight=HEAVY, reduction=how)),
        lambda how: losses.Weighted(
            (0.3, losses.BrierLoss(weight=HEAVY, reduction=how)),
            (2.0, losses.CrossEntropyLoss(weight=HEAVY, reduction=how)),
        ),
    ],
)
@pytest.mark.parametrize("ignored", [[1], [1, 7]])  # the second batch is row 7 alone
def test_accumulated_batches_are_the_whole_batch(make: Any, ignored: list[int]) -> None:
    labels = LABELS.clone()
    labels[ignored] = -100
    value, grad = accumulated(adapter.loss_for_trainer(make("mean")), LOGITS, labels)
    whole = LOGITS.clone().requires_grad_()
    expected = make("sum")(whole, labels) / (12 - len(ignored))
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(grad, whole.grad, atol=1e-7)


def test_tokens_and_rows_have_the_same_loss() -> None:
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


def test_a_causal_model_is_trained_on_the_next_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "hidden_size": 8, "intermediate_size": 8}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=1))
    tokens = torch.randint(7, (4, 8))
    rows = [{"input_ids": row, "labels": row.clone()} for row in tokens]
    rows[0]["labels"][3:] = -100

    def evaluated(shift: bool | None) -> dict[str, float]:
        arguments = hf.TrainingArguments(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=4,
            include_for_metrics=["inputs"], batch_eval_metrics=True,
        )  # fmt: skip
        hooks = {
            "compute_loss_func": adapter.loss_for_trainer(losses.CrossEntropyLoss(), shift=shift),
            "compute_metrics": adapter.compute_metrics_with(shift=shift),
        }
        found: dict[str, float] = hf.Trainer(model, args=arguments, eval_dataset=rows, **hooks).evaluate()
        return found

    figures = evaluated(True)
    own = model.eval()(input_ids=tokens, labels=torch.stack([row["labels"] for row in rows])).loss.item()
    assert figures["eval_loss"] == pytest.approx(own, rel=1e-5)
    assert figures["eval_NLL"] == pytest.approx(own, rel=1e-5)
    with pytest.raises(InputError, match="for a causal language model, set shift=True"):
        evaluated(None)


def test_images_have_their_classes_second() -> None:
    logits, labels = LOGITS.reshape(2, 3, 2, 3), torch.tensor([0, 1, 2, -100, 1, 1]).repeat(2).reshape(2, 2, 3)
    evaluation = hf.EvalPrediction(predictions=logits.numpy(), label_ids=labels.numpy())
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert adapter.compute_metrics_with([metrics.NLL()])(evaluation)["NLL"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"reduction": "none"}, "with the reduction 'mean' or 'sum'"), ({"ignore_index": -1}, "ignore_index=-100")],
)
def test_a_loss_that_the_trainer_cannot_add_up_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        adapter.loss_for_trainer(losses.FocalLoss(2.0, **options))
