"""Hugging Face ``Trainer``: any Calibrant loss, its state kept in checkpoints, a calibration panel at each evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import calibrant._files as files
from calibrant._objective.reminder import never_updated, number_of_updates
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError, MissingExtraError
from calibrant.evaluate.panel import check_metrics
from calibrant.losses import Loss
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Metric
from calibrant.predictions import Predictions

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtraError("transformers", extra="transformers") from error

__all__ = ["CalibrationCallback", "compute_loss_with", "compute_metrics_with"]

STATE_FILE = "calibrant_loss.safetensors"


def compute_loss_with(loss: Loss) -> Callable[..., torch.Tensor]:
    """Return a function for ``Trainer(compute_loss_func=…)`` that applies ``loss`` to the model's logits.

    Under gradient accumulation the trainer passes the number of samples of all accumulated batches; a mean loss is
    then the sum over that number, so that uneven batches weigh right.

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
        counted = (labels != loss.ignore_index).sum()
        return value * counted / num_items_in_batch

    return compute_loss


def compute_metrics_with(metrics: Sequence[Metric] | None = None) -> Callable[[Any], dict[str, float]]:
    """Return a function for ``Trainer(compute_metrics=…)``: the panel, the temperature, and the log-loss after it.

    Args:
        metrics: What to report; None is accuracy, NLL, Brier and ECE.
    """
    chosen: list[Metric] = list(check_metrics(metrics)) if metrics is not None else [Accuracy(), NLL(), Brier(), ECE()]

    def compute_metrics(evaluation: Any) -> dict[str, float]:
        data = _predictions_of(evaluation.predictions, evaluation.label_ids)
        scaling = TemperatureScaling().fit(data.logits, data.need_labels())
        figures = {type(metric).__name__: metric(data) for metric in chosen}
        return {
            **figures,
            "temperature": scaling.temperature,
            "refinement": NLL()(data.calibrated_by(scaling, allow_fit_rows=True)),
        }

    return compute_metrics


class CalibrationCallback(TrainerCallback):  # type: ignore[misc]
    """Keep a loss's learned state in the trainer's checkpoints, and update an adaptive loss after each evaluation.

    The trainer saves its model, optimiser and scheduler, but not the loss: an ``AdaFocalLoss`` would restart from
    plain focal on every resume. This callback writes ``calibrant_loss.safetensors`` into each checkpoint folder and
    reads it back from the one that is resumed.

    Args:
        loss: The loss given to ``compute_loss_with``.
        predict: A function without arguments that returns validation ``Predictions``, for adaptive losses; called
            once an epoch. None for losses that do not adapt.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> CalibrationCallback(FocalLoss(3.0)).loss
        FocalLoss(gamma=3.0)
    """

    def __init__(self, loss: Loss, *, predict: Callable[[], Predictions] | None = None) -> None:
        if predict is not None and not hasattr(loss, "update"):
            raise InputError(f"expected an adaptive loss with predict, got {loss!r}; drop predict")
        self.loss: nn.Module = loss
        self.predict = predict
        self._updated = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read the loss's state back if training resumes from a checkpoint that holds it."""
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
        """Refuse to let a training end in which an adaptive loss was never updated.

        Raises:
            InputError: If there were training steps and no update, here or by other code.
        """
        adaptive = hasattr(self.loss, "update")
        if adaptive and state.global_step > 0 and not self._updated and number_of_updates(self.loss) in (None, 0):
            raise InputError(
                never_updated(self.loss, "give CalibrationCallback predict=, a function that returns Predictions")
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the loss's state into the checkpoint just saved."""
        tensors = self.loss.state_dict()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if tensors and state.is_world_process_zero and folder.is_dir():
            arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in tensors.items()}
            files.write_arrays(folder / STATE_FILE, arrays)


def _predictions_of(logits: Any, labels: Any) -> Predictions:
    logits = logits[0] if isinstance(logits, tuple) else logits
    return Predictions.from_logits(logits, labels, class_dim=np.ndim(logits) - 1, ignore_index=-100)
