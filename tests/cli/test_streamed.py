"""Folders of Parquet files through the command line: streamed, the same figures, resumed."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions, metrics
from calibrant.cli import main
from calibrant.cli._streamed import CHECKPOINTS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    home = tmp_path / "data"
    home.mkdir()
    for part in range(2):
        labels = rng.integers(0, 4, 500)
        logits = (4 * rng.normal(size=(500, 4)) + 4 * np.eye(4)[labels]).astype(np.float32)
        calibrant.save_predictions(home / f"{part}.parquet", {"all": Predictions.from_logits(logits, labels)})
    return home


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_fit_apply_and_evaluate_a_folder(folder: Path, tmp_path: Path) -> None:
    code, out, err = run("fit", folder, "-m", "TemperatureScaling", "-o", "c.safetensors", "--json")
    assert code == 0, err
    temperature = calibrant.load("c.safetensors").temperature
    assert json.loads(out)["fitted"]["learned"]["temperature"] == pytest.approx(temperature)
    assert temperature > 1.2
    assert run("apply", "c.safetensors", folder, "-o", "after")[0] == 0
    code, out, err = run("evaluate", folder, "-c", "c.safetensors", "--json")
    assert code == 0, err
    values = {(row["calibrator"] is None, row["metric"]): row["value"] for row in json.loads(out)["rows"]}
    before = Predictions.cat([calibrant.load_predictions(folder / f"{part}.parquet") for part in range(2)])
    assert values[True, "NLL()"] == pytest.approx(metrics.NLL()(before), rel=1e-12)
    assert values[False, "NLL()"] < values[True, "NLL()"]
    code, out, err = run("evaluate", tmp_path / "after", "--json")
    assert next(r["value"] for r in json.loads(out)["rows"] if r["metric"] == "NLL()") == pytest.approx(
        values[False, "NLL()"],
        rel=1e-6,  # the folder holds float32
    )
    assert not list((tmp_path / CHECKPOINTS).iterdir())
    assert "1,000" in run("evaluate", folder)[1]


def test_report_on_a_folder_fits_on_val_and_judges_on_test(folder: Path, tmp_path: Path) -> None:
    code, _, err = run("report", folder, "-o", "flat.json")
    assert code == 0, err
    [flat] = json.loads(Path("flat.json").read_text())["models"]
    assert (flat["name"], flat["calibrator"]) == ("data", None)
    splits = tmp_path / "splits"
    for name, part in (("val", 0), ("test", 1)):
        (splits / name).mkdir(parents=True)
        (splits / name / "a.parquet").write_bytes((folder / f"{part}.parquet").read_bytes())
    code, _, err = run("report", splits, folder, "-o", "both.json")
    assert code == 0, err
    models = json.loads(Path("both.json").read_text())["models"]
    val = calibrant.load_predictions(folder / "0.parquet")
    expected = calibrant.calibrators.TemperatureScaling().fit(val.logits, val.labels)
    assert [model["name"] for model in models] == ["splits", "data"]
    assert models[0]["calibrator"] == repr(expected)
    assert models[0]["diagram_after"]["n"] == 500
    assert run("report", splits, "-m", "none", "-o", "none.json")[0] == 0
    assert json.loads(Path("none.json").read_text())["models"][0]["calibrator"] is None
    assert run("report", splits, "--split", "train", "-o", "r.json")[0] == 2
    assert not Path("r.json").exists()


def test_other_methods_of_a_few_numbers_are_fitted_on_a_folder(folder: Path) -> None:
    for method in ("TemperatureMixture", "EnsembleTemperatureScaling"):
        code, _, err = run("fit", folder, "-m", method, "-o", "c.safetensors")
        assert code == 0, err
        assert type(calibrant.load("c.safetensors")).__name__ == method
    assert not list(Path(CHECKPOINTS).iterdir())


@pytest.mark.slow
def test_a_folder_cannot_be_calibrated_to_stdout(folder: Path, tmp_path: Path) -> None:
    assert run("fit", folder, "-m", "TemperatureScaling", "-o", "c.safetensors")[0] == 0
    code, out, err = run("apply", "c.safetensors", folder, "-o", "-")
    assert (code, out) == (2, "")
    assert "expected a folder to write calibrated files of" in err
    assert not (tmp_path / "-").exists()


def test_apply_by_processes_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    assert run("fit", folder, "-m", "TemperatureScaling", "-o", "c.safetensors", "--workers", "2")[0] == 0
    assert run("apply", "c.safetensors", folder, "-o", "one")[0] == 0
    code, _, err = run("apply", "c.safetensors", folder, "-o", "two", "--workers", "2")
    assert code == 0, err
    assert "2 files written" in err
    for name in ("0.parquet", "1.parquet"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    assert "0 files written" in run("apply", "c.safetensors", folder, "-o", "two")[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["fit", "data", "-m", "PlattScaling", "-o", "c.safetensors"],
            "or PlattScaling for two classes), got PlattScaling",
        ),
        (["fit", "data", "-m", "auto", "-o", "c.safetensors"], "got AutoCalibrator for 4 classes; fit it on a sample"),
        (["fit", "data", "-m", "FocalCalibration", "-o", "c.safetensors"], "construct and save it in Python"),
        (["evaluate", "data", "--executor", "dask"], "--executor to be one of 'local', 'ray', got 'dask'"),
        (["evaluate", "data", "--address", "1.2.3.4"], "--executor ray beside --address"),
        (["fit", "data/0.parquet", "-m", "", "--split", "all", "-o", "c.safetensors"], "--method to be one of"),
        (["report", "data", "-m", "TemperatureScaling", "-o", "r.html"], "pass it as --calibrator"),
        (["report", "data/0.parquet", "--executor", "ray", "-o", "r.html"], "beside --executor"),
        (["evaluate", "."], "a folder of them, got none"),
        (["evaluate", "data/0.parquet", "--executor", "ray"], "a folder of Parquet files beside --executor"),
        (["fit", "data/0.parquet", "--executor", "spark", "-o", "c.safetensors"], "beside --executor"),
        (["fit", "data/0.parquet", "--address", "1.2.3.4", "-o", "c.safetensors"], "beside --executor"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], text: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert text in " ".join(err.split())
    assert [path.name for path in Path().iterdir()] == ["data"]
