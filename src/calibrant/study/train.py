"""Trains one recipe, from the beginning or from a checkpoint, and measures the network over the epochs."""

import hashlib
import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from calibrant._files import atomic_write, error_boundary
from calibrant._kernel import threads
from calibrant.binning import EqualMass
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import FitError, InputError, optional
from calibrant.losses.loss import Adaptive
from calibrant.metrics import ECE, entropy_rows
from calibrant.study.build import make_loss, make_model, make_optimizers
from calibrant.study.data import Split, load_fold
from calibrant.study.measures import ORACLE, Measured, Run, ignore_bound_warnings
from calibrant.study.recipe import Recipe, Training
from calibrant.study.store import make_folder

EVALUATION_BATCH = 512


@runtime_checkable
class Scheduled(Protocol):
    """A loss that follows a schedule over the epochs."""

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that is about to begin, counted from 0."""


def training(recipe: Recipe, *, checkpoint: Path | None = None, accelerator: str = "auto") -> Generator[int, None, Run]:
    """Train ``recipe``, yielding the number of finished epochs after each epoch.

    Test samples are used for prediction only. An interrupted training run resumes from its checkpoint with the same results
    on the same machine, because each epoch seeds its random generators from the recipe's seed and the epoch's number.

    Args:
        recipe: The recipe.
        checkpoint: File to save the state to, and to resume from if it exists; None saves no state.
        accelerator: Lightning Fabric's accelerator: ``"auto"``, ``"cpu"``, ``"cuda"`` …

    Returns:
        The run, as the generator's return value (``run = yield from training(recipe)``).

    Raises:
        FitError: If the loss becomes infinite or NaN.
        FileFormatError: If the checkpoint is damaged or cannot be written.
        InputError: If ``"cuda"`` is requested and there is no such device.

    Examples:
        >>> from calibrant.study import Recipe, Training
        >>> data = {"name": "digits", "folds": 5, "train": 100, "validation": 100}
        >>> recipe = Recipe(data, {"type": "MLP"}, {"type": "BrierLoss"}, Training(epochs=2, batch=50))
        >>> list(training(recipe, accelerator="cpu"))
        [1, 2]
    """
    plan = recipe.training
    with threads(plan.threads):
        trainer = Trainer(recipe, accelerator)
        if checkpoint is not None:
            make_folder(checkpoint.parent)  # only now, so that a training without its data leaves nothing behind
            if checkpoint.exists():
                trainer.restore(checkpoint)
        state = trainer.state
        while state.epoch < plan.epochs:
            begun = time.perf_counter()
            trainer.train_epoch()
            state.seconds += time.perf_counter() - begun
            due = plan.checkpoint_every and state.epoch % plan.checkpoint_every == 0 and state.epoch < plan.epochs
            if checkpoint is not None and due and trainer.fabric.is_global_zero:
                trainer.keep(checkpoint)
            yield state.epoch
        return trainer.finish()


@dataclass
class Progress:
    """The state of a training run, apart from the network, the optimisers and the loss."""

    learned: Tensor
    epoch: int = 0
    kept_epoch: int = 0
    best: float | None = None
    kept: dict[str, Tensor] | None = None
    seconds: float = 0.0
    uses: dict[str, int] = field(default_factory=dict)
    trajectory: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """The objects of a training run (engine, data, network, loss and optimisers) and its progress.

    The constructor reads the data and draws the initial weights.
    """

    def __init__(self, recipe: Recipe, accelerator: str) -> None:
        with optional("lightning", extra="study"):
            from lightning.fabric import Fabric
        if accelerator == "cuda" and not torch.cuda.is_available():
            raise InputError("a CUDA device for accelerator 'cuda'", "none", "choose 'auto' or 'cpu'")
        self.recipe, self.plan = recipe, recipe.training
        devices, strategy = self.plan.devices, "ddp" if self.plan.devices > 1 else "auto"
        options: dict[str, Any] = {"devices": devices, "strategy": strategy, "precision": self.plan.precision}
        self.fabric: Any = Fabric(accelerator=accelerator, **options)
        if devices > 1:
            self.fabric.launch()
        device = self.fabric.device
        self.fold = load_fold(recipe.data, seed=recipe.seed, fold=recipe.fold).to(device)
        with _seeded(recipe.seed, device):
            self.network = make_model(recipe.model, sizes=self.fold.sizes)
        if self.plan.channels_last:
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss: Any = make_loss(recipe.loss, reduction=self.plan.reduction).to(device)
        self.model, *self.optimizers = self.fabric.setup(self.network, *make_optimizers(self.network, self.plan))
        self.state = Progress(torch.zeros(len(self.fold.train), dtype=torch.int64))

    def train_epoch(self) -> None:
        """Train for one epoch, update an adaptive loss, select the epoch to keep, and record a trajectory entry."""
        with _seeded(_mix(self.recipe.seed, self.state.epoch, "epoch"), self.fabric.device):
            value = self._train_batches()
        self.state.epoch += 1
        self._after_epoch(value)

    def _train_batches(self) -> float:
        """Train on every batch, and return the mean loss."""
        plan, fabric, epoch, seed = self.plan, self.fabric, self.state.epoch, self.recipe.seed
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate_factor(plan, epoch)
        if isinstance(self.loss, Scheduled):
            self.loss.set_epoch(epoch)
        count = len(self.fold.train)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(_mix(seed, epoch, "order")))
        draws = torch.Generator(fabric.device).manual_seed(_mix(seed, epoch, f"augment {fabric.global_rank}"))
        total, steps = torch.zeros((), device=fabric.device), 0
        self.model.train()
        for rows in order.to(fabric.device).split(plan.batch):
            if len(rows) < fabric.world_size or (plan.drop_last and len(rows) < plan.batch):
                continue
            own = rows[fabric.global_rank :: fabric.world_size]
            inputs, labels = self.fold.train.batch(own, training=True)
            if self.fold.augment is not None:
                inputs = self.fold.augment(inputs, draws)
            value = self.loss(self.model(inputs), labels) * plan.loss_factor
            if fabric.world_size > 1:  # scaled so that DDP's mean over devices is the loss of the whole batch
                fraction = len(own) / len(rows) if plan.reduction == "mean" else 1.0
                value = value * (fraction * fabric.world_size)
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            fabric.backward(value)
            if plan.clip is not None:
                fabric.clip_gradients(self.model, self.optimizers[0], max_norm=plan.clip, error_if_nonfinite=False)
            for optimizer in self.optimizers:
                optimizer.step()
            total, steps = total + value.detach(), steps + 1
        if not steps:
            got = f"{count} samples for batch = {plan.batch}"
            raise InputError("at least one whole batch per epoch", got, "lower batch, or leave drop_last out")
        mean = float(total) / steps
        if not math.isfinite(mean):
            got = f"{mean} in epoch {epoch + 1} of {self.recipe.loss}"
            raise FitError("a finite loss", got, "lower the learning rate")
        return mean

    def _after_epoch(self, value: float) -> None:
        """Update an adaptive loss, select the epoch to keep, and record a trajectory entry, which alone uses test samples."""
        plan, fold, state = self.plan, self.fold, self.state
        measured = state.epoch % plan.measure_every == 0 or state.epoch == plan.epochs
        adapts, selects = isinstance(self.loss, Adaptive), plan.select == "accuracy"
        if not (measured or adapts or selects):
            return
        validation = predict(self.model, fold.validation)
        if adapts:
            self.loss.update(validation)
            state.uses["adapt the loss"] = state.uses.get("adapt the loss", 0) + 1
        if selects:
            state.uses["choose the epoch"] = state.uses.get("choose the epoch", 0) + 1
            error = float((~validation.correct).double().mean())
            if state.best is None or error < state.best:
                state.best, state.kept_epoch = error, state.epoch
                state.kept = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        if measured:
            train = predict(self.model, fold.train)
            state.learned = learned_since(state.learned, train.correct, epoch=state.epoch)
            splits = {"train": train, "validation": validation, "test": predict(self.model, fold.test)}
            figures = trajectory_entry(splits, model=self.network, loss=self.loss)
            state.trajectory.append({"epoch": state.epoch, "loss": value, **figures})

    def finish(self) -> Run:
        """Return the run, with the predictions of the network that was kept and everything that was recorded."""
        state, device = self.state, self.fabric.device
        if state.kept is not None:
            self.network.load_state_dict(state.kept)
        outside = {name: _network_logits(self.model, split.to(device)) for name, split in self.fold.ood.items()}
        return Run(
            validation=predict(self.model, self.fold.validation),
            test=predict(self.model, self.fold.test),
            # without labels, because other data sets have other classes than the network
            ood={name: Predictions.from_logits(rows, unchecked_kind=True) for name, rows in outside.items()},
            trajectory=state.trajectory,
            learned_epochs=state.learned,
            max_logits=predict(self.model, self.fold.train).logits.amax(dim=1),
            record={
                "epoch": state.kept_epoch or self.plan.epochs,
                "validation_uses": state.uses,
                "seconds": round(state.seconds, 3),
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            },
        )

    def keep(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        content = {
            "recipe": self.recipe.fingerprint,
            "progress": vars(self.state),
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "loss": self.loss.state_dict(),
        }
        with atomic_write(path) as file:
            torch.save(content, file)

    def restore(self, path: Path) -> None:
        """Load the state of a checkpoint into the objects."""
        # unpickling raises many types of errors, each of which means that the file is unusable
        with error_boundary("a whole checkpoint", f"a broken one: {path}", "delete it"):
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content["recipe"] != self.recipe.fingerprint:
                raise ValueError("it belongs to another recipe")
            self.network.load_state_dict(content["network"])
            for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.loss.load_state_dict(content["loss"])
            self.state = Progress(**content["progress"])


def predict(model: nn.Module, split: Split) -> Predictions:
    """Return the predictions of ``model`` in evaluation mode, on the CPU. The model's mode is restored afterwards."""
    found = Predictions.from_logits(_network_logits(model, split), split.labels.cpu(), unchecked_kind=True)
    if not split.decided:
        return found
    among = torch.tensor(split.decided)  # confidences stay normalised over all classes
    return replace(found, decision=among[found.logits[:, among].argmax(dim=1)])


