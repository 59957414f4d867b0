"""Adapters for the Hugging Face ``Trainer``: losses, their state in checkpoints, and metrics in each evaluation."""

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
SHIFTED = "for a causal language model, set shift=True if the labels are its input tokens, or shift=False if they are the next tokens"


def loss_for_trainer(loss: Loss | BinaryLoss, *, shift: bool | None = None) -> Callable[..., Tensor]:
    """Return a function for ``Trainer(compute_loss_func=…)`` that applies ``loss`` to the model's logits.

    With gradient accumulation, the trainer passes the number N of labels in all accumulated batches, not counting
    labels −100. A mean loss is then the sum of its terms divided by N (with class weights, Σ w ℓ / N), so that labels
    in batches of different sizes have equal weight. If all labels of a batch are ignored, its loss and gradient are 0.

    Args:
        loss: A loss from ``calibrant.losses`` with the reduction "mean" or "sum" that ignores the label −100, as the
            trainer does. It has one label per row, or is a ``BinaryLoss`` with one logit or several labels per row;
            these may be −100 if missing.
        shift: Whether the logits at a position predict the label at the next position, as in causal language models whose
            labels are the input tokens. None means False, but raises an error for the outputs of a causal model. Pass
            False if your labels are already the next tokens.

    Returns:
        A function (outputs, labels, num_items_in_batch) → scalar loss.

    Raises:
        InputError: If ``loss`` is not such a loss.

    Examples:
        >>> import torch
        >>> from calibrant.losses import FocalLoss
        >>> hook = loss_for_trainer(FocalLoss(3.0))
        >>> hook({"logits": torch.tensor([[1.0, 0.5, -0.5]])}, torch.tensor([0]))
        tensor(0.0563)
    """
    if not isinstance(loss, Loss | BinaryLoss) or loss.reduction == "none":
        raise InputError("loss must be a loss from calibrant.losses with the reduction 'mean' or 'sum'")
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
    """Return Σ w ℓ for a loss with reduction "mean": the mean times its divisor."""
    if isinstance(loss, Weighted):  # each with its own class weights
        return torch.stack([scale * _sum_of_terms(term, logits, labels) for scale, term in loss.pairs]).sum()
    mean: Tensor = loss(logits, labels)
    if isinstance(loss, BinaryLoss):
        divisor = (labels >= 0).sum()
    elif labels.is_floating_point():  # target probabilities: the trainer counts K numbers per row
        return mean * labels.numel()
    else:
        counted = labels[labels != IGNORED]
        divisor = counted.new_tensor(len(counted)) if loss.weight is None else loss.weight[counted].sum()
    # if all labels belong to classes of weight 0, the mean is NaN
    return mean * divisor if bool(divisor > 0) else logits.reshape(-1)[:0].sum()


def compute_metrics_with(
    metrics: Sequence[Metric] | None = None, *, shift: bool | None = None, binary: bool = False
) -> Callable[..., dict[str, float]]:
    """Return a function for ``Trainer(compute_metrics=…)`` that computes metrics, a fitted temperature and the refinement.

    The refinement is the log-loss at the fitted temperature. With ``TrainingArguments(batch_eval_metrics=True)``, the
    values are computed from sums over the batches, so no logits are kept.

    Args:
        metrics: The metrics; None uses accuracy, NLL, Brier score and ECE. Several metrics of one class are named by
            their configuration.
        shift: As in ``loss_for_trainer``. With None, an error is raised if the trainer passes inputs that equal the
            labels.
        binary: Whether each logit is the input of a sigmoid, with labels 0 or 1 of the same shape: one label or several
            labels per row, which are evaluated together.

    Returns:
        A function (evaluation, compute_result) → dict of values by name.

    Raises:
        InputError: If ``metrics`` contains something other than metrics.

    Examples:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> evaluation = SimpleNamespace(
        ...     predictions=np.array([[2.0, 0.0], [0.0, 1.0]]), label_ids=np.array([0, 0]), inputs=None
        ... )
        >>> figures = compute_metrics_with()(evaluation)
        >>> figures["Accuracy"], round(figures["ECE"], 4)
        (0.5, 0.4251)
    """
    running = [RunningFigures(metrics)]

    def compute_metrics(evaluation: Any, compute_result: bool = True) -> dict[str, float]:
        logits, labels = evaluation.predictions, evaluation.label_ids
        # some models return hidden states after the logits
        logits = logits[0] if isinstance(logits, tuple) else logits
        if shift is None and _are_inputs(labels, getattr(evaluation, "inputs", None)):
            raise InputError(SHIFTED)
        if shift:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        axis = 2 if np.ndim(logits) == 3 else 1  # (N, T, K) for tokens, (N, K, H, W) for images
        rows = as_predictions(logits, labels, class_dim=axis, binary=binary, ignore_index=IGNORED)
        if rows is not None:
            running[0].add(rows)
        if not compute_result:
            return {}
        figures, running[0] = running[0].values(), RunningFigures(metrics)
        return figures

    return compute_metrics


def _are_inputs(labels: Any, inputs: Any) -> bool:
    """Return whether every label that is not ignored is equal to the input token at its position."""
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
            per epoch. Pass None for other losses.

    Raises:
        InputError: If ``predict`` is given for a loss that does not adapt.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> CalibrationCallback(FocalLoss(3.0)).loss
        FocalLoss(gamma=3.0)
    """

    def __init__(self, loss: Loss, *, predict: Callable[[], Predictions] | None = None) -> None:
        if predict is not None and not hasattr(loss, "update"):
            raise InputError("an adaptive loss with predict", f"{loss!r}", "leave out predict")
        self.loss: nn.Module = loss
        self.predict = predict

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

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that an adaptive loss was updated during training.

        Raises:
            InputError: If there were training steps, but neither this callback nor other code has updated the loss.
        """
        if state.global_step > 0:
            require_update(self.loss, "give CalibrationCallback predict=, a function that returns Predictions")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the loss's state into the checkpoint that the trainer has just saved."""
        tensors = self.loss.state_dict()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if tensors and state.is_world_process_zero and folder.is_dir():
            arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in tensors.items()}
            files.write_arrays(folder / STATE_FILE, arrays)
