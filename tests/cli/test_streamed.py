"""Folders of Parquet files through the command line: streamed, with the figures of memory."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run

import calibrant
from calibrant import Predictions, metrics, statistics


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "data", seed=0)


def written(home: Path, *, seed: int) -> Path:
    """Return the folder ``home`` with two Parquet files of over-confident logits."""
    rng = np.random.default_rng(seed)
    home.mkdir()
    for part in range(2):
        labels = rng.integers(0, 4, 500)
        logits = (4 * rng.normal(size=(500, 4)) + 4 * np.eye(4)[labels]).astype(np.float32)
        calibrant.save_predictions(home / f"{part}.parquet", {"all": Predictions.from_logits(logits, labels)})
    return home


def test_fit_apply_and_evaluate_a_folder(folder: Path, run: Run, tmp_path: Path) -> None:
    done = run("fit", folder, "-m", "TemperatureScaling", "-o", "c.safetensors", "--json", code=0)
    temperature = calibrant.load("c.safetensors").temperature
    assert json.loads(done.stdout)["fitted"]["learned"]["temperature"] == pytest.approx(temperature)
    assert temperature > 1.2
    run("evaluate", folder, "-c", "c.safetensors", code=2, says="expected data that were not fitted on")
    folder = written(tmp_path / "fresh", seed=1)
    run("apply", "c.safetensors", folder, "-o", "after", code=0)
    done = run("evaluate", folder, "-c", "c.safetensors", "--json", code=0)
    rows = {(row["calibrator"] is None, row["metric"]): row for row in json.loads(done.stdout)["rows"]}
    values = {key: row["value"] for key, row in rows.items()}
    before = Predictions.cat([calibrant.read(folder / f"{part}.parquet") for part in range(2)])
    for metric in (metrics.Accuracy(), metrics.NLL(), metrics.Brier(), metrics.ECE()):  # the intervals of memory
        ends = statistics.interval(metric, before)
        known = rows[True, repr(metric)]
        assert (known["low"], known["high"]) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert values[True, "NLL()"] == pytest.approx(metrics.NLL()(before), rel=1e-12)
    assert values[False, "NLL()"] < values[True, "NLL()"]
    done = run("evaluate", tmp_path / "after", "--columns", "calibrated_logits", "--kind", "logits", "--json")
    assert next(r["value"] for r in json.loads(done.stdout)["rows"] if r["metric"] == "NLL()") == pytest.approx(
        values[False, "NLL()"],
        rel=1e-6,  # the folder holds float32
    )
    assert "1,000" in run("evaluate", folder).stdout


@pytest.mark.parametrize(
    ("method", "fitted"),
    [
        ([], "AutoCalibrator"),
        (["-m", "EnsembleTemperatureScaling"], "EnsembleTemperatureScaling"),
    ],
)
def test_a_folder_is_fitted_by_a_choice_or_by_a_method_of_a_few_numbers(
    method: list[str], fitted: str, folder: Path, run: Run
) -> None:
    assert ("candidates in use" in run("fit", folder, *method, "-o", "c.safetensors", code=0).stdout) is (not method)
    assert type(calibrant.load("c.safetensors")).__name__ == fitted


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("fit data -m FocalCalibration -o c.safetensors", "construct and save it in Python"),
        ("evaluate . --split train", ". has no split 'train', only data; name one by split"),
        ("evaluate data --by site", "got --by for data, which is streamed; leave it out"),
        ("fit data --features all -o c.safetensors", "got --features for data, which is streamed"),
        ("evaluate data --groups x", "got --groups for data, which is streamed; leave it out"),
        ("fit data -m GroupScaling -o c.safetensors", "expected a calibrator of logits alone for streamed rows"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(folder: Path, run: Run, line: str, text: str) -> None:
    run(line, code=2, says=text)
    assert [path.name for path in Path().iterdir()] == ["data"]


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream any Parquet file."""
    monkeypatch.setattr("calibrant.cli._streams.STREAMED_BYTES", 1000)


def figures(out: str) -> dict[tuple[str, str, bool], float]:
    return {(r["split"], r["metric"], r["calibrator"] is None): r["value"] for r in json.loads(out)["rows"]}


def test_one_large_file_is_streamed_with_the_figures_of_memory(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "0.parquet"
    found = {}
    for size, name in ((1 << 40, "memory"), (1000, "stream")):
        monkeypatch.setattr("calibrant.cli._streams.STREAMED_BYTES", size)
        fitted = tmp_path / f"{name}.safetensors"
        run("fit", file, "-m", "TemperatureScaling", "-o", fitted, code=0)
        measured = run("evaluate", file, "--split", "test", "--json", code=0).stdout
        run("apply", fitted, file, "-o", f"{name}.parquet", code=0)
        found[name] = (
            figures(measured),
            calibrant.load(fitted).temperature,
            calibrant.read(f"{name}.parquet", columns="calibrated_logits"),
        )
    memory, stream = found["memory"], found["stream"]
    assert set(stream[0]) < set(memory[0])
    for key, value in stream[0].items():
        assert value == pytest.approx(memory[0][key], rel=1e-12), key
    assert stream[1] == pytest.approx(memory[1], rel=1e-9)
    assert np.allclose(stream[2].logits, memory[2].logits, rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["data"]


@pytest.mark.usefixtures("streamed")
def test_one_large_file_is_calibrated_to_one_file_or_refused(folder: Path, run: Run) -> None:
    file = folder / "0.parquet"
    run("fit", file, "-m", "TemperatureScaling", "-o", "c.safetensors", code=0)
    before = file.read_bytes()
    for output, text in (("-", "name a folder by --output"), (file, "other than the input")):
        run("apply", "c.safetensors", file, "-o", output, code=2, says=text)
    assert file.read_bytes() == before
    for _ in range(2):  # an output of before is replaced
        run("apply", "c.safetensors", file, "-o", "o.parquet", code=0)


def test_folders_in_a_folder_are_splits(folder: Path, run: Run) -> None:
    for name, part in (("val", 0), ("test", 1)):
        Path("big", name).mkdir(parents=True)
        (folder / f"{part}.parquet").rename(Path("big", name, "a.parquet"))
    run("fit", "big", "-m", "TemperatureScaling", "-o", "c.safetensors", code=0)
    assert {split for split, _, _ in figures(run("evaluate", "big", "--json", code=0).stdout)} == {"test", "val"}
    done = run("evaluate", "big", "--split", "test", "-c", "c.safetensors", "--json", code=0)
    assert {(split, raw) for split, _, raw in figures(done.stdout)} == {("test", True), ("test", False)}
    Path("big", "val", "a.parquet").rename(Path("big", "a.parquet"))
    run("evaluate", "big", code=2, says="big has Parquet files, and folders of them; name the folder that is meant")