def _network_logits(model: nn.Module, split: Split) -> Tensor:
    """Return the network's float32 logits (N, K) on the CPU."""
    was_training = model.training
    model.eval()
    logits = []
    try:
        with torch.no_grad():
            for rows in torch.arange(len(split), device=split.labels.device).split(EVALUATION_BATCH):
                logits.append(model(split.batch(rows)[0]).float().cpu())
    finally:
        model.train(was_training)
    return torch.cat(logits)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random generators in the block and restore their states afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _mix(seed: int, epoch: int, purpose: str) -> int:
    """Return a seed that differs for each purpose and epoch."""
    # a hash, because seed + epoch would repeat the epochs of another seed; 56 bits stay below PyTorch's largest seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()[:7], "big")


def rate_factor(plan: Training, epoch: int) -> float:
    """Return the factor on the initial learning rates in ``epoch``, counted from 0."""
    if plan.schedule == "cosine":
        # 1 in the first epoch, and 0 after the last
        return 0.5 * (1 + math.cos(math.pi * epoch / plan.epochs))
    # a scheduler that steps before the epoch is one epoch ahead of its milestones
    ahead = 1 if plan.step_first else 0
    return 0.1 ** sum(epoch + ahead >= milestone for milestone in plan.milestones)


def trajectory_entry(parts: Mapping[str, Predictions], *, model: nn.Module, loss: nn.Module) -> dict[str, Any]:
    """Return one entry of a trajectory.

    Args:
        parts: Predictions of the splits ``"train"``, ``"validation"`` and ``"test"``.
        model: The network, whose last layer is called ``classifier``.
        loss: The loss, whose state (AdaFocal's γ of each bin) is recorded.
    """
    entry: dict[str, Any] = {name: epoch_figures(part) for name, part in parts.items()}
    for name, part in parts.items():
        # the best temperature in hindsight, on test data too (Wang et al. 2021, Figure 4), is a description and not an evaluation.
        # If all rows are correct, the log-loss keeps falling as T → 0, so that no best temperature exists.
        entry[name] |= {"temperature": None, "ece_at_own_t": None}
        if not bool(part.correct.all()):
            own = temperature_of_epoch(part)
            at_own = part.calibrated_by(own, allow_fit_rows=True)
            entry[name] |= {"temperature": own.temperature, "ece_at_own_t": ECE()(at_own)}
    fits = Measured([Run(parts["validation"], parts["test"])])
    entry["test"] |= {name: fits.value(name) for name in ("nll_at_t", "ece_at_t")}
    # The oracle's T in .01 … 10 minimises the ECE of the same rows. Wang et al. (2021) §5.1 call the resulting ECE optimal, because
    # no temperature chosen on validation data gives a lower one.
    (optimal,) = fits.calibrators(ORACLE)
    entry["test"] |= {"optimal_temperature": optimal.temperature, "optimal_ece": fits.value(f"ece_{ORACLE}")}
    last = getattr(model, "classifier", None)
    if isinstance(getattr(last, "weight", None), Tensor):
        entry["classifier_norm"] = float(last.weight.detach().norm())  # type: ignore[union-attr]
    state = {name: buffer.tolist() for name, buffer in loss.named_buffers() if buffer.numel() <= 100}
    return {**entry, "loss_state": state} if state else entry


