"""What the tests of several families share: every calibrator, metric and loss, and stand-ins for what is slow or absent.

Each loss is made with arguments under which each of its parts counts.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant import calibrators, losses, metrics
from calibrant.calibrators import Calibrator, TemperatureScaling, VectorScaling
from calibrant.losses import BatchPenalty, Loss
from calibrant.metrics import Metric
from calibrant.rows import Batch, RowSource

# Where the constructor needs arguments, or where the defaults take long: fewer candidates and exponents.
CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    name: getattr(calibrators, name)
    for name in calibrators.__all__
    if issubclass(getattr(calibrators, name), Calibrator)
} | {
    "AutoCalibrator": lambda: calibrators.AutoCalibrator(candidates=[TemperatureScaling(), VectorScaling()]),
    "Chain": lambda: calibrators.Chain(TemperatureScaling(), calibrators.BiasScaling()),
    "ConfidenceBinning": lambda: calibrators.ConfidenceBinning(TemperatureScaling(), folds=2),
    "FocalCalibration": lambda: calibrators.FocalCalibration(1.0),
    "FocalTemperatureScaling": lambda: calibrators.FocalTemperatureScaling(gammas=[-0.5, 0.0, 1.0]),
    "KeepDecision": lambda: calibrators.KeepDecision(VectorScaling()),
}
METRICS: dict[str, Metric] = {
    name: cls()
    for name in metrics.__all__
    if inspect.isclass(cls := getattr(metrics, name)) and issubclass(cls, Metric) and not inspect.isabstract(cls)
}


class Shrinking(Calibrator):
    """A calibrator as somebody else would write it, in one file."""

    preserves_argmax = True
    strength: Tensor

    def _fit(self, rows: RowSource) -> None:
        self.strength = rows.mass / rows.total(summed_confidences)

    def _transform(self, logits: Tensor) -> Tensor:
        return (logits.double() * self.strength).to(logits.dtype)


def summed_confidences(batch: Batch) -> Tensor:
    return batch.row_weights @ batch.logits.double().softmax(dim=1).amax(dim=1)


NAMES = [
    name
    for name in losses.__all__
    if issubclass(getattr(losses, name), Loss) and not inspect.isabstract(getattr(losses, name))
]
# Where the constructor needs arguments, or where the defaults would leave a penalty at 0.
MAKE: dict[str, Callable[..., Loss]] = {
    "ACLSLoss": lambda **common: losses.ACLSLoss(0.1, margin=1.0, **common),
    # τ = .5 is where two tied classes of uniform confidences lie: a kink, whose slope depends on the last bit
    "AURCLoss": lambda **common: losses.AURCLoss(0.4, **common),
    "AdaFocalLoss": lambda **common: trained_adafocal(**common),
    "EntropyRegularizedLoss": lambda **common: losses.EntropyRegularizedLoss(0.1, **common),
    "FocalLoss": lambda **common: losses.FocalLoss(0.5, **common),
    "InverseFocalLoss": lambda **common: losses.InverseFocalLoss(2.0, **common),
    "LabelSmoothingLoss": lambda **common: losses.LabelSmoothingLoss(0.1, **common),
    "LpNormLoss": lambda **common: losses.LpNormLoss(0.01, 2.0, **common),
    "MarginLabelSmoothingLoss": lambda **common: losses.MarginLabelSmoothingLoss(0.1, margin=1.0, **common),
    "ProperFocalLoss": lambda **common: losses.ProperFocalLoss(3.0, **common),
    "ScheduledFocalLoss": lambda **common: losses.ScheduledFocalLoss((5.0, 3.0), (1,), **common),
    "Weighted": lambda **common: losses.Weighted(
        (1.0, losses.BrierLoss(**common)), (0.5, losses.FocalLoss(2.0, **common))
    ),
}
# Where a part of the loss is a constant in the gradient, the gradient is that of no function: these have no such part.
ATTACHED: dict[str, Callable[..., Loss]] = {
    "ACLSLoss": lambda **common: losses.ACLSLoss(0.1, margin=1.0, others=0.0, **common),
    "BSCELoss": lambda **common: losses.BSCELoss(detach_weight=False, **common),
}
SOFT = ("BrierLoss", "CrossEntropyLoss", "FocalLoss", "LabelSmoothingLoss", "Weighted")  # take target probabilities
WHOLE_BATCH = [name for name in NAMES if issubclass(getattr(losses, name), BatchPenalty)]
BY_ROW = [name for name in NAMES if name not in WHOLE_BATCH]


def trained_adafocal(**common: Any) -> Loss:
    """Return an AdaFocal loss whose bins have γ of both signs."""
    loss = losses.AdaFocalLoss(bins=4, **common)
    loss.gammas.copy_(torch.tensor([3.0, 0.3, -0.2, -2.0], dtype=torch.float64))
    return loss


def make(name: str, **common: Any) -> Loss:
    return MAKE.get(name, getattr(losses, name))(**common)


def gradient(loss: torch.nn.Module, logits: Tensor, labels: Tensor, upstream: float = 1.0) -> Tensor:
    """Return the gradient of the summed loss, times ``upstream``, with respect to the logits."""
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward(torch.full_like(value, upstream))
    assert leaf.grad is not None
    return leaf.grad


class OnMps(Tensor):
    """A tensor that says it lies on the device mps, which has no float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)

    def double(self) -> Tensor:  # type: ignore[override]
        raise TypeError("mps has no float64")


def simulate_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``to("mps")`` return an ``OnMps``, and fail for a float64 tensor, as it does on that device."""
    moved = Tensor.to

    def to(tensor: Tensor, *where: Any, **options: Any) -> Tensor:
        if where and str(where[0]) == "mps":
            assert tensor.dtype != torch.float64
            return tensor.as_subclass(OnMps)
        assert not isinstance(tensor, OnMps) or torch.float64 not in where
        return moved(tensor, *where, **options)

    monkeypatch.setattr(Tensor, "to", to)


def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``AutoCalibrator`` try two candidates: what is done with its fit is the same as with ten."""
    two = lambda *_: [calibrators.EnsembleTemperatureScaling(prior=0.5), VectorScaling(prior=0.5)]  # noqa: E731
    monkeypatch.setattr("calibrant.calibrators.auto.usual_candidates", two)


def pages_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures of models out of pages, of whose time they take most."""
    monkeypatch.setattr("calibrant.report.render.inline_svg", lambda *_, **__: "<svg></svg>")
