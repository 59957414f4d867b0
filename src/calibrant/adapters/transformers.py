"""Hugging Face ``Trainer``: Calibrant losses, their state in checkpoints, and calibration metrics at each evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import calibrant._files as files
from calibrant.adapters._monitoring import RunningFigures, as_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.losses import BinaryLoss, Loss, Weighted
from calibrant.losses.adafocal import require_update
from calibrant.losses.binary import MISSING
from calibrant.metrics import Metric

with optional("transformers", extra="transformers"):
    from transformers import TrainerCallback

__all__ = ["CalibrationCallback", "compute_metrics_with", "loss_for_trainer"]

STATE_FILE = "calibrant_loss.safetensors"
IGNORED = -100  # the label that the trainer leaves out of its counts
SHIFTED = "shift must be True for a causal language model whose labels are its input tokens, or False if they are the next ones"


def loss_for_trainer(loss: Loss | BinaryLoss, *, shift: bool | None = None) -> Callable[..., Tensor]:
    """Return a function for ``Trainer(compute_loss_func=…)`` that applies ``loss`` to the model's logits.

    Under gradient accumulation the trainer passes the number of labels of all accumulated batches, those of −100 left out. A mean
    loss is then the sum of its terms divided by that number, so that every label counts the same in batches of different sizes; with
    class weights it is Σ w ℓ / N. A batch whose labels are all ignored has the loss 0 and the gradient 0.

    Args:
        loss: A loss of ``calibrant.losses`` with reduction "mean" or "sum" and the trainer's ignored label, −100: of one label
            per row, or a ``BinaryLoss`` of one logit or several labels a row, whose missing ones may be −100.
        shift: Whether the logits of a position belong to the label after it, as those of causal language models do, whose
            labels are the input tokens. None is False, and refuses the outputs of a causal model; pass False if your
            labels are already those of the next tokens.

    Raises:
        InputError: If ``loss`` is none of these.

    Examples:
        >>> import torch
        >>> from calibrant.losses import FocalLoss
        >>> hook = loss_for_trainer(FocalLoss(3.0))
        >>> hook({"logits": torch.tensor([[1.0, 0.5, -0.5]])}, torch.tensor([0]))
        tensor(0.0563)
    """
    if not isinstance(loss, Loss | BinaryLoss) or loss.reduction == "none":
        raise InputError("loss must be one of calibrant.losses with the reduction 'mean' or 'sum'")
    if isinstance(loss, Loss) and loss.ignore_index != IGNORED:
        # the trainer would count the ignored labels
        raise InputError(f"loss must have ignore_index={IGNORED}, the label that the trainer ignores")

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        if isinstance(outputs, tuple):
            logits = outputs[0]
        else:
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        if shift is None and "CausalLM" in type(outputs).__name__:
            raise InputError(SHIFTED)
        if shift:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        if isinstance(loss, BinaryLoss):
            labels = torch.where(labels == IGNORED, MISSING, labels)
            labels = labels.reshape(logits.shape) if labels.numel() == logits.numel() else labels
        elif logits.dim() == 3:  # token classification: (N, T, K) with labels (N, T)
            logits = logits.movedim(-1, 1)
        if bool((labels == IGNORED).all()):  # the mean would be NaN
            return logits.reshape(-1)[:0].sum()
        if num_items_in_batch is None or loss.reduction != "mean":
            value: Tensor = loss(logits, labels)
            return value
        return _sum_of_terms(loss, logits, labels) / num_items_in_batch

    return compute_loss


def _sum_of_terms(loss: Loss | BinaryLoss, logits: Tensor, labels: Tensor) -> Tensor:
    """Return Σ w ℓ of a loss that is a mean: the mean times what it divides by, in labels as the trainer counts them."""
    if isinstance(loss, Weighted):  # each with its own class weights
        return torch.stack([scale * _sum_of_terms(term, logits, labels) for scale, term in loss.pairs]).sum()
    mean: Tensor = loss(logits, labels)
    if isinstance(loss, BinaryLoss):
        divisor = (labels >= 0).sum()
    elif labels.is_floating_point():  # target probabilities: the trainer counts K numbers a row
        return mean * labels.numel()
    else:
        counted = labels[labels != IGNORED]
        divisor = counted.new_tensor(len(counted)) if loss.weight is None else loss.weight[counted].sum()
    # of classes of weight 0 alone the mean is NaN
    return mean * divisor if bool(divisor > 0) else logits.reshape(-1)[:0].sum()


def compute_metrics_with(
    metrics: Sequence[Metric] | None = None, *, shift: bool | None = None, binary: bool = False
) -> Callable[..., dict[str, float]]:
    """Return a function for ``Trainer(compute_metrics=…)``: metrics, fitted temperature, and log-loss at that temperature.

    With ``TrainingArguments(batch_eval_metrics=True)`` no logits are kept: the figures come from sums over the batches.

    Args:
        metrics: The metrics; None is accuracy, NLL, Brier and ECE. Several of one class are named by their configuration.
        shift: As in ``loss_for_trainer``; labels that equal the inputs are refused where the trainer passes the inputs.
        binary: Whether each logit is that of an event, the input of a sigmoid, with labels of the same shape: one label or
            several labels a row, which are measured together.
    """
    running = [RunningFigures(metrics)]

    def compute_metrics(evaluation: Any, compute_result: bool = True) -> dict[str, float]:
        logits, labels = evaluation.predictions, evaluation.label_ids
        # some models return their hidden states behind the logits
        logits = logits[0] if isinstance(logits, tuple) else logits
        if shift is None and _are_inputs(labels, getattr(evaluation, "inputs", None)):
            raise InputError(SHIFTED)
        if shift:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        axis = 2 if np.ndim(logits) == 3 else 1  # (N, T, K) of tokens, (N, K, H, W) of images
        running[0].add(as_predictions(logits, labels, class_dim=axis, binary=binary, ignore_index=IGNORED))
        if not compute_result:
            return {}
        figures, running[0] = running[0].values(), RunningFigures(metrics)
        return figures

    return compute_metrics


def _are_inputs(labels: Any, inputs: Any) -> bool:
    """Return whether all labels that count are the tokens of ``inputs`` at their places."""
    if inputs is None or np.shape(inputs) != np.shape(labels):
        return False
    own, tokens = np.asarray(labels), np.asarray(inputs)
    return bool((own != IGNORED).any()) and bool((own == tokens)[own != IGNORED].all())


class CalibrationCallback(TrainerCallback):  # type: ignore[misc]
    """Saves a loss's state in the trainer's checkpoints, and updates an adaptive loss after each epoch.

    The trainer saves its model, optimiser and scheduler, but not the loss: a resumed ``AdaFocalLoss`` would start again
    from its initial γ. This callback writes ``calibrant_loss.safetensors`` into each checkpoint folder and reads it when
    training resumes.

    Args:
        loss: The loss passed to ``loss_for_trainer``.
        predict: A function without arguments that returns validation ``Predictions``, for adaptive losses; called once
            per epoch. None for other losses.

    Raises:
        InputError: If ``predict`` is given for a loss that does not adapt.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> CalibrationCallback(FocalLoss(3.0)).loss
        FocalLoss(gamma=3.0)
    """

    def __init__(self, loss: Loss, *, predict: Callable[[], Predictions] | None = None) -> None:
        if predict is not None and not hasattr(loss, "update"):
            raise InputError("an adaptive loss with predict", f"{loss!r}", "drop predict")
        self.loss: nn.Module = loss
        self.predict = predict
        self._updated = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the loss's state if training resumes from a checkpoint that contains it."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
        if state.global_step > 0 and path.exists():
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
