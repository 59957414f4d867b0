"""``calibrant fit --features``: what is fitted, what travels with the file, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import Predictions, load, load_predictions, save_predictions
from calibrant.calibrators import AutoCalibrator
from calibrant.metrics import NLL

Run = Callable[..., Any]


def sample(rows: int, *, seed: int = 0) -> Predictions:
    """Return logits whose rows of site a have a higher rate than they say."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(size=rows) * 1.5, rng.choice(["a", "b", "c"], rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z - 1.0 * (site == "a") + 1.0 * (site == "b")))).astype(int)
    return Predictions.from_binary_logits(z, y, features={"site": site, "noise": rng.integers(0, 2, rows)})


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "p.npz"
    save_predictions(path, {"val": sample(600), "test": sample(600, seed=1)})
    done = run("fit", path, "--features", "site", "-o", tmp_path / "c.safetensors")
    assert done.exit_code == 0, done.output
    fitted = load(tmp_path / "c.safetensors")
    assert isinstance(fitted, AutoCalibrator)
    assert fitted.needs_features
    assert run("apply", tmp_path / "c.safetensors", path, "-o", tmp_path / "out.npz").exit_code == 0
    test = load_predictions(path, split="test")
    assert isinstance(test, Predictions)
    after = load_predictions(tmp_path / "out.npz", split="test")
    assert NLL()(after) < NLL()(test) - 0.03  # type: ignore[arg-type]


def test_the_command_line_refuses_in_one_sentence(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "p.npz"
    save_predictions(path, {"val": sample(200)})
    for options, text in (
        (["--features", "absent"], "expected the feature 'absent'"),
        (["--features", "site,,noise"], "names between commas"),
        (["--features", "site", "--method", "TemperatureScaling"], "auto, GroupScaling or BoostedScaling"),
    ):
        answer = run("fit", path, *options, "-o", tmp_path / "c.safetensors")
        assert answer.exit_code == 2
        assert text in " ".join(answer.stderr.split())
        assert not (tmp_path / "c.safetensors").exists()


def test_groups_without_features_are_refused(tmp_path: Path, run: Run) -> None:
    path, data = tmp_path / "p.npz", sample(200)
    save_predictions(path, {"val": Predictions.from_logits(data.logits, data.labels)})
    for options in (["-m", "GroupScaling"], ["-m", "BoostedScaling", "--features", "all"]):
        answer = run("fit", path, *options, "-o", tmp_path / "c.safetensors")
        assert answer.exit_code == 2, answer.output
        assert "expected predictions with features for this calibrator, got none" in " ".join(answer.stderr.split())
    (tmp_path / "folder" / "val").mkdir(parents=True)
    save_predictions(
        tmp_path / "folder" / "val" / "a.parquet", {"all": Predictions.from_logits(data.logits, data.labels)}
    )
    answer = run("fit", tmp_path / "folder", "-m", "GroupScaling", "-o", tmp_path / "c.safetensors")
    assert answer.exit_code == 2, answer.output
    assert "expected features to group rows by, got none in " in " ".join(answer.stderr.split())
    assert not (tmp_path / "c.safetensors").exists()
