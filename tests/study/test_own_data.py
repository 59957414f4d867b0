"""A study of one's own data: a table, arrays, a function, or a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.samples import write_images, write_texts
from torch.nn import functional as F
from typer.testing import CliRunner

from calibrant.cli import main
from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.study import load_study
from calibrant.study.data import load_fold
from calibrant.study.data.features import SIDE, THRESHOLD, _quadrant_responses, _standardised

STUDY = """name = "mine"
seeds = [0]
data = {{ {} }}
model = {{ type = "MLP", hidden = [4] }}
training = {{ epochs = 1, batch = 32, lr = 0.05, weight_decay = 0.0, schedule = "cosine", momentum = 0.9 }}
[[objectives]]
label = "Cross-entropy"
loss = {{ type = "CrossEntropyLoss" }}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """A folder of the same rows in every form; returns features (100, 2) and labels (100,)."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 2)) * 3 + 5, rng.integers(0, 3, 100)
    names = np.array(["cat", "dog", "eel"])[y]
    rows = [f"r{at},{a:.6f},{b:.6f},{name}\n" for at, ((a, b), name) in enumerate(zip(x, names, strict=True))]
    Path("all.csv").write_text("id,a,b,kind\n" + "".join(rows))
    for name, part in (("train", rows[:60]), ("test", rows[60:])):
        Path(f"{name}.csv").write_text("id,a,b,kind\n" + "".join(part))
    np.savez("all.npz", features=x, labels=y)
    np.savez("bare.npz", x=x, y=y)
    Path("own_data_of_a_test.py").write_text(
        "import numpy as np\n\n\ndef load():\n    with np.load('all.npz') as f:\n        x, y = f['features'], f['labels']\n"
        "    return {'train': (x[:60], y[:60]), 'val': list(zip(x[60:80], y[60:80])), 'test': (x[80:], y[80:])}\n"
    )
    return x, y


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ({"files": "all.csv", "label": "kind"}, (60, 20, 20)),
        ({"files": "all.csv", "label": "kind", "columns": ["a", "b"], "test": 10, "validation": 5}, (85, 5, 10)),
        ({"files": {"train": "train.csv", "test": "test.csv"}, "label": "kind"}, (48, 12, 40)),
        ({"files": "all.npz"}, (60, 20, 20)),
        ({"name": "module", "module": "own_data_of_a_test:load"}, (60, 20, 20)),
        ({"files": "all.npz", "redraw": True, "train": 30}, (30, 20, 20)),
    ],
)
def test_no_row_is_in_two_splits_and_each_has_its_label(
    home: Any, data: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    fold = load_fold({"name": "own", **({} if "module" in data else {"standardize": False}), **data})
    parts = (fold.train, fold.validation, fold.test)
    assert tuple(map(len, parts)) == sizes
    assert dict(fold.sizes) == {"classes": 3, "inputs": 2}
    x, y = home
    inputs, labels = torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])  # type: ignore[attr-defined]
    place = {round(float(row[0]), 4): at for at, row in enumerate(x)}
    rows = [place[round(float(row[0]), 4)] for row in inputs]
    assert len(set(rows)) == len(rows) == sum(sizes)
    np.testing.assert_array_equal(labels, y[rows])


def test_ids_and_predictions_are_no_features_unless_they_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("row_id,a,b,predicted,y\n" + "".join(f"{i},{i % 3},.5,1,{i % 2}\n" for i in range(60)))
    for columns, count in (({}, 2), ({"columns": ["row_id", "a"]}, 2), ({"columns": ["row_id", "a", "b"]}, 3)):
        fold = load_fold({"name": "own", "files": str(file), "label": "y", "standardize": False, **columns})
        assert fold.train.inputs.shape[1] == count  # type: ignore[attr-defined]
    given = load_fold({"name": "own", "files": str(file), "label": "y", "standardize": False}).train.inputs  # type: ignore[attr-defined]
    assert float(given.max()) <= 2


def test_features_are_standardized_by_the_training_rows(home: Any) -> None:
    fold = load_fold({"name": "own", "files": "all.npz"})
    assert float(fold.train.inputs.mean().abs()) < 1e-5  # type: ignore[attr-defined]
    assert 0.01 < float(fold.test.inputs.mean().abs()) < 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ({}, InputError, "got no files"),
        ({"files": "all.csv"}, InputError, "the label 'label'"),
        ({"files": "bare.npz"}, FileFormatError, "features and labels"),
        ({"files": "all.csv", "label": "kind", "columns": "id"}, InputError, "text in 'id'"),
        ({"files": "all.csv", "label": "kind", "test": 100}, InputError, "fewer than 100 rows"),
        ({"name": "module", "module": "own_data_of_a_test:lead"}, InputError, "importable"),
        ({"files": {"test": "test.csv"}, "label": "kind"}, InputError, "the file of train"),
    ],
)
def test_what_cannot_be_split_is_refused(home: Any, data: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        load_fold({"name": "own", **data})


@pytest.mark.parametrize(
    "data",
    [
        'files = "all.csv", label = "kind"',
        pytest.param('files = "all.npz"', marks=pytest.mark.slow),
        'module = "own_data_of_a_test:load"',
    ],
)
def test_ten_lines_of_one_s_own_data_give_a_table_and_a_report(home: Any, data: str) -> None:
    pytest.importorskip("lightning", reason="optional package 'lightning' is not installed")
    text = STUDY.format(data)
    assert text.count("\n") <= 10
    Path("s.toml").write_text(text)
    ran = CliRunner().invoke(main, ["study", "run", "s.toml", "--accelerator", "cpu"])
    assert ran.exit_code == 0, ran.output
    # a report takes its figures from the store, whatever the data were, as the record of tests/cli/test_study.py does
    page = ["--report", "s.html"] if "csv" in data else []
    shown = CliRunner().invoke(main, ["study", "show", "s.toml", *page])
    assert shown.exit_code == 0, shown.output
    as_json = json.loads(CliRunner().invoke(main, ["study", "show", "s.toml", "--json"]).stdout)["rows"]
    error, ece = (
        next(row for row in as_json if row["metric"].startswith(name) and row["calibrator"] is None)
        for name in ("Error", "ECE")
    )
    errors = [
        line for line in shown.stdout.splitlines() if "Cross-entropy" in line and f"{100 * error['value']:.1f}" in line
    ]
    assert errors  # the table has the figure of the store
    assert error["n"] == 20
    if "csv" in data:
        assert f"{100 * ece['value']:.2f}" in Path("s.html").read_text()
        # other content is refused in one sentence, and the finished training stays
        Path("all.csv").write_text(Path("all.csv").read_text().replace("cat", "dog"))
        again = CliRunner().invoke(main, ["study", "run", "s.toml", "--accelerator", "cpu"])
        assert again.exit_code == 2
        assert "was begun, got others; choose another --store" in " ".join(again.output.split())
        assert CliRunner().invoke(main, ["study", "show", "s.toml"]).exit_code == 0


def arrays(folder: Path, *, seed: int = 0, **more: Any) -> str:
    rng = np.random.default_rng(seed)
    np.savez(folder / "own.npz", inputs=rng.normal(size=(50, 2, 3)), labels=np.arange(50) % 3, **more)
    return str(folder / "own.npz")


def table(kind: str, folder: Path) -> dict[str, Any]:
    cache = str(folder / "cache")
    small = {"train": 12, "validation": 6, "test": 10}
    if kind == "files":
        return {"name": "own", "files": arrays(folder), "redraw": True, **small}
    if kind == "images":
        write_images(folder, train=(60,), test=20)
        return {"name": "features-cifar10", "folder": str(folder), "cache": cache, "patches": 3, "size": 5, **small}
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    texts = [
        f"From: {i}\n\n{['the cat sat on the mat', 'a dog ran', 'cats and dogs'][i % 3]} word{i % 7}" for i in range(40)
    ]
    write_texts(folder, text=texts, label=[i % 20 for i in range(40)])
    return {"name": "features-20news", "folder": str(folder), "cache": cache, "size": 4, "kind": kind, **small}


@pytest.mark.parametrize("kind", ["files", "images", "tfidf", "hashed"])
def test_every_seed_draws_rows_of_its_own_and_the_cache_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    data = table(kind, tmp_path)
    first, again, other = load_fold(data, seed=1), load_fold(data, seed=1), load_fold(data, seed=2)
    for split, count in (("train", 12), ("validation", 6), ("test", 10)):
        one, same, apart = (getattr(fold, split) for fold in (first, again, other))
        assert len(one) == count
        assert torch.equal(one.inputs, same.inputs)
        assert not torch.equal(one.inputs, apart.inputs)
    assert first.digest == other.digest != ""
    assert first.sizes["inputs"] == first.train.inputs[0].numel()  # type: ignore[attr-defined]


def test_no_row_serves_twice(tmp_path: Path) -> None:
    rows = np.arange(50.0)[:, None]
    np.savez(tmp_path / "own.npz", inputs=rows, labels=np.arange(50) % 2, test=np.arange(50) >= 40)
    fold = load_fold({"name": "own", "files": str(tmp_path / "own.npz"), "standardize": False}, seed=3)
    parts = [{int(x) for x in split.inputs[:, 0]} for split in (fold.train, fold.validation, fold.test)]  # type: ignore[attr-defined]
    assert [len(part) for part in parts] == [32, 8, 10]
    assert set.union(*parts) == set(range(50))
    assert parts[2] == set(range(40, 50))


def test_responses_are_those_of_whitened_patches_one_by_one() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size=(2, 32, 32, 3), dtype=np.uint8))
    kernels = torch.randn(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) / 10
    kernels -= kernels.mean(dim=(1, 2, 3), keepdim=True)
    windows = pixels.float().unfold(1, SIDE, 1).unfold(2, SIDE, 1)  # (2, 27, 27, 3, SIDE, SIDE)
    rows = _standardised(windows.reshape(-1, 3 * SIDE**2))
    response = (rows @ kernels.flatten(1).T).reshape(2, 27, 27, 4).permute(0, 3, 1, 2)
    parts = [F.adaptive_avg_pool2d((sign * response - THRESHOLD).relu(), 2) for sign in (1, -1)]
    assert torch.allclose(
        _quadrant_responses(pixels, kernels), torch.cat(parts, dim=1).flatten(1), atol=1e-6
    )  # float32 sums of 729


def test_a_changed_cache_is_refused_in_a_sentence(tmp_path: Path) -> None:
    data = table("images", tmp_path)
    load_fold(data, seed=0)
    (file,) = (tmp_path / "cache").iterdir()
    found = dict(np.load(file))
    np.savez(file, **{**found, "inputs": found["inputs"] + 1})
    with pytest.raises(FileFormatError, match="as they were computed, got others: the file has changed; delete it"):
        load_fold(data, seed=0)


def test_a_cache_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match=r"a writable folder for features, got .*; set cache in"):
        load_fold({**table("images", tmp_path), "cache": str(tmp_path / "file" / "cache")})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train": 60}, "fewer than 31 rows for train, got 60"),
        ({"files": "nowhere.npz"}, "nowhere.npz"),
        ({"test": 0}, "test"),
        ({"sizes": 1}, "got the argument sizes"),
    ],
)
def test_impossible_requests_are_named(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CalibrantError, match=said):
        load_fold({"name": "own", "files": arrays(tmp_path), **options})


def test_objectives_are_taken_from_the_table_of_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        STUDY.format(f'files = "{arrays(tmp_path)}"').partition("[[")[0]
        + 'objectives = ["Cross-entropy", { label = "Focal 3", training = { lr = 0.5 } }]'
    )
    first, last = (cell.recipe for cell in load_study(path).cells())
    assert (first.loss["type"], last.loss["type"], last.loss["gamma"]) == ("CrossEntropyLoss", "FocalLoss", 3.0)
    assert (first.training.lr, last.training.lr) == (0.05, 0.5)
    path.write_text(path.read_text().replace("Focal 3", "Focl 3"))
    with pytest.raises(InputError, match="did you mean 'Focal 3'"):
        load_study(path)


OWN = """
import numpy as np
def load(*, seed, fold, rows=40):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(rows, 3)).astype("float32"), np.arange(rows) % 2) for _ in range(3)]
def broken(*, seed, fold):
    return 1
"""


def test_data_of_a_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_of_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    fold = load_fold({"name": "module", "module": "own_data_of_test:load", "rows": 30}, seed=3)
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [30] * 3
    assert np.allclose(fold.train.inputs, np.random.default_rng(3).normal(size=(30, 3)))  # type: ignore[attr-defined]
    for name, said in (("broken", "a Fold or three pairs"), ("none", "to be importable")):
        with pytest.raises(InputError, match=said):
            load_fold({"name": "module", "module": f"own_data_of_test:{name}"})
