"""Lightning: callbacks that update AdaFocal, log calibration every epoch, and stop by refinement."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.adapters._monitoring import figures_while_training, metrics_or_default
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

    def __init__(self) -> None:
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
        self._parts.setdefault(dataloader_idx, []).append(_logits_and_labels(outputs))

    def _gather(self, pl_module: LightningModule, loader: int) -> Predictions:
        logits = torch.cat([z for z, _ in self._parts[loader]])
        labels = torch.cat([y for _, y in self._parts[loader]])
        if pl_module.trainer.world_size > 1:
            logits, labels = _of_all_processes(pl_module, logits), _of_all_processes(pl_module, labels)
        return Predictions.from_logits(logits.float().cpu(), labels.cpu())


def _of_all_processes(pl_module: LightningModule, rows: Tensor) -> Tensor:
    # (processes, rows, …): every process has as many rows, since Lightning's sampler pads the last ones
    gathered = pl_module.all_gather(rows)
    return cast(Tensor, gathered).flatten(0, 1)


def _logits_and_labels(outputs: Any) -> tuple[Tensor, Tensor]:
    if isinstance(outputs, dict) and "logits" in outputs and "labels" in outputs:
        return outputs["logits"].detach(), outputs["labels"].detach()
    if isinstance(outputs, tuple | list) and len(outputs) == 2:
        return outputs[0].detach(), outputs[1].detach()
    got = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
    raise InputError(
        "validation_step to return {'logits': …, 'labels': …} or (logits, labels)", f"{got}", "return these"
    )


class AdaFocalCallback(_Collector):
    """Updates an adaptive loss (``AdaFocalLoss``) from each epoch's validation predictions, and saves it in checkpoints.

    Of several validation loaders the first one counts.

    Args:
        loss: Name of the module's attribute that holds the loss. Lightning's checkpoints contain the state of a
            submodule; this callback saves a loss that is not one.

    Examples:
        >>> AdaFocalCallback(loss="criterion").attribute
        'criterion'
    """

    def __init__(self, loss: str = "criterion") -> None:
        super().__init__()
        self.attribute = loss
        self._not_submodule: nn.Module | None = None
        self._restored: dict[str, Any] | None = None
        self._updated = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the loss, and load its state when training resumes from a checkpoint."""
        loss = self._loss(pl_module)
        self._updated = False
        # Lightning saves the state of submodules itself
        is_submodule = any(module is loss for module in pl_module.modules())
        self._not_submodule = None if is_submodule else loss
        if self._restored is not None:
            loss.load_state_dict(self._restored)
            self._restored = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the loss, except in Lightning's sanity check before training."""
        if not trainer.sanity_checking and self._parts and trainer.state.fn == "fit":
            loss: Any = self._loss(pl_module)
            loss.update(self._gather(pl_module, min(self._parts)))
            self._updated = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if training ends without an update of the loss.

        Raises:
            InputError: If there were training steps and no update, as without validation data.
        """
        # an adaptive loss without an update is another loss, silently: the default γ for the whole training
        if trainer.global_step > 0 and not self._updated:
            require_update(self._loss(pl_module), "give the trainer validation data at least once per epoch")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a loss that is not a submodule."""
        return {} if self._not_submodule is None else {"loss": self._not_submodule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the loss's state until training starts, when it is loaded."""
        self._restored = state_dict.get("loss")

    def _loss(self, pl_module: LightningModule) -> nn.Module:
        loss = getattr(pl_module, self.attribute, None)
        if not isinstance(loss, nn.Module) or not isinstance(loss, Adaptive):
            raise InputError(
                f"an adaptive loss such as AdaFocalLoss() in {type(pl_module).__name__}.{self.attribute}",
                f"{type(loss).__name__}",
                "name the attribute that holds it",
            )
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

    Examples:
        >>> CalibrationMonitor(prefix="val").prefix
        'val'
    """

    def __init__(self, metrics: Sequence[Metric] | None = None, *, prefix: str = "calibration") -> None:
        super().__init__()
        self.metrics = metrics_or_default(metrics)
        self.prefix = prefix

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics, the temperature and the refinement."""
        if trainer.sanity_checking or not self._parts:
            return
        for loader in self._parts:
            figures = figures_while_training(self.metrics, self._gather(pl_module, loader))
            end = f"/dataloader_idx_{loader}" if len(self._parts) > 1 else ""
            named = {f"{self.prefix}/{name}{end}": value for name, value in figures.items()}
            # every process has gathered all rows, so no reduction over processes is needed
            pl_module.log_dict(named, sync_dist=False, rank_zero_only=False, add_dataloader_idx=False)
