"""Files that 0.1.0 and the version before 1.0 wrote load for ever, with the same answers: of every kind, in every format."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.cli.test_outputs import assert_same

import calibrant
from calibrant import BinaryPairs, Predictions, calibrators
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.operate import Deployed, Monitor
from calibrant.study import Store, load_study

HOME = Path(__file__).parent / "fixtures" / "before-1.0"
OLDEST = HOME.with_name("calibrators-0.1.0")
FITTED = sorted([*(HOME / "calibrators").glob("*-[23].safetensors"), *OLDEST.glob("*.safetensors")])
SEVERAL = sorted((HOME / "calibrators").glob("MultiLabelCalibrator*.safetensors"))
RULES = sorted((HOME / "operate").glob("deployed-*.safetensors"))
LATER = 1_700_172_800.0
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}


@cache
def answers(home: Path) -> dict[str, np.ndarray]:
    with np.load(home / "answers.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    return answers(HOME)


def features(stored: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {column: stored[f"{name}-{column}"] for column in ("region", "age")}


def probe(stored: dict[str, np.ndarray]) -> Predictions:
    return Predictions.from_logits(stored["probe-3-logits"])


@pytest.mark.parametrize("path", FITTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_calibrator_gives_the_answers_it_gave(path: Path, stored: dict[str, np.ndarray], tmp_path: Path) -> None:
    stored = answers(OLDEST) if path.parent == OLDEST else stored
    expected = stored[f"answer-{path.stem}"]
    loaded = calibrators.load(path)
    loaded.save(tmp_path / "again.safetensors")
    for one in (loaded, calibrators.load(tmp_path / "again.safetensors")):
        if path.parent == OLDEST:
            found = one(torch.from_numpy(stored[f"probe-{expected.shape[1]}"])).numpy()
            # 5e-7: a kept decision now leads a class that was tied with it by twice float32's rounding
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=5e-7)
            continue
        name = f"probe-{expected.shape[1]}"
        logits = torch.from_numpy(stored[f"{name}-logits"]).double()
        beside = (Predictions.from_logits(logits, features=features(stored, name)).features,) * one.needs_features
        np.testing.assert_allclose(one(logits, *beside).softmax(1).numpy(), expected, **CLOSE)


@pytest.mark.parametrize("path", SEVERAL, ids=lambda path: path.stem)
def test_a_calibrator_of_several_labels_gives_the_answers_it_gave(path: Path, stored: dict[str, np.ndarray]) -> None:
    found = MultiLabelCalibrator.load(path)(torch.from_numpy(stored["probe-labels-logits"]).double()).sigmoid()
    np.testing.assert_allclose(found.numpy(), stored[f"answer-{path.stem}"], **CLOSE)


def test_every_class_has_a_file() -> None:
    homes = {OLDEST: set(), HOME / "calibrators": {"MultiLabelCalibrator" for _ in SEVERAL}}
    for path in FITTED:  # each of them loads above
        with safe_open(path, framework="pt") as file:
            homes[path.parent].add(file.metadata()["type"])
    oldest = {
        "AutoCalibrator", "BetaCalibration", "CentredIsotonic", "Chain", "DirichletCalibration",
        "EnsembleTemperatureScaling", "FocalCalibration", "FocalTemperatureScaling", "HistogramBinning", "Identity",
        "IsotonicCalibration", "MatrixScaling", "PlattScaling", "QuadraticScaling", "ScalingBinning", "SplineCalibration",
        "StructuredMatrixScaling", "StructuredVectorScaling", "TemperatureMixture", "TemperatureScaling", "VectorScaling",
        "VennAbers",
    }  # fmt: skip
    later = {
        "AdaptiveTemperatureScaling", "BiasScaling", "BoostedScaling", "FeatureScaling", "GroupScaling", "KernelScaling",
        "MultiLabelCalibrator", "PriorShift",
    }  # fmt: skip
    assert homes[OLDEST] >= oldest
    assert homes[HOME / "calibrators"] >= oldest | later
    made = {f"answer-{path.stem}" for path in FITTED if path.parent == OLDEST}
    assert made == {name for name in answers(OLDEST) if name.startswith("answer-")}


@pytest.mark.parametrize("name", ["TemperatureScaling-3", "AutoCalibrator-3", "Chain-nested-3", "GroupScaling-3"])
def test_a_calibrator_knows_the_rows_that_it_was_fitted_on(name: str, stored: dict[str, np.ndarray]) -> None:
    loaded = calibrators.load(HOME / "calibrators" / f"{name}.safetensors")
    rows = Predictions.from_logits(stored["fitted-3-logits"], stored["fitted-3-labels"])
    with pytest.raises(calibrant.errors.LeakError):
        rows.calibrated_by(loaded)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_rule_decides_as_it_did(path: Path, stored: dict[str, np.ndarray]) -> None:
    groups = (stored["probe-3-region"],) if path.stem.endswith("group") else ()
    found = Deployed.load(path).decide(probe(stored), *groups)
    assert found.tolist() == stored[f"answer-{path.stem}"].tolist()


@pytest.mark.parametrize("name", ["classes", "by", "pairs"])
def test_a_monitor_goes_on_where_it_was(name: str, stored: dict[str, np.ndarray], tmp_path: Path) -> None:
    expected = json.loads((HOME / "statuses.json").read_text())[name]
    Monitor.load(HOME / "operate" / f"monitor-{name}.safetensors").save(tmp_path / "again.safetensors")
    for path in (HOME / "operate" / f"monitor-{name}.safetensors", tmp_path / "again.safetensors"):
        monitor = Monitor.load(path)
        assert_same(monitor.status.plain(), expected["before"])
        found = [[one.rows, one.confidence, one.right, one.loss, one.first] for one in monitor.timeline]
        np.testing.assert_allclose(np.array(found, dtype=float), np.array(expected["timeline"], dtype=float), **CLOSE)
        beside = {"features": {"region": stored["later-region"]}} if name == "by" else {}
        later: Any = Predictions.from_logits(stored["later-logits"], stored["later-labels"], **beside)
        later = later.top_label() if name == "pairs" else later
        assert_same(monitor.update(later, ids=range(200, 300), time=LATER).plain(), expected["after"])
        with pytest.raises(calibrant.errors.InputError, match="already"):
            monitor.update(later, ids=range(200, 300), time=LATER)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("table.csv", {"columns": "logits_*", "kind": "logits"}), ("table.tsv", {"columns": "logits_*", "kind": "logits"}),
        ("table.jsonl", {}), ("table.arrow", {}), ("tensors.pt", {}), ("arrays", {}), ("probs.npz", {}),
    ],
)  # fmt: skip
def test_tables_and_arrays_are_read(file: str, options: dict[str, Any], stored: dict[str, np.ndarray]) -> None:
    found = calibrant.read(HOME / "files" / file, **options)
    assert isinstance(found, Predictions)
    np.testing.assert_allclose(found.probs.numpy(), stored["test-probs"], **CLOSE)
    assert found.need_labels().tolist() == stored["test-labels"].tolist()


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "parquet"])
def test_pairs_are_read(suffix: str, stored: dict[str, np.ndarray]) -> None:
    found = calibrant.read(HOME / "files" / f"pairs.{suffix}")
    assert isinstance(found, BinaryPairs)
    np.testing.assert_allclose(found.p.numpy(), stored["pairs-p"], **CLOSE)
    assert found.y.tolist() == stored["pairs-y"].tolist()


def test_decisions_are_read(stored: dict[str, np.ndarray]) -> None:
    found = calibrant.read(HOME / "files" / "decisions.npz")
    assert isinstance(found, Predictions)
    assert found.decision.tolist() == stored["decisions"].tolist()
    np.testing.assert_allclose(found.confidence.numpy(), stored["decisions-confidence"], **CLOSE)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "parquet", "csv", "jsonl"])
def test_several_labels_are_read(suffix: str, stored: dict[str, np.ndarray]) -> None:
    table = suffix not in ("npz", "safetensors")
    splits = calibrant.load_multilabel(HOME / "files" / f"labels.{suffix}")
    parts = [splits["all"]] if table else [splits["val"], splits["test"]]
    np.testing.assert_allclose(np.concatenate([one.probs.numpy() for one in parts]), stored["labels-probs"], **CLOSE)
    found = np.concatenate([one.need_labels().numpy() for one in parts])
    assert found.tolist() == stored["labels-labels"].tolist()
    assert {one.names for one in parts} == {("cat", "dog", "owl")}
    if not table:
        weights = np.concatenate([np.asarray(one.weights) for one in parts])
        np.testing.assert_allclose(weights, stored["labels-weights"], **CLOSE)
        assert [name for one in parts for name in (one.features or {})["region"]] == stored["labels-region"].tolist()


def test_a_study_finds_its_runs(stored: dict[str, np.ndarray]) -> None:
    store = Store(HOME / "study" / "runs")
    cells = list(load_study(HOME / "study" / "small.toml").cells())
    assert len(cells) == 2
    for number, cell in enumerate(cells):
        assert store.finished(cell.recipe)
        run = store.load(cell.recipe)
        np.testing.assert_allclose(run.test.nll.numpy(), stored[f"study-{number}-nll"], **CLOSE)
        np.testing.assert_allclose(run.validation.nll.numpy(), stored["study-val-nll"], **CLOSE)
        assert [entry["loss"] for entry in store.trajectory(cell.recipe)] == [2.25, 1.5]
        assert store.learned_epochs(cell.recipe).tolist() == list(range(40))
        assert store.max_logits(cell.recipe)[8] == 1
        assert (run.record["epoch"], run.record["device"], run.record["seconds"]) == (2, "cpu", 1.25)
