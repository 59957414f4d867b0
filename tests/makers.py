"""What several families' tests share: every loss with its gradient, and the content of a saved calibrator.

Each loss is made with arguments under which each of its parts counts.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from calibrant import losses
from calibrant._files import read_metadata, write_arrays
from calibrant.losses import BatchPenalty, Loss

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


def content_of(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return arrays and metadata of a saved calibrator."""
    # load_file maps the file into memory
    return {key: value.clone() for key, value in load_file(path).items()}, read_metadata(path)


def write_content(path: Path, arrays: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write arrays and metadata as a saved calibrator."""
    write_arrays(path, {key: value.numpy() for key, value in arrays.items()}, metadata=metadata)
