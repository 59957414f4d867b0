"""Weights and features from files, through every command that measures, fits or applies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant import Predictions, load, load_predictions, save_predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.cli import main
from calibrant.metrics import ECE, NLL


def sample(rows: int = 900, *, seed: int = 0, kind: str = "sampling") -> Predictions:
    rng = np.random.default_rng(seed)
    young = rng.random(rows) < 0.3
    z = rng.normal(size=(rows, 3)) * 2
    p = np.exp(z * np.where(young, 0.4, 1.0)[:, None])
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=2)
    weights: Any = rng.lognormal(size=rows) if kind == "sampling" else rng.integers(0, 4, rows)
    return Predictions.from_logits(z, y, weights=weights, weight_kind=kind, features={"young": young})  # type: ignore[arg-type]


def run(*words: object) -> str:
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture(params=["frequency", "sampling"])
def splits(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Predictions]]:
    made = {"val": sample(kind=request.param), "test": sample(seed=1, kind=request.param)}
    save_predictions(tmp_path / "data.npz", made)
    return tmp_path / "data.npz", made


def test_evaluate_honours_them(splits: tuple[Path, dict[str, Predictions]]) -> None:
    path, made = splits
    rows = json.loads(run("evaluate", path, "--split", "test", "--json"))["rows"]
    for metric in (NLL(), ECE()):
        row = next(row for row in rows if row["metric"] == repr(metric))
        assert row["value"] == pytest.approx(metric(made["test"]), rel=1e-9)
        assert ("effective" in row) == (made["test"].weight_kind == "sampling")


def test_fit_honours_them(splits: tuple[Path, dict[str, Predictions]], tmp_path: Path) -> None:
    path, made = splits
    run("fit", path, "--method", "TemperatureScaling", "-o", tmp_path / "c.safetensors")
    found = load(tmp_path / "c.safetensors")
    assert isinstance(found, TemperatureScaling)
    assert found.temperature == pytest.approx(TemperatureScaling().fit(made["val"]).temperature, rel=1e-9)
    assert found.temperature != pytest.approx(
        TemperatureScaling().fit(made["val"].logits, made["val"].labels).temperature, rel=1e-4
    )


def test_groups_go_from_fit_to_apply(splits: tuple[Path, dict[str, Predictions]], tmp_path: Path) -> None:
    path, made = splits
    run("fit", path, "--method", "GroupScaling", "-o", tmp_path / "g.safetensors")
    run("apply", tmp_path / "g.safetensors", path, "-o", tmp_path / "out.npz")
    after, grouped = load_predictions(tmp_path / "out.npz", "test"), load(tmp_path / "g.safetensors")
    assert isinstance(after, Predictions)
    assert isinstance(grouped, GroupScaling)
    assert np.allclose(after.logits.numpy(), made["test"].calibrated_by(grouped).logits.numpy())
    assert after.weight_kind == made["test"].weight_kind
    assert after.features is not None
    told = json.loads(run("compare", path, tmp_path / "out.npz", "--split", "test", "--json"))
    assert "NLL()" in json.dumps(told)
