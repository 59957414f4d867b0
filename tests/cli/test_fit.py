"""``calibrant fit --features``: what is fitted, what travels with the file, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.calibrators.auto.test_auto_features import sample
from tests.cli.conftest import Run

from calibrant import Predictions, load, load_predictions, save_predictions
from calibrant.calibrators import AutoCalibrator, BoostedScaling
from calibrant.metrics import NLL


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "p.npz"
    save_predictions(path, {"val": sample(600), "test": sample(600, seed=1)})
    run("fit", path, "--features", "site", "-o", tmp_path / "c.safetensors", code=0)
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
        (["--features", "site,site"], "got ['site', 'site']; name each once, or write all for all features"),
        (
            ["--features", "site", "--method", "TemperatureScaling"],
            "auto, AdaptiveTemperatureScaling, BoostedScaling, FeatureScaling, GroupScaling",
        ),
    ):
        answer = run("fit", path, *options, "-o", tmp_path / "c.safetensors", code=2)
        assert text in " ".join(answer.stderr.split())
        assert not (tmp_path / "c.safetensors").exists()


def test_features_that_are_not_there_are_refused(tmp_path: Path, run: Run) -> None:
    path, folder, data = tmp_path / "p.npz", tmp_path / "folder", sample(200)
    (folder / "val").mkdir(parents=True)
    bare = Predictions.from_logits(data.logits, data.labels)
    save_predictions(path, {"val": bare})
    save_predictions(folder / "val" / "a.parquet", {"all": bare})
    for options in (["-m", "GroupScaling"], ["-m", "BoostedScaling"], ["--features", "all"], ["-m", "FeatureScaling"]):
        for file, text in (
            (path, "predictions with features for this calibrator"),
            (folder, "features to calibrate by"),
        ):
            answer = run("fit", file, *options, "-o", tmp_path / "c.safetensors")
            said = " ".join(answer.stderr.split())
            assert answer.exit_code == 2, (options, answer.output)
            assert f"expected {text}, got none" in said
            assert said.endswith("name the columns feature:NAME")
            assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_groups_of_a_streamed_folder_are_refused_and_the_help_says_so(tmp_path: Path, run: Run, command: str) -> None:
    (tmp_path / "folder").mkdir()
    save_predictions(tmp_path / "folder" / "a.parquet", {"all": sample(200)})
    words = [command, tmp_path / "folder", "--by", "site"]
    one = run(*words, *(["-o", tmp_path / "r.html"] if command == "report" else []), code=2, says="got --by for")
    assert " ".join(one.stderr.split()).endswith("which is streamed; leave it out")
    said = " ".join(run(command, "--help").stdout.replace("│", " ").split())
    assert "Not for a streamed folder" in said


def test_a_stream_is_calibrated_by_its_features(tmp_path: Path, run: Run) -> None:
    data = sample(1200)
    (tmp_path / "folder").mkdir()
    for part in range(2):
        save_predictions(tmp_path / "folder" / f"{part}.parquet", {"all": data[600 * part : 600 * part + 600]})
    options = ("-m", "BoostedScaling", "--features", "all")
    run("fit", tmp_path / "folder", *options, "-o", tmp_path / "c.safetensors", code=0)
    fitted = BoostedScaling().fit(data)
    assert torch.equal(data.calibrated_by(load(tmp_path / "c.safetensors"), allow_fit_rows=True).logits,
                       data.calibrated_by(fitted, allow_fit_rows=True).logits)  # fmt: skip


def test_features_of_other_names_are_refused_where_the_calibrator_is_used(tmp_path: Path, run: Run) -> None:
    data, path = sample(600), tmp_path / "p.npz"
    BoostedScaling(["site"], folds=2).fit(data).save(tmp_path / "c.safetensors")
    save_predictions(path, {"all": replace(data, features={"place": data.features["site"]})})  # type: ignore[index]
    for command in (["apply", tmp_path / "c.safetensors", path, "-o", tmp_path / "out.npz"],
                    ["evaluate", path, "-c", tmp_path / "c.safetensors"]):  # fmt: skip
        answer = run(*command, code=2)
        said = " ".join(answer.stderr.split())
        assert "expected the feature 'site', got 'place'; call that column feature:site, as when" in said


@pytest.mark.parametrize(("option", "setting"), [
    (["--top-label"], "top_label"), (["--keep", "argmax"], "keep"), (["--absent-classes", "learn"], "absent_classes"),
])  # fmt: skip
def test_it_is_fitted_for_auto_and_refused_elsewhere(option: list[str], setting: str, tmp_path: Path, run: Run) -> None:
    path, out = tmp_path / "p.npz", tmp_path / "c.safetensors"
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(200, 3))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez(path, val_logits=z, val_labels=y)
    for options, text in (
        (["--method", "TemperatureScaling"], f"expected --method auto with {option[0]}, got TemperatureScaling"),
        (["--multilabel"], option[0]),
    ):
        answer = run("fit", path, *option, *options, "-o", out, code=2)
        assert text in " ".join(answer.stderr.split())
    assert not out.exists()
    run("fit", path, *option, "-o", out, code=0)
    assert load(out).config()[setting] == (option[1] if len(option) > 1 else True)
