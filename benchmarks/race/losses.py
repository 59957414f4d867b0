"""Races of the losses: forward and backward passes from the same float32 logits, in libraries with the same objective.

The result is the gradient with respect to the logits, or for a linear layer and its loss, to the layer's inputs. Its error is the
largest difference from the float64 gradient, relative to the largest entry of that gradient.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.race import Race, Setup
from benchmarks.race.data import overconfident
from benchmarks.race.peers import optional, present, torch_uncertainty
from calibrant import losses

ERROR = "error of the gradient"
SMOOTHING, GAMMA, PENALTY = 0.1, 3.0, 0.1
INPUTS = 64  # of the linear layer
Objective = Callable[[Tensor, Tensor], Tensor]


def race(exact: Objective, named: Callable[[], dict[str, Objective]], rows: int, classes: int, **extra: Any) -> Setup:
    """Return the setup for the objectives ``named``, whose formula in float64 is ``exact``."""
    logits, labels = overconfident(rows, classes)
    wide = logits[:TRUTH].double().requires_grad_()
    exact(wide, labels[:TRUTH]).backward()
    truth = wide.grad
    assert truth is not None
    scale = float(truth.abs().max())
    logits.requires_grad_()

    def call(objective: Objective) -> Callable[[], Tensor]:
        def forward_and_backward() -> Tensor:
            logits.grad = None
            objective(logits, labels).backward()
            return logits.grad  # type: ignore[return-value]

        return forward_and_backward

    calls = {name: call(objective) for name, objective in named().items()}
    error = lambda gradient: distance(gradient, truth, rows) / scale  # noqa: E731
    return Setup(present(calls), error, floors=("torch cross_entropy",), **extra)


TRUTH = 256  # rows whose gradient is compared: the mean's gradient is theirs, by a factor


def distance(gradient: Tensor, truth: Tensor, rows: int) -> float:
    """Return the largest distance of the gradient of a mean over ``rows`` to ``truth``, that of a mean over the first rows."""
    return float((gradient[:TRUTH].double() * (rows / len(truth)) - truth).abs().max())


def focal_by_hand(gamma: float) -> Objective:
    def objective(logits: Tensor, labels: Tensor) -> Tensor:
        nll = F.cross_entropy(logits, labels, reduction="none")
        return ((1 - torch.exp(-nll)) ** gamma * nll).mean()

    return objective


def focal64(logits: Tensor, labels: Tensor) -> Tensor:
    """Return focal loss from log p and log(1 − p), where the latter is computed from the other classes to avoid cancellation."""
    log_p = logits.log_softmax(dim=1)
    hot = F.one_hot(labels, logits.shape[1]).bool()
    rest = torch.logsumexp(log_p.masked_fill(hot, -math.inf), dim=1)
    return (torch.exp(GAMMA * rest) * -log_p[hot]).mean()


def cross_entropy() -> dict[str, Objective]:
    return {"calibrant": losses.CrossEntropyLoss(), "torch": F.cross_entropy}


def smoothing() -> dict[str, Objective]:
    return {
        "calibrant": losses.LabelSmoothingLoss(SMOOTHING),
        "torch": partial(F.cross_entropy, label_smoothing=SMOOTHING),
    }


def focal() -> dict[str, Objective]:
    named: dict[str, Objective] = {"calibrant": losses.FocalLoss(GAMMA)}
    if kornia := optional("kornia.losses"):
        # its mean divides by N · K
        named["kornia"] = lambda z, y: kornia.focal_loss(z, y, alpha=None, gamma=GAMMA, reduction="sum") / len(y)
    if theirs := torch_uncertainty("losses.classification"):
        named["torch-uncertainty"] = theirs.FocalLoss(gamma=GAMMA)
    named["by hand"] = focal_by_hand(GAMMA)
    named["torch cross_entropy"] = F.cross_entropy
    return named


def brier64(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.softmax(dim=1) - F.one_hot(labels, logits.shape[1])).square().sum(dim=1).mean()


def brier() -> dict[str, Objective]:
    return {
        "calibrant": losses.BrierLoss(),
        "by hand": brier64,
        "torch cross_entropy": F.cross_entropy,
    }


def entropy64(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = logits.log_softmax(dim=1)
    return F.nll_loss(log_p, labels) + PENALTY * (log_p.exp() * log_p).sum(dim=1).mean()


def entropy() -> dict[str, Objective]:
    named: dict[str, Objective] = {"calibrant": losses.EntropyRegularizedLoss(PENALTY), "by hand": entropy64}
    if theirs := torch_uncertainty("losses.classification"):
        named["torch-uncertainty"] = theirs.ConfidencePenaltyLoss(reg_weight=PENALTY)
    return named


def fused(rows: int, classes: int) -> Setup:
    """Return the setup of a linear layer with its cross-entropy; an answer is the gradient of the layer's inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(size, INPUTS, generator=generator) for size in (rows, classes))
    labels = torch.randint(classes, (rows,), generator=generator)
    wide = inputs[:TRUTH].double().requires_grad_()
    F.cross_entropy(wide @ weight.double().T, labels[:TRUTH]).backward()
    truth = wide.grad
    assert truth is not None
    scale = float(truth.abs().max())
    inputs.requires_grad_()
    weight.requires_grad_()
    ours = losses.FusedLinearLoss(losses.CrossEntropyLoss())

    def call(objective: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def forward_and_backward() -> Tensor:
            inputs.grad = weight.grad = None
            objective().backward()
            return inputs.grad  # type: ignore[return-value]

        return forward_and_backward

    calls = {
        "calibrant": call(lambda: ours(inputs, weight, labels)),
        "torch": call(lambda: F.cross_entropy(F.linear(inputs, weight), labels)),
    }
    return Setup(calls, lambda gradient: distance(gradient, truth, rows) / scale)


def both(name: str, title: str, make: Callable[[int, int], Setup]) -> list[Race]:
    return [Race(name, title, rows, classes, ERROR, make) for rows, classes in ((4096, 1000), (512, 50_000))]


RACES = [
    *both("cross-entropy", "Cross-entropy", partial(race, F.cross_entropy, cross_entropy)),
    *both("smoothing", "Label smoothing 0.1", partial(race, partial(F.cross_entropy, label_smoothing=0.1), smoothing)),
    *both("focal", "Focal loss, γ = 3", partial(race, focal64, focal)),
    *both("brier-loss", "Brier loss", partial(race, brier64, brier)),
    *both("entropy", "Confidence penalty 0.1", partial(race, entropy64, entropy)),
    Race("fused", f"Linear layer of {INPUTS} inputs and cross-entropy", 1024, 50_000, ERROR, fused),
]
