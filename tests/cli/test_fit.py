"""``calibrant fit``: what is fitted, what is said of it, and what travels with the file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import MultiLabel, Predictions, load, read, save_predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling


def test_it_saves_what_the_library_fits(good: Path, run: Run) -> None:
    line = "fit good.npz -m TemperatureScaling -o c.safetensors"
    text = " ".join(run(line).stdout.split())
    expected = TemperatureScaling().fit(read(good, split="val"))
    assert load("c.safetensors").temperature == expected.temperature
    assert all(part in text for part in ("These are the 400 rows", "Accuracy", "NLL", "ECE", "fitted on val"))
    shown = run(f"{line} --json")
    assert {key: shown["fitted"][key] for key in ("type", "split", "path")} == {
        "type": "TemperatureScaling", "split": "val", "path": "c.safetensors"
    }  # fmt: skip
    assert shown["fitted"]["learned"]["temperature"] == expected.temperature
    assert {row["calibrator"] for row in shown["rows"]} == {None, repr(expected)}


def test_left_to_itself_it_says_why(good: Path, run: Run) -> None:
    text = run("fit good.npz -o c.safetensors").stdout
    assert "auto: " in text
    assert "EnsembleTemperatureScaling" in text
    fitted = run("fit good.npz -m auto -o c.safetensors --json")["fitted"]
    assert (fitted["type"], fitted["evidence"]["rows"]) == ("AutoCalibrator", 400)
    rows = run("evaluate good.npz -c c.safetensors --draws 0 --json")["rows"]
    assert {row["calibrator"] for row in rows} == {None, fitted["repr"]}


def sample(rows: int, *, seed: int = 0) -> Predictions:
    """Return logits of two classes whose rows of site a have a higher rate than they say, and unequal weights."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(size=rows) * 1.5, rng.choice(["a", "b", "c"], rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z - (site == "a") + (site == "b")))).astype(int)
    return Predictions.from_binary_logits(z, y, weights=rng.lognormal(size=rows), features={"site": site})


def test_weights_and_features_travel_with_the_file(run: Run) -> None:
    made = {"val": sample(600), "test": sample(500, seed=1)}
    save_predictions("p.npz", made)
    run("fit p.npz -m TemperatureScaling -o c.safetensors")
    expected = TemperatureScaling().fit(made["val"])
    assert load("c.safetensors").temperature == pytest.approx(expected.temperature, rel=1e-9)
    run("fit p.npz -m GroupScaling --features site -o g.safetensors")
    run("apply g.safetensors p.npz -o out.npz")
    after, grouped = read("out.npz", split="test"), load("g.safetensors")
    assert isinstance(grouped, GroupScaling)
    np.testing.assert_allclose(after.logits, made["test"].calibrated_by(grouped).logits)
    assert torch.equal(after.weights, made["test"].weights)
    assert "NLL()" in str(run("compare p.npz out.npz --json"))
    save_predictions("other.npz", replace(made["test"], features={"place": made["test"].features["site"]}))
    for line in ("apply g.safetensors other.npz -o o.npz", "evaluate other.npz -c g.safetensors"):
        run(line, code=2, says="other.npz has no column 'site'. Columns: logits, labels, weights, feature:place")


def test_several_labels_are_fitted_measured_and_applied(home: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3))
    data = MultiLabel.from_logits(2 * z, (z + rng.logistic(size=z.shape) > 0).astype(int), names=["cat", "dog", "owl"])
    save_predictions("m.npz", {"val": data[:200], "test": data[200:]})
    assert "3 labels through PlattScaling" in run("fit m.npz --multilabel -o m.safetensors").stdout
    found = run("evaluate m.npz --multilabel -c m.safetensors --draws 0 --json")
    assert found["fitted"]["type"] == "MultiLabelCalibrator"
    expected = data[200:].calibrated_by(load("m.safetensors")).logits
    for suffix in (".csv", ".npz"):
        save_predictions(f"new{suffix}", data[200:])
        run("apply", "m.safetensors", f"new{suffix}", "-o", f"o{suffix}", "--multilabel", "--replace")
        np.testing.assert_allclose(read(f"o{suffix}", multilabel=True).logits, expected, rtol=1e-6)
    run("evaluate m.npz -c m.safetensors", code=2, says="is for several labels per row; add --multilabel")
    np.savez("one.npz", logits=some_logits(rows=60)[0], labels=some_logits(rows=60)[1])
    run("evaluate one.npz --multilabel", code=2, says="leave out --multilabel")


@pytest.mark.parametrize("method", [[], ["-m", "EnsembleTemperatureScaling"]])
def test_a_folder_is_fitted_in_batches(method: list[str], home: Path, run: Run) -> None:
    Path("data").mkdir()
    for part in range(2):
        save_predictions(Path("data", f"{part}.parquet"), Predictions.from_logits(*some_logits(rows=300, seed=part)))
    said = " ".join(run("fit data", *method, "-o", "c.safetensors").stdout.split())
    assert ("candidates in use" in said) is (not method)
    assert "fitted on all rows" in said
    assert type(load("c.safetensors")).__name__ == (method[1] if method else "AutoCalibrator")
    run("fit data --features all -m GroupScaling -o o.safetensors", code=2, says="--features has no effect on data")


def test_export_writes_a_model_that_is_served(fitted: Path, run: Run) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="optional package 'onnxruntime' is not installed")
    Path("names.txt").write_text("a\nb\nc\nd\n")
    run("export c.safetensors -o c.onnx --class-names names.txt", says="written to c.onnx: logits in, probs out")
    logits = some_logits(rows=9)[0]
    (probs,) = onnxruntime.InferenceSession("c.onnx").run(None, {"logits": logits})
    expected = torch.softmax(calibrant.load("c.safetensors")(torch.from_numpy(logits)), dim=1)
    np.testing.assert_allclose(probs, expected, rtol=1e-5)
