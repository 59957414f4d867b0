"""Lightning callbacks that update AdaFocal and log calibration and refinement in every epoch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from calibrant.adapters._monitoring import RunningFigures, as_predictions
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.losses.adafocal import require_update
from calibrant.losses.loss import Adaptive
from calibrant.metrics import Metric

with optional("lightning", extra="lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["AdaFocalCallback", "CalibrationMonitor"]


def _pair_of(outputs: Any) -> tuple[Tensor, Tensor]:
    """Return the logits and labels that ``validation_step`` returned, on the CPU."""
    if isinstance(outputs, dict) and {"logits", "labels"} <= outputs.keys():
        outputs = outputs["logits"], outputs["labels"]
    if not isinstance(outputs, tuple | list) or len(outputs) != 2:
        got = f"{sorted(outputs)}" if isinstance(outputs, dict) else type(outputs).__name__
        expected = "validation_step to return {'logits': …, 'labels': …} or (logits, labels)"
        raise InputError(expected, got, "return one of these")
    logits, labels = outputs
    return logits.detach().cpu(), labels.detach().cpu()


class ValidationCallback(Callback, ABC):  # type: ignore[misc]
    """Base class of callbacks that use the logits and labels of every validation batch.

    Args:
        binary: Whether each logit is the input of a sigmoid.
        ignore_index: Positions with this label are left out; None keeps all positions.
    """

    def __init__(self, *, binary: bool, ignore_index: int | None) -> None:
        self.binary, self.ignore_index = binary, ignore_index

    @abstractmethod
    def _add(self, rows: Predictions, loader: int) -> None:
        """Use the labelled rows of a batch from the validation loader with the number ``loader``."""

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Use the outputs that ``validation_step`` returned for a batch."""
        rows = as_predictions(*_pair_of(outputs), binary=self.binary, ignore_index=self.ignore_index)
        if rows is not None:
            self._add(rows, dataloader_idx)


class AdaFocalCallback(ValidationCallback):
    """Updates an adaptive loss (``AdaFocalLoss``) from the validation predictions of each epoch.

    ``validation_step`` must return a mapping with ``logits`` and ``labels``, or a pair (logits, labels). In distributed
    training, each process passes its own rows to the loss, which gathers the rows of all processes.

    Args:
        loss: Name of the module attribute that holds the loss. Because the loss is part of the module, Lightning saves
            it in checkpoints.
        loader: Number ≥ 0 of the validation loader whose predictions update the loss.
        ignore_index: Positions with this label are left out; None keeps all positions.

    Examples:
        >>> AdaFocalCallback(loss="criterion").attribute
        'criterion'
    """

    def __init__(self, loss: str = "criterion", *, loader: int = 0, ignore_index: int | None = None) -> None:
        super().__init__(binary=False, ignore_index=ignore_index)
        self.attribute, self.loader = loss, loader
        self._batches: list[Predictions] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the named attribute holds an adaptive loss.

        Raises:
            InputError: If the attribute does not hold an adaptive loss.
        """
        self._loss(pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discard the batches of the previous epoch.

        Raises:
            InputError: If there is no validation loader with this number.
        """
        self._batches = []
        if self.loader not in (loaders := range(len(trainer.num_val_batches))):
            raise InputError(f"loader among {[*loaders]}", f"{self.loader}", "name a validation loader")

    def _add(self, rows: Predictions, loader: int) -> None:
        if loader == self.loader:
            self._batches.append(rows)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the loss, except during Lightning's sanity check before training."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        loss: Any = self._loss(pl_module)
        # a process without rows takes part in the update as well
        loss.update(Predictions.cat(self._batches) if self._batches else Pairs.from_probs([1.0], [1])[:0])
        self._batches = []

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the loss was updated during training.

        Raises:
            InputError: If there were training steps but no update, for example because there were no validation data.
        """
        # an adaptive loss that is never updated silently keeps its initial γ for the whole training
        if trainer.global_step > 0:
            require_update(self._loss(pl_module), "give the trainer validation data at least once per epoch")

    def _loss(self, pl_module: LightningModule) -> nn.Module:
        loss = getattr(pl_module, self.attribute, None)
        if not isinstance(loss, nn.Module) or not isinstance(loss, Adaptive):
            where = f"{type(pl_module).__name__}.{self.attribute}"
            expected, remedy = f"an adaptive loss such as AdaFocalLoss() in {where}", "name the attribute that holds it"
            raise InputError(expected, type(loss).__name__, remedy)
        return loss


class CalibrationMonitor(ValidationCallback):
    """Logs calibration metrics on the validation data in every epoch, and the log-loss after temperature scaling.

    ``validation_step`` must return a mapping with ``logits`` and ``labels``, or a pair (logits, labels). The monitor logs
    ``<prefix>/<metric>`` for every metric, ``<prefix>/temperature``, which is the best temperature in [1/8, 8], and
    ``<prefix>/refinement``, which is the log-loss at that temperature. The values are computed from sums over the
    batches of all processes, so no logits are kept, except by metrics that need all rows at once (with bins of equal
    mass, for example). If there are several validation loaders, each has its own values, whose names end in
    ``/dataloader_idx_0``, ``/dataloader_idx_1`` …, as usual in Lightning.

    To stop early or select checkpoints by refinement ("refine, then calibrate", Berta et al. 2025), use Lightning's
    ``EarlyStopping(monitor="calibration/refinement")`` or ``ModelCheckpoint``.

    The temperature is fitted on the same rows on which it is evaluated, as the definition of refinement requires (with
    one parameter, the optimism is about 1/(2N) nats). Fit the temperature that you deploy after training.

    Args:
        metrics: The metrics to log; None logs accuracy, NLL, Brier score and ECE.
        prefix: Prefix of every logged name.
        binary: Whether each logit is the input of a sigmoid, with labels 0 or 1 of the same shape: one label or several
            labels per row, which are evaluated together.
        ignore_index: Positions with this label are left out; None keeps all positions.

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
        self.metrics, self.prefix = metrics, prefix
        self._running: list[RunningFigures] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start new sums for every validation loader."""
        self._running = [RunningFigures(self.metrics) for _ in trainer.num_val_batches]

    def _add(self, rows: Predictions, loader: int) -> None:
        self._running[loader].add(rows)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics, the temperature and the refinement."""
        for loader, running in enumerate([] if trainer.sanity_checking else self._running):
            end = f"/dataloader_idx_{loader}" if len(self._running) > 1 else ""
            named = {f"{self.prefix}/{name}{end}": value for name, value in running.values(everywhere=True).items()}
            # the values are those of all processes, so no reduction over processes is needed
            pl_module.log_dict(named, sync_dist=False, rank_zero_only=False, add_dataloader_idx=False)
