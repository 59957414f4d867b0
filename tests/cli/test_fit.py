"""``calibrant fit --features``: what is fitted, what travels with the file, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run

from calibrant import Predictions, load, save_predictions
from calibrant.calibrators import GroupScaling


def sample(rows: int = 1500, *, effect: float = 1.0, seed: int = 0) -> Predictions:
    """Return logits whose rows of site a have a higher rate than they say."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(size=rows) * 1.5, rng.choice(["a", "b", "c"], rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z - effect * (site == "a") + effect * (site == "b")))).astype(int)
    return Predictions.from_binary_logits(z, y, features={"site": site, "noise": rng.integers(0, 2, rows)})


@pytest.fixture
def folder(home: Path) -> Path:
    """An empty folder in the working directory."""
    (home / "folder").mkdir()
    return home / "folder"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-m GroupScaling --features absent", "expected the feature 'absent'"),
        ("--features site,,noise", "got 'site,,noise'; write --features age,region"),
        ("--features site,site", "expected each column once for --features, got 'site' twice"),
        ("--features site --method TemperatureScaling", "--method FeatureScaling or GroupScaling with --features"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(options: str, said: str, run: Run) -> None:
    save_predictions("p.npz", {"val": sample(200)})
    run(f"fit p.npz {options} -o c.safetensors", code=2, says=said)
    assert not Path("c.safetensors").exists()


@pytest.mark.parametrize("options", ["-m GroupScaling", "-m FeatureScaling"])
def test_features_that_are_not_there_are_refused(options: str, folder: Path, run: Run) -> None:
    data = sample(200)
    bare = Predictions.from_logits(data.logits, data.labels)
    save_predictions("p.npz", {"val": bare})
    (folder / "val").mkdir()
    save_predictions(folder / "val" / "a.parquet", {"all": bare})
    for file, text in (
        ("p.npz", "predictions with features for this calibrator"),
        ("folder", "features to calibrate by"),
    ):
        done = run(f"fit {file} {options} -o c.safetensors", code=2, says=f"expected {text}, got none")
        assert done.stderr.endswith("name the columns feature:NAME\n")
        assert not Path("c.safetensors").exists()


@pytest.mark.parametrize("line", ["evaluate folder", "report folder -o r.html"])
def test_groups_of_a_streamed_folder_are_refused_and_the_help_says_so(line: str, folder: Path, run: Run) -> None:
    save_predictions(folder / "a.parquet", {"all": sample(200)})
    assert run(line, "--by", "site", code=2, says="got --by for").stderr.endswith("which is streamed; leave it out\n")
    said = " ".join(run(line.split()[0], "--help").stdout.replace("│", " ").split())
    assert "Not for a streamed folder" in said


def test_a_stream_is_calibrated_by_its_features(folder: Path, run: Run) -> None:
    data = sample(1200)
    for part in range(2):
        save_predictions(folder / f"{part}.parquet", {"all": data[600 * part : 600 * part + 600]})
    run("fit folder -m GroupScaling --features all -o c.safetensors", code=0)
    streamed, whole = (
        data.calibrated_by(one, allow_fit_rows=True).logits for one in (load("c.safetensors"), GroupScaling().fit(data))
    )
    torch.testing.assert_close(streamed, whole)


def test_features_of_other_names_are_refused_where_the_calibrator_is_used(run: Run) -> None:
    data = sample(600)
    GroupScaling(["site"], folds=2).fit(data).save("c.safetensors")
    save_predictions("p.npz", {"all": replace(data, features={"place": data.features["site"]})})  # type: ignore[index]
    for line in ("apply c.safetensors p.npz -o out.npz", "evaluate p.npz -c c.safetensors"):
        run(line, code=2, says="expected the feature 'site', got 'place'; call that column feature:site, as when")


@pytest.mark.parametrize(
    ("option", "setting", "value"),
    [
        ("--top-label", "top_label", True),
        ("--keep argmax", "keep", "argmax"),
    ],
)
def test_it_is_fitted_for_auto_and_refused_elsewhere(option: str, setting: str, value: object, run: Run) -> None:
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(200, 3))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez("p.npz", val_logits=z, val_labels=y)
    line, name = f"fit p.npz {option} -o c.safetensors", option.split()[0]
    said = f"expected --method auto with {name}, got TemperatureScaling"
    run(line, "--method", "TemperatureScaling", code=2, says=said)
    run(line, "--multilabel", code=2, says=name)
    assert not Path("c.safetensors").exists()
    run(line, code=0)
    assert load("c.safetensors").config()[setting] == value
