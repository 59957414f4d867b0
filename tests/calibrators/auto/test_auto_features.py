"""AutoCalibrator by features: what it takes, that it abstains, and what is saved."""

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import Predictions, load
from calibrant.calibrators import AutoCalibrator, BoostedScaling, GroupScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import NLL

FEW = [TemperatureScaling()]  # beside the two by features, so that the tests are fast


def sample(rows: int = 1500, *, effect: float = 1.0, seed: int = 0) -> Predictions:
    """Return logits whose rows of site a have a higher rate than they say."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(size=rows) * 1.5, rng.choice(["a", "b", "c"], rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z - effect * (site == "a") + effect * (site == "b")))).astype(int)
    return Predictions.from_binary_logits(z, y, features={"site": site, "noise": rng.integers(0, 2, rows)})


@pytest.fixture(scope="module")
def fitted() -> AutoCalibrator:
    return AutoCalibrator(features=["site"], folds=3, candidates=FEW).fit(sample())


def test_groups_that_gain_are_used_and_travel_with_the_file(fitted: AutoCalibrator, tmp_path: Path) -> None:
    fresh = sample(seed=1)
    assert fitted.needs_features
    assert NLL()(fresh.calibrated_by(fitted)) < NLL()(fresh) - 0.03
    fitted.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert isinstance(again, AutoCalibrator)
    assert [type(one) for one in again.candidates] == [TemperatureScaling, GroupScaling, BoostedScaling]
    assert again.features == ("site",)
    assert torch.equal(again(fresh.logits, fresh.features), fitted(fresh.logits, fresh.features))


def test_without_any_gain_no_features_are_needed() -> None:
    found = [
        AutoCalibrator(features="all", folds=2, candidates=FEW).fit(sample(500, effect=0.0, seed=s)) for s in (0, 1)
    ]
    for one in found:
        assert one.evidence is not None
        assert float(one.weights[2:].sum()) < 0.75  # what is left of them is their global fit, or next to nothing
        fresh = sample(2000, effect=0.0, seed=9)
        assert NLL()(fresh.calibrated_by(one)) < NLL()(fresh) + 0.005


def test_features_that_are_not_asked_for_are_left_alone() -> None:
    data = sample(400)
    with_them, bare = (AutoCalibrator(candidates=FEW).fit(*one) for one in ((data,), (data.logits, data.labels)))
    assert torch.equal(with_them.weights, bare.weights)
    assert not with_them.needs_features
    assert torch.equal(with_them(data.logits), bare(data.logits))


def test_rows_without_features_are_refused() -> None:
    data = sample(100)
    with pytest.raises(InputError, match="expected features beside the rows, got none"):
        AutoCalibrator(features="all").fit(data.logits, data.labels)
