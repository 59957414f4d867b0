"""Lightning: callbacks that update AdaFocal, log calibration every epoch, and stop by refinement."""

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from calibrant._objective.reminder import never_updated, number_of_updates
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError, MissingExtraError
from calibrant.evaluate.panel import check_metrics
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Metric
from calibrant.predictions import Predictions

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtraError("lightning", extra="lightning") from error

__all__ = ["AdaFocalCallback", "CalibrationMonitor"]


@runtime_checkable
class Adaptive(Protocol):
    """A loss that learns from validation predictions once an epoch."""

    def update(self, validation: Predictions) -> Any:
        """Take the validation predictions of this epoch."""


class _Collector(Callback):  # type: ignore[misc]
    """Keep logits and labels of every validation batch, from all processes.

    ``validation_step`` returns a mapping with ``logits`` and ``labels``, or a pair (logits, labels).
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the epoch before."""
        self._parts = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """Keep one batch."""
        self._parts.append(_pair(outputs))

    def _gather(self, pl_module: LightningModule) -> Predictions:
        logits = torch.cat([z for z, _ in self._parts])
        labels = torch.cat([y for _, y in self._parts])
        if pl_module.trainer.world_size > 1:
            logits, labels = _everywhere(pl_module, logits), _everywhere(pl_module, labels)
        return Predictions.from_logits(logits.float().cpu(), labels.cpu())


def _everywhere(pl_module: LightningModule, rows: Tensor) -> Tensor:
    gathered = pl_module.all_gather(rows)
    return cast(Tensor, gathered).flatten(0, 1)


def _pair(outputs: Any) -> tuple[Tensor, Tensor]:
    if isinstance(outputs, dict) and "logits" in outputs and "labels" in outputs:
        return outputs["logits"].detach(), outputs["labels"].detach()
    if isinstance(outputs, tuple | list) and len(outputs) == 2:
        return outputs[0].detach(), outputs[1].detach()
    got = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
    raise InputError(
        f"expected validation_step to return {{'logits': …, 'labels': …}} or (logits, labels), got {got}; return these"
    )


class AdaFocalCallback(_Collector):
    """Update an adaptive loss (``AdaFocalLoss``) from each epoch's validation predictions, and keep it in checkpoints.

    Args:
        loss: Name of the module's attribute that holds the loss. As a submodule its state is in Lightning's
            checkpoints anyway; held otherwise it is saved by this callback.

    Examples:
        >>> AdaFocalCallback(loss="criterion").attribute
        'criterion'
    """

    def __init__(self, loss: str = "criterion") -> None:
        super().__init__()
        self.attribute = loss
        self._outside: nn.Module | None = None
        self._restored: dict[str, Any] | None = None
        self._updated = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the loss, and give it the state of the checkpoint that is resumed."""
        loss = self._loss(pl_module)
        self._updated = False
        inside = any(module is loss for module in pl_module.modules())
        self._outside = None if inside else loss
        if self._restored is not None:
            loss.load_state_dict(self._restored)
            self._restored = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the loss, but not from the sanity check before training."""
        if not trainer.sanity_checking and self._parts and trainer.state.fn == "fit":
            loss: Any = self._loss(pl_module)
            loss.update(self._gather(pl_module))
            self._updated = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to let a training end in which the loss was never updated.

        Raises:
            InputError: If there were training steps and no update, as without validation data.
        """
        if trainer.global_step > 0 and not self._updated and number_of_updates(self._loss(pl_module)) in (None, 0):
            raise InputError(
                never_updated(self._loss(pl_module), "give the trainer validation data at least once an epoch")
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the loss's state, for a loss that is no submodule."""
        return {} if self._outside is None else {"loss": self._outside.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the loss's state back; it is set when training starts."""
        self._restored = state_dict.get("loss")

    def _loss(self, pl_module: LightningModule) -> nn.Module:
        loss = getattr(pl_module, self.attribute, None)
        if not isinstance(loss, nn.Module) or not isinstance(loss, Adaptive):
            raise InputError(
                f"expected an adaptive loss such as AdaFocalLoss() in {type(pl_module).__name__}.{self.attribute}, got "
                f"{type(loss).__name__}; name the attribute that holds it"
            )
        return loss


class CalibrationMonitor(_Collector):
    """Log a calibration panel of the validation data every epoch, raw and after temperature scaling.

    Logs ``<prefix>/<metric>`` for every metric, ``<prefix>/temperature``, and ``<prefix>/refinement``: the log-loss
    after temperature scaling. Stop or choose checkpoints by the last ("refine, then calibrate", Berta et al. 2025)
    with Lightning's own ``EarlyStopping(monitor="calibration/refinement")`` or ``ModelCheckpoint``.

    The temperature is fitted on the data it is evaluated on here, which is what refinement means (one parameter, so
    the optimism is about 1/(2N) nats); fit the one to ship afterwards.

    Args:
        metrics: What to log; None is accuracy, NLL, Brier and ECE.
        prefix: Start of every logged name.

    Examples:
        >>> CalibrationMonitor(prefix="val").prefix
        'val'
    """

    def __init__(self, metrics: Sequence[Metric] | None = None, *, prefix: str = "calibration") -> None:
        super().__init__()
        self.metrics: list[Metric] = (
            list(check_metrics(metrics)) if metrics is not None else [Accuracy(), NLL(), Brier(), ECE()]
        )
        self.prefix = prefix

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the panel."""
        if trainer.sanity_checking or not self._parts:
            return
        data = self._gather(pl_module)
        scaling = TemperatureScaling().fit(data.logits, data.need_labels())
        figures = {type(metric).__name__: metric(data) for metric in self.metrics}
        figures["temperature"] = scaling.temperature
        figures["refinement"] = NLL()(data.calibrated_by(scaling, allow_fit_rows=True))
        # every process gathered the same rows, so there is nothing left to reduce
        named = {f"{self.prefix}/{name}": value for name, value in figures.items()}
        pl_module.log_dict(named, sync_dist=False, rank_zero_only=False)
