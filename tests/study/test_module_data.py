"""Data of a study that a function of the user's own returns."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from calibrant.cli import main
from calibrant.errors import InputError
from calibrant.study import load_study
from calibrant.study.data import load_fold

STUDY = """name = "mine"
seeds = [0]
data = { module = "data_of_a_test:load", rows = 40 }
model = { type = "MLP", hidden = [4] }
training = { epochs = 1, batch = 32, lr = 0.05, weight_decay = 0.0, schedule = "cosine", momentum = 0.9 }
[[objectives]]
label = "Cross-entropy"
loss = { type = "CrossEntropyLoss" }
"""
LOADERS = """
import numpy as np
import torch

def load(*, seed, rows=40):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(3, rows, 2, 3)), np.arange(rows) % 3
    pairs = torch.utils.data.TensorDataset(torch.tensor(x[1]), torch.tensor(y))
    return {"train": (x[0], y), "val": pairs, "test": (x[2], y)}

def two():
    return {"train": load(seed=0)["train"], "test": load(seed=0)["test"]}

def names():
    return {**load(seed=0), "val": (np.ones((3, 6)), np.array([0.5, 1.0, 2.0]))}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data_of_a_test.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "data_of_a_test", raising=False)
    return tmp_path


def test_a_function_gives_arrays_or_data_sets(home: Path) -> None:
    fold = load_fold({"name": "module", "module": "data_of_a_test:load", "rows": 30}, seed=3)
    expected = np.random.default_rng(3).normal(size=(3, 30, 2, 3))
    for place, split in enumerate((fold.train, fold.validation, fold.test)):
        inputs, labels = split.batch(torch.arange(30))
        assert np.allclose(inputs, expected[place])
        assert torch.equal(labels, torch.arange(30) % 3)
    assert dict(fold.sizes) == {"classes": 3, "inputs": 6}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two", "got .'test', 'train'."),
        ("names", "labels .N,. of 0, 1, … in 'val'"),
        ("none", "to be importable"),
    ],
)
def test_what_a_function_must_not_return_is_named(home: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_fold({"name": "module", "module": f"data_of_a_test:{name}"})


def test_ten_lines_of_a_study_on_own_data_give_a_table(home: Path) -> None:
    pytest.importorskip("lightning", reason="optional package 'lightning' is not installed")
    Path("s.toml").write_text(STUDY)
    ran = CliRunner().invoke(main, ["study", "run", "s.toml", "--accelerator", "cpu"])
    assert ran.exit_code == 0, ran.output
    shown = json.loads(CliRunner().invoke(main, ["study", "show", "s.toml", "--json"]).stdout)["rows"]
    error = next(row for row in shown if row["metric"] == "Error()" and row["calibrator"] is None)
    assert error["n"] == 40
    assert f"{100 * error['value']:.1f}" in ran.stdout


def test_objectives_are_taken_from_the_table_of_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    objectives = 'objectives = ["Cross-entropy", { label = "Focal 3", training = { lr = 0.5 } }]'
    path.write_text(STUDY.partition("[[")[0] + objectives)
    first, last = (cell.recipe for cell in load_study(path).cells())
    assert (first.loss["type"], last.loss["type"], last.loss["gamma"]) == ("CrossEntropyLoss", "FocalLoss", 3.0)
    assert (first.training.lr, last.training.lr) == (0.05, 0.5)
    path.write_text(path.read_text().replace("Focal 3", "Focl 3"))
    with pytest.raises(InputError, match="did you mean 'Focal 3'"):
        load_study(path)
