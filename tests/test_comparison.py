"""What docs/compare.md says of other libraries, marked ✓ there, checked against the real packages.

A failure here means that a peer changed: then the page has to change.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant import BinaryPairs, Predictions
from calibrant.binning import EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE


def peer(name: str) -> Any:
    try:
        return __import__(name, fromlist=["_"])
    except ImportError:
        pytest.skip(f"optional package {name!r} is not installed")


def test_torchmetrics_takes_a_batch_of_small_logits_for_probabilities() -> None:
    classification = peer("torchmetrics.classification")
    logits, labels = torch.tensor([[0.2, 0.8], [3.0, 0.0]]), torch.tensor([0, 0])
    together = classification.MulticlassCalibrationError(2)(logits, labels).item()
    streamed = classification.MulticlassCalibrationError(2)
    for row in (0, 1):
        streamed.update(logits[row : row + 1], labels[row : row + 1])
    assert abs(streamed.compute().item() - together) > 0.05
    assert ECE()(Predictions.from_logits(logits, labels)) == pytest.approx(together, rel=1e-6)


def test_torchmetrics_gives_confidence_1_a_bin_of_its_own() -> None:
    functional = peer("torchmetrics.functional.classification")
    p, y = torch.tensor([0.95, 1.0]), torch.tensor([1, 0])
    assert functional.binary_calibration_error(p, y, n_bins=15).item() == pytest.approx(0.525, abs=1e-6)
    assert ECE()(BinaryPairs.from_probs(p, y)) == pytest.approx(0.475, abs=1e-6)


def test_an_edge_belongs_to_the_bin_above_elsewhere_and_to_the_bin_below_here() -> None:
    metrics, functional = peer("netcal.metrics"), peer("torchmetrics.functional.classification")
    p = np.array([0.75] * 10 + [0.8] * 10)  # 0.75 is an edge of 4 bins, to the bit
    y = np.array([1] * 10 + [0] * 4 + [1] * 6)
    assert ECE(EqualWidth(4))(BinaryPairs.from_probs(p, y)) == pytest.approx(0.225)  # 0.75 and 0.8 in two bins
    theirs = functional.binary_calibration_error(torch.tensor(p), torch.tensor(y), n_bins=4).item()
    assert theirs == pytest.approx(0.025)  # in one
    assert metrics.ECE(4).measure(p, y) == pytest.approx(0.025)


def test_netcal_does_not_move_on_float32_probabilities(data: Path) -> None:
    scaling = peer("netcal.scaling")
    val = calibrant.load_predictions(data / "logits" / "cifar10-resnet110.npz", "val")
    assert isinstance(val, Predictions)
    labels = val.need_labels()
    temperatures = []
    for logits in (val.logits, val.logits.double()):
        theirs = scaling.TemperatureScaling()
        theirs.fit(torch.softmax(logits, dim=1).numpy(), labels.numpy())
        temperatures.append(1 / float(theirs.temperature[0]))
    assert temperatures[0] == 1
    assert temperatures[1] == pytest.approx(TemperatureScaling().fit(val.logits, labels).temperature, abs=1e-3)
    assert temperatures[1] == pytest.approx(2.395, abs=1e-3)
