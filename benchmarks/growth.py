"""Time and memory against rows, classes and bins, beside the libraries that can do the same.

    python -m benchmarks.growth --json DIR        # one thread; goes on where it was stopped

Each point is the median CPU time of three calls after one that warms up (of one, where it takes over half a second). A
library is left out of the larger sizes as soon as its next point would take longer than the bound, and that is recorded.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data import overconfident, pairs
from benchmarks.peers import (
    optional,
    present,
    probmetrics_fit,
    probmetrics_probs,
    sklearn_temperature,
    torch_uncertainty,
    updated,
)
from benchmarks.race import peak
from benchmarks.records import Store
from calibrant import BinaryPairs, Predictions, losses
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE, NLL, Brier

Calls = dict[str, Callable[[], Any]]
BOUND = 4.0  # CPU seconds that a point may be expected to take
ROWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CLASSES = (2, 10, 100, 1_000, 10_000, 100_000)
BINS = (5, 15, 50, 150, 500, 1_000)
OF_ROWS, OF_CLASSES, OF_BINS = 10, 1_000, 1_000_000  # K while N grows; N while K grows; N while bins grow


@dataclass(frozen=True)
class Axis:
    """What grows, through which values, and the operations at a value."""

    name: str
    values: tuple[int, ...]
    data: Callable[[int], tuple[Tensor, Tensor]]
    operations: Callable[[int, Tensor, Tensor], dict[str, Calls]]


def of_logits(value: int, z: Tensor, y: Tensor) -> dict[str, Calls]:
    """Return the operations on logits ``z`` (N, K), each with the libraries that have it."""
    classes = z.shape[1]
    tm = optional("torchmetrics.functional.classification")
    some = min(len(z), 200_000 // classes + 2)
    fitted = TemperatureScaling()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(z[:some], y[:some])
    focal = losses.FocalLoss(3.0)
    return {
        "ECE, equal width": {
            "calibrant": lambda: ECE()(Predictions.from_logits(z, y)),
            "torchmetrics": lambda: tm.multiclass_calibration_error(z, y, classes, 15),
        },
        "ECE, equal mass": {
            "calibrant": lambda: ECE(EqualMass(15))(Predictions.from_logits(z, y)),
            "torch-uncertainty": lambda: updated(
                torch_uncertainty(
                    "metrics.classification.calibration.adaptive_calibration_error"
                ).MulticlassAdaptiveCalibrationError(classes, n_bins=15),
                z.softmax(dim=1),
                y,
            ),
        },
        "Log-loss": {
            "calibrant": lambda: NLL()(Predictions.from_logits(z, y)),
            "torch": lambda: F.cross_entropy(z, y),
        },
        "Brier score": {
            "calibrant": lambda: Brier()(Predictions.from_logits(z, y)),
            "torch-uncertainty": lambda: updated(
                torch_uncertainty("metrics.classification.brier_score").BrierScore(classes), z.softmax(dim=1), y
            ),
        },
        "Temperature, fitted": {
            "calibrant": lambda: TemperatureScaling().fit(z, y),
            "scikit-learn": lambda: sklearn_temperature(z, y),
            "probmetrics": lambda: probmetrics_fit(_probmetrics(), z, y),
        },
        "Temperature, applied": {"calibrant": lambda: fitted(z).softmax(dim=1), "probmetrics": _applied(z, y, some)},
        "Focal loss, forward and backward": {
            "calibrant": lambda: _gradient(focal, z, y),
            "kornia": lambda: _gradient(_kornia, z, y),
            "torch-uncertainty": lambda: _gradient(
                torch_uncertainty("losses.classification").FocalLoss(gamma=3.0), z, y
            ),
        },
    }


def _probmetrics() -> Any:
    from probmetrics.calibrators import TemperatureScalingCalibrator

    return TemperatureScalingCalibrator()


def _applied(z: Tensor, y: Tensor, some: int) -> Callable[[], Any]:
    if not optional("probmetrics"):
        return lambda: None
    fitted = cache(lambda: probmetrics_fit(_probmetrics(), z[:some], y[:some]))  # by the call that warms up
    return lambda: probmetrics_probs(fitted(), z)


def _kornia(z: Tensor, y: Tensor) -> Tensor:
    from kornia.losses import focal_loss

    return focal_loss(z, y, alpha=None, gamma=3.0, reduction="mean")


def _gradient(objective: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> Tensor | None:
    leaf = z.detach().requires_grad_()
    objective(leaf, y).backward()
    return leaf.grad


def of_pairs(bins: int, p: Tensor, hit: Tensor) -> dict[str, Calls]:
    """Return binned errors of confidences ``p`` (N,) with so many bins."""
    labels = hit.long()
    tm, pc = optional("torchmetrics.functional.classification"), optional("probcal.metrics")
    p64, y64 = p.numpy(), labels.numpy()
    return {
        "ECE, equal width": {
            "calibrant": lambda: ECE(EqualWidth(bins))(BinaryPairs.from_probs(p, labels)),
            "torchmetrics": lambda: tm.binary_calibration_error(p, labels, bins),
            "probcal": lambda: pc.ece(y64, p64, n_bins=bins, strategy="width"),
        },
        "ECE, equal mass": {
            "calibrant": lambda: ECE(EqualMass(bins))(BinaryPairs.from_probs(p, labels)),
            "probcal": lambda: pc.ece(y64, p64, n_bins=bins, strategy="mass"),
        },
    }


AXES = (
    Axis("rows", ROWS, lambda rows: overconfident(rows, OF_ROWS), of_logits),
    Axis("classes", CLASSES, lambda classes: overconfident(OF_CLASSES, classes), of_logits),
    Axis("bins", BINS, lambda bins: pairs(OF_BINS), of_pairs),
)


def timed(call: Callable[[], Any]) -> list[float]:
    """Return CPU seconds of the calls that count."""
    found = []
    for _ in range(4):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
        if found[0] > 0.5:
            return found
    return found[1:]


def expected(store: Store, key: dict[str, Any], values: tuple[int, ...]) -> float:
    """Return the seconds that a point should take, from the one before it: proportional, at most."""
    place = values.index(key["value"])
    if place == 0:
        return 0.0
    before = store.find({**key, "value": values[place - 1]})
    if before is None or before.get("skipped"):
        return float("inf") if before else 0.0
    growth = 1 if key["axis"] == "bins" else values[place] / values[place - 1]
    return statistics.median(before["seconds"]) * growth


def main() -> None:
    """Measure the points that the records do not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder of records; none is written without it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = Store(options.json, "growth")
    for axis in AXES:
        for value in axis.values:
            if store.find({"axis": axis.name, "value": value, "complete": True}):
                continue
            for operation, calls in axis.operations(value, *axis.data(value)).items():
                for library, call in present(calls).items():
                    _point(store, axis, value, operation, library, call)
            store.add({"axis": axis.name, "value": value, "complete": True})


