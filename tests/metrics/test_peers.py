"""Agreement with other libraries where they are right, and a test for each difference that docs/compare.md marks with ✓.

A failure here means that a peer changed: then docs/compare.md has to change.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant import Pairs, Predictions, read
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import ACE, ECE, MCE, NLL, Brier, DebiasedECE, KSError, SmoothECE, ood_auroc


def peer(name: str) -> Any:
    """Return the package ``name``, or skip the test."""
    try:
        return __import__(name, fromlist=["_"])
    except ImportError:
        pytest.skip(f"optional package '{name.split('.')[0]}' is not installed")


@pytest.fixture(scope="module")
def rows() -> Predictions:
    logits, labels = drawn(3000, 5, sharp=1 / 0.6)
    return Predictions.from_logits(logits, labels)


def arrays(data: Predictions) -> tuple[Any, Any]:
    return data.log_probs.exp().numpy(), data.labels.numpy()


def hits(data: Predictions) -> tuple[Any, Any]:
    return data.confidence.numpy(), data.correct.double().numpy()


def test_netcal_agrees_on_binned_errors(rows: Predictions) -> None:
    netcal = peer("netcal.metrics")
    p, labels = arrays(rows)
    assert ECE()(rows) == pytest.approx(netcal.ECE(15).measure(p, labels), abs=1e-12)
    assert MCE()(rows) == pytest.approx(netcal.MCE(15).measure(p, labels), abs=1e-12)
    assert ACE()(rows) == pytest.approx(netcal.ACE(15).measure(p, labels), abs=1e-12)
    equal_mass = netcal.ECE(15, equal_intervals=False).measure(*hits(rows))
    assert ECE(EqualMass(15))(rows) == pytest.approx(equal_mass, abs=1e-12)


def test_torchmetrics_agrees_to_its_float32(rows: Predictions) -> None:
    tm = peer("torchmetrics.functional.classification")
    p, labels = (torch.from_numpy(array) for array in arrays(rows))
    for norm, metric in (("l1", ECE()), ("l2", ECE(norm=2)), ("max", MCE())):
        found = float(tm.multiclass_calibration_error(p, labels, 5, 15, norm))
        assert metric(rows) == pytest.approx(found, abs=1e-6)  # it sums in float32


def test_sklearn_agrees_on_scores_and_areas(rows: Predictions) -> None:
    sklearn = peer("sklearn.metrics")
    p, labels = arrays(rows)
    assert NLL()(rows) == pytest.approx(sklearn.log_loss(labels, p), abs=1e-12)
    hot = np.eye(5)[labels]
    assert Brier()(rows) == pytest.approx(((p - hot) ** 2).sum(1).mean(), abs=1e-12)
    binary = Pairs.from_probs(*hits(rows)[:1], rows.correct)
    assert float((binary.p - binary.y).square().mean()) == pytest.approx(sklearn.brier_score_loss(*hits(rows)[::-1]))
    inside, outside = rows[:1000], Predictions.from_logits(rows.logits[1000:] / 4)
    truth = np.r_[np.ones(1000), np.zeros(2000)]
    scores = torch.cat([inside.confidence, outside.confidence]).numpy()
    area = sklearn.roc_auc_score(truth, scores)
    assert ood_auroc(inside, outside, score="confidence") == pytest.approx(area, abs=1e-12)


def test_uncertainty_calibration_agrees_on_the_debiased_square(rows: Predictions) -> None:
    utils = peer("calibration.utils")
    confidence, correct = hits(rows)
    binned = utils.bin(list(zip(confidence, correct, strict=True)), [i / 15 for i in range(1, 16)])
    assert DebiasedECE()(rows) ** 2 == pytest.approx(utils.unbiased_square_ce(binned), abs=1e-9)


def test_relplot_agrees_to_its_grid(rows: Predictions) -> None:
    relplot = peer("relplot.metrics")
    found = relplot.smECE(*hits(rows))
    assert SmoothECE()(rows) == pytest.approx(found, abs=1e-3)  # its documented eps


def test_probmetrics_agrees_on_cumulated_errors(rows: Predictions) -> None:
    pm = peer("probmetrics.metrics")
    dist = peer("probmetrics.distributions")
    confidence, correct = hits(rows)
    two = dist.CategoricalProbs(torch.from_numpy(np.stack([1 - confidence, confidence], axis=1)))
    labels = dist.CategoricalDirac(torch.from_numpy(correct).long(), 2)
    pairs = Pairs.from_probs(confidence, correct.astype(int))
    found = float(pm.KolmogorovSmirnovCalibrationMetric().compute(labels, two))
    assert KSError()(pairs) == pytest.approx(found, abs=1e-6)


# Where a peer is wrong: what it does, beside what is right.


def test_torchmetrics_puts_confidence_1_into_a_bin_of_its_own() -> None:
    tm = peer("torchmetrics.functional.classification")
    confidence, correct = torch.tensor([0.95, 1.0]), torch.tensor([1, 0])
    assert float(tm.binary_calibration_error(confidence, correct, n_bins=10)) == pytest.approx(0.525)
    assert ECE(EqualWidth(10))(Pairs.from_probs(confidence, correct)) == pytest.approx(0.475)


def test_peers_put_an_edge_into_the_bin_above() -> None:
    metrics, functional = peer("netcal.metrics"), peer("torchmetrics.functional.classification")
    p = np.array([0.75] * 10 + [0.8] * 10)  # 0.75 is an edge of 4 bins, to the bit
    y = np.array([1] * 10 + [0] * 4 + [1] * 6)
    assert ECE(EqualWidth(4))(Pairs.from_probs(p, y)) == pytest.approx(0.225)  # 0.75 and 0.8 in two bins
    theirs = functional.binary_calibration_error(torch.tensor(p), torch.tensor(y), n_bins=4).item()
    assert theirs == pytest.approx(0.025)  # in one
    assert metrics.ECE(4).measure(p, y) == pytest.approx(0.025)


def test_torchmetrics_takes_small_logits_for_probabilities() -> None:
    tm = peer("torchmetrics.functional.classification")
    logits, labels = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 0])
    guessed = float(tm.multiclass_calibration_error(logits, labels, 2, 15))
    right = ECE()(Predictions.from_logits(logits, labels, unchecked_kind=True))
    assert guessed != pytest.approx(right, abs=0.05)
    with pytest.raises(InputError, match="from_probs"):
        Predictions.from_logits(logits, labels)
    classification = peer("torchmetrics.classification")
    logits, labels = torch.tensor([[0.2, 0.8], [3.0, 0.0]]), torch.tensor([0, 0])
    together = classification.MulticlassCalibrationError(2)(logits, labels).item()
    streamed = classification.MulticlassCalibrationError(2)
    for row in (0, 1):
        streamed.update(logits[row : row + 1], labels[row : row + 1])
    assert abs(streamed.compute().item() - together) > 0.05
    assert ECE()(Predictions.from_logits(logits, labels)) == pytest.approx(together, rel=1e-6)


def test_netcal_does_not_move_on_float32_probabilities(data: Path) -> None:
    scaling = peer("netcal.scaling")
    val = read(data / "logits" / "cifar10-resnet110.npz", split="val")
    assert isinstance(val, Predictions)
    labels = val.require_labels()
    temperatures = []
    for logits in (val.logits, val.logits.double()):
        theirs = scaling.TemperatureScaling()
        theirs.fit(torch.softmax(logits, dim=1).numpy(), labels.numpy())
        temperatures.append(1 / float(theirs.temperature[0]))
    assert temperatures[0] == 1
    assert temperatures[1] == pytest.approx(TemperatureScaling().fit(val.logits, labels).temperature, abs=1e-3)
    assert temperatures[1] == pytest.approx(2.395, abs=1e-3)
