"""Races of the metrics: every library starts from the same float32 logits, or from the same confidences.

Results are compared with the same formulas in float64 NumPy, which are given below.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from benchmarks.race import Race, Setup
from benchmarks.race.data import overconfident, pairs
from benchmarks.race.peers import optional, present, torch_uncertainty, updated
from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, SmoothECE

Floats = NDArray[np.float64]
BINS = 15
DISTANCE = "distance to the float64 value"


def distance_to(exact: float) -> Callable[[Any], float]:
    """Return the difference between a result and ``exact``."""
    return lambda answer: abs(float(answer) - exact)


def unless_rows(error: Callable[[Any], float]) -> Callable[[Any], float | None]:
    """Return ``error``, but None for an answer that is one vector per row, as that of a softmax alone."""
    return lambda answer: None if isinstance(answer, Tensor) and answer.dim() else error(answer)


def softmax64(logits: Tensor) -> Floats:
    z = logits.numpy().astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return z


def binned_error(index: NDArray[np.int64], p: Floats, y: Floats, bins: int) -> float:
    """Return Σ_b |Σ (p − y)| / N, given each row's bin."""
    return float(np.abs(np.bincount(index, p - y, bins)).sum() / len(p))


def width_index(p: Floats) -> NDArray[np.int64]:
    return np.clip(np.ceil(p * BINS).astype(np.int64) - 1, 0, BINS - 1)