def _point(store: Store, axis: Axis, value: int, operation: str, library: str, call: Callable[[], Any]) -> None:
    key = {"axis": axis.name, "operation": operation, "library": library, "value": value}
    if store.find(key):
        return
    wait = expected(store, key, axis.values)
    if library != "calibrant" and wait > BOUND:
        why = f"expected over {BOUND:g} s" if wait < float("inf") else "left out before"
        record: dict[str, Any] = {**key, "skipped": why}
    else:
        record = {**key, **_measured(call, ours=library == "calibrant")}
    store.add(record)
    shown = record.get("skipped") or f"{1000 * statistics.median(record['seconds']):.3g} ms"
    print(f"{axis.name} {value:>10,}  {operation:34s} {library:18s} {shown}", flush=True)


def _measured(call: Callable[[], Any], *, ours: bool) -> dict[str, Any]:
    """Return seconds and memory of a call, or what another library says where it cannot do the task."""
    try:
        found = [float(f"{one:.3g}") for one in timed(call)]
    except Exception as error:  # any kind; a failure of ours is a fault and stops the run
        if ours:
            raise
        return {"skipped": f"it raises {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"}
    return {"seconds": found, "peak_bytes": peak(call) if statistics.median(found) < 1 else None}


if __name__ == "__main__":
    main()
