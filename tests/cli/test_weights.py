"""Weights and features from files, through every command that measures, fits or applies."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run

from calibrant import Predictions, load, read, save_predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.metrics import ECE, NLL


def sample(rows: int = 900, *, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    young = rng.random(rows) < 0.3
    z = rng.normal(size=(rows, 3)) * 2
    p = np.exp(z * np.where(young, 0.4, 1.0)[:, None])
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=2)
    return Predictions.from_logits(z, y, weights=rng.lognormal(size=rows), features={"young": young})


@pytest.fixture
def splits(tmp_path: Path) -> tuple[Path, dict[str, Predictions]]:
    made = {"val": sample(), "test": sample(seed=1)}
    save_predictions(tmp_path / "data.npz", made)
    return tmp_path / "data.npz", made


def test_evaluate_honours_them(splits: tuple[Path, dict[str, Predictions]], run: Run) -> None:
    path, made = splits
    rows = json.loads(run("evaluate", path, "--split", "test", "--json", code=0).stdout)["rows"]
    for metric in (NLL(), ECE()):
        row = next(row for row in rows if row["metric"] == repr(metric))
        assert row["value"] == pytest.approx(metric(made["test"]), rel=1e-9)
        assert row["effective"] == pytest.approx(made["test"].effective_count)


def test_fit_honours_them(splits: tuple[Path, dict[str, Predictions]], run: Run, tmp_path: Path) -> None:
    path, made = splits
    run("fit", path, "--method", "TemperatureScaling", "-o", tmp_path / "c.safetensors", code=0)
    found = load(tmp_path / "c.safetensors")
    assert isinstance(found, TemperatureScaling)
    assert found.temperature == pytest.approx(TemperatureScaling().fit(made["val"]).temperature, rel=1e-9)
    assert found.temperature != pytest.approx(
        TemperatureScaling().fit(made["val"].logits, made["val"].labels).temperature, rel=1e-4
    )


def test_groups_go_from_fit_to_apply(splits: tuple[Path, dict[str, Predictions]], run: Run, tmp_path: Path) -> None:
    path, made = splits
    run("fit", path, "--method", "GroupScaling", "-o", tmp_path / "g.safetensors", code=0)
    run("apply", tmp_path / "g.safetensors", path, "-o", tmp_path / "out.npz", code=0)
    after, grouped = read(tmp_path / "out.npz", split="test"), load(tmp_path / "g.safetensors")
    assert isinstance(after, Predictions)
    assert isinstance(grouped, GroupScaling)
    assert np.allclose(after.logits.numpy(), made["test"].calibrated_by(grouped).logits.numpy())
    assert torch.equal(after.weights, made["test"].weights)
    assert after.features is not None
    assert "NLL()" in run("compare", path, tmp_path / "out.npz", "--split", "test", "--json", code=0).stdout