def epoch_figures(predictions: Predictions) -> dict[str, Any]:
    """Return the error, the log-loss and entropy of all, correct and wrong samples, and the calibration errors.

    A mean over no samples is None.

    Args:
        predictions: Labelled predictions with at least one row and without weights.

    Examples:
        >>> from calibrant import Predictions
        >>> figures = epoch_figures(Predictions.from_logits([[2.0, 0.0], [2.0, 0.0]], [0, 1]))
        >>> round(figures["nll"], 4), round(figures["nll_wrong"], 4), figures["error"]
        (1.1269, 2.1269, 0.5)
    """
    correct, pairs = predictions.correct, predictions.top_label()
    figures: dict[str, Any] = {"error": float((~correct).double().mean())}
    for name, rows in (("nll", predictions.nll), ("entropy", entropy_rows(predictions))):
        figures[name] = float(rows.mean())
        figures[f"{name}_correct"], figures[f"{name}_wrong"] = _mean(rows[correct]), _mean(rows[~correct])
    mass = EqualMass(15).table(pairs.p, pairs.y)
    return figures | {"ece": ECE()(pairs), "ece_mass": mass.error(), "gaps_mass": mass.gap.tolist()}


def _mean(rows: Tensor) -> float | None:
    """Return the mean of ``rows`` (N,), or None if there are none."""
    return float(rows.mean()) if len(rows) else None


def temperature_of_epoch(validation: Predictions) -> TemperatureScaling:
    """Return temperature scaling fitted by log-loss.

    If every sample is correct, the temperature is at its bound, and there is no warning.
    """
    with ignore_bound_warnings():  # training data often give a T at its bound, which is recorded as it is
        return TemperatureScaling().fit(validation)


def learned_since(since: Tensor, correct: Tensor, *, epoch: int) -> Tensor:
    """Return the epoch since which each sample has been classified correctly, or 0 for samples that are wrong now.

    Args:
        since: (N,) int64 result for the previous epoch; zeros before the first epoch.
        correct: (N,) bool, whether each sample is classified correctly after this epoch.
        epoch: Number of this epoch, counted from 1.

    Examples:
        >>> before = learned_since(torch.tensor([0, 0]), torch.tensor([True, False]), epoch=1)
        >>> learned_since(before, torch.tensor([True, True]), epoch=2)
        tensor([1, 2])

    References:
        Wang et al. 2021, §5.1.
    """
    return torch.where(correct.cpu(), torch.where(since > 0, since, epoch), 0)
