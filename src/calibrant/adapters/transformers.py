"""Hugging Face ``Trainer``: Calibrant losses, their state in checkpoints, and calibration metrics at each evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import calibrant._core.files as files
from calibrant._core.constraints import checked
from calibrant.adapters._monitoring import figures_while_training, metrics_or_default
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.losses import Loss
from calibrant.losses.adafocal import require_update
from calibrant.metrics import Metric

with optional("transformers", extra="transformers"):
    from transformers import TrainerCallback

__all__ = ["CalibrationCallback", "compute_loss_with", "compute_metrics_with"]

STATE_FILE = "calibrant_loss.safetensors"


@checked
def compute_loss_with(loss: Loss) -> Callable[..., torch.Tensor]:
    """Return a function for ``Trainer(compute_loss_func=…)`` that applies ``loss`` to the model's logits.

    Under gradient accumulation the trainer passes the number of samples of all accumulated batches; a mean loss is then
    the sum divided by that number, so that every sample has the same weight in batches of different sizes.

    Args:
        loss: Any per-sample loss of ``calibrant.losses``.

    Examples:
        >>> import torch
        >>> from calibrant.losses import FocalLoss
        >>> hook = compute_loss_with(FocalLoss(3.0))
        >>> hook({"logits": torch.tensor([[1.0, 0.5, -0.5]])}, torch.tensor([0]))
        tensor(0.0563)
    """

    def compute_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        if logits.dim() == 3:  # token classification: (N, T, K) with labels (N, T)
            logits = logits.movedim(-1, 1)
        value: torch.Tensor = loss(logits, labels)
        if num_items_in_batch is None or loss.reduction != "mean":
            return value
        # with gradient accumulation the trainer divides by the rows of all steps: the mean of this one becomes its part of the sum
        counted = (labels != loss.ignore_index).sum()
        return value * counted / num_items_in_batch

    return compute_loss


@checked
def compute_metrics_with(metrics: Sequence[Metric] | None = None) -> Callable[[Any], dict[str, float]]:
    """Return a function for ``Trainer(compute_metrics=…)``: metrics, fitted temperature, and log-loss at that temperature.

    Args:
        metrics: The metrics; None is accuracy, NLL, Brier and ECE.
    """
    chosen = metrics_or_default(metrics)

    def compute_metrics(evaluation: Any) -> dict[str, float]:
        return figures_while_training(chosen, _predictions_of(evaluation.predictions, evaluation.label_ids))

    return compute_metrics


class CalibrationCallback(TrainerCallback):  # type: ignore[misc]
    """Saves a loss's state in the trainer's checkpoints, and updates an adaptive loss after each epoch.

    The trainer saves its model, optimiser and scheduler, but not the loss: a resumed ``AdaFocalLoss`` would start again
    from its initial γ. This callback writes ``calibrant_loss.safetensors`` into each checkpoint folder and reads it when
    training resumes.

    Args:
        loss: The loss passed to ``compute_loss_with``.
        predict: A function without arguments that returns validation ``Predictions``, for adaptive losses; called once
            per epoch. None for other losses.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> CalibrationCallback(FocalLoss(3.0)).loss
        FocalLoss(gamma=3.0)
    """

    @checked
    def __init__(self, loss: Loss, *, predict: Callable[[], Predictions] | None = None) -> None:
        if predict is not None and not hasattr(loss, "update"):
            raise InputError("an adaptive loss with predict", f"{loss!r}", "drop predict")
        self.loss: nn.Module = loss
        self.predict = predict
        self._updated = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the loss's state if training resumes from a checkpoint that contains it."""
        if state.global_step == 0:
            return
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
        if path.exists():
            arrays = files.read_arrays(path)
            self.loss.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Update an adaptive loss."""
        if self.predict is not None:
            self.loss.update(self.predict())  # type: ignore[operator]
            self._updated = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise if training ends without an update of an adaptive loss.

        Raises:
            InputError: If there were training steps and no update, here or by other code.
        """
        if hasattr(self.loss, "update") and state.global_step > 0 and not self._updated:
            require_update(self.loss, "give CalibrationCallback predict=, a function that returns Predictions")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the loss's state into the checkpoint that the trainer has just saved."""
        tensors = self.loss.state_dict()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if tensors and state.is_world_process_zero and folder.is_dir():
            arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in tensors.items()}
            files.write_arrays(folder / STATE_FILE, arrays)


def _predictions_of(logits: Any, labels: Any) -> Predictions:
    # some models return their hidden states behind the logits
    logits = logits[0] if isinstance(logits, tuple) else logits
    return Predictions.from_logits(logits, labels, class_dim=np.ndim(logits) - 1, ignore_index=-100)
