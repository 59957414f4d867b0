"""Weights and features from files, through every command that measures, fits or applies."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run

import calibrant
from calibrant import Predictions, load, load_predictions, save_predictions
from calibrant._core.files import read_arrays
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.metrics import ECE, NLL, Accuracy


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
    after, grouped = load_predictions(tmp_path / "out.npz", "test"), load(tmp_path / "g.safetensors")
    assert isinstance(after, Predictions)
    assert isinstance(grouped, GroupScaling)
    assert np.allclose(after.logits.numpy(), made["test"].calibrated_by(grouped).logits.numpy())
    assert torch.equal(after.weights, made["test"].weights)  # type: ignore[arg-type]
    assert after.features is not None
    assert "NLL()" in run("compare", path, tmp_path / "out.npz", "--split", "test", "--json", code=0).stdout


IGNORED = 255


def positions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits (12, 5, 6, 3), class axis last, and labels (12, 5, 6), the first column to be ignored."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(12, 5, 6, 3)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(-1)
    labels[:, :, 0] = IGNORED
    return (3 * true).astype(np.float32), labels


@pytest.fixture(params=["segmentation", "tokens"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A file and the options that read it, which name its class axis."""
    path, arrays = tmp_path / "file.npz", {}
    axis = 1 if request.param == "segmentation" else 2
    for seed, split in enumerate(("val", "test")):
        logits, labels = positions(seed)
        if axis == 1:
            logits = np.moveaxis(logits, -1, 1)
        else:
            logits, labels = logits.reshape(12, 30, 3), labels.reshape(12, 30)
        arrays |= {f"{split}_logits": logits, f"{split}_labels": labels}
    np.savez(path, **arrays, pixel_size=np.array([0.5]))
    return [str(path), "--ignore-index", str(IGNORED), "--class-dim", str(axis)]


@pytest.fixture
def temperature(file: list[str], tmp_path: Path, run: Run) -> Path:
    """A calibrator that is fitted on the file."""
    run("fit", *file, "-o", tmp_path / "c.safetensors", "--method", "TemperatureScaling", code=0)
    return tmp_path / "c.safetensors"


def test_positions_are_rows_and_samples_are_clusters(file: list[str], run: Run) -> None:
    done = run("evaluate", *file, "--split", "test", "--json")
    rows = {row["metric"]: row for row in json.loads(done.stdout)["rows"]}
    logits, labels = positions(1)
    kept = labels != IGNORED
    flat = calibrant.Predictions.from_logits(logits[kept], labels[kept])
    assert rows[repr(ECE())]["value"] == pytest.approx(ECE()(flat), abs=1e-12)
    assert rows[repr(Accuracy())]["n"] == 12 * 25
    data = calibrant.load_predictions(file[0], "test", class_dim=int(file[-1]), ignore_index=IGNORED)
    assert data.groups.tolist() == np.repeat(np.arange(12), 25).tolist()


def test_apply_keeps_axes_ignored_rows_and_other_arrays(
    file: list[str], temperature: Path, tmp_path: Path, run: Run
) -> None:
    run("apply", temperature, *file, "-o", tmp_path / "out.npz", code=0)
    before, after = read_arrays(file[0]), read_arrays(tmp_path / "out.npz")
    assert sorted(before) == sorted(after)
    expected = before["test_logits"] / calibrant.load(temperature).temperature
    np.testing.assert_allclose(after["test_logits"], expected, rtol=1e-5)  # float32
    for name in ("test_labels", "val_labels", "pixel_size"):
        np.testing.assert_array_equal(after[name], before[name])
    said = "expected one split for .parquet, got val, test"
    run("apply", temperature, *file, "-o", tmp_path / "o.parquet", code=2, says=said)
    assert not (tmp_path / "o.parquet").exists()


def test_the_report_shows_samples_as_groups(file: list[str], tmp_path: Path, run: Run) -> None:
    run("report", *file, "-o", tmp_path / "r.json", "--method", "TemperatureScaling", code=0)
    model = json.loads((tmp_path / "r.json").read_text())["models"][0]
    assert len(model["groups"]) == 12
    assert model["diagram_before"]["n"] == 300


def test_a_forgotten_axis_is_named(file: list[str], run: Run) -> None:
    path, *ignored, _, axis = file
    run("evaluate", path, *ignored, "--class-dim", 3 - int(axis), code=2, says=f"--class-dim {axis}")
    run("evaluate", path, "--class-dim", axis, code=2, says="expected labels in [0, 3), got 255")