def equal_width(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    p = softmax64(z)
    top, hit = p.max(axis=1), (p.argmax(axis=1) == y.numpy()).astype(np.float64)
    tm, nc, rp, pc = map(
        optional, ("torchmetrics.functional.classification", "netcal.metrics", "relplot", "probcal.metrics")
    )

    def confident() -> tuple[Floats, Floats]:
        values, decided = torch.softmax(z, dim=1).max(dim=1)
        return values.numpy(), (decided == y).numpy()

    calls = {
        "calibrant": lambda: ECE()(Predictions.from_logits(z, y)),
        "torchmetrics": lambda: tm.multiclass_calibration_error(z, y, classes, BINS),
        "netcal": lambda: nc.ECE(BINS).measure(torch.softmax(z, dim=1).numpy(), y.numpy()),
        "relplot": lambda: rp.metrics.binnedECE(*confident(), nbins=BINS),
        "probcal": lambda: _probcal(pc, *confident(), strategy="width"),
        "softmax alone": lambda: torch.softmax(z, dim=1),
    }
    error = distance_to(binned_error(width_index(top), top, hit, BINS))
    return Setup(present(calls), unless_rows(error), ("softmax alone",))


def _probcal(module: Any, p: Floats, hit: Floats, *, strategy: str) -> float:
    return float(module.ece(hit.astype(np.int64), p.astype(np.float64), n_bins=BINS, strategy=strategy))


def equal_mass(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    p = softmax64(z)
    order = np.argsort(p.max(axis=1))
    gap = (p.max(axis=1) - (p.argmax(axis=1) == y.numpy()))[order]
    exact = sum(abs(part.sum()) for part in np.array_split(gap, BINS)) / rows
    pc = optional("probcal.metrics")

    def ace() -> float:
        module = torch_uncertainty("metrics.classification.calibration.adaptive_calibration_error")
        return updated(module.MulticlassAdaptiveCalibrationError(classes, n_bins=BINS), z.softmax(dim=1), y)

    def binary() -> float:
        values, decided = torch.softmax(z, dim=1).max(dim=1)
        return _probcal(pc, values.numpy(), (decided == y).numpy(), strategy="mass")

    calls = {
        "calibrant": lambda: ECE(EqualMass(BINS))(Predictions.from_logits(z, y)),
        "torch-uncertainty": ace,
        "probcal": binary,
    }
    return Setup(
        present(calls), distance_to(exact), left_out={"netcal": "its equal-mass bins refuse equal confidences"}
    )


def classwise(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    p = softmax64(z)
    hot = y.numpy()
    exact = float(
        np.mean([binned_error(width_index(p[:, k]), p[:, k], (hot == k) * 1.0, BINS) for k in range(classes)])
    )

    def theirs() -> float:
        module = torch_uncertainty("metrics.classification.calibration.classwise_calibration_error")
        return updated(module.ClasswiseCalibrationError(classes, BINS), z.softmax(dim=1), y)

    calls = {"calibrant": lambda: ClasswiseECE()(Predictions.from_logits(z, y)), "torch-uncertainty": theirs}
    return Setup(present(calls), distance_to(exact))


def smooth_error64(p: Floats, y: Floats, cells: int = 1 << 14) -> float:
    """Return the smooth ECE with a reflected kernel: mirrored residuals, circular convolution by FFT, and bisection for σ."""
    residual = np.bincount(np.minimum((p * cells).astype(np.int64), cells - 1), p - y, cells) / len(p)
    spectrum = np.fft.rfft(np.concatenate([residual, residual[::-1]]))
    frequency = np.pi * np.arange(cells + 1)
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        smoothed = np.fft.irfft(spectrum * np.exp(-0.5 * (frequency * middle) ** 2))[:cells]
        low, high = (middle, high) if np.abs(smoothed).sum() > middle else (low, middle)
    return low


def smooth(rows: int, classes: int) -> Setup:
    p, hit = pairs(rows)
    p64, hit64, labels = p.numpy(), hit.double().numpy(), hit.long()
    rp, pc = optional("relplot.metrics"), optional("probcal.metrics")
    calls = {
        "calibrant": lambda: SmoothECE()(Pairs.from_probs(p, labels)),
        "relplot": lambda: rp.smECE(p64, hit64),
        "probcal": lambda: pc.smooth_ece(hit64, p64),
    }
    notes = {"probcal": "its kernel lies on the logit scale: another quantity"}
    return Setup(present(calls), distance_to(smooth_error64(p64, hit64)), notes=notes)


def confidences(rows: int, classes: int) -> Setup:
    p, hit = pairs(rows)
    labels = hit.long()
    index, gap = width_index(p.numpy()), (p - hit.double()).numpy()
    exact = sum(abs(math.fsum(gap[index == b])) for b in range(BINS)) / rows
    tm = optional("torchmetrics.functional.classification")
    calls = {
        "calibrant": lambda: ECE()(Pairs.from_probs(p, labels)),
        "torchmetrics": lambda: tm.binary_calibration_error(p, labels, BINS),
    }
    return Setup(present(calls), distance_to(exact))


def log_loss(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    at_label = softmax64(z)[np.arange(rows), y.numpy()]
    sk = optional("sklearn.metrics")
    calls = {
        "calibrant": lambda: NLL()(Predictions.from_logits(z, y)),
        "torch": lambda: F.cross_entropy(z, y),
        "scikit-learn": lambda: sk.log_loss(y.numpy(), torch.softmax(z, dim=1).numpy(), labels=np.arange(classes)),
    }
    return Setup(present(calls), distance_to(float(-np.log(at_label).mean())))


def brier(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    p = softmax64(z)
    p[np.arange(rows), y.numpy()] -= 1
    exact = float(np.square(p).sum() / rows)
    sk = optional("sklearn.metrics")

    def theirs() -> float:
        module = torch_uncertainty("metrics.classification.brier_score")
        return updated(module.BrierScore(classes), z.softmax(dim=1), y)

    calls = {
        "calibrant": lambda: Brier()(Predictions.from_logits(z, y)),
        "torch-uncertainty": theirs,
        "scikit-learn": lambda: sk.brier_score_loss(
            y.numpy(), torch.softmax(z, dim=1).numpy(), labels=np.arange(classes), scale_by_half=False
        ),
        "by hand": lambda: (z.softmax(dim=1) - F.one_hot(y, classes)).square().sum(dim=1).mean(),
    }
    return Setup(present(calls), distance_to(exact))


def six(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    p = softmax64(z)
    exact = float(-np.log(p[np.arange(rows), y.numpy()]).mean())
    tm = optional("torchmetrics")

    def ours() -> float:
        data = Predictions.from_logits(z, y)
        return [metric(data) for metric in (ECE(), ECE(EqualMass(BINS)), MCE(), Accuracy(), Brier(), NLL())][-1]

    def theirs() -> Tensor:
        functions = tm.functional.classification
        for norm in ("l1", "max"):
            functions.multiclass_calibration_error(z, y, classes, BINS, norm=norm)
        p = z.softmax(dim=1)
        ace = torch_uncertainty("metrics.classification.calibration.adaptive_calibration_error")
        updated(ace.MulticlassAdaptiveCalibrationError(classes, n_bins=BINS), p, y)
        updated(torch_uncertainty("metrics.classification.brier_score").BrierScore(classes), p, y)
        functions.multiclass_accuracy(z, y, classes, average="micro")
        return F.cross_entropy(z, y)

    calls = {
        "calibrant": ours,
        "torchmetrics, torch-uncertainty, torch": theirs,
        "softmax alone": lambda: torch.softmax(z, dim=1),
    }
    return Setup(present(calls), unless_rows(distance_to(exact)), ("softmax alone",))


RACES = [
    Race("ece-width", "ECE, 15 bins of equal width", 1_000_000, 10, DISTANCE, equal_width),
    Race("ece-width", "ECE, 15 bins of equal width", 100_000, 1000, DISTANCE, equal_width),
    Race("ece-mass", "ECE, 15 bins of equal mass", 1_000_000, 10, DISTANCE, equal_mass),
    Race("ece-classwise", "Classwise ECE, 15 bins", 100_000, 100, DISTANCE, classwise),
    Race("ece-pairs", "ECE, 15 bins, from confidences", 10_000_000, 2, DISTANCE, confidences),
    Race("smooth-ece", "Smooth ECE from confidences", 100_000, 2, DISTANCE, smooth),
    Race("smooth-ece", "Smooth ECE from confidences", 1_000_000, 2, DISTANCE, smooth),
    Race("nll", "Log-loss", 1_000_000, 10, DISTANCE, log_loss),
    Race("nll", "Log-loss", 100_000, 1000, DISTANCE, log_loss),
    Race("brier", "Brier score", 1_000_000, 10, DISTANCE, brier),
    Race("brier", "Brier score", 100_000, 1000, DISTANCE, brier),
    Race(
        "six",
        "Six metrics together",
        1_000_000,
        10,
        f"{DISTANCE} of the log-loss",
        six,
    ),
]
