"""Lightning: callbacks that update AdaFocal, log calibration every epoch, and stop by refinement."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.adapters._monitoring import DEFAULT_METRICS, as_predictions, figures_while_training
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.losses.adafocal import require_update
from calibrant.losses.loss import Adaptive
from calibrant.metrics import Metric

with optional("lightning", extra="lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["AdaFocalCallback", "CalibrationMonitor"]


class _Collector(Callback):  # type: ignore[misc]
    """Collects the logits and labels of every validation batch by its loader, from all processes.

    ``validation_step`` must return a mapping with ``logits`` and ``labels``, or a pair (logits, labels).
    """

    def __init__(self, *, binary: bool = False, ignore_index: int | None = None) -> None:
        self.binary, self.ignore_index = binary, ignore_index
        self._parts: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discard the batches of the previous epoch."""
        self._parts = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect one batch."""
        if isinstance(outputs, dict) and {"logits", "labels"} <= outputs.keys():
            outputs = outputs["logits"], outputs["labels"]
        if not isinstance(outputs, tuple | list) or len(outputs) != 2:
            got = f"{sorted(outputs)}" if isinstance(outputs, dict) else type(outputs).__name__
            expected = "validation_step to return {'logits': …, 'labels': …} or (logits, labels)"
            raise InputError(expected, got, "return these")
        self._parts.setdefault(dataloader_idx, []).append((outputs[0].detach(), outputs[1].detach()))

    def _gather(self, pl_module: LightningModule, loader: int) -> Predictions:
        columns: Any = [torch.cat(parts) for parts in zip(*self._parts[loader], strict=True)]
        if pl_module.trainer.world_size > 1:
            # (processes, rows, …): every process has as many rows, since Lightning's sampler pads the last ones
            columns = [rows.flatten(0, 1) for rows in pl_module.all_gather(columns)]
        logits, labels = columns
        return as_predictions(logits.float().cpu(), labels.cpu(), binary=self.binary, ignore_index=self.ignore_index)


class AdaFocalCallback(_Collector):
    """Updates an adaptive loss (``AdaFocalLoss``) from each epoch's validation predictions.

    Args:
        loss: Name of the module's attribute that holds the loss, which Lightning's checkpoints then contain.
        loader: Number of the validation loader whose predictions the loss is updated from.
        ignore_index: The label of places to leave out, or None.

    Examples:
        >>> AdaFocalCallback(loss="criterion").attribute
        'criterion'
    """

    def __init__(self, loss: str = "criterion", *, loader: int = 0, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index=ignore_index)
        self.attribute, self.loader = loss, loader
        self._updated = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the loss.

        Raises:
            InputError: If the attribute does not hold an adaptive loss.
        """
        self._loss(pl_module)
        self._updated = False

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the loss, except in Lightning's sanity check before training.

        Raises:
            InputError: If there is no validation loader of this number.
        """
        if trainer.sanity_checking or not self._parts or trainer.state.fn != "fit":
            return
        if self.loader not in self._parts:
            raise InputError(f"loader among {sorted(self._parts)}", f"{self.loader}", "name a validation loader")
        loss: Any = self._loss(pl_module)
        loss.update(self._gather(pl_module, self.loader))
        self._updated = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if training ends without an update of the loss.

        Raises:
            InputError: If there were training steps and no update, as without validation data.
        """
        # an adaptive loss without an update is another loss, silently: the default γ for the whole training
        if trainer.global_step > 0 and not self._updated:
            require_update(self._loss(pl_module), "give the trainer validation data at least once per epoch")

    def _loss(self, pl_module: LightningModule) -> nn.Module:
        loss = getattr(pl_module, self.attribute, None)
        if not isinstance(loss, nn.Module) or not isinstance(loss, Adaptive):
            where = f"{type(pl_module).__name__}.{self.attribute}"
            expected, remedy = f"an adaptive loss such as AdaFocalLoss() in {where}", "name the attribute that holds it"
            raise InputError(expected, type(loss).__name__, remedy)
        return loss


class CalibrationMonitor(_Collector):
    """Logs calibration metrics of the validation data every epoch, with the log-loss after temperature scaling.

    It logs ``<prefix>/<metric>`` for every metric, ``<prefix>/temperature``, and ``<prefix>/refinement``, the log-loss
    after temperature scaling. Of several validation loaders each has its own figures, whose names end in
    ``/dataloader_idx_0``, ``/dataloader_idx_1`` …, as Lightning names them.

    To stop early or select checkpoints by refinement ("refine, then calibrate", Berta et al.
    2025), use Lightning's ``EarlyStopping(monitor="calibration/refinement")`` or ``ModelCheckpoint``.

    The temperature is fitted on the rows it is evaluated on, as the definition of refinement requires (with one parameter
    the optimism is about 1/(2N) nats); fit the temperature to deploy after training.

    Args:
        metrics: The metrics to log; None is accuracy, NLL, Brier and ECE.
        prefix: Prefix of every logged name.
        binary: Whether each logit is that of an event, the input of a sigmoid, with labels of the same shape: one label or
            several labels a row, which are measured together.
        ignore_index: The label of places to leave out, or None.

    Examples:
        >>> CalibrationMonitor(prefix="val").prefix
        'val'
    """

    def __init__(
        self,
        metrics: Sequence[Metric] | None = None,
        *,
        prefix: str = "calibration",
        binary: bool = False,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(binary=binary, ignore_index=ignore_index)
        self.metrics = list(DEFAULT_METRICS if metrics is None else metrics)
        self.prefix = prefix

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics, the temperature and the refinement."""
        for loader in () if trainer.sanity_checking else self._parts:
            figures = figures_while_training(self.metrics, self._gather(pl_module, loader))
            end = f"/dataloader_idx_{loader}" if len(self._parts) > 1 else ""
            named = {f"{self.prefix}/{name}{end}": value for name, value in figures.items()}
            # every process has gathered all rows, so no reduction over processes is needed
            pl_module.log_dict(named, sync_dist=False, rank_zero_only=False, add_dataloader_idx=False)
